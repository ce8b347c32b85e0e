"""The model that speaks is watched in use, and stops where it proves worse than its parent.

Promotion allows for small harm, and a model may grow worse than its parent later. Three signs, the
first two of sentences that were spoken since the model was made and that neither has learnt from:

- corrections: both decode the corrected sentences, and the model surely makes more word errors
- confidence: both decode the latest sentences, and the model's mean confidence has fallen
- ratings: people call a larger share of its sentences wrong than of its parent's

The k-th check of a model has the level 1 - 0.05 / (k (k + 1)), as `promotion` explains: a model
that is no worse is stopped by corrections, or by ratings, with a probability of 5 % at most each.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import comb

from cortext_live.recalibration.promotion import Comparison
from cortext_live.usage.log_entries import LoggedUtterance


@dataclass(frozen=True)
class Ratings:
    """Ratings of the sentences that a model decoded.

    Attributes:
        wrong: Number of sentences rated wrong.
        rated: Number of rated sentences.
    """

    wrong: int
    rated: int

    @classmethod
    def of(cls, entries: Iterable[LoggedUtterance], model: str) -> Ratings:
        """Count the ratings of a model's sentences, by its name in the log."""
        ratings = [
            each.rating for each in entries if each.model == model and each.rating is not None
        ]
        return cls(ratings.count("wrong"), len(ratings))


def chance(before: Ratings, now: Ratings) -> float:
    """Return the probability of so many wrong ratings or more, if nothing has changed.

    Fisher's exact test: of all rated sentences, those called wrong are drawn at random.
    """
    wrong, rated = before.wrong + now.wrong, before.rated + now.rated
    ways = sum(
        comb(now.rated, n) * comb(before.rated, wrong - n)
        for n in range(now.wrong, min(now.rated, wrong) + 1)
    )
    return ways / comb(rated, wrong)


def reason_to_stop(
    comparison: Comparison | None,
    confidences: tuple[float, float] | None,
    ratings: tuple[Ratings, Ratings],
    lost_confidence: float,
    error: float,
) -> str:
    """Return the reason why a model must not stay in use; empty if there is none.

    Confidence is no reason where the model makes fewer errors on corrected sentences.

    Args:
        comparison: Its word errors beside its parent's; None with too few corrections.
        confidences: Mean confidence of the parent and of the model on the same sentences.
        ratings: Ratings of the parent's sentences and of the model's.
        lost_confidence: Fall of the confidence that is too large.
        error: Probability with which ratings may stop a model that is no worse.
    """
    if comparison is not None and comparison.lower > 0:
        return (
            f"on {comparison.sentences} corrected sentences it makes {comparison.difference:.1f}"
            f" points more word errors than the model before it, at least {comparison.lower:.1f}"
        )
    better = comparison is not None and comparison.difference < 0
    if confidences is not None and confidences[0] - confidences[1] > lost_confidence and not better:
        before, now = confidences
        return f"its confidence is {now:.2f}, that of the model before it {before:.2f}"
    of_parent, own = ratings
    if chance(of_parent, own) < error:
        return (
            f"{own.wrong} of its {own.rated} rated sentences are wrong, and"
            f" {of_parent.wrong} of {of_parent.rated} of the model before it"
        )
    return ""
