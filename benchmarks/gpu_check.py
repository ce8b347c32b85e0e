"""Run every part that can use a GPU, compare it with the CPU, and time training.

    make test-gpu                  # the first GPU, at most 20 minutes
    make test-gpu DEVICE=cpu       # what runs without a GPU: it shows that the script works

Writes one JSON file and one page with the device and the date. The exit status is 1 if a check
failed. A check that cannot run here is listed with the reason.
"""

from __future__ import annotations

import argparse
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch

from cortext.errors import MissingLibrary
from cortext.files import atomic_write
from cortext.provenance import provenance
from cortext.training.distributed import own_device
from cortext_bench.harness import markdown_table, write_result


@dataclass(frozen=True)
class Check:
    """The outcome of one check.

    Attributes:
        section: Part of the script that it belongs to.
        name: Compared or required property.
        passed: None for a check that could not run.
        found: Measured difference or value; None where there is none.
        bound: Largest value that passes; None where there is none.
        said: Reason why it failed or could not run.
    """

    section: str
    name: str
    passed: bool | None
    found: float | None = None
    bound: float | None = None
    said: str = ""


@dataclass
class Checks:
    """The checks of one device, and the folder of their materials."""

    device: str
    folder: Path
    section: str = ""
    done: list[Check] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    measured: dict[str, Any] = field(default_factory=dict)

    @property
    def on_gpu(self) -> bool:
        """True on a GPU."""
        return self.device != "cpu"

    def close(self, name: str, found: Any, expected: Any, bound: float) -> None:
        """Check that the largest difference is at most `bound` times the largest expected value."""
        found, expected = (np.asarray(values, dtype=np.float64) for values in (found, expected))
        if found.shape != expected.shape:
            said = f"shape {found.shape} instead of {expected.shape}"
            self.done.append(Check(self.section, name, False, said=said))
            return
        largest = float(np.abs(expected).max(initial=0.0))
        difference = float(np.abs(found - expected).max(initial=0.0)) / (largest or 1.0)
        self.at_most(name, difference, bound)

    def at_most(self, name: str, found: float, bound: float, said: str = "") -> None:
        """Check that a value is at most `bound`; NaN fails."""
        passed = bool(found <= bound)
        self.done.append(Check(self.section, name, passed, found, bound, "" if passed else said))

    def holds(self, name: str, holds: bool, said: str = "") -> None:
        """Check that something holds."""
        self.done.append(Check(self.section, name, holds, said="" if holds else said))

    def cannot_run(self, name: str, why: str) -> None:
        """Note a check that cannot run on this machine."""
        self.done.append(Check(self.section, name, None, said=why))

    @contextmanager
    def timed(self, section: str) -> Iterator[None]:
        """Time a section; an error fails the section and does not end the script."""
        self.section = section
        started = time.perf_counter()
        print(f"{section} ...", flush=True)
        try:
            yield
        except MissingLibrary as error:
            self.cannot_run("all", str(error))
        except Exception as error:  # the next sections still tell something
            traceback.print_exc()
            said, _, _ = f"{type(error).__name__}: {error}".partition("\n")
            self.holds("all", False, said)
        self.seconds[section] = round(time.perf_counter() - started, 1)


def facts_of(device: str) -> dict[str, Any]:
    """Return name, memory and libraries of the device."""
    if device == "cpu":
        return {"device": "cpu", "name": "CPU"}
    properties = torch.cuda.get_device_properties(own_device(device))
    return {
        "device": device,
        "name": properties.name,
        "memory_gb": round(properties.total_memory / 1e9, 1),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
    }


def result_of(checks: Checks) -> dict[str, Any]:
    """Return the contents of the JSON file."""
    return {
        "device": facts_of(checks.device),
        "passed": all(check.passed is not False for check in checks.done),
        "seconds": checks.seconds,
        "checks": [asdict(check) for check in checks.done],
        "measured": checks.measured,
        "provenance": provenance(),
    }


