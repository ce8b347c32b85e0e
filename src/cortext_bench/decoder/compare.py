"""`cortext bench decoder`: our search and the peers', side by side, in one run.

All searches get the same posteriors, words and n-gram, the same number of tuning trials on the
tuning half (even utterances) and one thread in a process of their own. A peer's `note` names the
exceptions. The searches decode the other half in turns, `repeats` times; an utterance's time is the
median of its repeats.

Settings are chosen on the tuning half. `best` had the fewest word errors. `equal` was the fastest
among those that make no more errors than the `best` setting of ours or of flashlight, whichever is
worse; `near` the fastest within `NEAR` of that. Times at `equal` can therefore be compared, and
those at `near`. The frontier has the settings that no other one beats in both errors and time.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cortext.errors import CortextError, DataError
from cortext.provenance import provenance
from cortext.text.metrics import edit_counts, error_rate
from cortext_bench.decoder.chosen import (
    OURS,
    PEER,
    ChosenSettings,
    default_point,
    read_settings,
    write_settings,
)
from cortext_bench.decoder.searcher import INVENTORY, NBEST, Paths, searcher
from cortext_bench.decoder.tuning import Tried, tune
from cortext_bench.decoder.worker import SearchProcess
from cortext_bench.harness import Stage, in_turns
from cortext_bench.materials import lm_facts, write_posteriors
from cortext_bench.posteriors import Utterance, blank_share, halves

NAMES = ("cortext", "flashlight", "kaldi", "kaldi-lattice", "pyctcdecode")
STEPPED = 40
"""Utterances that are stepped frame by frame for the worst frame."""


@dataclass(frozen=True)
class DecoderBenchSettings:
    """Searches to compare, and how much is measured.

    Attributes:
        names: Searches, ours among them.
        trials: Settings that tuning tries for each.
        tuning_utterances: Most utterances of the tuning half; None for all.
        utterances: Most utterances of the other half; None for all.
        repeats: Times that each of these is decoded.
    """

    names: Sequence[str] = NAMES
    trials: int = 60
    tuning_utterances: int | None = None
    utterances: int | None = None
    repeats: int = 3


class DecoderBench:
    """One comparison: utterances, models, plan."""

    def __init__(
        self,
        utterances: Sequence[Utterance],
        paths: Paths,
        plan: DecoderBenchSettings,
        stage: Stage = lambda name: None,
    ) -> None:
        self.utterances = utterances
        self.paths = paths
        self.plan = plan
        self.stage = stage
        tuning, reporting = halves(range(len(utterances)))
        self.tuning = tuning[: plan.tuning_utterances]
        self.reporting = reporting[: plan.utterances]
        if not self.reporting:
            raise DataError(
                f"{len(utterances)} utterances cannot be halved into tuning and reporting"
            )
        self.posteriors = paths.cache / "posteriors.npz"
        write_posteriors(self.posteriors, [utterance.log_probs_PV for utterance in utterances])
        self.missing: dict[str, str] = {}

    def tune(self) -> dict[str, list[Tried]]:
        """Tune every search that is installed; return all trials by its name."""
        found = {}
        for name in self.plan.names:
            with ExitStack() as stack:
                process = self._started(name, stack)
                if process:
                    self.stage(f"tuning {name}")
                    found[name] = self._tune(process)
        return found

    def _tune(self, process: SearchProcess) -> list[Tried]:
        kind = process.kind
        chosen = self.tuning[:: kind.one_of]

        def measure(settings: Mapping[str, Any]) -> tuple[float, float]:
            answer = process.decode(settings, chosen)
            references = [self.utterances[number].reference for number in chosen]
            rate = (
                error_rate(
                    references, [(texts or [""])[0] for texts in answer["texts"]], n_boot=0
                ).rate
                or 0.0
            )
            ms = 1000 * sum(answer["busy"]) / self._frames(chosen)
            self.stage(
                f"{process.name} {100 * rate:.2f} % in {ms:.3f} ms a frame with {dict(settings)}"
            )
            return rate, ms

        return tune(
            process.name, kind.start, kind.steps, kind.speed, measure, self.plan.trials, kind.sizes
        )

    def run(self, settings: Mapping[str, ChosenSettings]) -> dict[str, Any]:
        """Decode the reported half with the chosen settings of every search."""
        with ExitStack() as stack:
            processes = {
                name: self._started(name, stack) for name in self.plan.names if name in settings
            }
            present = {name: process for name, process in processes.items() if process}
            different = {name: settings[name].different() for name in present}
            answers = in_turns(
                {
                    (name, number): partial(self._decode, process, one)
                    for name, process in present.items()
                    for number, one in enumerate(different[name])
                },
                self._repeats(),
            )
            decoders = {
                name: self._described(
                    process,
                    settings[name],
                    [answers[name, number] for number in range(len(different[name]))],
                )
                for name, process in present.items()
            }
            result: dict[str, Any] = {"decoders": decoders, "missing": self.missing}
            if OURS in present:
                self.stage("frame by frame, and two threads")
                result["ours"] = self._ours(present[OURS], settings[OURS].points)
        return {**ratios(decoders), **result}

    def _repeats(self) -> Iterator[int]:
        for repeat in range(self.plan.repeats):
            self.stage(f"decoding, {repeat + 1} of {self.plan.repeats}")
            yield repeat

    def _decode(
        self, process: SearchProcess, settings: Mapping[str, Any], repeat: int
    ) -> dict[str, Any]:
        chosen = self.reporting[:: process.kind.one_of]
        return process.decode(settings, chosen, texts=repeat == 0)

    def _started(self, name: str, stack: ExitStack) -> SearchProcess | None:
        self.stage(f"loading {name}")
        try:
            return stack.enter_context(SearchProcess(name, self.paths, self.posteriors))
        except CortextError as error:  # not installed, or it cannot use the model
            if name == OURS:
                raise
            self.missing[name] = str(error)
            return None

    def _described(
        self,
        process: SearchProcess,
        settings: ChosenSettings,
        answers: Sequence[Sequence[Mapping[str, Any]]],
    ) -> dict[str, Any]:
        """Return facts about a search and its measured settings.

        Args:
            process: The search.
            settings: Settings that were measured.
            answers: For each of the different ones, the answers of all repeats.
        """
        before = process.loaded["memory_before"]
        loaded = process.loaded["memory_loaded"]
        last = [answer["memory"] for repeats in answers for answer in repeats]
        model_mb = self.paths.model.stat().st_size / 1e6
        peak = max(memory.get("peak_rss_mb", 0.0) for memory in last)
        chosen = self.reporting[:: process.kind.one_of]
        different = settings.different()
        measured = [
            self._point(one, repeats, chosen)
            for one, repeats in zip(different, answers, strict=True)
        ]
        return {
            "version": process.loaded["version"],
            "note": process.kind.note,
            "load_s": process.loaded["load_s"],
            "memory": {
                "before_pss_mb": before.get("pss_mb"),
                "loaded_pss_mb": loaded.get("pss_mb"),
                "decoded_pss_mb": max(memory.get("pss_mb", 0.0) for memory in last),
                "peak_rss_mb": peak,
                "peak_beyond_model_mb": peak - model_mb,
            },
            "points": {
                point: measured[different.index(one)] for point, one in settings.points.items()
            },
            "frontier": sorted(
                [point for point in measured if point["settings"] in settings.frontier],
                key=lambda point: float(point["cpu_ms_per_frame"]),
            ),
        }

    def _point(
        self,
        settings: Mapping[str, Any],
        answers: Sequence[Mapping[str, Any]],
        chosen: Sequence[int],
    ) -> dict[str, Any]:
        references = [self.utterances[number].reference for number in chosen]
        texts = [found or [""] for found in answers[0]["texts"]]
        rate = error_rate(references, [found[0] for found in texts])
        times = {}
        for kind in ("seconds", "busy"):
            seconds_RU = np.array([answer[kind] for answer in answers])
            times[kind] = np.median(seconds_RU, axis=0) * 1000
        frames_U = np.array([len(self.utterances[number].log_probs_PV) for number in chosen])
        ms_U = times["seconds"]
        blank = self._blank_share(chosen)
        return {
            "settings": dict(settings),
            "utterances": len(chosen),
            "ms_per_frame": float(np.median(ms_U / frames_U)),
            "ms_per_frame_p99": float(np.quantile(ms_U / frames_U, 0.99)),
            "ms_per_frame_mean": float(ms_U.sum() / frames_U.sum()),
            "ms_per_nonblank_frame": (
                float(ms_U.sum() / (frames_U.sum() * (1 - blank))) if blank < 1 else None
            ),
            "cpu_ms_per_frame": float(np.median(times["busy"] / frames_U)),
            "wer": rate.rate,
            "wer_ci95": [rate.low, rate.high],
            "oracle_wer": oracle(references, texts),
            "nbest": statistics.fmean(len(found) for found in texts),
        }

    def _ours(
        self, process: SearchProcess, settings: Mapping[str, Mapping[str, Any]]
    ) -> dict[str, Any]:
        """Measure what peers do not offer: single frames, two threads, and a demanding setting."""
        point = settings.get("equal") or settings["best"]
        strained = {**point, "acoustic_scale": 1.0, "beam": 2 * point["beam"]}
        stepped = process.step(point, self.reporting[:STEPPED])
        frames_ms = 1000 * np.array(stepped["frames"])
        hard = process.step(strained, self.reporting[:STEPPED])
        threads = process.threads(point, self.reporting, (1, 2))["seconds"]
        return {
            "frame_ms_median": float(np.median(frames_ms)),
            "frame_ms_p99": float(np.quantile(frames_ms, 0.99)),
            "frame_ms_worst": float(frames_ms.max()),
            "frame_cpu_ms_worst": 1000 * max(stepped["busy"]),
            "end_ms_worst": 1000 * max(stepped["ends"]),
            "strained_settings": strained,
            "strained_frame_ms_worst": 1000 * max(hard["frames"]),
            "strained_frame_cpu_ms_worst": 1000 * max(hard["busy"]),
            "strained_end_ms_worst": 1000 * max(hard["ends"]),
            "two_threads_speedup": threads["1"] / threads["2"],
        }

    def _frames(self, chosen: Sequence[int]) -> int:
        return sum(len(self.utterances[number].log_probs_PV) for number in chosen)

    def _blank_share(self, chosen: Sequence[int]) -> float:
        return blank_share([self.utterances[number] for number in chosen])

    def facts(self) -> dict[str, Any]:
        """Return facts about the decoded utterances."""
        return {
            "tuning_utterances": len(self.tuning),
            "utterances": len(self.reporting),
            "frames": self._frames(self.reporting),
            "blank_share": self._blank_share(self.reporting),
            "tokens": INVENTORY.name,
            "nbest": NBEST,
        }


def oracle(references: Sequence[str], texts: Sequence[Sequence[str]]) -> float | None:
    """Return the word error rate of the best sentence in every list; None without words."""
    errors = [
        min(edit_counts(reference.split(), text.split()).errors for text in found)
        for reference, found in zip(references, texts, strict=True)
    ]
    words = sum(len(reference.split()) for reference in references)
    return sum(errors) / words if words else None


def ratios(decoders: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return how many times faster than each peer ours is, each point to the same point.

    `ratio` is the one with flashlight at equal word errors, `ratio_cpu` the same by processor time,
    which other work on the machine disturbs less, and `ratio_near_cpu` ours at `near` beside
    flashlight at `equal`; None where either search is missing.
    """

    def times_faster(
        name: str, point: str, field: str = "ms_per_frame", ours: str | None = None
    ) -> float:
        return float(
            decoders[name]["points"][point][field] / decoders[OURS]["points"][ours or point][field]
        )

    found: dict[str, Any] = {
        "ratio": None, "ratio_cpu": None, "ratio_near_cpu": None, "ratios": {}
    }  # fmt: skip
    if OURS in decoders:
        found["ratios"] = {
            name: {point: times_faster(name, point) for point in decoder["points"]}
            for name, decoder in decoders.items()
            if name != OURS
        }
        if PEER in decoders:
            found["ratio"] = times_faster(PEER, "equal")
            found["ratio_cpu"] = times_faster(PEER, "equal", "cpu_ms_per_frame")
            found["ratio_near_cpu"] = times_faster(PEER, "equal", "cpu_ms_per_frame", "near")
    return found


