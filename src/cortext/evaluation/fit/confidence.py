"""The calibration of a run's confidences: writing and reading `confidence.yaml`, and its use.

It belongs to the weights, the language model and the decoder options that it was fitted with. With
others, confidences are the search's posteriors, and a line says so.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import yaml

from cortext import __version__
from cortext.config import from_mapping, read_mapping, to_mapping
from cortext.decoding.confidence import Calibrator, Logistic, options_checksum
from cortext.decoding.ngram.language_model import language_model_checksum
from cortext.decoding.options import DecoderOptions
from cortext.errors import ConfigError, CortextError, RunError
from cortext.evaluation.fit.calibration import Calibration
from cortext.evaluation.fit.options import Fitted, FittedWith, weights_checksum
from cortext.evaluation.fit.regression import STRENGTHS, ConfidenceFit
from cortext.files import atomic_write

FILE = "confidence.yaml"
FORMAT_VERSION = 1
HEADER = (
    "# Calibration of confidences that cortext has fitted to this run; delete the file to go"
    " without it."
)
AGAIN = "fit anew with `cortext evaluate --fit`, or delete the file"
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
    def of(cls, found: Calibration) -> MeasuredConfidence:
        """Return the measures that the file keeps."""
        return cls(found.n, found.right, found.brier_skill, found.auroc, found.ece)


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
class FittedConfidence:
    """The contents of `confidence.yaml`.

    Attributes:
        words: Regression of words.
        sentences: Regression of sentences.
        weights: Checksum of the weights of the run.
        decoder_options: Checksums of the decoder options: those of `decoder.yaml`, and those of its
            halves.
        language_model: The language model of the search.
        fitted_on: The trials, and how well the probabilities hold on them.
        seconds: Time that the fit took.
        created: Time of the fit (UTC).
        version: Version of cortext.
        source: The run that it was fitted to, where this one was adapted from it.
    """

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
        if self.format_version != FORMAT_VERSION:
            raise ConfigError(f"format_version is {self.format_version}, not {FORMAT_VERSION}")
        Calibrator(self.words, self.sentences, ())  # refuses other signals than ours

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
    run: str | Path, fit: ConfidenceFit, fitted: Fitted, *, data: str | Path, split: str
) -> FittedConfidence:
    """Write what was fitted into the `confidence.yaml` of a run.

    Args:
        run: Run directory.
        fit: Regressions and their measures.
        fitted: The decoder options that sentences were decoded with.
        data: The data of the trials, for the record.
        split: Their split, for the record.

    Raises:
        RunError: Where it cannot be written; an earlier file stays.
    """
    options = [fitted.options, *(half.options for half in fitted.halves)]
    found = FittedConfidence(
        words=fit.words,
        sentences=fit.sentences,
        weights=weights_checksum(run),
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
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        version=__version__,
    )
    _write(run, found)
    return found


def _write(run: str | Path, found: FittedConfidence) -> None:
    content = {"format_version": FORMAT_VERSION} | to_mapping(found)
    text = yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=100)
    atomic_write(Path(run) / FILE, f"{HEADER}\n{text}".encode())


def take_over_confidence(source: str | Path, run: str | Path) -> None:
    """Keep the calibration of another run, which a run was adapted from without validation trials.

    Nothing is kept of a calibration that is damaged, or that belongs to other weights.

    Raises:
        RunError: Where it cannot be written.
    """
    try:
        found = read_confidence(source)
    except ConfigError:
        return
    if found is not None and found.weights == weights_checksum(source):
        origin = found.source or str(source)
        _write(run, replace(found, weights=weights_checksum(run), source=origin))


def drop_confidence(run: str | Path) -> None:
    """Remove a run's `confidence.yaml`, which belongs to what the run was before.

    Raises:
        RunError: Where it cannot be removed.
    """
    path = Path(run) / FILE
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        what = f"the old confidences cannot be removed: {error.strerror}"
        raise RunError(what, where=path, fix="remove it") from None


def read_confidence(run: str | Path) -> FittedConfidence | None:
    """Return what was fitted to a run; None where nothing was.

    Raises:
        ConfigError: For a file that is damaged, with what to do.
    """
    path = Path(run) / FILE
    if not path.exists() and not path.is_symlink():
        return None
    try:
        return from_mapping(FittedConfidence, read_mapping(path), where=path)
    except CortextError as error:
        raise ConfigError(error.what, where=path, fix=AGAIN) from None


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
    if run is None or lm is None or (found := read_confidence(run)) is None:
        return ChosenConfidence(None, RAW)
    reasons = {
        "is for sentences that no large model ranks": has_llm,
        f"belongs to other weights; {REFIT}": found.weights != weights_checksum(run),
        f"belongs to another language model; {REFIT}": found.language_model.checksum
        != language_model_checksum(lm),
        f"belongs to other decoder options; {REFIT_OPTIONS}": not found.calibrator.goes_with(
            options
        ),
    }
    for reason, applies in reasons.items():
        if applies:
            return ChosenConfidence(None, f"{RAW} (the calibration in {run} {reason})")
    on = found.fitted_on
    fitted_to = f"{run}" if found.source is None else f"{found.source}, which it was adapted from"
    note = f"confidences: probabilities, calibrated on {on.trials} {on.split} trials of {fitted_to}"
    return ChosenConfidence(found.calibrator, note)
