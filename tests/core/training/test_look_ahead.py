"""The look-ahead of a model, as `cortext train` tells it."""

import json

import pytest

from cortext.cli import run as cortext


@pytest.mark.parametrize(
    ("attention", "told", "kept_ms"),
    # The published smoothing has 9 taps: four of them are later bins of 20 ms.
    [("causal", "80 ms", 80.0), ("bidirectional", "the whole trial", None)],
)
def test_train_tells_how_far_a_model_looks_ahead(
    packed, tmp_path, capsys, attention, told, kept_ms
):
    sizes = {"n_units": 8, "n_layers": 1, "n_heads": 1, "head_units": 4, "attention": attention}
    settings = {f"model.{key}": value for key, value in sizes.items()}
    settings |= {"num_training_batches": 1, "lr_warmup_steps": 0, "lr_decay_steps": 1}
    settings |= {"lr_warmup_steps_day": 0, "lr_decay_steps_day": 1, "dataset.batch_size": 4}
    settings |= {"dataset.days_per_batch": 2, "precision": "fp32"}
    (tmp_path / "settings.yaml").write_text("model: {kind: transformer}\n")
    command = ["train", "--config", str(tmp_path / "settings.yaml"), "--data", str(packed)]
    command += ["--out", str(tmp_path / "run"), "--no-check"]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    assert cortext(command) == 0
    assert f"look-ahead: {told}\n" in capsys.readouterr().out
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["look_ahead_ms"] == kept_ms
