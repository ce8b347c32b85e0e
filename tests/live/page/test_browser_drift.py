"""The panel about drift, in a real browser."""

import pytest
from day_layers import learnt_of_three_days, write_chain
from drift_log import write_log
from page_browser import SEEN_TEXT, PageServer, Watched, contrast

pytestmark = [pytest.mark.browser, pytest.mark.slow]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    root = tmp_path_factory.mktemp("page")
    write_log(root / "log", silent=1, confidence=0.8, model="7-abcd")
    chain = write_chain(root / "chain", learnt_of_three_days)
    server = PageServer(root, "--chain", str(chain)).start()
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
    # Dead, back, confidence, corrected, day layer, model; the chain knows the first three days.
    assert " ".join(rows.first.inner_text().split()) == "2026-01-05 0 0 80 % 100 % – 7-abcd"
    assert " ".join(rows.nth(2).inner_text().split()) == "2026-01-03 0 1 80 % 0 % 10.00 7-abcd"
    assert " ".join(rows.nth(3).inner_text().split()) == "2026-01-02 1 0 80 % 0 % 5.00 7-abcd"
    assert rows.count() == 5
    size = "e => [e.width, e.height]"
    assert watched.page.locator("#drift-shift canvas").evaluate(size) == [5, 4]
    assert watched.text("#drift-first") == "2026-01-01"
    drawn = "e => new Set(new Uint32Array(e.getContext('2d').getImageData(0, 0, 5, 4).data.buffer)).size"
    assert watched.page.locator("#drift-shift canvas").evaluate(drawn) > 1
    # Electrode 0 is dead on one day: two colours.
    assert watched.page.locator("#drift-dead canvas").evaluate(drawn) == 2
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
