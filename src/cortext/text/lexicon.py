"""Pronunciation lexicons: the shipped CMU Pronouncing Dictionary and the lab's `lexicon.txt`.

A pronunciation is a tuple of symbols of an inventory, without the silence or boundary between
words. In memory each symbol is one character, ASCII for the 39 phonemes of English, so that the
126,000 words of the dictionary load in a fraction of a second.
"""

from __future__ import annotations

import lzma
import math
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

from cortext.arguments import as_path, check_list, check_type
from cortext.errors import TextError
from cortext.files import atomic_stream
from cortext.text.files import read_text
from cortext.text.inventory import BLANK, MOST_TOKENS, RELEASE, SIL, Inventory
from cortext.text.language import Language
from cortext.text.lexicon_formats import read_listing

CMUDICT = Path(__file__).parent / "data" / "cmudict.xz"
"""File of the dictionary: one line per word, `word<TAB>CODE CODE ...`, xz-compressed.

`tools/build_lexicon.py` writes it, NOTICE credits it.
"""

Pronunciation = tuple[str, ...]

MOST_PRONUNCIATIONS = 1000
"""Most pronunciations of a word: each can follow every pronunciation of the word before it."""
MOST_PHONEMES = 1000
"""Most phonemes of a pronunciation."""
MOST_BYTES = 256 << 20
"""Most bytes of a lexicon's file."""

_ASCII_CODES = 58
"""Symbols with a code from `A` to `z`; those of the others begin at U+0100."""


@cache
def codes_of(inventory: Inventory) -> dict[str, str]:
    """Return the character that stands for each spoken symbol of an inventory."""
    return {
        symbol: chr((ord("A") if number < _ASCII_CODES else 0x100 - _ASCII_CODES) + number)
        for number, symbol in enumerate(inventory.spoken)
    }


@cache
def _symbols_of(inventory: Inventory) -> dict[str, str]:
    return {code: symbol for symbol, code in codes_of(inventory).items()}


CODE_OF = codes_of(RELEASE)
"""Character of each of the 39 phonemes of English."""


def encode(pronunciation: Sequence[str], inventory: Inventory = RELEASE) -> str:
    """Write a pronunciation with one character per symbol.

    Raises TextError for an empty pronunciation or an unknown symbol.
    """
    return _encoded(pronunciation, codes_of(inventory), inventory)


def _encoded(pronunciation: Sequence[str], codes: Mapping[str, str], inventory: Inventory) -> str:
    if not pronunciation:
        raise TextError(f"empty pronunciation; at least one {inventory.unit} is needed")
    try:
        return "".join([codes[symbol] for symbol in pronunciation])
    except KeyError as error:
        symbol = error.args[0]
        if symbol in inventory.index:
            role = next(role for role, each in inventory.roles.items() if each == symbol)
            raise TextError(
                f"unknown {inventory.unit} {symbol!r}: it is the {role}, which is in no"
                " pronunciation",
                fix="leave it out",
            ) from None
        raise inventory.unknown(symbol) from None


def decode(code: str, inventory: Inventory = RELEASE) -> Pronunciation:
    """Return the symbols of a code that `encode` has written."""
    symbols = _symbols_of(inventory)
    return tuple([symbols[character] for character in code])


