"""A task of a plug-in: causal regression of two frames a bin instead of phonemes."""

import json
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import pytest
import torch

from cortext.cli import run as cortext
from cortext.data.packed import open_packed
from cortext.errors import ConfigError, RunError
from cortext.models import load_model
from cortext.models.storage import read_tensors
from cortext.text.inventory import Inventory
from cortext.training import Task, Trainer, read_train_config, register_task, train
from cortext.training.config import TASKS
from cortext.training.setup import new_model

NAMES = ("first/0", "first/1", "second/0", "second/1")
MIXING_CV = np.random.default_rng(1).normal(size=(8, len(NAMES))).astype(np.float32)


@dataclass
class RegressionConfig:
    kind: Literal["regression"] = "regression"


def targets_of(split, i: int) -> np.ndarray:
    return split.features(i).astype(np.float32) @ MIXING_CV


class SquaredError:
    def __init__(self, split):
        self.targets = [torch.from_numpy(targets_of(split, i)) for i in range(len(split))]

    def __call__(self, network, batch, fraction):
        outputs_BPV = network(batch.x_BTC, batch.day_B, n_patches_B=batch.n_patches_B)[0].float()
        errors = [
            (outputs_BPV[row, : len(self.targets[i])] - self.targets[i]).square().mean()
            for row, i in enumerate(batch.indices.tolist())
        ]
        return {"loss": torch.stack(errors)}


class Regression(Task):
    Config: ClassVar[type] = RegressionConfig
    loss_name: ClassVar[str] = "squared error"

    def new_model(self, data, sessions, init_from):
        return new_model(self.config, data, sessions, init_from, Inventory("values", NAMES))

    def loss(self, model, split):
        return SquaredError(split)


@pytest.fixture
def regression(config, monkeypatch):
    for name in list(TASKS):  # undone afterwards
        monkeypatch.setitem(TASKS, name, TASKS[name])
    register_task("regression")(Regression)
    yield replace(
        config,
        task={"kind": "regression"},
        best_metric=None,
        model=replace(config.model, patch_size=1, patch_stride=1, rnn_dropout=0.0),
        dataset=replace(
            config.dataset,
            data_transforms=replace(
                config.dataset.data_transforms, smooth_data=False, random_cut=0, white_noise_std=0.0
            ),
        ),
        num_training_batches=20,
        batches_per_val_step=10,
        lr_max=0.08,
        lr_decay_steps=20,
        precision="fp32",
    )
    del TASKS["regression"]


def test_a_registered_task_is_learnt_and_measured(regression, packed, tmp_path):
    summary = train(regression, packed, tmp_path / "run", progress=False)
    split = open_packed(packed).split("val")
    # Who answers 0 for everything has this error; the model must explain half of it.
    power = np.mean([np.square(targets_of(split, i)).mean() for i in range(len(split))])
    assert summary.val_loss < 0.5 * power
    assert (summary.val_per, summary.val_wer, summary.loss) == (None, None, "squared error")
    assert "squared error" in str(summary)
    assert "PER" not in str(summary)
    assert "kind: regression" in (tmp_path / "run" / "config.yaml").read_text()


def test_a_validation_measures_the_kept_weights_of_the_task(regression, packed, tmp_path):
    with Trainer(regression, packed, tmp_path / "run", progress=False) as trainer:
        trainer.run(10)
        split, network = trainer.validator.batches.split, trainer.model.network.eval()
        errors = []
        for i in range(len(split)):
            x_BTC = torch.from_numpy(split.features(i).astype(np.float32))[None]
            day_B = torch.tensor([split.day_N[i]])
            with torch.no_grad():
                outputs_PV = network(x_BTC, day_B)[0][0].numpy()
            errors.append(np.square(outputs_PV - targets_of(split, i)).mean())
        line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert line["kind"] == "val"
    assert line["val_loss"] == pytest.approx(np.mean(errors), rel=1e-4)


def test_a_resumed_task_is_the_same_run(regression, packed, tmp_path):
    train(regression, packed, tmp_path / "one", progress=False)
    with Trainer(regression, packed, tmp_path / "two", progress=False) as trainer:
        trainer.run(13)
    train(regression, packed, tmp_path / "two", resume=True, progress=False)
    one, two = (read_tensors(tmp_path / name / "model.safetensors")[0] for name in ("one", "two"))
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_a_run_is_not_resumed_with_another_task(config, regression, packed, tmp_path):
    with Trainer(regression, packed, tmp_path / "run", progress=False) as trainer:
        trainer.run(1)
    with pytest.raises(RunError, match="begun with task"):
        train(replace(regression, task=None), packed, tmp_path / "run", resume=True)


