"""The interface of every voice."""

from __future__ import annotations

import re
import textwrap
from abc import ABC, abstractmethod
from collections.abc import Iterator
from math import gcd
from typing import ClassVar

import numpy as np

from cortext.extras import need

SAMPLE_RATE = 16_000
"""Samples a second of what every voice speaks."""
_EDGE_S, _SILENT = 0.03, 0.003
_PIECE = 200
"""Most characters of a piece of a sentence."""


class Voice(ABC):
    """A voice. The same text gives the same wave, on every call and in every process.

    Attributes:
        name: Name that `open_voice` takes.
        revision: Identity of its waves: voices with other waves have another revision.
    """

    name: str
    revision: str
    sample_rate: int = SAMPLE_RATE
    takes: ClassVar[tuple[str, ...]] = ("rate",)
    """Settings that `aloud` can change: `rate`, `pitch`."""

    @abstractmethod
    def can_speak(self, text: str) -> bool:
        """Return whether the text can be spoken; the answer takes no time."""

    def passed_over(self, text: str) -> str:
        """Return letters and digits of a speakable text that the voice skips."""
        return ""

    @abstractmethod
    def speak(self, text: str) -> np.ndarray:
        """Speak a text: return a wave, float32 [samples] at 16 kHz, between -1 and 1."""

    def aloud(
        self, text: str, rate: float = 1.0, pitch: float = 1.0
    ) -> tuple[int, Iterator[bytes]]:
        """Speak a text for a listener, who waits for the first sound.

        Args:
            text: The text; pieces that cannot be spoken are left out.
            rate: Speed, as a multiple of the voice's own.
            pitch: Pitch, as a multiple of the voice's own; for a voice that takes it.

        Returns:
            Samples per second, and the wave piece by piece: 16 bits, little-endian, one channel.
        """
        pieces = [piece for piece in _pieces(text) if self.can_speak(piece)]
        return self.aloud_sample_rate, (pcm(self._wave(piece, rate, pitch)) for piece in pieces)

    @property
    def aloud_sample_rate(self) -> int:
        """Samples per second of what `aloud` returns."""
        return self.sample_rate

    def _wave(self, text: str, rate: float, pitch: float) -> np.ndarray:
        """Return the wave of a sentence at a speed and a pitch, at `aloud_sample_rate`."""
        raise NotImplementedError


def _pieces(text: str) -> list[str]:
    """Return the sentences of a text; long ones in pieces, so that the first sound comes soon."""
    sentences = re.split(r"(?<=[.!?])\s+", text)
    wrapped = (textwrap.wrap(each, _PIECE, break_on_hyphens=False) for each in sentences)
    return [piece for pieces in wrapped for piece in pieces]


def pcm(wave: np.ndarray) -> bytes:
    """Return a wave between -1 and 1 as 16-bit samples, little-endian."""
    samples: np.ndarray = np.rint(np.clip(wave, -1, 1) * (2**15 - 1)).astype("<i2")
    return samples.tobytes()


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
    resampled_N: np.ndarray = need("scipy.signal", "speechllm").resample_poly(
        wave, wanted // shared, rate // shared
    )
    return resampled_N.astype(np.float32)


def trimmed(wave: np.ndarray, rate: int) -> np.ndarray:
    """Cut the silence at the ends of a wave, but for 30 ms.

    A silent wave stays as it is.
    """
    loud = np.flatnonzero(np.abs(wave) > _SILENT * np.abs(wave).max(initial=0))
    if not len(loud):
        return wave
    edge = round(_EDGE_S * rate)
    return wave[max(0, loud[0] - edge) : loud[-1] + 1 + edge]
