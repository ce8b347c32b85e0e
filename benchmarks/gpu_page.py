"""Write the tables of `docs/measured/gpu-parts.md` from a result of `make bench-gpu`.

    python benchmarks/gpu_page.py benchmarks/results/gpu-bench-h200.json

A table stands between the lines `<!-- bench NAME -->` and `<!-- end -->`; the text between them is
replaced.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from cortext.files import atomic_write
from cortext_bench.harness import markdown_table
from gpu_check import variants_table

PAGE = Path(__file__).resolve().parents[1] / "docs" / "measured" / "gpu-parts.md"
LIBRARIES = {"ours": "cortext", "torch": "torch", "cudnn": "cuDNN"}


def tables(result: Mapping[str, Any]) -> dict[str, str]:
    """Return the tables of a result by name."""
    measured = result["measured"]
    found = {"device": device_line(result), "checks": checks_table(result)}
    if "ctc" in measured:
        found["ctc"] = ctc_table(measured["ctc"])
    for model, variants in measured.get("variants", {}).items():
        found[model] = variants_table(variants)
    return found


def device_line(result: Mapping[str, Any]) -> str:
    """Return the device, the versions, the date, and how many checks passed, as a sentence."""
    device, made = result["device"], result["provenance"]
    passed = sum(check["passed"] is True for check in result["checks"])
    failed = sum(check["passed"] is False for check in result["checks"])
    minutes = sum(result["seconds"].values()) / 60
    return (
        f"{device['name']}, {made['created'][:10]}, torch {made['versions']['torch']},"
        f" CUDA {device.get('cuda')}, cuDNN {device.get('cudnn')}: {passed} checks passed,"
        f" {failed} failed, in {minutes:.1f} minutes."
    )


def checks_table(result: Mapping[str, Any]) -> str:
    """Return the largest difference of each section as a share of its bound."""
    rows = []
    for section in result["seconds"]:
        own = [check for check in result["checks"] if check["section"] == section]
        shares = [check["found"] / check["bound"] for check in own if check["bound"]]
        rows.append(
            (
                section,
                str(sum(check["passed"] is True for check in own)),
                str(sum(check["passed"] is False for check in own)),
                f"{max(shares):.2g}" if shares else "",
            )
        )
    return markdown_table(["section", "passed", "failed", "largest share of a bound"], rows)


def ctc_table(measured: Mapping[str, Any]) -> str:
    """Return times and errors of each CTC; one that cannot run has its message."""
    rows = []
    for key, found in measured.items():
        side, _, tokens = key.partition(", ")
        if isinstance(found, str):
            rows.append((tokens, LIBRARIES[side], "", "", found.partition(".")[0][:80]))
            continue
        errors = (f"{found[part]:.1g}" for part in ("losses", "gradients"))
        rows.append((tokens, LIBRARIES[side], f"{found['ms']:.2f}", *errors))
    header = ["tokens", "CTC", "ms", "error of losses", "error of gradients"]
    return markdown_table(header, rows)


def filled(page: str, found: Mapping[str, str]) -> str:
    """Return a page with its tables replaced; those that the result lacks stay."""

    def replaced(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in found:
            return match.group(0)
        return f"<!-- bench {name} -->\n\n{found[name]}\n\n<!-- end -->"

    return re.sub(r"<!-- bench (\w+) -->.*?<!-- end -->", replaced, page, flags=re.DOTALL)


def main() -> None:
    """Fill the page in."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("result", type=Path, help="JSON file of make bench-gpu")
    parser.add_argument("--page", type=Path, default=PAGE)
    chosen = parser.parse_args()
    found = tables(json.loads(chosen.result.read_text(encoding="utf-8")))
    page = filled(chosen.page.read_text(encoding="utf-8"), found)
    atomic_write(chosen.page, page.encode())


if __name__ == "__main__":
    main()
