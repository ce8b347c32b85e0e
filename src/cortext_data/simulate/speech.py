"""From phonemes to an utterance: when each phoneme and each silence begins and ends.

Draws are integers looked up in tables, and durations are whole multiples of 5 ms. The result is
therefore the same on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from statistics import NormalDist

import numpy as np

from cortext.data.trial import BIN_MS
from cortext.text.inventory import Inventory
from cortext.text.lexicon import Pronunciation
from cortext_data.durations import RELATIVE_DURATION
from cortext_data.simulate.config import STEP_MS, SimulatorConfig
from cortext_data.simulate.streams import Purpose, stream

STEPS_PER_BIN = BIN_MS // STEP_MS
"""Steps of the grid in a bin of the published data."""

DRAWN_DURATIONS = (0.75, 1.25)
"""Shortest and longest mean duration of other tokens over `phoneme_ms`; the seed draws them."""
SILENT_SLOWING = 1.2
_N_QUANTILES = 4096


@dataclass(frozen=True)
class TimedPhonemes:
    """Consecutive segments that fill a trial: tokens, and a rest wherever there is no speech.

    Attributes:
        ids_S: int64 [S] tokens of the inventory. A rest is its silence; the blank where it has
            none.
        ends_S: int64 [S] ends in steps of 5 ms from the start of the trial; a segment begins where
            the last one ended.
        n_words: Words spoken.
        steps_per_bin: Steps in a bin.
    """

    ids_S: np.ndarray
    ends_S: np.ndarray
    n_words: int
    steps_per_bin: int = STEPS_PER_BIN

    @property
    def n_bins(self) -> int:
        """Length in bins."""
        return int(self.ends_S[-1]) // self.steps_per_bin

    @property
    def starts_S(self) -> np.ndarray:
        """Starts of the segments in steps of 5 ms: int64 [S]."""
        return np.concatenate([[0], self.ends_S[:-1]])

    @property
    def words_per_minute(self) -> float:
        """Words a minute from the onset of the first phoneme to the end of the last."""
        spoken_ms = (self.ends_S[-2] - self.ends_S[0]) * STEP_MS
        return 60_000 * self.n_words / float(spoken_ms)

    def ids_per_bin(self, lead_bins: int = 0) -> np.ndarray:
        """Return the token spoken in each bin, `lead_bins` later than the bin: int64 [T]."""
        steps = self.steps_per_bin
        middles = (np.arange(self.n_bins) + lead_bins) * steps + steps // 2
        segment = np.searchsorted(self.ends_S, middles, side="right")
        return self.ids_S[np.minimum(segment, len(self.ids_S) - 1)]


@cache
def gamma_quantiles(shape: float) -> np.ndarray:
    """Return quantiles [4096] of a gamma distribution of mean 1 at evenly spread probabilities.

    It uses the cube-root normal approximation of Wilson and Hilferty (1931), which is good to 0.1 %
    for the shapes used here.
    """
    normal = NormalDist()
    n = _N_QUANTILES
    variance = 1 / (9 * shape)
    cubed = [(1 - variance + normal.inv_cdf((i + 0.5) / n) * math.sqrt(variance)) for i in range(n)]
    quantiles = np.array([max(x, 0.0) ** 3 for x in cubed])
    quantiles.setflags(write=False)  # all callers share it
    return quantiles


def speaking_rate(config: SimulatorConfig, day: int, block: int) -> float:
    """Return the factor on every duration of a block.

    It has a triangular distribution within 1 +- `rate_spread`, and is larger for silent speech.

    Args:
        config: The simulation.
        day: Days since implantation; with the block it names the random stream.
        block: Number of the block.
    """
    draws = stream(config.seed, Purpose.RATE, day, block).integers(0, 1001, size=2)
    factor = 1 + config.rate_spread * (int(draws.sum()) - 1000) / 1000
    return factor * (SILENT_SLOWING if config.attempt == "silent" else 1.0)


def rest_symbol(inventory: Inventory) -> str:
    """Return the token of a rest: the silence, or the blank, which labels do not name."""
    return inventory.silence or inventory.blank_symbol


def with_pauses(words: Sequence[Pronunciation], inventory: Inventory) -> list[str]:
    """Return the tokens of pronounced words as they are spoken.

    They are those of the label. Attempted speech goes word by word: where labels have nothing
    between two words, the blank stands for the pause.
    """
    if inventory.separator is not None:
        return inventory.closed(words)
    pause = (inventory.blank_symbol,)
    return [
        symbol for number, word in enumerate(words) for symbol in (*pause * (number > 0), *word)
    ]


@lru_cache(maxsize=8)
def relative_durations(inventory: Inventory, seed: int) -> dict[str, float]:
    """Return the mean duration of each spoken token over `phoneme_ms`.

    Phonemes of English have theirs; the seed draws those of other tokens, the same ones in any
    order of the inventory.
    """
    own = sorted(s for s in inventory.spoken if not is_known(s, inventory))
    low, high = DRAWN_DURATIONS
    drawn = low + (high - low) * stream(seed, Purpose.TARGETS, trial=1).random(len(own))
    return RELATIVE_DURATION | dict(zip(own, drawn.tolist(), strict=True))


def is_known(symbol: str, inventory: Inventory) -> bool:
    """Return whether a token is a phoneme of English, with targets and a duration of its own."""
    return inventory.unit == "phoneme" and symbol in RELATIVE_DURATION


def utter(
    phonemes: Sequence[str], config: SimulatorConfig, day: int, block: int, trial: int
) -> TimedPhonemes:
    """Draw durations for the tokens of a sentence and its pauses.

    Each token and each pause is gamma distributed about its mean times the block's speaking rate. A
    rest comes first, and another ends the trial: the last silence where there is one. The boundary
    between words is a gesture that lasts as long as a pause.

    Args:
        phonemes: Tokens of the sentence, as `cortext.text.to_phonemes` or `with_pauses` returns
            them.
        config: The simulation.
        day: Days since implantation; with block and trial it names the random stream.
        block: Number of the block in the session.
        trial: Number of the trial in the block.
    """
    inventory = config.inventory
    rest = rest_symbol(inventory)
    segments = [rest, *phonemes, *([] if inventory.silence else [rest])]
    relative = relative_durations(inventory, config.seed)
    means = np.array([config.phoneme_ms * relative.get(name, 0.0) for name in segments])
    paused = np.array([name in (rest, inventory.boundary) for name in segments])
    means[paused] = config.word_pause_ms
    means[0] = config.lead_in_ms
    means[-1] = config.trail_ms
    draws = stream(config.seed, Purpose.DURATIONS, day, block, trial).integers(
        0, _N_QUANTILES, size=len(segments)
    )
    quantiles = gamma_quantiles(config.phoneme_shape)
    lengths = means * speaking_rate(config, day, block) * quantiles[draws]
    steps = np.maximum(np.rint(lengths / STEP_MS).astype(np.int64), 40 // STEP_MS)
    ends = np.cumsum(steps)
    # The last silence fills the trial up to whole bins.
    steps_per_bin = config.steps_per_bin
    ends[-1] = -(-ends[-1] // steps_per_bin) * steps_per_bin
    return TimedPhonemes(inventory.ids(segments), ends, int(paused.sum()) - 1, steps_per_bin)
