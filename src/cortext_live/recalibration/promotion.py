"""Rules for when a recalibrated model may speak, and when it becomes the parent of the next ones.

Parent and candidate decode the same labelled sentences, from which no model of the chain has
learnt. A decision rests on an upper bound of the difference of their word error rates:

- below 5 points (which takes about 40 sentences): the candidate speaks provisionally, for a day
- below 2 points (about 150): it is promoted

A candidate whose lower bound is above 0 is surely worse, and rejected, whatever its upper bound is.

The bound of the k-th judgement of a parent's candidates has the level 1 - 0.05 / (k (k + 1)). So
the probability that any candidate that is worse by 2 points or more takes the place of one parent
is at most 5 %, however many are judged (the levels' errors add up to 0.05).

Each promotion may still make the decoder a little worse. Its bound, as far as it is above 0, is
taken from a budget of 6 points; one below 0 is a proven improvement and gives back. Where the
budget does not suffice, nothing is promoted until a person or an improvement fills it.

Differences of sentences are far from normal: most are 0 and some large. One sentence more is
therefore counted, in which the candidate has half of the words wrong that the parent has right.
Without it, ten sentences that both decode alike would prove that both are equal. If all harm comes
as single sentences that are lost whole, the bound still fails about twice as often as it should:
few sentences cannot show rare errors. Such harm shows in the confidence of all sentences, which
may veto a candidate.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Annotated, Literal

import numpy as np

from cortext.config import check_fields
from cortext.errors import ConfigError
from cortext.settings import Setting
from cortext_live.recalibration.settings import YEAR_H

IMAGINED = 0.5
"""Share of wrong words in the sentence that is counted besides those that were judged."""


@dataclass(frozen=True, kw_only=True)
class PromotionOptions:
    """Bounds on the word errors that a candidate adds, in points of the error rate."""

    provisional: float = 5.0
    """Upper bound below which a candidate speaks for a day."""
    promotion: float = 2.0
    """Upper bound below which it becomes the parent."""
    budget: float = 6.0
    """Most that the promotions of a chain may add together."""
    error: Annotated[float, Setting(above=0, below=0.5)] = 0.05
    """Probability of a wrong promotion in the place of one parent."""
    fewest: Annotated[int, Setting(minimum=2)] = 20
    """Fewest sentences that judge a candidate."""
    hours: Annotated[float, Setting(above=0, maximum=YEAR_H)] = 24.0
    """Hours for which a candidate speaks provisionally."""

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 < self.promotion <= self.provisional <= 100:
            raise ConfigError(
                f"promotion is {self.promotion} and provisional {self.provisional}",
                fix="give points of the error rate, the first the smaller one",
            )
        if not self.budget >= 0:  # infinity sets no bound
            raise ConfigError(f"budget is {self.budget}; it must be at least 0")

    def level(self, judgement: int) -> float:
        """Return the level of the bound of a parent's k-th judgement, from 1."""
        # The errors of all judgements add up to `error` (1/(k (k + 1)) sums to 1), however often a
        # parent's candidates are judged: looking again must not make chance findings likely.
        return 1 - self.error / (judgement * (judgement + 1))


@dataclass(frozen=True)
class Comparison:
    """Word errors of a candidate beside its parent's, on the same sentences.

    Attributes:
        sentences: Number of sentences.
        words: Words that were meant.
        difference: Points by which the candidate's word error rate is higher.
        lower: Lower bound of the difference, in points.
        upper: Upper bound of the difference, in points.
        level: Level of either bound.
    """

    sentences: int
    words: int
    difference: float
    lower: float
    upper: float
    level: float


def compare(
    parent: Sequence[int], candidate: Sequence[int], n_words: Sequence[int], level: float
) -> Comparison:
    """Return the difference of two models' word error rates with its bounds.

    The bounds are Student's for a ratio (Cochran 1977, section 6.4), of the sentences and the one
    that is imagined.

    Args:
        parent: The parent's word errors by sentence, at least one sentence.
        candidate: The candidate's, of the same sentences.
        n_words: Words that were meant, 1 or more each.
        level: Probability that a bound holds.
    """
    more = np.subtract(candidate, parent).astype(np.float64)
    words = np.asarray(n_words, np.float64)
    return Comparison(
        len(more),
        int(words.sum()),
        float(100 * more.sum() / words.sum()),
        -_upper(-more, words, level),
        _upper(more, words, level),
        level,
    )


