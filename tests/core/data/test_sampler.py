from collections import Counter

import numpy as np
import pytest

from cortext.data import DayBalancedSampler
from cortext.errors import ConfigError

DAY_N = np.repeat([0, 1, 2, 4, 5], [30, 3, 50, 40, 17])  # day 3 has no trials
N_BINS_N = np.random.default_rng(1).integers(200, 1500, len(DAY_N))


def days_of(indices: np.ndarray) -> Counter:
    return Counter(DAY_N[indices].tolist())


def test_a_batch_takes_as_many_trials_from_each_of_its_days() -> None:
    sampler = DayBalancedSampler(DAY_N, 64, 4, seed=0)
    for step in range(50):
        indices = sampler.indices(step)
        assert indices.dtype == np.int64
        counts = days_of(indices)
        assert sorted(counts.values()) == [16] * 4
        assert 3 not in counts


def test_a_batch_that_does_not_divide_is_split_as_evenly_as_it_can_be() -> None:
    sampler = DayBalancedSampler(DAY_N, 10, 4, seed=0)
    short = Counter()
    for step in range(200):
        counts = days_of(sampler.indices(step))
        assert sorted(counts.values()) == [2, 2, 3, 3]
        short.update(day for day, count in counts.items() if count == 2)
    assert set(short) == set(DAY_N.tolist())  # no day is always the one that gives fewer


def test_days_are_equally_likely_and_so_are_the_trials_of_a_day() -> None:
    """The release's marginal distribution: 4 of 5 days, then uniform with replacement."""
    sampler = DayBalancedSampler(DAY_N, 32, 4, seed=3)
    n_steps = 5_000
    drawn = np.concatenate([sampler.indices(step) for step in range(n_steps)])
    expected = n_steps * 32 / 5 / np.bincount(DAY_N, minlength=6)[DAY_N]
    observed = np.bincount(drawn, minlength=len(DAY_N))
    # each count is close to Poisson around its expectation (400 to 10,667)
    assert np.abs((observed - expected) / np.sqrt(expected)).max() < 5


def test_trials_of_a_day_come_with_replacement() -> None:
    """Day 1 has 3 trials; 16 of a batch can only come from it with repetition."""
    sampler = DayBalancedSampler(DAY_N, 64, 4, seed=0, must_include_days=[1])
    assert set(sampler.indices(0)[DAY_N[sampler.indices(0)] == 1]) <= {30, 31, 32}


def test_a_batch_is_a_function_of_seed_and_step() -> None:
    sampler = DayBalancedSampler(DAY_N, 64, 4, seed=7)
    forwards = [sampler.indices(step) for step in range(20)]
    resumed = DayBalancedSampler(DAY_N, 64, 4, seed=7)
    for step in (19, 3, 11):
        assert np.array_equal(resumed.indices(step), forwards[step])
    assert not np.array_equal(forwards[0], forwards[1])
    assert not np.array_equal(DayBalancedSampler(DAY_N, 64, 4, seed=8).indices(0), forwards[0])


def test_days_that_must_be_included_are_in_every_batch() -> None:
    wanted = [-1, 2]
    sampler = DayBalancedSampler(DAY_N, 16, 4, seed=0, must_include_days=wanted)
    assert wanted == [-1, 2]
    others = Counter()
    for step in range(100):
        counts = days_of(sampler.indices(step))
        assert sorted(counts.values()) == [4] * 4
        assert {5, 2} <= set(counts)
        others.update(set(counts) - {5, 2})
    assert set(others) == {0, 1, 4}
    only = DayBalancedSampler(DAY_N, 16, 2, seed=0, must_include_days=[0, 4])
    assert set(days_of(only.indices(0))) == {0, 4}


def test_settings_that_cannot_be_met_are_named() -> None:
    cases = {
        "days_per_batch is 6 and the data has 5 days": dict(days_per_batch=6),
        "days_per_batch is 4 and batch_size is 3": dict(batch_size=3),
        "names 5 days and days_per_batch is 4": dict(must_include_days=[0, 1, 2, 4, 5]),
        "names day 3, which has no training trials": dict(must_include_days=[3]),
        "names day -9, which": dict(must_include_days=[-9]),
        "names day 5 twice": dict(must_include_days=[5, -1]),
        "names day -1, which has no training trials": dict(must_include_days=[-1], n_days=7),
        "seed is -1": dict(seed=-1),
        "length_buckets is 0": dict(length_buckets=0),
        "length_buckets is 3": dict(length_buckets=3),
    }
    for message, settings in cases.items():
        arguments = dict(batch_size=64, days_per_batch=4, seed=0) | settings
        with pytest.raises(ConfigError, match=message):
            DayBalancedSampler(DAY_N, **arguments)


def padding(sampler: DayBalancedSampler, lengths: np.ndarray, n_steps: int = 300) -> float:
    """Share of a batch that is padding."""
    bins = [lengths[sampler.indices(step)] for step in range(n_steps)]
    return 1 - sum(b.sum() for b in bins) / sum(len(b) * b.max() for b in bins)


def test_length_buckets_limit_padding() -> None:
    day_N = np.repeat(np.arange(6), 200)
    lengths = np.random.default_rng(2).gamma(9, 100, len(day_N)).astype(int) + 100
    plain = padding(DayBalancedSampler(day_N, 64, 4, seed=0), lengths)
    bucketed = padding(
        DayBalancedSampler(day_N, 64, 4, 0, None, lengths, length_buckets=4), lengths
    )
    assert bucketed < 0.65 * plain


def test_length_buckets_leave_every_trial_as_likely() -> None:
    sampler = DayBalancedSampler(DAY_N, 8, 4, 3, None, N_BINS_N, length_buckets=4)
    n_steps = 20_000
    drawn = np.concatenate([sampler.indices(step) for step in range(n_steps)])
    expected = n_steps * 8 / 5 / np.bincount(DAY_N, minlength=6)[DAY_N]
    observed = np.bincount(drawn, minlength=len(DAY_N))
    # a band is shared by the two trials of a day in a batch, which at most doubles the variance
    assert np.abs((observed - expected) / np.sqrt(2 * expected)).max() < 5


def test_a_bucketed_batch_comes_from_one_band_of_each_day() -> None:
    sampler = DayBalancedSampler(DAY_N, 64, 4, 3, None, N_BINS_N, length_buckets=5)
    bands = set()
    for step in range(40):
        indices = sampler.indices(step)
        seen = []
        for day in set(DAY_N[indices].tolist()) - {1}:  # day 1 has fewer trials than bands
            ranks = np.argsort(np.argsort(N_BINS_N[day == DAY_N], kind="stable"))
            rank = ranks[indices[DAY_N[indices] == day] - np.flatnonzero(day == DAY_N)[0]]
            n = int((day == DAY_N).sum())
            assert (rank.max() - rank.min()) <= np.ceil(n / 5)
            seen.append({int(5 * r / n) for r in rank})
        common = set.intersection(*seen)
        assert common
        bands |= common
    assert bands == set(range(5))
