"""The other end of `worker`: a search in a process of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from cortext.bench.searcher import Missing, Paths, searcher
from cortext.errors import CortextError

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")


class Process:
    """A search that has loaded its models in a fresh process; raises Missing where it cannot be used.

    loaded: what `Worker.load` tells: seconds, memory, version
    """

    def __init__(self, name: str, paths: Paths, posteriors: Path) -> None:
        self.name, self.kind = name, searcher(name)
        places = json.dumps({key: str(path) for key, path in asdict(paths).items()})
        command = [sys.executable, "-m", "cortext.bench.worker", name, places, str(posteriors)]
        self._log = posteriors.with_name(f"{name}.log").open("wb")
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env=os.environ | ONE_THREAD,
            text=True,
        )
        self.loaded = self._answer()

    def decode(self, settings: Mapping[str, Any], chosen: Sequence[int], texts: bool = True) -> dict[str, Any]:
        """See `Worker.decode`."""
        return self._ask(do="decode", settings=dict(settings), chosen=list(chosen), texts=texts)

    def step(self, settings: Mapping[str, Any], chosen: Sequence[int]) -> dict[str, Any]:
        """See `Worker.step`."""
        return self._ask(do="step", settings=dict(settings), chosen=list(chosen))

    def threads(self, settings: Mapping[str, Any], chosen: Sequence[int], counts: Sequence[int]) -> dict[str, Any]:
        """See `Worker.threads`."""
        return self._ask(do="threads", settings=dict(settings), chosen=list(chosen), counts=list(counts))

    def close(self) -> None:
        """End the process."""
        if self._process.stdin:
            self._process.stdin.close()
        self._process.wait()
        if self._process.stdout:
            self._process.stdout.close()
        self._log.close()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin
        self._process.stdin.write(json.dumps(request) + "\n")
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
