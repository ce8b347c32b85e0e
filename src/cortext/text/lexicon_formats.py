"""Lexicons of other tools: which format a file has, and its pronunciations.

A file is recognised as a whole, never line by line. Known are lines of `WORD P1 P2 ...` and what
MFA, Kaldi, icefall, the CMU Pronouncing Dictionary, CMU Sphinx and flashlight add to them: numbers
after the word, comments, variants such as `READ(2)`, stress, positions in the word, marks of word
ends, and entries of silence and noise. A file that can be read in two ways is refused.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from pathlib import Path

from cortext.errors import TextError
from cortext.text.inventory import ARPABET, SIL, Inventory
from cortext.text.language import Language, typed

PLAIN = "lines of WORD P1 P2 ..."
"""Name of the format without anything of a tool."""

_INTEGER = re.compile(r"\d+")
_DECIMAL = re.compile(r"[+-]?(?:\d+[.,]\d*|\.\d+)(?:[eE][+-]?\d+)?|[+-]?\d+[eE]-\d+|[+-]\d+")
_VARIANT = re.compile(r"(.+)\(\d+\)")
_DISAMBIGUATION = re.compile(r"#\d+")
_POSITION = re.compile(r"(.+)_([BIES])")
_STRESSED = re.compile(r"([A-Z]{2})[0-2]")
_ENCLOSED = re.compile(r"<.*>|\[.*\]|\{.*\}|\+\+?.+\+\+?")
_SILENCES = frozenset("SIL SP SPN NSN LAU GBG NOISE SILENCE UNK OOV LAUGHTER".split())
_WORD_ENDS = frozenset(("sil", "sp", "SP", "<space>", "</w>", "<eow>"))
_SURE_WORD_ENDS = frozenset("|_▁")
_UNPARTED = re.compile(r"/\S+/|\w+(?:[-.]\w+)+")
_COMMENTS = ("#", ";", "//")
_DIVIDERS = frozenset((".", "-", "*", "=", ":", "|", "·"))
"""Marks between the word and its phones, and between syllables; no notation has such a phone."""
_HEADINGS = frozenset("word words phones phonemes pronunciation pronunciations symbols".split())
_BRACKETS = ("//", "{}", "[]", "()", '""')
_NAMED = 6
_FOREIGN = 0.2
"""Share of foreign symbols, such as AX and DX, up to which a lexicon is one of ARPABET."""


@dataclass
class LexiconEntry:
    """One pronunciation of a lexicon.

    Attributes:
        line: Number of its line.
        word: The word.
        symbols: Tokens of the pronunciation.
        after_tab: Whether a tab stands between the word and the symbols.
        weight: Weight of the pronunciation; 1 is neutral.
    """

    line: int
    word: str
    symbols: list[str]
    after_tab: bool
    weight: float = 1.0


@dataclass
class Listing:
    """The pronunciations of a lexicon.

    Attributes:
        entries: Pronunciations of words.
        format: Name of the format.
        changes: Entries left out, or read otherwise than it stands in the file.
    """

    entries: list[LexiconEntry]
    format: str = PLAIN
    changes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        """Return the format and the changes in one line."""
        return "; ".join([self.format, *self.changes])


def read_listing(
    lines: Iterable[tuple[int, str]],
    path: Path,
    inventory: Inventory | None = None,
    language: Language | None = None,
) -> Listing:
    """Recognise the format of a lexicon, and return its pronunciations.

    Args:
        lines: Numbers and text of the lines that are not empty.
        path: The file, for messages.
        inventory: Tokens that pronunciations consist of, which are never read as something else.
            None where the lexicon itself defines them.
        language: Language of the words. A file of words in capitals alone is read in small letters.
            None to keep them.

    Raises:
        TextError: Naming the file and the line, for a lexicon that is none or that can be read in
            two ways.
    """
    reading = _Reading(path, inventory)
    reading.part(lines)
    if reading.entries:
        reading.check_layout()
        reading.leave_out_outputs()
        reading.take_numbers()
        reading.leave_out_silences()
        reading.strip_word_ends()
        reading.leave_out_dividers()
        reading.strip_positions()
        reading.strip_stress()
        if language is not None:
            reading.write_small(language)
        reading.merge()
    return reading.listing


class _Reading:
    """The steps of reading a lexicon; each changes the entries, and says so."""

    def __init__(self, path: Path, inventory: Inventory | None) -> None:
        self.path = path
        self.has_inventory = inventory is not None
        self.known = frozenset(() if inventory is None else inventory.symbols)
        self.spoken = frozenset(() if inventory is None else inventory.spoken)
        self.silence = SIL if inventory is None else inventory.silence
        self.listing = Listing([])
        self.has_tabs = False
        self._has_equals = False  # entries that are equal now, and were not in the file

    @property
    def entries(self) -> list[LexiconEntry]:
        return self.listing.entries

    def error(self, problem: str, entry: LexiconEntry, fix: str) -> TextError:
        return TextError(problem, where=f"{self.path}, line {entry.line}", fix=fix)

    def say(self, change: str | None, name: str | None = None) -> None:
        """Note a change, and the name of the format where none is known yet."""
        if change is not None:
            self.listing.changes.append(change)
        if name is not None and self.listing.format == PLAIN:
            self.listing.format = name

    def symbols(self) -> set[str]:
        """Return all symbols of the entries."""
        return {symbol for entry in self.entries for symbol in entry.symbols}

    def part(self, lines: Iterable[tuple[int, str]]) -> None:
        """Part lines into words and symbols, without comments and the numbers of variants."""
        comments: list[tuple[LexiconEntry, list[str]]] = []
        is_cmu = False
        for number, line in lines:
            if not line.isascii():  # texts and inventories are in this form, files of macOS may not
                line = unicodedata.normalize("NFC", line)
            word, *symbols = line.split()
            if word.startswith(";;;") or (word[0] == "#" and not _DISAMBIGUATION.fullmatch(word)):
                is_cmu |= word[0] == ";"
                continue
            after_tab = line.strip().partition("\t")[2].split() == symbols
            self.has_tabs |= after_tab
            entry = LexiconEntry(number, typed(word), symbols, after_tab)
            if any(mark in line for mark in _COMMENTS) and (comment := self._comment(symbols)):
                comments.append((entry, comment))
            if word[-1] == ")" and (variant := _VARIANT.fullmatch(entry.word)):
                entry.word = variant[1]
                is_cmu = True
            self.entries.append(entry)
        symbols_before = self.symbols()
        for entry, comment in comments:
            if symbols_before.issuperset(comment):
                fix = "call the phone otherwise, or remove the comments"
                raise self.error("'#' may be a phone, or begin a comment", entry, fix)
        if len(self.entries) > 1 and _is_heading(self.entries[0]):
            del self.entries[0]
            self.say("heading left out")
        if is_cmu or comments:
            self.say("comments left out" if comments else None, "a CMU dictionary")

    def _comment(self, symbols: list[str]) -> list[str]:
        """Cut a comment and disambiguation symbols (`#1`) off; return the words of the comment."""
        while symbols and _DISAMBIGUATION.fullmatch(symbols[-1]) and symbols[-1] not in self.known:
            symbols.pop()
        starts = (
            i for i, s in enumerate(symbols) if s.startswith(_COMMENTS) and s not in self.known
        )
        start = next(starts, len(symbols))
        comment = symbols[start:]
        del symbols[start:]
        first = comment[0].lstrip("#;/") if comment else ""
        return [first, *comment[1:]] if first else comment[1:]

    def check_layout(self) -> None:
        """Refuse a file that has other lines than words and symbols, parted by blanks or tabs."""
        first = self.entries[0]
        fix = "write lines of a word and its phones, parted by blanks or tabs"
        if all(entry.word[0] == "(" for entry in self.entries):
            raise self.error("a lexicon of Festival or Lisp is not read", first, fix)
        if all("," in entry.word[1:] for entry in self.entries):
            raise self.error("commas stand between the word and its phones", first, fix)
        texts = [" ".join(entry.symbols) for entry in self.entries]
        if all(_UNPARTED.fullmatch(text) for text in texts):
            raise self.error("the pronunciations are not parted into phones", first, fix)
        if all(len(text) > 2 and text[0] + text[-1] in _BRACKETS for text in texts):
            raise self.error("brackets or slashes enclose the pronunciations", first, fix)
        for entry in self.entries:
            for symbol in entry.symbols:
                if (symbol[:2] == "##" or symbol[-2:] == "@@") and symbol not in self.known:
                    raise self._pieces(symbol, entry)

    def _pieces(self, symbol: str, entry: LexiconEntry) -> TextError:
        return self.error(
            f"the tokens are pieces of words ({symbol}), no phonemes or characters",
            entry,
            "give a lexicon of phonemes or characters",
        )

    def leave_out_outputs(self) -> None:
        """Leave out the words that HTK and Julius print, in brackets before the phones."""
        outputs = [e.symbols[0] if e.symbols else "" for e in self.entries]
        if not self.known.intersection(outputs) and all(
            each[:1] == "[" and each[-1] == "]" for each in outputs
        ):
            for entry in self.entries:
                del entry.symbols[0]
            self.say("[words] before the phones left out", "an HTK dictionary")

    def leave_out_dividers(self) -> None:
        """Leave out marks between syllables, or after the word, that its spelling does not have."""
        marks = (self.symbols() & _DIVIDERS) - self.known
        used = {mark for e in self.entries for mark in marks.intersection(e.symbols, e.word)}
        for mark in sorted(marks - used):
            for entry in self.entries:
                entry.symbols = [symbol for symbol in entry.symbols if symbol != mark]
            self._has_equals = True
            self.say(f"{mark} between phones left out")

    def take_numbers(self) -> None:
        """Take one number after the word as its weight, or four as MFA and Kaldi write them."""
        led = [(entry, lead) for entry in self.entries if (lead := self._lead(entry))]
        n_numbers, exact = self._n_numbers(led) if led else (0, False)
        for entry, lead in led if n_numbers else ():
            if len(lead) < n_numbers or (exact and len(lead) > n_numbers):
                fix = "after a word, write nothing, a weight, or the four numbers of MFA"
                raise self.error(f"{len(lead)} numbers follow {entry.word!r}", entry, fix)
            entry.weight = self._weight(entry)
            del entry.symbols[:n_numbers]
        for entry in self.entries:
            for symbol in entry.symbols:
                if _DECIMAL.fullmatch(symbol) and symbol not in self.known:
                    problem = f"the number {symbol} of {entry.word!r} stands among its phones"
                    raise self.error(problem, entry, "correct the line")
        if n_numbers:
            rest = ", the three numbers after them left out" if n_numbers == 4 else ""
            highest = max(entry.weight for entry, _ in led)
            scale = f" of up to {highest:,.0f}, where 1 is usual" if highest >= 2 else ""
            self.say(f"numbers after words read as weights{scale}{rest}")
            if len(led) == len(self.entries):
                kaldi = f"a Kaldi lexiconp{'_silprob' if n_numbers == 4 else ''}.txt"
                self.say(None, "an MFA dictionary" if self.has_tabs else kaldi)

    def _lead(self, entry: LexiconEntry) -> list[str]:
        """Return the numbers that follow the word and are no tokens of the inventory."""
        return list(takewhile(self._is_number, entry.symbols))

    def _is_number(self, symbol: str) -> bool:
        match = _INTEGER.fullmatch(symbol) or _DECIMAL.fullmatch(symbol)
        return match is not None and symbol not in self.known

    def _n_numbers(self, led: Sequence[tuple[LexiconEntry, list[str]]]) -> tuple[int, bool]:
        """Return how many numbers follow words: none, 1 or 4; and whether no phone is a number.

        A number with a decimal point is no phone. Whole numbers are phones where they stand among
        other phones, or where words have no others.
        """
        decimals = [[bool(_DECIMAL.fullmatch(symbol)) for symbol in lead] for _, lead in led]
        is_sure = any(map(any, decimals))
        for_all = len(led) == len(self.entries)
        whole = [entry for (entry, _), each in zip(led, decimals, strict=True) if not any(each)]
        if is_sure:
            n_numbers = 4 if any(any(each[1:]) for each in decimals) else 1
        else:
            n_numbers = 4 if for_all and all(len(lead) == 4 for _, lead in led) else 1
        are_phones = any(
            len(lead) == len(entry.symbols) and len(lead) > n_numbers * any(each)
            for (entry, lead), each in zip(led, decimals, strict=True)
        ) or any(
            self._is_number(symbol)
            for entry in self.entries
            for symbol in entry.symbols[len(self._lead(entry)) :]
        )
        if not is_sure and are_phones:
            return 0, False
        if is_sure and not (whole and are_phones):
            return n_numbers, not are_phones
        own = {entry.line for entry, _ in led} == {e.line for e in self.entries if e.after_tab}
        ones = for_all and all(lead == ["1"] for _, lead in led)
        if not is_sure and (self.has_inventory or n_numbers == 4 or ones or (own and not for_all)):
            return n_numbers, True
        entry = whole[0]
        problem = f"{entry.symbols[0]} of {entry.word!r} may be a weight or a phone"
        fix = f"write a weight as {entry.symbols[0]}.0, or name the tokens (an inventory)"
        raise self.error(problem, entry, fix)

    def _weight(self, entry: LexiconEntry) -> float:
        written = entry.symbols[0]
        try:
            weight = float(written)
        except ValueError:  # 0,5
            weight = -1.0
        if not (math.isfinite(weight) and weight > 0):
            shown = written if "," in written else weight
            problem = f"weight {shown} of {entry.word!r} is not a positive number"
            raise self.error(problem, entry, "correct or remove it")
        return weight

    def leave_out_silences(self) -> None:
        """Leave out entries of silence, noise, unknown words and the names of marks."""
        special = [entry for entry in self.entries if _is_special(entry)]
        if not special:
            return
        if len(special) == len(self.entries):
            fix = "write lines WORD P1 P2 ..."
            raise self.error(f"no words, only entries such as {special[0].word}", special[0], fix)
        lines = {entry.line for entry in special}
        self.listing.entries = [entry for entry in self.entries if entry.line not in lines]
        words = list(dict.fromkeys(entry.word for entry in special))
        more = f" and {len(words) - _NAMED:,} more" if len(words) > _NAMED else ""
        plural = "entry" if len(special) == 1 else "entries"
        self.say(f"{len(special):,} special {plural} left out ({' '.join(words[:_NAMED])}{more})")
        if any(_ENCLOSED.fullmatch(word) or word == "!SIL" for word in words):
            self.say(None, "a lexicon of Kaldi, icefall or MFA")

    def strip_word_ends(self) -> None:
        """Strip the mark that closes every pronunciation, or begins it."""
        for entry in self.entries:
            if self.silence is not None and entry.symbols[-1:] == [self.silence]:
                entry.symbols.pop()
                if not entry.symbols:
                    problem = f"{entry.word!r} has no phonemes before {self.silence}"
                    raise self.error(problem, entry, "add its phonemes or remove the line")
        inner = {symbol for entry in self.entries for symbol in entry.symbols[:-1]}
        marks = {entry.symbols[-1] for entry in self.entries if entry.symbols} - inner - self.spoken
        for mark in sorted(marks):
            without = [entry for entry in self.entries if entry.symbols[-1:] != [mark]]
            if without and mark in _SURE_WORD_ENDS:
                problem = f"{without[0].word!r} has no closing {mark}, and others have"
                raise self.error(problem, without[0], f"close all words with {mark}, or none")
            is_mark = mark in _WORD_ENDS or not any(map(str.isalnum, mark))
            if not without and is_mark:
                for entry in self.entries:
                    entry.symbols.pop()
                self.say(f"{mark} after each word left out", "a flashlight lexicon")
        self._strip_word_begins()

    def _strip_word_begins(self) -> None:
        symbols = self.symbols()
        firsts = {symbol for entry in self.entries for symbol in entry.symbols[:1]}
        later = {symbol for entry in self.entries for symbol in entry.symbols[1:]}
        for mark in "▁_":
            begins = all(symbol[0] == mark for symbol in firsts)
            if not firsts or not begins or any(symbol[0] == mark for symbol in later):
                continue
            if self.known.issuperset(symbols):
                return
            if any(len(symbol.removeprefix(mark)) > 1 for symbol in symbols):
                raise self._pieces(
                    next(iter(sorted(firsts, key=len, reverse=True))), self.entries[0]
                )
            for entry in self.entries:
                entry.symbols[0] = entry.symbols[0][1:]
                entry.symbols = list(filter(None, entry.symbols))
            self.say(f"{mark} before each word left out", "a flashlight lexicon")

    def strip_positions(self) -> None:
        """Strip the positions in the word that Kaldi adds to phones: `K_B AE_I T_E`."""
        for entry in self.entries:
            matches = [_POSITION.fullmatch(symbol) for symbol in entry.symbols]
            n = len(matches)
            wanted = "S" if n == 1 else f"B{'I' * (n - 2)}E"
            if "".join(each[2] if each else "?" for each in matches) != wanted:
                return
        if not self.known.issuperset(self.symbols()):
            for entry in self.entries:
                entry.symbols = [symbol[:-2] for symbol in entry.symbols]
            self._has_equals = True
            self.say("positions in the word (_B _I _E _S) left out", "a Kaldi lexicon")

    def strip_stress(self) -> None:
        """Write ARPABET as cortext does: without stress, in capitals."""
        symbols = self.symbols()
        written = {symbol: _STRESSED.sub(r"\1", symbol.upper()) for symbol in symbols}
        arpabet = self.spoken.intersection(ARPABET) if self.has_inventory else set(ARPABET)
        foreign = set(written.values()) - arpabet
        if self.known.issuperset(symbols) or len(foreign) > _FOREIGN * len(written):
            return
        if foreign and not self.has_inventory:
            return  # else the error names the symbol that ARPABET as cortext has it lacks
        if not any(len(symbol) > 1 for symbol in symbols) or written.keys() == set(
            written.values()
        ):
            return  # single small letters are characters
        for entry in self.entries:
            entry.symbols = [written[symbol] for symbol in entry.symbols]
        self._has_equals = True
        if any(symbol[-1] in "012" for symbol in symbols):
            self.say("stress left out", "a CMU dictionary")
        else:
            self.say("phones written in capitals")

    def write_small(self, language: Language) -> None:
        """Write words in small letters where the file has no others."""
        words = {entry.word for entry in self.entries}
        if all(word == word.upper() for word in words) and any(w != w.lower() for w in words):
            for entry in self.entries:
                entry.word = language.small(entry.word)
            if any(entry.word != entry.word.upper() for entry in self.entries):
                self._has_equals = True
                self.say("words written in small letters")

    def merge(self) -> None:
        """Make one of entries that have become equal, with the highest of their weights."""
        if self._has_equals:
            merged: dict[tuple[str, ...], LexiconEntry] = {}
            for entry in self.entries:
                first = merged.setdefault((entry.word, *entry.symbols), entry)
                first.weight = max(first.weight, entry.weight)
            self.listing.entries = list(merged.values())


def _is_special(entry: LexiconEntry) -> bool:
    """Return whether an entry is of no word: `<UNK>`, `!SIL`, `[laughter]`, `;SEMI-COLON`, `sil`.

    Words begin with a letter, an apostrophe or a hyphen; other languages' words may hold more.
    """
    word = entry.word
    if _ENCLOSED.fullmatch(word) or (
        unicodedata.category(word[0])[0] in "PS" and word[0] not in "'-"
    ):
        return True
    phones = entry.symbols
    return len(phones) == 1 and phones[0].upper() in _SILENCES and word.upper() in _SILENCES


def _is_heading(entry: LexiconEntry) -> bool:
    """Return whether a line names the columns: `word phones`."""
    return {entry.word.lower(), *map(str.lower, entry.symbols[-1:])} <= _HEADINGS
