"""The command `tune decoder`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cortext.cli.console import DEVICE, JSON, is_given, print_json, print_lines, print_table
from cortext.cli.options import PromptedModelOptions, check_ray
from cortext.errors import ConfigError
from cortext.evaluation.settings import Engine, GpusPerWorker, OptionsFile, Ray

if TYPE_CHECKING:
    from cortext.tuning import Tuned
    from cortext.tuning.decoder.result import Rate

SHOWN = 10
"""Trials in the table on the screen; trials.csv has them all."""


NEEDED = {
    "split": "data",
    "device": "data",
    "finalists": "sample",
    "llm_trials": "llm",
    "llm_device": "llm",
}
"""Options that have no effect without another one."""


def decoder(
    call: typer.Context,
    source: Annotated[
        Path,
        typer.Argument(help="Evaluation directory; or, with --data, run directory of a model."),
    ],
    lm: Annotated[Path, typer.Option(help="Language-model directory.")],
    out: Annotated[
        Path, typer.Option(help="Search directory to write; an unfinished search there goes on.")
    ],
    *,
    data: Annotated[
        Path | None, typer.Option(help="Directory of session files, or a packed one, for a run.")
    ] = None,
    split: Annotated[str, typer.Option(help="Split of --data to tune on.")] = "val",
    held_out: Annotated[
        str,
        typer.Option(
            metavar="SHARE|DIR|SPLIT",
            help=(
                "What the result is only measured on: a share of the sentences, another evaluation"
                " directory, or another split of --data; 0 for nothing."
            ),
        ),
    ] = "0.3",
    options: OptionsFile = None,
    tried: Annotated[
        list[Path] | None,
        typer.Option(
            "--try", metavar="FILE", help="YAML file of options to try first; repeatable."
        ),
    ] = None,
    ranges: Annotated[
        list[str] | None,
        typer.Option(
            "--range",
            metavar="KEY=LOW:HIGH[:log]",
            help="Search this range; replaces the usual ones.",
        ),
    ] = None,
    choices: Annotated[
        list[str] | None,
        typer.Option("--choice", metavar="KEY=V,V,...", help="Search these values; repeatable."),
    ] = None,
    trials: Annotated[int, typer.Option(min=1, help="Options to try, those given included.")] = 50,
    seed: Annotated[
        int, typer.Option(min=0, help="Decides what is drawn, held out and sampled.")
    ] = 0,
    time_weight: Annotated[
        float, typer.Option(min=0, help="Points of WER that a millisecond per frame is worth.")
    ] = 1.0,
    sample: Annotated[
        int | None,
        typer.Option(min=1, help="Utterances for each trial; the best are judged by all."),
    ] = None,
    finalists: Annotated[
        int, typer.Option(min=1, help="So many of the best are judged by all, with --sample.")
    ] = 5,
    prune: Annotated[
        bool, typer.Option("--prune", help="Give up trials that are worse than most on the way.")
    ] = False,
    model: PromptedModelOptions,
    llm_trials: Annotated[
        int, typer.Option(min=1, help="Weights of the large model to try.")
    ] = 200,
    jobs: Annotated[int, typer.Option(min=1, help="Trials at the same time.")] = 1,
    ray: Ray = None,
    gpus_per_worker: GpusPerWorker = 0.0,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Try again what failed before.")
    ] = False,
    engine: Engine = "native",
    device: str = DEVICE,
    as_json: bool = JSON,
) -> None:
    """Search for decoder options and write the file that --options of every command reads.

    No model runs again: the search decodes the logits of an evaluation whose trials have
    references. Stopped or killed, the same command goes on where it was. With more --trials it
    tries more. Several processes may run it at the same time. A large model's weights are swept
    after the search, by ranking the sentences that it has scored.

    Example: cortext tune decoder runs/eval --lm runs/lm --out runs/options --trials 100 --jobs 2

    Example: cortext decode runs/first --data runs/sim --lm runs/lm --options
    runs/options/options.yaml --out test.csv
    """
    from cortext.config import load_config
    from cortext.decoding import DecoderOptions
    from cortext.evaluation.cluster import DecoderFiles
    from cortext.evaluation.settings import read_options
    from cortext.tuning import DecoderSearch, parse_space, tune_decoder
    from cortext.tuning.decoder.material import evaluated, tuning_parts
    from cortext.tuning.workers import WorkerOptions

    def report(line: str) -> None:
        print_lines(line, err=True)

    _check_given(call)
    check_ray(ray, gpus_per_worker, llm_device=model.llm_device)
    large = model.files
    start = read_options(options)
    given = [load_config(path, DecoderOptions) for path in tried or ()]
    space = parse_space([*(ranges or ()), *(choices or ())])
    search = DecoderSearch(space, trials, seed, time_weight, sample, finalists, prune, llm_trials)
    search.spaces(start, large is not None)

    def evaluation(name: str) -> Path:
        assert data is not None
        return evaluated(source, data, name, lm, out, start, device, report)

    directory = source if data is None else evaluation(split)
    other: float | Path = float(held_out) if _is_number(held_out) else Path(held_out)
    if isinstance(other, Path) and not other.is_dir():
        if data is None:
            fix = "give a share such as 0.3, or an evaluation directory"
            raise ConfigError(f"--held-out is {held_out!r}, which is no directory", fix=fix)
        other = evaluation(held_out)
    part, rest = tuning_parts(directory, other, seed)
    files = DecoderFiles(lm.resolve(), start, engine, large and large.resolved())
    where = WorkerOptions(jobs, ray, gpus_per_worker)
    tuned = tune_decoder(
        part,
        rest,
        files,
        out,
        search,
        given=given,
        context=model.context,
        where=where,
        retry_failed=retry_failed,
        report=report,
    )
    if as_json:
        print_json(tuned.to_json())
    else:
        _print(tuned)


def _check_given(call: typer.Context) -> None:
    """Raise ConfigError for an option that would have no effect."""
    for name, needed in NEEDED.items():
        if is_given(call, name) and call.params[needed] is None:
            flag, other = (f"--{one.replace('_', '-')}" for one in (name, needed))
            raise ConfigError(
                f"{flag} is given without {other}", fix=f"leave it out, or give {other}"
            )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def _print(tuned: Tuned) -> None:
    from cortext.tuning.space import short

    keys, rows = list(tuned.space), []
    for trial in tuned.ranked()[:SHOWN]:
        settings = [short(trial.settings[key]) if key in trial.settings else "-" for key in keys]
        rows.append([trial.number, *settings, *_measured(tuned, trial)])
    count = (
        f"{len(tuned.trials)} trials"
        if len(tuned.trials) <= SHOWN
        else f"the best {SHOWN} of {len(tuned.trials)}"
    )
    minimised = (
        "WER"
        if not tuned.search.time_weight
        else f"WER + {tuned.search.time_weight:g} points per ms a frame"
    )
    print_table(f"{count} by {minimised}", ["trial", *keys, "WER", "ms a frame"], rows, 0)
    for trial in tuned.trials:
        if trial.state == "failed":
            print_lines(f"trial {trial.number} failed: {trial.reason}")
    if tuned.sweep is not None:
        print_lines(
            f"{len(tuned.sweep)} weights of the large model were tried by ranking again, without"
            " decoding"
        )
    first = tuned.judged[0]
    names = [
        "options",
        f"tuned on: {_size(first.tuned)}",
        "95 %",
        f"held out: {_size(first.held_out)}",
        "95 %",
    ]
    lines = [
        [row.name, *_rate(row.tuned), *_rate(row.held_out), f"{row.ms_per_frame:.3f}"]
        for row in tuned.judged
    ]
    print_table("what they are worth (WER, decoded with each)", [*names, "ms a frame"], lines)
    for row in tuned.judged:
        if row.degraded:
            print_lines(f"{row.name}: {row.degraded}")
    print_lines(
        f"options: {tuned.out / 'options.yaml'}, all trials: {tuned.out / 'trials.csv'} and"
        " trials.png"
    )


def _measured(tuned: Tuned, trial: Any) -> list[str]:
    wer = tuned.wer(trial)
    return (
        [trial.state, "-"]
        if wer is None
        else [f"{100 * wer:.2f} %", f"{trial.metrics['ms_per_frame']:.3f}"]
    )


def _size(rate: Rate | None) -> str:
    return "nothing" if rate is None else f"{rate.n_utterances} trials, {rate.n_words} words"


def _rate(rate: Rate | None) -> list[str]:
    if rate is None:
        return ["-", "-"]
    return [f"{100 * rate.wer:.2f} %", f"{100 * rate.low:.1f} to {100 * rate.high:.1f}"]
