"""What a person watching a run sees.

A progress bar on a terminal, and TensorBoard's event files.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.record_writer import RecordWriter
from tensorboardX.summary import scalar

from cortext.errors import plain
from cortext.files import failed_writes

Advance = Callable[[int, float, float | None, float], None]
"""Called with batches done, loss, PER (None before the first validation) and trials per second."""


@contextmanager
def training_bar(total: int, done: int, shown: bool) -> Iterator[Advance]:
    """A bar on stderr with loss, PER, trials per second and time left.

    Nothing where stderr is not a terminal.
    """
    console = Console(stderr=True)
    status = TextColumn(
        "loss {task.fields[loss]}  PER {task.fields[per]}  {task.fields[rate]:.0f} trials/s"
    )
    columns = (
        TextColumn("training"),
        BarColumn(),
        MofNCompleteColumn(),
        status,
        TimeRemainingColumn(),
    )
    with Progress(
        *columns, console=console, transient=True, disable=not (shown and console.is_terminal)
    ) as bar:
        number = bar.add_task("training", total=total, completed=done, loss="-", per="-", rate=0.0)

        def advance(done: int, loss: float, per: float | None, rate: float) -> None:
            text = "-" if per is None else f"{100 * per:.1f} %"
            bar.update(number, completed=done, loss=f"{loss:.2f}", per=text, rate=rate)

        yield advance


@contextmanager
def reading_bar(shown: bool, task: str = "reading") -> Iterator[Callable[[int, int], None]]:
    """A bar for what comes before training, such as packing session files and checking packed
    ones.
    """
    console = Console(stderr=True)
    columns = (TextColumn(task), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not (shown and console.is_terminal)
    ) as bar:
        number = bar.add_task(task, total=None, visible=False)
        yield lambda done, total: bar.update(number, completed=done, total=total, visible=True)


def say(line: str, shown: bool) -> None:
    """A line for the user on stderr, where progress is shown.

    It may name files and what is in them.
    """
    if shown:
        Console(stderr=True, highlight=False).print(
            plain(line), markup=False, emoji=False, soft_wrap=True
        )


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
