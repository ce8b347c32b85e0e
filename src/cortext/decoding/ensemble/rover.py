"""Votes over a word transition network, alone or together with an n-gram."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

from cortext.decoding.ensemble.network import NULL, Slot
from cortext.decoding.ensemble.options import EnsembleOptions

MOST_HISTORIES = 256
"""So many of the best beginnings are kept in the search with an n-gram.

Fewer histories make it exact.
"""


class Ngram(Protocol):
    """The interface of an n-gram model; `cortext.decoding.ngram.LanguageModel` has it.

    Equal states score alike.
    """

    def begin(self) -> Any:
        """The state at the start of a sentence."""

    def score(self, state: Any, word: str) -> tuple[float, Any]:
        """Natural-log probability of a word, and the state after it."""

    def end(self, state: Any) -> float:
        """Natural-log probability of the sentence's end."""


def word_scores(slot: Slot, options: EnsembleOptions) -> dict[str, float]:
    """Score of each word of a slot, for `NULL` of having none.

    Fiscus' frequency of occurrence and mean confidence.

    alpha * share of the votes + (1 - alpha) * mean confidence of these votes; that of NULL is
    `null_confidence`, and its score is multiplied by `null_weight`.
    """
    total = sum(slot.votes.values())
    scores = {}
    for word, votes in slot.votes.items():
        confidence = options.null_confidence if word == NULL else slot.confidence(word)
        score = options.alpha * votes / total + (1 - options.alpha) * confidence
        scores[word] = score * options.null_weight if word == NULL else score
    return scores


def vote(slots: Sequence[Slot], options: EnsembleOptions) -> tuple[str, ...]:
    """Return the words with the highest scores.

    Of words with equal scores the first one wins, which is from the sentence with more weight.
    """
    chosen = []
    for slot in slots:
        scores = word_scores(slot, options)
        highest = max(scores.values()) - 1e-9
        chosen.append(next(word for word, score in scores.items() if score >= highest))
    return tuple(word for word in chosen if word != NULL)


def vote_with_lm(slots: Sequence[Slot], options: EnsembleOptions, lm: Ngram) -> tuple[str, ...]:
    """Return the words w with the highest sum of log(score) + lm_weight * log P(w) + word_score.

    The sentence's end is included. Scores of a slot are made to add up to 1. Prefixes with equal
    n-gram states are joined.
    """
    known: dict[tuple[Any, str], tuple[float, Any]] = {}
    beginnings: dict[Any, tuple[float, tuple[str, ...]]] = {lm.begin(): (0.0, ())}
    for slot in slots:
        longer: dict[Any, tuple[float, tuple[str, ...]]] = {}
        shares = _log_shares(slot, options)
        for state, (score, words) in beginnings.items():
            for word, log_share in shares.items():
                total, after, text = score + log_share, state, words
                if word != NULL:
                    if (state, word) not in known:
                        known[state, word] = lm.score(state, word)
                    log_prob, after = known[state, word]
                    total, text = (
                        total + options.lm_weight * log_prob + options.word_score,
                        (*words, word),
                    )
                if after not in longer or total > longer[after][0] + 1e-9:
                    longer[after] = (total, text)
        best = sorted(longer.items(), key=lambda item: -item[1][0])[:MOST_HISTORIES]
        beginnings = dict(best)
    ends = [
        (score + options.lm_weight * lm.end(state), words)
        for state, (score, words) in beginnings.items()
    ]
    return max(ends, key=lambda end: end[0])[1]


def _log_shares(slot: Slot, options: EnsembleOptions) -> dict[str, float]:
    """Logarithms of the scores, which are made to add up to 1.

    A score of 0 counts as next to nothing.
    """
    scores = {word: max(score, 1e-12) for word, score in word_scores(slot, options).items()}
    total = sum(scores.values())
    return {word: math.log(score / total) for word, score in scores.items()}
