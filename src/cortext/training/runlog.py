"""The log of a run: sums of losses, gradient norms, metrics.jsonl and TensorBoard."""

from __future__ import annotations

import json
import math
import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.record_writer import RecordWriter
from tensorboardX.summary import scalar

from cortext.data.packed import PackedSplit
from cortext.errors import RunError
from cortext.files import failed_writes
from cortext.training.backend import Backend, StepResult, StepValues
from cortext.training.checkpoint import RunDirectory, RunState, write_culprits
from cortext.training.distributed import Processes
from cortext.training.loss import name_trials


class RunLog:
    """Losses and gradient norms of a run's steps, and the files that they are written to.

    Results stay on the device until `read`, so that no step waits for the step before.

    Args:
        directory: The run directory, for metrics.jsonl and tensorboard/.
        split_of: Function from the number of a batch to the split of its trials; errors name those
            whose loss is not finite.
        processes: The processes that share the batches; only the first writes.
        batch_size: Trials of a batch, over all processes.

    Attributes:
        norm: Norm, before clipping, of the last gradient that was read.
    """

    def __init__(
        self,
        directory: RunDirectory,
        split_of: Callable[[int], PackedSplit],
        processes: Processes,
        batch_size: int,
    ) -> None:
        self.directory = directory
        self.split_of = split_of
        self.processes = processes
        self.batch_size = batch_size
        self.norm = math.nan
        self._unread: list[StepResult] = []
        self._sums: dict[str, float] = {}
        self._timed_from = (time.perf_counter(), 0)
        self._metrics: MetricsLog | None = None
        self._board: TensorBoard | None = None

    @contextmanager
    def open(self, state: RunState) -> Iterator[None]:
        """Keep the files open, in the first process. Raises RunError on a full disk."""
        if not self.processes.first:
            yield
            return
        folder = self.directory.path / "tensorboard"
        try:
            with (
                closing(MetricsLog(self.directory.metrics, state.metrics_bytes)) as self._metrics,
                closing(TensorBoard(folder, state.step)) as self._board,
            ):
                yield
        finally:
            self._metrics = self._board = None
            # After an exception the file is longer than the last saved state says, and the same
            # trainer may continue.
            state.metrics_bytes = self.directory.metrics.stat().st_size

    def write(self, kind: str, step: int, values: Mapping[str, Any]) -> None:
        """Append a line of metrics to metrics.jsonl, and its numbers to TensorBoard.

        Args:
            kind: `train` or `val`.
            step: Batches done.
            values: Values by name, as JSON has them.
        """
        if self._metrics is None or self._board is None:
            return
        self._metrics.write({"kind": kind, "step": step, **values})
        numbers = {name: value for name, value in values.items() if not isinstance(value, dict)}
        self._board.scalars(numbers, step)

    def sync(self, state: RunState) -> None:
        """Flush the lines to the disk, and put their length into a state that is to be saved."""
        if self._metrics is not None:
            state.metrics_bytes = self._metrics.sync()

    def start_timing(self, step: int) -> None:
        """Start to count trials per second, at batch `step`."""
        self._timed_from = (time.perf_counter(), step)

    def trials_per_s(self, step: int) -> float:
        """Return the trials per second since `start_timing`."""
        started, first = self._timed_from
        return self.batch_size * (step - first) / (time.perf_counter() - started)

    def add(self, result: StepResult) -> None:
        """Keep the result of a step until `read`."""
        self._unread.append(result)

    def read(self, backend: Backend) -> None:
        """Wait for the device and sum the losses of the steps since the last call.

        All processes must call. Raises RunError for a loss or gradient that is not finite.
        """
        steps = backend.read(self._unread)
        self._unread = []
        check_finite(steps, self.directory.path, self.split_of, self.processes)
        for step in steps:
            for name, loss_B in step.losses.items():
                mean = float(loss_B.sum(dtype=np.float64)) / self.batch_size
                self._sums[name] = self._sums.get(name, 0.0) + mean
            self.norm = step.norm

    def mean_loss(self, state: RunState) -> float:
        """Return this process's estimate of the mean loss since the last line about training."""
        return self._sums["loss"] / state.loss_count * self.processes.world

    def gather(self, state: RunState) -> None:
        """Add up the sums of all processes into the state; all must call."""
        parts = self.processes.gather(self._sums)
        names = sorted(set().union(*parts))
        state.loss_sums = {name: sum(part.get(name, 0.0) for part in parts) for name in names}

    def take_means(self, state: RunState) -> dict[str, float]:
        """Return the mean losses by name since the last call, and begin anew; all must call."""
        self.gather(state)
        means = {name: total / state.loss_count for name, total in state.loss_sums.items()}
        self._sums = {}
        state.loss_sums = {}
        state.loss_count = 0
        return means

    def continue_from(self, state: RunState) -> None:
        """Forget the results since a saved state, from which the run now continues."""
        self._unread = []
        # The state holds the sums of all processes: only one process may count them.
        self._sums = dict(state.loss_sums) if self.processes.first else {}


