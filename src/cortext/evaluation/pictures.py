"""Which trials the report draws, and what it draws of them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
import torch

from cortext.data.trial import BIN_MS
from cortext.decoding.log_probs import log_softmax
from cortext.evaluation.figures import Span, TrialPicture
from cortext.evaluation.recognise import Recognised
from cortext.evaluation.scores import PHONEME_ORDER, TrialResult
from cortext.features import gaussian_kernel, smooth
from cortext.models import AcousticModel
from cortext.text.metrics import align, edit_counts

RULE = (
    "half with an error-free sentence and half with errors where there are enough of each, evenly"
    " from best to worst"
)


def error_share(trial: TrialResult) -> tuple[float, float]:
    """Word and phoneme errors of one labelled trial over its reference lengths."""
    words, phonemes = 0.0, 0.0
    if trial.reference and trial.text is not None:
        reference = trial.reference.split()
        words = edit_counts(reference, trial.text.split()).errors / len(reference)
    if trial.phonemes:
        phonemes = edit_counts(trial.phonemes, trial.greedy).errors / len(trial.phonemes)
    return words, phonemes


def choose(trials: Sequence[TrialResult], n: int) -> list[TrialResult]:
    """`n` trials to show, from best to worst.

    Half right and half wrong where there are enough, spread evenly.

    Trials are ordered by word errors, then phoneme errors, then number; unlabelled ones by number
    alone.
    """
    shares = {trial.id: error_share(trial) for trial in trials}
    ordered = sorted(trials, key=lambda trial: (shares[trial.id], trial.id))
    key = 0 if any(trial.text is not None for trial in trials) else 1
    right = [trial for trial in ordered if shares[trial.id][key] == 0]
    wrong = (
        ordered[len(right) :]
        if key == 1
        else [trial for trial in ordered if shares[trial.id][0] > 0]
    )
    n_wrong = min(len(wrong), max(n - n // 2, n - len(right)))
    return _evenly(right, n - n_wrong) + _evenly(wrong, n_wrong)


def _evenly(trials: Sequence[TrialResult], n: int) -> list[TrialResult]:
    places = np.unique(np.linspace(0, len(trials) - 1, min(n, len(trials))).round().astype(int))
    return [trials[place] for place in places.tolist()]


def draw(trial: TrialResult, index: int, found: Recognised) -> TrialPicture:
    """Draw one trial for the report; `index` is its position in the split."""
    model, bin_s = found.model, BIN_MS / 1000
    features_TC = torch.from_numpy(found.data.split(found.split).trial(index).features_TC)
    start_s, frame_s = frame_times(model)
    columns = [model.inventory.index[symbol] for symbol in PHONEME_ORDER]
    probabilities_PV = np.exp(log_softmax(trial.logits_PV))
    return TrialPicture(
        features_TC=smooth(features_TC[None], 2.0, 100)[0].numpy(),
        bin_s=bin_s,
        posterior_PV=probabilities_PV[:, columns],
        frame_start_s=start_s,
        frame_s=frame_s,
        phonemes=_phoneme_spans(trial, probabilities_PV, model, start_s, frame_s),
        words=_word_spans(trial, start_s - frame_s / 2),
    )


def frame_times(model: AcousticModel) -> tuple[float, float]:
    """Centre of the first frame and distance between frames, in seconds of the recording.

    A frame sees one patch of smoothed bins; 'valid' smoothing cuts half a kernel from the trial's
    beginning.
    """
    size, stride = max(model.network.config.patch_size, 1), model.network.config.patch_stride
    if model.network.config.patch_size == 0:
        stride = 1
    cut = 0.0
    if model.smoothing.smooth_data:
        kernel = gaussian_kernel(
            model.smoothing.smooth_kernel_std, model.smoothing.smooth_kernel_size
        )
        cut = (len(kernel) - 1) / 2
    return (cut + size / 2) * BIN_MS / 1000, stride * BIN_MS / 1000


def _phoneme_spans(
    trial: TrialResult,
    probabilities_PV: np.ndarray,
    model: AcousticModel,
    start_s: float,
    frame_s: float,
) -> list[Span]:
    """The greedy phonemes with the frames that emit them.

    Right where they align with an equal reference phoneme.
    """
    best_P = probabilities_PV.argmax(axis=-1)
    edges = [0, *(np.flatnonzero(np.diff(best_P)) + 1).tolist(), len(best_P)]
    runs = [(a, b) for a, b in pairwise(edges) if best_P[a] != model.inventory.blank]
    right = _right(trial.phonemes, trial.greedy)
    return [
        Span(symbol, start_s + (a - 0.5) * frame_s, start_s + (b - 0.5) * frame_s, good)
        for symbol, (a, b), good in zip(trial.greedy, runs, right, strict=True)
    ]


def _word_spans(trial: TrialResult, shift_s: float) -> list[Span]:
    words = trial.nbest[0].words if trial.nbest else ()
    reference = trial.reference.split() if trial.reference is not None else None
    right = _right(reference, [word.word for word in words])
    return [
        Span(word.word, shift_s + word.start_ms / 1000, shift_s + word.end_ms / 1000, good)
        for word, good in zip(words, right, strict=True)
    ]


def _right(reference: Sequence[str] | None, decoded: Sequence[str]) -> list[bool]:
    """For each decoded unit, whether it aligns with an equal reference unit.

    All right where there is no reference.
    """
    if reference is None:
        return [True] * len(decoded)
    return [true == found for true, found in align(reference, decoded) if found is not None]
