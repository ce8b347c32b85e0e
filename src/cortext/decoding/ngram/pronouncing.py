"""Pronunciations of a language model's words, from the sources that its options name."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from cortext.decoding.ngram.build_settings import BuildSettings
from cortext.decoding.ngram.vocabulary import is_word
from cortext.errors import LanguageModelError, TextError
from cortext.text.inventory import LM, Inventory
from cortext.text.language import Language
from cortext.text.lexicon import Lexicon, inventory_of
from cortext.text.pronunciation import Pronounced, pronounce_all

MOST_NAMED = 10_000
"""Most words without a pronunciation that `lm.json` names."""
_SHOWN = 3
_MANY = 1000
_FEW = 0.05
"""Most words of a lexicon of `_MANY` or more that the language may lack; fewer must have none."""


def inventory_for(lexicon: Path | Lexicon | None, language: Language) -> Inventory:
    """Return the tokens of a language model for which none were named.

    They are those of the lexicon; and the published ones without a lexicon, or with one that adds
    English words in their phonemes.

    Raises LanguageModelError for a lexicon that cannot be read.
    """
    if lexicon is None:
        return LM
    try:
        inventory = lexicon.inventory if isinstance(lexicon, Lexicon) else inventory_of(lexicon)
    except TextError as error:
        raise LanguageModelError(error.what, where=error.where, fix=error.fix) from None
    adds_english = language.is_benchmark and set(inventory.symbols) <= set(LM.symbols)
    return LM if adds_english else inventory


def own_lexicon(options: BuildSettings) -> Lexicon | None:
    """Return the lexicon that the options name, checked; None where they name none.

    Raises LanguageModelError for a file that cannot be read, for unknown tokens, and for words that
    are none of the language.
    """
    given = options.lexicon
    where = given if isinstance(given, Path) else None
    if given is None:
        return None
    if isinstance(given, Lexicon):
        lexicon = given
        if differs := options.inventory.difference(given.inventory):
            raise LanguageModelError(
                f"the inventory and that of the lexicon differ: in the inventory {differs}",
                fix="make the lexicon with this inventory",
            )
    else:
        try:
            lexicon = Lexicon.read(
                given, options.inventory, closed=False, language=options.language
            )
        except TextError as error:
            raise LanguageModelError(error.what, where=error.where, fix=error.fix) from None
    language = options.language
    foreign = [word for word in lexicon if not is_word(word, language)]
    if foreign and len(lexicon) >= _MANY and len(foreign) <= _FEW * len(lexicon):
        # Lexicons of tools have some (a.m., 3d). No normalised text has them.
        lexicon.drop(foreign)
        lexicon.format += f"; {_named(foreign)} that {language.name!r} cannot write left out"
    elif foreign:
        shown = ", ".join(f"{word!r}" for word in foreign[:_SHOWN])
        more = f" and {len(foreign) - _SHOWN:,} more" if len(foreign) > _SHOWN else ""
        own = " ".join(language.words(foreign[0]))
        raise LanguageModelError(
            f"{shown}{more} of the lexicon are no normalised words of language {language.name!r}",
            where=where,
            fix=f"{f'write {foreign[0]!r} as {own!r}' if own else 'remove it'}, or choose its"
            " language",
        )
    return lexicon


def _named(words: Sequence[str]) -> str:
    """Count words and name the first ones."""
    more = " ..." if len(words) > _SHOWN else ""
    plural = "word" if len(words) == 1 else "words"
    return f"{len(words):,} {plural} ({', '.join(words[:_SHOWN])}{more})"


def pronounce_words(
    words: Iterable[str], options: BuildSettings, lexicon: Lexicon | None
) -> Pronounced:
    """Return the pronunciations of words and those that have none.

    Args:
        words: Normalised words.
        options: Inventory, language, and sources of pronunciations.
        lexicon: Pronunciations of one's own (`own_lexicon`).

    Raises:
        LanguageModelError: For a command that fails, and where no word has a pronunciation.
    """
    try:
        pronounced = pronounce_all(
            words,
            options.inventory,
            options.language,
            lexicon,
            command=options.g2p,
            spell=options.spell,
        )
    except TextError as error:
        raise LanguageModelError(error.what, where=error.where, fix=error.fix) from None
    if not len(pronounced.lexicon):
        named = ", ".join(f"{word!r}" for word in pronounced.without[:_SHOWN])
        raise LanguageModelError(
            f"none of the {len(pronounced.without):,} words of the texts has a pronunciation"
            f" ({named})",
            where=options.lexicon if isinstance(options.lexicon, Path) else None,
            fix="give the lexicon of this language and inventory, --g2p or --spell",
        )
    return pronounced
