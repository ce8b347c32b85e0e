"""The trials in the report: their choice, and the figure of each one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import matplotlib
import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from cortext.decoding.log_probs import log_softmax
from cortext.errors import plain
from cortext.evaluation.figures import (
    BLUE,
    BLUE_RGB,
    INK,
    ORANGE,
    ORANGE_RGB,
    PAPER,
    RULE,
    STYLE,
    WIDTH_IN,
    panels,
)
from cortext.evaluation.recognise import Recognised
from cortext.evaluation.scores import TrialResult
from cortext.features import gaussian_kernel, smooth
from cortext.models import AcousticModel
from cortext.text.inventory import Inventory
from cortext.text.metrics import align, edit_counts

CHOICE = (
    "Half of them are right and half have errors, where there are enough of each, evenly from best"
    " to worst."
)


@dataclass(frozen=True)
class Span:
    """A decoded word or token on the time axis, in seconds."""

    text: str
    start_s: float
    end_s: float
    right: bool


@dataclass(frozen=True)
class TrialPicture:
    """The content of one trial's figure.

    Attributes:
        features_TC: Smoothed features, a row each `bin_s` seconds.
        posterior_PV: Probabilities in the order of `Inventory.grouped`; frame p is centred on
            `frame_start_s + p * frame_s`.
        phonemes: Decoded tokens, right or wrong.
        words: Decoded words, right or wrong.
        inventory: The tokens.
    """

    features_TC: np.ndarray
    bin_s: float
    posterior_PV: np.ndarray
    frame_start_s: float
    frame_s: float
    phonemes: Sequence[Span]
    words: Sequence[Span]
    inventory: Inventory


def error_share(trial: TrialResult) -> tuple[float, float]:
    """Return word and token errors of one labelled trial over its reference lengths."""
    words = 0.0
    phonemes = 0.0
    if trial.reference and trial.text is not None:
        reference = trial.reference.split()
        words = edit_counts(reference, trial.text.split()).errors / len(reference)
    if trial.phonemes:
        phonemes = edit_counts(trial.phonemes, trial.greedy).errors / len(trial.phonemes)
    return words, phonemes


def choose(trials: Sequence[TrialResult], n: int) -> list[TrialResult]:
    """Choose `n` trials to show, from best to worst.

    Half are right and half wrong where there are enough of each, spread evenly. Trials are ordered
    by word errors, then token errors, then number; unlabelled ones by number alone.
    """
    shares = {trial.id: error_share(trial) for trial in trials}
    ordered = sorted(trials, key=lambda trial: (shares[trial.id], trial.id))
    # Without a language model there are no words: a trial is then right by its tokens.
    key = 0 if any(trial.text is not None for trial in trials) else 1
    right = [trial for trial in ordered if shares[trial.id][key] == 0]
    wrong = (
        ordered[len(right) :]
        if key == 1
        else [trial for trial in ordered if shares[trial.id][0] > 0]
    )
    # Where one kind has too few trials, the other gets its places.
    n_wrong = min(len(wrong), max(n - n // 2, n - len(right)))
    return _evenly(right, n - n_wrong) + _evenly(wrong, n_wrong)


def _evenly(trials: Sequence[TrialResult], n: int) -> list[TrialResult]:
    positions = np.unique(np.linspace(0, len(trials) - 1, min(n, len(trials))).round().astype(int))
    return [trials[position] for position in positions.tolist()]


def picture_of(trial: TrialResult, index: int, recognised: Recognised) -> TrialPicture:
    """Prepare the figure of one trial.

    Args:
        trial: Trial with its logits and sentences.
        index: Position of the trial in the split.
        recognised: Model and data.
    """
    model = recognised.model
    features_TC = torch.from_numpy(recognised.data.split(recognised.split).trial(index).features_TC)
    start_s, frame_s = frame_times(model)
    columns = [model.inventory.index[symbol] for symbol in model.inventory.grouped_symbols]
    probabilities_PV = np.exp(log_softmax(trial.logits_PV))
    return TrialPicture(
        # The release's smoothing, whatever the model's own is: pictures of two runs compare.
        features_TC=smooth(features_TC[None], 2.0, 100)[0].numpy(),
        bin_s=model.bin_ms / 1000,
        posterior_PV=probabilities_PV[:, columns],
        frame_start_s=start_s,
        frame_s=frame_s,
        phonemes=_phoneme_spans(trial, probabilities_PV, model, start_s, frame_s),
        # The search counts from the beginning of the first frame; `start_s` is its centre.
        words=_word_spans(trial, start_s - frame_s / 2),
        inventory=model.inventory,
    )


def frame_times(model: AcousticModel) -> tuple[float, float]:
    """Return the first frame's centre and the distance of frames, in seconds of the recording.

    A frame sees one patch of smoothed bins; 'valid' smoothing cuts half a kernel from the trial's
    beginning.
    """
    cut = 0.0
    if model.smoothing.smooth_data:
        kernel = gaussian_kernel(
            model.smoothing.smooth_kernel_std, model.smoothing.smooth_kernel_size
        )
        cut = (len(kernel) - 1) / 2
    return (cut + model.patch_size / 2) * model.bin_ms / 1000, model.frame_ms / 1000


def _phoneme_spans(
    trial: TrialResult,
    probabilities_PV: np.ndarray,
    model: AcousticModel,
    start_s: float,
    frame_s: float,
) -> list[Span]:
    """Return the greedy tokens with the frames that emit them."""
    best_P = probabilities_PV.argmax(axis=-1)
    edges = [0, *(np.flatnonzero(np.diff(best_P)) + 1).tolist(), len(best_P)]
    # One symbol of the greedy path for each run without the blanks: the two lists pair.
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
    """Tell for each decoded unit if it aligns with an equal reference unit.

    All are right where there is no reference.
    """
    if reference is None:
        return [True] * len(decoded)
    return [
        true == decoded_word
        for true, decoded_word in align(reference, decoded)
        if decoded_word is not None
    ]


def trial_figure(picture: TrialPicture) -> Figure:
    """Draw features, posteriors, decoded tokens and words on one time axis."""
    has_words = bool(picture.words)
    heights = [1.5, 3.7, 0.3, 0.36][: 4 if has_words else 3]
    with matplotlib.rc_context(STYLE | {"axes.grid": False, "axes.spines.left": False}):
        figure, axes = panels(heights, left=0.65, top=0.03, bottom=0.42)
        axes = axes[:, 0]
        _draw_features(axes[0], picture)
        _draw_posteriors(axes[1], picture)
        _draw_phonemes(axes[2], picture.phonemes, f"{picture.inventory.unit}s")
        if has_words:
            _draw_words(axes[3], picture.words, picture.bin_s * len(picture.features_TC))
        for axis in axes[:-1]:
            axis.spines["bottom"].set_visible(False)
            axis.tick_params(axis="x", length=0)
        axes[0].set_xlim(0, picture.bin_s * len(picture.features_TC))
        axes[-1].set_xlabel("seconds")
    return figure


def _draw_features(axis: Axes, picture: TrialPicture) -> None:
    shown_TC = _at_most(picture.features_TC, 128)
    scale = float(np.quantile(np.abs(shown_TC), 0.995)) or 1.0
    level_CT = np.clip(shown_TC.T / scale, -1, 1)
    image = np.empty((*level_CT.shape, 4))
    image[..., :3] = np.where(level_CT[..., None] > 0, ORANGE_RGB, BLUE_RGB)
    image[..., 3] = np.round(np.abs(level_CT) * 15) / 15  # few levels: a small picture
    n_rows = level_CT.shape[0]
    extent = (0.0, picture.bin_s * len(picture.features_TC), n_rows, 0)
    axis.imshow(image, aspect="auto", interpolation="none", extent=extent)
    if picture.inventory.is_published:
        axis.axhline(n_rows / 2, color=PAPER, linewidth=1.5)
        halves = ["threshold\ncrossings", "spike-band\npower"]
        axis.set_yticks([n_rows / 4, 3 * n_rows / 4], halves, fontsize=7)
    else:  # other recordings need not have both kinds
        axis.set_yticks([n_rows / 2], ["features"], fontsize=7)


def _at_most(features_TC: np.ndarray, rows: int) -> np.ndarray:
    """Average neighbouring features, so that at most `rows` remain."""
    step = -(-features_TC.shape[1] // rows)
    n_kept = features_TC.shape[1] // step * step
    averaged: np.ndarray = features_TC[:, :n_kept].reshape(len(features_TC), -1, step).mean(axis=-1)
    return averaged


def _draw_posteriors(axis: Axes, picture: TrialPicture) -> None:
    posterior_VP = picture.posterior_PV.T
    image = np.empty((*posterior_VP.shape, 4))
    image[..., :3] = BLUE_RGB
    image[..., 3] = np.round(np.sqrt(posterior_VP) * 31) / 31
    left = picture.frame_start_s - picture.frame_s / 2
    symbols = picture.inventory.grouped_symbols
    n = len(symbols)
    extent = (left, left + picture.frame_s * posterior_VP.shape[1], n - 0.5, -0.5)
    axis.imshow(image, aspect="auto", interpolation="none", extent=extent)
    axis.set_yticks(range(n), symbols, fontsize=min(8, 5.5 * 40 / n))
    edge = -0.5
    for _, members in picture.inventory.grouped:
        edge += len(members)
        axis.axhline(edge, color=RULE, linewidth=0.6)


def _draw_phonemes(axis: Axes, phonemes: Sequence[Span], name: str) -> None:
    for number, phoneme in enumerate(phonemes):
        centre = (phoneme.start_s + phoneme.end_s) / 2
        axis.text(
            centre,
            0.75 - 0.5 * (number % 2),
            phoneme.text,
            ha="center",
            va="center",
            fontsize=5.5,
            color=INK if phoneme.right else ORANGE,
            fontweight="normal" if phoneme.right else "bold",
        )
    axis.set_ylim(0, 1)
    axis.set_yticks([0.5], [name], fontsize=7)


def _draw_words(axis: Axes, words: Sequence[Span], duration_s: float) -> None:
    points_per_s = 0.9 * 72 * WIDTH_IN / duration_s
    for word in words:
        width = max(word.end_s - word.start_s, 0.02)
        colour = BLUE if word.right else ORANGE
        style = "round,pad=0,rounding_size=0.02"
        box = FancyBboxPatch(
            (word.start_s, 0.12),
            width,
            0.76,
            boxstyle=style,
            facecolor=colour,
            alpha=0.16,
            linewidth=0,
        )
        axis.add_patch(box)
        axis.plot(
            [word.start_s, word.start_s + width],
            [0.12, 0.12],
            color=colour,
            linewidth=1.6,
            linestyle="-" if word.right else (0, (2, 1)),
            solid_capstyle="butt",
        )
        text = plain(word.text, 60)
        size = float(np.clip(width * points_per_s / (0.62 * max(len(text), 1)), 5, 8.5))
        axis.text(
            word.start_s + width / 2,
            0.52,
            text,
            ha="center",
            va="center",
            fontsize=size,
            color=INK if word.right else ORANGE,
            fontweight="normal" if word.right else "bold",
        )
    axis.set_ylim(0, 1)
    axis.set_yticks([0.5], ["words"], fontsize=7)
