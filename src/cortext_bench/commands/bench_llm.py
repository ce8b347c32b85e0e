"""Commands that measure language models: bench llm, bench speech-llm."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cortext.cli.console import (
    DEVICE,
    JSON,
    OVERRIDES,
    Out,
    hand_over,
    make_folder_of,
    percent,
    print_lines,
    print_table,
    stage,
)
from cortext.cli.options import LargeModelSettings
from cortext.errors import ConfigError

if TYPE_CHECKING:
    from cortext_bench.llm.compare import LLMMaterials


def llm(
    model: LargeModelSettings,
    lm: Annotated[
        Path | None,
        typer.Option(help="Directory of the n-gram; by default built of the real texts."),
    ] = None,
    logits: Annotated[
        Path | None, typer.Option(help="Decode the logits of this evaluation directory.")
    ] = None,
    ensemble: Annotated[
        list[Path] | None,
        typer.Option(help="Evaluation directory of another run for the ensemble; repeatable."),
    ] = None,
    options: Annotated[
        Path | None, typer.Option(help="YAML file of decoder options to begin with.")
    ] = None,
    trials: Annotated[
        Path | None, typer.Option(help="Trials with phoneme errors for pseudo-posteriors.")
    ] = None,
    cache: Annotated[Path, typer.Option(help="Where models are built.")] = Path("build/bench"),
    beside: Annotated[
        list[Path] | None,
        typer.Option(help="Show an earlier result (--out) in the table, too; repeatable."),
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw the word errors to this PNG.")] = None,
    out: Out = None,
    as_json: bool = JSON,
) -> None:
    """Compare word errors and cost of the n-gram alone and with a large model.

    The large model ranks sentences at the end, or takes part in the search. Beside them stands a
    decoder without a language model.

    Without --logits it decodes pseudo-posteriors made from real phoneme errors
    ($CORTEXT_REAL_DATA).

    Example: cortext bench llm --llm runs/demo/llm --logits runs/demo/eval --lm runs/demo/lm
    """
    from cortext.evaluation.decoder_options import options_for
    from cortext.evaluation.figures import save_picture
    from cortext.files import disk_errors
    from cortext_bench.llm.compare import bench_llm, read_result, word_errors
    from cortext_bench.materials import RealData, language_models

    large = model.files
    if large is None:
        raise ConfigError(
            "no large model is named",
            fix="give --llm MODEL; cortext lm train-neural makes a small one",
        )
    large.check()  # before the work
    make_folder_of(out)
    make_folder_of(picture)
    earlier = [read_result(path) for path in beside or []]
    found = _materials(logits, ensemble or [], trials)
    lm = lm or language_models(RealData.find(), cache, static=False, stage=stage).lm
    result = bench_llm(found, (lm, large), options_for(None, lm, options)[0], cache, stage)
    hand_over(result, out, as_json, lambda result: _print([*earlier, result]))
    if picture is not None:
        with disk_errors(picture):
            save_picture(word_errors([*earlier, result]), picture)


def _materials(logits: Path | None, ensemble: list[Path], trials: Path | None) -> LLMMaterials:
    from cortext_bench import posteriors
    from cortext_bench.llm.compare import LLMMaterials, averaged_posteriors
    from cortext_bench.materials import RealData

    if logits is not None:
        if trials is not None:
            raise typer.BadParameter("give one of --logits and --trials")
        utterances, facts = posteriors.evaluation_posteriors(logits)
        averaged = averaged_posteriors([logits, *ensemble]) if ensemble else None
        return LLMMaterials(
            utterances, facts | {"ensemble": [str(path) for path in ensemble]}, averaged
        )
    if ensemble:
        raise typer.BadParameter("--ensemble goes with --logits")
    path = trials or RealData.find().trials
    utterances, facts = posteriors.pseudo_posteriors(path)
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    return LLMMaterials(
        utterances, facts, texts=[line.get("wfst_seed_hypotheses") or [""] for line in lines]
    )


def _print(results: list[dict[str, Any]]) -> None:
    columns = [
        "utterances",
        "",
        "WER",
        "95 % interval",
        "points more",
        "sentences/s",
        "LLM tokens",
        "x fewer",
        "peak MB",
        "on the GPU",
    ]
    print_table("", columns, [row for result in results for row in _rows(result)], right_from=2)
    for result in results:
        model = result["model"]
        print_lines(
            f"LLM for {result['input']['source']}: {model['model']}, {model['n_parameters']:,}"
            " parameters"
        )
    print_lines(
        "settings were chosen on as many other utterances; points more: than the n-gram, or the"
        " other systems, alone"
    )
    print_lines(
        "LLM tokens: read for a sentence; x fewer: than scoring the same hypotheses anew at each"
        " look"
    )


def _rows(result: dict[str, Any]) -> list[list[str]]:
    """Return a result's rows of the table."""
    rows: list[list[str]] = []
    counts = result["input"]
    name_of_set = f"{counts['reported']} of {counts['source']}"
    for name, way in result["ways"].items():
        more, low, high = (
            f"{100 * value:+.1f}"
            for value in (way["difference"]["wer"], *way["difference"]["ci95"])
        )
        cost = ["-"] * 5
        if "sentences_per_s" in way:
            fewer = way["times_fewer_tokens"]
            memory = way["peak_mb"]
            on_gpu = way.get("gpu_peak_mb")
            cost = [
                f"{way['sentences_per_s']:.1f}",
                f"{way['tokens_per_sentence']:.0f}",
                f"{fewer:.1f}" if fewer and fewer > 1 else "-",
                f"{memory:.0f}" if memory else "-",
                f"{on_gpu:.0f}" if on_gpu else "-",
            ]
        interval = " to ".join(percent(bound) for bound in way["wer_ci95"])
        same = way["difference"]["to"] == name
        more = "" if same else f"{more} ({low} to {high})"
        rows.append(["" if rows else name_of_set, name, percent(way["wer"]), interval, more, *cost])
    return rows


