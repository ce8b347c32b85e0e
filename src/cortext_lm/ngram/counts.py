"""Counts of n-grams, external: they go to the disk where they do not fit into memory.

An n-gram is one integer, `bits` a word, the last word in the lowest bits, so that dropping the
first word is a mask and dropping the last one a shift. Every word of the text, sentence ends
included, closes one n-gram of the highest order; positions before the beginning of its sentence are
filled with `<s>`. All lower orders follow from these, each from the next (Heafield et al., Scalable
Modified Kneser-Ney Language Model Estimation, ACL 2013).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cortext.decoding.ngram.corpus import blocks
from cortext.decoding.ngram.vocabulary import BOS_ID
from cortext.errors import LanguageModelError
from cortext_lm.ngram.database import Database

_WORD_BITS = 62
"""Bits of a 64-bit integer that hold words; longer n-grams take 128-bit ones."""


@dataclass(frozen=True, slots=True)
class Keys:
    """Packing of n-grams into integers of `bits` a word, and the SQL that takes them apart."""

    bits: int

    @staticmethod
    def of(n_words: int, order: int) -> Keys:
        """Return the packing for `n_words` different words.

        Raises:
            LanguageModelError: Where they are too many.
        """
        bits = max(2, (n_words - 1).bit_length())
        if bits * order > 2 * _WORD_BITS:
            most = 1 << (2 * _WORD_BITS // order)
            raise LanguageModelError(
                f"{n_words:,} different words are too many for order {order}, which takes {most:,}",
                fix="use a lower order or leave text out that is no prose",
            )
        return Keys(bits)

    @property
    def mask(self) -> int:
        """The bits of one word."""
        return (1 << self.bits) - 1

    def type(self, order: int) -> str:
        """Return the SQL type of n-grams of an order."""
        return "HUGEINT" if self.bits * order > _WORD_BITS else "BIGINT"

    def word(self, key: str, from_end: int) -> str:
        """Return the SQL of one word of an n-gram, counted from its last (0)."""
        return f"(({key} >> {self.bits * from_end}) & {self.mask})::INTEGER"

    def prefix(self, key: str, order: int) -> str:
        """Return the SQL of an n-gram without its last word: its context."""
        return f"({key} >> {self.bits})::{self.type(order - 1)}" if order > 1 else "0::BIGINT"

    def suffix(self, key: str, order: int) -> str:
        """Return the SQL of an n-gram without its first word."""
        mask = (1 << (self.bits * (order - 1))) - 1
        return f"({key} & {mask}::{self.type(order)})::{self.type(order - 1)}"

    def real(self, key: str, order: int) -> str:
        """Return SQL that tells whether it is an n-gram, not a window filled with several <s>."""
        if order == 1:
            return "true"
        return (
            f"NOT ({self.word(key, order - 1)} = {BOS_ID} AND {self.word(key, order - 2)} ="
            f" {BOS_ID})"
        )


def write_windows(
    database: Database, table: str, keys: Keys, file: Path, order: int, renumber: np.ndarray
) -> None:
    """Write a table with the n-gram of the highest order that each word of a text closes.

    Its columns are hi and lo, or only lo.

    Args:
        database: Database of the table.
        table: Name of the table.
        file: Word numbers of the text.
        keys: How n-grams are packed into columns.
        order: The highest order.
        renumber: The number of each word of the file, int64 [words of the file].
    """
    low = min(order, _WORD_BITS // keys.bits)  # words that fit into `lo`
    wide = keys.type(order) == "HUGEINT"
    database.run(f"CREATE TABLE {table} ({'hi BIGINT, ' if wide else ''}lo BIGINT)")
    for block in blocks(file, overlap=order - 1):
        text = renumber[block]
        size = len(text) - order + 1
        closing = text[order - 1 :] != BOS_ID
        hi = np.zeros(size, np.int64)
        lo = np.zeros(size, np.int64)
        begun = np.zeros(size, bool)
        for back in range(order):
            word = np.where(begun, BOS_ID, text[order - 1 - back : len(text) - back])
            begun |= word == BOS_ID
            if back < low:
                lo |= word << (keys.bits * back)
            else:
                hi |= word << (keys.bits * (back - low))
        database.append(table, ({"hi": hi[closing]} if wide else {}) | {"lo": lo[closing]})


def joined(keys: Keys, order: int) -> str:
    """Return the SQL of a window's n-gram."""
    low = min(order, _WORD_BITS // keys.bits)
    return (
        f"(hi::HUGEINT << {keys.bits * low}) | lo::HUGEINT"
        if keys.type(order) == "HUGEINT"
        else "lo"
    )


def count(
    database: Database,
    name: str,
    keys: Keys,
    file: Path,
    renumber: np.ndarray,
    n_words: int,
    prune: Sequence[int],
    step: Callable[[], None] = lambda: None,
) -> None:
    """Make the tables `{name}_n{1..order}` (key, adjusted, plain, kept) of a text.

    The tables include the rows that `Keys.real` excludes. `adjusted` is the number of different
    words seen before the n-gram. For the highest order and for n-grams that begin with `<s>` it is
    the number of times that they occur, as `plain` is for all.

    Args:
        database: Database of the tables.
        name: Name of the text.
        file: Word numbers of the text.
        keys: How n-grams are packed into columns.
        renumber: See `write_windows`.
        n_words: Words from this number on are outside the vocabulary: n-grams with them count but
            are not kept.
        prune: Highest count of n-grams that count but are not kept, for each order; its length is
            the highest order.
        step: Called as each order is done.
    """
    order = len(prune)

    def create(number: int, rows: str) -> None:
        known = (
            [f"{keys.word('key', back)} < {n_words}" for back in range(number)]
            if renumber.max() >= n_words
            else []
        )
        kept = " AND ".join([f"plain > {prune[number - 1]}", *known])
        database.run(f"CREATE TABLE {name}_n{number} AS SELECT *, {kept} AS kept FROM ({rows})")
        step()

    write_windows(database, f"{name}_windows", keys, file, order, renumber)
    counted = (
        f"SELECT {joined(keys, order)} AS key, count(*) AS plain FROM {name}_windows GROUP BY ALL"
    )
    create(order, f"SELECT key, plain AS adjusted, plain FROM ({counted})")
    database.run(f"DROP TABLE {name}_windows")
    for number in range(order - 1, 0, -1):
        shorter = (
            f"SELECT {keys.suffix('key', number + 1)} AS short, plain FROM {name}_n{number + 1}"
        )
        begins = f"{keys.word('short', number - 1)} = {BOS_ID}"
        adjusted = f"CASE WHEN {begins} THEN sum(plain)::BIGINT ELSE count(*) END AS adjusted"
        create(
            number,
            f"SELECT short AS key, {adjusted}, sum(plain)::BIGINT AS plain FROM ({shorter}) GROUP"
            " BY short",
        )
