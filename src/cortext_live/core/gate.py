"""The idle gate: probability of attempted speech for each frame, and when an utterance begins.

A small network reads the acoustic model's log-probabilities of the last two seconds. The gate opens
above a threshold and shuts below a lower one; the pipeline keeps the last bins while it is shut, so
that no beginning is cut. It is fitted to one model (`gate_fit`) and kept in its run.

P frames, V tokens, S signals of a frame, D units.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cortext.arguments import check_type
from cortext.config import check_fields
from cortext.errors import ConfigError, CortextError
from cortext.evaluation.fit.fitted_file import FORMAT_VERSION, FittedFile
from cortext.files import check_file
from cortext.models.storage import check_finite, read_tensors, write_tensors
from cortext_live.steps.stepper import Stepper

WEIGHTS = "gate.safetensors"
AGAIN = "fit it anew with `cortext fit-gate`"
MOST_BYTES = 16 << 20
"""Largest `gate.safetensors` that is read; a model of 1,000 tokens has 0.3 MB."""
WINDOWS_MS = (960, 2000)
"""Times over which the signals are averaged, up to the latest frame."""
LEAST_LOG_PROB = -8.0
"""Log-probabilities below this say no more than this."""
KEPT_MS = 2400
"""Bins before the opening with which an utterance begins."""
SCAN_MS = 20_000
"""Time after which the model restarts while the gate is shut, as it does with each utterance.

