"""Words that a user adds to a decoder or a stream, takes away from it, or favours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from cortext.arguments import check_list, check_type
from cortext.decoding.ngram import LanguageModel
from cortext.decoding.options import LARGEST, is_finite
from cortext.errors import DecodingError, TextError
from cortext.text.lexicon import Pronunciation, encode
from cortext.text.pronunciation import Pronouncer, pronouncer

Words = Iterable[str] | Mapping[str, Iterable[Sequence[str]]]
"""Words, pronounced as they are spelt, or pronunciations by word (`{"avni": [("AA", "V", "N",
"IY")]}`).
"""


@dataclass(frozen=True)
class WordChanges:
    """Differences of a search's words from its lexicon's.

    Attributes:
        added: Pronunciations by word, besides those that the lexicon has.
        removed: Words that are not found.
        bonuses: Added to the score of a word whenever it is decoded, from its first phoneme on.
    """

    added: tuple[tuple[str, tuple[Pronunciation, ...]], ...] = ()
    removed: tuple[str, ...] = ()
    bonuses: tuple[tuple[str, float], ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.removed or self.bonuses)

    def with_words(self, words: Words, lm: LanguageModel) -> WordChanges:
        """Return the changes with more words, pronounced as the language model's are.

        Raises:
            DecodingError: For a word that cannot be pronounced, or with an unknown phoneme; for any
                word where the vocabulary is open.
        """
        new = dict(_pronounced(words, lm))
        added = {word: variants for word, variants in self.added if word not in new} | new
        return replace(
            self,
            added=tuple(added.items()),
            removed=tuple(word for word in self.removed if word not in new),
        )

    def without_words(self, words: Iterable[str], lm: LanguageModel) -> WordChanges:
        """Return the changes with fewer words.

        Raises DecodingError for a text that is no word, and for any word of an open vocabulary.
        """
        check_type(words, Iterable, "words", "a list of words")
        given = [words] if isinstance(words, str) else list(words)
        for word in given:
            _check_word(word)
            require_words(lm, "removed")
        gone = dict.fromkeys(as_written(word, lm) for word in given)
        return replace(
            self,
            added=tuple((word, variants) for word, variants in self.added if word not in gone),
            removed=tuple(dict.fromkeys((*self.removed, *gone))),
            bonuses=tuple((word, bonus) for word, bonus in self.bonuses if word not in gone),
        )

    def with_bonuses(self, bonuses: Mapping[str, float], lm: LanguageModel) -> WordChanges:
        """Return the changes with other bonuses for these words; 0 takes one away.

        Raises DecodingError for a bonus out of bounds, and for any where the vocabulary is open.
        """
        check_type(bonuses, Mapping, "hotwords", "a mapping of words to bonuses")
        for word, bonus in bonuses.items():
            _check_word(word)
            require_words(lm, "favoured")
            if not is_finite(bonus):
                raise DecodingError(
                    f"the bonus of {word!r} is {bonus!r}; a finite number is needed"
                )
            if abs(bonus) > LARGEST:
                raise DecodingError(
                    f"the bonus of {word!r} is {bonus}; at most {LARGEST:g} can be added or taken"
                )
        new = {as_written(word, lm): bonus for word, bonus in bonuses.items()}
        merged = dict(self.bonuses) | new
        return replace(
            self, bonuses=tuple((word, float(bonus)) for word, bonus in merged.items() if bonus)
        )


def _check_word(word: object) -> None:
    if not isinstance(word, str) or word.split() != [word] or not _is_unicode(word):
        raise DecodingError(f"{word!r} is not a word", fix="give words without blanks")


def as_written(word: str, lm: LanguageModel) -> str:
    """Return a word as the language model writes it, whatever form of its letters is given.

    English words stay as they are given.

    Raises:
        DecodingError: For a text that is no word of the language.
    """
    language = lm.language
    if language.is_benchmark:
        return word
    written = language.normalize(word)
    if written.split() != [written] or language.damage(word):
        fix = "give single characters" if language.unit == "character" else "give single words"
        raise DecodingError(f"{word!r} is no word of language {language.name!r}", fix=fix)
    return written


def require_words(lm: LanguageModel, use: str) -> None:
    """Raise DecodingError where a language model knows no words that could be `what` it says."""
    if lm.is_open:
        raise DecodingError(
            f"words cannot be {use}: the language model is of characters and knows no words",
            where=lm.directory,
            fix="use a language model of words",
        )


def _is_unicode(text: str) -> bool:
    """Return whether text can be written; undecodable bytes of a command line cannot."""
    return not any("\ud800" <= character <= "\udfff" for character in text)


def _pronouncer(lm: LanguageModel) -> Pronouncer:
    """Return the inventory's own way to pronounce words, or the lexicon where it has none."""
    try:
        return pronouncer(lm.inventory, lm.language)
    except TextError:
        return pronouncer(lm.inventory, lm.language, lm.lexicon)


def _pronounced(words: Words, lm: LanguageModel) -> Iterable[tuple[str, tuple[Pronunciation, ...]]]:
    check_type(words, Iterable, "words", "a list of words")
    if isinstance(words, str):
        words = [words]
    listed = words if isinstance(words, Mapping) else None
    pronounce = _pronouncer(lm)
    for key in words:
        _check_word(key)
        require_words(lm, "added")
        word = as_written(key, lm)
        try:
            given = pronounce(word) if listed is None else listed[key]
            variants = tuple(
                tuple(check_list(variant, f"{word!r}", "a list of phonemes"))
                for variant in check_list(given, f"{word!r}", "a list of pronunciations")
            )
            for variant in variants:
                encode(variant, lm.lexicon.inventory)
        except TextError as error:
            raise DecodingError(error.what, where=f"word {word!r}", fix=error.fix) from None
        if not variants:
            raise DecodingError(
                f"no pronunciation for the word {word!r}", fix="give one as a sequence of phonemes"
            )
        yield word, variants
