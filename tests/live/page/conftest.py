"""Chromium and Firefox, for tests of the page in a browser."""

from pathlib import Path

import pytest
from firefox import FIREFOX, Firefox
from page_browser import CHROMIUM


@pytest.fixture(scope="module")
def browser():
    if not Path(CHROMIUM).is_file():
        pytest.skip("NO CHROMIUM: THE PAGE IS NOT TESTED; install it (apt install chromium)")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def firefox(tmp_path_factory):
    if not Path(FIREFOX).is_file():
        pytest.skip(
            "NO FIREFOX: THE PAGE IS NOT TESTED IN IT; install it (apt install firefox-esr)"
        )
    with Firefox(tmp_path_factory.mktemp("firefox")) as firefox:
        yield firefox
