"""`cortext bench speech-llm`: cost of a training step by setting.

It measures how caching, bfloat16, compilation and gradient checkpointing change the time and the
memory of a training step.

Every setting is a process of its own, so that its memory is its own, and takes the trainer's own
steps on the same batches in the same order. They train in turns, so that a machine that is busy for
a while slows all of them.

With `live` targets the voice synthesises the sentences of each batch and the audio tower encodes
them, within the step; `cached` targets are read from a file. The rest of a step is the same.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np

from cortext.config import to_mapping
from cortext.errors import ConfigError, nearest
from cortext.models.precision import uses_bf16
from cortext.provenance import provenance
from cortext_bench.harness import Sides, Stage, machine, median_and_spread
from cortext_bench.speech_llm.materials import GivenMaterials, Materials, prepare
from cortext_bench.speech_llm.worker import VariantSettings
from cortext_bench.workers import WorkerProcess
from cortext_speechllm.config import SpeechLLMConfig, read_speech_config

CLAIM: dict[str, Any] = {"times_faster": [3.0, 4.0], "less_memory": 0.4}
"""Claims about cached targets that others have published."""
CACHED = "cached targets"
PRECISIONS: dict[bool, Literal["bf16", "fp32"]] = {True: "bf16", False: "fp32"}


@dataclass(frozen=True)
class Variant:
    """Differences of a training from the first setting.

    The first setting has cached targets, in the precision that training chooses by itself.

    Attributes:
        other_precision: float32 where that is bfloat16, and the other way round.
        aligned_only: The stage without the language model, in which only encoder and projector
            learn.
    """

    live: bool = False
    other_precision: bool = False
    compiled: bool = False
    checkpointing: bool = False
    aligned_only: bool = False

    def config(self, base: SpeechLLMConfig, bf16: bool) -> SpeechLLMConfig:
        """Return the first setting's configuration with this variant's differences."""
        never = 10**9
        speech = replace(
            base.speech, compile=self.compiled, gradient_checkpointing=self.checkpointing
        )
        metric = base.best_metric
        if self.aligned_only:
            speech = replace(speech, beta=0.0, gamma=0.0, lora=None)
            metric = "val_loss"
        return replace(
            base,
            speech=speech,
            best_metric=metric,
            precision=PRECISIONS[bf16 != self.other_precision],
            num_training_batches=never,
            batches_per_val_step=never,
        )


def settings(bf16: bool) -> dict[str, Variant]:
    """Return the settings by name; `bf16` says whether training chooses bfloat16 by itself."""
    other = PRECISIONS[not bf16]
    return {
        "cached": Variant(),
        "live": Variant(live=True),
        f"cached {other}": Variant(other_precision=True),
        f"live {other}": Variant(live=True, other_precision=True),
        "cached compiled": Variant(compiled=True),
        "cached checkpointing": Variant(checkpointing=True),
        "alignment cached": Variant(aligned_only=True),
        "alignment live": Variant(aligned_only=True, live=True),
    }


def comparisons(bf16: bool) -> dict[str, tuple[str, str]]:
    """Return by name the pairs of settings to compare: with and without each of the four means."""
    other = PRECISIONS[not bf16]
    in_bf16, in_fp32 = ("cached", f"cached {other}") if bf16 else (f"cached {other}", "cached")
    return {
        CACHED: ("cached", "live"),
        f"{CACHED}, {other}": (f"cached {other}", f"live {other}"),
        f"{CACHED}, alignment alone": ("alignment cached", "alignment live"),
        "bfloat16": (in_bf16, in_fp32),
        "compilation": ("cached compiled", "cached"),
        "gradient checkpointing": ("cached checkpointing", "cached"),
    }


@dataclass(frozen=True)
class SpeechLLMBenchSettings:
    """Settings, and how much of each is measured.

    Attributes:
        only: Names of settings; all of them where it is empty.
        turns: Number of turns of `steps` timed steps each, after one of `warmup`.
        parts: Batches whose targets are timed alone.
        apart: One setting after the other, where memory does not hold all of them at once.
    """

    only: Sequence[str] = ()
    turns: int = 3
    steps: int = 2
    warmup: int = 2
    parts: int = 2
    device: str = "cpu"
    threads: int | None = None
    apart: bool = False

    @property
    def env(self) -> dict[str, str]:
        """Environment of the processes."""
        return {} if self.threads is None else {"OMP_NUM_THREADS": str(self.threads)}


def bench_speech_llm(
    recipe: str,
    given: GivenMaterials,
    plan: SpeechLLMBenchSettings,
    overrides: Sequence[str] = (),
    stage: Stage = lambda name: None,
) -> dict[str, Any]:
    """Measure the settings.

    The last stage of a recipe with stages is trained.

    Args:
        recipe: Recipe to train.
        given: Materials of the user; the others are made.
        plan: Settings, and how much of each is measured.
        overrides: `key=value` changes of the recipe.
        stage: Called with the name of each stage of the work.

    Returns:
        What `--json` prints. `ratio` is the time of a step with live targets over the time of a
        step with cached targets.

    Raises:
        ConfigError: For a configuration that aligns nothing to audio.
    """
    config = read_speech_config(recipe, (*given.overrides, *overrides)).in_stages()[-1][1]
    if not config.speech.alpha:
        raise ConfigError(
            "speech.alpha is 0: nothing is aligned to audio", fix="set speech.alpha above 0"
        )
    bf16 = uses_bf16(config.precision, "cpu" if plan.device == "cpu" else "cuda")
    known = settings(bf16)
    for name in plan.only:
        if name not in known:
            raise ConfigError(f"unknown setting {name!r}; {nearest(name, known)}")
    chosen = {name: known[name] for name in plan.only or known}
    with TemporaryDirectory(prefix="cortext-bench-") as folder:
        materials = prepare(given, Path(folder), plan.device, plan.env, stage)
        config = config.with_audio_llm(materials.audio_llm)
        plans = {
            name: _setting_plan(
                Path(folder), name, one.live, one.config(config, bf16), materials, plan
            )
            for name, one in chosen.items()
        }
        measuring = Measuring(plans, plan, stage)
        measuring.measure()
    facts = materials.facts | {"recipe": recipe, "overrides": [*given.overrides, *overrides]}
    result = _result(measuring, comparisons(bf16), facts)
    return result | {
        "batch": config.dataset.batch_size,
        "machine": machine(plan.device),
        "provenance": provenance(),
    }


def _result(
    measuring: Measuring, both: Mapping[str, tuple[str, str]], facts: Mapping[str, Any]
) -> dict[str, Any]:
    found = measuring.found
    compared = {name: compare(found, *names) for name, names in both.items()}
    return {
        "ratio": (compared[CACHED] or {}).get("times_faster"),
        "ratios": compared,
        "claim": CLAIM | {"holds": holds(compared)},
        "cache_pays_after_steps": pays_after(found, facts["cache"]),
        "settings": found,
        "missing": measuring.missing,
        "input": dict(facts),
    }


def _setting_plan(
    folder: Path,
    name: str,
    live: bool,
    config: SpeechLLMConfig,
    materials: Materials,
    plan: SpeechLLMBenchSettings,
) -> VariantSettings:
    return VariantSettings(
        packed=materials.packed,
        cache=materials.cache,
        voice=materials.voice,
        out=str(folder / name.replace(" ", "-")),
        config=to_mapping(config),
        device=plan.device,
        live=live,
    )


class Measuring:
    """The processes of settings at work.

    Attributes:
        found: Measurements, by setting.
        missing: The settings that cannot be had, and why.
    """

    def __init__(
        self, plans: Mapping[str, VariantSettings], plan: SpeechLLMBenchSettings, stage: Stage
    ) -> None:
        self.plans = plans
        self.plan = plan
        self.stage = stage
        self.found: dict[str, dict[str, Any]] = {}
        self.missing: dict[str, str] = {}

    def measure(self) -> None:
        """Measure every setting."""
        for group in [[name] for name in self.plans] if self.plan.apart else [list(self.plans)]:
            self._together(group)

    def _together(self, names: Sequence[str]) -> None:
        """Measure settings that take turns."""
        plan = self.plan
        with Sides() as sides:
            for name in names:
                self.stage(f"starting: {name}")
                sides.start(name, partial(self._start, name))
            sides.ask("steps", self._announcing("warming up"), n=plan.warmup)
            sides.ask("restart_peak")
            turns = [
                sides.ask(
                    "steps", self._announcing(f"turn {turn + 1} of {plan.turns}"), n=plan.steps
                )
                for turn in range(plan.turns)
            ]
            memory = sides.ask("memory")
            parts = sides.ask("parts", self._announcing("the parts"), n=plan.parts)
        self.missing |= sides.missing
        for name, process in sides.running.items():
            self.found[name] = described(
                [turn[name] for turn in turns], memory[name], parts[name], process.loaded
            )

    def _announcing(self, what: str) -> Callable[[str], None]:
        return lambda side: self.stage(f"{what}: {side}")

    def _start(self, name: str) -> WorkerProcess:
        plan = self.plans[name]
        arguments = ["train", json.dumps(asdict(plan))]
        return WorkerProcess(
            name, "speech_llm.worker", arguments, Path(plan.out).with_suffix(".log"), self.plan.env
        )


def described(
    turns: Sequence[Mapping[str, list[float]]],
    memory: Mapping[str, Any],
    parts: Mapping[str, list[float]],
    facts: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the result of a setting.

    Args:
        turns: Times of the steps in each turn, `ms` and `cpu_ms`.
        memory: Megabytes, see `RunningSetting.memory`.
        parts: Milliseconds of the parts of a step; their medians are returned.
        facts: Facts of the worker, returned as they are.
    """
    ms, cpu_ms = ([value for turn in turns for value in turn[kind]] for kind in ("ms", "cpu_ms"))
    middle, spread = median_and_spread(ms)
    return {
        "ms": middle,
        "ms_10_90": spread,
        "cpu_ms": float(np.median(cpu_ms)),
        "steps": len(ms),
        **{part: statistics.median(values) for part, values in parts.items()},
        **memory,
        **facts,
    }


