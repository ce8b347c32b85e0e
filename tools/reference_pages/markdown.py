"""Markdown that several generated pages use."""

import re
from collections.abc import Iterable, Sequence


def front(title: str) -> str:
    """Return the front matter of a generated page."""
    return f"---\ntitle: {title}\n---\n\n"


def code(text: str) -> str:
    """Return a code span that may stand in a table."""
    return f"`{text}`" if "`" not in text else f"`` {text} ``"


def plain(text: str) -> str:
    """Return a help text with brackets that are no links, and signs that are no tags."""
    spans = re.split(r"(`[^`]*`)", text)
    return "".join(s if s.startswith("`") else re.sub(r"([\[<*])", r"\\\1", s) for s in spans)


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table that a narrow screen shows row by row; see docs/extra.css."""
    lines = ["| " + " | ".join(cells) + " |" for cells in ([*heads], ["---"] * len(heads))]
    for row in rows:
        cells = [" ".join(_escaped(cell).split()) for cell in row]
        lines.append("| " + " | ".join(cells) + " |")
    return '<div class="stacked" markdown>\n\n' + "\n".join(lines) + "\n\n</div>\n\n"


def _escaped(cell: str) -> str:
    """Return a cell with its bars escaped, but for code spans, where a backslash would show."""
    parts = re.split(r"(`[^`]*`)", cell)
    return "".join(part if part[:1] == "`" else part.replace("|", "\\|") for part in parts)
