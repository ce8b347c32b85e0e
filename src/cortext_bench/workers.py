"""Worker processes of benchmarks: requests and answers, one JSON object a line.

A process of its own keeps memory, threads and crashes apart. The measured code may print to stdout
and stderr; answers therefore go to a copy of stdout that only `own_stdout` knows.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TextIO

from cortext.errors import CortextError

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class Missing(CortextError):
    """A side that cannot be measured here; the benchmark continues without it and says why."""


class WorkerProcess:
    """A fresh process that runs a module of cortext_bench and answers requests.

    Raises Missing where it says so.

    Attributes:
        loaded: Content of its first answer.
    """

    def __init__(
        self, name: str, module: str, arguments: Sequence[str], log: Path, env: Mapping[str, str]
    ) -> None:
        self.name = name
        self._log = log.open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"cortext_bench.{module}", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=os.environ | env,
            text=True,
        )
        try:
            self.loaded = self._answer()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the process."""
        if self._process.stdin:
            self._process.stdin.close()
        self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()
        self._log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def ask(self, do: str, **request: Any) -> dict[str, Any]:
        """Call the worker's method `do` and return its answer."""
        assert self._process.stdin
        self._process.stdin.write(json.dumps({"do": do, **request}) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            self.close()
            last = Path(self._log.name).read_text(errors="replace").strip().rpartition("\n")[2]
            raise CortextError(f"{self.name} ended with status {self._process.returncode}: {last}")
        answer: dict[str, Any] = json.loads(line)
        if "missing" in answer:
            self.close()
            raise Missing(answer["missing"])
        return answer


def serve(
    begin: Callable[[], tuple[Any, dict[str, Any]]], requests: TextIO, answers: TextIO
) -> None:
    """Answer requests until there are no more.

    Args:
        begin: Makes the object whose methods requests name, and the first answer.
        requests: One JSON object a line: the method in `do`, and its arguments.
        answers: Where answers go, one JSON object a line.
    """

    def answer(call: Callable[[], dict[str, Any]]) -> None:
        try:
            result = call()
        except Missing as error:
            result = {"missing": str(error)}
        print(json.dumps(result), file=answers, flush=True)

    served: list[Any] = []

    def first() -> dict[str, Any]:
        worker, result = begin()
        served.append(worker)
        return result

    answer(first)
    for line in requests if served else ():
        request = json.loads(line)
        answer(lambda: getattr(served[0], request.pop("do"))(**request))  # noqa: B023  (called at once)


def own_stdout() -> TextIO:
    """Return a copy of stdout for answers; from now on printed text is discarded."""
    mine = os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return mine
