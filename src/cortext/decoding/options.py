"""Settings of the word search."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from numbers import Real
from typing import Any

from cortext.decoding.llm.options import LLMOptions
from cortext.errors import DecodingError, nearest
from cortext.text.phonemes import LM


@dataclass(frozen=True)
class DecoderOptions:
    """Settings of the word search.

    score = acoustic_scale * acoustic + lm_weight * ngram + word_score * words + sil

    `cortext.decoding.reference` defines each term; `LLMOptions` says what a large language model
    changes.
    """

    acoustic_scale: float = 1.0
    """Factor on the acoustic log-probability; above 0."""
    lm_weight: float = 1.0
    """Factor on the n-gram log-probability."""
    word_score: float = 0.0
    """Added once per word; positive favours more words."""
    sil_cost: float = 0.0
    """Subtracted for every word that follows another without a SIL token.

    Zero makes silence free and optional.
    """
    sil_required: bool = False
    """Whether words must be set off from each other by SIL."""
    unk_score: float = -10.0
    """Natural-log score added to the n-gram's for a word that the n-gram does not know."""
    blank_penalty: float = 32.0
    """At least 1; its logarithm is subtracted from the blank's log-probability in every frame.

    CTC models are too sure of the blank; the default was chosen on a simulation of another seed
    than the demo's (the published value is 90).
    """
    label_priors: dict[str, float] | tuple[tuple[str, float], ...] = ()
    """Prior probability by token symbol, given as a mapping such as `{"BLANK": 0.6, "SIL": 0.1}`.

    Its logarithm times `prior_weight` is subtracted from the token's log-probability in every
    frame; for a token not named it is 0.
    """
    prior_weight: float = 1.0
    """Factor on the logarithm of the label priors."""
    blank_skip: float = 1.0
    """Frames whose blank probability is at least this are passed over (1 passes over none)."""
    beam: float = 18.0
    """Hypotheses worse than the best by more than this (scaled score) are dropped."""
    word_beam: float = 0.7
    """Share of `beam` outside which words that have just ended are dropped.

    They have the n-gram's whole score, where unfinished ones have a guess (native engine).
    """
    max_active: int = 500
    """At most this many hypotheses live after a frame."""
    min_active: int = 10
    """At least this many hypotheses live after a frame, where that many exist, whatever the
    beam.
    """
    lattice_beam: float = 8.0
    """Alternatives worse than the best by more than this times acoustic_scale are not kept for
    the n-best list.
    """
    max_arcs: int = 100_000
    """Upper bound on the alternatives kept for one sentence."""
    nbest: int = 10
    """Length of the list of sentences returned."""
    recombine: str = "logadd"
    """How paths that read the same are joined.

    `logadd` (sum of probabilities) or `max` (the best path).
    """
    history_words: int = 0
    """Words of history that keep hypotheses apart beyond what the n-gram needs (the reference
    keeps all).
    """
    llm: LLMOptions = field(default_factory=LLMOptions)
    """What a large language model may say, where one is given."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "llm", LLMOptions.of(self.llm))
        object.__setattr__(self, "label_priors", _checked_priors(self.label_priors))
        if self.recombine not in ("logadd", "max"):
            raise DecodingError(f"recombine is {self.recombine!r}; use 'logadd' or 'max'")
        if not isinstance(self.sil_required, bool):
            raise DecodingError(f"sil_required is {self.sil_required!r}; true or false is needed")
        for name, kind in (
            (option.name, option.type) for option in fields(self) if option.type in ("int", "float")
        ):
            value = getattr(self, name)
            if not is_finite(value) or (kind == "int" and int(value) != value):
                raise DecodingError(f"{name} is {value!r}; a finite {kind} is needed")
            object.__setattr__(self, name, int(value) if kind == "int" else float(value))
            low, high = _BOUNDS.get(name, (-LARGEST, LARGEST))
            if not low <= value <= high:
                raise DecodingError(
                    f"{name} is {value}; it must be at least {low:g} and at most {high:g}"
                )

    @classmethod
    def of(cls, options: DecoderOptions | Mapping[str, Any] | None) -> DecoderOptions:
        """Options from themselves, from a mapping of field names, or the defaults.

        Unknown names are refused.
        """
        if isinstance(options, DecoderOptions):
            return options
        return cls().changed(options or {})

    def changed(self, changes: Mapping[str, Any]) -> DecoderOptions:
        """These options with some fields changed; unknown names are refused with the nearest one.

        A mapping for `llm` changes what it names, and leaves the rest.
        """
        known = {option.name for option in fields(self)}
        for name in changes:
            if name not in known:
                raise DecodingError(f"unknown decoder option {name!r}; {nearest(name, known)}")
        llm = changes.get("llm")
        return replace(
            self,
            **{**changes, "llm": self.llm.changed(llm)} if isinstance(llm, Mapping) else changes,
        )


LARGEST = 1e6
"""Largest size of a number without narrower bounds, of a word's bonus and of a score that a hook
adds.
"""

_BOUNDS: dict[str, tuple[float, float]] = {
    "acoustic_scale": (1e-3, 1e3),
    "lm_weight": (0, 1e3),
    "blank_penalty": (1, 1e6),
    "prior_weight": (0, 1e3),
    "blank_skip": (0, 1e6),
    "beam": (0, 1e9),
    "word_beam": (0, 1),
    "max_active": (1, 1e9),
    "min_active": (1, 1e9),
    "lattice_beam": (0, 1e9),
    "max_arcs": (1, 1e9),
    "nbest": (1, 1e9),
    "history_words": (0, 1e3),
}
"""Lowest and highest value of each number; for the others minus and plus `LARGEST`."""


def is_finite(value: object) -> bool:
    """Whether it is a number (a bool is none) that a float can hold."""
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def _checked_priors(priors: object) -> tuple[tuple[str, float], ...]:
    """Label priors as pairs in the order of their names, which can be compared and hashed."""
    try:
        pairs = sorted(dict(priors).items())  # type: ignore[call-overload]
    except (TypeError, ValueError):
        raise DecodingError(
            f"label_priors is {priors!r}; a mapping of token symbols to probabilities is needed"
        ) from None
    for symbol, prior in pairs:
        if symbol not in LM.index:
            raise DecodingError(
                f"label_priors names an unknown token {symbol!r};"
                f" {nearest(str(symbol), LM.symbols)}"
            )
        if not is_finite(prior) or not 0 < prior <= 1:
            raise DecodingError(
                f"the label prior of {symbol} is {prior!r}; a probability above 0 is needed"
            )
    return tuple((symbol, float(prior)) for symbol, prior in pairs)