def speech_llm(
    audio_llm: Annotated[
        str | None,
        typer.Option(
            help=(
                "Audio language model: a directory, or OWNER/NAME on the Hub. Default: a random"
                " one."
            )
        ),
    ] = None,
    voice: Annotated[
        str,
        typer.Option(
            help="formant, espeak-ng, or a VITS model: a directory, or OWNER/NAME on the Hub."
        ),
    ] = "formant",
    data: Annotated[
        Path | None,
        typer.Option(help="Directory of session files, or a packed one. Default: simulated."),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(help="File of `cortext speech-llm cache`; made on the spot without it."),
    ] = None,
    config: Annotated[
        str,
        typer.Option(
            help="YAML file, or a recipe: speech_llm, speech_llm_best. Its last stage is trained."
        ),
    ] = "speech_llm",
    only: Annotated[
        list[str] | None, typer.Option(help="Setting to measure; may be given several times.")
    ] = None,
    turns: Annotated[int, typer.Option(min=1, help="Turns of each setting.")] = 3,
    steps: Annotated[int, typer.Option(min=1, help="Timed steps in a turn.")] = 2,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of each setting; torch's choice if absent.")
    ] = None,
    apart: Annotated[
        bool,
        typer.Option(
            "--apart", help="One setting after the other, for a model that memory holds only once."
        ),
    ] = False,
    device: str = DEVICE,
    overrides: list[str] = OVERRIDES,
    out: Out = None,
    as_json: bool = JSON,
) -> None:
    """Measure time and peak memory of training steps of a speech LLM.

    It compares cached and live audio targets, bfloat16, compilation and gradient checkpointing.
    With live targets the voice speaks and the audio tower listens in every step.

    Example: cortext bench speech-llm --turns 2 --json
    """
    from cortext.training.distributed import own_device
    from cortext_bench.speech_llm.compare import SpeechLLMBenchSettings, bench_speech_llm
    from cortext_bench.speech_llm.materials import GivenMaterials

    own_device(device)
    make_folder_of(out)
    given = GivenMaterials(data, audio_llm, voice, cache)
    plan = SpeechLLMBenchSettings(
        only or (), turns, steps, device=device, threads=threads, apart=apart
    )
    result = bench_speech_llm(config, given, plan, overrides, stage)
    hand_over(result, out, as_json, _print_speech)


def _print_speech(result: dict[str, Any]) -> None:
    found = result["settings"]
    if found:
        _print_settings(found, result)
    _print_comparisons(result["ratios"])
    for name, why in result["missing"].items():
        print_lines(f"{name} left out: {why}")
    claim = result["claim"]
    low, high = claim["times_faster"]
    print_lines(
        f"claimed of cached targets: {low:g} to {high:g} times faster,"
        f" {percent(claim['less_memory'])} less memory"
    )
    for name, held in claim["holds"].items():
        times, memory = (
            "not measured" if one is None else "yes" if one else "NO" for one in held.values()
        )
        print_lines(
            f"{name}: {low:g} times faster: {times}; {percent(claim['less_memory'])} less memory:"
            f" {memory}"
        )
    if (steps := result["cache_pays_after_steps"]) is not None:
        cache = result["input"]["cache"]
        print_lines(
            f"the cache of {cache['sentences']} sentences took {cache['seconds']:.0f} s:"
            f" {steps:.0f} live steps"
        )


def _print_settings(found: dict[str, Any], result: dict[str, Any]) -> None:
    first = next(iter(found.values()))
    llm = first["audio_llm"]
    title = (
        f"batches of {result['batch']}; {first['n_trained'] / 1e6:.1f} M parameters learn, audio"
        f" tower {llm['n_tower_parameters'] / 1e6:.1f} M, language model"
        f" {llm['n_language_parameters'] / 1e6:.1f} M; voice {result['input']['voice']};"
        f" {result['machine']['device']}, load {result['machine']['load']:.1f}"
    )
    rows = [
        (
            name,
            values["precision"],
            f"{values['ms']:,.0f}",
            " to ".join(f"{bound:,.0f}" for bound in values["ms_10_90"]),
            f"{values['cpu_ms']:,.0f}",
            f"{values['targets_ms']:,.1f}",
            f"{values['voice_ms']:,.1f}",
            _mb(values["peak_mb"]),
            _mb(values["process_mb"]),
        )
        for name, values in found.items()
    ]
    columns = [
        "setting",
        "in",
        "ms/step",
        "10 to 90 %",
        "processor ms",
        "targets",
        "voice",
        "peak MB",
        "process MB",
    ]
    print_table(title, columns, rows, right_from=2)


def _print_comparisons(ratios: dict[str, Any]) -> None:
    rows = [
        (
            name,
            f"{values['times_faster']:.2f}",
            f"{values['times_faster_cpu']:.2f}",
            percent(values["less_memory"]),
        )
        for name, values in ratios.items()
        if values is not None
    ]
    if rows:
        print_table("", ["with", "times faster", "by processor time", "less memory"], rows)


def _mb(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
