import json
from dataclasses import replace

import numpy as np
import pytest
from matplotlib.image import imread

from cortext.cli import run
from cortext.data import DayBalancedSampler, open_packed
from cortext.errors import ConfigError
from cortext.training import read_train_config
from cortext_bench.training import compare
from cortext_bench.training.compare import (
    TrainingBenchSettings,
    TrainingShape,
    ratios,
    shapes,
    too_large,
)
from cortext_bench.training.curves import training_curves
from cortext_bench.training.data import ReleaseBatches, SimulatedRecordings
from cortext_bench.training.restated import RestatedSide
from cortext_bench.training.sides import PARTS, Clock, SideSettings
from cortext_bench.training.worker import busy_share
from cortext_bench.workers import Missing

TINY = SimulatedRecordings(n_sessions=3, trials_per_session=6, n_features=4, bins=80)
OVERRIDES = ("model.n_units=8", "dataset.batch_size=4")
SIDE = {
    "ms", "ms_10_90", "cpu_ms", "steps", "trials_per_s", "wait_ms", "wait_share", "parts_ms", "hours_of_120k_batches",
    "memory", "n_parameters", "precision", "threads", "matrix_share",
}  # fmt: skip


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    folder = tmp_path_factory.mktemp("recorded")
    TINY.write(folder)
    return folder


@pytest.fixture(autouse=True)
def small_matrix(monkeypatch):
    monkeypatch.setattr(compare, "MATRIX", {"cpu": 64})


@pytest.fixture
def tiny_shapes(monkeypatch):
    monkeypatch.setattr(
        compare,
        "shapes",
        lambda model, batch_size: {"tiny": TrainingShape("tiny", TINY, OVERRIDES)},
    )


def side(ms, precision, cpu_ms=None):
    return {"ms": ms, "precision": precision, "cpu_ms": cpu_ms or ms}


def test_ratios_are_the_releases_time_over_ours():
    sides = {
        "release": side(60.0, "fp32", 50.0),
        "release_compiled": side(40.0, "fp32", 45.0),
        "release_bf16": side(30.0, "bf16"),
        "ours": side(10.0, "bf16", 9.0),
        "ours_fp32": side(20.0, "fp32"),
    }
    assert ratios(sides) == {"ratio": 4.0, "ratio_cpu": 5.0, "ratio_bf16": 3.0, "ratio_fp32": 2.0}
    on_gpu = {"release_compiled": side(105.0, "bf16"), "ours": side(15.0, "bf16")}
    assert ratios(on_gpu) == {"ratio": 7.0, "ratio_cpu": 7.0, "ratio_bf16": 7.0, "ratio_fp32": None}
    assert set(ratios({"ours": side(1.0, "bf16")}).values()) == {None}


def test_the_release_reads_the_trials_that_our_sampler_draws(recorded):
    split = open_packed(recorded / "packed").split("train")
    sampler = DayBalancedSampler(split.day_N, 5, 2, seed=0)
    batches = ReleaseBatches(recorded, sampler, split)
    for step in range(4):
        chosen = batches[step]
        found = sorted(
            (path.parent.name, number) for path, numbers in chosen.values() for number in numbers
        )
        indices = sampler.indices(step)
        assert found == sorted((split.session(int(i)), int(split.trial_N[i])) for i in indices)


def test_a_clock_counts_from_tick_to_tick():
    import torch

    clock = Clock(torch.device("cpu"))
    clock.ticks, clock.busy = [1.0, 1.5, 1.75], [0.0, 0.25, 0.25]
    assert clock.ms() == [500.0, 250.0]
    assert clock.cpu_ms() == [250.0, 0.0]


def test_the_gpu_is_busy_while_at_least_one_kernel_runs():
    # From 0 to 10, of which 1 to 9 counts: 1 to 2, 3 to 6 (two that overlap), 8 to 9.
    spans = [(3.0, 5.0), (4.0, 6.0), (0.0, 2.0), (8.0, 10.0)]
    assert busy_share(spans) == pytest.approx(5 / 8)
    assert busy_share([(0.0, 4.0), (1.0, 2.0), (4.0, 9.0)]) == pytest.approx(1.0)
    assert busy_share([]) is None


