"""Tuning of the electrodes, and its drift from day to day.

Sources: tuning to articulators is intermixed within each array, arrays differ in how much they are
tuned (Willett et al. 2023; Card et al. 2024), and speech modulates ventral 6v and 55b most
(Wairagkar et al. 2025); electrodes follow kinematics (Chartier et al. 2018) and conjunctions (mixed
selectivity, Rigotti et al. 2013). The numbers are choices.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

import numpy as np

from cortext.data.trial import BIN_MS
from cortext_data.simulate.articulators import (
    ARTICULATORS,
    SPEAKING,
    VOICING,
    articulate,
    targets,
)
from cortext_data.simulate.config import N_ARRAYS, SimulatorConfig
from cortext_data.simulate.months import drift_factor, events
from cortext_data.simulate.speech import TimedPhonemes, utter, with_pauses
from cortext_data.simulate.streams import Purpose, stream

K = len(ARTICULATORS)
N_CONJUNCTIONS = 16
N_BASIS = 2 * K + N_CONJUNCTIONS
N_MOVEMENTS = 3
SILENT_DRIVE = 0.6
"""Factor on the modulation depth in silent attempts, and again on the larynx."""
MEMBERS = (
    "lips rounding jaw|tip place dorsum lateral rhotic|height backness tension|voicing breath velum"
)
"""Groups of articulators that an array prefers more or less."""

ARRAY_DEPTH = np.array([1.25, 0.95, 1.1, 0.7])
"""Modulation depth of ventral 6v, area 4, 55b, dorsal 6v over the median."""
ARRAY_PREFERENCE = np.array(
    [
        [1.0, 1.2, 1.0, 0.9],  # ventral 6v: every articulator, the tongue most
        [1.2, 0.9, 0.7, 1.0],  # area 4: lips and larynx
        [0.7, 0.9, 1.2, 1.2],  # 55b: vowels and voice
        [1.1, 0.7, 1.1, 0.6],  # dorsal 6v: lips, jaw and body of the tongue
    ]
)
ARRAY_KINEMATIC = np.array([0.5, 0.9, 0.4, 0.5])
"""Weight of velocities over positions: area 4 follows movement most closely."""
DEPTH_SPREAD = 0.6
"""Standard deviation of log modulation depth: a few electrodes carry much, many little."""
DEAD_RATE = 0.02
"""Threshold crossings of a dead electrode in 20 ms."""
MAX_DEPTH = 1.2
"""The deepest modulation: three times the rate at one standard deviation of drive."""


@dataclass(frozen=True)
class Electrodes:
    """The tuning of the electrodes of one day; E electrodes in the order of the arrays.

    Attributes:
        tuning_EF: float32, weights on the basis of `TunedFunctions.basis`; unit drive in speech.
        depth_E: float32, modulation depth of the log rate, 0 where the electrode is dead.
        baseline_E: float32, log of the expected threshold crossings per bin at rest.
        lead_E: int64, bins by which activity leads the articulators.
        latent_EL: float32, log rate per unit of each slow shared component.
        movement_EM: float32, log rate per unit of each movement.
        arousal_E: float32, log rate per unit of arousal.
        alive_E: bool.
        reference_A: float32, standard deviation of the noise of the log rate common to each array;
            None where no reference has changed.
    """

    tuning_EF: np.ndarray
    depth_E: np.ndarray
    baseline_E: np.ndarray
    lead_E: np.ndarray
    latent_EL: np.ndarray
    movement_EM: np.ndarray
    arousal_E: np.ndarray
    alive_E: np.ndarray
    reference_A: np.ndarray | None = None


@dataclass(frozen=True)
class TunedFunctions:
    """Functions of the articulators that electrodes may be tuned to, and their covariance.

    Attributes:
        position_mean_K, position_scale_K: Standardise the positions.
        conjunctions_KJ, thresholds_J: Rectified projections of the standardised positions.
        mean_F, scale_F: Standardise the basis.
        covariance_FF: Covariance of the standardised basis while speaking.
    """

    position_mean_K: np.ndarray
    position_scale_K: np.ndarray
    conjunctions_KJ: np.ndarray
    thresholds_J: np.ndarray
    mean_F: np.ndarray
    scale_F: np.ndarray
    covariance_FF: np.ndarray

    def basis(self, positions_TK: np.ndarray) -> np.ndarray:
        """Return standardised positions, velocities and conjunctions: float32 [T, F]."""
        raw = self._raw(positions_TK)
        standardized: np.ndarray = (raw - self.mean_F) / self.scale_F
        return standardized.astype(np.float32)

    def _raw(self, positions_TK: np.ndarray) -> np.ndarray:
        z = (positions_TK - self.position_mean_K) / self.position_scale_K
        velocities = np.gradient(z, axis=0)
        conjunctions = np.maximum(
            np.einsum("tk,kj->tj", z, self.conjunctions_KJ) - self.thresholds_J, 0
        )
        return np.concatenate([z, velocities, conjunctions], axis=1)


@lru_cache(maxsize=8)
def vocabulary(config: SimulatorConfig) -> TunedFunctions:
    """Return the basis of a simulated brain.

    It is standardised on 60 nonsense utterances that use every token alike.
    """
    generator = stream(config.seed, Purpose.BRAIN)
    tokens = targets(config.inventory, config.seed)
    positions = [articulate(u, config.undershoot, tokens=tokens) for u in _nonsense(config)]
    stacked = np.concatenate(positions).astype(np.float64)
    conjunctions = generator.standard_normal((K, N_CONJUNCTIONS)) * (
        generator.random((K, N_CONJUNCTIONS)) < 4 / K
    )
    empty = TunedFunctions(
        stacked.mean(0), stacked.std(0), conjunctions, generator.uniform(0, 1.5, N_CONJUNCTIONS),
        np.zeros(N_BASIS), np.ones(N_BASIS), np.eye(N_BASIS),
    )  # fmt: skip
    raw = np.concatenate([empty._raw(p) for p in positions])
    scaled = replace(empty, mean_F=raw.mean(0), scale_F=raw.std(0) + 1e-6)
    speaking = stacked[:, SPEAKING] > 0.5
    z = (raw[speaking] - scaled.mean_F) / scaled.scale_F
    return replace(scaled, covariance_FF=np.cov(z.T))


def _nonsense(config: SimulatorConfig) -> list[TimedPhonemes]:
    generator = stream(config.seed, Purpose.BRAIN, trial=1)
    spoken = config.inventory.spoken
    utterances = []
    for trial in range(60):
        drawn = generator.integers(0, len(spoken), size=(6, 3))
        words = [tuple(spoken[number] for number in word) for word in drawn]
        tokens = with_pauses(words, config.inventory)
        utterances.append(utter(tokens, config, 2**32, 0, trial))
    return utterances


def electrodes(config: SimulatorConfig, days: tuple[int, ...]) -> Electrodes:
    """Return the electrodes on the last of `days`, after drifting through the earlier ones.

    Tuning is a stationary random walk, W <- a W + sqrt(1 - a^2) fresh with a = exp(-tuning_drift *
    days), so that it turns without growing; gains and baselines are mean-reverting walks;
    electrodes die and appear as a two-state Markov chain. Rates are per day; decoders degrade
    within days to weeks (Card et al. 2024 recalibrate daily).

    In a plan of months, a share of the tuning is stable, tuning also jumps, and events of the day
    or of days before count.

    Args:
        config: The simulation.
        days: Days since implantation.
    """
    words = vocabulary(config)
    arrays = np.repeat(np.arange(N_ARRAYS), config.n_electrodes // N_ARRAYS)
    first = stream(config.seed, Purpose.BRAIN, trial=2)
    spread = np.exp(DEPTH_SPREAD * _normal(first, len(arrays)))
    depth0 = np.minimum(config.modulation * ARRAY_DEPTH[arrays] * spread, MAX_DEPTH)
    base0 = np.log(config.baseline_hz * config.bin_ms / 1000) + 0.5 * _normal(first, len(arrays))
    shortest, longest = (int(lead / config.bin_ms) for lead in config.lead_ms)
    lead = first.integers(shortest, longest + 1, size=len(arrays))
    shared = _normal(first, len(arrays), config.n_latents + N_MOVEMENTS + 1)
    directions = _normal(first, N_BASIS, config.n_latents + N_MOVEMENTS)
    alive = first.random(len(arrays)) >= config.dead_fraction
    tuning = _fresh_tuning(first, config, arrays)
    gain = np.zeros(len(arrays))
    base = np.zeros(len(arrays))
    factor = drift_factor(config)
    for before, day in pairwise(days):
        generator = stream(config.seed, Purpose.DRIFT, day)
        gap = day - before
        keep = np.exp(-config.tuning_drift * factor * gap)
        tuning = keep * tuning + np.sqrt(1 - keep**2) * _fresh_tuning(generator, config, arrays)
        tuning = _jumped(tuning, config, arrays, gap, day)
        gain = _revert(gain, config.gain_drift, config.drift_reversion, gap, generator)
        base = _revert(base, config.baseline_drift, config.drift_reversion, gap, generator)
        alive = _turn_over(alive, config, gap, generator)
    if config.stable_tuning:
        stable = _fresh_tuning(stream(config.seed, Purpose.BRAIN, trial=3), config, arrays)
        share = config.stable_tuning
        tuning = np.sqrt(share) * stable + np.sqrt(1 - share) * tuning
    tuning = _unit_drive(tuning, words)
    happened = events(config)
    changed = [array for since, array in happened.references.items() if days[-1] >= since]
    base += config.reference_offset * np.isin(arrays, changed)
    alive = alive & (arrays != happened.lost.get(days[-1], -1))
    speaks = days[-1] not in happened.garbage
    loads = _shared_loads(config, tuning, directions, shared[:, :-1])
    living = np.where(alive, 1.0, 0.2)
    dead_rate = DEAD_RATE * (config.bin_ms / BIN_MS)
    depth = depth0 * np.exp(gain) * (alive & speaks) * np.sqrt(config.snr)
    noise_A = config.reference_noise * np.isin(np.arange(N_ARRAYS), changed)
    return Electrodes(
        tuning_EF=tuning.astype(np.float32),
        depth_E=(depth * (SILENT_DRIVE if config.attempt == "silent" else 1.0)).astype(np.float32),
        baseline_E=np.where(alive, base0 + base, np.log(dead_rate)).astype(np.float32),
        lead_E=lead,
        latent_EL=(loads[:, : config.n_latents] * living[:, None]).astype(np.float32),
        movement_EM=(loads[:, config.n_latents :] * living[:, None]).astype(np.float32),
        arousal_E=(config.arousal_sd * (1 + 0.3 * shared[:, -1]) * living).astype(np.float32),
        alive_E=alive,
        reference_A=noise_A.astype(np.float32) if changed else None,
    )


def later_in_day(e: Electrodes, config: SimulatorConfig, day: int, n_trials: int) -> Electrodes:
    """Return the electrodes as they are after some trials of the day.

    Tuning turns towards one direction of the day, and gains and baselines move along one, so that
    any trial can be simulated without those before it.

    Args:
        e: The day's electrodes.
        config: The simulation.
        day: Days since implantation.
        n_trials: Number of the day's trials before.
    """
    days = config.within_day * n_trials / 100
    if not days:
        return e
    # The same correlation with the morning as after so many whole days.
    rate = drift_factor(config) * (
        config.tuning_drift
        + config.array_shifts * config.array_shift
        + config.tuning_jumps * config.jump_share
    )
    keep = config.stable_tuning + (1 - config.stable_tuning) * np.exp(-rate * days)
    tuning_EF, gain_E, baseline_E = _directions_of_day(config, day)
    turned_EF = keep * e.tuning_EF + np.sqrt(1 - keep**2) * tuning_EF
    gain_E = config.gain_drift * np.sqrt(days) * gain_E
    baseline_E = config.baseline_drift * np.sqrt(days) * baseline_E * e.alive_E
    return replace(
        e,
        tuning_EF=_unit_drive(turned_EF, vocabulary(config)).astype(np.float32),
        depth_E=(e.depth_E * np.exp(gain_E)).astype(np.float32),
        baseline_E=(e.baseline_E + baseline_E).astype(np.float32),
    )


@lru_cache(maxsize=2)
def _directions_of_day(
    config: SimulatorConfig, day: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draw tuning of unit drive [E, F] and standard normal gain [E] and baseline [E]."""
    generator = stream(config.seed, Purpose.WITHIN_DAY, day)
    arrays = np.repeat(np.arange(N_ARRAYS), config.n_electrodes // N_ARRAYS)
    tuning = _unit_drive(_fresh_tuning(generator, config, arrays), vocabulary(config))
    return tuning, _normal(generator, len(arrays)), _normal(generator, len(arrays))


def _jumped(
    tuning_EF: np.ndarray, config: SimulatorConfig, arrays_E: np.ndarray, gap: int, day: int
) -> np.ndarray:
    """Return the tuning after the jumps of `gap` days, the last of which is `day`."""
    if not (config.array_shifts or config.tuning_jumps):
        return tuning_EF
    generator = stream(config.seed, Purpose.JUMPS, day)
    factor = drift_factor(config)
    moves_A = generator.poisson(config.array_shifts * factor * gap, N_ARRAYS)
    keep_E1 = ((1 - config.array_shift) ** moves_A)[arrays_E, None]
    fresh_EF = _fresh_tuning(generator, config, arrays_E)
    moved_EF = keep_E1 * tuning_EF + np.sqrt(1 - keep_E1**2) * fresh_EF
    # Several jumps in one gap: an electrode keeps its tuning if it is in none of them.
    n_jumps = generator.poisson(config.tuning_jumps * factor * gap)
    drawn_JE = generator.random((n_jumps, len(arrays_E)))
    jumped_E = (drawn_JE < config.jump_share).sum(axis=0) > 0
    jumped: np.ndarray = np.where(
        jumped_E[:, None], _fresh_tuning(generator, config, arrays_E), moved_EF
    )
    return jumped


def _normal(generator: np.random.Generator, *shape: int) -> np.ndarray:
    return generator.standard_normal(shape)


def _fresh_tuning(
    generator: np.random.Generator, config: SimulatorConfig, arrays: np.ndarray
) -> np.ndarray:
    """Draw weights [E, F]: positions and velocities by the array's preference, and conjunctions."""
    preference = np.ones((N_ARRAYS, K))
    for group, members in enumerate(MEMBERS.split("|")):
        columns = [ARTICULATORS.index(name) for name in members.split()]
        preference[:, columns] = ARRAY_PREFERENCE[:, group, None]
    if config.attempt == "silent":
        preference[:, VOICING] *= SILENT_DRIVE
    single = np.concatenate([preference, preference * ARRAY_KINEMATIC[:, None]], axis=1)[arrays]
    # Each electrode prefers a few articulators to the others.
    single = single * generator.gamma(0.5, 2.0, size=single.shape)
    weights = np.concatenate([single, np.ones((len(arrays), N_CONJUNCTIONS))], axis=1)
    weights[:, : 2 * K] *= np.sqrt((1 - config.conjunctive) / (single**2).sum(1, keepdims=True))
    weights[:, 2 * K :] *= np.sqrt(config.conjunctive / N_CONJUNCTIONS)
    drawn: np.ndarray = weights * _normal(generator, *weights.shape)
    return drawn


def _unit_drive(tuning_EF: np.ndarray, words: TunedFunctions) -> np.ndarray:
    """Scale the tuning so that every electrode's drive has unit variance in speech."""
    variance = np.einsum("ef,fg,eg->e", tuning_EF, words.covariance_FF, tuning_EF)
    scaled: np.ndarray = tuning_EF / np.sqrt(variance)[:, None]
    return scaled


def _shared_loads(
    config: SimulatorConfig,
    tuning_EF: np.ndarray,
    directions_FL: np.ndarray,
    private_EL: np.ndarray,
) -> np.ndarray:
    """Return loads [E, L + M] of latent components and movements on the electrodes.

    They lie partly along the tuning: a linear decoder that projects that part away loses speech.
    """
    along = tuning_EF @ directions_FL
    along /= along.std(axis=0)
    mixed = (
        np.sqrt(config.latent_alignment) * along + np.sqrt(1 - config.latent_alignment) * private_EL
    )
    scale = np.full(mixed.shape[1], config.latent_sd / np.sqrt(config.n_latents))
    scale[config.n_latents :] = config.movement_sd
    loads: np.ndarray = mixed * scale
    return loads


def _revert(
    x: np.ndarray, step_sd: float, reversion: float, days: int, generator: np.random.Generator
) -> np.ndarray:
    """Return a mean-reverting random walk `days` later."""
    keep = np.exp(-reversion * days)
    variance = step_sd**2 * ((1 - keep**2) / (2 * reversion) if reversion else days)
    later: np.ndarray = keep * x + np.sqrt(variance) * generator.standard_normal(len(x))
    return later


def _turn_over(
    alive: np.ndarray, config: SimulatorConfig, days: int, generator: np.random.Generator
) -> np.ndarray:
    """Return the living electrodes `days` later: a two-state Markov chain in continuous time.

    Electrodes appear so often that the chain's stationary share of dead ones is `dead_fraction`.
    """
    dead = config.dead_fraction
    appear = config.channel_turnover * (1 - dead) / dead if dead else 0.0
    die = config.channel_turnover if dead else 0.0
    total = die + appear
    mixed = (1 - np.exp(-total * days)) if total else 0.0
    draws = generator.random(len(alive))
    chance_dead = np.where(alive, mixed * dead, 1 - mixed * (1 - dead))
    later: np.ndarray = draws >= chance_dead
    return later
