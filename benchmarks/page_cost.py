"""Cost of the observers' page for each message, and delay of messages, of two checkouts in turns.

    python benchmarks/page_cost.py --before CHECKOUT [--turns 5] [--seconds 20] [--json FILE]

The server of each checkout plays recordings in which a known model hears sentences, at real speed,
with a usage log and one page in Chromium (1920 x 1080).

- Delay: the time at which a step arrives minus the time in its recording, against the fastest step
  of its utterance.
- Step: time of the decoding thread, as the server itself reports it.
- Draw: time of one picture of the timeline.
- The page's own work for a message, with the layout after it. The messages of four sentences are
  given to the page 15 times, and the shortest time of each counts: other work on the machine does
  not disturb it.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
from playwright.sync_api import Browser, Page, sync_playwright
from websockets.sync.client import connect

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from page_browser import CHROMIUM, TOKEN  # noqa: E402
from page_process import program  # noqa: E402

from cortext.provenance import provenance  # noqa: E402
from cortext_bench.harness import (  # noqa: E402
    markdown_table,
    percentiles,
    study_arguments,
    write_result,
)

N_SENTENCES = 4
KINDS = ("step", "utterance", "state", "stats")
SERVER = """import runpy, sys
sys.meta_path[:] = [it for it in sys.meta_path if 'editable' not in type(it).__module__]
sys.path[:0] = [{root!r} + '/src', {root!r} + '/tests/support']
sys.argv[0] = {root!r} + '/tests/support/page_process.py'
runpy.run_path(sys.argv[0], run_name='__main__')"""
WATCH = """window.steps = []; window.drawn = [];
const set = Object.getOwnPropertyDescriptor(WebSocket.prototype, 'onmessage').set;
Object.defineProperty(WebSocket.prototype, 'onmessage', { set(handler) {
  set.call(this, (event) => { const arrived = performance.now(), message = JSON.parse(event.data);
    handler(event);
    if (message.type === 'step') steps.push([message.utterance, message.t_ms, arrived]);
    if (message.type === 'stats') window.told = message.latency; }); } });
const later = window.requestAnimationFrame.bind(window);
window.requestAnimationFrame = (draw) => later((now) => { const began = performance.now(); draw(now);
  drawn.push(performance.now() - began); });"""
FAKE = """window.WebSocket = class extends EventTarget {
  constructor() { super(); window.fake = this; } close() {} send() {} };"""
REPEAT = """(messages) => { const costs = messages.map(() => Infinity);
  for (let turn = 0; turn < 15; turn++) messages.forEach((data, i) => { const began = performance.now();
    fake.onmessage({ data }); document.body.offsetHeight;
    costs[i] = Math.min(costs[i], performance.now() - began); });
  return costs; }"""


@contextmanager
def served(checkout: Path, folder: Path) -> Iterator[str]:
    """Run the server of a checkout; yield its address."""
    other = [sys.executable, "-c", SERVER.format(root=str(checkout)), str(folder)]
    command = program(folder) if checkout == ROOT else other
    with subprocess.Popen(
        [*command, "--speed", "1", "--loop"], stdout=subprocess.PIPE, text=True, cwd=checkout
    ) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/"
        finally:
            process.terminate()


def opened(browser: Browser, url: str, script: str) -> Page:
    page = browser.new_page(viewport={"width": 1920, "height": 1080})
    page.add_init_script(script)
    page.goto(f"{url}#token={TOKEN}")
    return page


def watched(browser: Browser, url: str, seconds: float) -> dict[str, list[float]]:
    """Return milliseconds of steps as they come: delay, drawing, and what the server reports."""
    page = opened(browser, url, WATCH)
    page.wait_for_selector('#link[data-link="open"]')
    page.wait_for_timeout(500)
    page.click("#run")
    page.wait_for_timeout(1000 * seconds)
    page.click("#run")
    steps, drawn, told = page.evaluate("[steps, drawn, told]")
    page.close()
    first: dict[int, float] = {}
    for utterance, t_ms, arrived_ms in steps:
        first[utterance] = min(arrived_ms - t_ms, first.get(utterance, float("inf")))
    return {
        "delay": [arrived - t_ms - first[utterance] for utterance, t_ms, arrived in steps],
        "draw": drawn,
        "step of the server": [told["total"]["p50"], told["total"]["p99"]],
    }


def repeated(browser: Browser, url: str) -> dict[str, list[float]]:
    """Return milliseconds of the page's work for messages of each kind."""
    messages: list[str] = []
    with connect(f"{url.replace('http', 'ws')}ws?token={TOKEN}", max_size=None) as socket:
        headers = {"Authorization": f"Bearer {TOKEN}"}
        httpx.post(f"{url}api/start", json={}, headers=headers)
        while sum(json.loads(text)["type"] == "utterance" for text in messages) < N_SENTENCES:
            messages.append(str(socket.recv()))
        httpx.post(f"{url}api/stop", json={}, headers=headers)
    page = opened(browser, url, FAKE)
    page.wait_for_function("() => window.fake?.onmessage")
    costs = page.evaluate(REPEAT, messages)
    page.close()
    kinds = [json.loads(text)["type"] for text in messages]
    return {
        f"work for {kind}": [cost for of, cost in zip(kinds, costs, strict=True) if of == kind]
        for kind in KINDS
    }


def main() -> int:
    parser = study_arguments(__doc__)
    parser.add_argument("--before", type=Path, required=True, help="checkout with its native part")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0)
    asked = parser.parse_args()
    found: dict[str, dict[str, list[float]]] = {"before": {}, "after": {}}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for _ in range(asked.turns):
            for name, checkout in (("before", asked.before.resolve()), ("after", ROOT)):
                with tempfile.TemporaryDirectory() as folder, served(checkout, Path(folder)) as url:
                    turn = repeated(browser, url) | watched(browser, url, asked.seconds)
                for kind, values in turn.items():
                    found[name].setdefault(kind, []).extend(values)
        browser.close()
    result = {
        name: {kind: percentiles(values) | {"n": len(values)} for kind, values in kinds.items()}
        for name, kinds in found.items()
    }
    rows = [
        [kind, *(f"{result[name][kind][p]:.2f}" for p in ("p50", "p99") for name in found)]
        for kind in found["after"]
    ]
    columns = ["ms", "median before", "median after", "p99 before", "p99 after"]
    print(markdown_table(columns, rows))
    write_result(asked.json, {"turns": asked.turns, **result} | provenance())
    return 0


if __name__ == "__main__":
    sys.exit(main())