def bench_decoder(
    utterances: Sequence[Utterance],
    facts: Mapping[str, Any],
    paths: Paths,
    settings: Path,
    plan: DecoderBenchSettings,
    tuning: bool = False,
    stage: Stage = lambda name: None,
) -> dict[str, Any]:
    """Compare the searches; see the module. Returns what `--json` prints.

    Args:
        utterances: Utterances with references, and posteriors in the release's order of tokens.
        facts: Where the utterances come from.
        paths: The language models of all searches.
        settings: File with tuned settings, written if `tuning`.
        plan: Searches, and how much is measured.
        tuning: Tune every search first.
        stage: Called with the name of each stage.
    """
    for name in plan.names:
        searcher(name)  # an unknown name is refused before the work
    bench = DecoderBench(utterances, paths, plan, stage)
    if tuning:
        about = {"input": dict(facts), "utterances": len(bench.tuning), "lm": lm_facts(paths)}
        write_settings(settings, bench.tune(), about)
    chosen = read_settings(settings)
    if OURS in chosen:
        chosen[OURS] = replace(chosen[OURS], points={**chosen[OURS].points, **default_point()})
    result = bench.run(chosen)
    return {
        **result,
        "input": {**facts, **bench.facts()},
        "lm": lm_facts(paths),
        "provenance": provenance(),
    }
