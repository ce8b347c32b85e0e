"""From phonemes to an utterance: when each phoneme and each silence begins and ends.

Draws are integers looked up in tables, and durations are whole multiples of 5 ms. The result is
therefore the same on every machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import NormalDist

import numpy as np

from cortext.data.simulate.config import Purpose, SimulatorConfig, stream
from cortext.data.trial import BIN_MS
from cortext.text.inventory import RELEASE

STEP_MS = 5
"""The grid on which utterances and articulators live; four steps make a bin."""
STEPS_PER_BIN = BIN_MS // STEP_MS

_RELATIVE_DURATIONS = {
    0.70: "HH DH",
    0.80: "B D G P T K",
    0.85: "IH AH UH N M L R W Y V",
    0.95: "EH F TH Z NG",
    1.05: "S SH ZH ER IY UW",
    1.15: "AA AO AE CH JH EY OW",
    1.30: "AY AW OY",
}
"""Mean duration of each phoneme over `phoneme_ms`.

The order is that of connected speech (Crystal & House 1988, J. Acoust. Soc. Am. 83: lax vowels are
shorter than tense ones, stops shorter than fricatives); the spread is rounded and narrowed, as
attempted speech is slow.
"""
RELATIVE_DURATION = {
    phoneme: value for value, names in _RELATIVE_DURATIONS.items() for phoneme in names.split()
}
SILENT_SLOWING = 1.2
_N_QUANTILES = 4096


@dataclass(frozen=True)
class TimedPhonemes:
    """Consecutive segments that fill a trial: phonemes, and SIL wherever nothing is said.

    Attributes:
        ids_S: int64 [S] tokens in the release's order (SIL for silence).
        ends_S: int64 [S] ends in steps of 5 ms from the start of the trial; a segment begins where
            the last one ended.
        n_words: Words said.
    """

    ids_S: np.ndarray
    ends_S: np.ndarray
    n_words: int

    @property
    def n_bins(self) -> int:
        """Length in bins of 20 ms."""
        return int(self.ends_S[-1]) // STEPS_PER_BIN

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
        """Return the token said in each bin, `lead_bins` later than the bin: int64 [T]."""
        middles = (np.arange(self.n_bins) + lead_bins) * STEPS_PER_BIN + STEPS_PER_BIN // 2
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


def utter(
    phonemes: Sequence[str], config: SimulatorConfig, day: int, block: int, trial: int
) -> TimedPhonemes:
    """Draw durations for the phonemes of a sentence, SIL after every word.

    Each phoneme and each silence is gamma distributed about its mean times the block's speaking
    rate. A silence comes first, and the last SIL is the silence that ends the trial.

    Args:
        phonemes: Phonemes of the sentence, as `cortext.text.to_phonemes` returns them.
        config: The simulation.
        day: Days since implantation; with block and trial it names the random stream.
        block: Number of the block in the session.
        trial: Number of the trial in the block.
    """
    segments = ["SIL", *phonemes]
    means = np.array([config.phoneme_ms * RELATIVE_DURATION.get(name, 0.0) for name in segments])
    silent = np.array([name == "SIL" for name in segments])
    means[silent] = config.word_pause_ms
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
    ends[-1] = -(-ends[-1] // STEPS_PER_BIN) * STEPS_PER_BIN
    return TimedPhonemes(RELEASE.ids(segments), ends, int(silent.sum()) - 1)
