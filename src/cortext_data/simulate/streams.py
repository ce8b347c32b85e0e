"""The random streams of a seed."""

from __future__ import annotations

from enum import IntEnum

import numpy as np


class Purpose(IntEnum):
    """The use of a stream of random numbers.

    The numbers are part of the format: never renumber, only add. They start high, above the streams
    that the sentences are drawn from.
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
    TARGETS = 1_000_010
    MONTHS = 1_000_011
    JUMPS = 1_000_012
    WITHIN_DAY = 1_000_013
    REFERENCE = 1_000_014
    NAMES = 1_000_015
    IDLE = 1_000_030


def stream(
    seed: int, purpose: Purpose, day: int = 0, block: int = 0, trial: int = 0
) -> np.random.Generator:
    """Return the generator of (seed, purpose, day, block, trial); streams never overlap.

    A stream is named by its use and not by when it is drawn, so that any number of workers, in any
    order, gives the same data (Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3").

    Args:
        seed: Seed of the simulation. With `purpose` it is the key of a Philox 4x64 cipher.
        purpose: Use of the numbers.
        day: With block and trial, the upper words of the cipher's counter; the lowest word counts
            the draws. 0 where the numbers do not belong to a day.
        block: Number of the block; 0 for none.
        trial: Number of the trial; 0 for none.
    """
    key = np.array([seed, purpose], dtype=np.uint64)
    counter = np.array([0, trial, block, day], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=key, counter=counter))
