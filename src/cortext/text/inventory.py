"""Token inventories: the ordered classes of an acoustic model, and what some of them stand for.

A data set names its inventory in `cortext.json`, and a model keeps the one that it was trained
with. The data release of participant T15 and the published language models number the same 41
tokens differently: two inventories. Where two inventories meet they are compared; an order is
never guessed. Only `Inventory.order_from` reorders arrays.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from string import ascii_lowercase
from typing import Any, TypeVar

import numpy as np

from cortext.arguments import check_list, check_type
from cortext.errors import TextError, nearest
from cortext.files import read_json

T = TypeVar("T")
MOST_TOKENS = 250
"""Most tokens of an inventory, the blank included: the compiled search numbers them by a byte."""
LONGEST_SYMBOL = 40
"""Most characters of a token's symbol."""

BLANK = "BLANK"
"""Symbol of the CTC blank."""
SIL = "SIL"
"""Symbol of the silence between words."""
UNITS = ("phoneme", "character")
"""Kinds of tokens: sounds, which a lexicon gives for each word, or the letters of the word."""

_ROLES = ("blank", "silence", "boundary")
# Neighbours in this order sound alike, so that confusions gather near the diagonal of the matrix.
_MANNERS = (
    ("vowels", tuple("IY IH EH AE AA AO AH ER UH UW EY AY OY OW AW".split())),
    ("approximants", tuple("Y W R L".split())),
    ("nasals", tuple("M N NG".split())),
    ("fricatives", tuple("F V TH DH S Z SH ZH HH".split())),
    ("affricates", tuple("CH JH".split())),
    ("stops", tuple("P B T D K G".split())),
)
ARPABET: tuple[str, ...] = tuple(
    "AA AE AH AO AW AY B CH D DH EH ER EY F G HH IH IY JH K L M N NG OW OY P R S SH T TH UH UW V W"
    " Y Z ZH".split()
)
"""The 39 ARPABET phonemes of English."""

Groups = tuple[tuple[str, tuple[str, ...]], ...]


