"""The benchmark of live decoding, on a model that is small."""

import os
import sys

import numpy as np
import pytest
import torch

from cortext.cli import run as cortext
from cortext.errors import ConfigError, RunError
from cortext.models import AcousticModel, GRUConfig, TransformerConfig, build_model
from cortext.models.card import Smoothing
from cortext_bench import latency
from cortext_bench.decoder.searcher import Paths
from cortext_bench.latency import LatencySettings, bench_latency, demo_directory, one_core
from cortext_bench.latency_modes import EAGER, MODES, Played, steppers
from cortext_bench.posteriors import INVENTORY, Utterance
from cortext_live.steps.stepping import TorchStepper

TORCH = [EAGER, "torch fp32", "torch bf16"]
STAGES = {"normalise", "smooth", "model", "search"}


@pytest.fixture
def model():
    torch.manual_seed(0)
    network = build_model(
        GRUConfig(n_units=16, n_layers=2), n_features=8, n_days=2, n_classes=len(INVENTORY)
    )
    return AcousticModel(
        network,
        sessions=("a", "b"),
        n_features=8,
        inventory=INVENTORY,
        smoothing=Smoothing(),
        feature_subset=None,
    )


@pytest.fixture
def utterances(clear_posterior):
    return [
        Utterance(sentence, clear_posterior(sentence))
        for sentence in ("the cat sat", "i see two cats")
    ]


@pytest.fixture
def paths(lm_dir, tmp_path):
    return Paths(lm_dir, lm_dir, tmp_path)


def test_every_mode_is_timed_for_as_many_steps_as_asked(model, utterances, paths):
    result = bench_latency(
        model, paths, utterances, {"kind": "pseudo"}, LatencySettings(TORCH, steps=100)
    )
    n_frames = [len(utterance.log_probs_PV) for utterance in utterances]
    assert list(result["modes"]) == TORCH
    for values in result["modes"].values():
        # The first utterance warms up; from the second on they come in turn, until there are enough
        # steps.
        turn = [n_frames[(number + 1) % 2] for number in range(values["utterances"])]
        assert values["steps"] == sum(turn)
        assert sum(turn[:-1]) < 100 <= sum(turn)
        assert set(values["stages_ms"]) == STAGES | {"total", "ahead"}
        for times in (*values["stages_ms"].values(), values["cpu_ms"], values["final_ms"]):
            assert 0 <= times["p50"] <= times["p95"] <= times["p99"] <= times["max"] < 10_000
        parts_ms = sum(values["stages_ms"][stage]["p50"] for stage in STAGES)
        assert values["stages_ms"]["total"]["max"] >= parts_ms / 2
    assert result["ratios"][EAGER] == 1
    assert result["met"]["fastest"] is None  # no errors were measured


def test_a_transformer_is_timed_with_its_whole_context_before_every_utterance(utterances, paths):
    config = TransformerConfig(n_units=8, n_layers=1, n_heads=1, context_frames=30)
    network = build_model(config, n_features=8, n_days=2, n_classes=len(INVENTORY))
    model = AcousticModel(
        network, sessions=("a", "b"), n_features=8, inventory=INVENTORY, smoothing=Smoothing()
    )
    modes = [EAGER, "torch fp32"]
    result = bench_latency(
        model, paths, utterances, {"kind": "pseudo"}, LatencySettings(modes, steps=50)
    )
    assert result["input"]["frames_before"] == 30
    assert result["modes"]["torch fp32"]["wer"] == 0
    assert {"fp32_work_p50", "fastest_work_p50"} <= set(result["met"])

    played, alone = Played(TorchStepper(model), 30), TorchStepper(model)
    played.fill()
    _, _, n_kept_1B = played._stepper._state
    assert n_kept_1B.tolist() == [[30]]
    bins_SC = np.ones((4, 8), dtype=np.float32)
    assert not np.array_equal(played.step(bins_SC), alone.step(bins_SC))


def test_the_search_hears_the_posteriors_and_not_the_model(model, utterances, paths):
    result = bench_latency(
        model, paths, utterances, {"kind": "pseudo"}, LatencySettings(["torch fp32"], steps=100)
    )
    assert result["modes"]["torch fp32"]["wer"] == 0


