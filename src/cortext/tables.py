"""Result files, CSV and JSON, whose texts come from recordings, lexicons and other programs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from cortext.errors import HIDDEN, plain

LONGEST_CELL = 32_767
"""Characters that a spreadsheet reads of a cell."""
LINES = ".txt"
"""End of the name of a file that has one sentence a line."""
_FORMULA = tuple("=+-@＝＋－＠")  # a Japanese Excel takes the wide ones, too


def csv_cell(value: Any) -> Any:
    """Return a value as the cell of a CSV file. Numbers stay what they are.

    A spreadsheet calculates a text that begins with `=`, `+`, `-` or `@`, also after blanks, when
    somebody opens the file: `=HYPERLINK(...)` as the name of a trial sends the table's other cells
    to whoever has made the recording. Such a text gets a `'` before it, which spreadsheets take for
    "this is a text". Ends of lines become spaces and escapes for the terminal are written out: the
    file may be looked at with `cat`.
    """
    if not isinstance(value, str):
        return value
    text = plain(value, LONGEST_CELL)
    return f"'{text}" if text.lstrip().startswith(_FORMULA) else text


def csv_table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    """Return a CSV file in UTF-8: the header, then the rows."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([csv_cell(name) for name in header])
    writer.writerows([csv_cell(value) for value in row] for row in rows)
    return text.getvalue().encode()


def sentence_table(path: Path, rows: Iterable[tuple[Any, str]]) -> bytes:
    """Return the file of decoded sentences that a name asks for.

    A name that ends in `.txt` asks for one sentence a line, as Brain-to-Text '24 takes them, and
    any other name for CSV with the columns `id,text`, as Brain-to-Text '25 does.

    Args:
        path: Name of the file.
        rows: Number or name of each trial, and its sentence.
    """
    if path.suffix.lower() != LINES:
        return csv_table(("id", "text"), rows)
    return "".join(f"{plain(text, LONGEST_CELL)}\n" for _, text in rows).encode()


def json_text(value: Any, **options: Any) -> str:
    """Return a value as JSON for people.

    Letters of every script as they are, and written as JSON's escapes what a terminal obeys or
    hides, and halves of characters, which no file can hold. `options` are those of `json.dumps`.
    """
    text = json.dumps(value, ensure_ascii=False, **options)
    return HIDDEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
