"""Settings of learning from one sentence after another, and the published methods as presets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Annotated

from cortext.config import check_fields, with_overrides
from cortext.errors import ConfigError, nearest
from cortext.settings import ABOVE_0, AT_LEAST_0, AT_LEAST_1, FROM_0_TO_1, Setting


@dataclass(frozen=True, kw_only=True)
class LearningOptions:
    """Options of learning from a decoded sentence.

    The defaults are those of `one-step`.
    """

    copies: Annotated[int, AT_LEAST_1] = 16
    """Copies of the sentence in a batch, each with noise of its own."""
    replayed: Annotated[int, AT_LEAST_0] = 0
    """Earlier sentences in a batch, drawn anew for every step."""
    white_noise_std: Annotated[float, AT_LEAST_0] = 0.2
    """Standard deviation of the noise added to every bin of every feature."""
    constant_offset_std: Annotated[float, AT_LEAST_0] = 0.05
    """Standard deviation of the offset added to a feature throughout a sentence."""
    lr: Annotated[float, ABOVE_0] = 1e-3
    """Learning rate of AdamW."""
    weight_decay: Annotated[float, AT_LEAST_0] = 1e-5
    """Weight decay of AdamW."""
    clip: Annotated[float, ABOVE_0] = 0.5
    """Largest norm of the gradient."""
    steps: Annotated[int, AT_LEAST_1] = 1
    """Most steps for a sentence."""
    steps_at_once: Annotated[float, AT_LEAST_0] = 1.0
    """Steps for a new sentence before the day is over, where those of a day learn together."""
    rounds: Annotated[int, AT_LEAST_1] = 1
    """Rounds in which the other steps are taken when the day ends. Before each, its sentences are
    decoded again."""
    steps_per_day: Annotated[int, AT_LEAST_0] = 0
    """Most steps of a recording day; 0 sets no bound beyond `steps` for each sentence."""
    stop_loss: Annotated[float, AT_LEAST_0] = 0.0
    """Mean loss of the sentence below which no further step is taken; 0 takes all steps."""
    confidence: Annotated[float, FROM_0_TO_1] = 0.5
    """Lowest confidence of a decoded sentence that is learnt from; see `pseudo_label`."""
    word_confidence: Annotated[float, FROM_0_TO_1] = 0.0
    """Lowest confidence of a decoded word that is learnt from. Frames of other words may be
    anything (`wildcard`). 0 learns whole sentences; so does a model not trained with CTC."""
    least_rate: Annotated[float, FROM_0_TO_1] = 0.5
    """Fewest tokens a second of a decoded sentence that is learnt from, as a share of those of
    labelled sentences; 0, or no labelled sentence for replay, trusts all. A model that learns from
    too short sentences decodes shorter and shorter ones, and is sure of them."""
    remembered: Annotated[int, Setting(minimum=2)] = 400
    """Sentences kept for replay: half come from labelled recordings, and half are the latest ones
    that were decoded. As many corrected ones are kept besides."""
    whole_model: bool = False
    """Let all weights learn, not only those that the model says belong to the day."""
    together: Annotated[int, AT_LEAST_0] = 0
    """Different sentences of the day in a batch, which learn together before a model is made; 0
    learns from each sentence by itself. See `Learner.learn_together`."""
    corrected_weight: Annotated[float, ABOVE_0] = 3.0
    """Weight of a corrected sentence in drawing them; a decoded one has 1."""
    lr_floor: Annotated[float, FROM_0_TO_1] = 1.0
    """Share of the learning rate that is left at the last step before a model is made."""

    def __post_init__(self) -> None:
        check_fields(self)


METHODS = {
    "one-step": LearningOptions(),
    "replay": LearningOptions(
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
    "together": LearningOptions(
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
    methods: Mapping[str, LearningOptions] = METHODS,
) -> LearningOptions:
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
_WAIT_S = Setting(minimum=0, maximum=3600 * YEAR_H)


@dataclass(frozen=True, kw_only=True)
class ServiceOptions:
    """Options of the service, beside those of learning and of promotion."""

    every: Annotated[int, AT_LEAST_1] = 20
    """Sentences that are learnt from between two models of the chain."""
    quiet_s: Annotated[float, _WAIT_S] = 1800.0
    """Seconds without a further utterance after which fewer sentences make a model, where those of
    a day learn together."""
    settle_s: Annotated[float, _WAIT_S] = 60.0
    """Seconds that a sentence waits for its correction before its decoded text is learnt from."""
    judging: Annotated[int, AT_LEAST_1] = 300
    """Most labelled sentences that judge a model, the latest ones."""
    watched: Annotated[int, AT_LEAST_1] = 30
    """Latest sentences whose confidence may veto a model."""
    lost_confidence: Annotated[float, FROM_0_TO_1] = 0.05
    """Fall of their mean confidence, against the parent's, that vetoes a model."""
    allow_provisional: bool = False
    """Let a model speak provisionally while too few sentences have labels to judge it."""
    kept: Annotated[int, AT_LEAST_1] = 10
    """Latest models whose files are kept, beside the promoted ones and the one that speaks."""

    def __post_init__(self) -> None:
        check_fields(self)
