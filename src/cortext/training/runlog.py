"""The log of a run: sums of losses, gradient norms, metrics.jsonl and TensorBoard."""

from __future__ import annotations

import json
import math
import os
import socket
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.record_writer import RecordWriter
from tensorboardX.summary import scalar

from cortext.data.packed import PackedSplit
from cortext.errors import RunError
from cortext.files import failed_writes
from cortext.training.backend import StepValues
from cortext.training.checkpoint import write_culprits
from cortext.training.distributed import Processes
from cortext.training.loss import name_trials


class MetricsLog:
    """`metrics.jsonl`: one JSON object a line. Fields about time end in `seconds` or `_per_s`.

    length: bytes of it that are kept; fewer where somebody has cut it off
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
        """Close the file, which tries once more to write what a full disk has refused."""
        with failed_writes(self.path):
            self._file.close()


def _whole_lines(path: Path) -> int:
    """Bytes up to the end of the file's last whole line."""
    return path.read_bytes().rfind(b"\n") + 1


class TensorBoard:
    """Scalars as TensorBoard event files, written at once.

    tensorboardX's own `SummaryWriter` writes from a thread, which on a full disk dies and leaves
    its caller waiting. `first_step`: events of an earlier sitting from this step on are hidden.
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
        """Write numbers; None is left out. Raises RunError on a full disk, as `close` does."""
        for name, value in values.items():
            if value is not None:
                self._write(Event(step=step, wall_time=time.time(), summary=scalar(name, value)))
        with failed_writes(self.folder):
            self._writer.flush()

    def close(self) -> None:
        """Close the file, which tries once more to write what a full disk has refused."""
        with failed_writes(self.folder):
            self._writer.close()

    def _write(self, event: Any) -> None:
        with failed_writes(self.folder):
            self._writer.write(event.SerializeToString())


def check_finite(
    found: Sequence[StepValues], run_dir: Path, split: PackedSplit, processes: Processes
) -> None:
    """Raise RunError for the first batch whose loss or gradient was not finite.

    All processes must ask.

    Its trials are in `not_finite.json` too: those whose loss was not finite, or all where only the
    gradient was.
    """
    if not found:
        return
    own = next((culprit for culprit in map(_culprits, found) if culprit is not None), None)
    culprits = [culprit for culprit in processes.gather(own) if culprit is not None]
    if not culprits:
        return
    step = min(culprit[0] for culprit in culprits)
    of_loss = any(culprit[1] for culprit in culprits if culprit[0] == step)
    indices = np.unique(
        np.concatenate([c[2] for c in culprits if c[0] == step and c[1] == of_loss])
    )
    what = f"the {'loss' if of_loss else 'gradient'} of batch {step} is not finite"
    if processes.first:
        trials = [
            (split.session(i), int(split.block_N[i]), int(split.trial_N[i]))
            for i in indices.tolist()
        ]
        write_culprits(run_dir, step, trials, what)
    fix = (
        "see not_finite.json there; leave these trials out with dataset.bad_trials_dict, or lower"
        " lr_max"
    )
    raise RunError(f"{what}, in trials {name_trials(split, indices)}", where=run_dir, fix=fix)


def _culprits(found: StepValues) -> tuple[int, bool, np.ndarray] | None:
    """Batch, whether a loss was at fault, and the trials; None where all is finite."""
    finite_B = np.isfinite(found.losses["loss"])
    if not finite_B.all():
        return found.step, True, found.indices[~finite_B]
    return None if math.isfinite(found.norm) else (found.step, False, found.indices)
