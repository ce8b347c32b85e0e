"""Interpolated modified Kneser-Ney estimation, as KenLM's lmplz does it without pruning.

Chen & Goodman, An Empirical Study of Smoothing Techniques for Language Modeling, Computer Speech & Language 13 (1999);
Heafield et al., Scalable Modified Kneser-Ney Language Model Estimation, ACL 2013. With `c` the count of an n-gram,
`h` its first words, `w` its last and `h'` = `h` without its first word:

    p(w | h) = (c(h w) - D(c)) / sum_v c(h v)  +  gamma(h) p(w | h')
    gamma(h) = (D(1) N1(h) + D(2) N2(h) + D(3) N3+(h)) / sum_v c(h v)

Below the highest order `c` is the number of different words seen before the n-gram (its adjusted count), except for
n-grams that begin with `<s>`, which nothing precedes and which keep their plain count. Unigrams are interpolated with
the uniform distribution over all words, `</s>` and `<unk>`, which is where the mass of `<unk>` comes from. `<s>` is a
context, never an outcome.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cortext.errors import LanguageModelError

UNK, BOS, EOS = "<unk>", "<s>", "</s>"
SPECIAL = (UNK, BOS, EOS)
UNK_ID, BOS_ID, EOS_ID = range(3)
MAX_ORDER = 6
FALLBACK_DISCOUNTS = (0.5, 1.0, 1.5)
"""Used for an order whose counts-of-counts give no valid discounts (tiny texts), as lmplz --discount_fallback does."""


@dataclass(frozen=True, slots=True, eq=False)
class Level:
    """The n-grams of one order: word numbers int32 [N, order], log10 probability and log10 back-off float64 [N]."""

    ngrams: np.ndarray
    log10_prob: np.ndarray
    log10_backoff: np.ndarray


@dataclass(frozen=True, slots=True)
class Discounts:
    """What is subtracted from counts 1, 2 and 3 or more of one order, and whether it is the fallback."""

    values: tuple[float, float, float]
    fallback: bool


@dataclass(frozen=True, slots=True, eq=False)
class Counts:
    """The different n-grams of one order in the text.

    first:   position in the text of one occurrence, int64 [N]
    prefix:  index of the n-gram without its last word among the n-grams one order lower, int64 [N]
    suffix:  the same without its first word, int64 [N]
    plain:   how often it occurs, int64 [N]
    """

    first: np.ndarray
    prefix: np.ndarray
    suffix: np.ndarray
    plain: np.ndarray


def estimate(sentences: Sequence[np.ndarray], n_words: int, order: int) -> tuple[list[Level], list[Discounts]]:
    """The model of each order from 1 to `order`.

    sentences: word numbers int [U] of each sentence, without <s> and </s>; numbers below 3 are <unk>, <s>, </s>
    n_words:   size of the vocabulary with the three special words; words that never occur get the uniform share
    Raises LanguageModelError if the order is not 1 to 6 or no sentence is long enough for it.
    """
    if not 1 <= order <= MAX_ORDER:
        raise LanguageModelError(f"order {order} is not supported; orders 1 to {MAX_ORDER} are")
    text = np.concatenate([np.concatenate(([BOS_ID], sentence, [EOS_ID])) for sentence in sentences]).astype(np.int64)
    counted = _count(text, n_words, order)
    levels: list[Level] = []
    discounts: list[Discounts] = []
    lower = np.full(1, 1.0 / (n_words - 1))  # the uniform distribution: all words but <s>
    for number, counts in enumerate(counted, start=1):
        adjusted = _adjusted(counts, counted[number] if number < order else None, text)
        discount = _discounts(adjusted)
        cut = np.array([0.0, *discount.values])[np.minimum(adjusted, 3)]
        n_contexts = len(lower)
        total = np.bincount(counts.prefix, weights=adjusted, minlength=n_contexts)
        extended = total > 0
        total[~extended] = 1.0  # words that are no context
        gamma = np.bincount(counts.prefix, weights=cut, minlength=n_contexts) / total
        prob = (adjusted - cut) / total[counts.prefix] + gamma[counts.prefix] * lower[counts.suffix]
        if levels:
            levels[-1].log10_backoff[extended] = np.log10(gamma[extended])
        if number == 1:
            prob[BOS_ID] = 1.0  # as lmplz writes it; it is never asked for
        ngrams = np.arange(n_words)[:, None] if number == 1 else text[counts.first[:, None] + np.arange(number)]
        levels.append(Level(ngrams.astype(np.int32), np.log10(prob), np.zeros(len(prob))))
        discounts.append(discount)
        lower = prob
    return levels, discounts


def _count(text: np.ndarray, n_words: int, order: int) -> list[Counts]:
    """Different n-grams of every order in a text of sentences that each begin with <s> and end with </s>."""
    unigram_first = np.zeros(n_words, dtype=np.int64)
    unigram_first[text[::-1]] = np.arange(len(text))[::-1]
    nothing = np.zeros(n_words, dtype=np.int64)
    counted = [Counts(unigram_first, nothing, nothing, np.bincount(text, minlength=n_words))]
    index = text  # of the n-gram that begins at each position, or -1 where the sentence ends too early
    for number in range(2, order + 1):
        last = np.full(len(text), BOS_ID)
        last[: len(text) - number + 1] = text[number - 1 :]
        positions = np.flatnonzero((index >= 0) & (last != BOS_ID))
        if not len(positions):
            raise LanguageModelError(f"no sentence is long enough for an n-gram of order {number}; use a lower order")
        keys = index[positions] * n_words + text[positions + number - 1]
        unique, first, inverse, plain = np.unique(keys, return_index=True, return_inverse=True, return_counts=True)
        first = positions[first]
        counted.append(Counts(first, unique // n_words, index[first + 1], plain))
        index = np.full(len(text), -1)
        index[positions] = inverse
    return counted


def _adjusted(counts: Counts, longer: Counts | None, text: np.ndarray) -> np.ndarray:
    """Adjusted counts int64 [N] of the n-grams of one order; `longer` are those one order higher, if there are any."""
    if longer is None:
        adjusted = counts.plain.copy()
    else:
        adjusted = np.bincount(longer.suffix, minlength=len(counts.plain))
        starts = (text[counts.first] == BOS_ID) & (counts.plain > 0)
        adjusted[starts] = counts.plain[starts]
    if counts.prefix is counts.suffix:  # unigrams
        adjusted[BOS_ID] = 0
    return adjusted


def _discounts(adjusted: np.ndarray) -> Discounts:
    """Equation 26 of Chen & Goodman (1999) on the numbers of n-grams with adjusted count 1 to 4."""
    n = np.bincount(np.minimum(adjusted, 5), minlength=6)
    if (n[1:4] == 0).any():
        return Discounts(FALLBACK_DISCOUNTS, fallback=True)
    y = n[1] / (n[1] + 2.0 * n[2])
    first, second, third = (float(j - (j + 1) * y * n[j + 1] / n[j]) for j in (1, 2, 3))
    if not (0 <= first <= 1 and 0 <= second <= 2 and 0 <= third <= 3):
        return Discounts(FALLBACK_DISCOUNTS, fallback=True)
    return Discounts((first, second, third), fallback=False)
