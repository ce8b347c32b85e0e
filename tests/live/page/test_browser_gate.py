"""The slider of the idle gate, in a real browser."""

import pytest
from page_browser import TOKEN, PageServer, Watched
from serving import HTTP

pytestmark = [pytest.mark.browser, pytest.mark.slow]


def test_slider_shows_both_figures_and_sets_the_threshold(browser, tmp_path):
    server = PageServer(tmp_path, "--no-log", "--gate").start()
    watched = Watched(browser, server.url).open().connected()
    other = Watched(browser, server.url).open().connected()
    try:
        for each in (watched, other):
            each.page.keyboard.press("o")
            # 0.5 is in force, between 0.2 and 0.6: each figure is the worse one of both.
            assert each.text("#gate-value") == "0.5"
            assert each.text("#gate-false") == "3.0 an hour, at most 4.0"
            assert each.text("#gate-missed") == "10.0 %, at most 20.0 %"
            assert each.text("#gate-of") == "False sentences at 0.2. Missed beginnings at 0.6."
        watched.page.focus("#gate-threshold")
        watched.page.keyboard.press("ArrowRight")
        watched.wait_for_text("#gate-value", "0.6")
        assert watched.text("#gate-missed") == "10.0 %, at most 20.0 %"
        assert watched.text("#gate-of") == ""
        spoken = watched.page.get_attribute("#gate-threshold", "aria-valuetext")
        assert spoken.startswith("0.6; false sentences: 1.0 an hour")
        other.wait_for_text("#gate-value", "0.6")
        # Beyond all that was measured missed beginnings are unknown; the longest numbers are cut.
        headers = {"Authorization": f"Bearer {TOKEN}"}
        body = {"threshold": 0.9933071490757153}
        assert HTTP.post(f"{server.url}api/gate", json=body, headers=headers).status_code == 200
        watched.wait_for_text("#gate-value", "0.993307")
        assert watched.text("#gate-false") == "1.0 an hour, at most 2.0"
        assert watched.text("#gate-missed") == "not measured"
        assert watched.text("#gate-of") == "False sentences at 0.6."
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
