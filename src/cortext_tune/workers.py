"""Run trials: in this process, in processes of their own, or as tasks of a Ray cluster.

All three implement `Workers`. A Ctrl-C does not end them at once: the caller notes it and
calls `interrupt`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

from cortext.config import check_bounds
from cortext.errors import ConfigError, CortextError, Interrupted, RunError, first_line
from cortext.processes import end_with_parent, interruptible, interrupts, interrupts_held
from cortext.settings import AT_LEAST_0, AT_LEAST_1
from cortext_tune.cluster import Cluster

POLL_S = 0.2


@dataclass(frozen=True)
class TrialOutcome:
    """The end of a trial, as it travels between processes."""

    state: Literal["finished", "failed", "interrupted"]
    metrics: dict[str, Any] = field(default_factory=dict)
    reason: str | None = None


class Work(Protocol):
    """A trial of any kind, as it travels to the process that runs it."""

    @property
    def number(self) -> int:
        """Number of the trial, which the caller gets with the outcome."""

    @property
    def error_file(self) -> Path:
        """File for the traceback of an unexpected error."""

    def work(self) -> dict[str, Any]:
        """Run the trial and return its metrics."""


def run_trial(job: Work) -> TrialOutcome:
    """Run a trial and turn every error into an outcome."""
    try:
        return TrialOutcome("finished", job.work())
    except (Interrupted, KeyboardInterrupt):
        return TrialOutcome("interrupted")
    except CortextError as error:
        return TrialOutcome("failed", reason=str(error))
    except Exception as error:  # no memory, a bug in a plug-in: other trials continue
        what = ": ".join(dict.fromkeys((type(error).__name__, first_line(error))))
        try:
            job.error_file.parent.mkdir(parents=True, exist_ok=True)
            job.error_file.write_text(traceback.format_exc())
        except OSError:  # the disk may be full
            return TrialOutcome("failed", reason=what)
        return TrialOutcome("failed", reason=f"{what} (see {job.error_file})")


class Workers(Protocol):
    """Something that runs trials."""

    def start(self, job: Work) -> None:
        """Begin a trial."""

    def wait(self) -> tuple[int, TrialOutcome] | None:
        """Return number and outcome of a trial that has ended; None if none has in `POLL_S`."""

    def interrupt(self) -> None:
        """Ask every trial to save its state and stop; `wait` returns their outcomes."""

    def close(self) -> None:
        """End the trials that still run."""


class InProcess:
    """Workers in this process: one trial at a time, which gets a Ctrl-C itself."""

    def __init__(self) -> None:
        self._stopped = False

    def start(self, job: Work) -> None:
        """Keep the trial for `wait`."""
        self._job = job

    def wait(self) -> tuple[int, TrialOutcome]:
        """Run the trial."""
        if self._stopped:
            return self._job.number, TrialOutcome("interrupted")
        with interruptible():
            return self._job.number, run_trial(self._job)

    def interrupt(self) -> None:
        """Skip a trial that has not begun."""
        self._stopped = True

    def close(self) -> None:
        """End nothing: no trial is left running."""


class WorkerProcesses:
    """Worker processes, which end with this process, in whatever way it ends.

    Args:
        keep: Keep processes for the next trials, which find in memory the data that earlier ones
            have read.
    """

    def __init__(self, keep: bool = False) -> None:
        # Not forked: a fork of a process whose OpenMP threads have run hangs in its first parallel
        # operation.
        self._context = multiprocessing.get_context("spawn")
        self._keep = keep
        self._idle: list[tuple[Connection, Any]] = []
        self._running: dict[Connection, tuple[int, Any]] = {}

    def start(self, job: Work) -> None:
        """Start the trial in an idle process or in a new one."""
        while True:
            connection, process = self._idle.pop() if self._idle else self._new()
            try:
                connection.send(job)
            except ConnectionError:  # it was killed while it was idle
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

    def wait(self) -> tuple[int, TrialOutcome] | None:
        """Return the next outcome; the trial of a killed process has failed."""
        ended = wait(list(self._running), POLL_S)
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
            return number, TrialOutcome("failed", reason=f"its process {how}")
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
        """Kill the processes; the last saved state of each trial stays."""
        for process in [process for _, process in (*self._idle, *self._running.values())]:
            process.kill()
            process.join()


def _work(connection: Connection) -> None:
    """Run the trials that the parent sends."""
    # A Ctrl-C goes to every process of the terminal's group. Outside of it, this process gets the
    # signal from its parent alone, and once.
    os.setsid()
    end_with_parent()
    # Between trials the signal is noted, and the next trial is not begun. Blocking it does not
    # suffice: a thread that a trial has left behind may take it.
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
                outcome = TrialOutcome("interrupted") if noted.is_set() else run_trial(job)
            finally:
                signal.signal(signal.SIGINT, lambda *_: noted.set())
        except KeyboardInterrupt:  # before the work or after it
            outcome = TrialOutcome("interrupted")
        connection.send(outcome)


class RayTasks:
    """Workers that are tasks of a Ray cluster.

    Every machine must see the data and the search directory under the same path. Errors are those
    of `Cluster`.

    Args:
        address: Address of the cluster, or `local` to start one on this machine.
        cpus: CPUs of a task.
        gpus: GPUs of a task; a fraction lets several tasks share one.
        at_once: Number of tasks that a `local` cluster runs at the same time.
    """

    def __init__(self, address: str, cpus: int = 1, gpus: float = 0, at_once: int = 1) -> None:
        self._cluster = Cluster(address, cpus * at_once, gpus)
        self._ray = self._cluster.ray
        self._stopped = False
        self._task = self._ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0)(run_trial)
        self._running: dict[Any, int] = {}

    def start(self, job: Work) -> None:
        """Submit the trial to the cluster, which starts it once it has free resources."""
        self._running[self._task.remote(job)] = job.number

    def wait(self) -> tuple[int, TrialOutcome] | None:
        """Return the next outcome; a trial whose process or machine was lost has failed."""
        ended, _ = self._ray.wait(list(self._running), num_returns=1, timeout=POLL_S)
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
                TrialOutcome("interrupted")
                if self._stopped
                else TrialOutcome("failed", reason=first_line(error))
            )

    def interrupt(self) -> None:
        """Cancel every task; Ray raises KeyboardInterrupt in it."""
        self._stopped = True
        for task in self._running:
            self._ray.cancel(task)

    def close(self) -> None:
        """Leave the cluster, which ends this program's tasks."""
        self._cluster.leave()