Models are trained on sentences of a few seconds; and idle bins of hours would otherwise outweigh
speech in rolling statistics.
"""
SHUT_MS = 1500
"""Time below the lower threshold after which an open gate shuts."""
HYSTERESIS = 0.1
"""The lower threshold, over the odds of the threshold."""


@dataclass(frozen=True)
class Operating:
    """Figures of one threshold on recordings that the network was not fitted on."""

    threshold: float
    false_per_hour: float | None
    """Openings in an hour of idle recordings; None without such recordings."""
    false_high: float | None
    """Upper end of its 95 % interval (exact, Poisson)."""
    missed: float
    """Share of beginnings before which the gate opened too late."""
    missed_high: float
    """Upper end of its 95 % interval (exact, binomial)."""

    def __post_init__(self) -> None:
        check_fields(self)
        check_threshold(self.threshold)
        if (self.false_per_hour is None) != (self.false_high is None):
            raise ConfigError("false_per_hour and false_high: one is a number, the other is not")
        if self.false_per_hour is not None and self.false_high is not None:
            _check_bound("false_per_hour", self.false_per_hour, self.false_high, math.inf)
        _check_bound("missed", self.missed, self.missed_high, 1)


def _check_bound(name: str, value: float, high: float, most: float) -> None:
    """Raise ConfigError unless a figure and its upper bound are finite and in order."""
    # NaN fails each comparison; a page could not read it, nor infinity.
    if not (0 <= value <= high <= most and math.isfinite(high)):
        raise ConfigError(f"{name} is {value} with upper bound {high}")


@dataclass(frozen=True)
class GateCard(FittedFile):
    """The contents of `gate.yaml`.

    Attributes:
        threshold: Probability above which the gate opens.
        measured: Figures by threshold, in rising order.
        idle_hours: Length of the idle recordings.
        beginnings: Number of beginnings of sentences.
        data: Recordings of sentences that it was fitted on.
        idle: Idle recordings that it was fitted on; None without.
    """

    FILE = "gate.yaml"
    NAME = "idle gate"
    HEADER = "# The idle gate that cortext has fitted to this run, and what it is worth."
    AGAIN = AGAIN

    weights: str | None
    threshold: float
    measured: list[Operating]
    idle_hours: float
    beginnings: int
    data: str
    idle: str | None
    created: str
    version: str
    format_version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        check_fields(self)
        super().__post_init__()
        check_threshold(self.threshold)
        thresholds = [each.threshold for each in self.measured]
        if any(low >= high for low, high in pairwise(thresholds)):
            raise ConfigError("the measured thresholds do not rise")

    def figures(self, threshold: float) -> Operating | None:
        """Return the figures of the nearest measured threshold that is not above; None below all.

        So the false openings are at least those of the threshold itself.
        """
        return max(
            (m for m in self.measured if m.threshold <= threshold),
            key=lambda m: m.threshold,
            default=None,
        )


def check_threshold(threshold: float) -> float:
    """Return a threshold of the gate. Raises ConfigError unless it lies between 0 and 1."""
    check_type(threshold, (int, float), "threshold", "a number")
    if isinstance(threshold, bool) or not 0 < threshold < 1:
        raise ConfigError(f"the gate's threshold is {threshold}; it must be between 0 and 1")
    return float(threshold)


@dataclass(frozen=True)
class GateNetwork:
    """From signals to the log-odds of attempted speech: one layer of tanh units.

    Attributes:
        mean_S, scale_S: float32, standardise the averaged signals.
        hidden_SD, hidden_D, output_D: float32 weights.
        bias: Added to the log-odds.
    """

    mean_S: np.ndarray
    scale_S: np.ndarray
    hidden_SD: np.ndarray
    hidden_D: np.ndarray
    output_D: np.ndarray
    bias: float

    def __post_init__(self) -> None:
        n, d = self.hidden_SD.shape if self.hidden_SD.ndim == 2 else (-1, -1)
        shapes = [a.shape for a in (self.mean_S, self.scale_S, self.hidden_D, self.output_D)]
        if shapes != [(n,), (n,), (d,), (d,)]:
            raise ConfigError(f"the gate's weights have shapes {shapes}", fix=AGAIN)

    def log_odds(self, averaged_S: np.ndarray) -> float:
        """Return the log-odds of one frame from its averaged signals, float32 [S]."""
        z_S = (averaged_S - self.mean_S) * self.scale_S
        # Sums of fixed order: a matrix product's order may depend on the shape.
        hidden_D = np.tanh((z_S[:, None] * self.hidden_SD).sum(axis=0) + self.hidden_D)
        return float((hidden_D * self.output_D).sum()) + self.bias


def signals(log_probs_V: np.ndarray, before_V: np.ndarray) -> np.ndarray:
    """Return the signals float32 [2 V + 1] of a frame.

    They are the probabilities, the bounded log-probabilities, and the share of probability that has
    moved since the frame before.

    Args:
        log_probs_V: Natural-log probabilities of the frame, or of frames [P, V].
        before_V: Those of the frame before, of the same shape.
    """
    probs_V = np.exp(log_probs_V)
    moved = 0.5 * np.abs(probs_V - np.exp(before_V)).sum(axis=-1, keepdims=True)
    bounded_V = np.maximum(log_probs_V, LEAST_LOG_PROB)
    return np.concatenate((probs_V, bounded_V, moved), axis=-1)


def window_frames(frame_ms: float) -> tuple[int, ...]:
    """Return the frames over which signals are averaged."""
    return tuple(max(round(ms / frame_ms), 1) for ms in WINDOWS_MS)


class Averages:
    """Running averages of the signals of the latest frames, the same bits in any chunking."""

    def __init__(self, frame_ms: float) -> None:
        self._windows = window_frames(frame_ms)
        self.reset()

    def reset(self) -> None:
        """Forget all frames."""
        self._latest: list[np.ndarray] = []
        self._before_V: np.ndarray | None = None

    def push(self, log_probs_V: np.ndarray) -> np.ndarray:
        """Take a frame float32 [V]; return the averages, float32 [windows * (2 V + 1)]."""
        before_V = log_probs_V if self._before_V is None else self._before_V
        self._before_V = log_probs_V
        self._latest.append(signals(log_probs_V, before_V))
        del self._latest[: -max(self._windows)]
        averages = [np.stack(self._latest[-n:]).mean(axis=0) for n in self._windows]
        return np.concatenate(averages)


class IdleGate:
    """The gate of one model.

    Args:
        network: Its network.
        card: Its fitted values and measured errors.
        frame_ms: Milliseconds of a frame.
        threshold: Probability above which it opens; None takes the card's.
    """

    def __init__(
        self,
        network: GateNetwork,
        card: GateCard,
        frame_ms: float,
        threshold: float | None = None,
    ) -> None:
        self.card = card
        self._network = network
        self._averages = Averages(frame_ms)
        self._shut_frames = round(SHUT_MS / frame_ms)
        self._grace_frames = round(KEPT_MS / frame_ms)
        self.threshold = card.threshold if threshold is None else threshold
        self.reset()

    @property
    def threshold(self) -> float:
        """Probability above which it opens."""
        return self._threshold

    @threshold.setter
    def threshold(self, threshold: float) -> None:
        self._threshold = check_threshold(threshold)
        self._opens = float(np.log(self._threshold / (1 - self._threshold)))
        self._shuts = self._opens + float(np.log(HYSTERESIS))

    def reset(self) -> None:
        """Shut it, and forget all frames."""
        self.is_open = False
        self.restart()

    def restart(self) -> None:
        """Forget all frames; stay open or shut."""
        self._averages.reset()
        self._n_frames = self._n_low = 0
        self.probability = 0.0

    def open(self) -> None:
        """Open it for an utterance whose first frames come next."""
        self.restart()
        self.is_open = True

    def push(self, log_probs_V: np.ndarray) -> float:
        """Take a frame float32 [V]; return the log-odds of attempted speech."""
        odds = self._network.log_odds(self._averages.push(log_probs_V))
        self.probability = float(1 / (1 + np.exp(-odds)))
        self._n_frames += 1
        # The bins that were kept may begin with a longer silence.
        low = odds < self._shuts and self._n_frames > self._grace_frames
        self._n_low = self._n_low + 1 if low else 0
        return odds

    def opens(self, odds: float) -> bool:
        """Tell whether log-odds are above the threshold."""
        return odds >= self._opens

    @property
    def has_shut(self) -> bool:
        """Tell whether an open gate has been below the lower threshold for long enough."""
        return self.is_open and self._n_low >= self._shut_frames


def write_gate(run: str | Path, network: GateNetwork, card: GateCard) -> None:
    """Keep a gate in a run: `gate.safetensors`, then `gate.yaml`, each whole or not at all.

    Raises:
        RunError: Where a file cannot be written.
    """
    run = Path(run)
    arrays = vars(network) | {"bias": np.array([network.bias], dtype=np.float32)}
    tensors = {name: torch.from_numpy(np.ascontiguousarray(a)) for name, a in arrays.items()}
    # The card last: without it there is no gate, so that a first fit that is cut off leaves none.
    write_tensors(run / WEIGHTS, tensors, {"model": card.weights or ""})
    card.write(run)


def read_gate(
    run: str | Path, frame_ms: float, n_tokens: int, threshold: float | None = None
) -> IdleGate:
    """Return the gate of a run.

    Args:
        run: Run directory.
        frame_ms: Milliseconds of a frame of its model.
        n_tokens: V, the model's tokens.
        threshold: Probability above which it opens; None takes the fitted one.

    Raises:
        ConfigError: There is none, it is damaged, or it was fitted to other weights.
    """
    run = Path(run)
    path = run / GateCard.FILE
    if not path.is_file():
        raise ConfigError("the run has no idle gate", where=run, fix=AGAIN)
    card = GateCard.read_file(path)
    network = _read_network(run / WEIGHTS)
    # A network reads other log-probabilities otherwise: unlike decoder options, it is never used
    # with other weights.
    if not card.belongs_to(run):
        raise ConfigError("the idle gate was fitted to other weights", where=path, fix=AGAIN)
    if len(network.mean_S) != len(WINDOWS_MS) * (2 * n_tokens + 1):
        raise ConfigError("the idle gate was fitted to other tokens", where=path, fix=AGAIN)
    return IdleGate(network, card, frame_ms, threshold)


def _read_network(path: Path) -> GateNetwork:
    """Return the network in a `gate.safetensors`. Raises ConfigError for one that is damaged."""
    try:
        check_file(path, MOST_BYTES)
        tensors, _, _ = read_tensors(path, "the idle gate")
        # float32 first: a larger number becomes infinite.
        tensors = {name: tensor.float() for name, tensor in tensors.items()}
        check_finite(tensors, path)
        arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in tensors.items()}
        return GateNetwork(**arrays | {"bias": arrays["bias"].item()})
    except CortextError as error:
        problem = error.what
    except OSError as error:
        problem = f"the idle gate cannot be read: {error.strerror}"
    except (TypeError, KeyError):  # names
        problem = "the idle gate has other tensors than `fit-gate` writes"
    except ValueError as error:
        problem = f"the idle gate cannot be read: {error}"
    raise ConfigError(problem, where=path, fix=AGAIN)


def gate_for(run: str | Path, stepper: Stepper, threshold: float | None = None) -> IdleGate:
    """Return the gate of a run for its stepper; see `read_gate`."""
    return read_gate(run, stepper.frame_ms, len(stepper.inventory), threshold)