class MetricsLog:
    """`metrics.jsonl`: one JSON object a line. Fields about time end in `seconds` or `_per_s`.

    Args:
        path: The file.
        length: Bytes to keep, whole lines only; the rest is cut off.
    """

    def __init__(self, path: Path, length: int) -> None:
        self.path = path
        with failed_writes(self.path):
            self._file = path.open("ab")
            self._file.truncate(min(length, _whole_lines(path)))
            self._file.seek(0, os.SEEK_END)

    def write(self, entry: Mapping[str, Any]) -> None:
        """Append a line."""
        with failed_writes(self.path):
            self._file.write(json.dumps(entry).encode() + b"\n")
            self._file.flush()

    def sync(self) -> int:
        """Flush to the disk; returns the length in bytes."""
        with failed_writes(self.path):
            os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Close the file; this retries a write that a full disk has refused."""
        with failed_writes(self.path):
            self._file.close()


def _whole_lines(path: Path) -> int:
    """Return the bytes up to the end of the file's last whole line."""
    return path.read_bytes().rfind(b"\n") + 1


class TensorBoard:
    """Scalars as TensorBoard event files, written at once.

    tensorboardX's own `SummaryWriter` writes from a thread; on a full disk the thread dies and its
    caller waits forever.

    Args:
        folder: Directory of the event files.
        first_step: Step from which TensorBoard hides the events of earlier files.
    """

    def __init__(self, folder: Path, first_step: int) -> None:
        self.folder = folder
        name = f"events.out.tfevents.{int(time.time())}.{socket.gethostname()}.{os.getpid()}"
        with failed_writes(folder):
            folder.mkdir(parents=True, exist_ok=True)
            self._writer = RecordWriter(str(folder / name))
        self._write(Event(wall_time=time.time(), file_version="brain.Event:2"))
        start = SessionLog(status=SessionLog.START)
        self._write(Event(step=first_step, wall_time=time.time(), session_log=start))

    def scalars(self, values: Mapping[str, float | None], step: int) -> None:
        """Write the numbers of a step; None is left out. Raises RunError on a full disk."""
        for name, value in values.items():
            if value is not None:
                self._write(Event(step=step, wall_time=time.time(), summary=scalar(name, value)))
        with failed_writes(self.folder):
            self._writer.flush()

    def close(self) -> None:
        """Close the file; this retries a write that a full disk has refused."""
        with failed_writes(self.folder):
            self._writer.close()

    def _write(self, event: Any) -> None:
        with failed_writes(self.folder):
            self._writer.write(event.SerializeToString())


def check_finite(
    steps: Sequence[StepValues],
    run_dir: Path,
    split_of: Callable[[int], PackedSplit],
    processes: Processes,
) -> None:
    """Raise RunError for the first batch whose loss or gradient is not finite.

    All processes must call this. The error and `not_finite.json` name the trials whose loss is not
    finite; if all losses are finite, all trials of the batch.

    Args:
        steps: Results of this process's steps.
        run_dir: Run directory, for `not_finite.json`.
        split_of: Function from the number of a batch to the split of its trials.
        processes: The processes that share the batches.
    """
    if not steps:
        return
    own = next((culprit for culprit in map(_culprits, steps) if culprit is not None), None)
    culprits = [culprit for culprit in processes.gather(own) if culprit is not None]
    if not culprits:
        return
    step = min(culprit[0] for culprit in culprits)
    of_loss = any(culprit[1] for culprit in culprits if culprit[0] == step)
    indices = np.unique(
        np.concatenate([c[2] for c in culprits if c[0] == step and c[1] == of_loss])
    )
    split = split_of(step)
    problem = f"the {'loss' if of_loss else 'gradient'} of batch {step} is not finite"
    if processes.first:
        trials = [
            (split.session(i), int(split.block_N[i]), int(split.trial_N[i]))
            for i in indices.tolist()
        ]
        write_culprits(run_dir, step, trials, problem)
    fix = (
        "see not_finite.json there; leave these trials out with dataset.bad_trials_dict, or lower"
        " lr_max"
    )
    raise RunError(f"{problem}, in trials {name_trials(split, indices)}", where=run_dir, fix=fix)


def _culprits(values: StepValues) -> tuple[int, bool, np.ndarray] | None:
    """Return the batch, whether its loss is at fault, and the trials; None if all is finite."""
    finite_B = np.isfinite(values.losses["loss"])
    if not finite_B.all():
        return values.step, True, values.indices[~finite_B]
    return None if math.isfinite(values.norm) else (values.step, False, values.indices)
