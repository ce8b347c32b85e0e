"""Settings of the word search and of a large language model beside it.

A field of `DecoderOptions` or `LLMOptions` is the one place of an option: its default, its bounds
and, below it, its meaning. An option that the compiled search reads has one line more, with the
same name and bounds, in native/options.hpp.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from numbers import Real
from typing import Annotated, Any

from cortext.arguments import check_type
from cortext.errors import DecodingError, nearest
from cortext.settings import FROM_0_TO_1, Setting, settings_of
from cortext.text.inventory import Inventory

LARGEST = 1e6
"""Largest size of a number without narrower bounds, of a word's bonus and of a score that a hook
adds.
"""

MODES = ("rescore", "fusion")
FORMS = ("interpolate", "add")
VARIANTS = ("plain", "written")


_SCORE = Setting(minimum=-LARGEST, maximum=LARGEST)
_FACTOR = Setting(minimum=0, maximum=1e3)
_BEAM = Setting(minimum=0, maximum=1e9)
_HISTORY = Setting(minimum=0, maximum=1e3)
_COUNT = Setting(minimum=1, maximum=1e9)


@dataclass(frozen=True)
class LLMOptions:
    """Settings of a large language model. They matter only where a model is given.

    A `weight` w of 0 is as if there were no model. The n-gram's part of a sentence's score,
    lm_weight * ngram, becomes

        interpolate: lm_weight * ((1 - w) * ngram + w * llm)   (the public NEJM 2024 release)
        add:         lm_weight * ngram + w * llm
    """

    mode: str = "rescore"
    """`rescore`: score the sentences of the n-best list, at their end.

    `fusion`: score the live hypotheses, too, as they grow.
    """
    form: str = "interpolate"
    """Combination of the two language models: `interpolate` or `add`, see above."""
    weight: Annotated[float, _FACTOR] = 0.5
    """Weight of the large model; at most 1 where it is interpolated."""
    token_penalty: Annotated[float, Setting(minimum=-1e3, maximum=1e3)] = 0.0
    """Subtracted from the large model's log-probability for every token."""
    variants: str = "plain"
    """`plain`: sentences as they are.

    `written`: as they could be written, with a capital and a stop, added up.
    """
    augment: Annotated[int, Setting(minimum=0, maximum=200)] = 0
    """Number of the best sentences of a list that exchange words, two at a time, for more
    hypotheses.
    """
    augment_penalty: Annotated[float, _FACTOR] = 0.01
    """Fraction of its scores that a hypothesis made by exchanging words loses."""
    every_frames: Annotated[int, Setting(minimum=1, maximum=1e6)] = 5
    """Frames of 80 ms between two queries of the model in fusion."""
    budget_ms: Annotated[float, Setting(minimum=0, maximum=1e6)] = 0.0
    """Time that the search waits for the large model at each query.

    0: as long as it takes, live 40 ms.
    """
    most_hypotheses: Annotated[int, Setting(minimum=1, maximum=1e6)] = 32
    """Number of the best live hypotheses that a query asks for."""
    history_words: Annotated[int, _HISTORY] = 8
    """Words of history that keep hypotheses apart in fusion, so that the large model can tell
    them apart.
    """
    cache_mb: Annotated[float, Setting(minimum=1, maximum=1e6)] = 512.0
    """Bound on the memory of the large model's cache for the hypotheses of one utterance."""

    def __post_init__(self) -> None:
        for name, known in (("mode", MODES), ("form", FORMS), ("variants", VARIANTS)):
            value = getattr(self, name)
            if not isinstance(value, str) or value not in known:
                raise DecodingError(
                    f"llm.{name} is {getattr(self, name)!r};"
                    f" {nearest(str(getattr(self, name)), known)}"
                )
        check_numbers(self, "llm.")
        if self.form == "interpolate" and self.weight > 1:
            raise DecodingError(
                f"llm.weight is {self.weight:g}; interpolation needs at most 1",
                fix="use llm.form=add",
            )

    @classmethod
    def of(cls, options: LLMOptions | Mapping[str, Any]) -> LLMOptions:
        """Return options from themselves or from a mapping of field names.

        Raises:
            DecodingError: For unknown names and values out of bounds.
        """
        if isinstance(options, LLMOptions):
            return options
        if not isinstance(options, Mapping):
            raise DecodingError(
                f"llm is {options!r}; a mapping such as {{'weight': 0.3}} is needed"
            )
        return cls().changed(options)

    def changed(self, changes: Mapping[str, Any]) -> LLMOptions:
        """Return these options with some fields changed.

        Raises:
            DecodingError: For an unknown name, with the nearest one, and values out of bounds.
        """
        known = {option.name for option in fields(self)}
        for name in changes:
            if name not in known:
                raise DecodingError(f"unknown option llm.{name}; {nearest(name, known)}")
        return replace(self, **changes)

    def shares(self, lm_weight: float) -> tuple[float, float]:
        """Return the factors on the n-gram's and the large model's log-probability."""
        if self.form == "add":
            return lm_weight, self.weight
        return lm_weight * (1 - self.weight), lm_weight * self.weight