class Lexicon:
    """Words with one or more pronunciations each, the most usual first.

    Args:
        pronunciations: Pronunciations by word; none by default.
        inventory: Tokens that they consist of.

    Attributes:
        inventory: Tokens that they consist of.
        format: How a file that a person brought was read, in one line: its format, and the entries
            that were left out (`cortext.text.lexicon_formats`). Else empty.
    """

    def __init__(
        self,
        pronunciations: Mapping[str, Iterable[Sequence[str]]] | None = None,
        inventory: Inventory = RELEASE,
    ) -> None:
        self.inventory = inventory
        self.format = ""
        self._code_of = codes_of(inventory)  # the cache takes longer than a word does
        self._codes: dict[str, str] = {}  # blank-separated codes by word
        self._weights: dict[tuple[str, str], float] = {}
        if pronunciations is None:
            return
        check_type(pronunciations, Mapping, "pronunciations", "a mapping of words")
        for word, variants in pronunciations.items():
            for variant in check_list(variants, f"{word!r}", "a list of pronunciations"):
                self.add(word, variant)

    @staticmethod
    @cache
    def cmu() -> Lexicon:
        """Return the shipped CMU Pronouncing Dictionary: stress stripped, all variants.

        It is loaded once and must not be changed.
        """
        lexicon = Lexicon()
        lines = lzma.decompress(CMUDICT.read_bytes()).decode("ascii").splitlines()
        lexicon._codes = dict([line.split("\t") for line in lines])  # type: ignore[misc]  # two fields a line
        return lexicon

    def add(self, word: str, pronunciation: Sequence[str], weight: float = 1.0) -> None:
        """Append a pronunciation; a known one keeps its position and takes the new weight.

        Args:
            word: The word.
            pronunciation: Symbols of the inventory, without the silence or boundary after the word.
            weight: Weight of the pronunciation; 1.0 is neutral.

        Raises:
            TextError: For an empty pronunciation, an unknown symbol, and more than
                `MOST_PRONUNCIATIONS`.
        """
        code = _encoded(pronunciation, self._code_of, self.inventory)
        known = self._codes.get(word)
        if known is None:
            self._codes[word] = code
        elif code not in (codes := known.split(" ")):
            if len(codes) == MOST_PRONUNCIATIONS:
                raise TextError(f"{word!r} has more than {MOST_PRONUNCIATIONS:,} pronunciations")
            self._codes[word] = f"{known} {code}"
        if weight != 1.0:
            self._weights[word, code] = weight
        else:
            self._weights.pop((word, code), None)

    def drop(self, words: Iterable[str]) -> None:
        """Remove words with all their pronunciations."""
        gone = set(words)
        for word in gone:
            self._codes.pop(word, None)
        for key in [key for key in self._weights if key[0] in gone]:
            del self._weights[key]

    def take(self, word: str, other: Lexicon) -> None:
        """Append all pronunciations that a lexicon of the same inventory has of a word."""
        for variant, weight in zip(other.pronunciations(word), other.weights(word), strict=True):
            self.add(word, variant, weight)

    def pronunciations(self, word: str) -> tuple[Pronunciation, ...]:
        """Return all pronunciations of `word`, the most usual first; `()` where it is missing."""
        codes = self._codes.get(word)
        return (
            ()
            if codes is None
            else tuple([decode(code, self.inventory) for code in codes.split(" ")])
        )

    def weights(self, word: str) -> tuple[float, ...]:
        """Return the weight of each pronunciation of `word` (1.0 where none was given)."""
        return tuple(
            [self._weights.get((word, code), 1.0) for code in self._codes.get(word, "").split()]
        )

    @property
    def codes(self) -> Mapping[str, str]:
        """Pronunciations of each word as `encode` writes them, blank-separated; read-only."""
        return self._codes

    @property
    def weighted(self) -> Mapping[tuple[str, str], float]:
        """Weights other than 1, by word and code; read-only."""
        return self._weights

    def __contains__(self, word: object) -> bool:
        return word in self._codes

    def __iter__(self) -> Iterator[str]:
        return iter(self._codes)

    def __len__(self) -> int:
        return len(self._codes)

    @classmethod
    def read(
        cls,
        path: str | Path,
        inventory: Inventory = RELEASE,
        *,
        closed: bool = True,
        language: Language | None = None,
    ) -> Lexicon:
        """Read a `lexicon.txt`, one pronunciation a line.

        Lines are `word P1 P2 ... SIL` or `word<TAB>weight P1 P2 ... SIL`, with the silence of the
        inventory; without `SIL` where the inventory has none.

        Args:
            path: The file, which is not trusted.
            inventory: Tokens that the pronunciations consist of.
            closed: Whether it is the file of a language model, where every pronunciation must end
                with the silence. A lexicon that a person brings may leave it out, and may have the
                format of another tool (`cortext.text.lexicon_formats`).
            language: Language of the words, which may all be in capitals; None to keep them.

        Raises:
            TextError: Naming the file and line for a word without phonemes, a missing closing
                silence, an unknown symbol, a weight that is not positive, and more than
                `MOST_PRONUNCIATIONS` of a word or `MOST_PHONEMES` of a pronunciation; for a lexicon
                that can be read in two ways; and for a file that is missing, empty, not UTF-8 or
                larger than `MOST_BYTES`.
        """
        path = as_path(path, "path")
        lexicon = cls(inventory=inventory)
        lines = _lines(path, inventory.silence)
        if closed:
            for number, line in lines:
                with _named(path, number):
                    lexicon.add(*_parse_line(line, inventory))
            return lexicon
        listing = read_listing(lines, path, inventory, language)
        lexicon.format = str(listing)
        for entry in listing.entries:
            with _named(path, entry.line):
                _check_length(entry.word, entry.symbols)
                lexicon.add(entry.word, entry.symbols, entry.weight)
        return lexicon

    def write(self, path: str | Path, words: Iterable[str] | None = None) -> None:
        """Write the pronunciations of `words` (default: all) as a `lexicon.txt`, or no file at all.

        Raises:
            TextError: For a word that the lexicon lacks (`cortext.text.lexicon_for(words)` has them
                all).
            OSError: Where the file cannot be written.
        """
        path = Path(path)
        closing = _closing(self.inventory.silence)
        lines = []
        for word in dict.fromkeys(self if words is None else words):
            if word not in self._codes:
                raise TextError(
                    f"no pronunciation for {word!r}",
                    where=path,
                    fix="make the lexicon with text.lexicon_for(words)",
                )
            for variant, weight in zip(self.pronunciations(word), self.weights(word), strict=True):
                mark = "" if weight == 1.0 else f"\t{weight!r}"
                lines.append(" ".join([f"{word}{mark}", *variant, *closing]) + "\n")
        with atomic_stream(path) as file:
            file.write("".join(lines).encode())


