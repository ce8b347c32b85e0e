"""Labels compared with the pronunciations of their sentences.

They differ for good reasons: a word has several pronunciations. In the published labels of T15 no
trial differs in more than 8 % of its tokens from the dictionary, in those of T12 none in more than
24 %; together they differ in 0.2 % and 0.3 %. Labels of another sentence differ in 70 to 100 %.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from cortext.data.checks import Problem
from cortext.data.conventions import Conventions
from cortext.data.trial import Trial
from cortext.errors import TextError
from cortext.text.inventory import PUBLISHED, Inventory
from cortext.text.metrics import edit_counts
from cortext.text.pronunciation import to_tokens

if TYPE_CHECKING:
    from cortext.data.packed_dataset import PackedDataset

WRONG = 0.5
"""Share of differing tokens from which a label is none of its sentence."""
MANY = 0.15
"""Share of differing tokens, over all trials, from which labels follow another rule."""
_EXPLAINED = 0.1
"""Share of tokens that may still differ under a likely cause."""
_FEWEST = 10
"""Times that a token occurs, from which it may be called exchanged."""
_TRIED = 50
"""Trials on which causes are tried."""
SAMPLED = 20
"""Trials of each session of a split that `label_notes` compares."""
_NAMED = 5
"""Trials that a message names."""

Ids = np.ndarray
"""Tokens of a label, int64 [U]."""


@dataclass(frozen=True)
class _Labelled:
    """A label beside the tokens that its sentence has."""

    file: str
    name: str
    found_U: Ids
    expected_U: Ids

    @property
    def differs(self) -> float:
        return _difference(self.found_U, self.expected_U)


@dataclass
class LabelSentences:
    """Comparison of the labels of a data set with their sentences, trial by trial.

    Sentences that cannot be pronounced, because a language or an inventory of one's own needs a
    lexicon, are not compared.
    """

    conventions: Conventions
    _trials: list[_Labelled] = field(default_factory=list)
    _known: dict[str, Ids | None] = field(default_factory=dict)

    def add(self, trial: Trial, file: object) -> None:
        """Take a trial; those of a file come in the order of the file."""
        self.compare(trial.sentence, trial.phoneme_ids, trial.name, file)

    def compare(self, sentence: str | None, ids_U: Ids | None, name: str, file: object) -> None:
        """Take the sentence and the label of a trial, as `add` does; None for what it lacks."""
        if sentence is None or ids_U is None:
            return
        if sentence not in self._known:
            self._known[sentence] = self._expected(sentence)
        expected_U = self._known[sentence]
        if expected_U is not None:
            self._trials.append(_Labelled(str(file), name, ids_U, expected_U))

    def _expected(self, sentence: str) -> Ids | None:
        inventory = self.conventions.inventory
        try:
            return inventory.ids(to_tokens(sentence, inventory, self.conventions.language))
        except TextError:
            return None

    def result(self) -> tuple[float | None, list[Problem]]:
        """Return the share of tokens that differ, or None, and at most one problem."""
        if not self._trials:
            return None, []
        rates = np.array([each.differs for each in self._trials])
        longest = np.array([max(len(t.found_U), len(t.expected_U)) for t in self._trials])
        rate = float(rates @ longest / longest.sum())
        wrong = np.flatnonzero(rates > WRONG)
        if not wrong.size and rate < MANY:
            return rate, self._exchanged()
        if rate >= MANY and not wrong.size:
            wrong = np.flatnonzero(rates > _EXPLAINED)
        worst = wrong[np.argsort(-rates[wrong], kind="stable")]
        return rate, [self._problem(worst.tolist(), rates)]

    def _exchanged(self) -> list[Problem]:
        """Return at most one problem: tokens whose numbers are exchanged in labels that else fit.

        One-way changes are no problem: dialects have them.
        """
        moved = {
            token: usual
            for token, counts in _counts(self._trials).items()
            if (usual := max(counts, key=lambda one: counts[one])) != token
            and sum(counts.values()) >= _FEWEST
            and counts[usual] >= (1 - _EXPLAINED) * sum(counts.values())
        }
        if not moved or moved.keys() != set(moved.values()):
            return []
        symbols = self.conventions.inventory.symbols
        named = ", ".join(f"{symbols[a]} for {symbols[b]}" for a, b in sorted(moved.items()))
        message = (
            f"labels exchange {self.conventions.inventory.unit}s throughout ({named}): they are"
            " numbered in another order than the data's inventory"
        )
        return [Problem(self._trials[0].file, None, "seq_class_ids", message)]

    def _problem(self, worst: Sequence[int], rates: np.ndarray) -> Problem:
        named = ", ".join(f"{self._trials[i].name} ({rates[i]:.0%})" for i in worst[:_NAMED])
        more = f" and {len(worst) - _NAMED:,} more" if len(worst) > _NAMED else ""
        unit = self.conventions.inventory.unit
        message = (
            f"labels of {len(worst):,} of {len(rates):,} trials do not fit their sentences"
            f" ({unit}s that differ from the usual pronunciation: {named}{more});"
            f" {self._cause(worst) or 'compare the labels with the sentences'}"
        )
        return Problem(self._trials[worst[0]].file, None, "seq_class_ids", message)

    def _cause(self, worst: Sequence[int]) -> str | None:
        """Return the likely cause of labels that do not fit, and what to do."""
        inventory = self.conventions.inventory
        tried = [self._trials[i] for i in sorted(worst)[:_TRIED]]
        for cause, change in _rules(inventory):
            if _fit([change(each.found_U, each.expected_U) for each in tried]):
                return cause
        for step, neighbour in ((1, "next"), (-1, "previous")):
            near = [(self._trials[i].found_U, self._neighbour(i, step)) for i in sorted(worst)]
            if _fit([(found_U, other_U) for found_U, other_U in near if other_U is not None]):
                return f"each label is that of the {neighbour} trial's sentence: shift them"
        if _renumbered(tried):
            return (
                "each number stands for another token throughout: the labels are numbered in"
                " another order than the data's inventory"
            )
        return None

    def _neighbour(self, i: int, step: int) -> Ids | None:
        """Return the tokens of the next or previous sentence of the same file."""
        if not 0 <= i + step < len(self._trials):
            return None
        other = self._trials[i + step]
        return other.expected_U if other.file == self._trials[i].file else None


def label_notes(data: PackedDataset) -> list[str]:
    """Return a line where labels of packed data do not fit their sentences; an empty list else.

    Only the first trials of each session are compared; `cortext inspect` compares all.
    """
    labels = LabelSentences(data.conventions)
    for name in data.splits:
        split = data.split(name)
        for day in np.unique(split.day_N):
            for i in np.flatnonzero(split.day_N == day)[:SAMPLED].tolist():
                trial = f"{split.session(i)}/block {split.block_N[i]}/trial {split.trial_N[i]}"
                labels.compare(split.sentence(i), split.labels(i), trial, f"{name} {day}")
    return [f"{each.message} (cortext inspect compares all)" for each in labels.result()[1]]


def _renumbered(trials: Sequence[_Labelled]) -> bool:
    """Return whether each number of the labels stands for one token, though for another one."""
    pairs = _counts(trials)
    total = sum(sum(counts.values()) for counts in pairs.values())
    usual = {token: max(counts, key=lambda one: counts[one]) for token, counts in pairs.items()}
    if not usual or len(set(usual.values())) < len(usual) or total < 5 * len(usual):
        return False
    return sum(pairs[token][usual[token]] for token in pairs) >= (1 - _EXPLAINED) * total


def _counts(trials: Sequence[_Labelled]) -> dict[int, Counter[int]]:
    """Return how often each number of the labels stands where each token is expected.

    Only trials whose label is as long as their sentence's tell.
    """
    pairs: dict[int, Counter[int]] = {}
    for trial in trials:
        if len(trial.found_U) == len(trial.expected_U):
            for token, expected in zip(
                trial.found_U.tolist(), trial.expected_U.tolist(), strict=True
            ):
                pairs.setdefault(token, Counter())[expected] += 1
    return pairs


Change = Callable[[Ids, Ids], tuple[Ids, Ids]]
"""A function of a label and its sentence's tokens; under a likely cause its results agree."""


