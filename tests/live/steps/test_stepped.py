"""Phoneme errors of stepped models."""

import json

import numpy as np
import pytest

from cortext.cli import run as cortext
from cortext.data import make_trial, open_dataset, write_session
from cortext.errors import DataError
from cortext.evaluation.recognise import recognise
from cortext.evaluation.scores import rates
from cortext.models import (
    AcousticModel,
    TransformerConfig,
    build_model,
    load_model,
    save_model,
)
from cortext_live.steps.stepped import step_through, stepped_errors
from cortext_live.steps.stepping import TorchStepper


def test_float32_makes_the_errors_that_evaluation_finds(tiny):
    model = load_model(tiny.run)
    steppers = {
        precision: TorchStepper(model, precision=precision) for precision in ("fp32", "bf16")
    }
    seen = []
    errors = stepped_errors(
        steppers, tiny.data, progress=lambda done, total: seen.append((done, total))
    )
    evaluated = rates(recognise(tiny.run, tiny.data, "val", None).trials)
    assert errors["fp32"]["per"] == evaluated.per
    assert errors["fp32"]["other_frames"] == 0
    assert abs(errors["bf16"]["per"] - errors["fp32"]["per"]) < 0.05
    assert errors["bf16"]["n_trials"] == 6
    assert seen[-1] == (6, 6)


def test_a_model_that_fills_its_last_patch_makes_the_errors_that_evaluation_finds(tiny, tmp_path):
    known = load_model(tiny.run)
    sizes = {"n_units": 8, "n_layers": 1, "n_heads": 1, "head_units": 4, "patch_size": 5}
    network = build_model(
        TransformerConfig(**sizes, patch_stride=5),
        n_features=known.n_features,
        n_days=len(known.sessions),
        n_classes=len(known.inventory),
    )
    model = AcousticModel(
        network,
        sessions=known.sessions,
        n_features=known.n_features,
        smoothing=known.smoothing,
        inventory=known.inventory,
    )
    save_model(model, tmp_path / "run")
    lengths = [len(trial.features_TC) for trial in open_dataset(tiny.data).trials("val")]
    assert any((n_bins - 8) % 5 for n_bins in lengths)
    evaluated = recognise(tmp_path / "run", tiny.data, "val", None).trials
    assert [len(trial.logits_PV) for trial in evaluated] == [-(-(n - 8) // 5) for n in lengths]
    stepper = TorchStepper(load_model(tmp_path / "run"))
    assert stepped_errors({"fp32": stepper}, tiny.data)["fp32"]["per"] == rates(evaluated).per
    with pytest.raises(DataError, match="a trial has 8 bins; one frame of this model needs 9"):
        step_through(stepper, np.zeros((8, stepper.n_features), np.float32))


def test_a_trial_is_smoothed_as_at_evaluation(tiny):
    model = load_model(tiny.run)
    features_TC = np.random.default_rng(0).normal(size=(120, model.n_features)).astype(np.float32)
    logits_PV = step_through(TorchStepper(model), features_TC)
    np.testing.assert_allclose(logits_PV, model.logits(features_TC, "latest"), atol=1e-5)


@pytest.mark.parametrize("n_bins", [0, 8, 21])
def test_a_trial_too_short_for_a_frame_is_refused(tiny, n_bins):
    stepper = TorchStepper(load_model(tiny.run))
    with pytest.raises(
        DataError, match=f"a trial has {n_bins} bins; one frame of this model needs 22"
    ):
        step_through(stepper, np.zeros((n_bins, stepper.n_features), np.float32))
    assert len(step_through(stepper, np.zeros((22, stepper.n_features), np.float32))) == 1


def test_a_split_without_labels_is_refused(tiny, tmp_path):
    model = load_model(tiny.run)
    trial = make_trial(np.zeros((120, model.n_features)), model.sessions[0], 1, 0, None)
    write_session(tmp_path / model.sessions[0] / "data_test.hdf5", [trial])
    with pytest.raises(DataError, match="no labelled trials"):
        stepped_errors({"fp32": TorchStepper(model)}, tmp_path, "test")


@pytest.mark.slow
def test_an_export_with_data_tells_and_keeps_what_each_precision_costs(tiny, tmp_path, capsys):
    pytest.importorskip("onnxruntime")
    arguments = [
        str(tiny.run),
        "--format",
        "onnx",
        "--out",
        str(tmp_path / "onnx"),
        "--int8",
        "--data",
        str(tiny.data),
    ]
    assert cortext(["export", *arguments, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    evaluated = rates(recognise(tiny.run, tiny.data, "val", None).trials)
    assert printed["errors"]["fp32"]["per"] == evaluated.per
    assert printed["errors"]["int8"]["n_trials"] == 6
    assert json.loads((tmp_path / "onnx" / "onnx.json").read_text()) == printed
    assert cortext(["export", *arguments[:5], "--int8"]) == 0
    said = capsys.readouterr().out
    assert "has not been measured; give --data" in said
    assert "int8: ONNX Runtime's sums are exact here" in said


def test_options_of_onnx_are_refused_for_the_release(tiny, tmp_path, capsys):
    assert (
        cortext(["export", str(tiny.run), "--format", "release", "--out", str(tmp_path), "--int8"])
        == 2
    )
    assert "go with --format onnx" in capsys.readouterr().err
