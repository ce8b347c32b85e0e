"""The command and the kept result, without JAX; what compiles is in tests/tpu/test_compile.py."""

import json
import sys
from pathlib import Path

import pytest

from cortext.cli import run
from cortext.training import read_train_config
from cortext_bench import tpu_compile
from cortext_bench.tpu_compile import SHAPES
from cortext_bench.workers import Missing

ROOT = Path(__file__).resolve().parents[2]
KEPT = ROOT / "benchmarks" / "results" / "tpu-compile.json"
COMMAND = ["bench", "tpu-compile"]


@pytest.fixture
def kept():
    return json.loads(KEPT.read_text())


@pytest.fixture
def without_compiler(monkeypatch, kept):
    """What was kept instead of what would be compiled.

    The noise model's wide version does not compile.
    """

    def compiled(name, target):
        if name == "adversarial, noise 7168":
            raise Missing("v5e:2x4: the step does not compile: no memory")
        return kept["shapes"][name]

    monkeypatch.setattr(tpu_compile, "need", lambda module, extra: None)
    monkeypatch.setattr(tpu_compile.metadata, "version", lambda name: "1.0")
    monkeypatch.setattr(tpu_compile, "_compile", compiled)


def test_without_jax_the_command_says_what_to_install(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "jax", None)
    assert run(COMMAND) == 2
    assert capsys.readouterr().err == (
        "cortext: jax is not installed; in a checkout of cortext: pip install '.[tpu]'\n"
    )


def test_an_unknown_shape_is_one_line(capsys):
    assert run([*COMMAND, "--shape", "basline"]) == 2
    assert "did you mean 'baseline'" in capsys.readouterr().err


def test_tables_say_that_times_are_estimates(without_compiler, capsys):
    assert run(COMMAND) == 0
    shown = capsys.readouterr().out
    for words in (
        "GiB of a chip's memory",
        "h of 120,000, estimated",
        "nothing was measured on a TPU",
        "4-6 h, claimed",
    ):
        assert words in shown
    assert (
        "adversarial, noise 7168 left out: v5e:2x4: the step does not compile: no memory" in shown
    )
    assert "baseline: memory fits: yes" in shown


def test_one_object_is_printed_and_written(without_compiler, kept, tmp_path, capsys):
    out = tmp_path / "new" / "tpu.json"
    assert run([*COMMAND, "--shape", "baseline", "--out", str(out), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result == json.loads(out.read_text())
    assert result["shapes"] == {"baseline": kept["shapes"]["baseline"]}
    assert result["chip"]["flops"] == 197e12


def test_where_nothing_compiles_the_reason_is_the_one_line(without_compiler, capsys):
    assert run([*COMMAND, "--shape", "adversarial, noise 7168"]) == 2
    assert capsys.readouterr().err.endswith(
        "\ncortext: v5e:2x4: the step does not compile: no memory\n"
    )


@pytest.mark.parametrize("name", SHAPES)
def test_what_is_kept_is_the_published_shape_and_passed_its_checks(name, kept):
    target = kept["shapes"][name]["target"]
    assert (target["n_features"], target["n_days"], target["n_bins"], target["chips"]) == (
        512,
        45,
        900,
        8,
    )
    assert set(kept["shapes"][name]["checks"].values()) == {True}
    assert kept["shapes"][name]["memory"]["total"] < 16 * 2**30
    config = read_train_config(SHAPES[name].recipe, SHAPES[name].overrides)
    assert target["batch"] == config.dataset.batch_size


@pytest.mark.parametrize("name", SHAPES)
def test_the_pages_have_the_kept_numbers(name, kept):
    found = kept["shapes"][name]
    memory, program, ms, hours = (
        line
        for page in ("tpu-compile", "tpu-step-time")
        for line in (ROOT / f"docs/measured/{page}.md").read_text().splitlines()
        if line.startswith(f"| {name} |")
    )
    assert f" {found['flops'] / 1e9:,.0f} |" in program
    assert f" {found['hbm_bytes'] / 1e9:.1f} |" in program
    assert f" {found['memory']['total'] / 2**30:.2f} |" in memory
    estimate = found["estimate"]
    latencies = estimate["latencies"]
    for row, numbers in {
        ms: [
            estimate["roofline_ms"],
            *(each["ms"] for each in latencies),
            estimate["schedule_ms"],
        ],
        hours: [
            estimate["hours"],
            *(each["hours"] for each in latencies),
            estimate["schedule_hours"],
        ],
    }.items():
        assert row.endswith("".join(f" {number:.1f} |" for number in numbers))


def test_the_guide_has_the_memory_and_the_range_of_hours(kept):
    page = (ROOT / "docs/guides/tpu.md").read_text()
    for found in kept["shapes"].values():
        estimate = found["estimate"]
        hours = [estimate["hours"], estimate["schedule_hours"]]
        hours += [each["hours"] for each in estimate["latencies"]]
        total = found["memory"]["total"] / 2**30
        assert f"| {total:.2f} | {min(hours):.1f} to {max(hours):.1f} |" in page
