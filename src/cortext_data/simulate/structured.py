"""Strong structured noise: oscillations, movement artefacts and block steps.

It is off unless `structured_noise` is above 0. It acts on log rates, as the other shared noise
does: counts stay counts, and log spike-band power gets it additively. Oscillations stand for the
rhythms of the cortex and of breath and pulse that many electrodes follow; artefacts for movements
of head and cable, stereotyped as they are in recordings; steps for what shifts all at once in a
block, such as a connector that moves. All that is drawn is known afterwards (`TrialNoise`). The
numbers are choices.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from cortext_data.simulate.brain import N_BASIS, Electrodes
from cortext_data.simulate.config import N_ARRAYS, SimulatorConfig
from cortext_data.simulate.neural import autoregressive
from cortext_data.simulate.streams import Purpose, stream

N_WAVEFORMS = 3
OTHER_ARRAYS = 0.3
"""Load of an oscillation on the arrays that are not its own, over that on its own."""
COMMON_SPREAD = 0.5
"""Spread of what electrodes have in common beside their tuning, over its mean."""
DEAD = 0.2
"""Load on an electrode that carries no tuned activity, over that on others (as of the other
shared noise).
"""


@dataclass(frozen=True)
class TrialNoise:
    """The structured noise of one trial.

    Attributes:
        log_rate_TE: float32 [T, E], added to the log rate.
        artefacts_N3: int64 [N, 3], waveform, first bin, and the bin after the last (the trial may
            end before it).
        steps_S: int64 [S], bins at which the baseline shifts.
    """

    log_rate_TE: np.ndarray
    artefacts_N3: np.ndarray
    steps_S: np.ndarray


class BlockNoise:
    """The structured noise of one block: its steps, and on demand the noise of any trial."""

    def __init__(
        self, config: SimulatorConfig, e: Electrodes, day: int, block: int, n_bins: int
    ) -> None:
        self._config = config
        self._day = day
        self._block = block
        generator = stream(config.seed, Purpose.STRUCTURED)
        n_oscillations = config.n_oscillations
        groups = np.full((len(e.lead_E), n_oscillations), OTHER_ARRAYS)
        array_E = np.repeat(np.arange(N_ARRAYS), len(e.lead_E) // N_ARRAYS)
        for number in range(n_oscillations):
            groups[array_E == number % N_ARRAYS, number] = 1.0
        oscillation_EO = _loads(config, e, generator, groups)
        artefact_EA = _loads(config, e, generator, np.ones((len(e.lead_E), N_WAVEFORMS)))
        # The variances of independent oscillations add up: the setting is that of their sum.
        oscillation_sd = config.oscillation_sd / np.sqrt(n_oscillations)
        self._loads_EN = np.concatenate(
            [oscillation_EO * oscillation_sd, artefact_EA * config.artefact_sd], axis=1
        )
        steps = stream(config.seed, Purpose.STEPS, day, block)
        n_steps = config.steps_per_block
        # Each in the middle half of its share of the block.
        places = (np.arange(n_steps) + steps.uniform(0.25, 0.75, n_steps)) / max(1, n_steps)
        self.steps_S = (places * n_bins).astype(np.int64)
        levels_ES = _loads(config, e, steps, np.ones((len(e.lead_E), n_steps))) * config.step_sd
        self._levels_SE = np.concatenate([np.zeros((1, len(e.lead_E))), levels_ES.T])

    def trial(self, number: int, start: int, n_bins: int) -> TrialNoise:
        """Return the noise of a trial.

        Args:
            number: Number of the trial; it names the random stream.
            start: First bin of the trial in the block.
            n_bins: Length of the trial in bins.
        """
        config = self._config
        generator = stream(config.seed, Purpose.STRUCTURED, self._day, self._block, number)
        oscillating_TO = oscillations(config, generator, n_bins)
        artefacts_N3, heights_N = _draw_artefacts(config, generator, n_bins)
        courses = np.concatenate(
            [oscillating_TO, _artefact_courses(artefacts_N3, heights_N, n_bins)], axis=1
        )
        level_T = np.searchsorted(self.steps_S, start + np.arange(n_bins), side="right")
        noise_TE = (
            courses @ self._loads_EN.T.astype(np.float32)
            + self._levels_SE.astype(np.float32)[level_T]
        )
        within = self.steps_S[(self.steps_S >= start) & (self.steps_S < start + n_bins)] - start
        return TrialNoise(np.float32(config.structured_noise) * noise_TE, artefacts_N3, within)


def oscillations(
    config: SimulatorConfig, generator: np.random.Generator, n_bins: int
) -> np.ndarray:
    """Draw narrow-band processes of unit variance over `oscillation_hz`: float32 [T, O].

    Their frequencies are evenly spread in logarithm. Each is a cosine and a sine whose amplitudes
    are slow first-order processes, so that phase and amplitude wander over `oscillation_s`; half
    the power is within 1 / (2 pi oscillation_s) Hz of the frequency.

    Args:
        config: The simulation.
        generator: Source of the random numbers.
        n_bins: T, the length in bins.
    """
    frequencies_O = np.geomspace(*config.oscillation_hz, config.n_oscillations)
    amplitudes = autoregressive(
        generator,
        n_bins,
        np.full(2 * config.n_oscillations, config.oscillation_s),
        config.bin_ms,
    )
    angle_TO = 2 * np.pi * np.outer(np.arange(n_bins) * config.bin_ms / 1000, frequencies_O)
    cosine, sine = np.split(amplitudes, 2, axis=1)
    course: np.ndarray = (cosine * np.cos(angle_TO) + sine * np.sin(angle_TO)).astype(np.float32)
    return course


def waveform(kind: int, n_bins: int) -> np.ndarray:
    """Return the course of an artefact, 1 at its height: float64 [n_bins].

    It has one, two or three swings under one arch.
    """
    u = (np.arange(n_bins) + 0.5) / n_bins
    shape = np.sin(np.pi * u) * np.cos(np.pi * kind * u)
    course: np.ndarray = shape / np.abs(shape).max()
    return course


def _draw_artefacts(
    config: SimulatorConfig, generator: np.random.Generator, n_bins: int
) -> tuple[np.ndarray, np.ndarray]:
    """Draw waveforms, bins and heights (log-normal about 1) of a trial's artefacts."""
    n = int(generator.poisson(config.artefacts_per_min * n_bins * config.bin_ms / 60_000))
    shortest, longest = (max(1, round(1000 * s / config.bin_ms)) for s in config.artefact_s)
    kinds = generator.integers(N_WAVEFORMS, size=n)
    starts = np.sort(generator.integers(n_bins, size=n))
    lengths = generator.integers(shortest, longest + 1, size=n)
    return np.stack([kinds, starts, starts + lengths], axis=1), np.exp(
        0.3 * generator.standard_normal(n)
    )


