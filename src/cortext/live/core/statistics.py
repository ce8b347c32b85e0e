"""How decoding has gone since the server started: words, errors, rates and latencies.

Its memory does not grow.
"""

from __future__ import annotations

from typing import Any

from cortext.live.core.timing import StageTimes
from cortext.text.metrics import EditCounts, edit_counts
from cortext.text.normalize import normalize

FINAL = "final"


class RunningStatistics:
    """Counts utterances.

    Error rates are those of the benchmark: all edits over all words of the references.
    """

    def __init__(self) -> None:
        self.n_utterances = self.n_words = 0
        self.speech_s = 0.0
        self.times, self._final_times = StageTimes(), StageTimes()
        self._edits, self._latest_edits = EditCounts(), EditCounts()

    def add(self, n_words: int, duration_s: float, final_ms: float) -> None:
        """Count an utterance, and what it took from its end to its text."""
        self.n_utterances += 1
        self.n_words += n_words
        self.speech_s += duration_s
        self._final_times.add({FINAL: [final_ms]})

    def compare(self, reference: str, text: str, again: bool = False) -> float | None:
        """Count the edits that turn what was meant into what was decoded.

        The sentence's own error rate.

        Args:
            again: More of the sentence has been decoded since it was compared last, which then
                counts no more.
        """
        edits = edit_counts(normalize(reference).split(), normalize(text).split())
        if not again:
            self._edits += self._latest_edits
        self._latest_edits = edits
        return edits.errors / edits.reference_length if edits.reference_length else None

    def to_json(self) -> dict[str, Any]:
        """The body of a `stats` message."""
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
    """Rate of words; None where nothing lasted."""
    return 60 * n_words / duration_s if duration_s > 0 else None
