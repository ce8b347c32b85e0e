"""The methods on real hypotheses of ten seeds, against figures found by others' programs."""

import time

import pytest

from cortext_lm.ensemble import EnsembleOptions, combine_lists

T15, T12 = "nbest/t15_val_even.jsonl", "phonemes/t12_val_even.jsonl"
FIELD = "wfst_seed_hypotheses"


def test_t15_gives_the_known_figures(real_data):
    start = time.process_time()
    mbr = combine_lists(real_data / T15, FIELD, EnsembleOptions(method="mbr"))
    rover = combine_lists(real_data / T15, FIELD)
    assert time.process_time() - start < 5
    rates = mbr.system_rates()
    assert 100 * sum(rates) / len(rates) == pytest.approx(4.62, abs=0.005)
    assert 100 * mbr.oracle_rate() == pytest.approx(1.59, abs=0.005)
    assert 100 * mbr.error_rate().rate == pytest.approx(3.26, abs=0.005)
    assert 100 * rover.error_rate().rate <= 3.28 + 0.005


def test_t12_gives_the_known_figures(real_data):
    mbr = combine_lists(real_data / T12, FIELD, EnsembleOptions(method="mbr"))
    rover = combine_lists(real_data / T12, FIELD)
    assert 100 * mbr.error_rate().rate == pytest.approx(11.6, abs=0.05)
    assert 100 * rover.error_rate().rate <= 11.5 + 0.05
