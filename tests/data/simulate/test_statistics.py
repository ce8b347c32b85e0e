import numpy as np
import pytest

from cortext_data.simulate.brain import electrodes
from cortext_data.simulate.config import PRESETS
from cortext_data.simulate.plan import PlannedBlock, PlannedDay, PlannedTrial, Prompt
from cortext_data.simulate.statistics import LAGS, mean_statistics, signal_statistics
from cortext_data.simulate.write import simulate_block

RNG = np.random.default_rng(0)


def test_white_noise_is_uncorrelated_and_flat():
    found = signal_statistics(RNG.standard_normal((4000, 40)))
    assert found.correlation == pytest.approx(0, abs=0.005)
    np.testing.assert_allclose(found.autocorrelation, 0, atol=0.01)
    np.testing.assert_allclose(found.spectrum, 1, rtol=0.1)


def test_autocorrelation_of_a_first_order_process_is_a_power_of_its_coefficient():
    noise = RNG.standard_normal((20_000, 8))
    x = np.zeros_like(noise)
    for t in range(1, len(x)):
        x[t] = 0.8 * x[t - 1] + noise[t]
    np.testing.assert_allclose(
        signal_statistics(x).autocorrelation, 0.8 ** np.array(LAGS), atol=0.03
    )


def test_correlation_of_features_that_share_a_component_is_its_share_of_the_variance():
    shared = RNG.standard_normal((20_000, 1))
    assert signal_statistics(
        shared + 2 * RNG.standard_normal((20_000, 10))
    ).correlation == pytest.approx(0.2, abs=0.02)


def test_power_of_a_slow_wave_falls_in_its_band():
    seconds = np.arange(1000) * 0.02
    wave = np.sin(2 * np.pi * 3 * seconds)[:, None].repeat(2, axis=1)
    spectrum = signal_statistics(wave).spectrum
    assert spectrum[3] > 10  # 2 to 4 Hz
    assert max(spectrum[:3] + spectrum[4:]) < 0.01


def test_two_seconds_are_enough_for_every_band():
    assert np.isfinite(signal_statistics(RNG.standard_normal((100, 4))).spectrum).all()


def test_constant_features_are_left_out():
    x = RNG.standard_normal((200, 3))
    with_constant = np.concatenate([x, np.ones((200, 1))], axis=1)
    assert signal_statistics(with_constant) == signal_statistics(x)


def test_simulated_trials_resemble_a_real_one(real_data):
    real = signal_statistics(np.load(real_data / "neural" / "t12_one_trial_256x591.npy").T)
    trials = tuple(
        PlannedTrial(i, "train", Prompt("could you close the window before dinner", ""))
        for i in range(30)
    )
    day = PlannedDay("sim.2025.01.06", (1,), (PlannedBlock(1, trials),))
    made = simulate_block(PRESETS["demo"], day, day.blocks[0], electrodes(PRESETS["demo"], (1,)))
    simulated = mean_statistics([signal_statistics(one.trial.features_TC) for one in made])
    assert 0.5 < simulated.correlation / real.correlation < 2
    assert 0.5 < np.mean(simulated.autocorrelation) / np.mean(real.autocorrelation) < 2
    np.testing.assert_allclose(simulated.spectrum, real.spectrum, rtol=0.7)
