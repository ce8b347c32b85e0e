"""Hours of use of the live page in fast motion: nothing is lost, memory stays flat.

    python benchmarks/long_use.py [--hours 8] [--speed 40] [--json FILE]

The real server decodes recordings again and again, faster than they were spoken, with a model whose
sentences are known. Both views are open in Chromium. Every 20 seconds of signal somebody corrects
or rates a sentence in the observers' page, types a partner's turn, deletes entries, speaks in
private, or loads a page again. After each hour the server pauses and memory is measured. In the end
the conversation is compared with the sentences that were not deleted: as the server returns it, as
it exports it, and as a restarted server reads it from the disk. Deleted and private words are looked
for in all files of the log. See `tests/support/page_use.py`.
"""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

from playwright.sync_api import sync_playwright

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

from page_browser import CHROMIUM
from page_use import LongUse, is_faultless

from cortext.provenance import provenance
from cortext_bench.harness import markdown_table, study_arguments, write_result


def main() -> int:
    parser = study_arguments(__doc__)
    parser.add_argument("--hours", type=float, default=8.0)
    parser.add_argument("--measures", type=int, default=8)
    parser.add_argument("--speed", type=float, default=40.0)
    asked = parser.parse_args()
    started_s = time.monotonic()
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        use = LongUse(Path(folder), browser, asked.speed)
        try:
            use.run(asked.hours, asked.measures)
            result = use.finish()
        finally:
            use.server.kill()
            browser.close()
    rows = [
        [
            f"{each['signal_h']:.1f}",
            f"{each['server_mb']:.0f}",
            *(f"{page['heap_mb']:.1f}, {page['nodes']:.0f}" for page in each["pages"].values()),
        ]
        for each in result["memory"]
    ]
    columns = ["hours", "server, MB", "observers' page: MB, nodes", "participant's view: MB, nodes"]
    print(markdown_table(columns, rows))
    print({name: value for name, value in result.items() if name != "memory"})
    result["wall_s"] = round(time.monotonic() - started_s)
    write_result(asked.json, result | provenance())
    return int(not is_faultless(result))


if __name__ == "__main__":
    sys.exit(main())
