"""Languages: what the words of a text are, for labels, language models and scoring alike.

`en` is scored with the benchmark's normalisation, bit for bit; its labels are of the words that
people read (both in `cortext.text.normalize`). All others, built in or of one's own, follow one
rule for both: Unicode NFC, small letters, typographic apostrophes and hyphens as `'` and `-`, no
characters that nobody sees, such as zero-width joiners; then everything becomes a blank that is
neither a letter of the language nor an apostrophe or hyphen where the language has it. Letters,
combining marks and digits that the language lacks would vanish: `Language.damage` finds them, and
who reads text refuses it.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from string import ascii_letters
from typing import Any

from cortext.arguments import check_text, check_type
from cortext.errors import TextError, nearest
from cortext.text.inventory import read_entry
from cortext.text.normalize import SPOKEN_SIGNS, spoken_words
from cortext.text.normalize import normalize as benchmark_normalize

MARKS = ("inside", "beside", "none")
"""Places where a word may have apostrophes or hyphens: between two letters, also before its first
and after its last, or nowhere. Quotation marks belong to none.
"""
UNITS = ("word", "character")
_MOST_LETTERS = 4000
LINES_NAMED = 5
"""Places of damaged text that an error names."""
_APOSTROPHES = "‘’‛ʼ′´`＇"
_HYPHENS = "‐‑‒−－"
_UNSEEN = (
    "\u00ad\u034f\u061c\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069"
    "\ufe00-\ufe0f\ufeff"
)
_LIGATURES = dict(zip("ﬀﬁﬂﬃﬄﬅﬆ", ("ff", "fi", "fl", "ffi", "ffl", "st", "st"), strict=True))
_FULL_WIDTH = {chr(ord(letter) + 0xFEE0): letter for letter in ascii_letters}
_WINDOWS = dict(zip("\x91\x92\x93\x94\x96\x97", "''\"\"–—", strict=True))
"""Marks of Windows-1252 in a text that was read as Latin-1."""
_ODD = re.compile(
    f"[\x91-\x97{_APOSTROPHES}{_HYPHENS}{_UNSEEN}{''.join(_LIGATURES | _FULL_WIDTH)}]"
)
_CLITIC = re.compile("[^aeiouyáéíóúàèìòùäëïöüâêîôû]{1,2}")
_LONG = 10_000
"""Characters of a text from which on runs of combining marks are cut."""
_MARKS_TOGETHER = 30  # as Unicode's Stream-Safe Text Format has it


@dataclass(frozen=True)
class Language:
    """Normalisation of the text of one language.

    Attributes:
        name: Name in messages and reports, such as `es`.
        letters: Small letters that belong to words, with ranges: `a-z áéíóúüñ`. Blanks are not
            read. A language named `en` has none: it is the benchmark's.
        apostrophes: Where words have apostrophes, one of `MARKS`.
        hyphens: Where words have hyphens, one of `MARKS`.
        unit: `word`, or `character` where every letter is a word of its own.
        lower_case: Write capitals as small letters.
    """

    name: str
    letters: str
    apostrophes: str = MARKS[0]
    hyphens: str = MARKS[0]
    unit: str = UNITS[0]
    lower_case: bool = True

    @property
    def is_benchmark(self) -> bool:
        """True for the benchmark's English."""
        return self.name == "en"

    def normalize(self, text: str) -> str:
        """Return the words of a text as they are scored, with single blanks between them.

        What the language lacks vanishes; `damage` says whether that matters.
        """
        if self.is_benchmark:
            return benchmark_normalize(text)
        check_text(text, "text")
        plain = self._plain(text)
        if self.apostrophes == "none":
            plain = plain.replace("'", "")
        if self.apostrophes == "beside" and "'" in plain:
            words = self._without_quotes(plain)
        else:
            words = self._word.findall(plain)
        if self._signs:
            words = [word for word in words if word.strip(self._signs)]
        return " ".join(words if self.unit == "word" else self._character.findall("".join(words)))

    def words(self, text: str) -> list[str]:
        """Return the words of a text as people read it aloud; pieces without a letter are left out.

        For the benchmark's English they are not always those that are scored (`scored_otherwise`).
        """
        if self.is_benchmark:
            check_text(text, "text")
            return spoken_words(self._plain(text))
        return [word for word in self.normalize(text).split() if word.strip("-'")]

    def scored_otherwise(self, text: str) -> bool:
        """Return whether scoring takes other words of a text than a label of it has."""
        scored = [word for word in self.normalize(text).split() if word.strip("-'")]
        return self.is_benchmark and scored != self.words(text)

    def scoring_note(self, sentences: Iterable[str]) -> str | None:
        """Say how many sentences have marks that part words for a label, and not for scoring.

        None where there is none.
        """
        differing = [sentence for sentence in sentences if self.scored_otherwise(sentence)]
        if not differing:
            return None
        first = min(differing, key=lambda sentence: (len(sentence), sentence))
        read = " ".join(self.words(first))
        return (
            f"{len(differing):,} sentence{'s have' if len(differing) > 1 else ' has'} marks that"
            f" labels read and scoring drops: {first[:80]!r} is labelled {read[:80]!r} and scored"
            f" {self.normalize(first)[:80]!r}; type ' - and blanks to have both agree"
        )

    def n_words(self, decoded: str) -> int:
        """Return the number of words of a decoded text, whose words need no normalising."""
        return len(decoded.split() if self.unit == "word" else self.words(decoded))

    def small(self, word: str) -> str:
        """Return a word as decoded text writes its letters: in NFC, small unless capitals count."""
        text = _nfc(word)
        return self._lower(text) if self.is_benchmark or self.lower_case else text

    def joined(self, words: Iterable[str]) -> str:
        """Return normalised words as people write them: `zh` has no blanks between them."""
        return ("" if self.unit == "character" else " ").join(words)

    def damage(self, text: str) -> str:
        """Return what `normalize` would drop and a reader would miss, each character once.

        These are letters, combining marks and digits, and characters that stand for damaged or
        unknown ones.
        """
        check_text(text, "text")
        plain = self._plain(text)
        lost = [
            character
            for character in set(plain) - self._kept
            if unicodedata.category(character) in _MISSED
            or character == "\ufffd"
            or ("\0" < character < " " and not character.isspace())
        ]
        return "".join(sorted(lost, key=plain.index))

    def require(self, text: str, where: str | None = None) -> None:
        """Raise TextError where normalising would damage the text, with the letters.

        Args:
            text: The text.
            where: The file and line, for the message.
        """
        signs = "" if self.is_benchmark else "".join(set(text) & set(SPOKEN_SIGNS))
        if lost := self.damage(text) + signs:
            raise self.refused({lost: [where] if where else []}, text)

    def refused(
        self, by_letter: Mapping[str, Iterable[str]], example: str = "", n_places: int | None = None
    ) -> TextError:
        """Return the error for text that would be damaged.

        Args:
            by_letter: Places (such as lines) of a file by the letters that were lost there.
            example: One of the texts.
            n_places: Number of places, where `found` has only the first ones.
        """
        letters = "".join(dict.fromkeys("".join(by_letter)))
        places = list(dict.fromkeys(place for each in by_letter.values() for place in each))
        named = ", ".join(places[:LINES_NAMED])
        more = (len(places) if n_places is None else n_places) - LINES_NAMED
        shown = " ".join(letters[:20])
        in_example = f" in {example[:60]!r}" if example else ""
        return TextError(
            f"language {self.name!r} would lose {shown}{in_example}",
            where=f"{named}{f' and {more:,} more' if more > 0 else ''}" if places else None,
            fix="choose the text's language, or write other letters and numbers as words",
        )

    @cached_property
    def _kept(self) -> frozenset[str]:
        if self.is_benchmark:
            return frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ")
        return frozenset(chr(n) for low, high in self._ranges for n in range(low, high + 1))

    @cached_property
    def _ranges(self) -> list[tuple[int, int]]:
        text = "".join(unicodedata.normalize("NFC", self.letters).split())
        pairs = re.findall(r"(.)-(.)|(.)", text, re.DOTALL)
        return [(ord(low or one), ord(high or one)) for low, high, one in pairs]

    @cached_property
    def _signs(self) -> str:
        """Signs that the language counts among its letters; no word consists of them alone."""
        return "".join(c for c in self._kept if unicodedata.category(c)[0] == "P")

    @cached_property
    def _class(self) -> str:
        return "".join(
            f"{re.escape(chr(low))}-{re.escape(chr(high))}" for low, high in self._ranges
        )

    @cached_property
    def _word(self) -> re.Pattern[str]:
        """Pattern of a word: letters, with apostrophes and hyphens where they may be."""
        marks = (("'", self.apostrophes), ("-", self.hyphens))
        between = "".join(mark for mark, place in marks if place != "none")
        beside = [f"{mark}?" for mark, place in marks if place == "beside"]
        letters = f"[{self._class}]+"
        inside = f"(?:[{between}]{letters})*" if between else ""
        return re.compile(f"{''.join(beside)}{letters}{inside}{''.join(reversed(beside))}")

    def _without_quotes(self, plain: str) -> list[str]:
        """Return the words of a text, without quotation marks that are written as apostrophes.

        An apostrophe before a word belongs to it where one or two consonants follow (`'s`, `'t`,
        `'ns`); otherwise it opens a quotation. One after a word closes the quotation that was
        opened last, and belongs to the word where there is none (`Hans' boek`).
        """
        words = []
        opened = 0
        for match in re.finditer(f"{self._word.pattern}|'", plain):
            piece = match[0]
            if piece == "'":
                opens = plain[match.end() : match.end() + 1] in self._kept | {"'"}
                opened = opened + 1 if opens else max(opened - 1, 0)
                continue
            word = piece.strip("'")
            before = piece[0] == "'"
            after = piece[-1] == "'"
            if before and (after or not _CLITIC.fullmatch(re.split("['-]", word, maxsplit=1)[0])):
                before = False
                opened += 1
            if after and opened:
                after = False
                opened -= 1
            words.append(f"{chr(39) * before}{word}{chr(39) * after}")
        return words

    @cached_property
    def _character(self) -> re.Pattern[str]:
        """Pattern of a letter with its combining marks."""
        marks = "".join(c for c in self._kept if unicodedata.category(c)[0] == "M")
        return re.compile(f"[{self._class}]{f'[{re.escape(marks)}]*' if marks else ''}")

    def _plain(self, text: str) -> str:
        normal = _nfc(typed(text))
        return self._lower(normal) if self.lower_case and not self.is_benchmark else normal

    def _lower(self, text: str) -> str:
        if "ı" in self._kept:  # Turkish and its relatives have two letters i
            text = text.replace("I", "ı").replace("İ", "i")
        return _nfc(text.lower())

    def to_json(self) -> str | dict[str, Any]:
        """Return the name of a built-in language, else the fields."""
        if LANGUAGES.get(self.name) == self:
            return self.name
        return {
            "name": self.name,
            "letters": self.letters,
            "apostrophes": self.apostrophes,
            "hyphens": self.hyphens,
            "unit": self.unit,
            "lower_case": self.lower_case,
        }

    @classmethod
    def from_json(cls, mapping: Any) -> Language:
        """Return the built-in language of a name, or that of a mapping of fields.

        Raises TextError for anything else.
        """
        if isinstance(mapping, str):
            return get_language(mapping)
        if not isinstance(mapping, Mapping):
            raise TextError(
                f"the language is {mapping!r:.40}; a name ({', '.join(LANGUAGES)}) or a mapping is"
                " needed"
            )
        known = ("name", "letters", "apostrophes", "hyphens", "unit", "lower_case")
        for key in mapping:
            if key not in known:
                raise TextError(f"unknown key {key!r} of the language; {nearest(key, known)}")
        name, letters = mapping.get("name"), mapping.get("letters")
        if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= 100:
            raise TextError(f"language.name is {name!r:.40}; a text is needed")
        if name in LANGUAGES:
            raise TextError(f"the language {name!r} is built in", fix="give yours another name")
        if not isinstance(letters, str) or not 0 < len(letters) <= _MOST_LETTERS:
            raise TextError(
                f"language.letters is {letters!r:.40}; letters such as 'a-z' are needed"
            )
        for key, values in (("apostrophes", MARKS), ("hyphens", MARKS), ("unit", UNITS)):
            value = mapping.get(key, values[0])
            if not isinstance(value, str) or value not in values:
                raise TextError(f"language.{key} is {value!r:.40}; {nearest(value, values)}")
        if not isinstance(mapping.get("lower_case", True), bool):
            raise TextError("language.lower_case is no truth value; true or false is needed")
        language = cls(**mapping)
        language.check()
        return language

    def check(self) -> None:
        """Raise TextError for letters that no word can hold."""
        if not self._ranges:
            raise TextError("language.letters is blank; letters such as 'a-z' are needed")
        for low, high in self._ranges:
            ends = (chr(low), chr(high))
            if low == high and not ends[0].isascii() and unicodedata.category(ends[0])[0] == "P":
                continue  # a sign within words, as in Catalan col·lega and Hebrew צה״ל
            if low > high or not all(unicodedata.category(end)[0] in "LMN" for end in ends):
                raise TextError(
                    f"language.letters has {'-'.join(dict.fromkeys(ends))!r}, which is no letter or"
                    " range of letters"
                )
            if self.lower_case and all(chr(n).lower() != chr(n) for n in range(low, high + 1)):
                raise TextError(
                    f"language.letters has the capital {ends[0]!r}", fix="give small letters"
                )


