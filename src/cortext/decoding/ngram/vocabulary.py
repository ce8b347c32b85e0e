"""Vocabularies of n-gram models.

Special words, which words are kept, letters for spelling, symbols of an open vocabulary.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from string import ascii_lowercase

import numpy as np

from cortext.errors import LanguageModelError, TextError
from cortext.text.files import read_text
from cortext.text.inventory import Inventory
from cortext.text.language import EN, Language
from cortext.text.lexicon import Lexicon, Pronunciation
from cortext.text.pronunciation import pronounce, pronouncer, spell

UNK = "<unk>"
BOS = "<s>"
EOS = "</s>"
SPECIAL = (UNK, BOS, EOS)
UNK_ID, BOS_ID, EOS_ID = range(3)
UNITS = ("word", "character")
"""Words of an n-gram: those of a lexicon, or the tokens of an open vocabulary."""
MAX_ORDER = 6
_MOST_BYTES = 256 << 20
"""Most bytes of a file of words."""
LN10 = math.log(10.0)
"""Natural logarithm of 10: files hold log10, everything else natural logs."""


def read_vocabulary(given: str, language: Language = EN) -> int | list[str]:
    """Return a number of words, or the words of a file, separated by blanks or lines."""
    if given.isdecimal() and len(given) <= 18:
        return int(given)
    fix = "give a number or a UTF-8 file of words"
    try:
        words = read_text(Path(given), _MOST_BYTES).split()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise LanguageModelError(
            f"cannot read the vocabulary: {reason}", where=given or "''", fix=fix
        ) from None
    return _checked(words, language, given)


def choose(
    words: Sequence[str],
    counts: np.ndarray,
    vocabulary: int | Iterable[str] | None,
    language: Language = EN,
) -> list[str]:
    """Return the words to keep, sorted.

    They are all words (None), a number of the most frequent ones (of equals the first in the
    alphabet), or the given words, which must be normalised words of the language.

    Args:
        words: Words of the texts by number, the special ones first.
        counts: Number of times that each occurs, int64.
        vocabulary: The choice.
        language: Language of the words.
    """
    own_words = words[len(SPECIAL) :]
    if vocabulary is None:
        return sorted(own_words)
    if isinstance(vocabulary, int):
        if vocabulary < 1:
            raise LanguageModelError(f"a vocabulary of {vocabulary} words cannot be")
        frequency = counts[len(SPECIAL) :].tolist()
        ranked = sorted(
            zip(frequency, own_words, strict=True), key=lambda pair: (-pair[0], pair[1])
        )
        return sorted(word for _, word in ranked[:vocabulary])
    return sorted(set(_checked(list(vocabulary), language)))


def _checked(words: list[str], language: Language, where: str | None = None) -> list[str]:
    for word in words:
        if not is_word(word, language):
            fix = (
                "write it as cortext.text.normalize does: small letters a-z, hyphens, apostrophes"
                if language.is_benchmark
                else f"write it as language {language.name!r} does, {language.normalize(word)!r}"
            )
            raise LanguageModelError(
                f"{word!r} in the vocabulary is not a normalised word", where=where, fix=fix
            )
    if not words:
        raise LanguageModelError("the vocabulary is empty", where=where)
    return words


def is_word(text: str, language: Language) -> bool:
    """Return whether a text is one word, as the language normalises it."""
    return language.normalize(text).split() == [text] and bool(text.strip("-'"))


def renumbered(words: Sequence[str], number: Mapping[str, int]) -> np.ndarray:
    """Return each word's number in the model, int64; words that it lacks get higher numbers."""
    lacking = iter(range(len(number), len(number) + len(words)))
    return np.array([number[word] if word in number else next(lacking) for word in words], np.int64)


_NAMES = {"'": "apostrophe", "-": "hyphen"}
LETTERS = (*ascii_lowercase, *sorted(_NAMES.values()))
"""The words of a spelling model."""


def spelt(sentence: str) -> Iterator[str]:
    """Yield each word of a normalised sentence as a sentence of letters.

    For a model of words that are spelt letter by letter: the beginning of a word is `<s>`, its end
    `</s>`, so that the end of the utterance ends the word and no letter has to stand for the blank.
    Apostrophes and hyphens are spoken by their names, which are words too: `o'neil` is the sentence
    `o apostrophe n e i l`.
    """
    for word in sentence.split():
        if word.strip("-'"):
            yield " ".join([_NAMES.get(letter, letter) for letter in word])


def letter_lexicon() -> Lexicon:
    """Return the names of the letters as they are spoken."""
    names = {letter: [spell(letter)] for letter in ascii_lowercase}
    return Lexicon(names | {name: pronounce(name) for name in _NAMES.values()})


def symbol_lexicon(inventory: Inventory) -> Lexicon:
    """Return the lexicon of an open vocabulary: each token but the blank stands for itself."""
    spoken = inventory.without_separator
    return Lexicon({symbol: [(symbol,)] for symbol in spoken.spoken}, spoken)


class SpeltTokens:
    """Sentences as the tokens of an open vocabulary.

    Attributes:
        without: Words that cannot be spelt, with the number of their sentences, which are left out.
    """

    def __init__(self, inventory: Inventory, language: Language) -> None:
        self._inventory = inventory
        self._spelt = pronouncer(inventory, language)
        self.without: Counter[str] = Counter()

    def __call__(self, sentence: str) -> Iterator[str]:
        """Yield the tokens of a normalised sentence, without the silence after its last word."""
        words = [word for word in sentence.split() if word.strip("-'")]
        spelt = [self._found(word) for word in words]
        if all(spelt):
            tokens = self._inventory.closed(spelt)
            last = -1 if tokens and tokens[-1] == self._inventory.silence else None
            yield " ".join(tokens[:last])

    def _found(self, word: str) -> Pronunciation:
        try:
            return self._spelt(word)[0]
        except TextError:
            self.without[word] += 1
            return ()
