"""The script behind `make test-gpu`."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

import gpu_bench
import gpu_check
import gpu_page
import gpu_variants
from cortext.errors import MissingLibrary
from cortext_cuda import ctc

RESULTS = sorted((gpu_page.PAGE.parents[2] / "benchmarks" / "results").glob("gpu-bench-*.json"))


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


def test_a_table_of_variants_compares_each_with_the_one_above_and_the_first():
    found = {
        "before": {"ms": 20.0, "busy_share": 0.5},
        "+ graph": {"ms": 8.0, "busy_share": None},
        "+ kernel": {"ms": 10.0},
    }
    rows = gpu_check.variants_table(found).splitlines()[2:]
    assert rows == [
        "| before | 20.0 |  |  | 50% |",
        "| + graph | 8.0 | -12.0 | 2.50 x |  |",
        "| + kernel | 10.0 | +2.0 | 2.00 x |  |",
    ]


def test_a_part_that_is_turned_off_says_why_it_is_not_taken():
    device = torch.device("cuda", 0)
    with gpu_variants.only(("optimizer", "graph")):
        assert "turned off" in ctc.why_not(device, 10)
    with gpu_variants.only(("CTC",)):
        assert "511" in ctc.why_not(device, 512)


def test_the_page_gets_the_tables_of_a_result_and_keeps_what_that_lacks():
    result = {
        "device": {"name": "a GPU", "cuda": "13.0", "cudnn": 91900},
        "provenance": {"created": "2026-11-28T07:00:00", "versions": {"torch": "2.11.0"}},
        "seconds": {"CTC": 30.0, "variants": 60.0},
        "checks": [
            {"section": "CTC", "name": "losses", "passed": True, "found": 2e-6, "bound": 1e-5},
            {"section": "CTC", "name": "cuDNN", "passed": None, "found": None, "bound": None},
        ],
        "measured": {
            "ctc": {
                "ours, 41 tokens": {"losses": 1.2e-7, "gradients": 3e-7, "ms": 0.104},
                "cudnn, 41 tokens": "CUDNN_STATUS_NOT_SUPPORTED. And more.",
            },
            "variants": {"gru": {"before": {"ms": 20.0, "busy_share": 0.5}}},
        },
    }
    page = "a\n<!-- bench ctc -->\nold\n<!-- end -->\nb <!-- bench transformer -->old<!-- end -->"
    found = gpu_page.tables(result)
    assert "1 checks passed, 0 failed, in 1.5 minutes" in found["device"]
    assert "| CTC | 1 | 0 | 0.2 |" in found["checks"]
    assert "| before | 20.0 |" in found["gru"]
    text = gpu_page.filled(page, found)
    assert "| 41 tokens | cortext | 0.10 | 1e-07 | 3e-07 |" in text
    assert "| 41 tokens | cuDNN |  |  | CUDNN_STATUS_NOT_SUPPORTED |" in text
    assert text.count("old") == 1


@pytest.mark.parametrize("path", RESULTS, ids=lambda path: path.name)
def test_the_page_shows_the_kept_result(path):
    page = gpu_page.PAGE.read_text(encoding="utf-8")
    assert gpu_page.filled(page, gpu_page.tables(json.loads(path.read_text()))) == page


@pytest.mark.slow
def test_the_benchmark_of_parts_runs_without_a_gpu(tmp_path):
    command = [sys.executable, gpu_bench.__file__, "--device", "cpu", "--out", tmp_path]
    ended = subprocess.run(
        [*map(str, command), "--only", "variants, times", "--only", "CTC"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    variants = json.loads((tmp_path / "cpu.json").read_text())["measured"]["variants"]
    assert {model: list(found) for model, found in variants.items()} == {
        "gru": ["before"],
        "transformer": ["before"],
    }
