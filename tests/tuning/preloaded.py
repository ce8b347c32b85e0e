"""Command lines in processes that begin at once: they are forked from this one, which has loaded what they need.

A script: each line of stdin is JSON, the arguments and two files for what is said; its answer is the exit status. The
processes of a search are forked as well. What is killed or interrupted is not for this: it is to be started as it is
by a user.
"""

import json
import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection

import cortext.tuning.run  # noqa: F401
from cortext.cli import run
from cortext.tuning import workers


class Forking:
    """What `Processes` asks of a context."""

    def __init__(self) -> None:
        self._ours: list[Connection] = []

    def Pipe(self) -> tuple[Connection, Connection]:
        ours, theirs = multiprocessing.Pipe()
        self._ours.append(ours)
        return ours, theirs

    def Process(self, target: Callable, args: tuple):
        return multiprocessing.get_context("fork").Process(target=self._alone, args=(target, args))

    def _alone(self, target: Callable, args: tuple) -> None:
        for ours in self._ours:  # a pipe has an end only when nobody else has it open
            ours.close()
        target(*args)


def answer(arguments: list[str], stdout: str, stderr: str) -> int:
    child = os.fork()
    if child == 0:
        for number, path in enumerate((os.devnull, stdout, stderr)):
            os.dup2(os.open(path, os.O_RDWR | os.O_CREAT), number)
        status = 1
        try:
            status = run(arguments)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


class Preloaded:
    """Stands for `multiprocessing` in `workers`."""

    @staticmethod
    def get_context(method: str) -> Forking:
        return Forking()


if __name__ == "__main__":
    workers.multiprocessing = Preloaded
    for line in sys.stdin:
        print(answer(*json.loads(line)), flush=True)
