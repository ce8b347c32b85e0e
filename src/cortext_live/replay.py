"""Recordings sent as if they were recorded now: at real speed, or as fast as they are taken.

T bins, C features.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from cortext.data import PackedSplit, Trial
from cortext.errors import DataError, nearest
from cortext.processes import Progress
from cortext_live.core.redis_connection import Stopped
from cortext_live.core.statistics import RunningStatistics
from cortext_live.replay_clients import Client, ReplayAnswer

LATEST_LAGS = 100_000
"""Most entries from whose lags the summary's percentiles are computed."""


class Pacer:
    """A clock that does not drift: entry k is due k periods after the first.

    Args:
        period_s: Seconds of a period at real speed.
        speed: 1 is real time, None is no clock at all.
        stop: Ends waiting.
    """

    def __init__(self, period_s: float, speed: float | None, stop: threading.Event) -> None:
        self._period_s = None if speed is None else period_s / speed
        self._stop = stop
        self._start = time.monotonic()
        self._k = 0
        self.lags_ms: deque[float] = deque(maxlen=LATEST_LAGS)

    def restart(self) -> None:
        """Make the next entry due one period from now: no entry was due until now."""
        self._start = time.monotonic()
        self._k = 0

    def wait(self) -> None:
        """Wait until the next entry is due: a bin is known when its time is over.

        Raises:
            Stopped: `stop` was set.
        """
        self._k += 1
        if self._period_s is not None:
            early_s = self._start + self._k * self._period_s - time.monotonic()
            if early_s > 0:
                self._stop.wait(early_s)
        if self._stop.is_set():
            raise Stopped

    def sent(self) -> None:
        """Note that the entry has been sent, and how late."""
        if self._period_s is not None:
            self.lags_ms.append(1000 * (time.monotonic() - self._start - self._k * self._period_s))


@dataclass
class ReplaySummary:
    """The summary of a replay.

    Attributes:
        n_trials: Trials that were sent.
        n_frames: Bins that were sent. (The name in the JSON output.)
        seconds: Seconds that it took.
        lag_p50_ms: Median of how late entries were sent; None without a clock.
        lag_p99_ms: Its 99th percentile.
        lag_max_ms: Its maximum.
        left_out: Bins that did not fill an entry at the end of a trial.
        n_errors: Trials with an error.
        wer: Word error rate of all trials with known sentences and an answer.
        interrupted: Whether it was stopped.
        results: Number, text, reference and error of each trial with an answer.
    """

    n_trials: int = 0
    n_frames: int = 0
    seconds: float = 0.0
    lag_p50_ms: float | None = None
    lag_p99_ms: float | None = None
    lag_max_ms: float | None = None
    left_out: int = 0
    n_errors: int = 0
    wer: float | None = None
    interrupted: bool = False
    results: list[dict[str, Any]] = field(default_factory=list)


def choose(
    split: PackedSplit, sessions: Sequence[str] = (), trials: Sequence[int] = ()
) -> list[int]:
    """Return the places in a split of the trials to replay. Raises DataError for none.

    Args:
        split: The trials.
        sessions: Only trials of these; all if empty.
        trials: Only these places; all if empty.
    """
    there = sorted({split.session(i) for i in range(len(split))})
    for session in sessions:
        if session not in there:
            raise DataError(
                f"no trials of session {session!r}; {nearest(session, there)}", where=split.path
            )
    for number in trials:
        if not 0 <= number < len(split):
            raise DataError(f"no trial {number}; there are 0 to {len(split) - 1}", where=split.path)
    chosen = [
        i for i in trials or range(len(split)) if not sessions or split.session(i) in sessions
    ]
    if not chosen:
        raise DataError(
            "none of these trials is of these sessions" if trials else "no trials", where=split.path
        )
    return chosen


def replay(
    split: PackedSplit,
    numbers: Sequence[int],
    client: Client,
    stop: threading.Event,
    *,
    speed: float | None = 1.0,
    loop: bool = False,
    progress: Progress | None = None,
    on_result: Callable[[Trial, ReplayAnswer], None] | None = None,
) -> ReplaySummary:
    """Send trials one after the other until they are over (never, with `loop`) or `stop` is set.

    Args:
        split: The trials.
        numbers: Places in the split.
        client: Sends them.
        stop: Ends the replay.
        speed: 1 is real time, 2 twice as fast; None as fast as they are taken.
        loop: Begin again after the last trial.
        progress: Called with the bins sent and those to send, which in a loop are those of one
            round.
        on_result: Called with each trial that has an answer.

    Raises:
        LiveError: No server answers.
        DataError: The recordings have other tokens, another language or another length of a bin
            than the model.
    """
    summary = ReplaySummary()
    conventions = split.conventions
    statistics = RunningStatistics(conventions.language)
    pacer = Pacer(conventions.bin_ms / 1000 * client.bins_per_entry, speed, stop)
    total = int(split.n_bins_N[list(numbers)].sum())

    def sent(n_bins: int) -> None:
        summary.n_frames += n_bins
        if progress:
            progress((summary.n_frames - 1) % total + 1, total)

    start = time.monotonic()
    try:
        client.ready(conventions)
        start = time.monotonic()
        for number in _rounds(numbers, loop):
            trial = split.trial(number)
            answer = _replay_trial(client, number, trial, pacer, sent)
            summary.n_trials += 1
            summary.left_out += trial.n_bins % client.bins_per_entry
            if answer is not None:
                _note(summary, statistics, number, trial, answer, keep=not loop)
                if on_result:
                    on_result(trial, answer)
    except Stopped:
        summary.interrupted = True
    summary.seconds = time.monotonic() - start
    summary.wer = statistics.to_json()["wer"]
    if pacer.lags_ms:
        p50, p99, most = np.percentile(pacer.lags_ms, (50, 99, 100)).tolist()
        summary.lag_p50_ms = p50
        summary.lag_p99_ms = p99
        summary.lag_max_ms = most
    return summary


def _rounds(numbers: Iterable[int], loop: bool) -> Iterator[int]:
    while True:
        yield from numbers
        if not loop:
            return


def _replay_trial(
    client: Client, number: int, trial: Trial, pacer: Pacer, sent: Callable[[int], None]
) -> ReplayAnswer | None:
    """Send one trial; end one that is stopped in the middle, so that no server waits for it."""
    n = client.bins_per_entry
    client.begin(number, trial)
    pacer.restart()
    try:
        for first in range(0, trial.n_bins - n + 1, n):
            pacer.wait()
            client.send(trial.features_TC[first : first + n])
            pacer.sent()
            sent(n)
    except Stopped:
        with suppress(Stopped):
            client.end()
        raise
    return client.end()


def _note(
    summary: ReplaySummary,
    statistics: RunningStatistics,
    number: int,
    trial: Trial,
    answer: ReplayAnswer,
    keep: bool,
) -> None:
    summary.n_errors += bool(answer.error)
    if trial.sentence is not None:
        statistics.compare(trial.sentence, answer.text)
    if keep:  # a loop has no end, and its memory has
        facts = {
            "name": trial.name,
            "text": answer.text,
            "reference": trial.sentence,
            "error": answer.error or None,
        }
        summary.results.append({"trial": number} | facts)
