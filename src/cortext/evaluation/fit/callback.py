"""Fit decoder options to a run on its validation trials, at the end of its training."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from cortext.cores import available_cores
from cortext.data.packed import PackedSplit
from cortext.decoding import Decoder
from cortext.decoding.log_probs import log_softmax
from cortext.decoding.ngram.language_model import LanguageModel
from cortext.errors import DataError, Interrupted
from cortext.evaluation.fit.confidence import FittedConfidence, keep_confidence
from cortext.evaluation.fit.options import FittedOptions, TrialName, fit_to_run
from cortext.evaluation.fit.regression import fit_confidence
from cortext.evaluation.logits import logits_of
from cortext.models import load_model
from cortext.models.card import CTC, read_card
from cortext.training.callbacks import Callback, Trains
from cortext.training.progress import reading_bar, say

FEWEST_WORDS = 200
"""Fewest validation words that an adapted run's options are fitted on; it takes over its source's
otherwise. Of fewer words a search learns chance.
"""


class FitDecoder(Callback):
    """A callback that fits decoder options to the best weights, and keeps them in the run.

    Args:
        lm: Language-model directory; None, for an adapted run, only takes over its source's.
        data: The data of the run, for the record; the packed directory without.
        source: The run that was adapted. Its options are taken over, unless those that are fitted
            make fewer errors, cross-fitted, where they begin with them.
        threads: Threads of the search; None for one a core.

    Attributes:
        found: Result, in the process that writes, by participant; the name of a single one is
            empty. Nothing before the end, and without a result.
    """

    def __init__(
        self,
        lm: str | Path | None,
        data: str | Path | None = None,
        *,
        source: str | Path | None = None,
        threads: int | None = None,
    ) -> None:
        self.lm = lm
        self.data = data
        self.source = source
        self.threads = threads or available_cores()
        self.found: dict[str, FittedOptions] = {}

    @property
    def fitted(self) -> FittedOptions | None:
        """Result of a run of one participant."""
        return self.found.get("")

    def check(self) -> None:
        """Raise LanguageModelError for a language model of other tokens than the source's.

        Training would find that out at its end.
        """
        if self.lm is not None and self.source is not None:
            conventions = read_card(Path(self.source) / "model.json").conventions
            lm = LanguageModel.open(self.lm)
            lm.require(conventions.inventory, conventions.language, theirs="the run")

    def on_trained(self, trainer: Trains) -> None:
        """See `Callback`: a fit that is interrupted is done again with `--resume`."""
        if trainer.config.task_name != CTC:
            return
        try:
            trainer.processes.rank_zero_first(lambda: self._fit_all(trainer))
        except KeyboardInterrupt:
            adapted = self.source is not None
            raise Interrupted(
                "interrupted while decoder options were fitted; the model is complete",
                where=trainer.run_directory.path,
                fix="fit with cortext evaluate --fit" if adapted else "continue with --resume",
            ) from None

    def _fit_all(self, trainer: Trains) -> None:
        for name, (run, split) in trainer.runs.items():
            try:
                # All features: the model makes its choice of them itself.
                fitted = self.fit(trainer, run, replace(split, columns=None))
            except DataError as error:  # too few sentences: the run is none the worse
                say(f"no decoder options were fitted: {error}", trainer.shown)
                continue
            if fitted is not None:
                self.found[name] = fitted
            if fitted is None or fitted.weights is None or self.lm is None:
                # Options of another run, or none: an earlier calibration is for other options.
                FittedConfidence.drop(run)
            elif not _calibrated(run, fitted):
                self._calibrate(trainer, run, replace(split, columns=None), fitted)

    def fit(self, trainer: Trains, run: Path, split: PackedSplit) -> FittedOptions | None:
        """Fit to a run's best weights, unless that was done on the same trials.

        Args:
            trainer: The trainer.
            run: The run directory.
            split: Its validation trials, with all features.
        """
        trials = [TrialName.of(split, i) for i in range(len(split))]
        # First, so that a run whose training is interrupted here has options already.
        before = None if self.source is None else FittedOptions.take_over(self.source, run)
        if self.lm is None or (self.source is not None and _words(trials) < FEWEST_WORDS):
            return before
        decoder = Decoder.from_dir(self.lm)
        if (done := _done(run, self.lm, trials)) is not None:
            return done
        if before is None or not before.language_model.is_same(self.lm):
            return self._fitted(trainer, run, split, trials, decoder)
        start = decoder.with_options(**vars(before.options))
        fitted = self._fitted(trainer, run, split, trials, start)
        if fitted.word_errors.cross_fitted < fitted.word_errors.start:
            return fitted
        before.write(run)  # the fit has replaced it
        return before

    def _calibrate(
        self, trainer: Trains, run: Path, split: PackedSplit, fitted: FittedOptions
    ) -> None:
        """Fit confidences to the sentences that the fitted options find, and keep them."""
        assert self.lm is not None
        # Before the work: where it fails, nothing is left that was fitted to something else.
        FittedConfidence.drop(run)
        device = trainer.device_spec.device
        model = load_model(run, device if device.startswith("cuda") else "cpu")
        try:
            with reading_bar(trainer.shown, "fitting confidences") as bar:
                fit = fit_confidence(
                    model,
                    split,
                    [TrialName.of(split, i) for i in range(len(split))],
                    range(len(split)),
                    Decoder.from_dir(self.lm, fitted.options),
                    threads=self.threads,
                    progress=bar,
                )
        except DataError as error:
            say(f"no confidences were fitted: {error}", trainer.shown)
            return
        data = split.path.parent if self.data is None else self.data
        keep_confidence(run, fit, fitted, data=data, split=split.name)

    def _fitted(
        self,
        trainer: Trains,
        run: Path,
        split: PackedSplit,
        trials: list[TrialName],
        decoder: Decoder,
    ) -> FittedOptions:
        """Compute logits and fit to them."""
        device = trainer.device_spec.device
        model = load_model(run, device if device.startswith("cuda") else "cpu")
        with reading_bar(trainer.shown, "logits") as bar:
            logits = logits_of(model, split, range(len(split)), bar)
        with reading_bar(trainer.shown, "fitting decoder options") as bar:
            return fit_to_run(
                run,
                [log_softmax(logits_PV) for logits_PV in logits],
                trials,
                model.inventory,
                decoder,
                data=split.path.parent if self.data is None else self.data,
                split=split.name,
                threads=self.threads,
                progress=bar,
            )


def _words(trials: list[TrialName]) -> int:
    return sum(len(trial.reference.split()) for trial in trials)


def _calibrated(run: Path, fitted: FittedOptions) -> bool:
    """Tell whether the run's confidences were fitted with its weights and these options."""
    written = FittedConfidence.read_sound(run)
    return (
        written is not None
        and written.weights == fitted.weights
        and written.language_model.checksum == fitted.language_model.checksum
        and written.calibrator.goes_with(fitted.options)
    )


def _done(run: Path, lm: str | Path, trials: list[TrialName]) -> FittedOptions | None:
    """Return the options fitted to the run's weights on these trials with this language model."""
    written = FittedOptions.read_sound(run)
    if (
        written is not None
        and written.belongs_to(run)
        and written.language_model.is_same(lm)
        and written.has_seen([trial for trial in trials if trial.reference])
    ):
        return written
    return None
