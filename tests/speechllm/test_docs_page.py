"""The figures of the page are those of the kept result."""

import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RESULT = ROOT / "benchmarks" / "results" / "speech-llm-decoding.json"


def test_what_it_decodes_is_what_was_measured():
    result = json.loads(RESULT.read_text())
    assert not result["provenance"]["commit"].endswith("-dirty")
    page = (ROOT / "docs/measured/speech-llm.md").read_text()
    for row in result["rows"]:
        right, other = row["right"], row["exchanged"]
        low, high = (f"{100 * bound:.1f}" for bound in right["ci95"])
        cells = (
            row["seed"],
            row["learnt from"],
            f"{100 * right['wer']:.1f} % ({low}-{high})",
            f"{100 * other['wer']:.1f} %",
        )
        assert "| " + " | ".join(map(str, cells)) + " |" in page
        assert other["wer"] - right["wer"] > 0.2
