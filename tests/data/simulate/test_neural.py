from dataclasses import replace

import numpy as np
import pytest

from cortext.text import to_phonemes
from cortext_data.simulate.articulators import articulate
from cortext_data.simulate.brain import electrodes
from cortext_data.simulate.config import PRESETS, SimulatorConfig
from cortext_data.simulate.neural import autoregressive, drive, max_lead_bins, poisson, record
from cortext_data.simulate.speech import utter
from cortext_data.simulate.streams import Purpose, stream

CONFIG = replace(PRESETS["demo"], seed=5)
PHONEMES = to_phonemes("could you close the window before dinner")


def positions(config: SimulatorConfig, trial: int = 0) -> np.ndarray:
    return articulate(
        utter(PHONEMES, config, 1, 1, trial), config.undershoot, max_lead_bins(config)
    )


def recordings(config: SimulatorConfig, n: int) -> np.ndarray:
    e = electrodes(config, (1,))
    return np.concatenate(
        [record(positions(config, trial), e, config, 1, 1, trial) for trial in range(n)]
    )


def test_autoregressive_process_equals_its_recursion():
    taus = np.array([0.1, 1.0, 10.0])
    generator = stream(1, Purpose.LATENTS)
    found = autoregressive(generator, 50, taus)
    generator = stream(1, Purpose.LATENTS)
    keep = np.exp(-0.02 / taus)
    noise = generator.standard_normal((50, 3)) * np.sqrt(1 - keep**2)
    x = generator.standard_normal(3)
    for t in range(50):
        x = x if t == 0 else keep * x + noise[t]
        np.testing.assert_allclose(found[t], x, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mean", [0.004, 0.4, 3.0, 25.0, 90.0])
def test_poisson_counts_have_the_distribution_of_numpy_s(mean):
    n = 200_000
    found = poisson(np.full(n, mean, dtype=np.float32), stream(1, Purpose.SPIKES))
    peer = np.random.default_rng(0).poisson(mean, n)
    top = int(max(found.max(), peer.max())) + 1
    observed, expected = (np.bincount(x.astype(int), minlength=top) for x in (found, peer))
    # Two samples: the largest deviation of their distribution functions (Kolmogorov and Smirnov,
    # 0.1 % level).
    assert np.abs(np.cumsum(observed - expected)).max() / n < 1.95 * (2 / n) ** 0.5
    assert found.mean() == pytest.approx(mean, rel=5 / (n * mean) ** 0.5)
    assert found.var() == pytest.approx(mean, rel=0.02 + 5 / (n * mean) ** 0.5)


def test_threshold_crossings_are_counts_at_the_baseline_rate():
    still = replace(CONFIG, modulation=0.0, latent_sd=0.0, arousal_sd=0.0, movement_per_min=0.0)
    e = electrodes(still, (1,))
    counts = recordings(still, 30)[:, : still.n_electrodes]
    assert (counts == np.rint(counts)).all()
    rates = np.exp(e.baseline_E)
    np.testing.assert_allclose(counts.mean(axis=0), rates, rtol=0.12, atol=0.01)
    np.testing.assert_allclose(counts.var(axis=0) / counts.mean(axis=0), 1, atol=0.12)  # Poisson


def test_spike_band_power_is_log_normal_and_follows_the_same_electrode_s_spikes():
    features = recordings(CONFIG, 30)
    n = CONFIG.n_electrodes
    power = features[:, n:]
    assert (power > 0).all()
    skew = ((power - power.mean(0)) ** 3).mean(0) / power.std(0) ** 3
    assert np.median(skew) > 0.3
    alive = electrodes(CONFIG, (1,)).alive_E
    cross = np.corrcoef(features.T)[:n, n:]
    assert np.median(np.diag(cross)[alive]) > 5 * np.median(np.abs(cross))


def test_median_single_bin_r2_of_a_feature_given_the_articulators_is_at_most_a_tenth():
    e = electrodes(CONFIG, (1,))
    n = CONFIG.n_electrodes
    driven = []
    features = []
    for trial in range(60):
        at = positions(CONFIG, trial)
        driven.append(drive(at, e, CONFIG))
        features.append(record(at, e, CONFIG, 1, 1, trial))
    driven, features = np.concatenate(driven), np.concatenate(features)
    explained = [np.exp(driven), driven]  # what spikes and what log power follow
    r2 = [
        np.corrcoef(explained[k][:, i], features[:, k * n + i])[0, 1] ** 2
        for k in (0, 1)
        for i in e.alive_E.nonzero()[0]
    ]
    assert 0.01 < np.median(r2) <= 0.10


def test_noise_is_shared_by_ten_slow_components_and_by_all_electrodes():
    still = replace(CONFIG, modulation=0.0)
    features = recordings(still, 60)
    z = (features - features.mean(0)) / features.std(0)
    independent = np.random.default_rng(0).permuted(z, axis=0)  # every feature by itself
    largest = np.linalg.eigvalsh(np.corrcoef(independent.T))[-1]
    assert (np.linalg.eigvalsh(np.corrcoef(z.T)) > largest).sum() >= 10
    assert z.mean(axis=1).var() > 2 / z.shape[1]  # independent noise would give 1 / features
    autocorrelation = [(z[lag:] * z[:-lag]).mean() for lag in (1, 10)]
    assert autocorrelation[0] > 0.05
    assert autocorrelation[1] > 0.5 * autocorrelation[0]


def test_each_electrode_leads_the_articulators_by_its_own_time():
    e = electrodes(CONFIG, (1,))
    at = positions(CONFIG)
    shifted = drive(np.concatenate([at[:1]] * 4 + [at[:-4]]), e, CONFIG)
    np.testing.assert_allclose(shifted[20:-1], drive(at, e, CONFIG)[16:-5], atol=1e-4)
    assert e.lead_E.min() >= 0
    assert e.lead_E.max() <= 16
    assert len(np.unique(e.lead_E)) > 10


def test_snr_scales_the_power_that_articulators_drive_and_nothing_else():
    at = positions(CONFIG)
    half = replace(CONFIG, snr=0.5)
    e = electrodes(CONFIG, (1,))
    e_half = electrodes(half, (1,))
    np.testing.assert_allclose(
        drive(at, e_half, half) ** 2, 0.5 * drive(at, e, CONFIG) ** 2, rtol=1e-3, atol=1e-6
    )
    np.testing.assert_array_equal(e.latent_EL, e_half.latent_EL)


def test_no_snr_leaves_no_trace_of_the_articulators():
    deaf = replace(CONFIG, snr=0.0)
    e = electrodes(deaf, (1,))
    at = positions(deaf)
    np.testing.assert_array_equal(
        record(at, e, deaf, 1, 1, 0), record(np.zeros_like(at), e, deaf, 1, 1, 0)
    )


def test_silent_attempts_are_weaker():
    silent = replace(CONFIG, attempt="silent")
    power = [drive(positions(c), electrodes(c, (1,)), c).var() for c in (CONFIG, silent)]
    assert power[1] < 0.5 * power[0]


@pytest.mark.parametrize("changed", [{"trial": 1}, {"block": 2}, {"day": 2}])
def test_noise_differs_between_trials_blocks_and_days(changed):
    e = electrodes(CONFIG, (1,))
    at = positions(CONFIG)
    first = record(at, e, CONFIG, **{"day": 1, "block": 1, "trial": 0})
    other = record(at, e, CONFIG, **({"day": 1, "block": 1, "trial": 0} | changed))
    assert np.abs(np.corrcoef(first[:, 70], other[:, 70])[0, 1]) < 0.5
    assert not np.array_equal(first, other)
