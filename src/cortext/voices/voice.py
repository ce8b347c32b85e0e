"""The interface of every voice."""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import gcd

import numpy as np

from cortext.extras import need

SAMPLE_RATE = 16_000
_EDGE_S, _SILENT = 0.03, 0.003


class Voice(ABC):
    """Something that speaks. The same text gives the same wave, on every call and in every process.

    Attributes:
        name: What it is opened by.
        revision: What tells its waves from those of another, under the same name or not.
    """

    name: str
    revision: str
    sample_rate: int = SAMPLE_RATE

    @abstractmethod
    def can_speak(self, text: str) -> bool:
        """Return whether anything would be heard; takes no time to tell."""

    def passed_over(self, text: str) -> str:
        """Return letters and digits of a speakable text that would not be heard."""
        return ""

    @abstractmethod
    def speak(self, text: str) -> np.ndarray:
        """Speak a text: a wave, float32 [samples] of 16 kHz, within -1 and 1."""


def resampled(wave: np.ndarray, rate: int, wanted: int = SAMPLE_RATE) -> np.ndarray:
    """Resample a wave of `rate` samples a second to `wanted` ones.

    Float32 [ceil(samples * wanted / rate)].
    """
    if rate == wanted:
        return wave.astype(np.float32)
    shared = gcd(rate, wanted)
    found: np.ndarray = need("scipy.signal", "speechllm").resample_poly(
        wave, wanted // shared, rate // shared
    )
    return found.astype(np.float32)


def trimmed(wave: np.ndarray, rate: int) -> np.ndarray:
    """A wave without the silence at its ends but for 30 ms.

    All of it where there is nothing else.
    """
    loud = np.flatnonzero(np.abs(wave) > _SILENT * np.abs(wave).max(initial=0))
    if not len(loud):
        return wave
    edge = round(_EDGE_S * rate)
    return wave[max(0, loud[0] - edge) : loud[-1] + 1 + edge]
