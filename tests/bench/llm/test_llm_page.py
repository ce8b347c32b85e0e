"""The page that compares language models has the figures of the kept results."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs/measured/large-models.md").read_text()
RESULTS = {
    name: json.loads((ROOT / f"benchmarks/results/llm-{name}.json").read_text())
    for name in ("demo", "t12")
}


def points(rate: float, sign: str = "") -> str:
    return f"{100 * rate:{sign}.1f}".replace("-", "−")


def row(name: str, way: dict) -> str:
    low, high = way["wer_ci95"]
    cells = [name, points(way["wer"]), f"{points(low)} to {points(high)}"]
    more = way["difference"]
    bounds = " to ".join(points(bound, "+") for bound in more["ci95"])
    cells.append("" if more["to"] == name else f"{points(more['wer'], '+')} ({bounds})")
    if "sentences_per_s" in way:
        per_s, tokens = way["sentences_per_s"], way["tokens_per_sentence"]
        cells += [
            f"{per_s:.0f}" if per_s > 100 else f"{per_s:.1f}",
            f"{tokens:.0f}" if tokens else "",
        ]
        fewer = way["times_fewer_tokens"] or 0
        cells += [f"{fewer:.1f}" if fewer > 1 else "", f"{way['peak_mb']:.0f}"]
    else:
        cells += [""] * 4
    return f"| {' | '.join(cells)} |".replace("  ", " ")


@pytest.mark.parametrize("name", RESULTS)
def test_every_row_is_the_kept_result_s(name):
    lines = {line.replace("  ", " ") for line in PAGE.splitlines()}
    for way, found in RESULTS[name]["ways"].items():
        assert row(way, found) in lines


@pytest.mark.parametrize("name", RESULTS)
def test_fusion_reads_at_least_five_times_fewer_tokens(name):
    fused = RESULTS[name]["ways"]["n-gram and LLM fused"]
    assert fused["times_fewer_tokens"] >= 5
