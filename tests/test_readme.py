"""The README is short, and its table says what the benchmarks have measured."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[1]
README = (ROOT / "README.md").read_text()


def result(name: str) -> Any:
    return json.loads((ROOT / "benchmarks" / "results" / f"{name}.json").read_text())


def row(start: str) -> list[str]:
    """Return the cells of the table's row whose first cell begins so."""
    (line,) = (line for line in README.splitlines() if line.startswith(f"| [{start}]"))
    return [cell.strip() for cell in line.strip("|").split("|")][1:]


def test_the_searches_are_those_measured():
    found = result("decoder_pseudo")
    ours, theirs = (
        found["decoders"][name]["points"]["equal"] for name in ("cortext", "flashlight")
    )
    assert ours["wer"] <= theirs["wer"]
    assert row("Search") == [
        f"{ours['ms_per_frame']:.3f} ms",
        f"flashlight-text {theirs['ms_per_frame']:.2f} ms",
        f"{found['ratio']:.1f}",
    ]


def test_the_training_steps_are_those_measured():
    found = result("training-cpu")
    sides = found["shapes"]["published"]["sides"]
    assert row("Training") == [
        f"{sides['ours']['ms']:,.0f} ms",
        f"the release's loop {sides['release']['ms']:,.0f} ms",
        f"{found['ratio']:.1f}",
    ]
    assert (
        f"With bfloat16 on both sides cortext is {found['ratio_bf16']:.1f} times as fast." in README
    )


def test_the_live_steps_are_those_measured():
    modes = result("latency-cpu")["modes"]
    ours, theirs = (modes[name]["stages_ms"]["total"]["p50"] for name in ("torch fp32", "torch eager fp32"))  # fmt: skip
    assert row("Live") == [
        f"{ours:.1f} ms",
        f"torch's GRU {theirs:.1f} ms",
        f"{theirs / ours:.1f}",
    ]


def test_the_batches_are_those_measured():
    found = result("data_loading")
    ours, theirs = (found[side]["batch_ms_median"] for side in ("packed", "release"))
    assert row("Data") == [f"{ours:.1f} ms", f"the release's loader {theirs:.0f} ms", f"{theirs / ours:.0f}"]  # fmt: skip


def test_the_errors_of_the_demo_are_those_measured():
    found = result("difficulty")
    gru, linear = 100 * found["gru_per"], 100 * found["linear_per"]
    assert row("Demo") == [f"{gru:.1f} %", f"model without its GRU {linear:.1f} %", f"{linear / gru:.1f}"]  # fmt: skip


def test_it_is_read_in_minutes():
    text = re.sub(r"```.*?```", "", README, flags=re.DOTALL)
    text = re.sub(r"\]\([^)]*\)|<img[^>]*>|[|#*`\[\]-]", " ", text)
    assert len(text.split()) <= 600
    wanted = README[README.index("you want to") : README.index("More in the [documentation]")]
    assert len(re.findall(r"^\| .*`cortext ", wanted, re.MULTILINE)) == 10


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"])
def test_links_lead_somewhere(name):
    """The site's own pages are checked where it is built."""
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", (ROOT / name).read_text()):
        path, _, anchor = target.partition("#")
        assert (ROOT / path).is_file() or path.startswith("docs/reference/"), target
        if anchor and (ROOT / path).is_file():
            page = (ROOT / path).read_text()
            headings = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
            slugs = {
                re.sub(r"[^a-z0-9 -]", "", line.lower()).replace(" ", "-") for line in headings
            }
            assert anchor in slugs or f'id="{anchor}"' in page, target
