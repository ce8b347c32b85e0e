"""Which words a model keeps, and their numbers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np

from cortext.decoding.ngram.corpus import Corpus
from cortext.decoding.ngram.special import SPECIAL
from cortext.errors import LanguageModelError
from cortext.text.normalize import normalize


def read_vocabulary(given: str) -> int | list[str]:
    """A number of words, or the words of a file, separated by blanks or lines."""
    if given.isdecimal() and len(given) <= 18:
        return int(given)
    fix = "give a number or a UTF-8 file of words"
    try:
        words = Path(given).read_text(encoding="utf-8-sig").split()
    except (OSError, UnicodeDecodeError) as error:
        what = getattr(error, "strerror", None) or error
        raise LanguageModelError(
            f"cannot read the vocabulary: {what}", where=given or "''", fix=fix
        ) from None
    return _checked(words, given)


def choose(corpus: Corpus, vocabulary: int | Iterable[str] | None) -> list[str]:
    """The words to keep, sorted.

    All, the most frequent (of equals the first in the alphabet), or those given.
    """
    found = corpus.words[len(SPECIAL) :]
    if vocabulary is None:
        return sorted(found)
    if isinstance(vocabulary, int):
        if vocabulary < 1:
            raise LanguageModelError(f"a vocabulary of {vocabulary} words cannot be")
        frequency = corpus.counts[len(SPECIAL) :].tolist()
        ranked = sorted(zip(frequency, found, strict=True), key=lambda pair: (-pair[0], pair[1]))
        return sorted(word for _, word in ranked[:vocabulary])
    return sorted(set(_checked(list(vocabulary))))


def _checked(words: list[str], where: str | None = None) -> list[str]:
    for word in words:
        if normalize(word) != word or " " in word or not word.strip("-'"):
            fix = "write it as cortext.text.normalize does: small letters a-z, hyphens, apostrophes"
            raise LanguageModelError(
                f"{word!r} in the vocabulary is not a normalised word", where=where, fix=fix
            )
    if not words:
        raise LanguageModelError("the vocabulary is empty", where=where)
    return words


def renumbered(words: Sequence[str], number: Mapping[str, int]) -> np.ndarray:
    """The number in the model of each word, int64; words that it lacks follow after its own."""
    lacking = iter(range(len(number), len(number) + len(words)))
    return np.array([number[word] if word in number else next(lacking) for word in words], np.int64)
