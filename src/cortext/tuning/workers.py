"""Where trials run: in this process, in processes of their own, or as tasks of a Ray cluster.

All three have the same four methods, which `Workers` describes. Nothing in them is cut short by a
Ctrl-C: who calls them notes it and says `interrupt`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from cortext.cluster import Cluster
from cortext.errors import RunError, first_line
from cortext.processes import end_with_parent, interruptible, interrupts, interrupts_held
from cortext.tuning.trial import Outcome, Work, run_trial

PATIENCE_S = 0.2


class Workers(Protocol):
    """Something that runs trials."""

    def start(self, job: Work) -> None:
        """Begin a trial."""

    def wait(self) -> tuple[int, Outcome] | None:
        """Number and outcome of a trial that has ended; None if none has within `PATIENCE_S`."""

    def interrupt(self) -> None:
        """Ask every trial to save what it has and stop; `wait` gives their outcomes."""

    def close(self) -> None:
        """End what is still running."""


class Here:
    """This process, one trial at a time; during training a Ctrl-C goes to the training."""

    def __init__(self) -> None:
        self._stopped = False

    def start(self, job: Work) -> None:
        """Keep the trial for `wait`."""
        self._job = job

    def wait(self) -> tuple[int, Outcome] | None:
        """Run the trial."""
        if self._stopped:
            return self._job.number, Outcome("interrupted")
        with interruptible():
            return self._job.number, run_trial(self._job)

    def interrupt(self) -> None:
        """Do not begin the trial."""
        self._stopped = True

    def close(self) -> None:
        """Nothing is left running."""


class Processes:
    """Processes of their own, which end when this one does, however it ends.

    keep: whether a process whose trial has ended takes the next one, with all that it has in memory
    """

    def __init__(self, keep: bool = False) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._keep = keep
        self._idle: list[tuple[Connection, Any]] = []
        self._running: dict[Connection, tuple[int, Any]] = {}

    def start(self, job: Work) -> None:
        """Hand the trial to a process that has none, or to a new one."""
        while True:
            connection, process = self._idle.pop() if self._idle else self._new()
            try:
                connection.send(job)
            except ConnectionError:  # it was killed while it had nothing to do
                connection.close()
                process.join()
            else:
                self._running[connection] = (job.number, process)
                return

    def _new(self) -> tuple[Connection, Any]:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_work, args=(theirs,))
        with interrupts_held():
            process.start()
        theirs.close()
        return ours, process

    def wait(self) -> tuple[int, Outcome] | None:
        """The outcome of the next trial that ends; a process that was killed has failed."""
        ended = wait(list(self._running), PATIENCE_S)
        if not ended:
            return None
        connection = ended[0]
        assert isinstance(connection, Connection)
        number, process = self._running.pop(connection)
        try:
            outcome = connection.recv()
        except (EOFError, ConnectionError):
            process.join()
            code = process.exitcode or 0
            how = (
                f"was killed by signal {-code} (out of memory?)"
                if code < 0
                else f"ended with status {code}"
            )
            return number, Outcome("failed", reason=f"its process {how}")
        if self._keep and outcome.state != "interrupted":
            self._idle.append((connection, process))
        else:
            connection.close()
            process.join()
        return number, outcome

    def interrupt(self) -> None:
        """Send every process the signal of a Ctrl-C."""
        for _, process in self._running.values():
            os.kill(process.pid, signal.SIGINT)

    def close(self) -> None:
        """Kill what is still running: the last state of each trial stays."""
        for process in [process for _, process in (*self._idle, *self._running.values())]:
            process.kill()
            process.join()


def _work(connection: Connection) -> None:
    """What a process does.

    It leaves the terminal's group, so that a Ctrl-C comes from its parent, and only once.

    Between trials it is noted, and the next trial is not begun. To block the signal would not do: a
    thread that a trial has left behind may take it.
    """
    os.setsid()
    end_with_parent()
    noted = threading.Event()
    signal.signal(signal.SIGINT, lambda *_: noted.set())
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    while True:
        try:
            job = connection.recv()
        except (EOFError, ConnectionError):  # there are no more
            return
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            try:
                outcome = Outcome("interrupted") if noted.is_set() else run_trial(job)
            finally:
                signal.signal(signal.SIGINT, lambda *_: noted.set())
        except KeyboardInterrupt:  # before the work or after it
            outcome = Outcome("interrupted")
        connection.send(outcome)


class RayTasks:
    """Tasks of a Ray cluster.

    Every machine must see the data and the search directory under the same path.

    cpus, gpus: what a task is given; several tasks share a GPU where each is given a part of one
    Errors are those of `Cluster`.

    Args:
        address: Of the cluster, or `local` to start one on this machine.
        at_once: Tasks for which a `local` one has room.
    """

    def __init__(self, address: str, cpus: int = 1, gpus: float = 0, at_once: int = 1) -> None:
        self._cluster = Cluster(address, cpus * at_once, gpus)
        self._ray, self._stopped = self._cluster.ray, False
        self._task = self._ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0)(run_trial)
        self._running: dict[Any, int] = {}

    def start(self, job: Work) -> None:
        """Hand the trial to the cluster, which starts it when there is room."""
        self._running[self._task.remote(job)] = job.number

    def wait(self) -> tuple[int, Outcome] | None:
        """The outcome of the next trial that ends.

        One whose process or machine was lost has failed.
        """
        ended, _ = self._ray.wait(list(self._running), num_returns=1, timeout=PATIENCE_S)
        if not ended:
            return None
        task = ended[0]
        number = self._running.pop(task)
        try:
            return number, self._ray.get(task)
        except self._ray.exceptions.LocalRayletDiedError as error:  # it would fail all others, too
            fix = "start it again; the same command goes on with what is left"
            raise RunError(f"the Ray cluster was lost: {first_line(error)}", fix=fix) from None
        except self._ray.exceptions.RayError as error:
            return number, (
                Outcome("interrupted")
                if self._stopped
                else Outcome("failed", reason=first_line(error))
            )

    def interrupt(self) -> None:
        """Cancel every task, which for a training is a Ctrl-C."""
        self._stopped = True
        for task in self._running:
            self._ray.cancel(task)

    def close(self) -> None:
        """Leave the cluster, which ends this program's tasks."""
        self._cluster.leave()


def work_through(
    begin: Callable[[int], Work | None],
    record: Callable[[int, Outcome], None],
    workers: Workers,
    at_once: int,
) -> bool:
    """Run what `begin` gives, `at_once` trials at a time; returns whether a Ctrl-C has stopped it.

    Args:
        begin: The next trial, to run in one of the `at_once` places; None where there is none now.
        record: Told the number and the outcome of each trial that has ended.
    """
    running: dict[int, int] = {}  # numbers of the trials by place
    stopped = False
    with interrupts() as interrupted:
        while True:
            while not (stopped or interrupted.is_set()) and len(running) < at_once:
                place = min(set(range(at_once)) - set(running))
                if (job := begin(place)) is None:
                    break
                workers.start(job)
                running[place] = job.number
            if interrupted.is_set() and not stopped:
                stopped = True
                workers.interrupt()
            if not running:
                return stopped
            if (ended := workers.wait()) is not None:
                number, outcome = ended
                stopped |= outcome.state == "interrupted"
                del running[
                    next(
                        place
                        for place, running_number in running.items()
                        if running_number == number
                    )
                ]
                record(number, outcome)
