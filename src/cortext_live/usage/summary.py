"""The opening of the page of daily use: how much, how right, what goes wrong, the days compared."""

from __future__ import annotations

import math

from cortext.evaluation.summary import MIN_DAYS, MIN_TRIALS, Third, compared
from cortext_live.usage.statistics import Use, UseStatistics

Z95 = 1.96
"""Quantile of the normal distribution for a 95 % interval."""


def summary(use: Use) -> list[str]:
    """Return the sentences that open the page: one where nothing was logged."""
    if not use.days:
        return ["No utterance has been logged yet."]
    return [how_much(use), most_wrong(use.overall), over_days(use)]


def amount(hours: float) -> tuple[str, str]:
    """Return hours in the largest unit that they fill: hours, minutes or seconds."""
    for unit, factor in (("h", 1), ("min", 60)):
        if hours * factor >= 1:
            return f"{hours * factor:.1f}", unit
    return f"{hours * 3600:.0f}", "s"


def how_much(use: Use) -> str:
    """Return how much was decoded, and how many words were right as far as that is known."""
    overall = use.overall
    much = (
        f"{_count(overall.sentences, 'sentence')} in {' '.join(amount(overall.use_hours))} of use"
    )
    if overall.wer_with_confirmed is not None:
        checked = overall.corrected + overall.confirmed
        right = 100 * max(1 - overall.wer_with_confirmed, 0)
        digits = 1 if 99 < right < 100 else 0
        return (
            f"{much}. In the {checked:,} that a person corrected or rated right, about"
            f" {right:.{digits}f} of 100 words were right."
        )
    if overall.rated:
        return (
            f"{much}. {overall.ratings['right']:,} of {overall.rated:,} rated utterances were"
            " right."
        )
    return f"{much}. How many words were right is unknown: nobody rated or corrected a sentence."


def most_wrong(overall: UseStatistics) -> str:
    """Return the most frequent trouble that the log records."""
    troubles = {
        "a sentence had to be corrected": overall.corrected,
        "a sentence was rated wrong": overall.ratings["wrong"],
        "an utterance gave no words": overall.utterances - overall.sentences,
        "the large language model failed": overall.degraded,
        "a channel was bad, or values were far out": overall.bad_features,
    }
    name = max(troubles, key=lambda trouble: troubles[trouble])
    if troubles[name]:
        of_all = f"{troubles[name]:,} of {_count(overall.utterances, 'utterance')}"
        return f"What goes wrong most: {name} ({of_all})."
    if overall.rated:
        return "The log records nothing that went wrong."
    return "What goes wrong most is unknown: nobody rated or corrected a sentence."


def over_days(use: Use) -> str:
    """Return whether it gets better or worse, by the first and the last third of the days.

    By the share of utterances that were rated right, where each third has `MIN_TRIALS` ratings;
    else by the word error rate against corrections.
    """
    if len(use.days) < MIN_DAYS or use.thirds is None:
        days = _count(len(use.days), "day")
        return f"{days} of use: too few to tell whether it gets better or worse."
    n_days = len(use.days) // 3
    first, last = use.thirds
    if min(first.rated, last.rated) >= MIN_TRIALS:
        share = "share of utterances rated right"
        thirds = _rated_right(first, n_days), _rated_right(last, n_days)
        return compared(*thirds, share, higher_is_better=True)
    words = _against_corrections(first, n_days), _against_corrections(last, n_days)
    if words[0] is not None and words[1] is not None:
        return compared(words[0], words[1], "word error rate against corrections")
    return (
        "There are too few ratings and corrections to tell whether it gets better or worse over"
        f" the {len(use.days)} days."
    )


def _rated_right(third: UseStatistics, n_days: int) -> Third:
    """Return the share that was rated right, with its Wilson interval."""
    n = third.rated
    share = third.ratings["right"] / n
    middle = share + Z95**2 / (2 * n)
    half = Z95 * math.sqrt(share * (1 - share) / n + Z95**2 / (4 * n * n))
    whole = 1 + Z95**2 / n
    return Third(n_days, share, ((middle - half) / whole, (middle + half) / whole))


def _against_corrections(third: UseStatistics, n_days: int) -> Third | None:
    if third.corrected < MIN_TRIALS or third.wer is None or third.wer_ci95 is None:
        return None
    return Third(n_days, third.wer, third.wer_ci95)


def _count(n: int, name: str) -> str:
    return f"{n:,} {name}{'' if n == 1 else 's'}"
