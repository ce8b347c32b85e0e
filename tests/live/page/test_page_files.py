"""The page's files: what can be said of them without a browser."""

import re
from importlib import resources
from pathlib import Path

import pytest
from page_browser import contrast

from cortext_live.page.server import VIEWS as ADDRESSES

WEB = resources.files("cortext_live.page") / "web"
SCRIPTS = sorted(Path(str(WEB)).rglob("*.js"))
SHEETS = sorted(Path(str(WEB)).rglob("*.css"))
VIEWS = sorted(Path(str(WEB)).glob("*.html"))
TEXT_COLOURS = ("ink", "soft", "settled", "tail", "wrong", "accent")
SEEN_COLOURS = ("edge", "accent", "wrong")


def colours(theme):
    """The style sheet's named colours as red, green and blue."""
    named = re.findall(
        r"--([\w-]+): light-dark\(#(\w{6}), #(\w{6})\)", (WEB / "style.css").read_text()
    )
    assert len(named) >= 10
    return {name: tuple(bytes.fromhex(pair[theme == "dark"])) for name, *pair in named}


def test_contrast_is_that_of_the_guidelines():
    # black on white, and the lightest grey that passes on white (WebAIM's examples)
    assert contrast((0, 0, 0), (255, 255, 255)) == pytest.approx(21)
    assert contrast((0x76, 0x76, 0x76), (255, 255, 255)) == pytest.approx(4.54, abs=0.005)
    assert contrast((0x77, 0x77, 0x77), (255, 255, 255)) == pytest.approx(4.48, abs=0.005)


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_text_and_what_must_be_seen_pass_aa_on_both_grounds(theme):
    named = colours(theme)
    for ground in ("ground", "raised"):
        found = {
            name: contrast(named[name], named[ground]) for name in {*TEXT_COLOURS, *SEEN_COLOURS}
        }
        assert min(found[name] for name in TEXT_COLOURS) >= 4.5, found
        assert min(found[name] for name in SEEN_COLOURS) >= 3, found
    assert contrast(named["on-accent"], named["accent"]) >= 4.5
    assert contrast(named["soft"], named["heat-mid"]) >= 4.5


@pytest.mark.parametrize("sheet", SHEETS, ids=lambda file: file.name)
def test_every_colour_is_named_once_and_for_both_themes(sheet):
    rules = re.sub(r"/\*.*?\*/", "", sheet.read_text(), flags=re.S)
    if sheet.name == "style.css":  # the names themselves
        rules = rules.split("font:", 1)[1]
    assert not re.search(r"#[0-9a-fA-F]{3,8}\b(?![^{]*\{)", rules)
    assert not re.search(r"\brgba?\(|\bhsla?\(", rules)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda file: file.name)
def test_scripts_make_no_markup_and_no_code_of_text(script):
    text = script.read_text()
    assert not re.search(
        r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\b|new Function|srcdoc", text
    )
    assert not re.search(r"https?://", text)
    assert len(text.splitlines()) <= 400


@pytest.mark.parametrize("view", VIEWS, ids=lambda file: file.name)
def test_the_page_holds_nothing_that_a_strict_policy_refuses(view):
    html = view.read_text()
    assert not re.search(r"<style|\sstyle=|\son\w+=|https?://|javascript:", html)
    assert all("src=" in tag for tag in re.findall(r"<script[^>]*>", html))


def test_every_file_that_a_page_asks_for_is_in_the_package():
    asked = {
        view.parent / name
        for view in VIEWS
        for name in re.findall(r'(?:href|src)="([^"#]+)"', view.read_text())
    }
    asked |= {
        script.parent / name
        for script in SCRIPTS
        for name in re.findall(r'from "(\.[^"]+)"', script.read_text())
    }
    asked |= {
        sheet.parent / name
        for sheet in SHEETS
        for name in re.findall(r'url\("([^"]+)"\)', sheet.read_text())
    }
    assert {"app.js", "timeline.js", "style.css", "atkinson-next.woff2"} <= {f.name for f in asked}
    asked -= {WEB / address for address in ADDRESSES}  # of views, which lead to each other
    assert [file for file in asked if not file.is_file()] == []
    assert (WEB / "atkinson-next.LICENSE.txt").read_text().count("SIL OPEN FONT LICENSE") == 1