def page_of(result: dict[str, Any]) -> str:
    """Return the page: the device and the date, all checks, and times of training."""
    device, made = result["device"], result["provenance"]
    named = ", ".join(f"{name} {value}" for name, value in device.items() if name != "name")
    rows = [
        (check["section"], check["name"], _number(check["found"]), _number(check["bound"]), _word(check))
        for check in result["checks"]
    ]  # fmt: skip
    sections = [(name, f"{seconds:.0f} s") for name, seconds in result["seconds"].items()]
    training = result["measured"].get("training", {})
    times = [row for model, found in training.items() for row in _times(model, found)]
    variants = [
        part
        for model, found in result["measured"].get("variants", {}).items()
        for part in (f"## Variants of {model}", variants_table(found))
    ]
    lines = [
        f"# Checks on {device['name']}",
        f"{made['created'][:10]}, commit {made['commit']}, torch {made['versions']['torch']}, {named}.",
        markdown_table(["section", "check", "found", "at most", "result"], rows),
        *variants,
        *(training_lines(times) if times else ()),
        "## Time of the checks",
        markdown_table(["section", "time"], sections),
    ]  # fmt: skip
    return "\n\n".join(lines) + "\n"


def training_lines(times: list[tuple[str, ...]]) -> list[str]:
    """Return the part of a page on whole trainers side by side."""
    return [
        "## Training",
        "Times are medians. A GPU is busy while it computes or copies. Memory is the peak of the tensors.",
        markdown_table(["model", "shape", "side", "in", "ms a step", "GPU busy", "memory"], times),
    ]


def variants_table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """Return a table of variants, each beside the one above it and the first.

    Args:
        found: Median `ms` of a step, and `busy_share` or None, by variant.
    """
    rows, first, above = [], None, None
    for name, values in found.items():
        ms = values["ms"]
        busy = values.get("busy_share")
        rows.append(
            (
                name,
                f"{ms:.1f}",
                "" if above is None else f"{ms - above:+.1f}",
                "" if first is None else f"{first / ms:.2f} x",
                "" if busy is None else f"{busy:.0%}",
            )
        )
        first, above = first or ms, ms
    return markdown_table(["variant", "ms a step", "change", "as fast", "GPU busy"], rows)


def _times(model: str, found: dict[str, Any]) -> Iterator[tuple[str, ...]]:
    for shape, measured in found["shapes"].items():
        for side, values in measured["sides"].items():
            busy, memory = values["busy_share"], values["memory"].get("peak_device_mb")
            yield (
                model,
                shape,
                side,
                values["precision"],
                f"{values['ms']:.1f}",
                "" if busy is None else f"{busy:.1%}",
                "" if memory is None else f"{memory:,.0f} MB",
            )


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2g}"


def _word(check: dict[str, Any]) -> str:
    words = {True: "passed", False: "FAILED", None: "not run"}[check["passed"]]
    return f"{words}: {check['said']}" if check["said"] else words


def main() -> int:
    """Run the sections of the checks; return the exit status."""
    import gpu_kernels
    import gpu_sections

    return run(gpu_sections.SECTIONS | gpu_kernels.SECTIONS, __doc__, Path("build/gpu"))


def run(sections: Mapping[str, Callable[[Checks], None]], about: str | None, out: Path) -> int:
    """Run sections and write the results; return the exit status.

    Args:
        sections: Functions that add what they find, by name.
        about: What `--help` says.
        out: Folder to write, unless the command names another.
    """
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda", help="cuda, cuda:N or cpu")
    parser.add_argument("--only", action="append", choices=sections, help="only this section")
    parser.add_argument("--out", type=Path, default=out, help="folder to write")
    chosen = parser.parse_args()
    own_device(chosen.device)
    kind = chosen.device.partition(":")[0]
    chosen.out.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="cortext-gpu-") as folder:
        checks = Checks(chosen.device, Path(folder))
        for name in chosen.only or sections:
            with checks.timed(name):
                sections[name](checks)
            # After each section: a script that is stopped leaves what it has found.
            result = result_of(checks)
            write_result(chosen.out / f"{kind}.json", result)
            atomic_write(chosen.out / f"{kind}.md", page_of(result).encode())
    failed = [check for check in checks.done if check.passed is False]
    for check in failed:
        print(f"FAILED: {check.section}, {check.name}: {check.found} {check.said}")
    not_run = sum(check.passed is None for check in checks.done)
    print(f"{len(checks.done)} checks: {len(failed)} failed, {not_run} could not run here")
    print(f"written to {chosen.out / kind}.json and .md, {sum(checks.seconds.values()):.0f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
