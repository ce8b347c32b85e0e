"""Fitting the idle gate of a run, and measuring it on recordings that it was not fitted on.

Positive frames lie between the first and the last sound of a labelled trial; the rest of the trial
and all idle recordings are negative. Frames of idle recordings, or of the trial's first silence,
are put before each trial: live, an attempt follows idle time, too.

N trials or windows, P frames, V tokens, S averaged signals.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch

from cortext.arguments import as_path
from cortext.data.packed import PackedSplit
from cortext.decoding.log_probs import log_softmax
from cortext.errors import DataError
from cortext.evaluation.fit.fitted_file import made_now
from cortext.evaluation.logits import logits_of
from cortext.models import AcousticModel, load_model
from cortext.models.participants import run_for
from cortext.text.inventory import Inventory
from cortext.training.participants.recordings import open_for
from cortext_live.core.gate import (
    HYSTERESIS,
    KEPT_MS,
    SCAN_MS,
    SHUT_MS,
    GateCard,
    GateNetwork,
    Operating,
    signals,
    window_frames,
    write_gate,
)

UNITS = 16
EPOCHS = 8
RISE_MS = 480
"""Frames right after the first sound are neither positive nor negative: too little is known."""
LEAD_MS = 320
"""An utterance must begin so long before its first sound: activity leads the movement."""
ODDS = tuple(np.arange(-3.0, 12.25, 0.5).tolist())
"""Log-odds of the thresholds that are measured."""
GOAL_PER_HOUR = 1.0
GOAL_MISSED = 0.02
"""The fitted threshold has the smallest sum of both upper bounds, each over its goal."""
FEWEST_TRIALS = 20


def fit_gate(
    run: str | Path, data: str | Path, idle: str | Path | None = None, split: str = "val"
) -> GateCard:
    """Fit the idle gate of a run on a CPU, in seconds, and keep it there.

    Args:
        run: Run directory; of a run of several participants, the one whose recordings these are.
        data: Recordings with labelled trials; those that training has not seen are better.
        idle: Recordings whose trials hold no attempted speech, in all splits; None for none.
        split: The split of `data`.

    Returns:
        The card, whose figures are cross-fitted: each half is judged by the other half's network.

    Raises:
        DataError: For too few labelled trials, and recordings of other conventions.
    """
    run = run_for(as_path(run, "run"), data)
    model = load_model(run)
    spoken = _spoken(model, data, split)
    windows = [] if idle is None else _idle(model, idle)
    sets = [_examples(model, spoken[k::2], windows[k::2]) for k in (0, 1)]
    judged: list[tuple[np.ndarray, list[np.ndarray]]] = []
    for half in (0, 1):
        network = train(*sets[1 - half])
        judged.append(_peaks(model, network, spoken[half::2], windows[half::2]))
    network = train(*(np.concatenate(pair) for pair in zip(*sets, strict=True)))
    peaks_N = np.concatenate([peaks for peaks, _ in judged])
    tracks = [track for _, tracks_of_trial in judged for track in tracks_of_trial]
    frame_ms = _frame_ms(model)
    measured = measure(peaks_N, tracks, frame_ms)
    card = GateCard(
        threshold=best_threshold(measured),
        measured=measured,
        idle_hours=round(sum(map(len, tracks)) * frame_ms / 3_600_000, 3),
        beginnings=len(peaks_N),
        data=str(data),
        idle=None if idle is None else str(idle),
        **made_now(run),
    )
    write_gate(run, network, card)
    return card


def _frame_ms(model: AcousticModel) -> float:
    return float(model.patch_stride * model.conventions.bin_ms)


def _spoken(model: AcousticModel, data: str | Path, split: str) -> list[np.ndarray]:
    """Return log-probabilities [P, V] of the labelled trials in which a sound is found."""
    packed = open_for(model.conventions, data)
    packed.conventions.require(model.conventions, mine="the data", theirs="the model")
    part = packed.split(split)
    chosen = [i for i in range(len(part)) if part.labels(i) is not None]
    log_probs = [log_softmax(x) for x in logits_of(model, part, chosen, None)]
    log_probs = [x for x in log_probs if not silent(x, model.inventory).all()]
    if len(log_probs) < FEWEST_TRIALS:
        problem = f"split {split!r} has {len(log_probs)} usable labelled trials"
        fix = f"give recordings with at least {FEWEST_TRIALS}, or another --split"
        raise DataError(problem, where=packed.path, fix=fix)
    return log_probs


def _idle(model: AcousticModel, data: str | Path) -> list[np.ndarray]:
    """Return log-probabilities [P, V] of the windows of idle recordings, as live decoding scans."""
    packed = open_for(model.conventions, data)
    packed.conventions.require(model.conventions, mine="the idle data", theirs="the model")
    log_probs = []
    for name in packed.splits:
        part = packed.split(name)
        for i in range(len(part)):
            features_TC = _features(part, i)
            log_probs += scan(model, features_TC, part.session(i))
    if not log_probs:
        raise DataError("the idle recordings hold no trial", where=packed.path)
    return log_probs


def _features(part: PackedSplit, i: int) -> np.ndarray:
    features_TC: np.ndarray = part.batch([i]).features_BTC[0]
    return features_TC


def scan(model: AcousticModel, features_TC: np.ndarray, session: str) -> list[np.ndarray]:
    """Return log-probabilities [P, V] of a recording in windows, as live decoding scans it.

    Windows overlap by the bins that are kept; the overlap's frames are left out of all but the
    first.

    Args:
        model: The model.
        features_TC: float32 [T, C].
        session: Day of the recording; one that the model does not know has its last day's layer.
    """
    bin_ms = model.conventions.bin_ms
    size, kept = round(SCAN_MS / bin_ms), round(KEPT_MS / bin_ms)
    session = session if session in model.sessions else model.sessions[-1]
    again = int(model.n_patches(np.array([kept]))[0])
    firsts = [f for f in range(0, len(features_TC), size - kept) if len(features_TC) - f > kept]
    pieces = []
    for start in range(0, len(firsts), 16):
        parts = [features_TC[f : f + size] for f in firsts[start : start + 16]]
        n_bins_B = np.array([len(x) for x in parts])
        batch_BTC = np.zeros((len(parts), n_bins_B.max(), features_TC.shape[1]), np.float32)
        for row, x_TC in zip(batch_BTC, parts, strict=True):
            row[: len(x_TC)] = x_TC
        logits_BPV, n_B = model.logits_batch(batch_BTC, [session] * len(parts), n_bins_B)
        for f, logits_PV, n in zip(firsts[start : start + 16], logits_BPV, n_B, strict=True):
            pieces.append((f, log_softmax(logits_PV[:n])))
    return [x if f == 0 else x[again:] for f, x in pieces]


def silent(log_probs_PV: np.ndarray, inventory: Inventory) -> np.ndarray:
    """Return which frames are silent, bool [P]: blank and silence are more probable than not."""
    tokens = [inventory.blank_symbol, *([inventory.silence] if inventory.silence else [])]
    quiet_P: np.ndarray = np.exp(log_probs_PV[:, inventory.ids(tokens)]).sum(axis=1) > 0.5
    return quiet_P


def averaged(log_probs_PV: np.ndarray, frame_ms: float) -> np.ndarray:
    """Return the averaged signals float64 [P, S] of frames in a row."""
    before_PV = np.concatenate((log_probs_PV[:1], log_probs_PV[:-1]))
    signals_PS = signals(log_probs_PV, before_PV)
    total_PS = np.concatenate((np.zeros((1, signals_PS.shape[1])), np.cumsum(signals_PS, axis=0)))
    end_P = np.arange(1, len(signals_PS) + 1)
    parts = []
    for n in window_frames(frame_ms):
        first_P = np.maximum(end_P - n, 0)
        parts.append((total_PS[end_P] - total_PS[first_P]) / (end_P - first_P)[:, None])
    return np.concatenate(parts, axis=1)


def _with_context(
    model: AcousticModel, spoken: Sequence[np.ndarray], windows: Sequence[np.ndarray]
) -> list[tuple[np.ndarray, int, int]]:
    """Return each trial after idle frames, with the numbers of its first and last sound."""
    n = max(window_frames(_frame_ms(model)))
    before = [w[s : s + n] for w in windows for s in range(0, len(w) - n + 1, n)]
    trials = []
    for number, trial_PV in enumerate(spoken):
        sounds = np.flatnonzero(~silent(trial_PV, model.inventory))
        # A prime step takes the stretches out of order, so that all kinds come before trials.
        idle_PV = before[number * 7 % len(before)] if before else np.repeat(trial_PV[:1], n, axis=0)
        trials.append(
            (np.concatenate((idle_PV, trial_PV)), n + int(sounds[0]), n + int(sounds[-1]))
        )
    return trials


def _examples(
    model: AcousticModel, spoken: Sequence[np.ndarray], windows: Sequence[np.ndarray]
) -> tuple[np.ndarray, np.ndarray]:
    """Return averaged signals float32 [P, S] and whether speech is attempted, float32 [P]."""
    frame_ms = _frame_ms(model)
    rise = round(RISE_MS / frame_ms)
    memory = max(window_frames(frame_ms))
    inputs, targets = [], []
    for frames_PV, first, last in _with_context(model, spoken, windows):
        x_PS = averaged(frames_PV, frame_ms)
        number_P = np.arange(len(x_PS))
        speech_P = (number_P >= first + rise) & (number_P <= last)
        rest_P = (number_P < first - 1) | (number_P > last + memory)
        used_P = speech_P | (rest_P & (number_P >= memory))
        inputs.append(x_PS[used_P])
        targets.append(speech_P[used_P])
    for window_PV in windows:
        inputs.append(averaged(window_PV, frame_ms))
        targets.append(np.zeros(len(window_PV), dtype=bool))
    return np.concatenate(inputs).astype(np.float32), np.concatenate(targets).astype(np.float32)


def train(inputs_PS: np.ndarray, speech_P: np.ndarray) -> GateNetwork:
    """Fit the network; both classes weigh the same. The same examples give the same network.

    Args:
        inputs_PS: float32 [P, S].
        speech_P: float32 [P], 1 where speech is attempted.
    """
    mean_S, sd_S = inputs_PS.mean(axis=0), inputs_PS.std(axis=0)
    scale_S = (1 / (sd_S + 1e-3)).astype(np.float32)
    x_PS = torch.from_numpy((inputs_PS - mean_S) * scale_S)
    y_P = torch.from_numpy(speech_P)
    share = float(speech_P.mean())
    weight_P = torch.where(y_P > 0, 0.5 / share, 0.5 / (1 - share))
    generator = torch.Generator().manual_seed(0)
    n = inputs_PS.shape[1]
    hidden_SD = (torch.randn(n, UNITS, generator=generator) / math.sqrt(n)).requires_grad_()
    hidden_D = torch.zeros(UNITS, requires_grad=True)
    output_D = (torch.randn(UNITS, generator=generator) / math.sqrt(UNITS)).requires_grad_()
    bias = torch.zeros(1, requires_grad=True)
    weights = [hidden_SD, hidden_D, output_D, bias]
    optimiser = torch.optim.AdamW(weights, lr=3e-3, weight_decay=1e-2)
    loss = torch.nn.functional.binary_cross_entropy_with_logits
    for _ in range(EPOCHS):
        order = torch.randperm(len(x_PS), generator=generator)
        for first in range(0, len(order), 256):
            rows = order[first : first + 256]
            optimiser.zero_grad()
            odds = torch.tanh(x_PS[rows] @ hidden_SD + hidden_D) @ output_D + bias
            torch.autograd.backward(loss(odds, y_P[rows], weight=weight_P[rows]))
            optimiser.step()
    arrays = [w.detach().numpy().astype(np.float32) for w in weights]
    return GateNetwork(mean_S, scale_S, arrays[0], arrays[1], arrays[2], float(arrays[3][0]))


def log_odds(network: GateNetwork, inputs_PS: np.ndarray) -> np.ndarray:
    """Return the log-odds of frames, float [P]; they agree with a frame's at a time to 1e-4."""
    z_PS = (inputs_PS - network.mean_S) * network.scale_S
    odds: np.ndarray = np.tanh(z_PS @ network.hidden_SD + network.hidden_D) @ network.output_D
    return odds + network.bias