def typed(text: str) -> str:
    """Return a text with typed marks and letters in the place of typographic ones."""
    return text.translate(_same()) if _ODD.search(text) else text


@cache
def _same() -> dict[int, Any]:
    """Return typed marks and letters for typographic ones, nothing for what nobody sees."""
    unseen = re.findall("(.)(?:-(.))?", _UNSEEN)
    gone = [code for low, high in unseen for code in range(ord(low), ord(high or low) + 1)]
    return (
        str.maketrans(_LIGATURES | _FULL_WIDTH | _WINDOWS)
        | dict.fromkeys(map(ord, _APOSTROPHES), ord("'"))
        | dict.fromkeys(map(ord, _HYPHENS), ord("-"))
        | dict.fromkeys(gone)
    )


@cache
def _many_marks() -> re.Pattern[str]:
    marks = "".join(chr(code) for code in range(0x300, 0x1F000) if unicodedata.combining(chr(code)))
    return re.compile(f"([{re.escape(marks)}]{{{_MARKS_TOGETHER}}})(?=[{re.escape(marks)}])")


def _nfc(text: str) -> str:
    """Return the text in Unicode's composed form.

    Composing takes quadratic time where combining marks follow each other, so that in a long text
    a joiner, which the language lacks, parts the marks that no script stacks.
    """
    if len(text) > _LONG and not text.isascii():
        text = _many_marks().sub("\\1\u034f", text)
    return unicodedata.normalize("NFC", text)


