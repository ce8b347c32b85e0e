"""The interface of every voice."""

from __future__ import annotations

from abc import ABC, abstractmethod
from math import gcd

import numpy as np

from cortext.extras import need

SAMPLE_RATE = 16_000
"""Samples a second of what every voice speaks."""
_EDGE_S, _SILENT = 0.03, 0.003


class Voice(ABC):
    """A voice. The same text gives the same wave, on every call and in every process.

    Attributes:
        name: Name that `open_voice` takes.
        revision: Identity of its waves: voices with other waves have another revision.
    """

    name: str
    revision: str
    sample_rate: int = SAMPLE_RATE

    @abstractmethod
    def can_speak(self, text: str) -> bool:
        """Return whether the text can be spoken; the answer takes no time."""

    def passed_over(self, text: str) -> str:
        """Return letters and digits of a speakable text that the voice skips."""
        return ""

    @abstractmethod
    def speak(self, text: str) -> np.ndarray:
        """Speak a text: return a wave, float32 [samples] at 16 kHz, between -1 and 1."""


def resampled(wave: np.ndarray, rate: int, wanted: int = SAMPLE_RATE) -> np.ndarray:
    """Resample a wave.

    Args:
        wave: Float [samples].
        rate: Samples per second of the wave.
        wanted: Samples per second of the result.

    Returns:
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
    """Cut the silence at the ends of a wave, but for 30 ms.

    A silent wave stays as it is.
    """
    loud = np.flatnonzero(np.abs(wave) > _SILENT * np.abs(wave).max(initial=0))
    if not len(loud):
        return wave
    edge = round(_EDGE_S * rate)
    return wave[max(0, loud[0] - edge) : loud[-1] + 1 + edge]