@dataclass(frozen=True)
class DecoderOptions:
    """Settings of the word search.

    `cortext.decoding.Hypothesis` states the score that `acoustic_scale`, `lm_weight`, `word_score`
    and `sil_cost` weigh.
    """

    acoustic_scale: Annotated[float, Setting(minimum=1e-3, maximum=1e3)] = 0.8
    """Factor on the acoustic log-probability; above 0."""
    lm_weight: Annotated[float, _FACTOR] = 1.0
    """Factor on the n-gram log-probability."""
    word_score: Annotated[float, _SCORE] = -1.0
    """Added once per word; positive favours more words."""
    sil_cost: Annotated[float, _SCORE] = 10.0
    """Subtracted for every word that follows another without a SIL token.

    The default suits networks whose labels close every word with SIL. Zero makes silence free and
    optional, for networks that leave it out.
    """
    sil_required: bool = False
    """True if words must be set off from each other by SIL."""
    unk_score: Annotated[float, _SCORE] = -10.0
    """Natural-log score added to the n-gram's for a word that the n-gram does not know."""
    blank_penalty: Annotated[float, Setting(minimum=1, maximum=1e6)] = 32.0
    """Penalty on the blank in every frame, at least 1.

    Its logarithm is subtracted from the blank's log-probability. CTC models are too sure of the
    blank. The default was chosen on a simulation of another seed than the demo's, and holds for
    blanks near 0.9 and near 1 (docs/measured/decoder-options.md); the published value is 90.
    """
    label_priors: dict[str, float] | tuple[tuple[str, float], ...] = ()
    """Prior probability by token symbol, given as a mapping such as `{"BLANK": 0.6, "SIL": 0.1}`.

    Its logarithm times `prior_weight` is subtracted from the token's log-probability in every
    frame; for a token not named it is 0. The decoder checks the symbols: they are those of its
    inventory.
    """
    prior_weight: Annotated[float, _FACTOR] = 1.0
    """Factor on the logarithm of the label priors."""
    blank_skip: Annotated[float, Setting(minimum=0, maximum=1e6)] = 1.0
    """Blank probability from which on a frame is passed over (1 passes over none)."""
    beam: Annotated[float, _BEAM] = 15.0
    """Hypotheses worse than the best by more than this (scaled score) are dropped."""
    word_beam: Annotated[float, FROM_0_TO_1] = 0.7
    """Share of `beam` outside which words that have just ended are dropped.

    They have the n-gram's exact score, where unfinished ones have a guess.
    """
    max_active: Annotated[int, _COUNT] = 500
    """Most hypotheses that live after a frame."""
    min_active: Annotated[int, _COUNT] = 10
    """Fewest hypotheses that live after a frame, where that many exist, whatever the beam."""
    lattice_beam: Annotated[float, _BEAM] = 8.0
    """Alternatives worse than the best by more than this times acoustic_scale are not kept for
    the n-best list.
    """
    max_arcs: Annotated[int, _COUNT] = 100_000
    """Upper bound on the alternatives kept for one sentence."""
    nbest: Annotated[int, _COUNT] = 10
    """Length of the list of sentences returned."""
    recombine: str = "logadd"
    """Rule that joins paths which read the same.

    `logadd` (sum of probabilities) or `max` (the best path).
    """
    history_words: Annotated[int, _HISTORY] = 0
    """Words of history that keep hypotheses apart beyond what the n-gram needs (the reference
    keeps all).
    """
    llm: LLMOptions = field(default_factory=LLMOptions)
    """Settings of a large language model, where one is given."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "llm", LLMOptions.of(self.llm))
        object.__setattr__(self, "label_priors", _checked_priors(self.label_priors))
        if not isinstance(self.recombine, str) or self.recombine not in ("logadd", "max"):
            raise DecodingError(f"recombine is {self.recombine!r}; use 'logadd' or 'max'")
        if not isinstance(self.sil_required, bool):
            raise DecodingError(f"sil_required is {self.sil_required!r}; true or false is needed")
        check_numbers(self)

    def require_tokens(self, inventory: Inventory) -> None:
        """Raise DecodingError for a label prior of a token that the inventory lacks."""
        for symbol in dict(self.label_priors):
            if symbol not in inventory.index:
                raise DecodingError(
                    f"label_priors names an unknown token {symbol!r};"
                    f" {nearest(symbol, inventory.symbols)}"
                )

    def differences(self) -> str:
        """Return the options that are not the defaults, as `name=value` with commas between."""
        changed = [
            f"{option.name}={getattr(self, option.name)}"
            for option in fields(self)
            if getattr(self, option.name) != getattr(type(self)(), option.name)
        ]
        return ", ".join(changed)

    @classmethod
    def of(cls, options: DecoderOptions | Mapping[str, Any] | None) -> DecoderOptions:
        """Return options from themselves, from a mapping of field names, or the defaults.

        Raises:
            DecodingError: For unknown names and values out of bounds.
        """
        if isinstance(options, DecoderOptions):
            return options
        needed = "DecoderOptions, a mapping of its fields or None"
        check_type(options, (Mapping, type(None)), "options", needed)
        return cls().changed(options or {})

    def changed(self, changes: Mapping[str, Any]) -> DecoderOptions:
        """Return these options with some fields changed.

        A mapping for `llm` changes what it names, and leaves the rest.

        Raises:
            DecodingError: For an unknown name, with the nearest one, and values out of bounds.
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