_MISSED = frozenset("Lu Ll Lt Lm Lo Mn Mc Me Nd Nl No Cs Co Cn".split())
"""Categories of characters that a reader would miss, or that are damaged or unknown."""

EN = Language("en", "")
"""English as the Brain-to-Text benchmark scores it."""
LANGUAGES = {
    language.name: language
    for language in (
        EN,
        Language("es", "a-z áéíóúüñ"),
        Language("de", "a-z äöüß éèêàçñ"),
        Language("fr", "a-z àâæçéèêëîïôœùûüÿ"),
        Language("nl", "a-z áéíóúàèäëïöüçêâîôûñ", apostrophes="beside"),
        Language("zh", "\u3400-\u4dbf\u4e00-\u9fff〇", "none", "none", "character"),
    )
}
"""Built-in languages by name."""


def get_language(language: Language | str) -> Language:
    """Return the language itself, or the built-in one of that name."""
    if isinstance(language, Language):
        return language
    check_type(language, str, "language", "a Language or the name of one")
    if language not in LANGUAGES:
        raise TextError(f"unknown language {language!r}; {nearest(language, LANGUAGES)}")
    return LANGUAGES[language]


def read_language(given: str | Path) -> Language:
    """Return the built-in language of a name, or the one in a JSON file.

    The file is a mapping as `Language.from_json` takes it, or a `cortext.json` with one in it.
    Raises TextError naming the file.
    """
    return read_entry(given, "language", LANGUAGES, Language.from_json)
