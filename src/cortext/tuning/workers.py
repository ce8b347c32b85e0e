"""Where trials run: in this process, in processes of their own, or as tasks of a Ray cluster.

All three have the same four methods, which `Workers` describes. Nothing in them is cut short by a Ctrl-C: who calls
them notes it and says `interrupt`.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from typing import Any, Protocol

from cortext.errors import RunError
from cortext.extras import need
from cortext.tuning.trial import Job, Outcome, run_trial

PATIENCE_S = 0.2


class Workers(Protocol):
    """Something that runs trials."""

    def start(self, job: Job) -> None:
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

    def start(self, job: Job) -> None:
        """Keep the trial for `wait`."""
        self._job = job

    def wait(self) -> tuple[int, Outcome] | None:
        """Run the trial."""
        if self._stopped:
            return self._job.number, Outcome("interrupted")
        with _interrupts_obeyed():
            return self._job.number, run_trial(self._job)

    def interrupt(self) -> None:
        """Do not begin the trial."""
        self._stopped = True

    def close(self) -> None:
        """Nothing is left running."""


class Processes:
    """Processes of their own, which end when this one does, however it ends."""

    def __init__(self) -> None:
        self._context = multiprocessing.get_context("spawn")
        self._running: dict[Connection, tuple[int, Any]] = {}

    def start(self, job: Job) -> None:
        """Start a process for the trial."""
        receiver, sender = self._context.Pipe(duplex=False)
        process = self._context.Process(target=_work, args=(sender, job))
        with _interrupts_held():
            process.start()
        sender.close()
        self._running[receiver] = (job.number, process)

    def wait(self) -> tuple[int, Outcome] | None:
        """The outcome of the next trial that ends; a process that was killed has failed."""
        ended = wait(list(self._running), PATIENCE_S)
        if not ended:
            return None
        receiver = ended[0]
        assert isinstance(receiver, Connection)
        number, process = self._running[receiver]
        try:
            outcome = receiver.recv()
        except EOFError:
            process.join()
            code = process.exitcode or 0
            how = f"was killed by signal {-code} (out of memory?)" if code < 0 else f"ended with status {code}"
            outcome = Outcome("failed", reason=f"its process {how}")
        del self._running[receiver]
        process.join()
        return number, outcome

    def interrupt(self) -> None:
        """Send every process the signal of a Ctrl-C."""
        for _, process in self._running.values():
            os.kill(process.pid, signal.SIGINT)

    def close(self) -> None:
        """Kill what is still running: the last state of each trial stays."""
        for _, process in self._running.values():
            process.kill()
            process.join()


@contextmanager
def _interrupts_obeyed() -> Iterator[None]:
    """A context in which a Ctrl-C is a KeyboardInterrupt, whatever it is outside."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """A context in which Ctrl-C waits. A process started there has it waiting until it says otherwise."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _work(sender: Connection, job: Job) -> None:
    """What a process does. It leaves the terminal's group, so that a Ctrl-C comes from its parent, and only once."""
    os.setsid()
    threading.Thread(target=_end_with_parent, daemon=True).start()
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
        outcome = run_trial(job)
    except KeyboardInterrupt:  # before training or after it
        outcome = Outcome("interrupted")
    sender.send(outcome)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _check_reachable(address: str, patience_s: float = 5) -> None:
    """Raise RunError where nothing listens at `host:port`; Ray itself would go on trying for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or not port.isdigit():
        return
    try:
        socket.create_connection((host, int(port)), patience_s).close()
    except (OSError, OverflowError) as error:
        raise RunError(f"Ray at {address!r} cannot be reached: {error}", fix="check the address") from None


class RayTasks:
    """Tasks of a Ray cluster. Every machine must see the data and the search directory under the same path.

    address: of the cluster, or `local` to start one on this machine
    cpus, gpus: what a task is given
    Raises MissingLibrary where Ray is not installed and RunError where the cluster cannot be reached.
    """

    def __init__(self, address: str, cpus: int = 1, gpus: int = 0) -> None:
        ray = need("ray", "ray")
        _check_reachable(address)
        local = {"num_cpus": os.cpu_count(), "include_dashboard": False} if address == "local" else {}
        try:
            ray.init(address, log_to_driver=False, logging_level="ERROR", **local)
        except (OSError, RuntimeError, ValueError) as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            raise RunError(f"Ray at {address!r} cannot be reached: {reason}", fix="check the address") from None
        self._ray, self._stopped = ray, False
        self._task = ray.remote(num_cpus=cpus, num_gpus=gpus, max_retries=0)(run_trial)
        self._running: dict[Any, int] = {}

    def start(self, job: Job) -> None:
        """Hand the trial to the cluster, which starts it when there is room."""
        self._running[self._task.remote(job)] = job.number

    def wait(self) -> tuple[int, Outcome] | None:
        """The outcome of the next trial that ends; one whose process or machine was lost has failed."""
        ended, _ = self._ray.wait(list(self._running), num_returns=1, timeout=PATIENCE_S)
        if not ended:
            return None
        task = ended[0]
        number = self._running.pop(task)
        try:
            return number, self._ray.get(task)
        except self._ray.exceptions.RayError as error:
            reason = next(iter(str(error).splitlines()), type(error).__name__)
            return number, Outcome("interrupted") if self._stopped else Outcome("failed", reason=reason)

    def interrupt(self) -> None:
        """Cancel every task, which for a training is a Ctrl-C."""
        self._stopped = True
        for task in self._running:
            self._ray.cancel(task)

    def close(self) -> None:
        """Leave the cluster, which ends this program's tasks."""
        self._ray.shutdown()