def compare(
    found: Mapping[str, Mapping[str, Any]], with_: str, without: str
) -> dict[str, float | None] | None:
    """Return the gain of a setting; None where one of both settings is missing.

    Args:
        found: Results by setting.
        with_: Setting with the means to judge.
        without: The same setting without it.

    Returns:
        `times_faster`: time of a step without it over the time with it. `times_faster_cpu`: the
        same by processor time, which other work on the machine disturbs less. `less_memory`: share
        of the peak without it that is saved; negative where it takes more.
    """
    if with_ not in found or without not in found:
        return None
    a = found[with_]
    b = found[without]
    memory = 1 - a["peak_mb"] / b["peak_mb"] if a["peak_mb"] and b["peak_mb"] else None
    return {
        "times_faster": b["ms"] / a["ms"],
        "times_faster_cpu": b["cpu_ms"] / a["cpu_ms"],
        "less_memory": memory,
    }


def holds(
    compared: Mapping[str, Mapping[str, float | None] | None],
) -> dict[str, dict[str, bool | None]]:
    """Return whether cached targets gain as claimed, by comparison, time and memory.

    None stands for a gain that was not measured.
    """
    least = {"times_faster": CLAIM["times_faster"][0], "less_memory": CLAIM["less_memory"]}
    return {
        name: {
            kind: None if (found := values[kind]) is None else found >= bound
            for kind, bound in least.items()
        }
        for name, values in compared.items()
        if name.startswith(CACHED) and values is not None
    }


def pays_after(found: Mapping[str, Mapping[str, Any]], cache: Mapping[str, Any]) -> float | None:
    """Return the number of steps after which making the cache has saved more time than it took.

    None where it is not known, or never.
    """
    if "seconds" not in cache or not {"cached", "live"} <= found.keys():
        return None
    saved_ms = found["live"]["ms"] - found["cached"]["ms"]
    return 1e3 * cache["seconds"] / saved_ms if saved_ms > 0 else None
