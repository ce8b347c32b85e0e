"""Decoded words as they are shown: with capitals and marks, and with no other word.

A word here is one of a decoded text: in small letters, without punctuation.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple, Protocol

MARKS = ("", ",", ".", "?", "!")
"""Marks after a word; the first is none."""
ENDS = (".", "?", "!")


class Shown(NamedTuple):
    """A word as it is shown.

    Attributes:
        spelling: The word with its capitals.
        mark: One of `MARKS`.
    """

    spelling: str
    mark: str


class Caser(Protocol):
    """Gives decoded texts the capitals and marks that people read and hear them with."""

    @property
    def language(self) -> str:
        """Name of the language whose texts it reads."""

    def show(self, texts: Sequence[str], names: Mapping[str, str] = {}) -> list[str]:
        """Return the texts as they are shown.

        Only capitals and marks differ: without marks, and in small letters, each has the words
        that it had.

        Args:
            texts: Decoded texts: normalised words with blanks between them.
            names: Spellings of words, such as `avni: Avni`, which go before its own.
        """


class NoCasing:
    """Shows decoded texts as they are; for a language that no caser is there for."""

    def __init__(self, language: str) -> None:
        self.language = language

    def show(self, texts: Sequence[str], names: Mapping[str, str] = {}) -> list[str]:
        """See `Caser`."""
        return [
            " ".join(named(word, names) or word for word in text.split()) if names else text
            for text in texts
        ]


def joined(shown: Sequence[Shown], opening: Mapping[str, str] = {}) -> str:
    """Return the text of shown words.

    Args:
        shown: The words.
        opening: Marks before a sentence by the one after it, as Spanish has them.
    """
    pieces = [f"{spelling}{mark}" for spelling, mark in shown]
    first = 0
    for place, (_, mark) in enumerate(shown):
        if mark in ENDS:
            pieces[first] = opening.get(mark, "") + pieces[first]
            first = place + 1
    return " ".join(pieces)


def named(word: str, names: Mapping[str, str]) -> str | None:
    """Return the spelling of a word, also as a possessive, among those of names."""
    if word in names:
        return names[word]
    for ending in ("'s", "'"):
        stem = word.removesuffix(ending)
        if stem != word and stem in names:
            return names[stem] + ending
    return None


def capital(word: str) -> str:
    """Return a word with its first letter as a capital, unless it has capitals.

    A word that starts with an apostrophe gets the capital after it. Letters whose capital is
    several letters, or does not lead back, stay: `ß`.
    """
    if word != word.lower():
        return word
    for place, letter in enumerate(word):
        if letter.isalpha():
            return _checked(f"{word[:place]}{letter.upper()}{word[place + 1 :]}", word)
    return word


def upper(word: str) -> str:
    """Return a word in capitals; letters whose capital does not lead back stay."""
    capitals = "".join(_checked(letter.upper(), letter) for letter in word)
    return _checked(capitals, word)


def _checked(spelling: str, word: str) -> str:
    """Return a spelling, or the word where small letters do not lead back from it."""
    return spelling if spelling.lower() == word and len(spelling) == len(word) else word


def same_word(text: str, word: str) -> tuple[int, int] | None:
    """Return the place in a text at which a word stands with any capitals: its first and last."""
    at = text.lower().find(word) if len(text.lower()) == len(text) else -1
    return None if at < 0 else (at, at + len(word))


def is_spelling(spelling: str, word: str) -> bool:
    """Tell whether a spelling is the word with other capitals, and nothing else."""
    return spelling.lower() == word and not set(spelling) & set(MARKS[1:])
