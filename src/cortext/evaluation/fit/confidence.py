"""The calibration of a run's confidences: writing and reading `confidence.yaml`, and its use.

It belongs to the weights, the language model and the decoder options that it was fitted with. With
others, confidences are the search's posteriors, and a line says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from cortext.decoding.confidence import Calibrator, Logistic, options_checksum
from cortext.decoding.options import DecoderOptions
from cortext.evaluation.fit.calibration import Calibration
from cortext.evaluation.fit.fitted_file import (
    FORMAT_VERSION,
    FittedFile,
    FittedWith,
    made_now,
    weights_checksum,
)
from cortext.evaluation.fit.options import FittedOptions
from cortext.evaluation.fit.regression import STRENGTHS, ConfidenceFit

REFIT = "fit it anew with `cortext evaluate --fit`"
REFIT_OPTIONS = "`cortext evaluate --fit` with --options begins at them and fits both"
RAW = "confidences: posteriors of the search, which are too high where the model errs"


@dataclass(frozen=True)
class MeasuredConfidence:
    """Measures of confidences; see `Calibration`."""

    n: int
    right: float
    brier_skill: float | None
    auroc: float | None
    ece: float

    @classmethod
    def of(cls, calibration: Calibration) -> MeasuredConfidence:
        """Return the measures that the file keeps."""
        return cls(
            calibration.n,
            calibration.right,
            calibration.brier_skill,
            calibration.auroc,
            calibration.ece,
        )


@dataclass(frozen=True)
class CalibratedOn:
    """The trials that confidences were fitted on.

    Attributes:
        data: Directory of the recordings.
        split: Their split.
        trials: Number of trials.
        strengths: Strengths of the simulated drift under which each was decoded; 0 is none.
        words: Cross-fitted measures of words, over all strengths.
        sentences: The same of sentences.
        posteriors: Measures of the search's posteriors of the same words.
    """

    data: str
    split: str
    trials: int
    strengths: list[float]
    words: MeasuredConfidence
    sentences: MeasuredConfidence
    posteriors: MeasuredConfidence


@dataclass(frozen=True)
class FittedConfidence(FittedFile):
    """The contents of `confidence.yaml`.

    Attributes:
        words: Regression of words.
        sentences: Regression of sentences.
        decoder_options: Checksums of the decoder options: those of `decoder.yaml`, and those of its
            halves.
        language_model: The language model of the search.
        fitted_on: The trials, and how well the probabilities hold on them.
        seconds: Time that the fit took.
        source: The run that it was fitted to, where this one was adapted from it.
    """

    FILE = "confidence.yaml"
    NAME = "confidences"
    HEADER = (
        "# Calibration of confidences that cortext has fitted to this run; delete the file to go"
        " without it."
    )

    words: Logistic
    sentences: Logistic
    weights: str | None
    decoder_options: list[str]
    language_model: FittedWith
    fitted_on: CalibratedOn
    seconds: float
    created: str
    version: str
    source: str | None = None
    format_version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        super().__post_init__()
        Calibrator(self.words, self.sentences, ())  # refuses other signals than ours

    def _adapted(self, source: str | Path, run: str | Path) -> Self | None:
        # One of other weights is no use to the source; the adapted run must not make it valid.
        if not self.belongs_to(source):
            return None
        # A chain of adapted runs names the first, whose trials these are. It counts as fitted to
        # the adapted weights: one of others is never used, unlike options.
        origin = self.source or str(source)
        return replace(self, weights=weights_checksum(run), source=origin)

    @property
    def calibrator(self) -> Calibrator:
        """The regressions, for a decoder."""
        return Calibrator(self.words, self.sentences, tuple(self.decoder_options))


@dataclass(frozen=True)
class ChosenConfidence:
    """The confidences of a command: fitted ones, or the search's own.

    Attributes:
        calibrator: Calibrates them; None: they are the search's posteriors.
        note: A line for the user.
    """

    calibrator: Calibrator | None
    note: str


def keep_confidence(
    run: str | Path, fit: ConfidenceFit, fitted: FittedOptions, *, data: str | Path, split: str
) -> FittedConfidence:
    """Write a fitted calibration into the `confidence.yaml` of a run.

    Args:
        run: Run directory.
        fit: Regressions and their measures.
        fitted: The decoder options that sentences were decoded with.
        data: The data of the trials, for the record.
        split: Their split, for the record.

    Raises:
        RunError: Where it cannot be written; an earlier file stays.
    """
    # The trials of the fit itself are decoded with those of the halves, and have confidences, too.
    options = [fitted.options, *(half.options for half in fitted.halves)]
    kept = FittedConfidence(
        words=fit.words,
        sentences=fit.sentences,
        decoder_options=list(dict.fromkeys(map(options_checksum, options))),
        language_model=fitted.language_model,
        fitted_on=CalibratedOn(
            data=str(data),
            split=split,
            trials=fit.n_trials,
            strengths=[0.0, *STRENGTHS],
            words=MeasuredConfidence.of(fit.cross_fitted),
            sentences=MeasuredConfidence.of(fit.cross_fitted_sentences),
            posteriors=MeasuredConfidence.of(fit.posteriors),
        ),
        seconds=round(fit.seconds, 1),
        **made_now(run),
    )
    kept.write(run)
    return kept


def choose_confidence(
    run: str | Path | None,
    lm: str | Path | None,
    options: DecoderOptions,
    *,
    has_llm: bool = False,
) -> ChosenConfidence:
    """Return what the confidences of a search are: calibrated, or its posteriors.

    Args:
        run: Run directory of the model; None without one.
        lm: Language-model directory; None without a search.
        options: Decoder options in force.
        has_llm: True where a large language model ranks the sentences.

    Raises:
        ConfigError: For a damaged `confidence.yaml`.
    """
    if run is None or lm is None or (fitted := FittedConfidence.read(run)) is None:
        return ChosenConfidence(None, RAW)
    reasons = {
        "is for sentences that no large model ranks": has_llm,
        f"belongs to other weights; {REFIT}": not fitted.belongs_to(run),
        f"belongs to another language model; {REFIT}": not fitted.language_model.is_same(lm),
        f"belongs to other decoder options; {REFIT_OPTIONS}": not fitted.calibrator.goes_with(
            options
        ),
    }
    for reason, applies in reasons.items():
        if applies:
            return ChosenConfidence(None, f"{RAW} (the calibration in {run} {reason})")
    on = fitted.fitted_on
    fitted_to = f"{run}" if fitted.source is None else f"{fitted.source}, which it was adapted from"
    note = f"confidences: probabilities, calibrated on {on.trials} {on.split} trials of {fitted_to}"
    return ChosenConfidence(fitted.calibrator, note)