@dataclass(frozen=True)
class Inventory:
    """An ordered set of CTC tokens, and the tokens that have a role.

    Attributes:
        name: Name in messages.
        symbols: Symbol of each token, by its number.
        blank_symbol: The CTC blank.
        silence: The silence. Labels close every word with it, and it may stand anywhere between
            words. None where there is none.
        boundary: The mark between words, as the space of characters: labels have it between two
            words. None where there is none. An inventory has a silence, a boundary or neither.
        unit: `phoneme`, where a lexicon says how words are pronounced; `character`, where words are
            spelt with the symbols.
        groups: Named groups of symbols, in which reports and the page show them (`grouped`).
    """

    name: str
    symbols: tuple[str, ...]
    blank_symbol: str = BLANK
    silence: str | None = SIL
    boundary: str | None = None
    unit: str = UNITS[0]
    groups: Groups = field(default=(), compare=False)

    def __len__(self) -> int:
        return len(self.symbols)

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        # Codes of a lexicon's symbols are looked up by the inventory, once for each word.
        return hash((self.symbols, *self.roles.items(), self.unit))

    @cached_property
    def index(self) -> dict[str, int]:
        """Token number by symbol."""
        return {symbol: number for number, symbol in enumerate(self.symbols)}

    @property
    def blank(self) -> int:
        """Token number of the CTC blank."""
        return self.index[self.blank_symbol]

    @property
    def sil(self) -> int | None:
        """Token number of the silence or boundary between words; None where there is neither."""
        return None if self.separator is None else self.index[self.separator]

    @property
    def error_rate(self) -> str:
        """Name of the error rate of its tokens: `PER`, or `TER` (token error rate) of characters.

        `CER` is the rate of the characters of the text.
        """
        return "PER" if self.unit == "phoneme" else "TER"

    @property
    def separator(self) -> str | None:
        """Symbol of the silence or boundary between words; None where there is neither."""
        return self.silence if self.boundary is None else self.boundary

    @cached_property
    def without_separator(self) -> Inventory:
        """The same tokens, of which none stands between words: the separator is one like any other.

        The lexicon of a language model of characters is in these: the boundary is a "word", too.
        """
        return replace(self, silence=None, boundary=None)

    @cached_property
    def spoken(self) -> tuple[str, ...]:
        """Symbols that pronunciations consist of, in order: all but the blank and the separator."""
        aside = (self.blank_symbol, self.separator)
        return tuple(symbol for symbol in self.symbols if symbol not in aside)

    @cached_property
    def marks(self) -> dict[str, str]:
        """Symbol by punctuation mark of a text, for the marks that are tokens; often none.

        Apostrophes and hyphens belong to words. `~` is the handwriting release's full stop; the
        exclamation mark, too, is written as a full stop where it is no token.
        """
        if self.unit != "character":
            return {}
        own = [
            symbol
            for symbol in self.spoken
            if len(symbol) == 1 and unicodedata.category(symbol)[0] in "PS" and symbol not in "'-"
        ]
        stop = next((symbol for symbol in (".", "~") if symbol in own), None)
        ends = {} if stop is None else dict.fromkeys(".!", stop)
        return ends | {symbol: symbol for symbol in own}

    @cached_property
    def grouped(self) -> Groups:
        """Named groups of all tokens but the blank, in the order in which people see them.

        After `groups` come the spoken symbols that are in none, then the silence or boundary.
        """
        named = {symbol for _, members in self.groups for symbol in members}
        others = tuple(symbol for symbol in self.spoken if symbol not in named)
        groups = list(self.groups)
        if others:
            groups.append((f"{'other ' if self.groups else ''}{self.unit}s", others))
        if self.separator is not None:
            role = "silence" if self.boundary is None else "word boundary"
            groups.append((role, (self.separator,)))
        return tuple(groups)

    @cached_property
    def grouped_symbols(self) -> tuple[str, ...]:
        """Symbols of all tokens but the blank, in the order of `grouped`."""
        return tuple(symbol for _, members in self.grouped for symbol in members)

    def ids(self, symbols: Iterable[str]) -> np.ndarray:
        """Return token numbers, int64 [U], of symbols.

        Raises TextError for a symbol that is not in the inventory.
        """
        symbols = check_list(symbols, "symbols", f"a list of {self.unit} symbols")
        try:
            return np.array([self.index[symbol] for symbol in symbols], dtype=np.int64)
        except KeyError as error:
            raise self.unknown(error.args[0]) from None

    def unknown(self, symbol: object) -> TextError:
        """Return the error for a symbol that the inventory lacks."""
        return TextError(f"unknown {self.unit} {symbol!r}; {nearest(str(symbol), self.symbols)}")

    def names(self, ids: Iterable[int] | np.ndarray) -> list[str]:
        """Return symbols of token numbers [U]. Raises TextError for one that is none."""
        numbers = np.asarray(check_list(ids, "ids", "a list of token numbers"))
        if numbers.ndim != 1 or (numbers.size and numbers.dtype.kind not in "iu"):
            raise TextError("ids is no list of whole numbers", fix="give numbers as ids() does")
        if numbers.size and not 0 <= numbers.min() <= numbers.max() < len(self):
            raise TextError(
                f"ids has {numbers.max()} or a negative number; 0 to {len(self) - 1}"
                f" are tokens of inventory {self.name!r}"
            )
        return [self.symbols[number] for number in numbers.tolist()]

    def order_from(self, other: Inventory) -> np.ndarray:
        """Return columns [V] that bring an array in another order into this inventory's.

        `array_in_other_order[..., columns]` is in this inventory's order.
        """
        check_type(other, Inventory, "other", "an Inventory")
        if set(self.symbols) != set(other.symbols):
            raise TextError(
                f"inventories {self.name!r} and {other.name!r} do not hold the same tokens"
            )
        return np.array([other.index[symbol] for symbol in self.symbols], dtype=np.int64)

    def closed(self, words: Iterable[Iterable[str]]) -> list[str]:
        """Return the label of pronounced words: a silence after each, a boundary between two."""
        joined: list[str] = []
        for pronunciation in words:
            if joined and self.boundary is not None:
                joined.append(self.boundary)
            joined += pronunciation
            if self.boundary is None and self.silence is not None:
                joined.append(self.silence)
        return joined

    def difference(self, other: Inventory, *, by_number: bool = False) -> str | None:
        """Return the first difference from another inventory in words, or None.

        The names and the groups may differ. The two published orders agree with each other where
        tokens are known by symbol, as those of language models are.

        Args:
            other: The inventory to compare with.
            by_number: Tokens are known by number alone, as in labels: every order counts.
        """
        if not by_number and self.is_published and other.is_published:
            return None
        if self.unit != other.unit:  # first: it says most
            return f"the tokens are {self.unit}s, not {other.unit}s"
        for role in _ROLES:
            mine, theirs = self.roles.get(role), other.roles.get(role)
            if mine != theirs:
                return f"the {role} is {mine or 'none'}, not {theirs or 'none'}"
        if len(self) != len(other):
            return f"there are {len(self)} tokens, not {len(other)}"
        for number, (mine, theirs) in enumerate(zip(self.symbols, other.symbols, strict=True)):
            if mine != theirs:
                return f"token {number} is {mine}, not {theirs}"
        return None

    @cached_property
    def is_published(self) -> bool:
        """True for the published tokens in one of their two orders, by whatever name."""
        return any(replace(each, name=self.name) == self for each in PUBLISHED)

    @property
    def roles(self) -> dict[str, str]:
        """Symbol by role: `blank`, and `silence` or `boundary` where there is one."""
        symbols = (
            self.blank_symbol,
            self.silence if self.boundary is None else None,
            self.boundary,
        )
        return {role: symbol for role, symbol in zip(_ROLES, symbols, strict=True) if symbol}

    def to_json(self) -> dict[str, Any]:
        """Return the inventory as plain values, without the fields that equal the release's."""
        mapping: dict[str, Any] = {"name": self.name, "symbols": list(self.symbols)}
        if self.roles != {"blank": BLANK, "silence": SIL}:
            mapping["roles"] = self.roles
        if self.unit != "phoneme":
            mapping["unit"] = self.unit
        if self.groups and self.groups != _usual_groups(self.symbols):
            mapping["groups"] = {name: list(members) for name, members in self.groups}
        return mapping

    @classmethod
    def from_json(cls, mapping: Any) -> Inventory:
        """Return the inventory of plain values, or the built-in one of a name.

        Keys are `name`, `symbols`, `roles` (default: the blank is `BLANK`, the silence `SIL`),
        `unit` (default: `phoneme`) and `groups` (default: the published phonemes, in any order, by
        manner of articulation; others in none). Raises TextError for anything else.
        """
        if isinstance(mapping, str):
            return get_inventory(mapping)
        if not isinstance(mapping, Mapping):
            raise TextError(
                f"the inventory is {mapping!r:.40}; a name or a mapping with name and symbols is"
                " needed"
            )
        for key in mapping:
            if key not in ("name", "symbols", "roles", "unit", "groups"):
                known = ("name", "symbols", "roles", "unit", "groups")
                raise TextError(f"unknown key {key!r} of the inventory; {nearest(key, known)}")
        name = mapping.get("name")
        symbols = mapping.get("symbols")
        roles = mapping.get("roles", {"blank": BLANK, "silence": SIL})
        groups = mapping.get("groups", {})
        if not isinstance(name, str) or not name.isprintable() or not 0 < len(name) <= 100:
            raise TextError(f"inventory.name is {name!r:.40}; a text is needed")
        if not _is_texts(symbols) or symbols is None:
            raise TextError(f"inventory.symbols is {symbols!r:.40}; a list of texts is needed")
        if not isinstance(roles, Mapping) or not _is_texts(list(roles.values())):
            raise TextError(f"inventory.roles is {roles!r:.40}; symbols by role are needed")
        if not isinstance(groups, Mapping) or not all(map(_is_texts, groups.values())):
            raise TextError(f"inventory.groups is {groups!r:.40}; lists of symbols are needed")
        for role in roles:
            if role not in _ROLES:
                raise TextError(f"unknown role {role!r} of a token; {nearest(role, _ROLES)}")
        groups = groups or dict(_usual_groups(symbols))
        inventory = cls(
            name,
            tuple(symbols),
            roles.get("blank", BLANK),
            roles.get("silence"),
            roles.get("boundary"),
            mapping.get("unit", UNITS[0]),
            tuple((str(key), tuple(members)) for key, members in groups.items()),
        )
        inventory.check()
        return inventory

    def check(self) -> None:
        """Raise TextError unless a model, a language model and a label can use the inventory."""
        where = f"inventory {self.name!r}"
        if not 2 <= len(self) <= MOST_TOKENS:
            raise TextError(
                f"it has {len(self)} tokens; 2 to {MOST_TOKENS} are possible", where=where
            )
        for symbol in self.symbols:
            plain = symbol.isprintable() and symbol.split() == [symbol]
            if not plain or len(symbol) > LONGEST_SYMBOL:
                raise TextError(
                    f"{symbol!r:.60} is no symbol; printable characters without blanks, at most"
                    f" {LONGEST_SYMBOL}, are needed",
                    where=where,
                )
            if not unicodedata.is_normalized("NFC", symbol):
                raise TextError(
                    f"{symbol!r} is not in Unicode's composed form (NFC), as texts are",
                    where=where,
                    fix=f"write {json.dumps(unicodedata.normalize('NFC', symbol))}",
                )
        if len(self.index) < len(self):
            twice = next(s for s in self.symbols if self.symbols.count(s) > 1)
            raise TextError(f"{twice!r} is there twice", where=where, fix="name each token once")
        named = [self.blank_symbol, *(each for each in (self.silence, self.boundary) if each)]
        if len(set(named)) < len(named) or "" in (*named, self.silence, self.boundary):
            raise TextError("two roles have one symbol, or one has none", where=where)
        if self.silence and self.boundary:
            raise TextError("it has a silence and a boundary", where=where, fix="name one of them")
        if self.unit not in UNITS:
            raise TextError(f"unit is {self.unit!r:.40}; {nearest(self.unit, UNITS)}", where=where)
        for role, symbol in self.roles.items():
            if symbol not in self.index:
                raise TextError(f"the {role} {symbol!r} is none of its symbols", where=where)
        if self.blank != 0:
            raise TextError(
                f"the blank {self.blank_symbol!r} is token {self.blank}",
                where=where,
                fix="make it the first symbol",
            )
        if not self.spoken:
            raise TextError("it has no token but blank and silence", where=where)
        for name, group in self.groups:
            if not name.isprintable() or not 0 < len(name) <= 100 or not group:
                raise TextError(
                    f"{name!r:.60} is no group; a printable name and its symbols are needed",
                    where=where,
                )
        members = [symbol for _, group in self.groups for symbol in group]
        for symbol in members:
            if symbol not in self.spoken or members.count(symbol) > 1:
                raise TextError(
                    f"groups names {symbol!r}, which is no spoken symbol or is named twice",
                    where=where,
                )


