"""Bins of neural features in, logits out, as they come; and where an utterance ends.

T bins, C features, P frames of logits, S bins in a patch, V tokens. The model says how long a bin
lasts; a frame lasts as many bins as lie between two patches.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

import numpy as np

from cortext.arguments import check_type
from cortext.config import check_fields
from cortext.data.conventions import Conventions
from cortext.data.scaling import RollingZScore
from cortext.decoding.nbest import FRAME_MS
from cortext.errors import wrong_type
from cortext.models import AcousticModel
from cortext.settings import ABOVE_0
from cortext.text.inventory import Inventory
from cortext_live.core.input_watch import InputWatch
from cortext_live.core.log import event
from cortext_live.core.statistics import Stopwatch
from cortext_live.core.stream_smoother import StreamSmoother
from cortext_live.steps.stepper import Stepper, filled, require_alike
from cortext_live.steps.stepping import TorchStepper

Reason = Literal["silence", "length", "idle"]
"""`idle`: the idle gate has shut."""
Normalise = Literal["auto", "none", "rolling"]


@dataclass(frozen=True)
class EndpointOptions:
    """The rule by which an utterance ends by itself."""

    silence_ms: Annotated[float, ABOVE_0] = 1500.0
    """Silence after speech that ends an utterance.

    A frame is silent if the blank and the silence, where the inventory has one, are together more
    probable than all other tokens.
    """
    speech_ms: Annotated[float, ABOVE_0] = 160.0
    """Least speech, in all, after which silence can end an utterance.

    A trial may begin with any length of silence.
    """
    max_ms: Annotated[float, ABOVE_0] = 60_000.0
    """Length at which an utterance ends in any case, which bounds what it takes in memory."""

    def __post_init__(self) -> None:
        check_fields(self, "endpoint.")


class Endpoint:
    """The end of an utterance: a long enough silence after speech, in the model's own posteriors.

    Args:
        options: See `EndpointOptions`.
        inventory: The model's tokens.
        frame_ms: Milliseconds that a frame stands for.
    """

    def __init__(
        self, options: EndpointOptions, inventory: Inventory, frame_ms: float = FRAME_MS
    ) -> None:
        self._silent_frames = math.ceil(options.silence_ms / frame_ms)
        self._speech_frames = math.ceil(options.speech_ms / frame_ms)
        self._max_frames = math.ceil(options.max_ms / frame_ms)
        # Not a boundary: it is written or spoken between words, and no pause.
        silent = [inventory.blank_symbol, *([inventory.silence] if inventory.silence else [])]
        self._silent_tokens = inventory.ids(silent).tolist()
        self.reset()

    def reset(self) -> None:
        """Begin another utterance."""
        self._n_frames = self._n_speech = self._n_silent = 0
        self.reason: Reason | None = None

    def push(self, log_probs_PV: np.ndarray) -> Reason | None:
        """Take the next frames; return why the utterance has ended, once it has."""
        silent_P = np.exp(log_probs_PV[:, self._silent_tokens]).sum(axis=1) > 0.5
        for silent in silent_P.tolist():
            self._n_frames += 1
            self._n_speech += not silent
            self._n_silent = self._n_silent + 1 if silent else 0
            if self.reason is None:
                self.reason = self._ended()
        return self.reason

    def _ended(self) -> Reason | None:
        if self._n_speech >= self._speech_frames and self._n_silent >= self._silent_frames:
            return "silence"
        return "length" if self._n_frames >= self._max_frames else None


def conventions_of(stepper: Stepper) -> Conventions:
    """Return a stepper's conventions; one of a user's own may name its inventory alone."""
    return getattr(stepper, "conventions", None) or Conventions(stepper.inventory)


def trained_normalise(conventions: Conventions) -> Literal["none", "rolling"]:
    """Return the `normalise` with which live features become those that a model was trained on."""
    return "rolling" if conventions.features == "raw" else "none"


def chosen_normalise(
    normalise: Normalise, trained: Literal["none", "rolling"]
) -> Literal["none", "rolling"]:
    """Return the trained one for `auto`; otherwise log a warning where the choice is another."""
    if normalise == "auto":
        return trained
    if normalise != trained:
        event("normalise_differs", "warning", normalise=normalise, trained=trained)
    return normalise


@dataclass(frozen=True)
class PipelineOptions:
    """Options for turning features into logits, and for ending an utterance."""

    smoothing: Literal["published", "causal"] = "published"
    """Smoothing of the features: `published` looks 80 ms ahead, `causal` does not.

    Models are trained and evaluated with `published`.
    """
    normalise: Normalise = "auto"
    """`auto` normalises as in training: `rolling` z-scores for a model of raw recordings.

    `none` takes features that are normalised already, as in the data release.
    """
    endpoint: EndpointOptions | None = None
    """The rule that ends an utterance by itself; None: it ends only when `finish` is called."""

    def __post_init__(self) -> None:
        check_fields(self)


class AcousticStream:
    """Features to logits: rolling z-scores if wanted, smoothing, one model step per full patch.

    Bins that complete no frame are not left lying: they are normalised and smoothed, and the model
    computes with them what it can, so that the one that completes it has little left to do.

    Args:
        model: A loaded model, or a stepper, which has a session already.
        session: A day that the model knows; `latest` is its last one.
        options: See `PipelineOptions`.
        stopwatch: Takes the time of each stage.

    Attributes:
        watch: Makes bins usable, and notes unusual ones.

    Raises:
        RunError: The model does not know the session.
    """

    def __init__(
        self,
        model: AcousticModel | Stepper,
        session: str = "latest",
        options: PipelineOptions = PipelineOptions(),
        stopwatch: Stopwatch | None = None,
    ) -> None:
        # Not its type alone: steppers are anything with their methods.
        if not hasattr(model, "smoothing"):
            raise wrong_type("model", model, "an AcousticModel (load_model) or a stepper")
        check_type(options, PipelineOptions, "options", "PipelineOptions")
        self.stepper: Stepper = (
            TorchStepper(model, session) if isinstance(model, AcousticModel) else model
        )
        smoothing = self.stepper.smoothing
        self._smoother = (
            StreamSmoother(
                smoothing.smooth_kernel_std, smoothing.smooth_kernel_size, options.smoothing
            )
            if smoothing.smooth_data
            else None
        )
        self.conventions = conventions_of(self.stepper)
        normalise = options.normalise
        if normalise == "auto":
            normalise = trained_normalise(self.conventions)
        self._normaliser = (
            RollingZScore(self.stepper.n_features) if normalise == "rolling" else None
        )
        self.watch = InputWatch(
            self.stepper.n_features, self.conventions, self._normaliser is not None
        )
        self._stopwatch = stopwatch or Stopwatch()
        self._begin()

    @property
    def session(self) -> str:
        """The day whose layer is used."""
        return self.stepper.session

    @property
    def look_ahead_ms(self) -> float:
        """Milliseconds from a bin until its smoothed value is known."""
        return self._smoother.look_ahead_bins * self.conventions.bin_ms if self._smoother else 0.0

    @property
    def frame_ms(self) -> float:
        """Milliseconds of a frame of logits."""
        return float(self.stepper.patch_stride * self.conventions.bin_ms)

    @property
    def bins_to_frame(self) -> int:
        """Bins that are missing for the next frame of logits; at least 1."""
        lost = self._smoother.lost_bins if self._smoother else 0
        return (
            self._n_frames * self.stepper.patch_stride
            + self.stepper.patch_size
            + lost
            - self._n_bins
        )

    @property
    def statistics(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Rolling mean and standard deviation in force, float64 [C] each; None before any."""
        return self._normaliser.statistics if self._normaliser else None

    def remember(self, utterances: Iterable[np.ndarray]) -> None:
        """Take earlier utterances into the rolling statistics, float32 [T, C] each, oldest first.

        A program that begins anew continues with them as if it had decoded them. Those with another
        number of features are left out; without rolling statistics nothing happens.
        """
        if self._normaliser is None:
            return
        for features_TC in utterances:
            if features_TC.shape[1] == self.stepper.n_features:
                self._normaliser.push(features_TC)
                self._normaliser.end_utterance()

    def start_block(
        self, mean_C: np.ndarray | None = None, std_C: np.ndarray | None = None
    ) -> None:
        """Begin a block with given statistics or those in force; drop the utterance in progress."""
        if self._normaliser:
            self._normaliser.start_block(mean_C, std_C)
        self._begin()

    def swap(self, stepper: Stepper) -> None:
        """Let another model decode from the next utterance on; drop the one in progress.

        Raises:
            RunError: It reads other recordings or writes other tokens. Nothing has changed.
        """
        require_alike(stepper, self.stepper)
        self.stepper = stepper
        self.reset()

    def push(self, bins_TC: np.ndarray) -> np.ndarray:
        """Return the logits, float32 [P, V] (P may be 0), that the next bins complete.

        Args:
            bins_TC: float32 [T, C].

        Raises:
            DataError: Bins of another width or dtype, or values that no recording has. Nothing has
                changed.
        """
        bins_TC = self.watch.usable(bins_TC)
        if not len(bins_TC):
            return np.empty((0, len(self.stepper.inventory)), dtype=np.float32)
        self._stopwatch.start()
        logits_PV = self.advance(bins_TC)
        self._stopwatch.stop(completes=len(logits_PV) > 0)
        return logits_PV

    def finish(self) -> np.ndarray:
        """Return the logits, float32 [P, V], of the bins that are left at the end of an utterance.

        P is 1 if there are bins that fill no patch and the model fills their patch with zeros
        (`Stepper.pads_last_patch`); otherwise 0. Call it before `end_utterance`, when no more bins
        come.
        """
        self._stopwatch.start()
        logits_PV = self.advance_last()
        self._stopwatch.stop(completes=len(logits_PV) > 0)
        return logits_PV

    def end_utterance(self) -> None:
        """End the utterance, whose bins count for the rolling statistics."""
        if self._normaliser:
            self._normaliser.end_utterance()
            self.watch.end_utterance(self._normaliser.outliers, self._normaliser.n_changes)
        self._begin()

    def reset(self) -> None:
        """Drop the utterance; its bins do not count for the rolling statistics."""
        if self._normaliser:
            self._normaliser.drop_utterance()
        self._begin()

    def _begin(self) -> None:
        if self._smoother:
            self._smoother.reset()
        self.stepper.start()
        self._n_bins = self._n_frames = 0
        self._gap_bins = 0  # between what has come and the next patch, where patches do not touch
        self._waiting_TC = np.empty((0, self.stepper.n_features), dtype=np.float32)

    def advance(self, x_TC: np.ndarray, prepare: bool = True) -> np.ndarray:
        """Do the work of `push` for bins that have been checked, under the caller's stopwatch.

        Args:
            x_TC: float32 [T, C].
            prepare: Whether there is time, where they complete no frame, to prepare the next step.
        """
        self._n_bins += len(x_TC)
        if self._normaliser:
            recorded_TC, x_TC = x_TC, self._normaliser.push(x_TC)
            self.watch.look(recorded_TC, self._normaliser.flat_C)
        elif len(x_TC):
            x_TC = self.watch.without_flat(x_TC)
        self._stopwatch.lap("normalise")
        if self._smoother:
            x_TC = self._smoother.push(x_TC)
        self._stopwatch.lap("smooth")
        patches = self._patches(x_TC)
        if not patches:
            if prepare:
                self.stepper.prepare(self._waiting_TC[self._gap_bins :])
            return np.empty((0, len(self.stepper.inventory)), dtype=np.float32)
        # Before the steps: where one fails, the utterance continues without its frame.
        self._n_frames += len(patches)
        logits = [self.stepper.step(bins_SC) for bins_SC in patches]
        self._stopwatch.lap("model")
        return np.stack(logits)

    def advance_last(self) -> np.ndarray:
        """Do the work of `finish`, under the caller's stopwatch."""
        n_waiting = len(self._waiting_TC)
        if not n_waiting or not self.stepper.pads_last_patch:
            return np.empty((0, len(self.stepper.inventory)), dtype=np.float32)
        bins_SC = filled(self._waiting_TC, self.stepper.patch_size)
        # Before the step, as in `advance`; the zeros count as bins.
        self._n_frames += 1
        self._n_bins += len(bins_SC) - n_waiting
        self._waiting_TC = self._waiting_TC[:0]
        logits_V = self.stepper.step(bins_SC)
        self._stopwatch.lap("model")
        return logits_V[None]

    def _patches(self, smoothed_TC: np.ndarray) -> list[np.ndarray]:
        """Return the patches [S, C] that the next smoothed bins complete."""
        size, stride = self.stepper.patch_size, self.stepper.patch_stride
        waiting_TC = np.concatenate((self._waiting_TC, smoothed_TC))
        n_patches = max((len(waiting_TC) - self._gap_bins - size) // stride + 1, 0)
        until = self._gap_bins + n_patches * stride
        patches = [
            waiting_TC[first : first + size] for first in range(self._gap_bins, until, stride)
        ]
        # A copy: a view would keep the whole array alive.
        self._waiting_TC = waiting_TC[until:].copy()
        self._gap_bins = max(until - len(waiting_TC), 0)
        return patches
