"""The observers' page for everybody: axe-core, all sizes of window, keyboard."""

import pytest
from page_browser import PageServer, Watched, axe

pytestmark = [pytest.mark.browser, pytest.mark.slow]

PANELS = "[popovertarget]:enabled"
"""Buttons that open a panel."""


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = PageServer(tmp_path_factory.mktemp("page"), "--speed", "16").start()
    yield server
    server.stop()


@pytest.fixture(scope="module", params=["light", "dark"])
def watched(browser, server, request):
    watched = Watched(browser, server.url, color_scheme=request.param).open().connected()
    watched.decode(1)
    yield watched
    watched.context.close()
    assert watched.foreign == []
    assert watched.complaints == []


def open_panels(watched):
    """Open one panel after the other with its key; yield its name while it is open."""
    buttons = watched.page.locator(PANELS)
    assert buttons.count() >= 4
    for i in range(buttons.count()):
        button = buttons.nth(i)
        panel = button.get_attribute("popovertarget")
        watched.page.keyboard.press(button.get_attribute("aria-keyshortcuts"))
        watched.page.wait_for_selector(f"#{panel}", state="visible")
        yield panel
        watched.page.keyboard.press("Escape")
        watched.page.wait_for_selector(f"#{panel}", state="hidden")
        assert button.evaluate("it => it === document.activeElement"), panel


def test_axe_finds_nothing_on_the_page_in_any_panel_and_in_the_editor(watched):
    assert axe(watched.page) == []
    for panel in open_panels(watched):
        assert axe(watched.page) == [], panel
    watched.page.keyboard.press("e")
    assert axe(watched.page) == []
    watched.page.keyboard.press("Escape")
    watched.page.set_viewport_size({"width": 390, "height": 844})
    assert axe(watched.page) == []
    watched.page.set_viewport_size({"width": 1280, "height": 800})


SIZES = ((390, 844), (768, 1024), (1280, 800), (1920, 1080), (3840, 2160))
BARS = """() => ['header', '#play', '#source', '#panels'].map((bar) =>
  [...document.querySelectorAll(`${bar} :is(h1, p, a, button, select)`)].filter((it) => it.checkVisibility())
    .map((it) => { const box = it.getBoundingClientRect(); return [box.left, box.top, box.right, box.bottom, it.id || it.tagName]; }))"""


def overlap(one, other):
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


@pytest.mark.parametrize("size", SIZES, ids=lambda size: str(size[0]))
def test_top_and_bottom_are_tidy_and_nothing_is_wider_than_the_window(watched, size):
    width, height = size
    watched.page.set_viewport_size({"width": width, "height": height})
    assert watched.page.evaluate("document.documentElement.scrollWidth") == width
    bars = watched.page.evaluate(BARS)
    controls = [box for bar in bars for box in bar]
    assert len(controls) >= 12
    assert min(box[0] for box in controls) >= 0
    assert max(box[2] for box in controls) <= width
    touching = [
        (one[4], other[4])
        for bar in bars
        for i, one in enumerate(bar)
        for other in bar[:i]
        if overlap(one, other)
    ]
    assert touching == []
    if width >= 1280:  # one row at the top, one at the bottom
        footer = watched.page.locator("footer").bounding_box()
        assert footer["height"] < 1.8 * watched.page.locator("#run").bounding_box()["height"]
        assert footer["y"] + footer["height"] <= height
    for panel in open_panels(watched) if width in (390, 1280) else ():
        box = watched.page.locator(f"#{panel}").bounding_box()
        assert box["x"] >= 0, panel
        assert box["x"] + box["width"] <= width, panel
        assert box["y"] >= 0, panel
        assert box["y"] + box["height"] <= height, panel
    watched.page.set_viewport_size({"width": 1280, "height": 800})


def test_on_a_phone_start_and_stop_are_always_in_sight_and_no_key_is_hinted(browser, server):
    phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True}
    watched = Watched(browser, server.url, **phone).open().connected()
    for place in ("0", "document.body.scrollHeight"):
        watched.page.evaluate(f"scrollTo(0, {place})")
        box = watched.page.locator("#run").bounding_box()
        assert 0 <= box["y"] < box["y"] + box["height"] <= 844
        # Nothing covers it, and nothing else is under it at the page's end.
        hit = watched.page.evaluate(
            f"document.elementFromPoint({box['x'] + 20}, {box['y'] + 10}).closest('button').id"
        )
        assert hit == "run"
    options = watched.page.locator("#options").bounding_box()
    assert options["y"] + options["height"] <= box["y"]
    hints = "all => all.filter(it => it.checkVisibility()).length"
    assert watched.page.locator("button kbd, label kbd, label + kbd").evaluate_all(hints) == 0
    watched.page.tap("#run")
    watched.wait_for_text("#run-text", "Stop")
    watched.page.tap("#run")
    watched.wait_for_text("#run-text", "Start")
    watched.context.close()
    assert watched.complaints == []


def test_header_says_model_day_and_language_model_in_words(watched):
    about = "model a run, day 11 August 2023, language model a language model, cortext 0"
    assert watched.text("#about") == about
    script = """async () => { const { inWords } = await import('./language.js');
      return ['sim.2025.01.17', 'today', '2025.02.30', null].map(inWords); }"""
    assert watched.page.evaluate(script) == ["17 January 2025", "today", "2025.02.30", None]


def test_participants_view_is_one_link_away_with_the_same_token(watched):
    with watched.page.expect_popup() as opened:
        watched.page.click("#participant")
    assert opened.value.url.endswith("/participant#token=secret")
    opened.value.wait_for_selector("#sentence")


def test_axe_finds_nothing_for_those_who_may_only_watch(browser, tmp_path):
    server = PageServer(tmp_path, "--open-view", "--no-log").start()
    watched = Watched(browser, server.url)
    try:
        watched.page.goto(server.url)
        watched.connected()
        assert axe(watched.page) == []
        watched.page.evaluate("document.querySelector('#alert').hidden = false")
        watched.page.evaluate("document.querySelector('#alert-text').textContent = 'a fault'")
        assert axe(watched.page) == []
    finally:
        watched.context.close()
        server.stop()
    assert watched.complaints == []
