"""Fitted decoder options of a run: making, writing and reading `decoder.yaml`.

A run keeps the options that were fitted to its logits, with the language model that they were
fitted with. `decoder_options` decides which commands use them.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Self

import numpy as np

from cortext.data.packed import PackedSplit
from cortext.decoding import Decoder
from cortext.decoding.options import DecoderOptions
from cortext.errors import ConfigError
from cortext.evaluation.fit.fitted_file import FORMAT_VERSION, FittedFile, FittedWith, made_now
from cortext.evaluation.fit.search import Fit, fit_options
from cortext.processes import Progress
from cortext.text.inventory import Inventory


@dataclass(frozen=True)
class TrialName:
    """Name of a trial with its sentence, by which a fit knows the trial again.

    Attributes:
        reference: The normalised sentence.
    """

    session: str
    block: int
    trial: int
    reference: str

    @classmethod
    def of(cls, split: PackedSplit, i: int) -> TrialName:
        """Return the name of trial `i` of a split."""
        return cls(
            split.session(i),
            int(split.block_N[i]),
            int(split.trial_N[i]),
            split.conventions.language.normalize(split.sentence(i) or ""),
        )

    @property
    def key(self) -> str:
        """Eight hexadecimal digits, which give nothing away of the sentence."""
        text = f"{self.session}/{self.block}/{self.trial} {self.reference}"
        return hashlib.sha256(text.encode()).hexdigest()[:8]


@dataclass(frozen=True)
class FittedOn:
    """The trials that options were fitted on."""

    data: str
    split: str
    trials: int
    words: int
    decoded: int
    """Number of the trials that were decoded; of a large split some are enough."""


@dataclass(frozen=True)
class WordErrors:
    """Word errors on the trials that were decoded, and the words of their references."""

    words: int
    start: int
    """With the options that the search began with."""
    fitted: int
    """With the fitted options, on the trials that they were fitted on: too few."""
    cross_fitted: int
    """With each half decoded with options that were fitted on the other half."""

    def __post_init__(self) -> None:
        if min(self.words, self.start, self.fitted, self.cross_fitted) < 0:
            raise ConfigError("word_errors counts below 0")

    def rate(self, name: str) -> float | None:
        """Return the word error rate with `start`, `fitted` or `cross_fitted` options."""
        return getattr(self, name) / self.words if self.words else None


@dataclass(frozen=True)
class Half:
    """Options that were fitted without some of the trials, and those trials."""

    options: DecoderOptions
    trials: str
    """Keys of the trials (`TrialName`), with blanks between."""

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[0-9a-f]{8}( [0-9a-f]{8})*|", self.trials):
            raise ConfigError("halves names trials that are no keys")


@dataclass(frozen=True)
class FittedOptions(FittedFile):
    """The contents of `decoder.yaml`.

    Attributes:
        options: Options fitted on all trials.
        language_model: The language model that they were fitted with.
        fitted_on: The trials that they were fitted on.
        word_errors: Word errors before and after.
        halves: Options that were fitted without each half of the trials.
        tried: Settings that the search tried.
        seconds: Time that the search took.
        source: The run whose options an adapted run took over; None for a run's own.
    """

    FILE = "decoder.yaml"
    NAME = "decoder options"
    HEADER = (
        "# Decoder options that cortext has fitted to this run; delete the file to go without them."
    )

    options: DecoderOptions
    language_model: FittedWith
    fitted_on: FittedOn
    word_errors: WordErrors
    halves: list[Half]
    weights: str | None
    tried: int
    seconds: float
    created: str
    version: str
    source: str | None = None
    format_version: int = FORMAT_VERSION

    def _content(self) -> dict[str, Any]:
        content = super()._content()
        for part in (content, *content["halves"]):
            # A fit is of the n-gram's search alone: a large model's settings have no part in it.
            del part["options"]["llm"]
            # Options hold priors as pairs, to be hashable; a mapping is easier to read and change.
            part["options"]["label_priors"] = dict(part["options"]["label_priors"])
        return content

    def _adapted(self, source: str | Path, run: str | Path) -> Self:
        # Adapted weights differ little, so that its source's options are better than the defaults.
        # They count as fitted to no weights: a later fit does not take them for its own.
        return replace(self, source=str(source), weights=None)

    @cached_property
    def _by_key(self) -> dict[str, DecoderOptions]:
        return {key: half.options for half in self.halves for key in half.trials.split()}

    def without(self, trial: TrialName) -> DecoderOptions | None:
        """Return options that were fitted without a trial; None for one that no fit has seen."""
        return self._by_key.get(trial.key)

    def has_seen(self, trials: Sequence[TrialName]) -> bool:
        """Tell whether the options were fitted on exactly these trials."""
        return {trial.key for trial in trials} == self._by_key.keys()

    @property
    def about(self) -> str:
        """The trials and the word error rate, for a line to the user."""
        on = self.fitted_on
        trials = f"fitted on {on.trials} {on.split} trials"
        before, after = self.word_errors.rate("start"), self.word_errors.rate("cross_fitted")
        if before is None or after is None:
            return trials
        return f"{trials}, WER {100 * before:.1f} % before and {100 * after:.1f} % cross-fitted"


def kept_before(run: str | Path) -> str | None:
    """Return a description of the options fitted to a run; None where there are none."""
    try:
        fitted = FittedOptions.read(run)
    except ConfigError:
        return "in a damaged file"
    return None if fitted is None else fitted.about


def fit_to_run(
    run: str | Path,
    log_probs: Sequence[np.ndarray],
    trials: Sequence[TrialName],
    inventory: Inventory,
    decoder: Decoder,
    *,
    data: str | Path,
    split: str,
    threads: int = 1,
    progress: Progress | None = None,
) -> FittedOptions:
    """Fit decoder options to a run's log-probabilities, and keep them in its `decoder.yaml`.

    Args:
        run: Run directory.
        log_probs: float32 [P, V] natural-log probabilities of each trial.
        trials: Name of each trial; those without a sentence are left out.
        inventory: Tokens of V, in order.
        decoder: Decoder with the language model, and the options to begin with.
        data: The data of the trials, for the record.
        split: Their split, for the record.
        threads: Threads of the search.
        progress: Called with steps done and in all.

    Raises:
        DataError: For too few trials with sentences.
        RunError: Where the file cannot be written; an earlier one stays.
    """
    labelled = [number for number, trial in enumerate(trials) if trial.reference]
    known = [trials[number] for number in labelled]
    fit = fit_options(
        [log_probs[number] for number in labelled],
        [trial.reference for trial in known],
        [(trial.session, trial.block) for trial in known],
        decoder,
        decoder.options,
        order=inventory,
        threads=threads,
        progress=progress,
    )
    fitted = FittedOptions(
        options=fit.options,
        language_model=FittedWith.of(decoder.lm_dir),
        fitted_on=FittedOn(
            data=str(data),
            split=split,
            trials=len(known),
            words=sum(len(trial.reference.split()) for trial in known),
            decoded=fit.n_trials,
        ),
        word_errors=WordErrors(
            words=fit.start.counts.reference_length,
            start=fit.start.counts.errors,
            fitted=fit.fitted.counts.errors,
            cross_fitted=fit.cross_fitted.counts.errors,
        ),
        halves=_halves(fit, known),
        tried=fit.tried,
        seconds=round(fit.seconds, 1),
        **made_now(run),
    )
    fitted.write(run)
    return fitted


def _halves(fit: Fit, trials: Sequence[TrialName]) -> list[Half]:
    """Return each half of the trials with the options that were fitted on the other half."""
    keys = [trial.key for trial in trials]
    halves = []
    for side in (0, 1):
        own = (key for key, half in zip(keys, fit.half, strict=True) if half == side)
        halves.append(Half(fit.halves[1 - side], " ".join(own)))
    return halves