def _rules(inventory: Inventory) -> list[tuple[str, Change]]:
    """Return likely causes with the changes that would put labels right."""
    rules: list[tuple[str, Change]] = [
        (
            "every label is 1 less than the number of the sentence's token, as if they were counted"
            " from 0 without the blank: add 1",
            lambda found_U, expected_U: (found_U + 1, expected_U),
        ),
    ]
    if (separator := inventory.separator) is not None:
        number = inventory.index[separator]
        rules.append(
            (
                f"the labels lack {separator} between words: add it",
                lambda found_U, expected_U: (found_U, expected_U[expected_U != number]),
            )
        )
    for other in PUBLISHED if inventory.is_published else ():
        if other.symbols != inventory.symbols:
            numbers_V = np.array([inventory.index[symbol] for symbol in other.symbols])
            rules.append(
                (
                    f"the labels are numbered in the order {other.name!r}: number them anew",
                    partial(_numbered_anew, numbers_V),
                )
            )
    return rules


def _numbered_anew(numbers_V: Ids, found_U: Ids, expected_U: Ids) -> tuple[Ids, Ids]:
    return numbers_V[found_U], expected_U


def _fit(pairs: Sequence[tuple[Ids, Ids]]) -> bool:
    """Return whether labels and the tokens of sentences agree, all but some."""
    return bool(pairs) and float(np.mean([_difference(*pair) for pair in pairs])) <= _EXPLAINED


def _difference(found_U: Ids, expected_U: Ids) -> float:
    """Return the edits between two labels by the length of the longer one."""
    if np.array_equal(found_U, expected_U):
        return 0.0
    longer = max(len(found_U), len(expected_U), 1)
    return edit_counts(expected_U, found_U).errors / longer
