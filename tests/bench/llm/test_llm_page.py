"""The pages that compare language models have the figures of the kept results."""

import json
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
ERRORS = (ROOT / "docs/measured/large-models.md").read_text()
COST = (ROOT / "docs/measured/large-models-cost.md").read_text()
RESULTS = {
    name: json.loads((ROOT / f"benchmarks/results/llm-{name}.json").read_text())
    for name in ("demo", "t12")
}


def points(rate: float, sign: str = "") -> str:
    return f"{100 * rate:{sign}.1f}".replace("-", "−")


def row(name: str, *cells: str) -> str:
    return f"| {name} | {' | '.join(cells)} |".replace("  ", " ")


def errors_row(name: str, way: dict) -> str:
    low, high = way["wer_ci95"]
    more = way["difference"]
    bounds = " to ".join(points(bound, "+") for bound in more["ci95"])
    difference = "" if more["to"] == name else f"{points(more['wer'], '+')} ({bounds})"
    return row(name, points(way["wer"]), f"{points(low)} to {points(high)}", difference)


def cost_row(name: str, way: dict) -> str:
    per_s, tokens = way["sentences_per_s"], way["tokens_per_sentence"]
    fewer = way["times_fewer_tokens"] or 0
    return row(
        name,
        f"{per_s:.0f}" if per_s > 100 else f"{per_s:.1f}",
        f"{tokens:.0f}" if tokens else "",
        f"{fewer:.1f}" if fewer > 1 else "",
        f"{way['peak_mb']:.0f}",
    )


@pytest.mark.parametrize("name", RESULTS)
def test_every_row_is_the_kept_result_s(name):
    errors, cost = (
        {line.replace("  ", " ") for line in page.splitlines()} for page in (ERRORS, COST)
    )
    for way, found in RESULTS[name]["ways"].items():
        assert errors_row(way, found) in errors
        if "sentences_per_s" in found:
            assert cost_row(way, found) in cost


@pytest.mark.parametrize("name", RESULTS)
def test_fusion_reads_at_least_five_times_fewer_tokens(name):
    fused = RESULTS[name]["ways"]["n-gram and LLM fused"]
    assert fused["times_fewer_tokens"] >= 5
