"""Settings that are reported: chosen from the trials of the tuning, kept in a file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cortext.decoding.options import DecoderOptions
from cortext.errors import DataError
from cortext.provenance import provenance
from cortext_bench.decoder.searcher import Settings, searcher
from cortext_bench.decoder.tuning import Tried, best, fastest, frontier

OURS = "cortext"
PEER = "flashlight"
NEAR = 0.015
"""Word error rate beyond the best one that `near` may have: one and a half points."""


@dataclass(frozen=True)
class ChosenSettings:
    """Settings of one search that are reported.

    Attributes:
        points: Settings by the name of their point.
        frontier: Settings of the frontier, fastest first.
    """

    points: Mapping[str, Settings]
    frontier: Sequence[Settings]

    def different(self) -> list[Settings]:
        """Return all settings once."""
        found: list[Settings] = []
        for settings in (*self.points.values(), *self.frontier):
            if settings not in found:
                found.append(settings)
        return found


def points(tried: Mapping[str, Sequence[Tried]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the settings to report of every search, by `best`, `equal` and `near`.

    `equal` is the fastest setting that reaches the worse of two error rates: ours at its best, and
    the peer's at its best. `near` is the fastest one within `NEAR` of that rate.
    """
    compared = [best(tried[name]).wer for name in (OURS, PEER) if name in tried]
    level = max(compared) if compared else 0.0
    return {
        name: {
            "best": best(trials).settings,
            "equal": fastest(trials, level).settings,
            "near": fastest(trials, level + NEAR).settings,
        }
        for name, trials in tried.items()
    }


def default_point() -> dict[str, Settings]:
    """Return the default options of our search as the point `default`."""
    options = DecoderOptions()
    return {"default": {name: getattr(options, name) for name in searcher(OURS).steps}}


def write_settings(
    path: Path, tried: Mapping[str, Sequence[Tried]], facts: Mapping[str, Any]
) -> None:
    """Write what tuning found, so that later runs need not tune.

    Searches in the file that were not tuned now keep their settings.

    Args:
        path: JSON file; it is made where it is missing.
        tried: By name of the search, all trials.
        facts: Facts about the utterances, kept with each tuned search.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    kept = (
        json.loads(path.read_text(encoding="utf-8"))
        if path.is_file()
        else {"trials": {}, "tuning": {}}
    )
    known = {name: [Tried(**one) for one in trials] for name, trials in kept["trials"].items()}
    known.update({name: list(trials) for name, trials in tried.items()})
    content = {
        "points": points(known),
        "frontier": {
            name: [one.settings for one in frontier(trials)] for name, trials in known.items()
        },
        "tuning": kept["tuning"] | {name: {**facts, "provenance": provenance()} for name in tried},
        "trials": {name: [asdict(one) for one in trials] for name, trials in known.items()},
    }
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def read_settings(path: Path) -> dict[str, ChosenSettings]:
    """Return the settings to report that an earlier tuning found, by search.

    Raises:
        DataError: Where there are none.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        found = {
            name: ChosenSettings(points, content["frontier"][name])
            for name, points in content["points"].items()
        }
    except (OSError, ValueError, KeyError):
        raise DataError(
            "no tuned settings", where=path, fix="tune first: cortext bench decoder --tune"
        ) from None
    return found
