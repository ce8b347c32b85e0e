"""A thread that follows a chain of models: it loads the one that speaks, and hands it over warm.

`cortext recalibrate` writes the chain, in a process of its own. What decodes only has to exchange
one model for another between two utterances.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from cortext.decoding.confidence import Calibrator
from cortext_live.core.log import event, internal_error
from cortext_live.recalibration.chain import FILE, chain_state, read_chain, verify_model
from cortext_live.recalibration.chain_entries import ChainContents
from cortext_live.steps.stepper import Stepper, require_alike

LOOK_S = 1.0
"""Seconds between two looks at a chain."""
RETRY_S = 10.0, 300.0
"""Shortest and longest pause after a failure: it doubles until the chain changes.

A model that does not fit would otherwise be loaded again and again beside the one that speaks.
"""
WARM_UP_STEPS = 8
"""Steps that a model takes before it is handed over: its first takes many times longer."""

OpenModel = Callable[[Path], tuple[Stepper, Calibrator | None]]
"""Loads the model of a run directory, and what calibrates its confidences."""


@dataclass(frozen=True, eq=False)
class ChainModel:
    """A model that can speak.

    Attributes:
        name: Its number in the chain, and the beginning of its digest.
        stepper: The model, loaded and warm.
        calibrator: Calibrates its confidences; None: they are the search's posteriors.
    """

    name: str
    stepper: Stepper
    calibrator: Calibrator | None


def speaking_run(chain: Path, run: Path) -> tuple[Path, str | None]:
    """Return the run directory of the model that speaks now, and its name.

    Args:
        chain: Directory of the chain.
        run: Speaks, without a name, until there is a chain.

    Raises:
        RunError: The chain or the model is damaged.
    """
    if not (chain / FILE).exists():
        event("chain_awaited", chain=chain)
        return run, None
    contents = read_chain(chain)
    entry = contents.model(contents.speaking(datetime.now(UTC)))
    return verify_model(chain, entry), entry.model_name


class ChainFollower:
    """Follows a chain; a chain or a model that is damaged is logged, and the model before stays.

    Args:
        chain: Directory of the chain; it may not exist yet.
        open_model: Loads the model of a run directory.
        like: The model that speaks, which others must resemble.
        name: Its name; None for one that is no part of the chain.
        offer: Gets each model that shall speak from then on, in the follower's thread.
    """

    def __init__(
        self,
        chain: Path,
        open_model: OpenModel,
        like: Stepper,
        name: str | None,
        offer: Callable[[ChainModel], object],
    ) -> None:
        self._chain = chain
        self._open_model = open_model
        self._like = like
        self._offered = name
        self._offer = offer
        self._seen: tuple[int, int, int] | None = None
        self._contents = ChainContents()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chain-follower", daemon=True)
        self._thread.start()

    def close(self, timeout_s: float = 5.0) -> None:
        """End the thread."""
        self._stop.set()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        problem, tried, pause_s, again_s = "", None, RETRY_S[0], 0.0
        while not self._stop.wait(LOOK_S):
            state = chain_state(self._chain)
            if problem and state == tried and time.monotonic() < again_s:
                continue
            if state != tried:
                tried, pause_s = state, RETRY_S[0]
            try:
                self._look()
                problem = ""
            # A damaged file can raise anything, and nobody waits for this thread.
            except Exception as error:
                before, problem = problem, internal_error(error)
                if problem != before:
                    event("chain_not_followed", "warning", chain=self._chain, error=problem)
                again_s, pause_s = time.monotonic() + pause_s, min(2 * pause_s, RETRY_S[1])

    def _look(self) -> None:
        """Hand over the model that speaks now, if it is another."""
        path = self._chain / FILE
        if self._seen is None and not path.exists():
            return
        status = path.stat()
        seen = (status.st_ino, status.st_size, status.st_mtime_ns)
        if seen != self._seen:
            self._contents = read_chain(self._chain)
            self._seen = seen
        # A model that speaks provisionally ends without a new entry.
        entry = self._contents.model(self._contents.speaking(datetime.now(UTC)))
        if entry.model_name == self._offered:
            return
        stepper, calibrator = self._open_model(verify_model(self._chain, entry))
        require_alike(stepper, self._like)
        _warm_up(stepper)
        self._offer(ChainModel(entry.model_name, stepper, calibrator))
        self._offered = entry.model_name


def _warm_up(stepper: Stepper) -> None:
    bins_SC = np.zeros((stepper.patch_size, stepper.n_features), dtype=np.float32)
    for _ in range(WARM_UP_STEPS):
        stepper.step(bins_SC)
    stepper.start()
