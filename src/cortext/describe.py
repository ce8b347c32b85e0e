"""One line and a small table about an object: its `repr`, and what a notebook shows of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, ClassVar

from cortext.errors import shown

_LONGEST = 80
"""Most characters of a value in the line; tables show more."""
_LONGEST_IN_TABLE = 300


class Described(ABC):
    """Base of classes whose objects say what they are in one line.

    A subclass gives `_facts`. It may give `_table`, where a notebook can show more than the facts.
    Dataclasses need `repr=False`, or their own line hides this one.
    """

    __slots__ = ()
    _shown_as: ClassVar[str | None] = None
    """Name of the kind of object, if it is not that of the class."""

    @abstractmethod
    def _facts(self) -> Mapping[str, Any]:
        """Return facts by name, which need no work and raise no error; None leaves one out."""

    def _table(self) -> tuple[Sequence[str], Sequence[Sequence[Any]]] | None:
        """Return header and rows of a table below the facts; None for no table."""
        return None

    def __repr__(self) -> str:
        facts = ", ".join(f"{name}: {_text(value, _LONGEST)}" for name, value in _known(self))
        return f"{self._shown_as or type(self).__name__}({facts})"

    def _repr_html_(self) -> str:
        """Return what Jupyter shows: the facts as a table, every text of it escaped."""
        rows = [_cell("th", name) + _cell("td", value) for name, value in _known(self)]
        html = f"<b>{escape(self._shown_as or type(self).__name__)}</b>{_html_table(rows)}"
        if (table := self._table()) is not None:
            header, values = table
            rows = [_row("th", header), *(_row("td", row) for row in values)]
            html += _html_table(rows)
        return html


def percent(rate: float | None) -> str:
    """Return the rate as `12.3 %`, or a dash for None."""
    return "-" if rate is None else f"{100 * rate:.1f} %"


def with_interval(rate: float | None, low: float | None, high: float | None) -> str | None:
    """Return a rate with its interval as `9.5 % (8.7 to 10.3)`; None where there is no rate."""
    if rate is None or low is None or high is None:
        return None if rate is None else percent(rate)
    return f"{percent(rate)} ({100 * low:.1f} to {100 * high:.1f})"


def some(names: Sequence[str]) -> str:
    """Return the number of names with the first and the last, such as `6 (a to f)`."""
    if len(names) < 2:
        return f"{len(names)}{f' ({names[0]})' if names else ''}"
    return f"{len(names)} ({names[0]} to {names[-1]})"


def _known(described: Described) -> list[tuple[str, Any]]:
    return [(name, value) for name, value in described._facts().items() if value is not None]


def _text(value: Any, most: int) -> str:
    """Return a value as text; numbers of more than three digits get separators."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return shown(f"{value:.4g}" if isinstance(value, float) else value, most)


def _row(tag: str, values: Sequence[Any]) -> str:
    """Return the cells of a row; all but the first are aligned as numbers are."""
    return "".join(
        _cell(tag, value, "right" if column else "left") for column, value in enumerate(values)
    )


def _cell(tag: str, value: Any, align: str = "left") -> str:
    text = "" if value is None else escape(_text(value, _LONGEST_IN_TABLE))
    return f'<{tag} style="text-align: {align}">{text}</{tag}>'


def _html_table(rows: Sequence[str]) -> str:
    lines = "".join(f"<tr>{row}</tr>" for row in rows)
    return f"<table>{lines}</table>"