@pytest.mark.slow
def test_operations_are_counted_by_hand():
    """GRU of 8 units on 14 bins of 4 features, two layers: 24 rows each.

    41 tokens; 4 x 4 day layer.
    """
    matrices = 24 * (14 * 4 + 8) + 24 * (8 + 8) + 41 * 8
    plan = TrainingBenchSettings(["ours"], turns=1, steps=1, warmup=1, parts=1, threads=1)
    result = compare.bench_training({"tiny": TrainingShape("tiny", TINY, OVERRIDES)}, plan)
    found = result["shapes"]["tiny"]
    assert result["ratio"] is None
    assert found["sides"]["ours"]["flops_per_patch"] == 6 * matrices
    assert found["sides"]["ours"]["flops_per_bin"] == 4 * 16
    batch = found["batch"]
    assert 4 * 40 <= batch["bins"] <= 4 * 80
    assert batch["flops"] == pytest.approx(batch["patches"] * 6 * matrices + batch["bins"] * 64)


@pytest.mark.slow
def test_the_command_compares_both_sides_and_writes_one_object(tiny_shapes, tmp_path, capsys):
    out = tmp_path / "new" / "training.json"
    command = [
        "bench",
        "training",
        "--shape",
        "tiny",
        "--turns",
        "1",
        "--steps",
        "2",
        "--threads",
        "1",
    ]
    assert (
        run(
            [
                *command,
                "--workers",
                "1",
                "--only",
                "release",
                "--only",
                "ours",
                "--out",
                str(out),
                "--json",
            ]
        )
        == 0
    )
    result = json.loads(capsys.readouterr().out)
    assert result == json.loads(out.read_text())
    sides = result["shapes"]["tiny"]["sides"]
    assert result["ratio"] == pytest.approx(sides["release"]["ms"] / sides["ours"]["ms"])
    for values in sides.values():
        assert set(values) >= SIDE
        assert set(values["parts_ms"]) == set(PARTS)
        assert values["steps"] == 2
        assert min(values["parts_ms"].values()) >= 0
    assert sides["release"]["n_parameters"] == sides["ours"]["n_parameters"]


