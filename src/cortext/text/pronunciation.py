"""Phonemes of words and sentences: by the dictionary, by endings and parts, or by a model."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import lru_cache
from itertools import chain, islice, product

from cortext.arguments import check_list, check_text
from cortext.errors import TextError
from cortext.text import g2p
from cortext.text.lexicon import Lexicon, Pronunciation
from cortext.text.normalize import normalize
from cortext.text.phonemes import SIL

_WORD = re.compile(r"[a-z'-]*[a-z][a-z'-]*")
_CONTRACTION = re.compile(r"(.*[a-z])(n't|'(?:s|ll|re|ve|d|m))")
_MAX_VARIANTS = 16
_VOICELESS = frozenset("P T K F TH".split())
_SIBILANT = frozenset("S Z SH ZH CH JH".split())


def pronounce(word: str) -> tuple[Pronunciation, ...]:
    """Return all pronunciations of one word, the most usual first; there is at least one.

    The CMU Pronouncing Dictionary decides. Words that it lacks are built from parts (`zork's`,
    `zork-like`), spelt letter by letter if they hold no vowel (`btw`), and otherwise predicted by
    `cortext.text.g2p`.

    Args:
        word: Letters, hyphens and apostrophes; case is ignored.

    Raises:
        TextError: For a word without a letter or with any other character.
    """
    check_text(word, "word")
    lower = word.lower()
    if not _WORD.fullmatch(lower):
        raise TextError(
            f"no pronunciation for {word!r}: a word is made of the letters a-z, hyphens and"
            " apostrophes",
            fix="normalize the text first (cortext.text.normalize)",
        )
    return _pronounce(lower)


def to_phonemes(sentence: str) -> list[str]:
    """Return the phonemes of a normalised sentence, each word closed by SIL.

    Words take their most usual pronunciation. Pieces without a letter (a hyphen that stands alone)
    are skipped. Raises TextError for a sentence without words.
    """
    words = [word for word in normalize(sentence).split() if _WORD.fullmatch(word)]
    if not words:
        raise TextError(f"no word in the sentence {sentence!r}; it needs at least one letter a-z")
    return [phoneme for word in words for phoneme in (*_pronounce(word)[0], SIL)]


def lexicon_for(words: Iterable[str]) -> Lexicon:
    """Make a lexicon of these words, predicted where the dictionary lacks them.

    Pieces without a letter, such as a hyphen that stands alone in normalised text, have no sound
    and are left out.

    Raises:
        TextError: For a word with other characters than letters, hyphens and apostrophes.
    """
    words = check_list(words, "words", "a list of words")
    return Lexicon(
        {word: pronounce(word) for word in words if not isinstance(word, str) or word.strip("-'")}
    )


@lru_cache(maxsize=1 << 16)
def _pronounce(word: str) -> tuple[Pronunciation, ...]:
    known = Lexicon.cmu().pronunciations(word)
    if known:
        return known
    if "-" in word:
        return _joined([part for part in word.split("-") if part.strip("'")])
    contraction = _CONTRACTION.fullmatch(word)
    if contraction:
        stem, ending = contraction.groups()
        return tuple([variant + _ending(ending, variant[-1]) for variant in _pronounce(stem)])
    # The dictionary has the second half of keep'em with the apostrophe, and of o'zork without it.
    if "'" in word:
        parts = [
            part if part in Lexicon.cmu() else part.strip("'") for part in re.split("(?=')", word)
        ]
        return _joined([part for part in parts if part])
    if not re.search("[aeiouy]", word):
        return (spell(word),)
    return (g2p.predict(word) or spell(word),)


def _joined(parts: list[str]) -> tuple[Pronunciation, ...]:
    """Return the combinations of the parts' pronunciations, the most usual of each first."""
    combined = islice(product(*[_pronounce(part) for part in parts]), _MAX_VARIANTS)
    return tuple(dict.fromkeys(tuple(chain.from_iterable(variants)) for variants in combined))


def spell(word: str) -> Pronunciation:
    """Return the names of the letters of `word`, one after another."""
    dictionary = Lexicon.cmu()
    letters = [
        ("EY",) if letter == "a" else dictionary.pronunciations(letter)[0] for letter in word
    ]
    return tuple(chain.from_iterable(letters))


def _ending(ending: str, last: str) -> Pronunciation:
    """Return the sound of a contraction or possessive after the phoneme `last`."""
    if ending == "'s":
        if last in _SIBILANT:
            return ("IH", "Z")
        return ("S",) if last in _VOICELESS else ("Z",)
    if ending == "'d":
        return ("IH", "D") if last in ("T", "D") else ("D",)
    return {
        "'ll": ("AH", "L"),
        "'re": ("ER",),
        "'ve": ("AH", "V"),
        "'m": ("M",),
        "n't": ("AH", "N", "T"),
    }[ending]
