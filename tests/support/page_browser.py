"""Chromium and the page's server, for tests and screenshots."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from functools import cache
from pathlib import Path

import pytest
from page_process import program

CHROMIUM = "/usr/bin/chromium"
AXE = Path(__file__).resolve().parents[2] / "build/axe/package/axe.min.js"
TOKEN = "secret"
PATIENCE_MS = 15_000


class PageServer:
    """`page_process.py` in a process of its own, on a free port that it keeps when it is started
    again.
    """

    def __init__(self, root: Path, *options: str) -> None:
        self.root, self.options, self.port = root, options, 0

    def start(self) -> PageServer:
        command = program(self.root, "--port", str(self.port), *self.options)
        environment = os.environ | {"OMP_NUM_THREADS": "1"}
        self._process = subprocess.Popen(
            command, stdout=subprocess.PIPE, env=environment, text=True
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.kill()
            raise RuntimeError(f"{command} ended before it listened")
        self.port = int(line)
        return self

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def kill(self) -> None:
        """As a crash ends it."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        self._process.send_signal(how)
        self._process.wait(60)
        assert self._process.stdout is not None
        self._process.stdout.close()


SEEN_TEXT = """() => {
  const numbers = (text) => text.match(/[\\d.]+/g).map(Number);
  const solid = (e) => { for (; e; e = e.parentElement) {
    const colour = numbers(getComputedStyle(e).backgroundColor);
    if (colour.length < 4 || colour[3] > 0) return colour.slice(0, 3); } };
  return [...document.querySelectorAll('body *')].filter((e) => e.checkVisibility({visibilityProperty: true})
      && [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim()) && !e.closest('.unseen, option'))
    .map((e) => { const style = getComputedStyle(e); return { text: e.textContent.trim().slice(0, 30), ground: solid(e),
      ink: numbers(style.color).slice(0, 3), large: parseFloat(style.fontSize) >= 24 }; }); }"""
"""Each piece of text that is seen: its colour, the colour under it, whether it is large."""

LIVE = (
    "output, [role=status], [role=alert], [role=log], [role=timer], [role=marquee],"
    " [aria-live]:not([aria-live=off])"
)
"""Elements whose changes a screen reader reads without being asked."""
LISTEN = """live => { window.heard = [];
  new MutationObserver((changes) => { for (const { target } of changes) {
      const element = target.nodeType === Node.TEXT_NODE ? target.parentElement : target;
      const region = element.closest(live);
      if (region?.checkVisibility()) heard.push(region.textContent.trim());
    } }).observe(document.body, {childList: true, characterData: true, subtree: true}); }"""
FAULTS = """async () => {
  const { violations } = await axe.run(document, { resultTypes: ["violations"] });
  return violations.flatMap(({ id, help, nodes }) =>
    nodes.map(({ target, any }) => `${id}: ${help}: ${target.join(" ")} ${any[0]?.message ?? ""}`));
}"""


@cache
def _axe_source() -> str:
    if not AXE.is_file():
        pytest.skip(
            "NO AXE-CORE: ACCESSIBILITY IS NOT TESTED; run `make build/axe/package/axe.min.js`"
        )
    return AXE.read_text()


def axe(page) -> list[str]:
    """Return what axe-core finds wrong with the accessibility of a page as it stands.

    All of its rules are used, those of WCAG 2.2 A and AA and of best practice. The debugger runs it:
    the page's policy for scripts, which would refuse it, stays in force.
    """
    if page.evaluate("typeof axe") == "undefined":
        page.evaluate(_axe_source())
    return page.evaluate(FAULTS)


class Watched:
    """A page, and all that it asked for and complained of."""

    def __init__(self, browser, base, **options):
        options = {"viewport": {"width": 1280, "height": 800}} | options
        self.context = browser.new_context(**options)
        self.base, self.foreign, self.complaints = base, [], []
        self.context.route("**/*", self._route)
        self.page = self.context.new_page()
        self.page.set_default_timeout(PATIENCE_MS)
        self.page.on(
            "console",
            lambda m: self.complaints.append(m.text) if m.type in ("error", "warning") else None,
        )
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.is_greeted = False
        self.page.on("websocket", self._follow)

    def _follow(self, socket):
        """Note when a connection's greeting has come, the last part of which are the statistics."""
        self.is_greeted = False
        socket.on("framereceived", self._note)

    def _note(self, message):
        self.is_greeted = self.is_greeted or json.loads(message)["type"] == "stats"

    def _route(self, route):
        if route.request.url.startswith(self.base):
            route.continue_()
        else:
            self.foreign.append(route.request.url)
            route.abort()

    def open(self, token=TOKEN):
        self.page.goto(f"{self.base}#token={token}")
        return self

    def connected(self):
        self.page.wait_for_selector('#link[data-link="open"]')
        return self

    def text(self, selector):
        return " ".join(self.page.locator(selector).inner_text().split())

    def wait_for_text(self, selector, text):
        script = (
            "([s, t]) => document.querySelector(s)?.innerText.replace(/\\s+/g, ' ').trim() === t"
        )
        self.page.wait_for_function(script, arg=[selector, text])

    def listen(self):
        """Note what a screen reader would read from now on by itself: see `heard`."""
        self.page.evaluate(LISTEN, LIVE)

    def heard(self):
        """Texts of live regions at each change, in order, without those that got empty."""
        return [text for text in self.page.evaluate("heard") if text]

    def live_regions(self):
        """Names of the elements that the browser itself takes for live, whatever makes them so."""
        session = self.context.new_cdp_session(self.page)
        nodes = session.send("Accessibility.getFullAXTree")["nodes"]
        live = [
            node
            for node in nodes
            if any(item["name"] == "live" for item in node.get("properties", []))
        ]
        found = [
            session.send("DOM.describeNode", {"backendNodeId": node["backendDOMNodeId"]})["node"]
            for node in live
        ]
        return [
            dict(zip(*[iter(node["attributes"])] * 2, strict=True)).get("id", node["nodeName"])
            for node in found
        ]

    def decode(self, trial):
        """Choose a trial of the first day, start, and wait for its end."""
        self.page.select_option("#session", index=0)
        self.page.select_option("#trial", label=f"block 1, trial {trial}")
        self.decoded_by(lambda: self.page.click("#run"))

    def decoded_by(self, start):
        """Start a trial, and wait for its end.

        The greeting may announce the last sentence of those before it, so it comes first. Nobody
        waits for the state "running": a page that is slow gets the state after it alone.
        """
        for _ in range(PATIENCE_MS // 10):
            if self.is_greeted:
                break
            self.page.wait_for_timeout(10)
        assert self.is_greeted, "no greeting has come"
        self.page.evaluate("document.querySelector('#announce').textContent = ''")
        start()
        self.page.wait_for_function(
            "() => document.body.dataset.state !== 'running'"
            " && document.querySelector('#announce').textContent.startsWith('Decoded')"
        )


# Contrast as the Web Content Accessibility Guidelines 2.2 define it (relative luminance, section
# "Definitions").


def luminance(rgb: tuple[float, ...]) -> float:
    """Of red, green and blue from 0 to 255."""
    red, green, blue = (
        (c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4)
        for c in (v / 255 for v in rgb)
    )
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: tuple[float, ...], other: tuple[float, ...]) -> float:
    """From 1 (the same) to 21 (black on white)."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)
