"""Settings of a large language model beside the n-gram."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from cortext.errors import DecodingError, nearest

MODES = ("rescore", "fusion")
FORMS = ("interpolate", "add")
VARIANTS = ("plain", "written")


@dataclass(frozen=True)
class LLMOptions:
    """What a large language model may say, and when. They matter only where a model is given.

    With w the `weight`, of which 0 is as if there were no model, the n-gram's part of a sentence's
    score, lm_weight * ngram, becomes

        interpolate: lm_weight * ((1 - w) * ngram + w * llm)     as the public NEJM 2024 release has
        it
        add:         lm_weight * ngram + w * llm
    """

    mode: str = "rescore"
    """`rescore`: the sentences of the n-best list, at their end.

    `fusion`: the live hypotheses, too, as they grow.
    """
    form: str = "interpolate"
    """How the two language models are combined."""
    weight: float = 0.5
    """Weight of the large model; at most 1 where it is interpolated."""
    token_penalty: float = 0.0
    """Subtracted from the large model's log-probability for every token."""
    variants: str = "plain"
    """`plain`: sentences as they are.

    `written`: as they could be written, with a capital and a stop, added up.
    """
    augment: int = 0
    """So many of the best sentences of a list exchange words, two at a time, for more
    candidates.
    """
    augment_penalty: float = 0.01
    """What a candidate made so loses of its scores, as a fraction."""
    every_frames: int = 5
    """Fusion looks at the live hypotheses every so many frames of 80 ms."""
    budget_ms: float = 0.0
    """So long the search waits for the large model at each look.

    0: as long as it takes, live 40 ms.
    """
    most_hypotheses: int = 32
    """So many of the best live hypotheses are looked at."""
    history_words: int = 8
    """Words of history that keep hypotheses apart in fusion, so that the large model can tell
    them apart.
    """
    cache_mb: float = 512.0
    """Bound on the memory of what an utterance's hypotheses left behind in the large model."""

    def __post_init__(self) -> None:
        for name, known in (("mode", MODES), ("form", FORMS), ("variants", VARIANTS)):
            if getattr(self, name) not in known:
                raise DecodingError(
                    f"llm.{name} is {getattr(self, name)!r};"
                    f" {nearest(str(getattr(self, name)), known)}"
                )
        for name, (low, high) in _BOUNDS.items():
            value, whole = getattr(self, name), isinstance(getattr(LLMOptions, name), int)
            if (
                not isinstance(value, int | float)
                or isinstance(value, bool)
                or not low <= value <= high
            ):
                raise DecodingError(
                    f"llm.{name} is {value!r}; it must be at least {low:g} and at most {high:g}"
                )
            if whole and int(value) != value:
                raise DecodingError(f"llm.{name} is {value!r}; a whole number is needed")
            object.__setattr__(self, name, int(value) if whole else float(value))
        if self.form == "interpolate" and self.weight > 1:
            raise DecodingError(
                f"llm.weight is {self.weight:g}; interpolation needs at most 1",
                fix="use llm.form=add",
            )

    @classmethod
    def of(cls, options: LLMOptions | Mapping[str, Any]) -> LLMOptions:
        """Options from themselves or from a mapping of field names; unknown names are refused."""
        if isinstance(options, LLMOptions):
            return options
        if not isinstance(options, Mapping):
            raise DecodingError(
                f"llm is {options!r}; a mapping such as {{'weight': 0.3}} is needed"
            )
        return cls().changed(options)

    def changed(self, changes: Mapping[str, Any]) -> LLMOptions:
        """These options with some fields changed.

        Unknown names are refused with the nearest one.
        """
        known = {field.name for field in fields(self)}
        for name in changes:
            if name not in known:
                raise DecodingError(f"unknown option llm.{name}; {nearest(name, known)}")
        return replace(self, **changes)

    def shares(self, lm_weight: float) -> tuple[float, float]:
        """Factors on the n-gram's and the large model's log-probability."""
        if self.form == "add":
            return lm_weight, self.weight
        return lm_weight * (1 - self.weight), lm_weight * self.weight


_BOUNDS: dict[str, tuple[float, float]] = {
    "weight": (0, 1e3),
    "token_penalty": (-1e3, 1e3),
    "augment": (0, 200),
    "augment_penalty": (0, 1e3),
    "every_frames": (1, 1e6),
    "budget_ms": (0, 1e6),
    "most_hypotheses": (1, 1e6),
    "history_words": (0, 1e3),
    "cache_mb": (1, 1e6),
}
