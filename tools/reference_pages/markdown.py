"""Markdown that several generated pages use."""

from collections.abc import Iterable, Sequence


def front(title: str) -> str:
    """Return the front matter of a generated page: guides come first in a search."""
    return f"---\ntitle: {title}\nsearch:\n  boost: 0.5\n---\n\n"


def code(text: str) -> str:
    """Return a code span that may stand in a table."""
    return f"`{text}`" if "`" not in text else f"`` {text} ``"


def table(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table that a narrow screen shows row by row; see docs/extra.css."""
    lines = ["| " + " | ".join(cells) + " |" for cells in ([*heads], ["---"] * len(heads))]
    for row in rows:
        cells = [" ".join(cell.replace("|", "\\|").split()) for cell in row]
        lines.append("| " + " | ".join(cells) + " |")
    return '<div class="stacked" markdown>\n\n' + "\n".join(lines) + "\n\n</div>\n\n"
