"""Time of live decoding on one core, for each way to run a model.

Steps of 80 ms and the ends of utterances are timed.

The time of a step is what a participant waits: from the bin that completes a frame to its words.
Work that is done ahead, while earlier bins arrive, is reported beside it; processor time covers
both.

A model with random weights recognises nothing. The model therefore computes on noise and its logits
are discarded; the word search gets pseudo-posteriors made from real phoneme errors
(`posteriors.py`). A trained run is timed on recordings with its own logits. All ways take turns,
one utterance each, so that other work on the machine slows all of them.

T bins of 20 ms, C features, P frames of 80 ms, V tokens.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cortext.decoding import Decoder
from cortext.errors import ConfigError, RunError, nearest
from cortext.evaluation.decoder_options import options_for
from cortext.evaluation.settings import Options
from cortext.models import AcousticModel, build_model, load_model, model_config
from cortext.models.card import Smoothing
from cortext.provenance import provenance
from cortext.text.language import Language
from cortext.text.metrics import error_rate
from cortext.training.participants.recordings import open_for
from cortext_bench.decoder.searcher import Paths
from cortext_bench.harness import in_turns, machine, percentiles
from cortext_bench.latency_modes import EAGER, MODES, Played, no_more_work, steppers
from cortext_bench.materials import lm_facts
from cortext_bench.posteriors import INVENTORY, Utterance
from cortext_live.core.acoustic_stream import AcousticStream, PipelineOptions
from cortext_live.core.decoder import no_long_pauses
from cortext_live.core.pipeline import Pipeline
from cortext_live.core.statistics import StageTimes
from cortext_live.steps.stepped import stepped_errors
from cortext_live.steps.stepper import Stepper

BASE = "torch fp32"
TARGETS = {"fp32_p99_ms": 6.0, "fastest_p99_ms": 3.0, "final_p99_ms": 30.0, "per_cost": 0.003}
WORK_TARGETS = {"transformer": {"fp32_work_p50_ms": 3.0, "fastest_work_p50_ms": 1.5}}
"""Limits for the median processor time of a step, by the kind of the model."""
N_FEATURES = 512
N_DAYS = 45
OPTIONS = PipelineOptions(smoothing="published", normalise="rolling")


@dataclass(frozen=True)
class LatencySettings:
    """Modes to time, and how long.

    Attributes:
        modes: Ways to run the model.
        steps: At least so many steps of 80 ms are timed for every mode.
        cpu: The core to use; None takes the last allowed one.
    """

    modes: Sequence[str] = MODES
    steps: int = 5000
    cpu: int | None = None

    def __post_init__(self) -> None:
        for mode in self.modes:
            if mode not in MODES:
                raise ConfigError(f"unknown way to run a model {mode!r}; {nearest(mode, MODES)}")


@dataclass(frozen=True)
class Spoken:
    """An utterance to decode.

    Attributes:
        logits_PV: What the search gets, float32 [P, V]; None: the model's own.
        session: The recording day.
    """

    reference: str
    features_TC: np.ndarray
    logits_PV: np.ndarray | None = None
    session: str = "latest"


@dataclass
class _Taken:
    """Times of one mode. cpu_ms: processor time of each step, with the work done ahead."""

    times: StageTimes
    n_steps: int = 0
    cpu_ms: list[float] = field(default_factory=list)
    final_ms: list[float] = field(default_factory=list)
    references: list[str] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)


def published_model(kind: str = "gru") -> AcousticModel:
    """Return a model of the published shape for 512 features, with random weights.

    Raises ConfigError for an unknown kind.
    """
    torch.manual_seed(0)
    network = build_model(
        model_config({"kind": kind}),
        n_features=N_FEATURES,
        n_days=N_DAYS,
        n_classes=len(INVENTORY),
    )
    sessions = [f"day {number}" for number in range(N_DAYS)]
    return AcousticModel(
        network,
        sessions=sessions,
        n_features=N_FEATURES,
        inventory=INVENTORY,
        smoothing=Smoothing(),
    )


def noise(utterances: Sequence[Utterance], stepper: Stepper, seed: int = 0) -> Iterator[Spoken]:
    """Yield noise for the model and pseudo-posteriors for the search, endlessly.

    Args:
        utterances: Utterances with pseudo-posteriors, repeated in their order.
        stepper: Its patches give the number of bins.
        seed: Seed of the noise.
    """
    rng = np.random.default_rng(seed)
    to_first_frame = AcousticStream(stepper, options=OPTIONS).bins_to_frame
    while True:
        for utterance in utterances:
            n_bins = to_first_frame + (len(utterance.log_probs_PV) - 1) * stepper.patch_stride
            x_TC = rng.standard_normal((n_bins, stepper.n_features), dtype=np.float32)
            yield Spoken(utterance.reference, x_TC, utterance.log_probs_PV)


def recordings(stepper: Stepper, data: Path, split: str = "val") -> Iterator[Spoken]:
    """Yield the labelled trials of a split in the bins of a model, endlessly."""
    trials = open_for(stepper.conventions, data).split(split)
    normalize = trials.conventions.language.normalize
    while True:
        for i in range(len(trials)):
            x_TC = np.ascontiguousarray(trials.batch([i]).features_BTC[0], dtype=np.float32)
            yield Spoken(normalize(trials.sentence(i) or ""), x_TC, session=trials.session(i))


@contextmanager
def one_core(cpu: int | None) -> Iterator[int | None]:
    """Keep this thread on one core, and torch to one thread, within the context.

    Yields the core; None where the system does not let a process choose.
    """
    threads = torch.get_num_threads()
    can_choose = hasattr(os, "sched_setaffinity")
    before = os.sched_getaffinity(0) if can_choose else set()
    if can_choose:
        cpu = max(before) if cpu is None else cpu
        if cpu not in before:
            raise ConfigError(
                f"core {cpu} is not among those that this process may use: {sorted(before)}"
            )
        os.sched_setaffinity(0, {cpu})
    torch.set_num_threads(1)
    try:
        yield cpu if can_choose else None
    finally:
        torch.set_num_threads(threads)
        if can_choose:
            os.sched_setaffinity(0, before)


def bench_latency(
    model: AcousticModel,
    paths: Paths,
    utterances: Sequence[Utterance] | None,
    facts: dict[str, Any],
    plan: LatencySettings = LatencySettings(),
    *,
    data: Path | None = None,
    demo: Path | None = None,
    options: Options = None,
    stage: Callable[[str], None] = lambda name: None,
) -> dict[str, Any]:
    """Time every mode.

    Args:
        model: The model to time.
        paths: The language model of the search.
        utterances: Pseudo-posteriors for the search; None with `data`, recordings that the model
            knows.
        facts: Where the utterances come from.
        plan: Ways to run the model, and how many steps.
        data: Recordings, session files or packed.
        demo: A directory of `cortext demo`, on which the phoneme errors of every mode are measured.
        options: Options of the word search, as for `evaluate`.
        stage: Called with the name of each stage.

    Raises:
        ConfigError: For an unknown mode, and what models, data and language models raise.
    """
    with one_core(plan.cpu) as cpu:
        errors = {}
        if demo is not None:
            stage("measuring phoneme errors")
            errors = stepped_errors(
                steppers(load_model(demo / "run"), plan.modes)[0], demo / "packed"
            )
        stage("laying out the model")
        found, missing = steppers(model, plan.modes)
        decoder = Decoder.from_dir(paths.lm, options_for(None, paths.lm, options)[0])
        stage(f"timing {plan.steps:,} steps of {', '.join(found)}")
        # Noise comes after as many frames as attention looks back, so that every step has the work
        # of a step in the middle of a long recording.
        config = model.network.config
        n_before = 0 if utterances is None else getattr(config, "context_frames", 0)
        played = {name: Played(stepper, n_before) for name, stepper in found.items()}
        with no_long_pauses():
            taken = _time(played, decoder, utterances, data, plan.steps)
    modes = {
        name: _summary(times, errors.get(name), model.language) for name, times in taken.items()
    }
    targets = TARGETS | WORK_TARGETS.get(config.kind, {})
    return {
        "ratio": _ratio(modes, "torch fp32"),
        "ratios": {name: _ratio(modes, name) for name in modes},
        "targets": targets,
        "met": _met(modes, targets),
        "modes": modes,
        "missing": missing,
        "model": {
            "parameters": model.n_parameters,
            "config": vars(config) | {"input_network": None},
        },
        "input": facts
        | {"push_bins": 1, "normalise": OPTIONS.normalise, "smoothing": OPTIONS.smoothing}
        | {"frames_before": n_before},
        "options": asdict(decoder.options),
        "errors_on": None if demo is None else str(demo),
        "lm": lm_facts(paths),
        "machine": {
            "processor": processor(),
            "core": cpu,
            **machine(),
        },
        "provenance": provenance(),
    }


def _time(
    played: dict[str, Played],
    decoder: Decoder,
    utterances: Sequence[Utterance] | None,
    data: Path | None,
    n_steps: int,
) -> dict[str, _Taken]:
    pipelines = {
        name: Pipeline(None, decoder, options=OPTIONS, stepper=stepper)
        for name, stepper in played.items()
    }
    taken = {name: _Taken(StageTimes(n_latest=10 * n_steps)) for name in played}
    first = next(iter(played.values()))
    if utterances is not None:
        spoken = noise(utterances, first)
    else:
        assert data is not None
        spoken = recordings(first, data)

    def sides(into: dict[str, _Taken]) -> dict[str, Callable[[Spoken], None]]:
        return {
            name: partial(_decode, pipelines[name], played[name], into[name]) for name in played
        }

    in_turns(sides({name: _Taken(StageTimes()) for name in played}), [next(spoken)])  # warms up
    going_on = takewhile(lambda _: min(each.n_steps for each in taken.values()) < n_steps, spoken)
    in_turns(sides(taken), going_on)
    return taken


def _decode(pipeline: Pipeline, stepper: Played, taken: _Taken, utterance: Spoken) -> None:
    """Decode one utterance bin by bin, as they come from a rig."""
    stepper.use(utterance.session)
    stepper.fill()
    stepper.logits = None if utterance.logits_PV is None else iter(utterance.logits_PV)
    busy_s = 0.0
    for t in range(len(utterance.features_TC)):
        began_s = time.thread_time()
        update = pipeline.push(utterance.features_TC[t : t + 1])
        busy_s += time.thread_time() - began_s
        if len(update.logits_PV):
            taken.times.add(update.stage_ms)
            taken.cpu_ms.append(1e3 * busy_s)
            taken.n_steps += 1
            busy_s = 0.0
    began_s = time.perf_counter()
    nbest = pipeline.finish()
    taken.final_ms.append(1e3 * (time.perf_counter() - began_s))
    taken.references.append(utterance.reference)
    taken.texts.append(nbest[0].text)


def _summary(taken: _Taken, errors: dict[str, Any] | None, language: Language) -> dict[str, Any]:
    return {
        "steps": taken.n_steps,
        "utterances": len(taken.final_ms),
        "stages_ms": taken.times.percentiles(),
        "cpu_ms": percentiles(taken.cpu_ms),
        "final_ms": percentiles(taken.final_ms),
        "wer": error_rate(taken.references, taken.texts, n_boot=0, language=language).rate,
        "errors": errors,
    }


def _ratio(modes: dict[str, Any], name: str) -> float | None:
    """Return how many times faster a step of the model is than with torch's own modules."""
    if EAGER not in modes or name not in modes:
        return None
    eager, other = (modes[mode]["stages_ms"]["model"]["p50"] for mode in (EAGER, name))
    return float(eager / other)


