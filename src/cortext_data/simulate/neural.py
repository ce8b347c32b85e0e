"""From articulators to features: threshold crossings and spike-band power in bins.

Threshold crossings are Poisson given a log-linear rate; spike-band power is log-normal, follows the
same rate and the very spikes that were counted (Nason et al. 2020, Nat. Biomed. Eng. 4: its power
is dominated by local single units). Much of the noise is shared: correlated noise of motor cortex
is slow (Averbeck & Lee 2003, J. Neurosci. 23), what lies along the tuning limits what any decoder
can tell (Moreno-Bote et al. 2014, Nat. Neurosci. 17), and independent noise would average away over
hundreds of features.
"""

from __future__ import annotations

import math

import numpy as np

from cortext.data.trial import BIN_MS
from cortext_data.simulate.brain import N_MOVEMENTS, Electrodes, vocabulary
from cortext_data.simulate.config import N_ARRAYS, SimulatorConfig
from cortext_data.simulate.streams import Purpose, stream

LOG_RATE_CEILING = 2.5
"""Highest log rate over the baseline.

No electrode fires faster than about twelve times its rest.
"""
POWER_SCALE = 0.25
"""Log spike-band power per unit of log rate.

Power is mostly noise of the amplifier and of distant units.
"""
AROUSAL_S = 6.0