@pytest.mark.slow
def test_the_transformer_is_compared_with_the_restated_one(monkeypatch, capsys):
    sizes = ("n_units=8", "n_layers=1", "n_heads=1", "head_units=8")
    overrides = (*OVERRIDES[1:], "dataset.days_per_batch=2", *(f"model.{size}" for size in sizes))
    tiny = TrainingShape("transformer_t15", TINY, overrides)
    monkeypatch.setattr(compare, "shapes", lambda model, batch_size: {"tiny": tiny})
    command = "bench training --model transformer --turns 1 --steps 1 --threads 1".split()
    assert run([*command, "--only", "restated_bf16", "--only", "ours", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    sides = result["shapes"]["tiny"]["sides"]
    assert result["ratio_bf16"] == pytest.approx(sides["restated_bf16"]["ms"] / sides["ours"]["ms"])
    assert {values["precision"] for values in sides.values()} == {"bf16"}
    assert sides["restated_bf16"]["n_parameters"] == sides["ours"]["n_parameters"]
    for values in sides.values():
        assert set(values) >= SIDE
        assert min(values["parts_ms"].values()) >= 0


def test_the_restated_transformer_is_left_out_where_it_has_no_counterpart(tmp_path):
    for recipe, reason in (("tiny", "no gru"), ("transformer", "no day layers")):
        plan = SideSettings("restated", str(tmp_path), str(tmp_path), recipe, [])
        with pytest.raises(Missing, match=reason):
            RestatedSide(plan)


@pytest.mark.slow
def test_without_the_yardstick_ours_is_measured_alone(tiny_shapes, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("cortext_bench.training.sides.YARDSTICK", tmp_path / "absent.py")
    command = [
        "bench",
        "training",
        "--turns",
        "1",
        "--steps",
        "1",
        "--threads",
        "1",
        "--only",
        "release",
    ]
    assert run([*command, "--only", "ours"]) == 0
    shown = capsys.readouterr().out
    assert "release left out: the restated published trainer is not at" in shown
    assert "ours alone" in shown


@pytest.mark.slow
def test_curves_begin_alike_and_are_drawn(tmp_path):
    picture = tmp_path / "curves.png"
    overrides = [
        "model.n_units=8",
        "model.rnn_dropout=0",
        "model.input_network.input_layer_dropout=0",
    ]
    transforms = {"white_noise_std": 0, "constant_offset_std": 0, "random_cut": 0}
    overrides += [f"dataset.data_transforms.{name}={value}" for name, value in transforms.items()]
    overrides += ["dataset.batch_size=4", "dataset.days_per_batch=2"]
    plan = TrainingBenchSettings([], threads=1, workers=0)
    result = training_curves(8, plan, picture, TINY, overrides)
    ours, release = (result["curves"][name] for name in ("ours", "release"))
    # Nothing random is left and the weights are the same: the sides differ by rounding (ours in
    # bf16 where it can).
    np.testing.assert_allclose(ours["losses"], release["losses"], rtol=0.02)
    assert [step for step, _, _ in ours["validations"]] == list(range(1, 9))
    assert picture.read_bytes().startswith(b"\x89PNG")
    pixels = imread(picture)[..., :3]
    for colour in ((0x1F, 0x6F, 0xAE), (0xC2, 0x4E, 0x1A)):  # one side blue, the other orange
        assert (np.abs(pixels - np.array(colour) / 255).max(axis=-1) < 0.02).any()


def test_a_model_that_does_not_fit_is_left_out_with_a_reason(monkeypatch):
    monkeypatch.setattr(compare, "_available_bytes", lambda device: 9e9)
    wide = shapes("triple_gru", 8)["noise 7168"]
    reason = too_large(wide, "cpu")
    assert reason is not None
    # 2 x 3 x 7168 x 14336 = 617 M of the noise model, 25 M and 22 M of the other GRUs, 12 M of 45
    # days.
    assert "676 M parameters" in reason
    assert too_large(shapes("gru", 8)["published"], "cpu") is None
    result = compare.bench_training({"wide": wide}, TrainingBenchSettings(["ours"]))
    assert result["missing"] == {"wide": reason}
    assert result["ratio"] is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ["--yardstick", "absent.py"],
            "absent.py: there is no such file; give benchmarks/release_trainer.py",
        ),
        (["--picture", "curves.png"], "--picture draws the curves of --curves"),
        (["--device", "cuda:99"], "device 'cuda:99' cannot be used"),
    ],
)
def test_what_cannot_be_measured_is_one_line_before_anything_is(options, message, capsys):
    assert run(["bench", "training", *options]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert message in said


@pytest.mark.parametrize("model", compare.CLAIMS)
@pytest.mark.parametrize("batch_size", [8, 64])
def test_every_shape_is_a_recipe_that_can_be_trained(model, batch_size):
    for shape in shapes(model, batch_size).values():
        config = read_train_config(shape.recipe, shape.overrides)
        assert config.model.kind == model
        assert config.dataset.days_per_batch <= shape.recording.n_sessions


def test_unknown_names_are_one_line(capsys):
    assert run(["bench", "training", "--shape", "publishd"]) == 2
    assert "did you mean 'published'" in capsys.readouterr().err
    assert run(["bench", "training", "--only", "our"]) == 2
    assert run(["bench", "training", "--model", "grou"]) == 2
    with pytest.raises(ConfigError):
        compare.start(
            "theirs", None, replace(TrainingShape("tiny", TINY)), TrainingBenchSettings([])
        )