def _usual_groups(symbols: Iterable[str]) -> Groups:
    """Return the groups of tokens for which none are named."""
    return RELEASE.groups if set(symbols) == set(RELEASE.symbols) else ()


def _is_texts(value: object) -> bool:
    return isinstance(value, list | tuple) and all(isinstance(item, str) for item in value)


RELEASE = Inventory("release", (BLANK, *ARPABET, SIL), groups=_MANNERS)
"""Inventory of the public release: blank, phonemes, silence."""
LM = Inventory("lm", (BLANK, SIL, *ARPABET), groups=_MANNERS)
"""Inventory in the order of the released language models: blank, silence, phonemes."""
PUBLISHED = (RELEASE, LM)
"""The two published orders of the 41 tokens."""

_LETTERS = (("letters", tuple(ascii_lowercase)),)
CHARACTERS = Inventory(
    "characters", (BLANK, "|", *ascii_lowercase, "'"), BLANK, None, "|", "character", _LETTERS
)
"""Letters a-z, the apostrophe, and `|` for the space between words."""
HANDWRITING = Inventory(
    "handwriting",
    (BLANK, *ascii_lowercase, ">", ",", "'", "~", "?"),
    BLANK,
    None,
    ">",
    "character",
    (*_LETTERS, ("marks", (",", "'", "~", "?"))),
)
"""The 31 characters of the handwriting release (Willett et al. 2021), after the blank.

`>` is the space between words, `~` the full stop.
"""
INVENTORIES = {each.name: each for each in (RELEASE, LM, CHARACTERS, HANDWRITING)} | {
    "arpabet": RELEASE
}


