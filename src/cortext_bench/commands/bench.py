"""Commands that measure: bench decoder, training, latency, tpu-compile."""

from __future__ import annotations

from dataclasses import dataclass
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
    stage,
)
from cortext.settings import Setting
from cortext_bench.commands.bench_tables import (
    print_curves,
    print_decoder,
    print_latency,
    print_program,
    print_training,
)

if TYPE_CHECKING:
    from cortext_bench.posteriors import Utterance


@dataclass(frozen=True)
class PosteriorSource:
    """Source of the searched posteriors; by default pseudo-posteriors of real trials."""

    run: Annotated[
        Path | None, Setting(help="Decode the posteriors of this run; needs --data.")
    ] = None
    data: Annotated[
        Path | None, Setting(help="The data whose validation split the run decodes.")
    ] = None
    logits: Annotated[
        Path | None, Setting(help="Decode the logits of this evaluation directory.")
    ] = None
    trials: Annotated[
        Path | None, Setting(help="Trials with phoneme errors for pseudo-posteriors.")
    ] = None

    def utterances(self) -> tuple[list[Utterance], dict[str, Any]]:
        """Return the utterances and facts about them.

        Raises BadParameter for options that do not go together.
        """
        from cortext_bench import posteriors
        from cortext_bench.materials import RealData

        if (self.run is None) != (self.data is None):
            raise typer.BadParameter("--run and --data go together")
        if sum(source is not None for source in (self.run, self.logits, self.trials)) > 1:
            raise typer.BadParameter("give one of --run, --logits and --trials")
        if self.run is not None and self.data is not None:
            return posteriors.run_posteriors(self.run, self.data)
        if self.logits is not None:
            return posteriors.evaluation_posteriors(self.logits)
        return posteriors.pseudo_posteriors(self.trials or RealData.find().trials)


@dataclass(frozen=True)
class DecoderMeasurement:
    """Amounts of tuning and timing of each search."""

    tune: Annotated[
        bool, typer.Option(help="Tune every search first (long) and keep the settings.")
    ] = False
    tuning_trials: Annotated[
        int, Setting(minimum=1, help="Settings that tuning tries for each search.")
    ] = 60
    tuning_utterances: Annotated[
        int | None, Setting(minimum=1, help="At most so many utterances are tuned on.")
    ] = None
    utterances: Annotated[
        int | None, Setting(minimum=1, help="At most so many utterances are reported.")
    ] = None
    repeats: Annotated[int, Setting(minimum=1, help="How often everything is timed.")] = 3


@dataclass(frozen=True)
class TrainingMeasurement:
    """Amounts of timing of each side, and the processes that it gets.

    The fields are those of `cortext_bench.training.compare.TrainingBenchSettings`.
    """

    turns: Annotated[int, Setting(minimum=1, help="Turns of each side.")] = 4
    steps: Annotated[int, Setting(minimum=1, help="Timed steps in a turn.")] = 3
    threads: Annotated[
        int | None, Setting(minimum=1, help="Threads of each side; torch's choice by default.")
    ] = None
    workers: Annotated[
        int, Setting(minimum=0, help="Processes that read for the published loop.")
    ] = 4


def decoder(
    *,
    source: PosteriorSource,
    lm: Annotated[
        Path | None, typer.Option(help="Language model; by default built of the real texts.")
    ] = None,
    only: Annotated[
        list[str] | None, typer.Option(help="Search to run; may be given several times.")
    ] = None,
    measured: DecoderMeasurement,
    settings: Annotated[Path | None, typer.Option(help="File of tuned settings.")] = None,
    cache: Annotated[Path, typer.Option(help="Where models are built.")] = Path("build/bench"),
    plot: Annotated[
        Path | None, typer.Option(help="Draw word errors over time to this picture.")
    ] = None,
    out: Out = None,
    as_json: bool = JSON,
) -> None:
    """Compare the word search with flashlight-text, kaldi-decoder and pyctcdecode.

    It compares time, errors and memory.

    Several settings of each search, from fast to accurate, make the frontier that --plot draws.

    Without --run or --logits it decodes pseudo-posteriors made from real phoneme errors
    ($CORTEXT_REAL_DATA).

    Example: cortext bench decoder --only cortext --only flashlight --json
    """
    from cortext.files import disk_errors
    from cortext_bench.decoder.compare import NAMES, DecoderBenchSettings, bench_decoder
    from cortext_bench.decoder.figure import draw_frontier
    from cortext_bench.decoder.searcher import Paths
    from cortext_bench.materials import RealData, language_models

    make_folder_of(out)
    make_folder_of(plot)
    found, facts = source.utterances()
    names = only or NAMES
    static = any(name.startswith("kaldi") for name in names)
    paths = Paths(lm, lm, cache) if lm else language_models(RealData.find(), cache, static, stage)
    settings = settings or Path("benchmarks", "results", f"decoder_settings_{facts['kind']}.json")
    plan = DecoderBenchSettings(
        names,
        measured.tuning_trials,
        measured.tuning_utterances,
        measured.utterances,
        measured.repeats,
    )
    result = bench_decoder(found, facts, paths, settings, plan, tuning=measured.tune, stage=stage)
    if plot is not None:
        with disk_errors(plot):
            draw_frontier(result, plot)
    hand_over(result, out, as_json, print_decoder)


