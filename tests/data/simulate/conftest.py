"""Simulated recordings that several files' tests read, made once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cortext_data.simulate import simulate, write


@dataclass(frozen=True)
class Simulated:
    """A simulation with its truth, and what was seen while it was made."""

    root: Path
    overrides: tuple[str, ...]
    progress: list[tuple[int, int]]
    pools: list[Any]


def _made(out: Path, *overrides: str) -> Simulated:
    """Simulate the smallest preset; note progress, and every pool of processes that is opened."""
    progress: list[tuple[int, int]] = []
    pools: list[Any] = []
    kind = write.ProcessPoolExecutor

    def pool(*given: Any, **named: Any) -> Any:
        pools.append(given)
        return kind(*given, **named)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(write, "ProcessPoolExecutor", pool)
        simulate(
            out,
            "tiny",
            truth=True,
            progress=lambda *step: progress.append(step),
            workers=None,
            overrides=overrides,
        )
    return Simulated(out, overrides, progress, pools)


@pytest.fixture(scope="session")
def simulated(tmp_path_factory: pytest.TempPathFactory) -> Simulated:
    """The smallest preset, as it is."""
    return _made(tmp_path_factory.mktemp("simulated") / "tiny")


@pytest.fixture(scope="session")
def structured(tmp_path_factory: pytest.TempPathFactory) -> Simulated:
    """The smallest preset with structured noise."""
    out = tmp_path_factory.mktemp("structured") / "tiny"
    return _made(out, "structured_noise=1", "artefacts_per_min=30")
