"""What the page is sent, as JSON. T bins of 20 ms, C features, P frames of 80 ms, V tokens."""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from cortext.data.simulate.config import ARRAYS
from cortext.data.trial import BIN_MS
from cortext.live.core.pipeline import Pipeline
from cortext.live.page.sources import Source

MAX_FRAMES = 64
"""Most frames in one message; a page that reads slowly gets steps joined up to here."""
MAX_BINS = 4 * MAX_FRAMES
SHOWN_Z = 3.0
"""z-scores from minus to plus this are shown; the rest are cut off."""


@dataclass(frozen=True, eq=False)
class Event:
    """A message of a kind of which a reader needs all (`utterance`, `error`) or the latest
    (`state`, `stats`).
    """

    kind: str
    body: dict[str, Any]

    @property
    def only_latest(self) -> bool:
        """Whether a later one makes it superfluous."""
        return self.kind in ("state", "stats")

    @cached_property
    def text(self) -> str:
        """The message; made once for all readers."""
        return json.dumps({"type": self.kind, **self.body}, allow_nan=False, separators=(",", ":"))


@dataclass(frozen=True, eq=False)
class Step:
    """What is new after the latest bins of an utterance.

    Attributes:
        bins_TC: uint8 [T, C], see `shown_bins`.
        posteriors_PV: uint8 [P, V], see `shown_posteriors`.
        stage_ms: Milliseconds by stage of the slowest of its frames; None without frames.
        dropped: Bins before these that this reader was not sent.
    """

    utterance: int
    t_ms: int
    bins_TC: np.ndarray
    posteriors_PV: np.ndarray
    stable: str
    tail: str
    stage_ms: dict[str, float] | None
    dropped: int = 0
    kind = "step"
    only_latest = False  # they are joined

    def joined(self, later: Step) -> Step:
        """One step for two.

        Words are the later one's; bins and frames beyond the largest message are dropped.

        Of another utterance nothing is left but the count: its words come with its `utterance`
        message.
        """
        if later.utterance != self.utterance:
            return replace(later, dropped=later.dropped + self.dropped + len(self.bins_TC))
        bins_TC = np.concatenate((self.bins_TC, later.bins_TC))
        lost = max(len(bins_TC) - MAX_BINS, 0)
        return replace(
            later,
            bins_TC=bins_TC[lost:],
            posteriors_PV=np.concatenate((self.posteriors_PV, later.posteriors_PV))[-MAX_FRAMES:],
            stage_ms=_largest(self.stage_ms, later.stage_ms),
            dropped=self.dropped + later.dropped + lost,
        )

    @cached_property
    def text(self) -> str:
        """The message; made once for all readers who get the same."""
        return Event(
            "step",
            {
                "utterance": self.utterance,
                "t_ms": self.t_ms,
                "bins": b64encode(self.bins_TC.tobytes()).decode(),
                "n_bins": len(self.bins_TC),
                "posteriors": b64encode(self.posteriors_PV.tobytes()).decode(),
                "n_frames": len(self.posteriors_PV),
                "stable": self.stable,
                "tail": self.tail,
                "stage_ms": self.stage_ms,
                "dropped": self.dropped,
            },
        ).text


Message = Event | Step


def _largest(
    first: dict[str, float] | None, second: dict[str, float] | None
) -> dict[str, float] | None:
    if not first or not second:
        return first or second
    return {stage: max(ms, second.get(stage, 0.0)) for stage, ms in first.items()}


def shown_bins(features_TC: np.ndarray) -> np.ndarray:
    """Features [T, C] as uint8 [T, C]: z-scores from -3 to 3 become 0 to 255."""
    scaled_TC = (features_TC + SHOWN_Z) * (255 / (2 * SHOWN_Z))
    shown_TC: np.ndarray = np.rint(np.clip(scaled_TC, 0, 255)).astype(np.uint8)
    return shown_TC


def shown_posteriors(logits_PV: np.ndarray) -> np.ndarray:
    """Logits [P, V] as uint8 [P, V]: probabilities from 0 to 1 become 0 to 255."""
    weights_PV = np.exp(logits_PV - logits_PV.max(axis=1, keepdims=True, initial=-np.inf))
    probs_PV = weights_PV / weights_PV.sum(axis=1, keepdims=True)
    shown_PV: np.ndarray = np.rint(255 * probs_PV).astype(np.uint8)
    return shown_PV


def feature_groups(n_features: int) -> list[dict[str, Any]]:
    """Names and columns (first and last) of the features, in the order of the release.

    Crossings, then power, by array.

    Features that are not two for each electrode of four arrays alike have one group.
    """
    size, rest = divmod(n_features, 2 * len(ARRAYS))
    if rest:
        return [{"name": "features", "columns": [0, n_features - 1]}]
    names = [f"{array} {kind}" for kind in ("crossings", "power") for array in ARRAYS]
    return [
        {"name": name, "columns": [i * size, (i + 1) * size - 1]} for i, name in enumerate(names)
    ]


def greeting(pipeline: Pipeline, days: Sequence[str], source: Source | None) -> dict[str, Any]:
    """What a `hello` message tells of the model and of what it decodes, which stays as it is."""
    stepper = pipeline.stepper
    frame_ms = BIN_MS * stepper.patch_stride
    return {
        "days": list(days),
        "n_features": stepper.n_features,
        "arrays": feature_groups(stepper.n_features),
        "bin_ms": BIN_MS,
        "frame_ms": frame_ms,
        "budget_ms": frame_ms,
        "look_ahead_ms": pipeline.look_ahead_ms,
        "tokens": list(stepper.inventory.symbols),
        "source": {
            "kind": source.kind if source else "feed",
            "sessions": list(source.sessions) if source else [],
            "trials": source.listing() if source else [],
        },
    }
