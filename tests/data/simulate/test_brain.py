from dataclasses import replace

import numpy as np
import pytest

from cortext_data.simulate.brain import Electrodes, electrodes, vocabulary
from cortext_data.simulate.config import PRESETS

CONFIG = replace(PRESETS["t15"], seed=3)


def similarity(a: Electrodes, b: Electrodes) -> float:
    """Mean over electrodes of the correlation between two days' drives."""
    c = vocabulary(CONFIG).covariance_FF
    return float(np.einsum("ef,fg,eg->e", a.tuning_EF, c, b.tuning_EF).mean())


def test_every_electrode_is_driven_with_unit_variance():
    e = electrodes(CONFIG, (1, 8))
    variance = np.einsum("ef,fg,eg->e", e.tuning_EF, vocabulary(CONFIG).covariance_FF, e.tuning_EF)
    np.testing.assert_allclose(variance, 1, rtol=1e-3)


def test_tuning_decorrelates_exponentially_at_the_documented_rate():
    days = (1, 5, 10, 20, 40, 80)
    first = electrodes(CONFIG, days[:1])
    found = [similarity(first, electrodes(CONFIG, days[: i + 1])) for i in range(len(days))]
    assert found == sorted(found, reverse=True)
    np.testing.assert_allclose(
        found, np.exp(-CONFIG.tuning_drift * (np.array(days) - 1)), atol=0.08
    )


def test_drift_depends_on_the_days_that_passed_not_on_how_often_was_recorded():
    first = electrodes(CONFIG, (1,))
    often = electrodes(CONFIG, tuple(range(1, 42, 2)))
    seldom = electrodes(CONFIG, (1, 41))
    assert similarity(first, often) == pytest.approx(similarity(first, seldom), abs=0.08)


def test_baselines_walk_at_the_documented_rate():
    config = replace(CONFIG, drift_reversion=0.0, channel_turnover=0.0)
    first = electrodes(config, (1,))
    later = electrodes(config, (1, 5, 10))
    moved = (later.baseline_E - first.baseline_E)[first.alive_E]
    assert moved.std() == pytest.approx(config.baseline_drift * 3, rel=0.15)


def test_electrodes_die_and_appear_while_their_share_holds():
    config = replace(CONFIG, dead_fraction=0.3, channel_turnover=0.01)
    alive = np.array(
        [electrodes(config, tuple(range(1, last, 10))).alive_E for last in (2, 102, 302)]
    )
    assert (alive[0] & ~alive[-1]).any()
    assert (~alive[0] & alive[-1]).any()
    np.testing.assert_allclose(alive.mean(axis=1), 0.7, atol=0.09)


def test_dead_electrodes_are_not_tuned():
    e = electrodes(replace(CONFIG, dead_fraction=0.3), (1,))
    assert (e.depth_E[~e.alive_E] == 0).all()
    assert (e.depth_E[e.alive_E] > 0).all()


def test_arrays_differ_in_selectivity():
    per_array = electrodes(CONFIG, (1,)).depth_E.reshape(4, 64)
    assert np.median(per_array[0]) > np.median(per_array[3])  # ventral 6v against dorsal 6v


def test_silent_attempts_drive_less_and_the_larynx_least():
    silent = electrodes(replace(CONFIG, attempt="silent"), (1,))
    vocalized = electrodes(CONFIG, (1,))
    np.testing.assert_allclose(silent.depth_E, 0.6 * vocalized.depth_E, rtol=1e-5)
