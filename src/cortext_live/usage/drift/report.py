"""The drift report: numbers by day, block and array, sentences about changes, and alerts.

A arrays, N days.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open

from cortext.data.trial import Session
from cortext.errors import RunError
from cortext.models.card import CARD, read_card
from cortext.models.storage import read_tensors
from cortext_live.usage.drift.changes import Change, Floors, find_changes, find_gaps, sentences
from cortext_live.usage.drift.sources import LEAST_UTTERANCES, DayOfUse, DriftSource
from cortext_live.usage.drift.statistics import DEAD_HZ, DayStatistics, Layout, Levels, Reference

REFERENCE_DAYS = 5
NAN = float("nan")
WEIGHTS = "model.safetensors"
DAY_WEIGHT = "day_weight"
"""Name of the weights of all day layers, float [days, C, C]."""

LayerDistances = Mapping[str, tuple[float, float]]
"""Frobenius distances, weight and bias, by session; see `layer_distances`."""


@dataclass(frozen=True)
class DayReport:
    """A recording day.

    Attributes:
        session: Its name.
        date: The date that its name states, or None.
        arrays: Numbers of each array, by its name; empty without features.
        blocks: The same of each block.
        use: What the log says about it; None for recordings.
        layer_distance: Frobenius distances of the weight and the bias of its day layer from those
            of the day before; None where the model lacks one of them.
    """

    session: str
    date: date | None
    arrays: dict[str, dict[str, Any]]
    blocks: tuple[dict[str, Any], ...]
    use: DayOfUse | None
    layer_distance: tuple[float, float] | None


@dataclass(frozen=True)
class DriftReport:
    """The report.

    Attributes:
        source: The directory that was read.
        layout: The arrays; None for a log without features.
        reference: Days that the others are compared with.
        days: All days, in the order of time.
        changes: The changes.
        sentences: A sentence for each change or group of changes, with the number of its day.
        notes: Lines about data left out and facts unknown.
    """

    source: Path
    layout: Layout | None
    reference: tuple[str, ...]
    days: tuple[DayReport, ...]
    changes: tuple[Change, ...]
    sentences: tuple[tuple[int, str], ...]
    notes: tuple[str, ...]

    @property
    def alerts(self) -> list[str]:
        """Sentences about changes that began on the newest day, gaps apart."""
        newest = len(self.days) - 1
        starts = {c.day for c in self.changes if c.kind != "gap"}
        if newest not in starts:
            return []
        return [
            text for day, text in self.sentences if day == newest and not text.startswith("Nothing")
        ]

    def to_json(self) -> dict[str, Any]:
        """Return all numbers as plain values."""
        return {
            "source": str(self.source),
            "arrays": list(self.layout.names) if self.layout else [],
            "electrodes": self.layout.n_electrodes if self.layout else None,
            "reference": list(self.reference),
            "changes": [text for _, text in self.sentences],
            "alerts": self.alerts,
            "notes": list(self.notes),
            "days": [_day_json(day) for day in self.days],
        }


def _day_json(day: DayReport) -> dict[str, Any]:
    use = None if day.use is None else vars(day.use)
    facts = {"session": day.session, "date": None if day.date is None else str(day.date)}
    distance = day.layer_distance
    layer = None if distance is None else {"weight": distance[0], "bias": distance[1]}
    return facts | {
        "arrays": day.arrays, "blocks": list(day.blocks), "use": use, "day_layer_distance": layer
    }  # fmt: skip


def drift_report(
    source: DriftSource,
    *,
    arrays: str | None = None,
    n_kinds: int | None = None,
    dead_hz: float = DEAD_HZ,
    floors: Floors | None = None,
    layer_distances: LayerDistances | None = None,
) -> DriftReport:
    """Return the report of days that were read.

    Args:
        source: The days.
        arrays: Number of arrays, or their names; see `Layout.of`.
        n_kinds: Features of an electrode.
        dead_hz: Threshold crossings a second below which an electrode is dead.
        floors: Smallest changes that are reported.
        layer_distances: Distances of a model's day layers; None where no model was given.

    Raises:
        ConfigError: The features cannot be divided into such arrays.
    """
    floors = floors or Floors()
    measured = {day.session: day for day in source.days}
    sessions = sorted(measured.keys() | source.use.keys())
    dates = [Session(name, {}).date for name in sessions]
    distances = layer_distances or {}
    layout = None
    array_numbers: dict[str, tuple[dict[str, Any], tuple[dict[str, Any], ...]]] = {}
    changes = find_gaps(dates)
    notes = list(source.notes)
    if layer_distances is not None and distances.keys().isdisjoint(sessions):
        why = "knows none of these days" if distances else "knows one day alone"
        notes.append(f"left out: distances of day layers, because the model {why}")
    first = source.days[:REFERENCE_DAYS]
    if first:
        layout = Layout.of(arrays, len(first[0].moments.mean_C), n_kinds)
        reference = Reference(first, layout, dead_hz)
        before = None
        for day in source.days:
            dead_E = day.dead_E(layout, dead_hz)
            array_numbers[day.session] = _numbers(day, layout, reference, dead_E, before)
            before = dead_E
        changes += _array_changes(sessions, array_numbers, layout, floors)
        if sum(day.is_normalised for day in source.days) * 2 > len(source.days):
            notes.append(
                "the features are z-scores, which hide drift of means and standard deviations;"
                " give recordings as they were made for those"
            )
    changes += _use_changes(sessions, source.use, floors)
    names = layout.names if layout else ()
    per_array = layout.n_electrodes // len(layout.names) if layout else 0
    days = [
        DayReport(name, when, *array_numbers.get(name, ({}, ())), source.use.get(name),
                  distances.get(name))
        for name, when in zip(sessions, dates, strict=True)
    ]  # fmt: skip
    return DriftReport(
        source.path,
        layout,
        tuple(day.session for day in first),
        tuple(days),
        tuple(changes),
        tuple(sentences(changes, sessions, dates, names, per_array)),
        tuple(notes),
    )


def _numbers(
    day: DayStatistics,
    layout: Layout,
    reference: Reference,
    dead_E: np.ndarray,
    before_E: np.ndarray | None,
) -> tuple[dict[str, dict[str, Any]], tuple[dict[str, Any], ...]]:
    """Return the numbers of a day's arrays, and of the arrays in each of its blocks."""
    levels = reference.levels(day.moments, dead_E)
    by_array = {}
    for array, name in enumerate(layout.names):
        of = layout.electrodes(array)
        died = dead_E & ~before_E if before_E is not None else np.zeros_like(dead_E)
        back = before_E & ~dead_E if before_E is not None else np.zeros_like(dead_E)
        by_array[name] = _level_numbers(levels, array) | {
            "dead": int(dead_E[of].sum()),
            "electrodes": len(dead_E[of]),
            "died": (np.flatnonzero(died[of]) + of.start).tolist(),
            "new": (np.flatnonzero(back[of]) + of.start).tolist(),
        }
    blocks = []
    for block in day.blocks:
        levels = reference.levels(block.moments, dead_E)
        rows = {name: _level_numbers(levels, array) for array, name in enumerate(layout.names)}
        blocks.append({"block": block.name, "bins": block.moments.n, "arrays": rows})
    return by_array, tuple(blocks)


