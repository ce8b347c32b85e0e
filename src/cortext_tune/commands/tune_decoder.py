"""The command `tune decoder`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cortext.cli.console import (
    DEVICE,
    JSON,
    is_given,
    print_json,
    print_lines,
    print_notes,
    print_table,
)
from cortext.cli.options import KINDS, ORDERS, PromptedModelSettings, check_ray
from cortext.errors import ConfigError
from cortext.evaluation.settings import GpusPerWorker, OptionsFile, Ray
from cortext.settings import Setting

if TYPE_CHECKING:
    from cortext.evaluation.decoder_files import DecoderFiles
    from cortext_tune import DecoderSearch, Tuned
    from cortext_tune.decoder.material import Source
    from cortext_tune.decoder.result import Rate
    from cortext_tune.decoder.saved_logits import SavedLogits

SHOWN = 10
"""Trials in the table on the screen; trials.csv has them all."""


NEEDED = {
    "split": "data",
    "device": "data",
    "references": "logits",
    "order": "logits",
    "scores": "logits",
    "finalists": "sample",
    "llm_trials": "llm",
    "llm_device": "llm",
}
"""Options that have no effect without another one."""


@dataclass(frozen=True)
class MaterialSettings:
    """The trials that options are tuned on, and those that the result is measured on."""

    logits: Annotated[
        Path | None,
        Setting(
            help=(
                "Instead of an evaluation: anyone's logits or log-probabilities (.npz, .npy, .h5);"
                " needs --references and --order."
            )
        ),
    ] = None
    references: Annotated[
        Path | None,
        Setting(
            help=(
                "Sentences of --logits: one a line in the order of the arrays' names, or JSON lines"
                " with name and text."
            )
        ),
    ] = None
    order: Annotated[str | None, Setting(help=f"Order of the tokens in --logits: {ORDERS}.")] = None
    scores: Annotated[str, Setting(help=f"Numbers in --logits: {KINDS}.")] = "logits"
    data: Annotated[
        Path | None, Setting(help="Directory of session files, or a packed one, for a run.")
    ] = None
    split: Annotated[str, Setting(help="Split of --data to tune on.")] = "val"
    held_out: Annotated[
        str,
        Setting(
            metavar="SHARE|DIR|SPLIT",
            help=(
                "What the result is only measured on: a share of the sentences, another evaluation"
                " directory, or another split of --data; 0 for nothing."
            ),
        ),
    ] = "0.3"

    def sources(
        self,
        source: Path | None,
        evaluate: Callable[[Path, Path, str], Path],
        decoder: DecoderFiles,
    ) -> tuple[Source, float | Path]:
        """Return the material to tune on, and the share or evaluation directory to hold out.

        Args:
            source: Evaluation directory, or with `data` the run that is evaluated; None with
                `logits`.
            decoder: The decoder, whose language the sentences of `logits` have.
            evaluate: Returns the evaluation directory of a run on a split of the data.
        """
        if source is None:
            tuned: Source = self._saved_logits(decoder)
        elif self.logits is not None:
            raise ConfigError(f"both {source} and --logits are given", fix="leave one of them out")
        else:
            tuned = source if self.data is None else evaluate(source, self.data, self.split)
        if _is_number(self.held_out):
            return tuned, float(self.held_out)
        other = Path(self.held_out)
        if not other.is_dir():
            if self.data is None:
                fix = "give a share such as 0.3, or an evaluation directory"
                problem = f"--held-out is {self.held_out!r}, which is no directory"
                raise ConfigError(problem, fix=fix)
            assert source is not None  # --data is refused without it
            other = evaluate(source, self.data, self.held_out)
        return tuned, other

    def _saved_logits(self, decoder: DecoderFiles) -> SavedLogits:
        """Return the files of logits and references; raise ConfigError where one is missing."""
        from cortext.text.inventory import read_inventory
        from cortext_tune.decoder.saved_logits import SavedLogits

        if self.data is not None:
            raise ConfigError("--data is given without a run", fix="give its directory")
        if self.logits is None or self.references is None or self.order is None:
            fix = "give an evaluation directory, or --logits with --references and --order"
            raise ConfigError("there is nothing to tune on", fix=fix)
        if self.logits.is_dir():
            fix = "give an evaluation directory without --logits"
            raise ConfigError(f"{self.logits} is a directory", fix=fix)
        order, language = read_inventory(self.order), replace(decoder, llm=None).open().language
        return SavedLogits(self.logits, self.references, order, language, self.scores)


@dataclass(frozen=True)
class DecoderTuneSettings:
    """The search for decoder options, as the command line describes it."""

    tried: Annotated[
        list[Path] | None,
        typer.Option(
            "--try", metavar="FILE", help="YAML file of options to try first; repeatable."
        ),
    ] = None
    ranges: Annotated[
        list[str] | None,
        typer.Option(
            "--range",
            metavar="KEY=LOW:HIGH[:log]",
            help="Search this range; replaces the usual ones.",
        ),
    ] = None
    choices: Annotated[
        list[str] | None,
        typer.Option("--choice", metavar="KEY=V,V,...", help="Search these values; repeatable."),
    ] = None
    trials: Annotated[int, Setting(minimum=1, help="Options to try, those given included.")] = 50
    seed: Annotated[
        int, Setting(minimum=0, help="Decides what is drawn, held out and sampled.")
    ] = 0
    time_weight: Annotated[
        float, Setting(minimum=0, help="Points of WER that a millisecond per frame is worth.")
    ] = 1.0
    sample: Annotated[
        int | None,
        Setting(minimum=1, help="Utterances for each trial; the best are judged by all."),
    ] = None
    finalists: Annotated[
        int, Setting(minimum=1, help="So many of the best are judged by all, with --sample.")
    ] = 5
    prune: Annotated[bool, Setting(help="Give up trials that are worse than most on the way.")] = (
        False
    )

    def settings(self, llm_trials: int) -> DecoderSearch:
        """Return the search; `llm_trials` is the number of weights of a large model to try."""
        from cortext_tune import DecoderSearch, parse_space

        return DecoderSearch(
            space=parse_space([*(self.ranges or ()), *(self.choices or ())]),
            n_trials=self.trials,
            seed=self.seed,
            time_weight=self.time_weight,
            sample=self.sample,
            finalists=self.finalists,
            prune=self.prune,
            llm_points=llm_trials,
        )


@dataclass(frozen=True)
class SearchWorkers:
    """The fields of `cortext_tune.workers.WorkerSettings`, without loading that module."""

    jobs: Annotated[int, Setting(minimum=1, help="Trials at the same time.")] = 1
    ray: Ray = None
    gpus_per_worker: GpusPerWorker = 0.0


def decoder(
    call: typer.Context,
    source: Annotated[
        Path | None,
        typer.Argument(help="Evaluation directory; or, with --data, run directory of a model."),
    ] = None,
    *,
    lm: Annotated[Path, typer.Option(help="Language-model directory.")],
    out: Annotated[
        Path, typer.Option(help="Search directory to write; an unfinished search there goes on.")
    ],
    material: MaterialSettings,
    options: OptionsFile = None,
    search: DecoderTuneSettings,
    model: PromptedModelSettings,
    llm_trials: Annotated[
        int, typer.Option(min=1, help="Weights of the large model to try.")
    ] = 200,
    workers: SearchWorkers,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Try again what failed before.")
    ] = False,
    device: str = DEVICE,
    as_json: bool = JSON,
) -> None:
    """Search for decoder options and write the file that --options of every command reads.

    No model runs again: the search decodes the logits of an evaluation whose trials have
    references, or logits that any program saved. Stopped or killed, the same command resumes where
    it was. With more --trials it tries more. Several processes may run it at the same time. A large
    model's weights are swept after the search, by ranking the sentences that it has scored.

    Example: cortext tune decoder runs/eval --lm runs/lm --out runs/options --trials 100 --jobs 2

    Example: cortext tune decoder --logits logits.npz --references sentences.txt --order release
    --lm runs/lm --out runs/options

    Example: cortext decode runs/first --data runs/sim --lm runs/lm --options
    runs/options/options.yaml --out test.csv
    """
    from cortext.config import load_config
    from cortext.decoding import DecoderOptions
    from cortext.decoding.log_probs import doubts
    from cortext.decoding.ngram import LanguageModel
    from cortext.evaluation.decoder_files import DecoderFiles
    from cortext.evaluation.decoder_options import options_for
    from cortext_tune import tune_decoder
    from cortext_tune import workers as tuning_workers
    from cortext_tune.decoder.material import evaluated, tuning_parts

    def report(line: str) -> None:
        print_lines(line, err=True)

    _check_given(call)
    check_ray(workers.ray, workers.gpus_per_worker, llm_device=model.llm_device)
    large = model.files
    start = options_for(None, lm, options)[0]
    given = [load_config(path, DecoderOptions) for path in search.tried or ()]
    settings = search.settings(llm_trials)
    settings.spaces(start, large is not None)

    def evaluation(run: Path, data: Path, split: str) -> Path:
        return evaluated(run, data, split, lm, out, start, device, report)

    files = DecoderFiles(lm.resolve(), start, large and large.resolved())
    part, rest = tuning_parts(*material.sources(source, evaluation, files), search.seed)
    print_notes(
        [
            *LanguageModel.open(lm).notes,
            *doubts(part.material.log_probs, part.material.inventory),
        ]
    )
    tuned = tune_decoder(
        part,
        rest,
        files,
        out,
        settings,
        given=given,
        context=model.context,
        where=tuning_workers.WorkerSettings(**vars(workers)),
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
    _print_trials(tuned)
    if tuned.sweep is not None:
        print_lines(
            f"{len(tuned.sweep)} weights of the large model were tried by ranking again, without"
            " decoding"
        )
    _print_judged(tuned)
    print_lines(
        f"options: {tuned.out / 'options.yaml'}, all trials: {tuned.out / 'trials.csv'} and"
        " trials.png"
    )


def _print_trials(tuned: Tuned) -> None:
    """Print the best trials, and the reasons of those that failed."""
    from cortext_tune.space import short

    keys = list(tuned.space)
    rows = []
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


def _print_judged(tuned: Tuned) -> None:
    """Print word errors with the given options and the best, tuned on and held out."""
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
