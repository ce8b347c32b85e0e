"""Writing a model from the database as ARPA text."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np

from cortext_lm.ngram.database import Database
from cortext_lm.ngram.estimate import Estimated

_LEAST = 1e-99
"""Least probability or back-off that is written, also for 0."""


def write_model(
    database: Database,
    model: Estimated,
    words: Sequence[str],
    path: Path,
    ordered: bool,
    step: Callable[[], None] = lambda: None,
) -> None:
    """Write a model as an ARPA file.

    Parts go to files beside `path`; raises OSError and LanguageModelError where the disk is full.

    Args:
        database: Database with the model's tables.
        model: The model.
        words: Names of the word numbers.
        path: File to write.
        ordered: Write n-grams in the order of their words, always the same; sorting takes time that
            a trie does not need.
        step: Called as each order is done.
    """
    database.run("CREATE OR REPLACE TABLE words (id INTEGER, word VARCHAR)")
    database.append(
        "words",
        {"id": np.arange(len(words), dtype=np.int32), "word": np.array(words, dtype=object)},
    )
    with path.open("wb") as file:
        file.write(b"\\data\\\n")
        file.writelines(
            b"ngram %d=%d\n" % (number, count) for number, count in enumerate(model.kept, start=1)
        )
        for number in range(1, model.order + 1):
            part = path.with_name(f"{path.name}.{number}")
            database.run(_copy(model, number, part, ordered))
            file.write(b"\n\\%d-grams:\n" % number)
            with part.open("rb") as section:
                shutil.copyfileobj(section, file, 1 << 20)
            part.unlink()
            step()
        file.write(b"\n\\end\\\n")
    database.run("DROP TABLE words")


def _copy(model: Estimated, number: int, part: Path, ordered: bool) -> str:
    """Return the statement that writes the n-grams of one order."""
    keys = model.keys
    name = model.name
    positions = range(number - 1, -1, -1)
    joins = " ".join(
        f"JOIN words w{back} ON w{back}.id = {keys.word('n.key', back)}" for back in positions
    )
    ngram = " || ' ' || ".join(f"w{back}.word" for back in positions)
    backoff = ""
    if number < model.order:
        backoff = f", {_log10('coalesce(after.backoff, 1)')}"
        joins += f" LEFT JOIN {name}_b{number + 1} after ON after.key = n.key"
    order = " ORDER BY n.key" if ordered else ""
    escaped = str(part).replace("'", "''")
    return (
        f"COPY (SELECT {_log10('least(n.p, 1)')}, {ngram}{backoff} FROM {name}_p{number} n"
        f" {joins}{order}) TO '{escaped}' (FORMAT csv, DELIMITER '\t', HEADER false, QUOTE '',"
        " ESCAPE '')"
    )


def _log10(value: str) -> str:
    return f"printf('%.8g', log10(greatest({value}, {_LEAST}::DOUBLE)))"
