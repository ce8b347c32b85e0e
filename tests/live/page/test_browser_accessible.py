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


@pytest.fixture(params=["light", "dark"])
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
