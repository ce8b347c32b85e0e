"""The slider of the idle gate, in a real browser."""

import pytest
from page_browser import PageServer, Watched

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_slider_shows_both_figures_and_sets_the_threshold(browser, tmp_path):
    server = PageServer(tmp_path, "--no-log", "--gate").start()
    watched = Watched(browser, server.url).open().connected()
    other = Watched(browser, server.url).open().connected()
    try:
        for each in (watched, other):
            each.page.keyboard.press("o")
            # 0.5 is in force; figures are those of 0.2, the nearest below.
            assert each.text("#gate-value") == "0.5"
            assert each.text("#gate-false") == "3.0 an hour, at most 4.0"
            assert each.text("#gate-of") == "Figures of 0.2."
        watched.page.focus("#gate-threshold")
        watched.page.keyboard.press("ArrowRight")
        watched.wait_for_text("#gate-value", "0.6")
        assert watched.text("#gate-missed") == "10.0 %, at most 20.0 %"
        assert watched.text("#gate-of") == ""
        spoken = watched.page.get_attribute("#gate-threshold", "aria-valuetext")
        assert spoken.startswith("0.6; false sentences: 1.0 an hour")
        other.wait_for_text("#gate-value", "0.6")
        assert watched.complaints == watched.foreign == []
    finally:
        watched.context.close()
        other.context.close()
        server.stop()


def test_without_a_gate_there_is_no_slider(browser, tmp_path):
    server = PageServer(tmp_path, "--no-log").start()
    watched = Watched(browser, server.url).open().connected()
    try:
        watched.page.keyboard.press("o")
        assert watched.page.is_visible("#options-panel")
        assert watched.page.is_hidden("#gate")
    finally:
        watched.context.close()
        server.stop()
