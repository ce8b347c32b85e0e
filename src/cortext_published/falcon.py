"""A decoder that the evaluator of the FALCON challenge can drive on its task H2 (handwriting).

It has the methods of `falcon_challenge.interface.BCIDecoder` (1.0.2) and needs nothing of that
package. The evaluator gives one bin after the other and asks for the text at the end of a trial, so
the bins go through live decoding: causal z-scores, smoothing, one model step a patch, the search.

T bins, C features, P frames of logits, V tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cortext.arguments import as_path, check_list
from cortext.data.checks import FaultError
from cortext.data.scaling import ROLLING_TRIALS, Moments, by_bin, trial_moments
from cortext.decoding import Decoder as WordSearch
from cortext.decoding import greedy
from cortext.decoding.open_vocabulary import TokenText
from cortext.errors import ConfigError, DataError, RunError
from cortext.evaluation.decoder_options import options_for
from cortext.models import load_model
from cortext_data.readers.falcon import BIN_MS, N_CHANNELS, cue_of, falcon_h2, session_of
from cortext_data.readers.importing import NORMALISATIONS
from cortext_data.readers.recording import Recording
from cortext_data.readers.source_files import file_faults
from cortext_live.core.pipeline import Pipeline

if TYPE_CHECKING:
    from cortext.evaluation.settings import Options


class FalconDecoder:
    """Text of handwriting, trial by trial, as the evaluator compares it: `hello>world~`.

    The features are z-scored as `cortext import falcon-h2` does it: over the last trials and the
    trial so far. Each day begins with its calibration's last trials, where they are known. Those
    of a run of raw recordings become the rolling z-scores that packing gave them.

    Args:
        run: Run directory of a model for imported H2 data.
        lm: Language-model directory. Without one the text is the best token of each frame.
        calibration: Folder with the NWB files of the calibration (`held_in_calib`,
            `held_out_calib`), whose counts start the z-scores of their days. Labels are not used.
        options: Decoder options, as for `cortext.evaluate`: by default those fitted to the run.
        device: Device for the model.

    Raises:
        RunError: For a run that cannot be used, or was trained on other features or bins.
        CortextError: For a language model, options or a folder that cannot be used.
    """

    def __init__(
        self,
        run: str | Path,
        lm: str | Path | None = None,
        *,
        calibration: str | Path | None = None,
        options: Options = None,
        device: str = "cpu",
    ) -> None:
        run = as_path(run, "run")
        self.batch_size = 1
        self._model = load_model(run, device)
        conventions = self._model.conventions
        if (self._model.n_features, conventions.bin_ms) != (N_CHANNELS, BIN_MS):
            raise RunError(
                f"the model reads {self._model.n_features} features in bins of"
                f" {conventions.bin_ms:g} ms; H2 has {N_CHANNELS} in bins of {BIN_MS} ms",
                where=run,
                fix="train it on the data that `cortext import falcon-h2` writes",
            )
        if lm is None and conventions.inventory.unit != "character":
            raise RunError(
                f"the model's tokens are {conventions.inventory.unit}s, which make no text alone",
                where=run,
                fix="give a language model",
            )
        chosen, self.note = options_for(run, lm, options)
        self._search = None if lm is None else WordSearch.from_dir(lm, chosen)
        self._text = TokenText(conventions.inventory, conventions.language)
        # Live decoding z-scores the features of a model of raw recordings.
        self._is_raw = conventions.features == "raw"
        self._is_scaled = not self._is_raw and conventions.normalised != NORMALISATIONS["none"]
        self._calibrations: dict[str, Recording] = {}
        if calibration is not None:
            recordings = falcon_h2(calibration).recordings
            self._calibrations = {recording.session: recording for recording in recordings}
        self._starts: dict[str, list[Moments]] = {}
        self.reset()

    @property
    def session(self) -> str:
        """The day whose layer is used."""
        return self._pipeline.session

    def set_batch_size(self, batch_size: int) -> None:
        """Refuse any number of trials at once but 1, which is the evaluator's for H2."""
        if batch_size != 1:
            raise ConfigError(f"batch_size is {batch_size!r:.40}; H2 has one trial at a time")

    def reset(self, dataset_tags: Sequence[str | Path] = ("",)) -> None:
        """Begin a day.

        Args:
            dataset_tags: One tag: the path or name of the day's file, or its date. A day that the
                model does not know is decoded with the layer of the model's last day.
        """
        tags = list(check_list(dataset_tags, "dataset_tags", "a list of tags"))
        if len(tags) != 1:
            raise ConfigError(f"{len(tags)} dataset_tags given; H2 has one trial at a time")
        session = session_of(as_path(tags[0], "dataset_tags[0]"))
        layer = session if session in self._model.sessions else None
        self._pipeline = Pipeline(self._model, self._search, layer or "latest")
        calibration = self._calibration(session) if self._is_raw or self._is_scaled else []
        self._scale = by_bin(N_CHANNELS, calibration)
        if self._is_raw and calibration:
            known = Moments.total(calibration)
            self._pipeline.start_block(known.mean_C, known.std_C)
        self._logits: list[np.ndarray] = []

    def predict(self, neural_observations: np.ndarray) -> np.ndarray:
        """Take the next bin of the trial.

        Args:
            neural_observations: Counts of the bin, numbers [1, C].

        Returns:
            An empty array: the text comes at the end of the trial, from `on_done`.
        """
        x_1C = _checked_bin(neural_observations)
        scaled_1C = self._scale.push(x_1C) if self._is_scaled else x_1C.astype(np.float32)
        update = self._pipeline.push(scaled_1C)
        if self._search is None and len(update.logits_PV):
            self._logits.append(update.logits_PV)
        return np.empty((1, 0), dtype=np.float32)

    def observe(self, neural_observations: np.ndarray) -> None:
        """Pass over a bin that does not count; training left such bins out, too."""
        _checked_bin(neural_observations)

    def on_done(self, dones: np.ndarray | Sequence[bool]) -> str | None:
        """Return the text of the trial if it has ended, and begin another one.

        Args:
            dones: [1], whether the trial has ended with the latest bin.
        """
        done = np.asarray(dones)
        if done.shape != (1,):
            raise DataError(f"dones has shape {list(done.shape)}; [1] is needed")
        if not done[0]:
            return None
        update = self._pipeline.flush()
        if self._search is None and len(update.logits_PV):
            self._logits.append(update.logits_PV)
        text = self._pipeline.finish()[0].text
        self._scale.end_utterance()
        if self._search is None and self._logits:
            inventory = self._model.inventory
            best = greedy(np.concatenate(self._logits), inventory)
            text = self._text.text(inventory.names(best))
        self._logits = []
        return cue_of(text)

    def _calibration(self, session: str | None) -> list[Moments]:
        """Return the moments of the last trials of a day's calibration; none where unknown."""
        if session is None or session not in self._calibrations:
            return []
        if session not in self._starts:
            self._starts[session] = _last_trials(self._calibrations[session])
        return self._starts[session]


def _last_trials(recording: Recording) -> list[Moments]:
    """Return the moments of the last trials of a recording that are for training."""
    moments: list[Moments] = []
    with file_faults(recording.paths[0]), recording.open() as contents:
        blocks = [block for block in contents.blocks if block.split == "train"]
        for trial in reversed([trial for block in blocks for trial in block.trials]):
            with suppress(FaultError):  # a trial that an import leaves out
                moments.append(trial_moments(trial.read())[0])
            if len(moments) == ROLLING_TRIALS:
                break
    return moments[::-1]


def _checked_bin(bin_1C: Any) -> np.ndarray:
    """Return one bin [1, C] of finite numbers; raise DataError for anything else."""
    array = np.asarray(bin_1C)
    if array.dtype.kind not in "biuf" or array.shape != (1, N_CHANNELS):
        raise DataError(
            f"neural_observations has shape {list(array.shape)} and type {array.dtype}; numbers"
            f" [1, {N_CHANNELS}] are needed"
        )
    if not np.isfinite(array).all():
        raise DataError("neural_observations has NaN or infinity", fix="give counts")
    if np.abs(array.astype(np.float64)).max() > np.finfo(np.float32).max:
        raise DataError("neural_observations has numbers beyond float32", fix="give counts")
    return array
