"""Tokens of words and sentences.

English phonemes come from the dictionary, from endings and parts, or from a model; characters are
those of the words; a lexicon of one's own gives any others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain, islice, product

from cortext.arguments import check_list, check_text
from cortext.errors import TextError
from cortext.text import g2p
from cortext.text.g2p_command import run_g2p
from cortext.text.inventory import RELEASE, Inventory
from cortext.text.language import EN, Language
from cortext.text.lexicon import Lexicon, Pronunciation

_WORD = re.compile(r"[a-z'-]*[a-z][a-z'-]*")
_CONTRACTION = re.compile(r"(.*[a-z])(n't|'(?:s|ll|re|ve|d|m))")
_AFTER_MARK = re.compile(r"\s+|(?<=[,;:?!/…–—])(?=\w)")
_MAX_VARIANTS = 16
Pronouncer = Callable[[str], tuple[Pronunciation, ...]]
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
    """Return the phonemes of a normalised English sentence, each word closed by SIL.

    Words take their most usual pronunciation. Pieces without a letter (a hyphen that stands alone)
    are skipped. Raises TextError for a sentence without words.
    """
    return to_tokens(sentence)


def to_tokens(
    sentence: str,
    inventory: Inventory = RELEASE,
    language: Language = EN,
    lexicon: Lexicon | None = None,
) -> list[str]:
    """Return the symbols of a sentence, as its label has them.

    A silence closes every word, a boundary stands between two. Words take their most usual
    pronunciation; pieces without a letter are skipped.

    Args:
        sentence: The sentence, which is normalised here.
        inventory: Tokens of the label.
        language: Language of the sentence.
        lexicon: Pronunciations. Without one, English phonemes are looked up or predicted and
            characters are those of the words; other inventories need one.

    Raises:
        TextError: For a sentence without words, and words without a pronunciation, which it names.
    """
    return inventory.closed(pronounced(sentence, inventory, language, lexicon))


def pronounced(
    sentence: str,
    inventory: Inventory = RELEASE,
    language: Language = EN,
    lexicon: Lexicon | None = None,
) -> list[Pronunciation]:
    """Return the most usual pronunciation of each word of a sentence; see `to_tokens`.

    Where the inventory has punctuation marks, a word's spelling ends with the mark that follows it.
    """
    check_text(sentence, "sentence")
    find = pronouncer(inventory, language, lexicon)
    if find is pronounce:
        find = _pronounce  # words that have just been normalised need no check
    chunks = _AFTER_MARK.split(sentence) if inventory.marks else [sentence]
    pronunciations: list[Pronunciation] = []
    for chunk in chunks:
        words = [find(word)[0] for word in language.words(chunk)]
        if words and inventory.marks and (mark := _mark_after(chunk, inventory)):
            words[-1] = (*words[-1], mark)
        pronunciations += words
    if not pronunciations:
        raise TextError(f"no word in the sentence {sentence!r}; it needs at least one letter")
    return pronunciations


def _mark_after(chunk: str, inventory: Inventory) -> str | None:
    """Return the first mark after the last letter of a text, as the inventory writes it."""
    after = re.split(r"\w", chunk)[-1]
    return next((inventory.marks[sign] for sign in after if sign in inventory.marks), None)


def pronouncer(
    inventory: Inventory, language: Language = EN, lexicon: Lexicon | None = None
) -> Pronouncer:
    """Return the function that gives a normalised word's pronunciations, the most usual first.

    The function raises TextError for a word that it cannot pronounce.

    Args:
        inventory: Tokens that pronunciations consist of.
        language: Language of the words.
        lexicon: Pronunciations; None for the usual way of the inventory (`to_tokens`).

    Raises:
        TextError: For an inventory that needs a lexicon and has none.
    """
    if lexicon is not None:
        return _Listed(lexicon)
    if inventory.is_published and language.is_benchmark:
        return pronounce
    if inventory.unit == "character":
        return _SpeltWords(inventory)
    raise TextError(
        f"no pronunciations are known for inventory {inventory.name!r} in language"
        f" {language.name!r}",
        fix="give a lexicon, a g2p command or spelling",
    )


class _Listed:
    """Pronunciations of a lexicon."""

    def __init__(self, lexicon: Lexicon) -> None:
        self._lexicon = lexicon

    def __call__(self, word: str) -> tuple[Pronunciation, ...]:
        pronunciations = self._lexicon.pronunciations(word)
        if not pronunciations:
            raise TextError(f"the lexicon has no pronunciation of {word!r}", fix="add it")
        return pronunciations


class _SpeltWords:
    """Words spelt with the symbols of an inventory, of which the longest that fits comes first.

    Variants end with each punctuation mark of the inventory, which may follow any word.
    """

    def __init__(self, inventory: Inventory) -> None:
        self._inventory = inventory
        by_length = sorted(inventory.spoken, key=len, reverse=True)
        self._symbol = re.compile("|".join(map(re.escape, by_length)))

    def __call__(self, word: str) -> tuple[Pronunciation, ...]:
        symbols: list[str] = []
        at = 0
        while at < len(word):
            match = self._symbol.match(word, at)
            if match is None:
                # Hyphens join words, and few inventories have a token for them.
                if word[at] != "-" or not word.strip("-"):
                    raise TextError(
                        f"inventory {self._inventory.name!r} has no token for {word[at]!r} of"
                        f" {word!r}",
                        fix="give a lexicon, or an inventory with that token",
                    )
                at += 1
                continue
            symbols.append(match[0])
            at = match.end()
        marks = dict.fromkeys(self._inventory.marks.values())
        return (tuple(symbols), *((*symbols, mark) for mark in marks))


@dataclass
class Pronounced:
    """Pronunciations of the words of a language model.

    Attributes:
        lexicon: Words with their pronunciations.
        words: Words that have one, in the order in which they were given.
        sources: Number of words by the source of their pronunciations: `from_lexicon`, `from_g2p`,
            `spelt`, or `added` in the usual way of the inventory.
        without: Words that have none.
    """

    lexicon: Lexicon
    words: list[str] = field(default_factory=list)
    sources: dict[str, int] = field(default_factory=dict)
    without: list[str] = field(default_factory=list)


def pronounce_all(
    words: Iterable[str],
    inventory: Inventory,
    language: Language = EN,
    lexicon: Lexicon | None = None,
    *,
    command: str | None = None,
    spell: bool = False,
) -> Pronounced:
    """Find the pronunciations of words.

    Each word takes those of the first source that knows it: the lexicon, the command, and then the
    letters (`spell`) or the usual way of the inventory, where there is one (`to_tokens`).

    Args:
        words: Normalised words.
        inventory: Tokens that pronunciations consist of.
        language: Language of the words.
        lexicon: Pronunciations of one's own, with their weights.
        command: A program that knows pronunciations, see `cortext.text.g2p_command`.
        spell: Spell words with the symbols of the inventory.

    Raises:
        TextError: For a command that fails, and where nothing can pronounce any word.
    """
    result = Pronounced(Lexicon(inventory=inventory))
    usual = _usual(inventory, language, spell, needed=lexicon is None and command is None)
    given = []
    left = []
    for word in words:
        given.append(word)
        if lexicon is not None and word in lexicon:
            result.lexicon.take(word, lexicon)
        else:
            left.append(word)
    if lexicon is not None:
        result.sources["from_lexicon"] = len(result.lexicon)
    if command is not None:
        from_program = run_g2p(command, left, inventory)
        for word in from_program:
            result.lexicon.take(word, from_program)
        result.sources["from_g2p"] = len(from_program)
        left = [word for word in left if word not in from_program]
    for word in left:
        try:
            for variant in usual(word):
                result.lexicon.add(word, variant)
        except TextError:
            result.without.append(word)
    if len(result.without) < len(left):
        result.sources["spelt" if spell else "added"] = len(left) - len(result.without)
    result.words = [word for word in given if word in result.lexicon]
    return result


def _usual(inventory: Inventory, language: Language, spell: bool, needed: bool) -> Pronouncer:
    """Return the last source of pronunciations; raise TextError where there is none but must be."""
    if spell:
        return _SpeltWords(inventory)
    try:
        return pronouncer(inventory, language)
    except TextError:
        if needed:
            raise
        return _Listed(Lexicon(inventory=inventory))


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
