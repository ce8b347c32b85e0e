"""A decoder as it travels to other processes, which may run on other machines."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from cortext.decoding import Decoder, DecoderOptions
from cortext.decoding.confidence import Calibrator
from cortext.evaluation.settings import LargeModelFiles


@dataclass(frozen=True)
class DecoderFiles:
    """A decoder as it travels to other processes, which open its files themselves.

    The n-gram is mapped into memory.

    Attributes:
        lm: Language-model directory.
        llm: The large model that it asks; None without one.
        calibrator: Calibrates its confidences; None without.
    """

    lm: Path
    options: DecoderOptions
    llm: LargeModelFiles | None = None
    calibrator: Calibrator | None = None

    def open(self) -> Decoder:
        """Return the decoder; a process opens each language model once."""
        decoder = _opened(self.lm).with_options(**vars(self.options))
        decoder = decoder.with_calibrator(self.calibrator)
        return decoder if self.llm is None else decoder.with_llm(self.llm.open())


@lru_cache(maxsize=2)
def _opened(lm: Path) -> Decoder:
    return Decoder.from_dir(lm)