def _artefact_courses(artefacts_N3: np.ndarray, heights_N: np.ndarray, n_bins: int) -> np.ndarray:
    courses = np.zeros((n_bins, N_WAVEFORMS), dtype=np.float32)
    for (kind, start, end), height in zip(artefacts_N3, heights_N, strict=True):
        courses[start:end, kind] += height * waveform(kind, end - start)[: n_bins - start]
    return courses


def _loads(
    config: SimulatorConfig, e: Electrodes, generator: np.random.Generator, weights_EN: np.ndarray
) -> np.ndarray:
    """Return loads [E, N], partly along the tuning, else in common.

    Their mean square over living electrodes is 1.
    """
    n_electrodes, n = weights_EN.shape
    directions_FN = generator.standard_normal((N_BASIS, n))
    common_EN = 1 + COMMON_SPREAD * generator.standard_normal((n_electrodes, n))
    along_EN = e.tuning_EF.astype(np.float64) @ directions_FN
    along_EN /= along_EN.std(axis=0)
    share = config.structured_alignment
    mixed = np.sqrt(share) * along_EN + np.sqrt((1 - share) / (1 + COMMON_SPREAD**2)) * common_EN
    mixed *= weights_EN * np.where(e.alive_E, 1.0, DEAD)[:, None]
    living = mixed[e.alive_E] if e.alive_E.any() else np.ones((1, n))
    loads: np.ndarray = mixed / np.sqrt((living**2).mean(axis=0))
    return loads
