"""Errors of restored capitals and marks: counts over sentences of a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cortext_live.casing.texts import WrittenSentence
from cortext_live.casing.writing import MARKS, Shown


@dataclass
class CasingScores:
    """Counts of words and marks.

    Attributes:
        words: Number of words.
        cased: Words with the capitals of the text.
        inner: Words after the first of a sentence that the text shows with a capital, `I` and its
            contractions left out.
        inner_cased: Those of them with the capitals of the text.
        marks: For each mark: right ones, all that were given, and all of the text.
        sentences: Number of sentences whose text ends with a mark.
        right: Those that are right to the letter.
    """

    words: int = 0
    cased: int = 0
    inner: int = 0
    inner_cased: int = 0
    marks: dict[str, list[int]] = field(
        default_factory=lambda: {mark: [0, 0, 0] for mark in MARKS[1:]}
    )
    sentences: int = 0
    right: int = 0

    def add(self, sentence: WrittenSentence, restored: Sequence[Shown]) -> None:
        """Count a sentence.

        The mark after its last word does not count where the text has none there.
        """
        whole = sentence.ends
        for place, (meant, given) in enumerate(zip(sentence.shown, restored, strict=True)):
            same = meant.spelling == given.spelling
            self.words += 1
            self.cased += same
            if place and meant.spelling[0] != "I" and meant.spelling != sentence.words[place]:
                self.inner += 1
                self.inner_cased += same
            counts_mark = sentence.ends or place < len(restored) - 1
            whole = whole and same and meant.mark == given.mark
            if counts_mark:
                for at, mark in ((1, given.mark), (2, meant.mark)):
                    if mark:
                        self.marks[mark][at] += 1
                if meant.mark == given.mark and meant.mark:
                    self.marks[meant.mark][0] += 1
        self.sentences += sentence.ends
        self.right += whole

    def f1(self, mark: str) -> float | None:
        """Return the harmonic mean of precision and recall of a mark; None where it is nowhere."""
        right, given, meant = self.marks[mark]
        return 2 * right / (given + meant) if given + meant else None

    def to_json(self) -> dict[str, object]:
        """Return the figures, shares from 0 to 1, and their counts."""
        return {
            "sentences": self.sentences,
            "sentences_right": _share(self.right, self.sentences),
            "words": self.words,
            "case_accuracy": _share(self.cased, self.words),
            "inner_capitals": self.inner,
            "inner_capitals_right": _share(self.inner_cased, self.inner),
            "f1": {mark: self.f1(mark) for mark in MARKS[1:]},
            "marks": {mark: self.marks[mark][2] for mark in MARKS[1:]},
        }


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None
