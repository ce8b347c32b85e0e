"""Hooks of the documentation's renderer.

The pages about commands and configuration keys are generated from the program. Diagrams are drawn
by a copy of Mermaid in the site: `make docs` fetches it, and no page asks another server for
anything.
"""

import re
import shutil
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.nav import Navigation

from reference_pages import commands, configuration, python

GENERATED: Any = {"Command line": commands, "Python": python}
BOOSTS = {"start/": 2.0, "guides/": 1.5, "measured/": 1.0, "inside/": 0.5, "reference/": 0.01}
"""Weight of a section's pages in the search. A word in a heading counts a thousand times, and the
reference has a heading for every name."""
MERMAID = Path("build/mermaid/package/dist/mermaid.min.js")


def on_config(config: Any, **_: Any) -> Any:
    """Put the generated pages into the navigation.

    Called by mkdocs, as the functions below.
    """
    for section in config.nav:
        for entry in section.get("Reference", ()):
            for title, pages in GENERATED.items():
                if title in entry:
                    entry[title] = pages.nav()
    return config


def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add the generated pages."""
    pages = commands.pages() | python.pages() | {configuration.PAGE: configuration.page()}
    for address, text in pages.items():
        files.append(File.generated(config, address, content=text))
    return files


def on_nav(nav: Navigation, **_: Any) -> Navigation:
    """Let a section's name in the navigation lead to its first page."""
    for page in nav.pages:
        if page.parent and page.title is None and page is page.parent.children[0]:
            address = page.file.dest_uri  # of a generated page it would follow from the new name
            page.file.name = "index"  # how Material knows it
            page.file.dest_uri = address
    return nav


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Weigh a page for the search, unless it does so itself."""
    section = page.file.src_uri.partition("/")[0] + "/"
    page.meta.setdefault("search", {"boost": BOOSTS.get(section, 1.0)})
    return markdown


def on_post_page(output: str, page: Any, **_: Any) -> str:
    """Load Mermaid's three megabytes only where there is a diagram."""
    if 'class="mermaid"' in output:
        return output
    return re.sub(r'<script src="[^"]*mermaid\.min\.js"></script>', "", output)


def on_post_build(config: Any, **_: Any) -> None:
    """Put Mermaid into the site."""
    shutil.copy(MERMAID, Path(config.site_dir) / "mermaid.min.js")
