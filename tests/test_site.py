"""The built site, in a browser: nothing from outside, nothing lost, nothing too long or too wide."""

import os
import re
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from page_browser import CHROMIUM

ROOT = Path(__file__).resolve().parents[1]
SITE = os.environ.get("CORTEXT_SITE")
pytestmark = [pytest.mark.site, pytest.mark.skipif(not SITE, reason="run `make docs`")]

HELPFUL = {
    "kaggle": {"start/from-public-data"},
    "submission": {"start/from-public-data"},
    "nwb": {"guides/import-nwb"},
    "gpu": {"guides/gpus", "guides/train", "start/install"},
    "latency": {"measured/latency"},
    "cuda out of memory": {"guides/gpus", "start/troubleshooting"},
}
"""Pages that may come first when a user searches for these words."""
MOST_WORDS = 35
"""Words of a page's first sentence."""
SCREEN = 800
MOST_SCREENS = 3
TOLERANCE = 1.15
"""Fonts differ between machines: the longest page has 3.25 screens where it was written."""
LOOKED_UP = {"start/glossary"}
"""A list in which users look for one entry."""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=SITE)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api")
    if not Path(CHROMIUM).exists():
        pytest.skip("NO CHROMIUM: THE SITE IS NOT TESTED; install it (apt install chromium)")
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(
            executable_path=CHROMIUM,
            args=["--no-sandbox", "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"],
        )
        yield found
        found.close()


@pytest.fixture(scope="module")
def asked() -> list[str]:
    """Addresses outside the site that its pages asked for."""
    return []


@pytest.fixture(scope="module")
def open_page(browser, address, asked) -> Iterator[Any]:
    """Make a page of the browser, which reaches the site and nothing else."""

    def note(request: Any) -> None:
        if not request.url.startswith((address, "data:", "blob:")):
            asked.append(request.url)

    def opened(width: int, search: bool = False) -> Any:
        page = browser.new_page(viewport={"width": width, "height": SCREEN})
        if not search:  # every page makes its index, which takes most of its time
            page.route("**/search_index.json", lambda route: route.abort())
        page.set_default_timeout(30_000)
        page.on("request", note)
        return page

    return opened


def html(name: str) -> str:
    return (Path(SITE) / name / "index.html").read_text()


PAGES = sorted(
    str(file.parent.relative_to(SITE)).removeprefix(".")
    for file in (Path(SITE).rglob("index.html") if SITE else ())
)


def written(section: str) -> list[str]:
    return [name for name in PAGES if name.partition("/")[0] == section]


def test_every_page_is_in_the_navigation():
    links = {
        os.path.normpath(link).removeprefix(".")
        for link in re.findall(r'<a href="([^"#:]+)" class="md-nav__link', html(""))
    }
    assert set(PAGES) - {""} <= links


def test_every_generated_page_has_an_address_of_its_own():
    assert {"reference/commands", "reference/configuration", "reference/python"} <= {*PAGES}


@pytest.mark.parametrize("name", [name for name in PAGES if name])
def test_a_page_starts_with_a_heading_and_one_sentence(name):
    article = html(name).partition("<article")[2].partition("</article>")[0]
    blocks = re.findall(
        r"<(h1|h2|p|table|pre|ul|div|details)\b[^>]*>(.*?)</\1>", article, re.DOTALL
    )
    assert [tag for tag, _ in blocks[:2]] == ["h1", "p"]
    text = " ".join(re.sub(r"<[^>]+>", "", blocks[1][1]).split())
    first = re.split(r"(?<=[.:!?]) ", text)[0]
    assert first.endswith((".", ":"))
    assert 3 <= len(first.split()) <= MOST_WORDS


@pytest.fixture(scope="module")
def sizes(open_page, address) -> dict[str, tuple[float, bool]]:
    """Screens of each page on a desk, and whether it scrolls sideways on a telephone.

    Generated pages are alike: each fifth of them is looked at.
    """
    alike = [name for name in PAGES if re.match("reference/(commands|python)/", name)]
    page = open_page(1280)
    found = {}
    for name in [*sorted(set(PAGES) - set(alike)), *alike[::5]]:
        page.set_viewport_size({"width": 1280, "height": SCREEN})
        page.goto(address + name)
        height = page.evaluate("document.querySelector('article').offsetHeight")
        page.set_viewport_size({"width": 390, "height": SCREEN})
        wide = page.evaluate("document.documentElement.scrollWidth > innerWidth")
        found[name] = (height / SCREEN, wide)
    return found


def test_no_page_is_longer_than_three_screens(sizes):
    short = [name for name in sizes if name.partition("/")[0] not in ("reference", "inside")]
    assert not {
        name: round(sizes[name][0], 1)
        for name in short
        if name not in LOOKED_UP and sizes[name][0] > MOST_SCREENS * TOLERANCE
    }


def test_no_page_scrolls_sideways_on_a_telephone_and_none_asks_another_server(sizes, asked):
    assert not [name for name, (_, wide) in sizes.items() if wide]
    assert not asked


def test_diagrams_are_drawn(open_page, address, asked):
    page = open_page(1280)
    drawn = [name for name in PAGES if 'class="mermaid"' in html(name)]
    assert drawn
    page.goto(address + drawn[0])
    # Material draws into a closed shadow root: the element that held the text is replaced.
    page.wait_for_function(
        "!document.querySelector('pre.mermaid') && document.querySelector('.mermaid')"
    )
    assert page.evaluate("document.querySelector('.mermaid').getBoundingClientRect().height") > 50
    assert not asked


@pytest.fixture(scope="module")
def field(open_page, address) -> Any:
    """The field that searches the site, ready."""
    page = open_page(1280, search=True)
    page.goto(address)
    field = page.locator("input.md-search__input")
    field.click()
    page.get_by_text("Type to start searching").wait_for()
    return field


@pytest.mark.parametrize("words", HELPFUL)
def test_a_search_finds_a_page_that_helps_first(words, field, address, asked):
    for text in ("", words):
        field.fill(text)
        field.press("End")  # the page waits for a key
        if not text:
            field.page.get_by_text("Type to start searching").wait_for()
    first = field.page.wait_for_selector(".md-search-result__item a")
    found = first.get_attribute("href").removeprefix(address).partition("?")[0].partition("#")[0]
    assert found.strip("/") in HELPFUL[words]
    assert not asked
