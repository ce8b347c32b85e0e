"""The release's table of blocks.

Which corpus was read in which block, and how long after implantation.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

from cortext.errors import DataError
from cortext.files import check_file

DESCRIPTION = "t15_copyTaskData_description.csv"
_MOST_BYTES = 1 << 24  # 1,600 times the release's


@dataclass(frozen=True)
class BlockDescription:
    """One row of the release's table of blocks.

    `split` may be `Val/Test` for a block divided between the two.
    """

    date: str
    post_implant_day: int
    block: int
    n_sentences: int
    corpus: str
    split: str


def read_description(path: str | Path) -> list[BlockDescription]:
    """The rows of `t15_copyTaskData_description.csv`.

    Raises DataError where it is not that table.
    """
    path = Path(path)
    try:
        check_file(path, _MOST_BYTES)
        with path.open(newline="") as file:
            return [
                BlockDescription(
                    date, _number(day), _number(block), _number(sentences), corpus, split
                )
                for date, day, block, sentences, corpus, split in list(csv.reader(file))[1:]
            ]
    except OSError as error:
        raise DataError(
            f"cannot read the table of blocks: {error.strerror}", where=path, fix="check the path"
        ) from None
    except (csv.Error, UnicodeDecodeError, ValueError) as error:
        raise DataError(
            f"not the table of blocks ({error})", where=path, fix="take the release's, or remove it"
        ) from None


def _number(text: str) -> int:
    number = int(text)
    if abs(number) >= 2**31:
        raise ValueError(f"{text} is no number of days, blocks or sentences")
    return number
