"""Count the changes that `cortext report drift` finds in simulated months, against the truth.

    python benchmarks/drift_report.py runs/drift --seeds 10 --json benchmarks/results/drift_report.json

Each participant is simulated three times: without any drift, with the usual drift and no event, and
with events. The first two must give no sentence; the third one for each event, on its day.
"""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path

import h5py

from cortext_data.simulate import simulate
from cortext_live.usage.drift.report import DriftReport, drift_report
from cortext_live.usage.drift.sources import read_source

FEWER = ["train_per_day=40", "val_per_day=4"]
"""Fewer sentences in the first fortnight, which takes most of the time."""
NO_EVENTS = ["array_losses=0", "garbage_days=0", "reference_changes=0", "silent_days=0"]
STILL = ["gain_drift=0", "baseline_drift=0", "channel_turnover=0", "tuning_drift=0"]
STILL += ["array_shifts=0", "tuning_jumps=0", "within_day=0"]
CONDITIONS = {"no drift": NO_EVENTS + STILL, "drift": NO_EVENTS, "drift and events": []}


@dataclass
class Row:
    """Counts of a condition.

    Attributes:
        condition: Name of the condition.
        days: Recording days on which something could be found.
        false: Days with a change that nothing caused.
        events: Events, silences among them.
        found: Events with a change of the right kind and array on their day.
    """

    condition: str
    days: int = 0
    false: int = 0
    events: int = 0
    found: int = 0


def truth(root: Path, sessions: list[str]) -> list[tuple[int, str]]:
    """Return day and name of each event: `lost: NAME`, `garbage`, `other reference: NAME`."""
    found, before = [], set[str]()
    for day, session in enumerate(sessions):
        with h5py.File(root / session / "truth.hdf5") as file:
            names = {str(name) for name in file.attrs["events"]}
        found += [(day, name) for name in sorted(names - before)]
        before = {name for name in names if name.startswith("other reference")}
    return found


def matches(report: DriftReport, day: int, event: str) -> bool:
    """Tell whether the report has an event: its kind, its array, its day."""
    kind = {"lost": "dead", "garbage": "spread", "other reference": "shift"}[event.split(":")[0]]
    array = event.partition(": ")[2]
    names = report.layout.names if report.layout else ()
    return any(
        change.day == day
        and change.kind == kind
        and (not array or (change.array is not None and names[change.array] == array))
        for change in report.changes
    )


def count(row: Row, root: Path) -> None:
    """Add a participant's counts."""
    report = drift_report(read_source(root), arrays="ventral 6v,area 4,55b,dorsal 6v")
    sessions = [day.session for day in report.days]
    events = truth(root, sessions)
    days = {day for day, _ in events}
    told = {change.day for change in report.changes if change.kind != "gap"}
    gaps = [change for change in report.changes if change.kind == "gap"]
    row.days += len(sessions) - 3
    row.false += len(told - days)
    row.events += len(events)
    row.found += sum(matches(report, day, event) for day, event in events)
    config = json.loads((root / "simulation.json").read_text())["config"]
    silent = config.get("silent_days", 0)
    dates = [day.date or date.min for day in report.days]
    long = [c for c in gaps if silent and (dates[c.day] - dates[c.day - 1]).days > silent]
    row.events += bool(silent)
    row.found += bool(long)
    row.false += len(gaps) - bool(long)


def main() -> None:
    """Simulate, report, count and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    rows = []
    for condition, changes in CONDITIONS.items():
        row = Row(condition)
        for seed in range(given.seeds):
            root = given.folder / "months"
            simulate(root, "months", seed=seed, truth=True, overrides=FEWER + changes)
            count(row, root)
            shutil.rmtree(root)
        rows.append(row)
        print(asdict(row), flush=True)
    if given.json:
        found = {"seeds": given.seeds, "rows": [asdict(row) for row in rows]}
        given.json.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
