"""The script behind `make test-gpu`."""

import json
import subprocess
import sys

import numpy as np
import pytest

import gpu_check
from cortext.errors import MissingLibrary


def test_differences_are_relative_to_the_largest_expected_value(tmp_path):
    checks = gpu_check.Checks("cpu", tmp_path, section="one")
    checks.close("near", [1.0, -4.0], [1.0, -4.02], bound=0.005)  # 0.02 / 4.02
    checks.close("far", [1.0, -4.0], [1.1, -4.0], bound=0.005)  # 0.1 / 4
    checks.close("not a number", [1.0, np.nan], [1.0, 1.0], bound=0.005)
    checks.close("another shape", [1.0], [1.0, 1.0], bound=0.005)
    near, far, broken, other = checks.done
    assert near.passed
    assert near.found == pytest.approx(0.02 / 4.02)
    assert not far.passed
    assert far.found == pytest.approx(0.025)
    assert not broken.passed
    assert not other.passed
    assert other.said == "shape (1,) instead of (2,)"


def test_an_error_fails_its_section_and_the_next_one_runs(tmp_path, capsys):
    checks = gpu_check.Checks("cpu", tmp_path)
    with checks.timed("broken"):
        raise ValueError("no such kernel\nand more")
    with checks.timed("missing"):
        raise MissingLibrary("bitsandbytes is not installed")
    with checks.timed("whole"):
        checks.holds("something", True)
    broken, missing, whole = checks.done
    assert (broken.passed, broken.said) == (False, "ValueError: no such kernel")
    assert missing.passed is None
    assert whole.passed
    result = gpu_check.result_of(checks)
    assert result["passed"] is False
    page = gpu_check.page_of(result)
    assert "| broken | all |  |  | FAILED: ValueError: no such kernel |" in page
    assert "| missing | all |  |  | not run: bitsandbytes is not installed |" in page
    assert "| whole | something |  |  | passed |" in page


@pytest.mark.slow
def test_the_script_runs_without_a_gpu(tmp_path):
    """Live steps, with the training, the recordings and the files that they need."""
    command = [sys.executable, gpu_check.__file__, "--device", "cpu", "--out", tmp_path]
    ended = subprocess.run(
        [*map(str, command), "--only", "live", "--only", "host waits"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    result = json.loads((tmp_path / "cpu.json").read_text())
    assert result["passed"]
    assert {check["section"] for check in result["checks"]} == {"live", "host waits"}
    assert {check["name"] for check in result["checks"] if check["passed"] is None} == {
        "host waits of a step"
    }
    assert "# Checks on CPU" in (tmp_path / "cpu.md").read_text()
