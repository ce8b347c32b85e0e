"""Which recording day and text corpus a block belongs to, from the release's table of blocks.

`t15_copyTaskData_description.csv` of the T15 release (Card et al. 2024,
doi:10.5061/dryad.dncjsxm85) has one row per block: date, days since implantation, block number,
number of sentences, corpus, split.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path

from cortext.data.dataset import BlockDescription, read_description
from cortext.data.trial import Session


@dataclass(frozen=True)
class Description:
    """Post-implant day by recording date, and corpus by (recording date, block number).

    Both empty without a table.
    """

    days: dict[date, int] = field(default_factory=dict)
    corpora: dict[tuple[date, int], str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: str | Path) -> Description:
        """Read the table; raises DataError where the file is not one."""
        return cls.of(read_description(path))

    @classmethod
    def of(cls, rows: Iterable[BlockDescription]) -> Description:
        """The same from rows that are read already."""
        days, corpora = {}, {}
        for row in rows:
            recorded = date.fromisoformat(row.date)
            days[recorded] = row.post_implant_day
            corpora[recorded, row.block] = row.corpus
        return cls(days, corpora)

    def corpus(self, session: str, block: int) -> str | None:
        """Corpus of a block of the session, or None where the table does not list it."""
        recorded = Session(session, {}).date
        return self.corpora.get((recorded, block)) if recorded else None

    def post_implant_day(self, session: str) -> int | None:
        """Days from implantation to the session, or None where the table does not list it."""
        recorded = Session(session, {}).date
        return self.days.get(recorded) if recorded else None
