"""A program of the user's own that gets each final sentence."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Callable
from contextlib import suppress

from cortext.errors import ConfigError
from cortext_live.core.log import event, internal_error

MOST_WAITING = 8
"""Sentences that wait for the program before the oldest is dropped."""


class FinalCommand:
    """Runs a program for each final sentence, one after the other, in a thread of its own.

    The sentence is a line of UTF-8 on the program's standard input: arguments are seen by everybody
    on the machine, input is not. There is no shell, and what the program prints is not read.

    Args:
        command: Program and arguments, divided as a shell divides words.
        timeout_s: Seconds after which the program and all that it has started are killed.

    Raises:
        ConfigError: There is no such program, or it may not be run.
    """

    def __init__(self, command: str, timeout_s: float = 30.0) -> None:
        try:
            self._arguments = shlex.split(command)
        except ValueError as error:
            raise ConfigError(f"--on-final {command!r}: {error}", fix="close the quote") from None
        if not self._arguments or shutil.which(self._arguments[0]) is None:
            program = self._arguments[0] if self._arguments else ""
            raise ConfigError(
                f"--on-final: no program {program!r} that can be run",
                fix="give its path, and its arguments after it",
            )
        if not 0 < timeout_s < float("inf"):
            problem = f"--on-final-timeout is {timeout_s}"
            raise ConfigError(f"{problem}; a number of seconds above 0 is needed")
        self._timeout_s = timeout_s
        self._waiting = deque[tuple[str, Callable[[str], None]]]()
        self._news = threading.Condition()
        self._process: subprocess.Popen[bytes] | None = None
        self._closing = False
        self._thread = threading.Thread(target=self._work, name="on-final", daemon=True)
        self._thread.start()

    def put(self, text: str, failed: Callable[[str], None]) -> None:
        """Hand over a sentence; return at once.

        Args:
            text: The sentence.
            failed: Gets a line for a sentence that was dropped, or that the program failed on.
        """
        dropped = None
        with self._news:
            if len(self._waiting) == MOST_WAITING:
                dropped = self._waiting.popleft()
            self._waiting.append((text, failed))
            self._news.notify()
        if dropped is not None:
            self._fail("is too slow: a sentence was not handed over", dropped[1])

    def close(self, timeout_s: float = 5.0) -> None:
        """Drop the sentences that wait, kill the program, and end the thread."""
        with self._news:
            self._closing = True
            self._waiting.clear()
            if self._process is not None:
                _kill(self._process)
            self._news.notify()
        self._thread.join(timeout_s)

    def _work(self) -> None:
        while True:
            with self._news:
                self._news.wait_for(lambda: self._waiting or self._closing)
                if self._closing:
                    return
                text, failed = self._waiting.popleft()
            try:
                problem = self._run(text)
            except Exception as error:  # no one waits for this thread
                problem = internal_error(error)
            if problem and not self._closing:
                self._fail(problem, failed)

    def _run(self, text: str) -> str:
        """Run the program; return what went wrong, if anything."""
        line = " ".join(text.splitlines()).encode() + b"\n"
        with self._news:
            if self._closing:
                return ""
            self._process = process = subprocess.Popen(
                self._arguments,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        try:
            process.communicate(line, timeout=self._timeout_s)
        except subprocess.TimeoutExpired:
            _kill(process)
            process.communicate()
            return f"took longer than {self._timeout_s:g} s"
        finally:
            with self._news:
                self._process = None
        return f"ended with status {process.returncode}" if process.returncode else ""

    def _fail(self, problem: str, failed: Callable[[str], None]) -> None:
        event("final_command_failed", "warning", problem=problem)
        failed(f"--on-final: {self._arguments[0]} {problem}")


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a program and what it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
