"""Counter-based random streams: every draw of the simulator is a pure function of what it is for.

A stream is named by (seed, purpose, day, block, trial), not by when it is drawn, so that any number
of workers, in any order, gives the same data (Salmon et al. 2011, "Parallel random numbers: as easy
as 1, 2, 3").
"""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """What a stream of random numbers is for.

    Numbers are part of the format: never renumber, only add.

    They start high, above the streams that the sentences are drawn from.
    """

    BRAIN = 1_000_001
    DRIFT = 1_000_002
    RATE = 1_000_003
    DURATIONS = 1_000_004
    LATENTS = 1_000_005
    SPIKES = 1_000_006
    POWER = 1_000_007
    STRUCTURED = 1_000_008
    STEPS = 1_000_009


def stream(
    seed: int, purpose: Purpose, day: int = 0, block: int = 0, trial: int = 0
) -> np.random.Generator:
    """The generator of (seed, purpose, day, block, trial); streams never overlap.

    The seed and the purpose are the key of a Philox 4x64 cipher; day, block and trial are the upper
    words of its counter, whose lowest word counts the draws.
    """
    key = np.array([seed, purpose], dtype=np.uint64)
    counter = np.array([0, trial, block, day], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))