def _upper(more: np.ndarray, words: np.ndarray, level: float) -> float:
    """Return the upper bound of the points that errors add.

    Args:
        more: float64, errors that a model makes more, by sentence.
        words: float64, words that were meant.
        level: Level of the bound.
    """
    length = words.mean()
    # Without the imagined one, equal errors on all sentences would have a bound of width 0.
    more, words = np.append(more, IMAGINED * length), np.append(words, length)
    ratio = more.sum() / words.sum()
    n = len(more)
    error = np.sqrt(n / (n - 1) * np.square(more - ratio * words).sum())
    return float(100 * (ratio + student(level, n - 1) * error / words.sum()))


def student(level: float, degrees: int) -> float:
    """Return a quantile of Student's t distribution, by three terms of its expansion.

    Abramowitz and Stegun (1964), 26.7.5: from 20 degrees of freedom on, to 0.002 up to a level of
    0.9999.
    """
    z = NormalDist().inv_cdf(level)
    first = (z**3 + z) / 4
    second = (5 * z**5 + 16 * z**3 + 3 * z) / 96
    third = (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384
    return z + first / degrees + second / degrees**2 + third / degrees**3


def spent(uppers: Iterable[float]) -> float:
    """Return the points of the budget that promotions have spent.

    Args:
        uppers: Upper bounds of the promotions, in their order.
    """
    total = 0.0
    for upper in uppers:
        # A promotion that surely helped pays back, but no credit is saved for later harm.
        total = max(0.0, total + upper)
    return total


@dataclass(frozen=True)
class Decision:
    """A decision about a candidate, and the reason for it.

    Attributes:
        action: `promote`, `speak` (provisionally), `wait`, or `reject` if it is surely worse.
        reason: A sentence for the operator: figures, and the missing evidence.
        asks: More labelled sentences that judge would change it.
    """

    action: Literal["promote", "speak", "wait", "reject"]
    reason: str
    asks: bool = False


def decide(
    comparison: Comparison | None,
    rule: PromotionOptions,
    budget_spent: float = 0.0,
    labelled: int = 0,
) -> Decision:
    """Return what becomes of a candidate.

    Args:
        comparison: Word errors beside its parent's; None where too few sentences have labels.
        rule: The bounds.
        budget_spent: Points that the promotions so far have spent; see `spent`.
        labelled: Number of labelled sentences that may judge it.
    """
    if comparison is None:
        reason = (
            f"at least {rule.fewest} labelled sentences must judge it, and there are {labelled}"
        )
        return Decision("wait", reason, asks=True)
    bound = (
        f"on {comparison.sentences} sentences it makes {comparison.difference:+.1f} points of word"
        f" errors, at most {comparison.upper:+.1f}"
    )
    # Before the upper bound: a candidate that is surely worse must not wait for more sentences.
    if comparison.lower > 0:
        return Decision("reject", bound)
    if comparison.upper >= rule.provisional:
        more = needed(comparison, rule.provisional)
        return Decision("wait", f"{bound}; {rule.provisional:g} are allowed{more}", asks=more != "")
    if comparison.upper >= rule.promotion:
        more = needed(comparison, rule.promotion)
        reason = f"{bound}; to be promoted it needs {rule.promotion:g}{more}"
        return Decision("speak", reason, asks=more != "")
    # Many promotions of a little harm each, all within the bound, would add up.
    if spent([budget_spent, comparison.upper]) > rule.budget:
        left = max(0.0, rule.budget - budget_spent)
        return Decision("speak", f"{bound}; the budget of all promotions has {left:.1f} left")
    return Decision("promote", bound)


def needed(comparison: Comparison, bound: float) -> str:
    """Return about how many more sentences must judge for a bound, in words; empty if none do.

    Assumes that the difference stays as it is. The distance of its bound shrinks with the root of
    the number of sentences.
    """
    if comparison.difference >= bound:
        return ""
    total = (
        comparison.sentences
        * ((comparison.upper - comparison.difference) / (bound - comparison.difference)) ** 2
    )
    more = int(np.ceil(total)) - comparison.sentences
    return f", which takes about {more} more that judge" if more > 0 else ""
