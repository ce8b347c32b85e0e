"""The report's opening: how many words are right, what goes wrong most, and the days compared.

Also one line about each corpus and group of sentences that the report names.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cortext.evaluation.scores import Confusion, Rates, TrialResult, long_name, rates
from cortext.text.inventory import RELEASE, Inventory
from cortext.text.metrics import align

if TYPE_CHECKING:
    from cortext.evaluation.scores import Metrics

MIN_DAYS = 3
"""Labelled days that have a first and a last third."""
MIN_TRIALS = 10
"""Labelled trials that each third needs: of fewer, the bootstrap interval means little."""
DAYS_RULE = (
    "Days are compared by the first third against the last third. A change counts where the two"
    " 95 % intervals do not overlap."
)
OPEN_VOCABULARY = "open vocabulary"
SMALL_VOCABULARY = "50-word"
EVERYTHING = "all sentences"

SPLITS = {
    "train": "The training split: the model has learnt from these trials, so rates are too low.",
    "val": "The validation split: trials that the model has not learnt from.",
    "test": "The test split: trials that are kept for the final comparison.",
}
SEEN = "sentences of the training split"
UNSEEN = "new sentences"
CORPORA = {
    "50-word": "sentences made of a vocabulary of 50 words",
    "switchboard": "sentences from the Switchboard corpus of telephone conversations",
    "openwebtext": "sentences from OpenWebText, a collection of web pages",
    "harvard": "the Harvard sentences, which balance the speech sounds",
    "freq words": "prompts of frequent words",
    "random": "prompts of random words",
    OPEN_VOCABULARY: "sentences that may hold any word",
    "grammar": "the simulator's sentences from templates",
    "handwritten": "the simulator's sentences that were written one by one",
    SEEN: "the same sentence occurs in the training data, with other recordings",
    UNSEEN: "the sentence does not occur in the training data",
}
"""One line about each corpus of the public data and of the simulator, and each group."""
UNKNOWN = "as named in the session files"


def explain(name: str) -> str:
    """Return one line about a corpus or a group of sentences."""
    return CORPORA.get(name.lower(), UNKNOWN)


def vocabulary(corpus: str | None) -> str:
    """Return the benchmark's vocabulary of a corpus: 50 words, or everything else."""
    if corpus is None:
        return EVERYTHING
    return SMALL_VOCABULARY if corpus.lower().startswith("50") else OPEN_VOCABULARY


def summary(
    metrics: Metrics,
    trials: Sequence[TrialResult],
    confused: Confusion | None,
    positions: Mapping[str, float],
    inventory: Inventory = RELEASE,
) -> list[str]:
    """Return the sentences that open the report: three, or one without labels.

    Args:
        metrics: Error rates of the split.
        trials: Decoded trials.
        confused: Confusion of tokens; None without labels.
        positions: Place of each session on the axis of days.
        inventory: The tokens.
    """
    if metrics.wer is None and metrics.per is None:
        return [
            f"How many words are right is unknown: the {metrics.split} split has no labels to"
            " compare with."
        ]
    return [
        how_right(metrics, inventory),
        most_wrong(metrics, trials, confused, inventory),
        over_days(trials, positions, inventory),
    ]


def how_right(measured: Rates, inventory: Inventory = RELEASE) -> str:
    """Return how many words are right; tokens where no words were decoded."""
    if measured.wer is not None:
        return f"{_right('words', measured.wer, measured.wer_ci95, measured.edits['word'])}."
    tokens = _right(
        f"{inventory.unit}s", measured.per or 0.0, measured.per_ci95, measured.edits["phoneme"]
    )
    return f"{tokens}. Words were not decoded: there was no language model."