def inventory_of(path: str | Path) -> Inventory:
    """Return the inventory that a `lexicon.txt` defines, named after the file.

    A lexicon lists all symbols that its words are made of. The inventory is the blank `BLANK`,
    these symbols in sorted order and the silence `SIL`, whether lines close with it or not. It may
    have the format of another tool (`cortext.text.lexicon_formats`).

    Raises:
        TextError: As `Lexicon.read`, and for more symbols than an inventory may have.
    """
    path = as_path(path, "path")
    symbols: set[str] = set()
    for entry in read_listing(_lines(path, SIL), path).entries:
        with _named(path, entry.line):
            if not entry.symbols:
                fix = "add them or remove the line"
                raise TextError(f"{entry.word!r} has no phonemes", fix=fix)
            symbols.update(entry.symbols)
            if len(symbols) > MOST_TOKENS:
                raise TextError(
                    f"more than {MOST_TOKENS} symbols, the tokens of an inventory",
                    fix="one line a word: WORD P1 P2 ...",
                )
    inventory = Inventory(path.stem[:100], (BLANK, *sorted(symbols), SIL))
    try:
        inventory.check()
    except TextError as error:
        raise TextError(error.what, where=path, fix=error.fix) from None
    return inventory


def _lines(path: Path, silence: str | None) -> list[tuple[int, str]]:
    """Return the lines of a lexicon that are not empty, with their numbers; at least one."""
    try:
        lines = read_text(path, MOST_BYTES).splitlines()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise TextError(
            f"cannot read the lexicon: {reason}", where=path, fix="give a UTF-8 lexicon.txt"
        ) from None
    numbered = [(number, line) for number, line in enumerate(lines, start=1) if line.strip()]
    if not numbered:
        fix = " ".join(["one line a word: WORD P1 P2 ...", *_closing(silence)])
        raise TextError("no pronunciations in the lexicon", where=path, fix=fix)
    return numbered


def _closing(silence: str | None) -> tuple[str, ...]:
    return () if silence is None else (silence,)


@contextmanager
def _named(path: Path, line: int) -> Iterator[None]:
    """Name the file and the line in a TextError."""
    try:
        yield
    except TextError as error:
        raise TextError(error.what, where=f"{path}, line {line}", fix=error.fix) from None


def _check_length(word: str, symbols: Sequence[str]) -> None:
    if len(symbols) > MOST_PHONEMES:
        raise TextError(
            f"{word!r} has {len(symbols):,} phonemes; at most {MOST_PHONEMES:,} are possible"
        )


def _parse_line(line: str, inventory: Inventory) -> tuple[str, list[str], float]:
    """Return word, symbols without the closing silence, and weight of a line of `lexicon.txt`."""
    if not line.isascii():  # texts and inventories are in this form, files of macOS may not
        line = unicodedata.normalize("NFC", line)
    silence = inventory.silence
    word, *rest = line.split()
    weight = 1.0
    after_tab = line.strip().partition("\t")[2].split()
    if after_tab and after_tab == rest and rest[0] not in inventory.index:
        with suppress(ValueError):  # a tab between the word and its phonemes
            weight = float(after_tab[0])
            rest = after_tab[1:]
    if not (math.isfinite(weight) and weight > 0):
        raise TextError(
            f"weight {weight} of {word!r} is not a positive number", fix="correct or remove it"
        )
    _check_length(word, rest)
    if silence is None:
        return word, rest, weight
    if rest[-1:] != [silence]:
        raise TextError(
            f"the pronunciation of {word!r} does not end with {silence}",
            fix=f"close every line with {silence}",
        )
    if len(rest) == 1:
        raise TextError(
            f"{word!r} has no phonemes before {silence}", fix="add its phonemes or remove the line"
        )
    return word, rest[:-1], weight
