"""Pictures of the participant's view for the documentation: `python tools/participant_screenshots.py`.

A conversation that the tests know is shown in Debian's Chromium, in light and dark, with
alternatives, and on a phone.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from page_browser import CHROMIUM, PageServer  # noqa: E402
from page_participant import TEA, Scripted  # noqa: E402

SILENT = {"voice.on.participant": "no", "dwell": "1"}
COLOURS = 48
"""Colours of a picture: the page has few, and the files stay small."""


def save(page: Scripted, path: Path, rest_ms: float = 600) -> None:
    """Write a picture of the visible part, as with the pointer at rest."""
    page.page.evaluate("document.body.dataset.rest = 'yes'")
    page.page.wait_for_timeout(rest_ms)
    page.page.screenshot(path=path)
    with Image.open(path) as picture:
        small = picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    small.save(path, optimize=True)


def main() -> None:
    """Write the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    out = parser.parse_args().out
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        server = PageServer(Path(folder), "--no-log").start()
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        try:
            light = Scripted(browser, server.url, kept=SILENT, color_scheme="light").greeted()
            light.talk()
            light.decided(*TEA)
            save(light, out / "participant-light.png")
            light.page.keyboard.press("a")
            box = light.page.locator("#candidates .number").nth(1).bounding_box()
            for x in (30, 31):
                light.page.mouse.move(box["x"] + x, box["y"] + 30)
            save(light, out / "participant-choose.png")
            dark = Scripted(browser, server.url, kept=SILENT, color_scheme="dark").greeted()
            dark.talk()
            save(dark, out / "participant-dark.png")  # until the button has gone
            dark.forming("i would like", "some tea")
            save(dark, out / "participant-dark.png", rest_ms=150)
            phone = Scripted(browser, server.url, kept=SILENT, color_scheme="light")
            phone.page.set_viewport_size({"width": 390, "height": 844})
            phone.greeted().talk()
            phone.decided(*TEA)
            save(phone, out / "participant-phone.png")
        finally:
            browser.close()
            server.stop()


if __name__ == "__main__":
    main()