def get_inventory(inventory: Inventory | str) -> Inventory:
    """Return the inventory itself, or the built-in one of that name.

    Names are `arpabet` or `release` (the data release's order), `lm` (the released language
    models' order), `characters` and `handwriting`.
    """
    if isinstance(inventory, Inventory):
        return inventory
    check_type(inventory, str, "inventory", "an Inventory or the name of one")
    if inventory not in INVENTORIES:
        raise TextError(f"unknown inventory {inventory!r}; {nearest(inventory, INVENTORIES)}")
    return INVENTORIES[inventory]


def read_inventory(given: str | Path) -> Inventory:
    """Return the built-in inventory of a name, or the one in a JSON file.

    The file is a mapping as `Inventory.from_json` takes it, or a `cortext.json` with one in it.
    Raises TextError naming the file.
    """
    return read_entry(given, "inventory", INVENTORIES, Inventory.from_json)


def read_entry(
    given: str | Path, key: str, known: Mapping[str, T], from_json: Callable[[Any], T]
) -> T:
    """Return the built-in value of a name, or what a JSON file holds.

    Args:
        given: The name, or a file: a `cortext.json`, or the entry alone.
        key: The entry of a `cortext.json`: `inventory` or `language`.
        known: Built-in values by name.
        from_json: Makes it of plain values.

    Raises:
        TextError: Naming the file, where it is missing, no JSON object, or holds no such thing.
    """
    if str(given) in known:
        return known[str(given)]
    path = Path(given)
    try:
        mapping = read_json(path)
    except FileNotFoundError:
        raise TextError(
            f"{str(given)!r} is no {key} and no file; {nearest(str(given), known)}"
        ) from None
    except (OSError, ValueError) as error:
        problem = getattr(error, "strerror", None) or error
        raise TextError(f"cannot read the {key}: {problem}", where=path) from None
    defaults = {"inventory": "release", "language": "en"}  # of a cortext.json
    try:
        return from_json(mapping.get(key, defaults[key]) if "format" in mapping else mapping)
    except TextError as error:
        problem = error.what if error.where is None else f"{error.where}: {error.what}"
        raise TextError(problem, where=path, fix=error.fix) from None
