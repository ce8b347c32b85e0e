"""What a client may ask of a search that must end before the next frame comes."""

from __future__ import annotations

from collections.abc import Mapping

from cortext.decoding import DecoderOptions
from cortext.errors import DecodingError

LIVE_BOUNDS = {"max_active": (1, 20_000), "min_active": (1, 20_000), "nbest": (1, 1_000)}
"""Lowest and highest value of options that decide how long a step and the end of an utterance
take.
"""
LONGEST_BUDGET_MS = 1_000.0
LONGEST_WORD, MOST_HOTWORDS = 64, 1_000


def check_options(options: DecoderOptions) -> None:
    """Raise DecodingError for options that a live search could not keep up with."""
    for name, (low, high) in LIVE_BOUNDS.items():
        if not low <= getattr(options, name) <= high:
            what = (
                f"{name} is {getattr(options, name)}; live it must be at least {low} and at most"
                f" {high}"
            )
            raise DecodingError(what)
    if options.llm.budget_ms > LONGEST_BUDGET_MS:
        what = (
            f"llm.budget_ms is {options.llm.budget_ms:g}; live it must be at most"
            f" {LONGEST_BUDGET_MS:g}"
        )
        raise DecodingError(what)


def check_hotwords(bonuses: Mapping[str, float]) -> None:
    """Raise DecodingError for more or longer words than anybody favours."""
    if len(bonuses) > MOST_HOTWORDS:
        raise DecodingError(f"{len(bonuses)} hotwords; at most {MOST_HOTWORDS} can be favoured")
    for word in bonuses:
        if len(word) > LONGEST_WORD:
            raise DecodingError(
                f"{word[:20]!r}... has {len(word)} letters; at most {LONGEST_WORD} are a word"
            )
