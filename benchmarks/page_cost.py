"""Cost of the observers' page for each step, and delay of its messages, of two checkouts in turns.

    python benchmarks/page_cost.py --before CHECKOUT [--turns 5] [--seconds 20] [--json FILE]

The server of each checkout plays recordings in which a known model hears sentences, at real speed,
with a usage log and one page in Chromium (1920 x 1080). The page notes when each step arrives, how
long its handler takes, and how long each picture takes to be drawn. The delay of a message is its
time of arrival minus the time in its recording, against the fastest message of its utterance. The
processor time of the decoding thread for each step is the one that the server itself reports.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from playwright.sync_api import Browser, sync_playwright

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "support"))

from page_browser import CHROMIUM, TOKEN  # noqa: E402
from page_process import program  # noqa: E402

from cortext.bench.harness import (  # noqa: E402
    markdown_table,
    median_and_spread,
    percentiles,
    study_arguments,
    write_result,
)
from cortext.provenance import provenance  # noqa: E402

WATCH = """() => {
  window.steps = []; window.drawn = [];
  const set = Object.getOwnPropertyDescriptor(WebSocket.prototype, 'onmessage').set;
  Object.defineProperty(WebSocket.prototype, 'onmessage', { set(handler) {
    set.call(this, (event) => { const arrived = performance.now(); handler(event);
      const took = performance.now() - arrived, message = JSON.parse(event.data);
      if (message.type === 'step') steps.push([message.utterance, message.t_ms, arrived, took]);
      if (message.type === 'stats') window.told = message.latency; }); } });
  const later = window.requestAnimationFrame.bind(window);
  window.requestAnimationFrame = (draw) => later((now) => { const began = performance.now(); draw(now);
    drawn.push(performance.now() - began); });
}"""
SERVER = """import runpy, sys
sys.meta_path[:] = [it for it in sys.meta_path if 'editable' not in type(it).__module__]
sys.path[:0] = [{root!r} + '/src', {root!r} + '/tests/support']
sys.argv[0] = {root!r} + '/tests/support/page_process.py'
runpy.run_path(sys.argv[0], run_name='__main__')"""


@contextmanager
def served(checkout: Path, folder: Path) -> Iterator[str]:
    """Run the server of a checkout; yield its address."""
    start = [SERVER.format(root=str(checkout)), str(folder)]
    command = program(folder) if checkout == ROOT else [sys.executable, "-c", *start]
    with subprocess.Popen(
        [*command, "--speed", "1", "--loop"], stdout=subprocess.PIPE, text=True, cwd=checkout
    ) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{int(process.stdout.readline())}/"
        finally:
            process.terminate()


def measure(checkout: Path, browser: Browser, seconds: float) -> dict[str, list[float]]:
    """Return milliseconds of steps: their delay, their handler, the drawing; the server's p99."""
    with tempfile.TemporaryDirectory() as folder, served(checkout, Path(folder)) as url:
        page = browser.new_page(viewport={"width": 1920, "height": 1080})
        page.add_init_script(f"({WATCH})()")
        page.goto(f"{url}#token={TOKEN}")
        page.wait_for_selector('#link[data-link="open"]')
        page.wait_for_timeout(500)
        page.click("#run")
        page.wait_for_timeout(1000 * seconds)
        steps, drawn, told = page.evaluate("[steps, drawn, told]")
        page.close()
    first: dict[int, float] = {}
    for utterance, t_ms, arrived_ms, _ in steps:
        first[utterance] = min(arrived_ms - t_ms, first.get(utterance, float("inf")))
    return {
        "delay": [arrived - t_ms - first[utterance] for utterance, t_ms, arrived, _ in steps],
        "read": [took for *_, took in steps],
        "draw": drawn,
        "step": [told["total"]["p50"]],
        "step, p99": [told["total"]["p99"]],
    }


def main() -> int:
    parser = study_arguments(__doc__)
    parser.add_argument(
        "--before", type=Path, required=True, help="another checkout, with its native part"
    )
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=20.0)
    asked = parser.parse_args()
    found: dict[str, list[dict[str, list[float]]]] = {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        for _ in range(asked.turns):
            for name, checkout in (("before", asked.before), ("after", ROOT)):
                found.setdefault(name, []).append(
                    measure(checkout.resolve(), browser, asked.seconds)
                )
        browser.close()
    rows, result = [], {}
    for name, turns in found.items():
        result[name] = {
            kind: {
                "p50": median_and_spread([percentiles(turn[kind])["p50"] for turn in turns])[0],
                "p99": median_and_spread([percentiles(turn[kind])["p99"] for turn in turns])[0],
                "n": sum(len(turn[kind]) for turn in turns),
            }
            for kind in turns[0]
        }
        rows += [
            [name, kind, f"{each['p50']:.2f}", f"{each['p99']:.2f}", each["n"]]
            for kind, each in result[name].items()
        ]
    print(markdown_table(["checkout", "ms of", "median", "99th percentile", "n"], rows))
    write_result(
        asked.json, {"turns": asked.turns, "seconds": asked.seconds} | result | provenance()
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