def test_a_played_stepper_still_computes(model):
    bins_SC = np.ones((14, 8), dtype=np.float32)
    played, alone = Played(TorchStepper(model)), TorchStepper(model)
    played.logits = iter(np.eye(41, dtype=np.float32))
    np.testing.assert_array_equal(played.step(bins_SC), np.eye(41)[0])
    np.testing.assert_array_equal(played.step(bins_SC), np.eye(41)[1])
    played.logits = None
    for _ in range(2):
        alone.step(bins_SC)
    played.prepare(bins_SC[:10])
    # Its state has advanced.
    np.testing.assert_array_equal(played.step(bins_SC), alone.step(bins_SC))


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="cores cannot be chosen here")
def test_one_core_is_used_and_given_back():
    before, threads = os.sched_getaffinity(0), torch.get_num_threads()
    with one_core(min(before)) as core:
        assert os.sched_getaffinity(0) == {core} == {min(before)}
        assert torch.get_num_threads() == 1
    assert os.sched_getaffinity(0) == before
    assert torch.get_num_threads() == threads
    with pytest.raises(ConfigError, match="core 9999"), one_core(9999):
        pass


def test_targets_are_judged_by_what_was_measured():
    def mode(p99, per, final=5.0, work=9.0):
        times = {
            "stages_ms": {"total": {"p99": p99}},
            "final_ms": {"p99": final},
            "cpu_ms": {"p50": work, "p99": work},
        }
        return times | {"errors": per and {"per": per}}

    modes = {
        "torch fp32": mode(5.9, 0.100),
        "torch bf16": mode(2.9, 0.102),
        "onnx int8": mode(1.0, 0.104, work=1.0),
    }
    waits = {"fp32": True, "fastest": "torch bf16", "fastest_mode": True}
    assert latency._met(modes) == waits | {
        "fp32_work": False, "fastest_work": False, "final": True, "no_more_work_than_torch": None,
    }  # fmt: skip
    modes = {
        "torch fp32": mode(6.1, 0.1, work=5.9),
        "torch bf16": mode(3.1, 0.1, final=31.0, work=2.9),
    }
    waits = {"fp32": False, "fastest": "torch bf16", "fastest_mode": False}
    assert latency._met(modes) == waits | {
        "fp32_work": True, "fastest_work": True, "final": False, "no_more_work_than_torch": None,
    }  # fmt: skip
    waits = {"fp32": None, "fastest": None, "fastest_mode": None}
    assert latency._met({"onnx fp32": mode(1.0, None)}) == waits | {
        "fp32_work": None, "fastest_work": None, "final": True, "no_more_work_than_torch": None,
    }  # fmt: skip


def test_a_transformers_work_is_judged_by_its_median_too():
    targets = latency.TARGETS | latency.WORK_TARGETS["transformer"]

    def met(fp32_ms, int8_ms):
        modes = {}
        for name, work_ms in (("torch fp32", fp32_ms), ("torch int8", int8_ms)):
            stages_ms = {"total": {"p99": 5.0}}
            cpu_ms = {"p50": work_ms, "p99": 2 * work_ms}
            modes[name] = {
                "stages_ms": stages_ms, "cpu_ms": cpu_ms, "final_ms": {"p99": 1.0}, "errors": {"per": 0.1},
            }  # fmt: skip
        found = latency._met(modes, targets)
        return found["fp32_work_p50"], found["fastest_work_p50"]

    assert met(2.9, 1.4) == (True, True)
    assert met(3.1, 1.6) == (False, False)
    assert "fp32_work_p50" not in latency._met({"onnx fp32": {
        "stages_ms": {"total": {"p99": 1.0}}, "cpu_ms": {"p50": 1.0, "p99": 1.0},
        "final_ms": {"p99": 1.0}, "errors": None,
    }})  # fmt: skip


def test_unknown_modes_and_directories_are_refused(tmp_path):
    with pytest.raises(ConfigError, match="did you mean 'torch bf16'"):
        LatencySettings(["torch bf61"])
    with pytest.raises(RunError, match="not a directory of cortext demo"):
        demo_directory(tmp_path)


def test_without_onnx_the_others_are_timed(model, monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    found, missing = steppers(model, ["torch fp32", "onnx fp32", "onnx int8"])
    assert list(found) == ["torch fp32"]
    assert set(missing) == {"onnx fp32", "onnx int8"}
    assert "pip install '.[onnx]'" in missing["onnx fp32"]


def test_data_without_a_run_is_a_users_error(capsys):
    assert cortext(["bench", "latency", "--data", "somewhere"]) == 2
    assert "--data goes with --run" in capsys.readouterr().err


@pytest.mark.slow
def test_all_modes_run_and_the_command_prints_them(
    model, lm_dir, trials_file, tmp_path, monkeypatch, capsys
):
    pytest.importorskip("onnxruntime")
    monkeypatch.setattr(latency, "published_model", lambda kind: model)
    out = tmp_path / "latency.json"
    arguments = [
        "--steps",
        "50",
        "--trials",
        str(trials_file),
        "--lm",
        str(lm_dir),
        "--out",
        str(out),
    ]
    assert cortext(["bench", "latency", *arguments]) == 0
    printed = capsys.readouterr().out
    for mode in MODES:
        assert mode in printed
    assert out.is_file()
