"""Verbs that measure: bench decoder, training, latency; the others are in files of their own."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cortext.cli.bench_llm import llm
from cortext.cli.bench_out import Out, hand_over, make_room, stage
from cortext.cli.bench_speech import speech_llm
from cortext.cli.bench_tables import print_curves, print_latency, print_training
from cortext.cli.bench_tpu import tpu_compile
from cortext.cli.console import DEVICE, JSON, OVERRIDES, percent, print_lines, print_table

if TYPE_CHECKING:
    from cortext.bench.posteriors import Utterance

bench = typer.Typer(
    help="Compare cortext with the best alternatives, side by side.", rich_markup_mode=None
)


def add_verbs(app: typer.Typer) -> None:
    """Add this file's verbs to the command line."""
    bench.command()(decoder)
    bench.command()(training)
    bench.command()(latency)
    bench.command()(tpu_compile)
    bench.command()(llm)
    bench.command()(speech_llm)
    app.add_typer(bench, name="bench")


def decoder(
    run: Annotated[
        Path | None, typer.Option(help="Decode the posteriors of this run; needs --data.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="The data whose validation split the run decodes.")
    ] = None,
    logits: Annotated[
        Path | None, typer.Option(help="Decode the logits of this evaluation directory.")
    ] = None,
    trials: Annotated[
        Path | None, typer.Option(help="Trials with phoneme errors for pseudo-posteriors.")
    ] = None,
    lm: Annotated[
        Path | None, typer.Option(help="Language model; by default built of the real texts.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Search to run; may be given several times.")
    ] = None,
    tune: Annotated[
        bool, typer.Option(help="Tune every search first (long) and keep the settings.")
    ] = False,
    tuning_trials: Annotated[
        int, typer.Option(min=1, help="Settings that tuning tries for each search.")
    ] = 60,
    tuning_utterances: Annotated[
        int | None, typer.Option(min=1, help="At most so many utterances are tuned on.")
    ] = None,
    utterances: Annotated[
        int | None, typer.Option(min=1, help="At most so many utterances are reported.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="How often everything is timed.")] = 3,
    settings: Annotated[Path | None, typer.Option(help="File of tuned settings.")] = None,
    cache: Annotated[Path, typer.Option(help="Where models are built.")] = Path("build/bench"),
    out: Out = None,
    as_json: bool = JSON,
) -> None:
    """Compare the word search with flashlight-text, kaldi-decoder and pyctcdecode.

    Time, errors, memory.

    Without --run or --logits it decodes pseudo-posteriors made from real phoneme errors
    ($CORTEXT_REAL_DATA).

    Example: cortext bench decoder --only cortext --only flashlight --json
    """
    from cortext.bench.decoder.compare import NAMES, Plan, bench_decoder
    from cortext.bench.decoder.searcher import Paths
    from cortext.bench.materials import RealData, language_models

    make_room(out)
    found, facts = _utterances(run, data, logits, trials)
    names = only or NAMES
    static = any(name.startswith("kaldi") for name in names)
    paths = Paths(lm, lm, cache) if lm else language_models(RealData.find(), cache, static, stage)
    settings = settings or Path("benchmarks", "results", f"decoder_settings_{facts['kind']}.json")
    plan = Plan(names, tuning_trials, tuning_utterances, utterances, repeats)
    result = bench_decoder(found, facts, paths, settings, plan, tuning=tune, stage=stage)
    hand_over(result, out, as_json, _print)


def training(
    model: Annotated[
        str, typer.Option(help="What is trained: gru or triple_gru (ours alone).")
    ] = "gru",
    shape: Annotated[
        list[str] | None, typer.Option(help="Only this shape; may be given several times.")
    ] = None,
    batch_size: Annotated[
        int | None,
        typer.Option(min=4, help="Trials in a batch of the published shape; 8 on a CPU, else 64."),
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Side to run; may be given several times.")
    ] = None,
    turns: Annotated[int, typer.Option(min=1, help="Turns of each side.")] = 4,
    steps: Annotated[int, typer.Option(min=1, help="Timed steps in a turn.")] = 3,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of each side; torch's choice by default.")
    ] = None,
    workers: Annotated[
        int, typer.Option(min=0, help="Processes that read for the published loop.")
    ] = 4,
    yardstick: Annotated[
        Path | None, typer.Option(help="The restated published trainer, outside a checkout.")
    ] = None,
    claim: Annotated[
        list[str] | None, typer.Option(help="What others say of 120,000 batches, shown below.")
    ] = None,
    curves: Annotated[
        int | None, typer.Option(min=8, help="Instead: losses of so many steps of both sides.")
    ] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw the curves to this PNG.")] = None,
    device: str = DEVICE,
    overrides: list[str] = OVERRIDES,
    out: Out = None,
    as_json: bool = JSON,
) -> None:
    """Compare training with the published loop, restated.

    Time of a step and of its parts, memory, ratio.

    Example: cortext bench training --shape published --json
    """
    from cortext.bench.training.compare import (
        CLAIMS,
        VARIANTS,
        Plan,
        bench_training,
        default_sides,
        shapes,
    )
    from cortext.bench.training.curves import training_curves
    from cortext.bench.training.sides import YARDSTICK
    from cortext.errors import ConfigError, nearest
    from cortext.training.distributed import own_device

    if picture is not None and curves is None:
        raise typer.BadParameter("--picture draws the curves of --curves")
    if yardstick is not None and not yardstick.is_file():
        raise ConfigError(
            "there is no such file", where=yardstick, fix="give benchmarks/release_trainer.py"
        )
    own_device(device)
    make_room(out)
    known = shapes(model, batch_size or (8 if device == "cpu" else 64))
    for wanted, names in ((shape, known), (only, VARIANTS)):
        for name in wanted or []:
            if name not in names:
                raise ConfigError(f"unknown {name!r}; {nearest(name, names)}")
    plan = Plan(
        only or default_sides(model, device),
        turns,
        steps,
        device=device,
        threads=threads,
        workers=workers,
        yardstick=yardstick or YARDSTICK,
    )
    if curves is not None:
        result = training_curves(curves, plan, picture, overrides=overrides, stage=stage)
    else:
        result = bench_training(
            {name: known[name] for name in shape or known}, plan, overrides, stage
        )
        result["claims"] = claim or CLAIMS[model]
    hand_over(result, out, as_json, print_training if curves is None else print_curves)


def latency(
    run: Annotated[
        Path | None,
        typer.Option(help="A trained run; by default the published shape with random weights."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="With --run: its recordings, instead of noise and pseudo-posteriors."),
    ] = None,
    demo: Annotated[
        Path | None,
        typer.Option(
            help="Directory of cortext demo: measure the phoneme errors of every way on it."
        ),
    ] = None,
    trials: Annotated[
        Path | None, typer.Option(help="Trials with phoneme errors for pseudo-posteriors.")
    ] = None,
    lm: Annotated[
        Path | None, typer.Option(help="Language model; by default built of the real texts.")
    ] = None,
    options: Annotated[Path | None, typer.Option(help="YAML file of decoder options.")] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Way to run the model; may be given several times.")
    ] = None,
    steps: Annotated[int, typer.Option(min=1, help="80 ms steps of each way, at least.")] = 5000,
    core: Annotated[
        int | None, typer.Option(min=0, help="The core to use; by default the last one.")
    ] = None,
    cache: Annotated[Path, typer.Option(help="Where models are built.")] = Path("build/bench"),
    out: Out = None,
    as_json: bool = JSON,
) -> None:
    """Time live decoding on one core, for each way to run the model.

    Every stage of an 80 ms step, ends of utterances.

    Example: cortext bench latency --demo runs/demo --json
    """
    from cortext.bench.decoder.searcher import Paths
    from cortext.bench.latency import MODES, Plan, bench_latency, demo_directory, published_model
    from cortext.bench.materials import RealData, language_models
    from cortext.models import load_model

    if data is not None and run is None:
        raise typer.BadParameter("--data goes with --run")
    plan = Plan(only or MODES, steps, core)
    if demo is not None:
        demo_directory(demo)
    make_room(out)
    found, facts = (
        (None, {"kind": "recordings", "data": str(data)})
        if data
        else _utterances(None, None, None, trials)
    )
    paths = Paths(lm, lm, cache) if lm else language_models(RealData.find(), cache, False, stage)
    model = load_model(run) if run else published_model()
    facts["model"] = str(run) if run else "published shape, random weights"
    result = bench_latency(
        model, paths, found, facts, plan, data=data, demo=demo, options=options, stage=stage
    )
    hand_over(result, out, as_json, print_latency)


def _utterances(
    run: Path | None, data: Path | None, logits: Path | None, trials: Path | None
) -> tuple[list[Utterance], dict[str, Any]]:
    from cortext.bench import posteriors
    from cortext.bench.materials import RealData

    if (run is None) != (data is None):
        raise typer.BadParameter("--run and --data go together")
    if sum(source is not None for source in (run, logits, trials)) > 1:
        raise typer.BadParameter("give one of --run, --logits and --trials")
    if run is not None and data is not None:
        return posteriors.run_posteriors(run, data)
    if logits is not None:
        return posteriors.evaluation_posteriors(logits)
    return posteriors.pseudo_posteriors(trials or RealData.find().trials)


def _print(result: dict[str, Any]) -> None:
    source = result["input"]
    title = (
        f"{source['utterances']} utterances, {source['frames']} frames,"
        f" {percent(source['blank_share'])} blank; {result['lm']['lexicon_words']:,} words,"
        f" {result['lm']['order']}-gram"
    )
    points = [
        (name, decoder, point, values)
        for name, decoder in result["decoders"].items()
        for point, values in decoder["points"].items()
    ]
    times = [
        (
            name,
            point,
            f"{values['ms_per_frame']:.4f}",
            f"{values['ms_per_frame_p99']:.4f}",
            _number(values["ms_per_nonblank_frame"], "{:.4f}"),
            _number(result["ratios"].get(name, {}).get(point), "{:.1f}x faster"),
        )
        for name, _, point, values in points
    ]
    print_table(
        title,
        ["search", "settings", "ms/frame", "p99", "ms/non-blank", "cortext is"],
        times,
        right_from=2,
    )
    errors = [
        (
            name,
            point,
            percent(values["wer"]),
            _interval(values["wer_ci95"]),
            percent(values["oracle_wer"]),
        )
        for name, _, point, values in points
    ]
    print_table(
        "", ["search", "settings", "WER", "95 % interval", "best of 100"], errors, right_from=2
    )
    sizes = [
        (
            name,
            decoder["version"],
            f"{decoder['load_s']:.2f} s",
            f"{decoder['memory']['peak_rss_mb']:.0f} MB",
        )
        for name, decoder in result["decoders"].items()
    ]
    print_table("", ["search", "version", "loading", "peak memory"], sizes, right_from=2)
    for name, why in result["missing"].items():
        print_lines(f"{name} left out: {why}")
    for name, decoder in result["decoders"].items():
        if decoder["note"]:
            print_lines(f"{name}: {decoder['note']}")
    _print_ours(result)


def _print_ours(result: dict[str, Any]) -> None:
    ours = result.get("ours")
    if not ours:
        return
    memory = result["decoders"]["cortext"]["memory"]
    print_lines(
        f"cortext, frame by frame: median {ours['frame_ms_median']:.4f} ms, p99"
        f" {ours['frame_ms_p99']:.3f} ms, worst {ours['frame_ms_worst']:.2f} ms, end of an"
        f" utterance {ours['end_ms_worst']:.2f} ms; worst at acoustic scale 1 and twice the beam"
        f" {ours['strained_frame_ms_worst']:.2f} ms",
        f"two threads: {ours['two_threads_speedup']:.2f}x one; "
        f"peak memory beyond the model's file: {memory['peak_beyond_model_mb']:.0f} MB",
    )
    if result["ratio"] is not None:
        print_lines(f"ratio to flashlight at equal word errors: {result['ratio']:.1f}")


def _interval(bounds: list[float | None]) -> str:
    return " to ".join(percent(bound) for bound in bounds)


def _number(value: float | None, form: str) -> str:
    return "-" if value is None else form.format(value)
