"""Hooks of the documentation's renderer.

In the Python interface, every argument of a docstring gets a line of its own.
"""

import re
from typing import Any

ARGUMENT = re.compile(r"\n(?=(?:\w+, )*\w+: )")


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """Break lines before `name: what it is` in paragraphs of the Python interface.

    Called by mkdocs.
    """
    if page.file.src_uri != "api.md":
        return html
    return re.sub(
        r"<p>.*?</p>", lambda found: ARGUMENT.sub("<br>\n", found.group()), html, flags=re.DOTALL
    )