def test_settings_that_a_task_does_not_have_are_refused(regression, packed, tmp_path):
    with pytest.raises(ConfigError, match=r"best_metric is 'val_per'; one of 'val_loss' is needed"):
        replace(regression, best_metric="val_per")
    with pytest.raises(ConfigError, match="task 'regression' uses no language model"):
        train(regression, packed, tmp_path / "run", lm=tmp_path)
    with pytest.raises(ConfigError, match="task 'regression' has a loss of its own; leave out"):
        train(regression, packed, tmp_path / "run", overrides=["loss={kind: ctc}"])
    with pytest.raises(ConfigError, match="task 'regression' keeps no logits of validations"):
        train(regression, packed, tmp_path / "run", overrides=["save_val_logits=true"])
    with pytest.raises(ConfigError, match="unknown task 'regresion'; did you mean 'regression'"):
        replace(regression, task={"kind": "regresion"})
    assert not (tmp_path / "run").exists()


def test_the_default_task_is_ctc_and_may_be_named(config, packed, undisturbed, tmp_path):
    named = replace(config, task={"kind": "ctc"})
    ours = train(named, packed, tmp_path / "named", progress=False)
    default = json.loads((undisturbed / "summary.json").read_text())
    assert ours.val_loss == default["val_loss"]
    assert ours.loss == "CTC loss"


def test_the_first_metric_of_a_task_that_an_override_names_is_its_best_metric(regression, tmp_path):
    (tmp_path / "a.yaml").write_text("num_training_batches: 3\n")
    (tmp_path / "b.yaml").write_text("best_metric: val_wer\n")

    def read(name, *changes):
        return read_train_config(tmp_path / name, changes)

    assert read("a.yaml").best_metric == "val_per"
    assert read("a.yaml", "task.kind=regression").best_metric == "val_loss"
    with pytest.raises(ConfigError, match="best_metric is 'val_wer'; one of 'val_loss' is needed"):
        read("b.yaml", "task.kind=regression")
    assert read("b.yaml", "task.kind=regression", "best_metric=null").best_metric == "val_loss"
    (tmp_path / "c.yaml").write_text("lr_max: -1\n")
    with pytest.raises(ConfigError, match=r"c\.yaml: lr_max is -1"):
        read("c.yaml", "seed=3")
    assert read("c.yaml", "lr_max=0.1").lr_max == 0.1
    with pytest.raises(ConfigError, match=r"^lr_max is -2") as error:
        read("a.yaml", "lr_max=-2")
    assert "a.yaml" not in str(error.value)


def test_a_misspelt_override_is_named_also_where_the_file_needs_another(regression, tmp_path):
    file = tmp_path / "own.yaml"
    file.write_text("best_metric: val_loss\n")
    with pytest.raises(ConfigError, match="lr_maxx; did you mean 'lr_max'"):
        read_train_config(file, ["task={kind: regression}", "lr_maxx=3"])
    file.write_text("best_metric: val_mse\n")
    with pytest.raises(ConfigError, match=r"own\.yaml: best_metric is 'val_mse'"):
        read_train_config(file)


def test_a_model_that_is_given_is_kept_as_one_of_the_task(regression, packed, tmp_path):
    with Trainer(regression, packed, tmp_path / "first", progress=False) as trainer:
        model = trainer.model
    model.task = "ctc"
    with Trainer(regression, packed, tmp_path / "run", model=model, progress=False) as trainer:
        trainer.run(2)
        trainer.validate()
    assert load_model(tmp_path / "run", task="regression").task == "regression"


def test_commands_for_phonemes_refuse_a_run_of_another_task(regression, packed, tmp_path, capsys):
    run = tmp_path / "run"
    with Trainer(regression, packed, run, progress=False) as trainer:
        trainer.validate()
    data, out = ["--data", str(packed)], ["--out", str(tmp_path / "out")]
    for command in (
        ["evaluate", str(run), *data, *out],
        ["adapt", str(run), *data, *out],
        ["export", str(run), "--format", "release", *out],
        ["train", "--init-from", str(run), "--config", "tiny", *data, *out],
    ):
        assert cortext(command) == 2
        printed = capsys.readouterr().err.splitlines(keepends=True)
        # The labels of the fixture are made up, which `train` notes.
        error = "".join(line for line in printed if not line.startswith("note: labels of "))
        assert error.startswith(f"cortext: {run}: a run of task 'regression'; a run of phonemes"), (
            error
        )
        assert error.count("\n") == 1
        assert not (tmp_path / "out").exists()
    assert load_model(run, task="regression").inventory.symbols == NAMES
    with Trainer(regression, packed, tmp_path / "next", init_from=run, progress=False) as trainer:
        started = trainer.model.network.state_dict()
    kept = load_model(run, task="regression").network.state_dict()
    assert all(torch.equal(started[name], kept[name]) for name in kept)
