"""How well a model predicts a text."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class TextScore:
    """How well a model predicts a text.

    Log-probabilities of everything, and without the unknown words.
    """

    sentences: int
    words: int
    unknown_words: int
    log_prob: float
    log_prob_known: float

    def __add__(self, other: TextScore) -> TextScore:
        return TextScore(
            self.sentences + other.sentences,
            self.words + other.words,
            self.unknown_words + other.unknown_words,
            self.log_prob + other.log_prob,
            self.log_prob_known + other.log_prob_known,
        )

    @property
    def perplexity(self) -> float:
        """Per word and sentence end, unknown words included."""
        return (
            math.exp(-self.log_prob / (self.words + self.sentences)) if self.sentences else math.nan
        )

    @property
    def perplexity_known(self) -> float:
        """Per known word and sentence end."""
        known = self.words - self.unknown_words + self.sentences
        return math.exp(-self.log_prob_known / known) if self.sentences else math.nan

    @property
    def oov_rate(self) -> float:
        """Share of the words that the model does not know."""
        return self.unknown_words / self.words if self.words else 0.0