def _right(
    unit: str, rate: float, interval: tuple[float, float] | None, edits: Mapping[str, int]
) -> str:
    errors = edits["substitutions"] + edits["insertions"] + edits["deletions"]
    n = edits["reference_length"]
    if not errors:
        return f"All {n:,} {unit} are right" if n > 1 else f"The only {unit[:-1]} is right"
    # Added words are errors, too, so there may be more errors than words.
    if rate >= 1:
        return (
            f"On balance no {unit[:-1]} is right: {_count(errors, 'error')} in"
            f" {_count(n, unit[:-1])}"
        )
    # 99.6 of 100 is not 100: rounding may not hide the last errors.
    digits = 1 if rate < 0.01 else 0
    bounds = ""
    if interval is not None:
        low, high = (f"{100 * max(1 - bound, 0):.{digits}f}" for bound in reversed(interval))
        bounds = f" (95 % interval {low} to {high})"
    return f"About {100 * (1 - rate):.{digits}f} of 100 {unit} are right{bounds}"


def most_wrong(
    metrics: Metrics,
    trials: Sequence[TrialResult],
    confused: Confusion | None,
    inventory: Inventory = RELEASE,
) -> str:
    """Return the most frequent kind of error, with its most frequent example."""
    if metrics.wer is None:
        error = _worst_token(confused)
        return f"The most frequent error: {error}." if error else f"No {inventory.unit} is wrong."
    edits = metrics.edits["word"]
    kinds = ("substitutions", "deletions", "insertions")
    n_errors = sum(edits[kind] for kind in kinds)
    if not n_errors:
        error = _worst_token(confused)
        before = f" The most frequent error before the language model: {error}." if error else ""
        return f"No word is wrong.{before}"
    kind = max(kinds, key=lambda kind: edits[kind])
    name = {
        "substitutions": "a wrong word in place of the right one",
        "deletions": "a missing word",
        "insertions": "an added word",
    }[kind]
    count = f"{edits[kind]:,} of {_count(n_errors, 'word error')}"
    example = _example(kind, trials)
    return f"The most frequent error is {name} ({count}){example}.{_worst_corpus(metrics)}"


def _example(kind: str, trials: Sequence[TrialResult]) -> str:
    """Return the most frequent example of a kind of word error, after a comma."""
    pairs: Counter[tuple[str | None, str | None]] = Counter()
    for trial in trials:
        if trial.reference and trial.text is not None:
            pairs.update(align(trial.reference.split(), trial.text.split()))
    has = {"substitutions": (True, True), "deletions": (True, False), "insertions": (False, True)}
    shown = [
        (true, decoded, n)
        for (true, decoded), n in pairs.most_common()
        if true != decoded and (true is not None, decoded is not None) == has[kind]
    ]
    if not shown:
        return ""
    true, decoded, n = shown[0]
    words = f"“{true}” decoded as “{decoded}”" if true and decoded else f"“{true or decoded}”"
    return f", most often {words} ({n} times)" if n > 1 else f", for example {words}"


def _worst_corpus(metrics: Metrics) -> str:
    """Return the corpus whose interval lies above the rate of all, the worst of several."""
    if metrics.wer is None or len(metrics.per_corpus) < 2:
        return ""
    # By the interval: of several corpora, one always is the worst by chance.
    worse = {
        name: rates.wer
        for name, rates in metrics.per_corpus.items()
        if rates.wer is not None and rates.wer_ci95 and rates.wer_ci95[0] > metrics.wer
    }
    if not worse:
        return ""
    return f" Errors are more frequent in the corpus {max(worse, key=lambda name: worse[name])}."


def _worst_token(confused: Confusion | None) -> str:
    if confused is None or not (errors := confused.top(1)):
        return ""
    true, decoded, n, share = errors[0]
    names = [_named(symbol, confused.inventory) for symbol in (true, decoded) if symbol is not None]
    times = _count(n, "time")
    if true is None:
        return f"{names[0]} is added ({times})"
    of_all = f"{times}, {100 * share:.0f} % of its occurrences"
    if decoded is None:
        return f"{names[0]} is missing ({of_all})"
    return f"{names[0]} is decoded as {names[1]} ({of_all})"


