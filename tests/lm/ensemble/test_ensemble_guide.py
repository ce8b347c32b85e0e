"""The guide's Python runs as it stands, and the pages' prompt and figures are those of the program
and the results.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

from cortext_lm.ensemble import Candidates, EnsembleOptions
from cortext_lm.ensemble.candidates import weighted
from cortext_lm.ensemble.correct import ANSWER, prompt_for

ROOT = Path(__file__).resolve().parents[3]
GUIDE, CORRECTION, LISTS, DEMO = (
    (ROOT / "docs" / page).read_text(encoding="utf-8")
    for page in (
        "guides/ensembles.md",
        "inside/correction.md",
        "measured/ensembles.md",
        "measured/ensembles-demo.md",
    )
)
RESULTS = ROOT / "benchmarks" / "results"


def test_python_of_the_guide_runs():
    (code,) = re.findall(r"^```python\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.stdout, done.stderr) == ("how are you\n", "")


def test_the_prompt_is_the_pages():
    options = EnsembleOptions(weights=(7, 3))
    prompt = prompt_for(weighted(Candidates.of(["how are you", "who are you"]), options))
    assert f"```text\n{prompt}\n{ANSWER}\n```" in CORRECTION


def test_figures_are_those_of_the_results():
    sets = json.loads((RESULTS / "ensemble-lists.json").read_text())["sets"]
    for name in ("minimum Bayes risk", "ROVER", "ROVER with a 4-gram"):
        cells = []
        for found in sets.values():
            row = found["rows"][name]
            cells += [
                f"{100 * row['wer']:.2f}",
                " to ".join(f"{100 * bound:.2f}" for bound in row["ci95"]),
            ]
        assert f"| {name} | {' | '.join(cells)} |" in LISTS
    for name in ("seeds alone", "chosen on other trials"):
        row = next(line for line in LISTS.splitlines() if line.startswith(f"| {name}"))
        for found in sets.values():
            assert spread(found["rows"][name]) in row
    best = next(line for line in LISTS.splitlines() if line.startswith("| best of the ten"))
    for found in sets.values():
        assert f"{100 * found['rows']['best of the ten known']['wer']:.2f}" in best


def spread(row):
    """Mean, lowest and highest as the page has them."""
    return f"{100 * row['wer']:.2f} ({100 * row['lowest']:.2f} to {100 * row['highest']:.2f})"


def signed(value):
    """In points, with the page's signs."""
    return f"{100 * value:+.2f}".replace("-", "−").replace("+0.00", "0.00")


def test_figures_of_the_demo_are_those_of_the_results():
    default = json.loads((RESULTS / "ensemble-demo.json").read_text())["default"]["combined"]
    pairs, four = default["2"]["rows"], default["4"]["rows"]
    mean, votes = pairs["posteriors, geometric mean"], pairs["best sentences, ROVER"]
    text = " ".join(DEMO.split())
    difference = (
        f"{signed(mean['difference'])} points, {' to '.join(map(signed, mean['difference_ci95']))}"
    )
    assert f"{100 * mean['wer']:.2f} against {100 * votes['wer']:.2f} ({difference};" in text
    mean, votes = four["posteriors, geometric mean"], four["best sentences, ROVER"]
    assert (
        f"{100 * mean['wer']:.2f} against {100 * votes['wer']:.2f} for the votes of the best"
        " sentences" in text
    )
    demo = json.loads((RESULTS / "ensemble-demo.json").read_text())["chosen"]["rows"]
    for name, row in demo.items():
        line = next(
            line for line in DEMO.splitlines() if re.match(rf"\| (\*\*)?{re.escape(name)}", line)
        )
        assert f"{100 * row['wer']:.2f}" in line
        assert " to ".join(f"{100 * bound:.2f}" for bound in row["ci95"]) in line
        assert ", ".join(f"{penalty:g}" for penalty in row["blank_penalty"]) in line
        if name != "best sentences, ROVER":
            assert (
                f"| {signed(row['difference'])} |"
                f" {' to '.join(map(signed, row['difference_ci95']))} |" in line
            )


def test_no_choice_of_options_is_far_behind_the_plain_votes():
    for found in json.loads((RESULTS / "ensemble-lists.json").read_text())["sets"].values():
        rows = found["rows"]
        plain = min(rows["minimum Bayes risk"]["wer"], rows["ROVER"]["wer"])
        assert len(rows["chosen on other trials"]["shuffles"]) == 20
        assert rows["chosen on other trials"]["wer"] <= plain + 0.0005
