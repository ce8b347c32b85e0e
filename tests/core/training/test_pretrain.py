"""Pretraining without labels, against sums written out, and as a run from which another starts."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from cortext.cli import run as cortext
from cortext.data.packed import open_packed
from cortext.errors import ConfigError, RunError
from cortext.models import GRUConfig, Output, TransformerConfig, load_model
from cortext.training import Trainer, read_train_config, train
from cortext.training.batches import TrainBatch
from cortext.training.pretrain import PretrainConfig, PretrainLoss, activity


def pretraining(config, **settings):
    config.task = PretrainConfig(**settings)
    config.best_metric = "val_loss"
    config.dataset.data_transforms.random_cut = 0
    return config


def test_a_channel_is_active_if_its_bins_add_up_to_more_than_zero():
    features_TC = np.array([[0, -1], [0, 2], [1, -1], [0, 0]], dtype=np.float16)
    begins, ends = np.array([0, 0, 2, 3, 4]), np.array([2, 3, 4, 9, 8])
    expected = [[False, True], [True, False], [True, False], [False, False], [False, False]]
    assert activity(features_TC, begins, ends).tolist() == expected


class Recorded:
    """Two trials of 9 and 6 bins with 3 channels."""

    trials = tuple(np.random.default_rng(i).normal(size=(n, 3)) for i, n in ((0, 9), (1, 6)))

    def features(self, i):
        return self.trials[i]


def test_the_loss_is_the_mean_over_hidden_channels_and_over_the_bins_that_come_next():
    size, stride, look_ahead = 4, 2, 1
    n_patches = [3, 2]  # (9 - 4) // 2 + 1, (6 - 4) // 2 + 1
    logits = torch.randn(2, 3, 6, generator=torch.Generator().manual_seed(0))
    hidden = torch.tensor([[True, False, True], [False, True, False]])
    given = []

    def network(x_BTC, day_B, *, n_patches_B):
        given.append(x_BTC)
        return Output(logits)

    batch = TrainBatch(
        x_BTC=torch.ones(2, 9, 3),
        day_B=torch.zeros(2, dtype=torch.int64),
        n_bins_B=torch.tensor([9, 6]),
        n_patches_B=torch.tensor(n_patches),
        labels_BU=torch.zeros(2, 0, dtype=torch.int64),
        n_labels_B=torch.zeros(2, dtype=torch.int64),
        indices=np.array([0, 1]),
        days=torch.tensor([0]),
    )
    found = PretrainLoss(0.3, Recorded(), (size, stride), look_ahead).of(network, batch, hidden)
    for trial, features_TC in enumerate(Recorded.trials):
        now, later = [], []
        for p in range(n_patches[trial]):
            end = p * stride + size
            for channel in range(3):
                values = features_TC[:, channel]
                wrong = [
                    math.log1p(math.exp(-sign * float(logit)))  # -log of the sigmoid
                    for sign, logit in (
                        (1 if values[end - 2 : end].sum() > 0 else -1, logits[trial, p, channel]),
                        (
                            1 if values[end + 1 : end + 3].sum() > 0 else -1,
                            logits[trial, p, 3 + channel],
                        ),
                    )
                ]
                if hidden[trial, channel]:
                    now.append(wrong[0])
                if end + 1 < len(values):
                    later.append(wrong[1])
        assert float(found["hidden"][trial]) == pytest.approx(np.mean(now), rel=1e-5)
        assert float(found["next"][trial]) == pytest.approx(np.mean(later), rel=1e-5)
        assert float(found["loss"][trial]) == pytest.approx(np.mean(now) + np.mean(later), rel=1e-5)
    assert given[0].any(1).tolist() == [[False, True, False], [True, False, True]]


@pytest.mark.parametrize(
    "model",
    [
        GRUConfig(n_units=16, n_layers=1, patch_size=6, patch_stride=2),
        TransformerConfig(n_units=16, n_layers=1, n_heads=2, head_units=8),
    ],
)
def test_no_frame_sees_what_it_has_to_predict(config, packed, tmp_path, model):
    config = pretraining(replace(config, model=model))
    with Trainer(config, packed, tmp_path / "run", progress=False) as trainer:
        own, loss = trainer.model, trainer.task.loss(trainer.model, trainer.train_split)
    rng = np.random.default_rng(0)
    first_TC = rng.normal(size=(60, own.n_features)).astype(np.float32)
    size, stride = loss.patch
    with torch.no_grad():
        for frame in (0, 3, 7):
            begin = frame * stride + size + loss.look_ahead  # of what comes next
            other_TC = first_TC.copy()
            other_TC[begin:] = rng.normal(size=other_TC[begin:].shape)
            logits = [
                own.network.eval()(smoothed(own, x_TC), torch.tensor([0])).logits[0, frame]
                for x_TC in (first_TC, other_TC)
            ]
            torch.testing.assert_close(logits[0], logits[1], atol=1e-6, rtol=0)


def smoothed(model, x_TC):
    """Smoothed as in training, where a trial keeps its length."""
    from cortext.features import smooth

    settings = model.smoothing
    return smooth(
        torch.from_numpy(x_TC)[None], settings.smooth_kernel_std, settings.smooth_kernel_size
    )


def entropy_of_activity(split, model):
    """Nats a channel, where only the share of its active frames is known."""
    active = []
    for features_TC in (split.features(i).astype(np.float64) for i in range(len(split))):
        for end in range(model.patch_size, len(features_TC) + 1, model.patch_stride):
            active.append(features_TC[end - model.patch_stride : end].sum(0) > 0)
    share_C = np.mean(active, axis=0)
    return -np.mean(share_C * np.log(share_C) + (1 - share_C) * np.log(1 - share_C))


def test_a_run_learns_resumes_and_gives_its_body_to_a_training_with_labels(
    config, packed, tmp_path
):
    config = pretraining(config)
    config.num_training_batches, config.batches_per_val_step = 80, 40
    config.lr_decay_steps = config.lr_decay_steps_day = 80
    config.lr_max = config.lr_max_day = 0.01
    config.model.n_units = 32
    train(config, packed, tmp_path / "whole", progress=False)
    for resume, batches in ((False, 27), (True, None)):
        with Trainer(config, packed, tmp_path / "parts", resume=resume, progress=False) as trainer:
            trainer.run(batches)
    weights = [(tmp_path / run / "model.safetensors").read_bytes() for run in ("whole", "parts")]
    assert weights[0] == weights[1]
    lines = [
        json.loads(line) for line in (tmp_path / "whole/metrics.jsonl").read_text().splitlines()
    ]
    val = [line for line in lines if line["kind"] == "val"]
    # 0.49 and 0.51 here; knowing only how often each channel is active gives 0.66.
    known = entropy_of_activity(open_packed(packed).split("val"), config.model)
    assert val[-1]["val_hidden"] < 0.85 * known
    assert val[-1]["val_next"] < 0.85 * known

    with pytest.raises(RunError, match="a run of task 'pretrain'; a run of phonemes"):
        load_model(tmp_path / "whole")
    labelled = replace(config, task=None, best_metric="val_per")
    with Trainer(
        labelled, packed, tmp_path / "run", init_from=tmp_path / "whole", progress=False
    ) as trainer:
        started = {name: x.clone() for name, x in trainer.model.network.state_dict().items()}
    pretrained = load_model(tmp_path / "whole", task="pretrain").network.state_dict()
    assert started.keys() == pretrained.keys()
    assert all(torch.equal(x, pretrained[name]) for name, x in started.items())


@pytest.mark.parametrize(
    ("change", "what"),
    [
        ({"random_cut": 3}, "random_cut moves features away from their targets; set it to 0"),
        ({"attention": "bidirectional"}, "this transformer sees later frames, which it has to"),
        ({"device": "tpu"}, "pretraining does not run with torchax; use --device cpu or cuda"),
    ],
)
def test_what_cannot_be_pretrained_is_refused(config, packed, tmp_path, change, what):
    config = pretraining(config)
    if "random_cut" in change:
        config.dataset.data_transforms.random_cut = 3
    if "attention" in change:
        config.model = TransformerConfig(n_units=8, n_layers=1, attention="bidirectional")
    with pytest.raises(ConfigError, match=what):
        Trainer(
            config, packed, tmp_path / "run", device=change.get("device", "cpu"), progress=False
        )


@pytest.mark.parametrize("share", [0.0, 1.0])
def test_a_share_of_nothing_or_of_everything_is_refused(share):
    with pytest.raises(ConfigError, match=r"task.hidden_share is .*; it must be above 0 and below"):
        PretrainConfig(hidden_share=share)


def test_the_command_turns_a_recipe_into_pretraining(packed, tmp_path):
    arguments = ["--data", str(packed), "--out", str(tmp_path / "run"), "--config", "tiny"]
    few = ["--set", "num_training_batches=2", "--set", "task.hidden_share=0.5", "--json"]
    assert cortext(["pretrain", *arguments, *few]) == 0
    assert json.loads((tmp_path / "run/model.json").read_text())["task"] == "pretrain"
    settings = read_train_config(tmp_path / "run/config.yaml")
    assert settings.task == PretrainConfig(hidden_share=0.5)