def _count(n: int, name: str) -> str:
    return f"{n:,} {name}{'' if n == 1 else 's'}"


def _named(symbol: str, inventory: Inventory) -> str:
    if symbol == inventory.boundary:
        return "the boundary between words"
    if symbol == inventory.silence:
        return "the silence after a word"
    return f"the {inventory.unit} {symbol}"


@dataclass(frozen=True)
class Third:
    """The first or the last third of the days: number of days, rate and interval."""

    n_days: int
    rate: float
    interval: tuple[float, float]


def over_days(
    trials: Sequence[TrialResult],
    positions: Mapping[str, float],
    inventory: Inventory = RELEASE,
) -> str:
    """Return whether the errors change over the days, as `DAYS_RULE` says.

    Where there are sentences of 50 words and others, those of the larger number are compared: the
    public data begin with 50 words, and the first open sentences would look like a fall.
    """
    name, comparable = _largest_vocabulary(trials)
    sessions = sorted({trial.session for trial in comparable}, key=lambda one: positions[one])
    if len(sessions) < 2:
        return (
            "All labelled trials are of one recording day: a change over the days cannot be seen."
        )
    if len(sessions) < MIN_DAYS:
        return (
            f"{len(sessions)} recording days are too few to tell whether it gets better or worse."
        )
    n_days = len(sessions) // 3
    has_words = any(trial.text is not None and trial.reference for trial in comparable)
    thirds = [
        _third([trial for trial in comparable if trial.session in days], len(days), has_words)
        for days in (sessions[:n_days], sessions[-n_days:])
    ]
    if thirds[0] is None or thirds[1] is None:
        return (
            "There are too few trials to tell whether it gets better or worse over the"
            f" {len(sessions)} days."
        )
    rate = "word error rate" if has_words else long_name(inventory)
    if name is not None:
        rate += f" ({name})"
    return compared(thirds[0], thirds[1], rate)


def _largest_vocabulary(
    trials: Sequence[TrialResult],
) -> tuple[str | None, list[TrialResult]]:
    """Return the labelled trials of the most frequent vocabulary; its name where there are more."""
    labelled = [trial for trial in trials if trial.reference or trial.phonemes]
    kinds = Counter(vocabulary(trial.corpus) for trial in labelled)
    if len(kinds) < 2:
        return None, labelled
    name = kinds.most_common(1)[0][0]
    return name, [trial for trial in labelled if vocabulary(trial.corpus) == name]


def _third(trials: Sequence[TrialResult], n_days: int, has_words: bool) -> Third | None:
    measured = rates(trials)
    rate, interval = (
        (measured.wer, measured.wer_ci95) if has_words else (measured.per, measured.per_ci95)
    )
    if len(trials) < MIN_TRIALS or rate is None or interval is None:
        return None
    return Third(n_days, rate, interval)


def compared(first: Third, last: Third, rate: str, higher_is_better: bool = False) -> str:
    """Return the judgement on two thirds of the days: better, worse, or no clear change.

    Args:
        first: The first third.
        last: The last third.
        rate: Name of the rate, without an article.
        higher_is_better: True for a share of right sentences, False for an error rate.
    """
    falls = last.interval[1] < first.interval[0]
    rises = last.interval[0] > first.interval[1]
    before, after = (f"{100 * third.rate:.1f} %" for third in (first, last))
    of = (
        f"on the first {first.n_days} days" if first.n_days > 1 else "on the first day",
        f"on the last {last.n_days}" if last.n_days > 1 else "on the last",
    )
    if not falls and not rises:
        return (
            f"Over the days there is no clear change: the {rate} is {before} {of[0]} and"
            f" {after} {of[1]}."
        )
    better = "better" if rises == higher_is_better else "worse"
    verb = "rises" if rises else "falls"
    change = f"the {rate} {verb} from {before} {of[0]} to {after} {of[1]}"
    return f"It gets {better} over the days: {change}."