def _level_numbers(levels: Levels, array: int) -> dict[str, float]:
    return {
        "shift": round(float(levels.shift_A[array]), 4),
        "moved": round(float(levels.moved_A[array]), 4),
        "spread": round(float(levels.spread_A[array]), 4),
    }


def _array_changes(
    sessions: Sequence[str], numbers: dict[str, Any], layout: Layout, floors: Floors
) -> list[Change]:
    changes = []
    for array, name in enumerate(layout.names):
        rows = [numbers[each][0][name] if each in numbers else None for each in sessions]
        for kind in ("shift", "spread"):
            values = [NAN if row is None else row[kind] for row in rows]
            changes += find_changes(values, kind, floors.of(kind), array)
        shares = [NAN if row is None else row["dead"] / row["electrodes"] for row in rows]
        changes += find_changes(shares, "dead", floors.of("dead"), array)
    return changes


def _use_changes(sessions: Sequence[str], use: dict[str, DayOfUse], floors: Floors) -> list[Change]:
    changes = []
    for kind in ("confidence", "corrected"):
        values = []
        for name in sessions:
            day = use.get(name)
            value = None if day is None else getattr(day, kind)
            enough = day is not None and day.utterances >= LEAST_UTTERANCES
            values.append(value if value is not None and enough else NAN)
        changes += find_changes(values, kind, floors.of(kind))
    return changes


def has_day_layers(run: Path) -> bool:
    """Tell whether the model of a run has day layers; the weights themselves are not read."""
    with suppress(OSError, SafetensorError), safe_open(run / WEIGHTS, framework="pt") as file:
        return DAY_WEIGHT in set(file.keys())
    return False


def layer_distances(run: Path) -> dict[str, tuple[float, float]]:
    """Return the Frobenius distances of neighbouring day layers, weight and bias, by session.

    Each day's is the distance from the day before; the first has none.

    Raises:
        RunError: The run has no model, or one without day layers.
    """
    card = read_card(run / CARD)
    path = run / WEIGHTS
    try:
        tensors = read_tensors(path)[0]
    except FileNotFoundError:
        raise RunError("the weights are missing", where=path, fix="train it again") from None
    if DAY_WEIGHT not in tensors:
        fix = "leave out --run, or give a run of a GRU with day layers"
        raise RunError("the model has no day layers", where=run, fix=fix)
    order = sorted(range(len(card.sessions)), key=lambda number: card.sessions[number])
    weights, biases = tensors[DAY_WEIGHT].double(), tensors["day_bias"].double()
    return {
        card.sessions[day]: (
            float((weights[day] - weights[before]).norm()),
            float((biases[day] - biases[before]).norm()),
        )
        for before, day in pairwise(order)
    }


def models_of(use: DayOfUse | None) -> str:
    """Return the model that decoded most utterances of a day, and `-` where it is not known."""
    return Counter(use.models).most_common(1)[0][0] if use and use.models else "-"