@dataclass(frozen=True)
class WorkerSettings:
    """Settings of the processes or tasks that run the trials of a search for decoder options.

    Attributes:
        jobs: Trials at the same time: in processes of their own from 2 on, or on Ray.
        ray: Address of a Ray cluster, or `local`.
        gpus_per_worker: GPUs of a task on Ray; processes share `--llm-device`.
    """

    jobs: Annotated[int, AT_LEAST_1] = 1
    ray: str | None = None
    gpus_per_worker: Annotated[float, AT_LEAST_0] = 0.0

    def open(self) -> Workers:
        """Return the workers. Raises ConfigError and the errors of `Cluster`."""
        check_bounds(self)
        if self.gpus_per_worker and self.ray is None:
            raise ConfigError(
                "GPUs are shared out to workers only by Ray", fix="name a cluster, or `local`"
            )
        if self.ray is not None:
            return RayTasks(self.ray, 1, self.gpus_per_worker, self.jobs)
        return InProcess() if self.jobs == 1 else WorkerProcesses(keep=True)


def run_all(
    begin: Callable[[int], Work | None],
    record: Callable[[int, TrialOutcome], None],
    workers: Workers,
    at_once: int,
) -> bool:
    """Run the trials that `begin` returns; return True if a Ctrl-C has stopped them.

    Args:
        begin: Returns the next trial for one of the `at_once` slots; None if there is none.
        record: Called with the number and the outcome of each trial that has ended.
        workers: Runs the trials.
        at_once: Number of trials at the same time.
    """
    slots: dict[int, int] = {}  # slots of the running trials, by number
    stopped = False
    with interrupts() as interrupted:
        while True:
            while not (stopped or interrupted.is_set()) and len(slots) < at_once:
                slot = min(set(range(at_once)) - set(slots.values()))
                if (job := begin(slot)) is None:
                    break
                workers.start(job)
                slots[job.number] = slot
            if interrupted.is_set() and not stopped:
                stopped = True
                workers.interrupt()
            if not slots:
                return stopped
            if (ended := workers.wait()) is not None:
                number, outcome = ended
                stopped |= outcome.state == "interrupted"
                del slots[number]
                record(number, outcome)
