"""Token inventories: the number of each phoneme.

The data release of participant T15 and the published language models number the same 41 tokens
differently. Both orders are instances of `Inventory`; a checkpoint stores the one it was trained
with. Only `Inventory.order_from` reorders arrays; an order is never guessed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from cortext.arguments import check_list, check_type
from cortext.errors import TextError, nearest

BLANK = "BLANK"
"""Symbol of the CTC blank."""
SIL = "SIL"
"""Symbol of the silence between words."""
ARPABET: tuple[str, ...] = tuple(
    "AA AE AH AO AW AY B CH D DH EH ER EY F G HH IH IY JH K L M N NG OW OY P R S SH T TH UH UW V W"
    " Y Z ZH".split()
)
"""The 39 ARPABET phonemes of English."""


@dataclass(frozen=True)
class Inventory:
    """An ordered set of CTC tokens: the blank, 39 ARPAbet phonemes without stress, the silence."""

    name: str
    symbols: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.symbols)

    @cached_property
    def index(self) -> dict[str, int]:
        """Token number by symbol."""
        return {symbol: number for number, symbol in enumerate(self.symbols)}

    @property
    def blank(self) -> int:
        """Token number of the CTC blank."""
        return self.index[BLANK]

    @property
    def sil(self) -> int:
        """Token number of the silence between words."""
        return self.index[SIL]

    def ids(self, symbols: Iterable[str]) -> np.ndarray:
        """Return token numbers, int64 [U], of phoneme symbols.

        Raises TextError for a symbol that is not in the inventory.
        """
        symbols = check_list(symbols, "symbols", "a list of phoneme symbols")
        try:
            return np.array([self.index[symbol] for symbol in symbols], dtype=np.int64)
        except KeyError as error:
            raise TextError(
                f"unknown phoneme {error.args[0]!r}; {nearest(error.args[0], self.symbols)}"
            ) from None

    def names(self, ids: Iterable[int] | np.ndarray) -> list[str]:
        """Return phoneme symbols of token numbers [U]. Raises TextError for one that is none."""
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


RELEASE = Inventory("release", (BLANK, *ARPABET, SIL))
"""Inventory of the public release: blank, phonemes, silence."""
LM = Inventory("lm", (BLANK, SIL, *ARPABET))
"""Inventory in the order of the released language models: blank, silence, phonemes."""
INVENTORIES = {inventory.name: inventory for inventory in (RELEASE, LM)}


def get_inventory(inventory: Inventory | str) -> Inventory:
    """Return the inventory itself, or the one of that name (`"release"` or `"lm"`)."""
    if isinstance(inventory, Inventory):
        return inventory
    check_type(inventory, str, "inventory", "an Inventory, 'release' or 'lm'")
    if inventory not in INVENTORIES:
        raise TextError(f"unknown inventory {inventory!r}; {nearest(inventory, INVENTORIES)}")
    return INVENTORIES[inventory]
