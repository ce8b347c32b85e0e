"""The panel about drift, in a real browser."""

import pytest
from drift_log import write_log
from page_browser import SEEN_TEXT, PageServer, Watched, contrast

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("page")
    write_log(root / "log", confidence=0.8, model="7-abcd")
    server = PageServer(root).start()
    yield server
    server.stop()


def opened(browser, server, **options):
    watched = Watched(browser, server.url, **options).open().connected()
    watched.page.keyboard.press("f")
    watched.page.wait_for_selector("#drift-changes li", timeout=60_000)
    return watched


def test_panel_tells_changes_and_draws_a_cell_for_each_array_and_day(browser, server):
    watched = opened(browser, server)
    assert watched.text("#drift-changes") == (
        "Since 2026-01-05 (recording day 5), the share of corrected sentences is 100 %, after 0 %."
    )
    rows = watched.page.locator("#drift-days tbody tr")
    assert " ".join(rows.first.inner_text().split()) == "2026-01-05 80 % 100 % 0 7-abcd"
    assert rows.count() == 5
    size = "e => [e.width, e.height]"
    assert watched.page.locator("#drift-shift canvas").evaluate(size) == [5, 4]
    assert watched.text("#drift-first") == "2026-01-01"
    drawn = "e => new Set(new Uint32Array(e.getContext('2d').getImageData(0, 0, 5, 4).data.buffer)).size"
    assert watched.page.locator("#drift-shift canvas").evaluate(drawn) > 1
    # No electrode is dead: one colour.
    assert watched.page.locator("#drift-dead canvas").evaluate(drawn) == 1
    watched.page.select_option("#drift-columns", "blocks")
    assert watched.page.is_hidden("#drift-dead")
    assert watched.text("#drift-first") == "2026-01-01 10:00"
    watched.page.keyboard.press("Escape")
    watched.page.wait_for_selector("#drift-panel", state="hidden")
    assert watched.complaints == watched.foreign == []
    watched.context.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_its_text_has_enough_contrast(browser, server, theme):
    watched = opened(browser, server, color_scheme=theme)
    seen = watched.page.evaluate(SEEN_TEXT)
    weak = [t for t in seen if contrast(t["ink"], t["ground"]) < (3 if t["large"] else 4.5)]
    assert weak == []
    watched.context.close()


def test_panel_fits_a_phone(browser, server):
    watched = opened(browser, server)
    watched.page.set_viewport_size({"width": 390, "height": 800})
    wide = "() => document.documentElement.scrollWidth"
    assert watched.page.evaluate(wide) <= 390
    box = watched.page.locator("#drift-panel").bounding_box()
    assert box["x"] >= 0
    assert box["x"] + box["width"] <= 390
    watched.context.close()
