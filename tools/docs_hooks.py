"""Hooks of the documentation's renderer.

The pages about commands and configuration keys are generated from the program. Diagrams are drawn
by a copy of Mermaid in the site: `make docs` fetches it, and no page asks another server for
anything.
"""

import shutil
from pathlib import Path
from typing import Any

from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files

from reference_pages import commands, configuration, python

GENERATED: Any = {"Command line": commands, "Python": python}
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


@event_priority(100)
def on_files(files: Files, config: Any, **_: Any) -> Files:
    """Add the generated pages, before the redirects look for them."""
    pages = commands.pages() | python.pages() | {configuration.PAGE: configuration.page()}
    for address, text in pages.items():
        files.append(File.generated(config, address, content=text))
    return files


def on_post_build(config: Any, **_: Any) -> None:
    """Put Mermaid into the site."""
    shutil.copy(MERMAID, Path(config.site_dir) / "mermaid.min.js")
