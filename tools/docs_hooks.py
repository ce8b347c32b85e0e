"""Hooks of the documentation's renderer.

In the Python interface, every argument of a docstring gets a line of its own. Diagrams are drawn by
a copy of Mermaid in the site: `make docs` fetches it, and no page asks another server for anything.
"""

import re
import shutil
from pathlib import Path
from typing import Any

ARGUMENT = re.compile(r"\n(?=(?:\w+, )*\w+: )")
MERMAID = Path("build/mermaid/package/dist/mermaid.min.js")


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Break lines before `name: what it is` in paragraphs of the Python interface.

    Called by mkdocs.
    """
    if page.file.src_uri != "reference/python.md":
        return html
    return re.sub(
        r"<p>.*?</p>", lambda found: ARGUMENT.sub("<br>\n", found.group()), html, flags=re.DOTALL
    )


def on_post_build(config: Any, **_: Any) -> None:
    """Put Mermaid into the site.

    Called by mkdocs.
    """
    shutil.copy(MERMAID, Path(config.site_dir) / "mermaid.min.js")
