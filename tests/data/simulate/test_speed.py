"""The simulator is fast enough for 45 days of 256 electrodes (see benchmarks/simulator.py)."""

import pytest

import simulator


@pytest.mark.slow
def test_simulation_runs_at_200_times_real_time_on_one_core(tmp_path):
    recorded_s, processor_s = simulator.to_disk(50, tmp_path)
    assert recorded_s >= 200 * processor_s
