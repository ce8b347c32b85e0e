"""A made-up fit of decoder options, for tests of what uses it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cortext.decoding import DecoderOptions
from cortext.decoding.ngram.language_model import language_model_checksum
from cortext.evaluation.fit.fitted_file import FittedWith
from cortext.evaluation.fit.options import FittedOn, FittedOptions, WordErrors


def made_fit(lm: Path, options: DecoderOptions, **changes: Any) -> FittedOptions:
    """Return options as if they had been fitted with a language model; `changes` are fields."""
    facts: dict[str, Any] = {
        "options": options,
        "language_model": FittedWith(str(lm), language_model_checksum(lm)),
        "fitted_on": FittedOn("packed", "val", 6, 18, 6),
        "word_errors": WordErrors(18, 12, 8, 9),
        "halves": [],
        "weights": None,
        "tried": 4,
        "seconds": 1.5,
        "created": "2026-11-23T00:00:00+00:00",
        "version": "0.1.0",
    }
    return FittedOptions(**facts | changes)
