"""Pictures for the documentation: `python tools/screenshots.py` after `make demo`.

Serves the demo's validation trials in Debian's Chromium, at real speed: a picture of the light page
when a sentence has been decided, and one of the dark page while the next one forms. Then the top of
the demo's report, and with `--use PAGE` of a page that `cortext report use` wrote.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from playwright.sync_api import Browser, Page, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
LIGHT = ("sim.2025.01.08", "trial 13")
DARK = ("sim.2025.01.15", "trial 18")
"""The decoded trial: session and number."""
FORMING_MS = 5_600
"""After so long the dark picture is taken."""
REPORT_PX = 810
USE_PX = 785
"""Height of the pictures of the reports: down to the end of a table or figure."""


def start(page: Page, url: str, trial: tuple[str, str]) -> None:
    """Open the page and decode a trial."""
    page.goto(url)
    page.wait_for_selector('#link[data-link="open"]')
    page.select_option("#session", trial[0])
    labels = page.locator("#trial option").all_inner_texts()
    page.select_option("#trial", label=next(label for label in labels if label.endswith(trial[1])))
    page.click("#run")


def decided(page: Page) -> None:
    """Wait for the sentence and the statistics after it."""
    page.wait_for_selector("#sentence[data-kind=decided] .sure", timeout=60_000)
    page.wait_for_timeout(500)


def top(browser: Browser, page: Path, picture: Path, height: int) -> None:
    """Take a picture of the top of an HTML file."""
    shown = browser.new_page(viewport={"width": 1000, "height": height}, color_scheme="light")
    shown.goto(page.resolve().as_uri())
    shown.screenshot(path=picture)
    shown.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--demo", type=Path, default=ROOT / "runs" / "demo")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    parser.add_argument("--log", type=Path, default=ROOT / "build" / "screenshots-log")
    parser.add_argument("--use", type=Path, help="page that `cortext report use` wrote")
    parser.add_argument(
        "--size", type=int, nargs=2, default=(1280, 800), metavar=("WIDTH", "HEIGHT")
    )
    asked = parser.parse_args()
    verb = [
        Path(sys.executable).with_name("cortext"),
        "serve",
        asked.demo / "run",
        "--lm",
        asked.demo / "lm",
    ]
    data = ["--data", asked.demo / "packed", "--port", "0", "--session-log", asked.log]
    command = [str(part) for part in (*verb, *data)]
    with (
        subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server,
        sync_playwright() as playwright,
    ):
        try:
            assert server.stdout is not None
            url = next(line.strip() for line in server.stdout if line.startswith("http"))
            browser = playwright.chromium.launch(
                executable_path=asked.chromium, args=["--no-sandbox"]
            )
            width, height = asked.size
            settings = {"viewport": {"width": width, "height": height}, "device_scale_factor": 1.5}
            page = browser.new_page(color_scheme="light", **settings)
            start(page, url, LIGHT)
            decided(page)
            page.screenshot(path=asked.out / "live-light.png")
            page.close()
            page = browser.new_page(color_scheme="dark", **settings)
            start(page, url, DARK)
            page.wait_for_timeout(FORMING_MS)
            page.screenshot(path=asked.out / "live-dark.png")
            top(browser, asked.demo / "eval" / "report.html", asked.out / "report.png", REPORT_PX)
            if asked.use:
                top(browser, asked.use, asked.out / "use.png", USE_PX)
            browser.close()
        finally:
            server.terminate()


if __name__ == "__main__":
    main()
