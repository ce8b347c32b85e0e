"""When has an utterance ended? After speech, a long enough silence in the model's own posteriors.

P frames (80 ms with the published patches), V tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Literal

import numpy as np

from cortext.decoding.nbest import FRAME_MS
from cortext.decoding.options import is_finite
from cortext.errors import ConfigError
from cortext.text.phonemes import Inventory

Reason = Literal["silence", "length"]


@dataclass(frozen=True)
class EndpointOptions:
    """When an utterance ends by itself."""

    silence_ms: float = 1500.0
    """Silence after speech that ends an utterance.

    Frames in which blank and SIL together are the more probable.
    """
    speech_ms: float = 160.0
    """Speech, in all, before which silence ends nothing.

    A trial may begin with any length of silence.
    """
    max_ms: float = 60_000.0
    """Length at which an utterance ends in any case, which bounds what it takes in memory."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if not is_finite(value) or value <= 0:
                raise ConfigError(
                    f"endpoint.{field.name} is {value!r}; a number of milliseconds above 0 is"
                    " needed"
                )


class Endpoint:
    """Listens to an utterance for its end; a frame stands for `frame_ms`."""

    def __init__(
        self, options: EndpointOptions, inventory: Inventory, frame_ms: float = FRAME_MS
    ) -> None:
        self._silent_frames = math.ceil(options.silence_ms / frame_ms)
        self._speech_frames = math.ceil(options.speech_ms / frame_ms)
        self._max_frames = math.ceil(options.max_ms / frame_ms)
        self._silent_tokens = [inventory.blank, inventory.sil]
        self.reset()

    def reset(self) -> None:
        """Another utterance begins."""
        self._n_frames = self._n_speech = self._n_silent = 0
        self.reason: Reason | None = None

    def push(self, log_probs_PV: np.ndarray) -> Reason | None:
        """Hear the next frames; why the utterance has ended, once it has."""
        silent_P = np.exp(log_probs_PV[:, self._silent_tokens]).sum(axis=1) > 0.5
        for silent in silent_P.tolist():
            self._n_frames += 1
            self._n_speech += not silent
            self._n_silent = self._n_silent + 1 if silent else 0
            if self.reason is None:
                self.reason = self._ended()
        return self.reason

    def _ended(self) -> Reason | None:
        if self._n_speech >= self._speech_frames and self._n_silent >= self._silent_frames:
            return "silence"
        return "length" if self._n_frames >= self._max_frames else None