def in_time_frames(model: AcousticModel) -> int:
    """Return the frames after the first sound by which the gate must have opened."""
    bin_ms = model.conventions.bin_ms
    known_ms = (model.patch_size + model.smoothing.lost_bins) * bin_ms
    return int((KEPT_MS - LEAD_MS - known_ms) // _frame_ms(model))


def _peaks(
    model: AcousticModel,
    network: GateNetwork,
    spoken: Sequence[np.ndarray],
    windows: Sequence[np.ndarray],
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Return the highest log-odds in time of each trial [N], and those of each window's frames."""
    frame_ms = _frame_ms(model)
    in_time = in_time_frames(model)
    peaks = []
    for frames_PV, first, _ in _with_context(model, spoken, windows):
        odds_P = log_odds(network, averaged(frames_PV[: first + in_time + 1], frame_ms))
        peaks.append(odds_P[first:].max())
    tracks = [log_odds(network, averaged(w, frame_ms)) for w in windows]
    return np.array(peaks), tracks


def openings(odds_P: np.ndarray, opens: float, frame_ms: float) -> int:
    """Return how often a gate opens that shuts after `SHUT_MS` below its lower threshold."""
    shut_frames = round(SHUT_MS / frame_ms)
    shuts = opens + math.log(HYSTERESIS)
    count, is_open, low = 0, False, 0
    for odds in odds_P.tolist():
        if not is_open and odds >= opens:
            count, is_open, low = count + 1, True, 0
        low = low + 1 if odds < shuts else 0
        is_open = is_open and low < shut_frames
    return count


def measure(peaks_N: np.ndarray, tracks: Sequence[np.ndarray], frame_ms: float) -> list[Operating]:
    """Return the figures of each threshold of `ODDS`.

    Args:
        peaks_N: Highest log-odds in time of each beginning.
        tracks: Log-odds [P] of the frames of each idle window.
        frame_ms: Milliseconds of a frame.
    """
    hours = sum(map(len, tracks)) * frame_ms / 3_600_000
    measured = []
    for opens in ODDS:
        false = sum(openings(track, opens, frame_ms) for track in tracks)
        missed = int((peaks_N < opens).sum())
        measured.append(
            Operating(
                threshold=1 / (1 + math.exp(-opens)),
                false_per_hour=false / hours if tracks else None,
                false_high=poisson_high(false) / hours if tracks else None,
                missed=missed / len(peaks_N),
                missed_high=binomial_high(missed, len(peaks_N)),
            )
        )
    return measured


def best_threshold(measured: Sequence[Operating]) -> float:
    """Return the threshold whose bounds are smallest; of equal ones the middle one."""
    costs = [(m.false_high or 0.0) / GOAL_PER_HOUR + m.missed_high / GOAL_MISSED for m in measured]
    best = [m.threshold for m, cost in zip(measured, costs, strict=True) if cost <= min(costs)]
    return best[len(best) // 2]


def poisson_high(count: int) -> float:
    """Return the 95 % upper bound of a Poisson mean after a count (exact, one-sided)."""

    def chance(mean: float) -> float:
        return sum(
            math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(count + 1)
        )

    return _falling(chance, 1e-9, 10.0 * count + 20.0)


def binomial_high(count: int, n: int) -> float:
    """Return the 95 % upper bound of a share after a count of n (Clopper-Pearson, one-sided)."""
    if count >= n:
        return 1.0

    def chance(p: float) -> float:
        return sum(
            math.exp(
                math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
                + k * math.log(p) + (n - k) * math.log1p(-p)
            )
            for k in range(count + 1)
        )  # fmt: skip

    return _falling(chance, 1e-12, 1 - 1e-12)


def _falling(chance: Callable[[float], float], low: float, high: float) -> float:
    """Return where a falling function is 0.05, by bisection."""
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if chance(middle) > 0.05 else (low, middle)
    return (low + high) / 2