def _met(modes: dict[str, Any], targets: dict[str, float] = TARGETS) -> dict[str, Any]:
    """Return the targets by name, True where met; None where that was not measured.

    `fastest` is the mode with the shortest wait that costs no errors. `fp32_work` and
    `fastest_work` hold the same limits against the processor time of a step, done ahead or not; the
    latter, of the mode that takes least of it. `fp32_work_p50` and `fastest_work_p50` hold the
    limits of `WORK_TARGETS`, where there are any, against the medians. `no_more_work_than_torch`:
    see `no_more_work`.
    """
    allowed = [
        name
        for name, values in modes.items()
        if values["errors"]
        and BASE in modes
        and values["errors"]["per"] - modes[BASE]["errors"]["per"] <= targets["per_cost"]
    ]
    p99 = {name: values["stages_ms"]["total"]["p99"] for name, values in modes.items()}
    work = {name: values["cpu_ms"] for name, values in modes.items()}
    least_work = min((work[name] for name in allowed), key=lambda ms: ms["p99"], default=None)
    fastest = min(allowed, key=lambda name: p99[name], default=None)
    final_p99 = max(values["final_ms"]["p99"] for values in modes.values())
    met = {
        "fp32": p99[BASE] <= targets["fp32_p99_ms"] if BASE in p99 else None,
        "fastest": fastest,
        "fastest_mode": p99[fastest] <= targets["fastest_p99_ms"] if fastest else None,
        "fp32_work": work[BASE]["p99"] <= targets["fp32_p99_ms"] if BASE in work else None,
        "fastest_work": least_work["p99"] <= targets["fastest_p99_ms"] if least_work else None,
        "final": final_p99 <= targets["final_p99_ms"],
        "no_more_work_than_torch": no_more_work({name: ms["p50"] for name, ms in work.items()}),
    }
    if "fp32_work_p50_ms" in targets:
        most_ms, fastest_ms = targets["fp32_work_p50_ms"], targets["fastest_work_p50_ms"]
        met["fp32_work_p50"] = work[BASE]["p50"] <= most_ms if BASE in work else None
        met["fastest_work_p50"] = least_work["p50"] <= fastest_ms if least_work else None
    return met


def processor() -> str:
    """Return the name of the processor; empty where Linux does not tell it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return ""
    return next(
        (line.partition(":")[2].strip() for line in lines if line.startswith("model name")), ""
    )


def demo_directory(path: Path) -> Path:
    """Check that this is a directory of `cortext demo`; raises RunError where it is none."""
    for part in ("run", "packed"):
        if not (path / part).is_dir():
            raise RunError(
                f"no {part} in it: not a directory of cortext demo",
                where=path,
                fix="make it: cortext demo",
            )
    return path