def training(
    *,
    model: Annotated[
        str, typer.Option(help="The model: gru, transformer, or (ours alone) triple_gru.")
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
    measured: TrainingMeasurement,
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
    from cortext.errors import ConfigError, nearest
    from cortext.training.distributed import own_device
    from cortext_bench.training.compare import (
        CLAIMS,
        VARIANTS,
        TrainingBenchSettings,
        bench_training,
        default_sides,
        shapes,
    )
    from cortext_bench.training.curves import training_curves
    from cortext_bench.training.sides import YARDSTICK

    if picture is not None and curves is None:
        raise typer.BadParameter("--picture draws the curves of --curves")
    if yardstick is not None and not yardstick.is_file():
        raise ConfigError(
            "there is no such file", where=yardstick, fix="give benchmarks/release_trainer.py"
        )
    own_device(device)
    make_folder_of(out)
    known = shapes(model, batch_size or (8 if device == "cpu" else 64))
    for wanted, names in ((shape, known), (only, VARIANTS)):
        for name in wanted or []:
            if name not in names:
                raise ConfigError(f"unknown {name!r}; {nearest(name, names)}")
    plan = TrainingBenchSettings(
        only or default_sides(model, device),
        device=device,
        yardstick=yardstick or YARDSTICK,
        **vars(measured),
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
    model: Annotated[
        str, typer.Option(help="Without --run: the model, gru, triple_gru or transformer.")
    ] = "gru",
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
    from cortext.models import load_model
    from cortext_bench.decoder.searcher import Paths
    from cortext_bench.latency import (
        LatencySettings,
        bench_latency,
        demo_directory,
        published_model,
    )
    from cortext_bench.latency_modes import MODES
    from cortext_bench.materials import RealData, language_models

    if data is not None and run is None:
        raise typer.BadParameter("--data goes with --run")
    plan = LatencySettings(only or MODES, steps, core)
    if demo is not None:
        demo_directory(demo)
    make_folder_of(out)
    found, facts = (
        (None, {"kind": "recordings", "data": str(data)})
        if data
        else PosteriorSource(trials=trials).utterances()
    )
    paths = Paths(lm, lm, cache) if lm else language_models(RealData.find(), cache, False, stage)
    timed = load_model(run) if run else published_model(model)
    facts["model"] = str(run) if run else "published shape, random weights"
    result = bench_latency(
        timed, paths, found, facts, plan, data=data, demo=demo, options=options, stage=stage
    )
    hand_over(result, out, as_json, print_latency)


def tpu_compile(
    shape: Annotated[
        list[str] | None, typer.Option(help="Only this shape; may be given several times.")
    ] = None,
    bins: Annotated[
        int, typer.Option(min=1, help="Bins of 20 ms that trials are padded to.")
    ] = 900,
    topology: Annotated[str, typer.Option(help="The TPU, as libtpu names it.")] = "v5e:2x4",
    overrides: list[str] = OVERRIDES,
    out: Out = None,
    as_json: bool = JSON,
) -> None:
    """Compile whole training steps for a TPU that is not there.

    Memory, operations, exchanges, and a time estimated.

    Takes minutes for each shape: baseline; adversarial, noise 768; adversarial, noise 7168.

    Example: cortext bench tpu-compile --shape baseline --json
    """
    from dataclasses import replace

    from cortext.errors import ConfigError, nearest
    from cortext_bench.tpu_compile import SHAPES, bench_tpu_compile

    for name in shape or []:
        if name not in SHAPES:
            raise ConfigError(f"unknown {name!r}; {nearest(name, SHAPES)}")
    make_folder_of(out)
    chosen = {name: SHAPES[name] for name in shape or SHAPES}
    targets = {
        name: replace(
            target, n_bins=bins, topology=topology, overrides=(*target.overrides, *overrides)
        )
        for name, target in chosen.items()
    }
    result = bench_tpu_compile(targets, stage)
    hand_over(result, out, as_json, print_program)
