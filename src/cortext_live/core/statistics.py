"""Running statistics of live decoding: the time of each stage, words, errors and latencies.

Their memory does not grow.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

# numpy imports it at the first percentile: in mid-utterance, where a descriptor may lack
import numpy.ma

from cortext.text.language import EN, Language
from cortext.text.metrics import EditCounts, edit_counts

STAGES = ("normalise", "smooth", "model", "search")
"""Stages of a step, which lasts from the arrival of a frame's last bin to its words."""
TOTAL = "total"
"""The whole step: the stages and the time between them."""
AHEAD = "ahead"
"""Work that is done ahead, while earlier bins arrive; the words do not wait for it."""
TIMES = (*STAGES, TOTAL, AHEAD)


class Stopwatch:
    """Milliseconds by stage, added up until they are taken."""

    def __init__(self) -> None:
        self._spent_ns = dict.fromkeys(TIMES, 0)
        self._laps_ns = dict.fromkeys(STAGES, 0)
        self._began_ns = self._last_ns = 0

    def start(self) -> None:
        """Begin work; time before this does not count."""
        self._laps_ns = dict.fromkeys(STAGES, 0)
        self._began_ns = self._last_ns = time.perf_counter_ns()

    def lap(self, stage: str) -> None:
        """End a stage, which took the time since the last call."""
        now_ns = time.perf_counter_ns()
        self._laps_ns[stage] += now_ns - self._last_ns
        self._last_ns = now_ns

    def stop(self, completes: bool) -> None:
        """End work.

        Args:
            completes: Whether it completed a frame, and so was the step itself; otherwise it was
                done ahead of the step.
        """
        whole_ns = time.perf_counter_ns() - self._began_ns
        if not completes:
            self._spent_ns[AHEAD] += whole_ns
            return
        self._spent_ns[TOTAL] += whole_ns
        for stage, lap_ns in self._laps_ns.items():
            self._spent_ns[stage] += lap_ns

    def take(self) -> dict[str, float]:
        """Return the milliseconds by stage since the last call."""
        taken = {stage: spent_ns / 1e6 for stage, spent_ns in self._spent_ns.items()}
        self._spent_ns = dict.fromkeys(self._spent_ns, 0)
        return taken


class StageTimes:
    """Percentiles of the latest times of each stage."""

    def __init__(self, n_latest: int = 8192) -> None:
        self._n_latest = n_latest
        self._ms: dict[str, np.ndarray] = {}
        self._n: dict[str, int] = {}
        self._max: dict[str, float] = {}

    def add(self, stage_ms: dict[str, list[float]]) -> None:
        """Add times, as `Update.stage_ms` gives them."""
        for stage, times in stage_ms.items():
            ring = self._ms.setdefault(stage, np.empty(self._n_latest))
            for ms in times:
                n = self._n.get(stage, 0)
                ring[n % self._n_latest] = ms
                self._n[stage] = n + 1
                self._max[stage] = max(self._max.get(stage, 0.0), ms)

    def n(self, stage: str = TOTAL) -> int:
        """Return the number of times that were added to a stage."""
        return self._n.get(stage, 0)

    def percentiles(self) -> dict[str, dict[str, float]]:
        """Return by stage p50, p95, p99 (of the latest times) and max (of all), in milliseconds."""
        by_stage = {}
        for stage, ring in self._ms.items():
            latest = ring[: min(self._n.get(stage, 0), self._n_latest)]
            if len(latest):
                p50, p95, p99 = np.percentile(latest, (50, 95, 99)).tolist()
                by_stage[stage] = {"p50": p50, "p95": p95, "p99": p99, "max": self._max[stage]}
        return by_stage


FINAL = "final"


class RunningStatistics:
    """Counts of utterances, words and errors.

    Error rates are those of the benchmark: all edits over all words of the references.

    Args:
        language: Normalisation of references and texts.
    """

    def __init__(self, language: Language = EN) -> None:
        self.language = language
        self.n_utterances = self.n_words = 0
        self.speech_s = 0.0
        self.times = StageTimes()
        self._final_times = StageTimes()
        self._edits = EditCounts()
        self._latest_edits = EditCounts()

    def add(self, n_words: int, duration_s: float, final_ms: float) -> None:
        """Count an utterance.

        Args:
            n_words: Words of its text.
            duration_s: Its seconds.
            final_ms: Milliseconds from its end to its text.
        """
        self.n_utterances += 1
        self.n_words += n_words
        self.speech_s += duration_s
        self._final_times.add({FINAL: [final_ms]})

    def compare(self, reference: str, text: str, again: bool = False) -> float | None:
        """Count the edits from the reference to the text; return the sentence's own error rate.

        Args:
            reference: The words that were meant.
            text: The words that were decoded.
            again: More of the sentence has been decoded since the last call, which then does not
                count.
        """
        normalize = self.language.normalize
        edits = edit_counts(normalize(reference).split(), normalize(text).split())
        if not again:
            self._edits += self._latest_edits
        self._latest_edits = edits
        return edits.errors / edits.reference_length if edits.reference_length else None

    def to_json(self) -> dict[str, Any]:
        """Return the body of a `stats` message."""
        edits = self._edits + self._latest_edits
        return {
            "n_utterances": self.n_utterances,
            "n_words": self.n_words,
            "wer": edits.errors / edits.reference_length if edits.reference_length else None,
            "words_per_minute": words_per_minute(self.n_words, self.speech_s),
            "latency": self.times.percentiles(),
            "final_ms": self._final_times.percentiles().get(FINAL),
        }


def words_per_minute(n_words: int, duration_s: float) -> float | None:
    """Return the rate of words; None where nothing lasted."""
    return 60 * n_words / duration_s if duration_s > 0 else None
