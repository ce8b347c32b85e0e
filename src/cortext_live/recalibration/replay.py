"""Labelled sentences, and those that a learner keeps for replay.

Shapes: T bins, C features, U labels.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable
from dataclasses import dataclass

import numpy as np

from cortext.data.packed import PackedSplit


@dataclass(frozen=True, eq=False)
class LabelledSentence:
    """A sentence as it was recorded, and its label.

    Attributes:
        features_TC: float [T, C], features as they were recorded.
        session: Its recording day.
        labels_U: int64 [U], its tokens: decoded, corrected or known. `ANY` stands for unknown ones.
        entry: Second of the first entry of its usage log, and its number there; block and trial of
            a recording.
        corrected: A person gave the label.
    """

    features_TC: np.ndarray
    session: str
    labels_U: np.ndarray
    entry: tuple[int, int] | None = None
    corrected: bool = False


def labelled_sentence(split: PackedSplit, i: int, labels_U: np.ndarray) -> LabelledSentence:
    """Return trial `i` of a split with a label, int64 [U]."""
    features_TC = np.asarray(split.features(i), np.float32)
    entry = int(split.block_N[i]), int(split.trial_N[i])
    return LabelledSentence(features_TC, split.session(i), labels_U, entry=entry)


class ReplayMemory:
    """Sentences that are replayed beside new ones: of each kind the latest.

    Args:
        most: Most sentences: half of labelled recordings, half that were decoded; as many corrected
            ones besides.

    Attributes:
        known: Labelled sentences of earlier days, the oldest first.
        decoded: Sentences that were learnt from as they were decoded, likewise.
        corrected: Corrected ones, likewise.
        today: Sentences of the day that learnt together last; they are replayed when it is over.
    """

    def __init__(self, most: int) -> None:
        half = most // 2
        self.known: deque[LabelledSentence] = deque(maxlen=half)
        self.decoded: deque[LabelledSentence] = deque(maxlen=most - half)
        self.corrected: deque[LabelledSentence] = deque(maxlen=most - half)
        self.today: tuple[LabelledSentence, ...] = ()

    def keep(self, sentences: Iterable[LabelledSentence]) -> None:
        """Keep sentences of use; a correction takes the place of the label before it."""
        for sentence in sentences:
            if sentence.corrected:
                self.drop(sentence.session, sentence.entry)
            (self.corrected if sentence.corrected else self.decoded).append(sentence)

    def drop(self, session: str, entry: tuple[int, int] | None) -> None:
        """Replay a sentence of use no longer.

        Args:
            session: Its recording day.
            entry: See `LabelledSentence`; nothing is dropped for None.
        """
        if entry is None:
            return
        for kept in (self.decoded, self.corrected):
            for each in [each for each in kept if (each.session, each.entry) == (session, entry)]:
                kept.remove(each)
        self.today = tuple(
            each for each in self.today if (each.session, each.entry) != (session, entry)
        )

    def end_day(self) -> None:
        """Replay the sentences that learnt together from now on."""
        self.keep(self.today)
        self.today = ()

    def take_over(self, other: ReplayMemory, learnt: Collection[tuple[int, int] | None]) -> None:
        """Keep what another learner keeps of use, as far as a model has learnt from it.

        Args:
            other: The other learner's.
            learnt: Entries (`LabelledSentence.entry`) that the model has learnt from.
        """
        kept = (*other.decoded, *other.corrected, *other.today)
        self.keep(each for each in kept if each.entry in learnt)

    def draw(self, count: int, random: np.random.Generator) -> list[LabelledSentence]:
        """Return different sentences, up to a number of them."""
        kept = [*self.known, *self.decoded, *self.corrected]
        count = min(count, len(kept))
        # No draw from nothing: numpy refuses it.
        return [kept[i] for i in random.choice(len(kept), count, replace=False)] if count else []

    def draw_halves(self, count: int, random: np.random.Generator) -> list[LabelledSentence]:
        """Return up to a number of sentences: half of use, the rest of labelled recordings."""
        of_use = [*self.corrected, *self.decoded]
        n_of_use = min(count // 2, len(of_use))
        n_known = min(count - n_of_use, len(self.known))
        return [
            *(of_use[i] for i in random.choice(len(of_use), n_of_use, replace=False)),
            *(self.known[i] for i in random.choice(len(self.known), n_known, replace=False)),
        ]

    def tokens_per_bin(self) -> float:
        """Return the median rate of labels of the labelled sentences; 0 without any."""
        rates = [len(each.labels_U) / len(each.features_TC) for each in self.known]
        return float(np.median(rates)) if rates else 0.0