def record(
    positions_TK: np.ndarray,
    e: Electrodes,
    config: SimulatorConfig,
    day: int,
    block: int,
    trial: int,
    structured_TE: np.ndarray | None = None,
) -> np.ndarray:
    """Return the features of a trial before z-scoring: float32 [T, 2 E].

    Threshold crossings come first, then spike-band power. Power has no level of its own, since
    z-scores remove it, unless features are written as recorded (`SimulatorConfig.normalise`).

    Args:
        positions_TK: Articulators for the T bins of the trial and at least the longest lead after
            them.
        e: The day's electrodes.
        config: The simulation.
        day: Days since implantation; with block and trial it names the random streams.
        block: Number of the block in the session.
        trial: Number of the trial in the block.
        structured_TE: Log rate that structured noise adds (`structured.BlockNoise`).
    """
    n_bins = len(positions_TK) - max_lead_bins(config)
    log_rate = drive(positions_TK, e, config)[:n_bins]
    generator = stream(config.seed, Purpose.LATENTS, day, block, trial)
    arousal = autoregressive(generator, n_bins, np.array([AROUSAL_S]), config.bin_ms)
    log_rate *= np.exp(config.arousal_sd * arousal)  # a gain on the tuned activity
    loads = np.concatenate([e.latent_EL, e.movement_EM, e.arousal_E[:, None]], axis=1)
    log_rate += _shared(generator, n_bins, config, arousal) @ loads.T
    if structured_TE is not None:
        log_rate += structured_TE
    if e.reference_A is not None:
        noise = stream(config.seed, Purpose.REFERENCE, day, block, trial)
        common_TA = noise.standard_normal((n_bins, N_ARRAYS), dtype=np.float32) * e.reference_A
        log_rate += np.repeat(common_TA, len(e.lead_E) // N_ARRAYS, axis=1)
    np.minimum(log_rate, LOG_RATE_CEILING, out=log_rate)
    features = np.empty((n_bins, 2 * len(e.lead_E)), dtype=np.float32)
    spikes = features[:, : len(e.lead_E)]
    rate = np.exp(log_rate + e.baseline_E)
    spikes[:] = poisson(rate, stream(config.seed, Purpose.SPIKES, day, block, trial))
    # In standard deviations of a Poisson count; 0.1 keeps the quietest electrodes finite.
    surprise = (spikes - rate) / np.sqrt(rate + 0.1)
    powers = stream(config.seed, Purpose.POWER, day, block, trial)
    features[:, len(e.lead_E) :] = _power(log_rate, surprise, powers, config)
    if config.normalise == "none":
        median = np.log(config.baseline_hz * config.bin_ms / 1000)
        features[:, len(e.lead_E) :] *= np.exp(POWER_SCALE * (e.baseline_E - np.float32(median)))
    return features


def drive(positions_TK: np.ndarray, e: Electrodes, config: SimulatorConfig) -> np.ndarray:
    """Return the log rate that the articulators cause, float32 [T - longest lead, E].

    Each electrode leads by its own time. This is the only way by which a sentence reaches the
    electrodes.

    Args:
        positions_TK: Positions of the articulators, float32 [T, K].
        e: The day's electrodes.
        config: The simulation.
    """
    basis = vocabulary(config).basis(positions_TK)
    n_bins = len(basis) - max_lead_bins(config)
    driven = np.empty((n_bins, len(e.lead_E)), dtype=np.float32)
    tuning = e.tuning_EF * e.depth_E[:, None]
    for lead in np.unique(e.lead_E):
        columns = np.flatnonzero(e.lead_E == lead)
        driven[:, columns] = basis[lead : lead + n_bins] @ tuning[columns].T
    return driven


def max_lead_bins(config: SimulatorConfig) -> int:
    """Return the bins by which the most anticipating electrode may lead the articulators."""
    return int(config.lead_ms[1] / config.bin_ms)


def autoregressive(
    generator: np.random.Generator,
    n_bins: int,
    time_constants_s: np.ndarray,
    bin_ms: float = BIN_MS,
) -> np.ndarray:
    """Draw stationary first-order processes of unit variance, float32 [T, L].

    Args:
        generator: Source of the random numbers.
        n_bins: T, the length in bins.
        time_constants_s: Time constant of each process in seconds, [L].
        bin_ms: Length of a bin.
    """
    keep = np.exp(-bin_ms / 1000 / time_constants_s)
    x = generator.standard_normal((n_bins, len(keep))) * np.sqrt(1 - keep**2)
    x[0] = generator.standard_normal(len(keep))
    span = 1
    while span < n_bins:  # x_t + a x_{t-1} + a^2 x_{t-2} ..., in a logarithmic number of passes
        x[span:] += keep**span * x[:-span].copy()
        span *= 2
    process: np.ndarray = x.astype(np.float32)
    return process


def poisson(mean: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Draw Poisson counts of the given means (float32, at most about 90), as float32.

    It inverts the distribution function for all counts at once. That is over ten times faster than
    drawing one by one while means are around one. Single precision leaves out counts rarer than
    one in ten million.
    """
    # The count is how many values of the distribution function lie below a uniform draw.
    uniform = generator.random(mean.shape, dtype=np.float32)
    term = np.exp(-mean)
    cumulative = term.copy()
    counts: np.ndarray = (uniform > cumulative).astype(np.float32)
    for count in range(1, 5):
        term *= mean
        term *= np.float32(1 / count)
        cumulative += term
        counts += uniform > cumulative
    # Few draws reach 5: only those need more terms.
    larger = uniform > cumulative
    if larger.any():
        counts[larger] += _continued(*(x[larger] for x in (mean, uniform, term, cumulative)))
    return counts


def _continued(
    mean: np.ndarray, uniform: np.ndarray, term: np.ndarray, cumulative: np.ndarray
) -> np.ndarray:
    """Return by how much the few draws [N] beyond the distribution function at 4 exceed 5."""
    more: np.ndarray = np.zeros(mean.shape, dtype=np.float32)
    for count in range(5, 150):
        term *= mean / np.float32(count)
        cumulative += term
        larger = uniform > cumulative
        if not larger.any():
            break
        more += larger
    return more


def _shared(
    generator: np.random.Generator, n_bins: int, config: SimulatorConfig, arousal: np.ndarray
) -> np.ndarray:
    """Draw shared components [T, L + M + 1]: slow latents, movements, arousal."""
    time_constants_s = np.geomspace(*config.latent_s, config.n_latents)
    latents = autoregressive(generator, n_bins, time_constants_s, config.bin_ms)
    return np.concatenate([latents, _movements(generator, n_bins, config), arousal], axis=1)


def _movements(generator: np.random.Generator, n_bins: int, config: SimulatorConfig) -> np.ndarray:
    """Draw bursts of 0.3 to 1 s, raised cosines of unit height and random sign: float32 [T, M]."""
    bursts = np.zeros((n_bins, N_MOVEMENTS), dtype=np.float32)
    minutes = n_bins * config.bin_ms / 60_000
    for _ in range(generator.poisson(config.movement_per_min * minutes)):
        length = int(generator.integers(300 // config.bin_ms, 1000 // config.bin_ms))
        start = int(generator.integers(0, n_bins))
        kind = int(generator.integers(N_MOVEMENTS))
        burst = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(length) / length)
        bursts[start : start + length, kind] += (
            generator.choice([-1.0, 1.0]) * burst[: n_bins - start]
        )
    return bursts


def _power(
    log_rate: np.ndarray,
    surprise: np.ndarray,
    generator: np.random.Generator,
    config: SimulatorConfig,
) -> np.ndarray:
    """Draw spike-band power float32 [T, E], log-normal, with a common reference in each array."""
    n_bins, n_electrodes = log_rate.shape
    # White noise and single spikes: the shorter the bin, the less of them the mean removes.
    per_bin = math.sqrt(BIN_MS / config.bin_ms)
    noise = generator.standard_normal(log_rate.shape, dtype=np.float32)
    noise *= config.power_noise_sd * per_bin
    reference = generator.standard_normal((n_bins, N_ARRAYS), dtype=np.float32)
    reference *= config.reference_noise_sd * per_bin
    noise += np.repeat(reference, n_electrodes // N_ARRAYS, axis=1)
    power: np.ndarray = np.exp(POWER_SCALE * (log_rate + 0.4 * per_bin * surprise + noise))
    return power
