"""The other end of a worker: something to measure, in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Self

from cortext.bench.searcher import Missing, Paths, searcher
from cortext.errors import CortextError

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class Child:
    """A fresh process that runs a module of cortext.bench and answers requests.

    Raises Missing where it says so.

    loaded: what its first answer tells
    """

    def __init__(
        self, name: str, module: str, arguments: Sequence[str], log: Path, env: Mapping[str, str]
    ) -> None:
        self.name = name
        self._log = log.open("wb")
        self._process = subprocess.Popen(
            [sys.executable, "-m", f"cortext.bench.{module}", *arguments],
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
        """The worker's answer to a call of its method `do`."""
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


class Process(Child):
    """A search that has loaded its models. loaded: `Worker.facts`: seconds, memory, version."""

    def __init__(self, name: str, paths: Paths, posteriors: Path) -> None:
        self.kind = searcher(name)
        places = json.dumps({key: str(path) for key, path in asdict(paths).items()})
        log = posteriors.with_name(f"{name}.log")
        super().__init__(name, "worker", [name, places, str(posteriors)], log, ONE_THREAD)

    def decode(
        self, settings: Mapping[str, Any], chosen: Sequence[int], texts: bool = True
    ) -> dict[str, Any]:
        """See `Worker.decode`."""
        return self.ask("decode", settings=dict(settings), chosen=list(chosen), texts=texts)

    def step(self, settings: Mapping[str, Any], chosen: Sequence[int]) -> dict[str, Any]:
        """See `Worker.step`."""
        return self.ask("step", settings=dict(settings), chosen=list(chosen))

    def threads(
        self, settings: Mapping[str, Any], chosen: Sequence[int], counts: Sequence[int]
    ) -> dict[str, Any]:
        """See `Worker.threads`."""
        return self.ask(
            "threads", settings=dict(settings), chosen=list(chosen), counts=list(counts)
        )
