"""Cased, punctuated text as words with spellings and marks, to learn from and to compare with.

A line holds one sentence or several. It is left out where its words, taken one by one, are not
those that the language's normalisation has: marks without blanks around them, say.
"""

from __future__ import annotations

import unicodedata
import zlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cortext.decoding.ngram.corpus import text_lines
from cortext.errors import TextError
from cortext.text.language import Language
from cortext_live.casing.writing import ENDS, Shown, same_word

LEAST_SENTENCES = 500
"""Fewest sentences that a model is trained on."""
LEAST_CAPITALS = 0.5
"""Smallest share of sentences that begin with a capital."""
MOST_WORDS = 100
"""Words of a line; longer ones are left out."""
PARTS = 20
"""One part of so many is held out, and another one decides which weights are kept."""
_STRAIGHT = str.maketrans("‘’‛ʼ′´`＇‐‑‒−－", "''''''''-----")
_MARK_OF = {
    **{mark: mark for mark in (",", ".", "?", "!")},
    ";": ",",
    ":": ",",
    "…": ".",
    "،": ",",
    "؟": "?",
}
_CLOSING = "\"'”’»)]}*_"


@dataclass(frozen=True)
class WrittenSentence:
    """A line of text.

    Attributes:
        words: Words as decoded text has them.
        shown: The words as the text shows them.
        ends: Whether the text has a mark after the last word that ends a sentence.
    """

    words: tuple[str, ...]
    shown: tuple[Shown, ...]
    ends: bool


def read_sentences(
    paths: Iterable[Path],
    language: Language,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> list[WrittenSentence]:
    """Return the different sentences of texts, plain or .gz, in their order.

    Args:
        paths: The files.
        language: Language of the texts.
        progress: Called with bytes read and in all.

    Raises:
        LanguageModelError: A text cannot be read.
        TextError: There are too few sentences, or they have no capitals.
    """
    paths = list(paths)
    if not language.lower_case or language.unit == "character":
        raise TextError(
            f"decoded text of language {language.name!r} needs no capitals or has them already"
        )
    total = sum(path.stat().st_size for path in paths if path.is_file())
    done = 0
    different: dict[str, WrittenSentence] = {}
    n_lines = 0
    for path in paths:
        for line in text_lines(path, lambda here: progress(done + here, total)):  # noqa: B023
            n_lines += bool(line.strip())
            sentence = parsed(line, language)
            if sentence is not None:
                different.setdefault(" ".join(sentence.words), sentence)
        done += path.stat().st_size if path.is_file() else 0
    sentences = list(different.values())
    _check(sentences, n_lines, paths)
    return sentences


def _check(sentences: Sequence[WrittenSentence], n_lines: int, paths: Sequence[Path]) -> None:
    where = ", ".join(map(str, paths[:3]))
    if len(sentences) < LEAST_SENTENCES:
        problem = f"{len(sentences):,} different sentences of {n_lines:,} lines can be used"
        fix = f"give text with at least {LEAST_SENTENCES}, a sentence a line"
        raise TextError(problem, where=where, fix=fix)
    capitals = sum(_begins_with_capital(sentence) for sentence in sentences) / len(sentences)
    if capitals < LEAST_CAPITALS:
        problem = f"{capitals:.0%} of the sentences begin with a capital"
        raise TextError(problem, where=where, fix="give text as people write it, with capitals")
    ends = sum(sentence.ends for sentence in sentences) / len(sentences)
    if ends < LEAST_CAPITALS:
        problem = f"{ends:.0%} of the sentences end with a full stop or another mark"
        raise TextError(problem, where=where, fix="give text as people write it, with its marks")


def _begins_with_capital(sentence: WrittenSentence) -> bool:
    letters = [letter for letter in sentence.shown[0].spelling if letter.isalpha()]
    return bool(letters) and letters[0] != letters[0].lower()


def parsed(line: str, language: Language) -> WrittenSentence | None:
    """Return the sentence of a line; None where its words cannot be separated."""
    words: list[str] = []
    shown: list[Shown] = []
    plain = unicodedata.normalize("NFC", line.translate(_STRAIGHT))
    for piece in plain.split():
        word = language.normalize(piece)
        if not word.strip("'-"):
            if any(letter.isalnum() for letter in piece):
                return None  # a number, or letters that the language lacks
            if words:  # a dash or a mark by itself
                shown[-1] = shown[-1]._replace(mark=_mark(piece) or shown[-1].mark)
            continue
        spelling = _spelling(piece, word)
        if spelling is None:
            return None
        words.append(word)
        shown.append(Shown(spelling, _mark(piece)))
    text = " ".join(words)
    if not words or len(words) > MOST_WORDS or language.normalize(plain) != text:
        return None
    ends = shown[-1].mark in ENDS
    return WrittenSentence(tuple(words), tuple(shown), ends)


def _spelling(piece: str, word: str) -> str | None:
    """Return the word within a piece of text, with its capitals; None where it is not whole."""
    at = same_word(piece, word)
    if at is None:
        return None
    rest = piece[: at[0]] + piece[at[1] :]
    return None if any(letter.isalnum() for letter in rest) else piece[at[0] : at[1]]


def _mark(piece: str) -> str:
    """Return the mark at the end of a piece of text."""
    bare = piece.rstrip(_CLOSING)
    if bare.endswith(("?!", "!?")):
        return "?"
    return _MARK_OF.get(bare[-1:], "")


def part_of(sentence: WrittenSentence) -> int:
    """Return the part, 0 to `PARTS` - 1, that a sentence belongs to, whatever text it stands in."""
    return zlib.crc32(" ".join(sentence.words).encode()) % PARTS
