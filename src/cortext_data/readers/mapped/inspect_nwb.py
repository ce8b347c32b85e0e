"""Contents of an NWB file, and a first mapping of it."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np

from cortext.data.checks import FaultError
from cortext.files import is_plain_name
from cortext_data.readers.files.nwb_file import TRIALS, NwbFile, open_nwb
from cortext_data.readers.files.nwb_series import NwbSeries
from cortext_data.readers.mapped.first_mapping import (
    FEWEST_COLUMNS,
    LONGEST_MS,
    SAMPLE,
    Guess,
    Item,
    TrialColumn,
    common_keys,
    examples,
    feature_keys,
    first_lines,
    kind_of,
    label_keys,
    quoted,
    shape_text,
)
from cortext_data.readers.mapped.mapping import UNITS
from cortext_data.readers.source_files import file_faults

_FINEST_MS = 1  # finer samples are voltages
_WIDE = 4  # times as many columns as samples: probably transposed


def inspect_nwb(path: Path) -> tuple[list[Item], str]:
    """Return the parts of an NWB file, and the text of a first mapping.

    Raises DataError naming the file.
    """
    with file_faults(path), open_nwb(path) as file:
        guess = Guess([Item("session_start_time", "text", "", _start(file))])
        subject = None
        with suppress(FaultError):
            subject = file.subject
        guess.items.append(Item("subject", "text", "", subject or "none"))
        chosen = [series for series in file.series().values() if _add_series(guess, series)]
        table = _add_tables(guess, file)
        _add_units(guess, file)
        guess.items += [Item(path, kind, "", why) for path, kind, why in file.unread()]
        stop_bin = _stop_bin(file, table, chosen)
    is_named = subject is not None and is_plain_name(subject)
    comment = "in the names of sessions" if is_named else "the file names none: choose a name"
    lines = [
        *first_lines(path, "nwb"),
        f"participant: {quoted(subject if is_named and subject else 'participant')}  # {comment}",
        *common_keys(guess),
        "trials:",
        f"  table: {quoted(table)}",
        "  start: start_time",
        "  stop: stop_time",
        f"  stop_bin: {stop_bin}  # whether the bin at the time of `stop` belongs to the trial",
        *label_keys(guess),
    ]
    return guess.items, "\n".join(lines) + "\n"


def _start(file: NwbFile) -> str:
    try:
        return str(file.date)
    except FaultError as fault:
        return fault.message


def _add_series(guess: Guess, series: NwbSeries) -> bool:
    """Add a series; return whether it is taken for features."""
    bin_ms, about = None, "timestamps"
    if series.rate is not None:
        bin_ms, about = 1000 / series.rate, f"{series.rate:g} Hz"
    else:
        try:
            bin_ms = 1000 * _step(series.times())
            about = f"timestamps, {bin_ms:.6g} ms apart"
        except FaultError as fault:
            about = f"timestamps: {fault.message}"
    unit = f", unit {series.unit}" if series.unit else ""
    if not series.shape[0]:
        unit += "; a series without samples"
    elif len(series.shape) == 2 and series.shape[1] > _WIDE * series.shape[0]:
        unit += f"; transpose it if the {series.shape[1]} columns are samples"
    shape = shape_text(series.shape)
    guess.items.append(Item(series.path, f"series of {series.dtype}", shape, about + unit))
    is_wide = len(series.shape) == 2 and series.shape[1] >= FEWEST_COLUMNS and series.shape[0]
    if not is_wide or bin_ms is None or not _FINEST_MS <= round(bin_ms, 3) <= LONGEST_MS:
        return False
    bin_ms = round(bin_ms, 3)
    try:
        kind = kind_of(series.read(0, min(series.shape[0], SAMPLE)))
    except FaultError as fault:
        guess.items[-1] = Item(series.path, "series", shape, fault.message)
        return False
    stated = None if series.rate is not None else bin_ms
    about = f"{shape}, bins of {bin_ms:g} ms"
    guess.features += feature_keys(series.path, kind, about, stated)
    guess.bin_ms.append(bin_ms)
    return True


def _step(times: np.ndarray) -> float:
    """Return the usual distance of two samples in seconds."""
    return float(np.median(np.diff(times))) if len(times) > 1 else 0.0


def _add_tables(guess: Guess, file: NwbFile) -> str:
    """Add the tables; return the one that lists the trials."""
    tables = file.tables()
    timed = [path for path in tables if {"start_time", "stop_time"} <= {*file.table(path).columns}]
    chosen = TRIALS if TRIALS in tables or not timed else timed[0]
    for path in tables:
        table = file.table(path)
        guess.items.append(Item(path, "table", "", f"columns {', '.join(table.columns)}"))
        for name in table.columns:
            try:
                values = table.column(name)
            except FaultError as fault:
                guess.items.append(Item(f"{path}/{name}", "column", "", fault.message))
                continue
            shape = shape_text([len(values)])
            guess.items.append(Item(f"{path}/{name}", "column", shape, examples(values)))
            if path == chosen and name not in ("start_time", "stop_time", "id", "tags"):
                guess.columns.append(TrialColumn(name, values))
    return chosen


def _add_units(guess: Guess, file: NwbFile) -> None:
    """Add the spikes; they are features where there are no others."""
    try:
        units = file.units()
    except FaultError as fault:
        guess.items.append(Item(UNITS, "spikes", "", fault.message))
        return
    if not units:
        if UNITS in file.tables():
            guess.items.append(Item(UNITS, "spikes", "", "no spike times found"))
        return
    about = f"{units.n_spikes:,} spikes"
    if units.range_s is not None:
        about += f" from {units.range_s[0]:.6g} s to {units.range_s[1]:.6g} s"
    guess.items.append(Item(UNITS, "spikes", shape_text([len(units)]), about))
    lines = feature_keys(UNITS, "counts", f"{len(units)} units, whose spikes are counted in bins")
    guess.features += [f"  # {line[2:]}" for line in lines] if guess.features else lines


def _stop_bin(file: NwbFile, table: str, chosen: list[NwbSeries]) -> str:
    """Return `included` where every trial stops at the time of a sample before a gap."""
    with suppress(FaultError):
        stops = file.table(table).column("stop_time")
        series = next((each for each in chosen if each.rate is None), None)
        if series is not None and isinstance(stops, np.ndarray):
            times = series.times()
            step = _step(times)
            is_last = np.append(np.diff(times) > 1.5 * step, True)
            at = np.searchsorted(times, stops + 0.01 * step) - 1
            if (at >= 0).all() and (is_last[at] & (abs(times[at] - stops) < 0.01 * step)).all():
                return "included"
    return "excluded"
