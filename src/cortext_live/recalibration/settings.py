"""Settings of learning from one sentence after another, and the published methods as presets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields

from cortext.config import check_fields, with_overrides
from cortext.errors import ConfigError, nearest


@dataclass(frozen=True, kw_only=True)
class LearningSettings:
    """Settings of learning from a decoded sentence.

    The defaults are those of `one-step`.
    """

    copies: int = 16
    """Copies of the sentence in a batch, each with noise of its own."""
    replayed: int = 0
    """Earlier sentences in a batch, drawn anew for every step."""
    white_noise_std: float = 0.2
    """Standard deviation of the noise added to every bin of every feature."""
    constant_offset_std: float = 0.05
    """Standard deviation of the offset added to a feature throughout a sentence."""
    lr: float = 1e-3
    """Learning rate of AdamW."""
    weight_decay: float = 1e-5
    """Weight decay of AdamW."""
    clip: float = 0.5
    """Largest norm of the gradient."""
    steps: int = 1
    """Most steps for a sentence."""
    steps_at_once: float = 1.0
    """Steps for a new sentence before the day is over, where those of a day learn together."""
    rounds: int = 1
    """Rounds in which the other steps are taken when the day ends. Before each, its sentences are
    decoded again."""
    steps_per_day: int = 0
    """Most steps of a recording day; 0 sets no bound beyond `steps` for each sentence."""
    stop_loss: float = 0.0
    """Mean loss of the sentence below which no further step is taken; 0 takes all steps."""
    confidence: float = 0.5
    """Lowest confidence of a decoded sentence that is learnt from; see `pseudo_label`."""
    word_confidence: float = 0.0
    """Lowest confidence of a decoded word that is learnt from. Frames of other words may be
    anything (`wildcard`). 0 learns whole sentences; so does a model not trained with CTC."""
    least_rate: float = 0.5
    """Fewest tokens a second of a decoded sentence that is learnt from, as a share of those of
    labelled sentences; 0, or no labelled sentence for replay, trusts all. A model that learns from
    too short sentences decodes shorter and shorter ones, and is sure of them."""
    remembered: int = 400
    """Sentences kept for replay: half come from labelled recordings, and half are the latest ones
    that were decoded. As many corrected ones are kept besides."""
    whole_model: bool = False
    """Let all weights learn, not only those that the model says belong to the day."""
    together: int = 0
    """Different sentences of the day in a batch, which learn together before a model is made; 0
    learns from each sentence by itself. See `Learner.learn_together`."""
    corrected_weight: float = 3.0
    """Weight of a corrected sentence in drawing them; a decoded one has 1."""
    lr_floor: float = 1.0
    """Share of the learning rate that is left at the last step before a model is made."""

    def __post_init__(self) -> None:
        check_fields(self)
        least = {"copies": 1, "replayed": 0, "steps": 1, "steps_per_day": 0, "together": 0}
        least |= {"rounds": 1}
        for name, number in (least | {"remembered": 2}).items():
            given = getattr(self, name)
            _require(given >= number, name, given, f"{number} or more")
        for name in ("confidence", "word_confidence", "least_rate", "lr_floor"):
            _require(0 <= getattr(self, name) <= 1, name, getattr(self, name), "from 0 to 1")
        for name in ("lr", "clip", "corrected_weight"):
            _require(getattr(self, name) > 0, name, getattr(self, name), "a positive number")
        for each in fields(self):
            if each.type == "float":
                value = getattr(self, each.name)
                _require(0 <= value < float("inf"), each.name, value, "finite and 0 or more")


def _require(condition: bool, name: str, value: object, needed: str) -> None:
    if not condition:
        raise ConfigError(f"{name} is {value}; it must be {needed}")


METHODS = {
    "one-step": LearningSettings(),
    "replay": LearningSettings(
        copies=10,
        replayed=6,
        white_noise_std=0.8,
        steps=2,
        steps_per_day=50,
        stop_loss=4.0,
    ),
}
"""Methods by name, sized for a processor.

`one-step` is DietCORP (Feghhi et al. 2025, arXiv 2507.02800): one step on noisy copies of the
sentence, 64 as published. `replay` is CORP (Fan et al. 2023): 60 % copies of the new sentence and
40 % replayed ones, until the loss is below 4; up to 200 steps of 64 sentences as published.
"""
OF_THE_SERVICE = (
    *("word_confidence", "together", "steps_at_once", "rounds", "corrected_weight", "lr_floor"),
)
"""Settings that `adapt` and `evaluate` do not use."""
SERVICE_METHODS = METHODS | {
    "together": LearningSettings(
        replayed=6,
        white_noise_std=0.8,
        lr=3e-3,
        lr_floor=0.1,
        steps=2,
        steps_at_once=0.3,
        rounds=5,
        steps_per_day=50,
        confidence=0.0,
        word_confidence=0.7,
        whole_model=True,
        together=10,
    ),
}
"""Methods of the service by name.

With `together` the sentences of a day are decoded again before a model is made, and learn together
beside replayed ones, with noise (noisy student: Xie et al. 2020, arXiv 1911.04252). Only words that
are likely right are learnt from.
"""


def method_settings(
    method: str,
    overrides: Iterable[str] = (),
    methods: Mapping[str, LearningSettings] = METHODS,
) -> LearningSettings:
    """Return the settings of a method with changes.

    Args:
        method: A key of `methods`.
        overrides: `key=value` changes.
        methods: Settings of the methods by name.

    Raises:
        ConfigError: For an unknown method, key or value.
    """
    if method not in methods:
        raise ConfigError(f"unknown method {method!r}; {nearest(method, methods)}")
    changes = list(overrides)
    for name in (each.partition("=")[0].strip() for each in changes):
        if name in OF_THE_SERVICE and methods is not SERVICE_METHODS:
            raise ConfigError(f"{name} is a setting of `cortext recalibrate` alone")
    return with_overrides(methods[method], changes)


YEAR_H = 366 * 24.0


@dataclass(frozen=True, kw_only=True)
class ServiceSettings:
    """Settings of the service, beside those of learning and of promotion."""

    every: int = 20
    """Sentences that are learnt from between two models of the chain."""
    quiet_s: float = 1800.0
    """Seconds without a further utterance after which fewer sentences make a model, where those of
    a day learn together."""
    settle_s: float = 60.0
    """Seconds that a sentence waits for its correction before its decoded text is learnt from."""
    judging: int = 300
    """Most labelled sentences that judge a model, the latest ones."""
    watched: int = 30
    """Latest sentences whose confidence may veto a model."""
    lost_confidence: float = 0.05
    """Fall of their mean confidence, against the parent's, that vetoes a model."""
    allow_provisional: bool = False
    """Let a model speak provisionally while too few sentences have labels to judge it."""
    kept: int = 10
    """Latest models whose files are kept, beside the promoted ones and the one that speaks."""

    def __post_init__(self) -> None:
        check_fields(self)
        for name in ("every", "judging", "watched", "kept"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be 1 or more")
        for name in ("settle_s", "quiet_s"):
            if not 0 <= getattr(self, name) <= 3600 * YEAR_H:
                problem = f"{name} is {getattr(self, name):g}"
                raise ConfigError(f"{problem}; it must be from 0 to {3600 * YEAR_H:g} s, a year")
        if not 0 <= self.lost_confidence <= 1:
            problem = f"lost_confidence is {self.lost_confidence}"
            raise ConfigError(problem, fix="give a share from 0 to 1")
