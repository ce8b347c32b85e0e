"""Fit decoder options to a run on its validation trials, at the end of its training."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

from cortext.decoding import Decoder, DecoderOptions
from cortext.decoding.log_probs import log_softmax
from cortext.decoding.ngram.language_model import language_model_checksum
from cortext.errors import ConfigError, Interrupted
from cortext.evaluation.fitted import (
    Fitted,
    TrialName,
    fit_to_run,
    read_fitted,
    weights_checksum,
)
from cortext.evaluation.recognise import logits_of
from cortext.models import load_model
from cortext.models.card import CTC
from cortext.training.progress import reading_bar
from cortext.training.trainer import Callback, Trainer


class FitDecoder(Callback):
    """A callback that fits decoder options to the best weights, and keeps them in the run.

    Args:
        lm: Language-model directory.
        data: The data of the run, for the record; the packed directory without.
        start: Options to begin with; the defaults without.
        threads: Threads of the search; None for one a core.

    Attributes:
        fitted: Result, in the process that writes; None before the end.
    """

    def __init__(
        self,
        lm: str | Path,
        data: str | Path | None = None,
        *,
        start: DecoderOptions | None = None,
        threads: int | None = None,
    ) -> None:
        self.lm = lm
        self.data = data
        self.start = start
        self.threads = threads or os.cpu_count() or 1
        self.fitted: Fitted | None = None

    def on_trained(self, trainer: Trainer) -> None:
        """See `Callback`: a fit that is interrupted is done again with `--resume`."""
        if trainer.config.task_name != CTC:
            return
        try:
            self.fitted = trainer.processes.rank_zero_first(lambda: self.fit(trainer))
        except KeyboardInterrupt:
            what = "interrupted while decoder options were fitted; the training is complete"
            where = trainer.run_directory.path
            raise Interrupted(what, where=where, fix="continue with --resume") from None

    def fit(self, trainer: Trainer) -> Fitted:
        """Fit to the run's best weights, unless that was done on the same trials."""
        run = trainer.run_directory.path
        # Without a choice of features, which the model makes itself.
        split = replace(trainer.validator.batches.split, columns=None)
        trials = [TrialName.of(split, i) for i in range(len(split))]
        if (found := self._done(run, trials)) is not None:
            return found
        device = trainer.device_spec.device
        model = load_model(run, device if device.startswith("cuda") else "cpu")
        with reading_bar(trainer.shown, "logits for the fit") as bar:
            logits = logits_of(model, split, range(len(split)), bar)
        with reading_bar(trainer.shown, "fitting decoder options") as bar:
            return fit_to_run(
                run,
                [log_softmax(logits_PV) for logits_PV in logits],
                trials,
                model.inventory,
                Decoder.from_dir(self.lm, self.start),
                data=split.path.parent if self.data is None else self.data,
                split=split.name,
                threads=self.threads,
                progress=bar,
            )

    def _done(self, run: Path, trials: list[TrialName]) -> Fitted | None:
        """Return what was fitted to these weights on these trials with this language model."""
        try:
            found = read_fitted(run)
        except ConfigError:  # damaged
            return None
        if (
            found is not None
            and found.weights == weights_checksum(run)
            and found.language_model.checksum == language_model_checksum(self.lm)
            and found.has_seen(trials)
        ):
            return found
        return None
