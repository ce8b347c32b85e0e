"""Small NWB files with series and trials by hand, and the mapping that reads them."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from foreign_nwb import CHICAGO

from cortext_data.readers.importing import import_source
from cortext_data.readers.nwb import nwb
from cortext_data.readers.recording import Contents, RecordedTrial

HEAD = "format: cortext-mapping\nformat_version: 1\nreader: nwb\n"
SIMPLE = f"""{HEAD}bin_ms: 20
features: [{{name: acquisition/tx, kind: counts}}]
sentence: {{name: cue}}
"""
"""Mapping of the files of `write_simple`."""


def mapping_file(folder: Path, text: str) -> Path:
    """Write a mapping file."""
    path = folder / "mapping.yaml"
    path.write_text(text)
    return path


def all_trials(contents: Contents) -> list[RecordedTrial]:
    """Return the trials of all blocks."""
    return [trial for block in contents.blocks for trial in block.trials]


def read_nwb(path: Path, text: str) -> tuple[Contents, list[np.ndarray]]:
    """Return the contents of the only recording, and the numbers of its trials."""
    source = nwb(path, mapping_file(path.parent, text))
    (recording,) = source.recordings
    with recording.open() as contents:
        return contents, [trial.read() for trial in all_trials(contents)]


def write_series(
    path: Path,
    series: dict[str, dict[str, Any]],
    trials: Sequence[dict[str, Any]],
    columns: Sequence[str] = ("cue",),
    units: Sequence[np.ndarray] = (),
    subject: str | None = "T99",
    identifier: str = "one",
) -> None:
    """Write an NWB file of series (arguments of pynwb's TimeSeries) and rows of trials."""
    from pynwb import NWBHDF5IO, NWBFile, TimeSeries
    from pynwb.file import Subject

    start = datetime.datetime(2025, 3, 14, 9, 26, tzinfo=CHICAGO)
    file = NWBFile("speech", identifier, start)
    if subject is not None:
        file.subject = Subject(subject_id=subject, age="P40Y", sex="M", species="Homo sapiens")
    for name, arguments in series.items():
        file.add_acquisition(TimeSeries(name=name, **{"unit": "n/a"} | arguments))
    for column in columns:
        file.add_trial_column(name=column, description=column)
    for row in trials:
        file.add_trial(**row)
    for times in units:
        file.add_unit(spike_times=times)
    with NWBHDF5IO(path, "w") as io:
        io.write(file)


def write_simple(path: Path, trials: Sequence[dict[str, Any]], **series: Any) -> None:
    """Write a file with the series `tx` of 8 channels: 10 s of ones in bins of 20 ms."""
    arguments = {"data": np.ones((500, 8), np.int16), "rate": 50.0} | series
    if "timestamps" in arguments:
        del arguments["rate"]
    write_series(path, {"tx": arguments}, trials, columns=tuple(trials[0])[2:])


def cue_rows(*cues: str, **columns: Sequence[Any]) -> list[dict[str, Any]]:
    """Return rows of trials of 0.8 s, a second apart."""
    rows = []
    for i, cue in enumerate(cues):
        row: dict[str, Any] = {"start_time": i + 0.0, "stop_time": i + 0.8, "cue": cue}
        rows.append(row | {name: values[i] for name, values in columns.items()})
    return rows


def only_problem(path: Path, text: str = SIMPLE) -> str:
    """Return the only problem of an import, without the file."""
    result = import_source(nwb(path, mapping_file(path.parent, text)), path.parent / "out")
    (problem,) = result.problems
    return str(problem).removeprefix(f"{path}: ")