def check_numbers(options: object, prefix: str = "") -> None:
    """Check the numbers of options, a dataclass, and make each an int or a float like its default.

    Args:
        options: The options.
        prefix: The dotted path of their section, for messages.

    Raises:
        DecodingError: For the first that is no number, not whole or out of the bounds of its field.
    """
    cls: Any = type(options)
    for name, setting in settings_of(cls).items():
        value = getattr(options, name)
        kind = type(getattr(cls, name))
        if not is_finite(value) or (kind is int and int(value) != value):
            raise DecodingError(f"{prefix}{name} is {value!r}; a finite {kind.__name__} is needed")
        setting.check(prefix + name, value, DecodingError)
        object.__setattr__(options, name, kind(value))


def is_finite(value: object) -> bool:
    """Return whether a value is a number (a bool is none) that a float can hold."""
    try:
        return isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
    except OverflowError:
        return False


def _checked_priors(priors: object) -> tuple[tuple[str, float], ...]:
    """Return label priors as pairs in the order of their names, comparable and hashable."""
    try:
        pairs = sorted(dict(priors).items())  # type: ignore[call-overload]
    except (TypeError, ValueError):
        raise DecodingError(
            f"label_priors is {priors!r}; a mapping of token symbols to probabilities is needed"
        ) from None
    for symbol, prior in pairs:
        if not isinstance(symbol, str):
            raise DecodingError(f"label_priors names {symbol!r}; the symbol of a token is needed")
        if not is_finite(prior) or not 0 < prior <= 1:
            raise DecodingError(
                f"the label prior of {symbol} is {prior!r}; a probability above 0 is needed"
            )
    return tuple((symbol, float(prior)) for symbol, prior in pairs)
