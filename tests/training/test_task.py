"""A task of a plug-in: causal regression of two frames a bin instead of phonemes."""

import json
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import pytest
import torch

from cortext.data.packed import open_packed
from cortext.errors import ConfigError, RunError
from cortext.models.storage import read_tensors, write_tensors
from cortext.text.phonemes import Inventory
from cortext.training import Task, Trainer, register_task, train
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

    def save(self, model, folder):
        return write_tensors(folder / "model.safetensors", model.network.state_dict(), {})


@pytest.fixture
def regression(config, monkeypatch):
    for name in list(TASKS):  # undone afterwards
        monkeypatch.setitem(TASKS, name, TASKS[name])
    register_task("regression")(Regression)
    yield replace(
        config,
        task={"kind": "regression"},
        best_metric="val_loss",
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
    with pytest.raises(ConfigError, match="unknown task 'regresion'; did you mean 'regression'"):
        replace(regression, task={"kind": "regresion"})
    assert not (tmp_path / "run").exists()


def test_the_default_task_is_ctc_and_may_be_named(config, packed, undisturbed, tmp_path):
    named = replace(config, task={"kind": "ctc"})
    ours = train(named, packed, tmp_path / "named", progress=False)
    default = json.loads((undisturbed / "summary.json").read_text())
    assert ours.val_loss == default["val_loss"]
    assert ours.loss == "CTC loss"
