"""Our training beside the published one, restated in plain PyTorch
(`benchmarks/release_trainer.py`).
"""

from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

import release_trainer
from cortext import features
from cortext.data.packed import open_packed
from cortext.data.sampler import DayBalancedSampler
from cortext.features import AugmentationConfig
from cortext.models import GRUConfig, build_model, read_output
from cortext.text.inventory import RELEASE
from cortext.training import DatasetConfig, TrainConfig
from cortext.training.batches import Batches
from cortext.training.distributed import ALONE
from cortext.training.loss import build_loss
from cortext.training.optim import Optimizer
from cortext.training.validate import Validator
from release_loader import load_batch
from release_trainer import Draws, ReleaseModel, ReleaseTrainer, augment, edit_distance, smooth

CPU = torch.device("cpu")
N_DAYS, N_FEATURES = 3, 8
# Nothing random: only smoothing.
PLAIN = AugmentationConfig(white_noise_std=0.0, constant_offset_std=0.0, random_cut=0)


def as_ours(release: ReleaseModel) -> dict[str, torch.Tensor]:
    """The release's parameters under our names."""
    state = release.state_dict()
    ours = {name: tensor for name, tensor in state.items() if not name.startswith("day_")}
    ours["day_weight"] = torch.stack(list(release.day_weights))
    ours["day_bias"] = torch.cat(list(release.day_biases))
    return {name: tensor.detach().clone() for name, tensor in ours.items()}


def settings(**changes) -> TrainConfig:
    model = GRUConfig(n_units=16, n_layers=2, rnn_dropout=0.0)
    model.input_network.input_layer_dropout = 0.0
    dataset = DatasetConfig(batch_size=6, days_per_batch=2, data_transforms=PLAIN)
    return TrainConfig(
        model=model, dataset=dataset, **{"lr_warmup_steps": 3, "lr_warmup_steps_day": 5} | changes
    )


def rounded_batch(chosen) -> dict[str, torch.Tensor]:
    """The release's batch with features rounded to half precision, as the packed ones are."""
    batch = load_batch(chosen)
    batch["input_features"] = batch["input_features"].half().float()
    return batch


class Pair:
    """The same weights on both sides, and the same batches of a packed recording."""

    def __init__(self, config: TrainConfig, recordings, packed, random_days: bool = True):
        torch.manual_seed(3)
        self.config = config
        self.release = ReleaseTrainer(asdict(config), n_features=N_FEATURES, n_days=N_DAYS)
        if random_days:  # away from the identity, so that days differ
            for parameter in (*self.release.model.day_weights, *self.release.model.day_biases):
                parameter.data += 0.1 * torch.randn_like(parameter)
        self.network = build_model(
            config.model, n_features=N_FEATURES, n_days=N_DAYS, n_classes=len(RELEASE)
        )
        self.network.load_state_dict(as_ours(self.release.model))
        self.data = open_packed(packed)
        self.recordings, self.loss = recordings, build_loss(None, "gru")
        self.batches = self.of("train")
        self.optimizer = Optimizer(self.network, config)

    def of(self, split: str) -> Batches:
        transforms = self.config.dataset.data_transforms
        return Batches(
            self.data.split(split), np.arange(N_DAYS), transforms, CPU, self.network.n_patches
        )

    def files(self, split: str, indices: np.ndarray) -> dict:
        """Trials as the release's loader wants them.

        In these files a trial's number is its place.
        """
        part = self.data.split(split)
        chosen: dict = {}
        for i in indices.tolist():
            day = int(part.day_N[i])
            path = self.recordings / part.sessions[day] / f"data_{split}.hdf5"
            chosen.setdefault(day, (path, []))[1].append(int(part.trial_N[i]))
        return chosen

    def ours_step(self, step: int, indices: np.ndarray) -> float:
        batch = self.batches.batch(indices)
        self.network.train()
        loss = self.loss(self.network, batch, 0.0)["loss"].mean()
        loss.backward()
        self.optimizer.step(step, batch.days)
        return loss.item()

    def release_step(self, indices: np.ndarray) -> float:
        return self.release.step(rounded_batch(self.files("train", indices)))

    def assert_same_weights(self, atol: float) -> None:
        expected = as_ours(self.release.model)
        for name, parameter in self.network.named_parameters():
            torch.testing.assert_close(
                parameter.detach(), expected[name], atol=atol, rtol=0, msg=name
            )


def trials_of(packed, *days: int) -> np.ndarray:
    day_N = open_packed(packed).split("train").day_N
    return np.concatenate([np.flatnonzero(day_N == day)[:3] for day in days])


@pytest.mark.parametrize(("patch_size", "patch_stride"), [(14, 4), (5, 2), (4, 6)])
def test_logits_of_the_same_weights_are_equal(patch_size, patch_stride):
    torch.manual_seed(0)
    config = GRUConfig(n_units=24, n_layers=3, patch_size=patch_size, patch_stride=patch_stride)
    release = ReleaseModel(asdict(config), 16, 4, 41).eval()
    for parameter in (*release.day_weights, *release.day_biases):
        parameter.data += 0.2 * torch.randn_like(parameter)
    network = build_model(config, n_features=16, n_days=4, n_classes=41).eval()
    network.load_state_dict(as_ours(release))
    x_BTC, day_B = torch.randn(5, 63, 16), torch.tensor([3, 0, 3, 1, 2])
    expected = release(x_BTC, day_B)
    # The pass that learns.
    torch.testing.assert_close(network(x_BTC, day_B)[0], expected, atol=1e-5, rtol=0)
    with torch.no_grad():
        torch.testing.assert_close(network(x_BTC, day_B)[0], expected, atol=1e-5, rtol=0)


@pytest.mark.slow
def test_logits_of_the_published_shape_are_equal():
    torch.manual_seed(0)
    config = GRUConfig()
    release = ReleaseModel(asdict(config), 512, 2, 41).eval()
    network = build_model(config, n_features=512, n_days=2, n_classes=41).eval()
    network.load_state_dict(as_ours(release))
    x_BTC, day_B = torch.randn(2, 300, 512), torch.tensor([1, 0])
    with torch.no_grad():
        torch.testing.assert_close(
            network(x_BTC, day_B)[0], release(x_BTC, day_B), atol=1e-5, rtol=0
        )
    assert sum(p.numel() for p in network.parameters()) == sum(
        p.numel() for p in release.parameters()
    )


def test_initial_weights_have_the_same_distribution():
    torch.manual_seed(0)
    config = GRUConfig(n_units=64, n_layers=2)
    release = as_ours(ReleaseModel(asdict(config), 16, 2, 41))
    ours = build_model(config, n_features=16, n_days=2, n_classes=41).state_dict()
    assert set(ours) == set(release)
    for name, expected in release.items():
        assert ours[name].shape == expected.shape
        assert ours[name].std(correction=0).item() == pytest.approx(
            expected.std(correction=0).item(), rel=0.25
        ), name
        assert ours[name].abs().max().item() == pytest.approx(
            expected.abs().max().item(), rel=0.25
        ), name


def test_smoothing_is_equal():
    x_BTC = torch.randn(3, 40, 6)
    for std, size in ((2, 100), (1.0, 60), (3.5, 100)):
        torch.testing.assert_close(
            features.smooth(x_BTC, std, size), smooth(x_BTC, std, size), atol=1e-6, rtol=0
        )


class Given(Draws):
    """Draws that were taken elsewhere."""

    def __init__(self, cut: int, **normal: torch.Tensor):
        self.given, self.bins = normal, cut

    def normal(self, name, shape, device):
        assert self.given[name].shape == torch.Size(shape)
        return self.given[name]

    def cut(self, below):
        return self.bins


def test_augmentation_with_the_same_noise_is_equal():
    """What ours adds to zeros, and how it mixes the identity, are its draws.

    The release gets the same.
    """
    changes = {
        "static_gain_std": 0.3,
        "white_noise_std": 0.7,
        "constant_offset_std": 0.2,
        "random_cut": 0,
    }
    ours, size = AugmentationConfig(**changes), 6
    n_bins_B = torch.tensor([size] * 4)

    def augmented(x_BTC: torch.Tensor, chosen: AugmentationConfig = ours) -> torch.Tensor:
        return features.augment(x_BTC, n_bins_B, chosen, torch.Generator().manual_seed(5))[0]

    zeros, identity = torch.zeros(4, size, size), torch.eye(size).repeat(4, 1, 1)
    added = augmented(zeros)
    gain = (augmented(identity) - added - identity) / 0.3
    x_BTC = torch.randn(4, size, size)
    given = Given(
        0, static_gain=gain, white_noise=added / 0.7, constant_offset=torch.zeros(4, 1, size)
    )
    expected, _ = augment(x_BTC.clone(), n_bins_B, asdict(ours), given)
    torch.testing.assert_close(augmented(x_BTC), expected, atol=1e-5, rtol=0)
    without_white = replace(ours, white_noise_std=0.0)
    offsets = augmented(zeros, without_white)
    torch.testing.assert_close(offsets, offsets[:, :1].expand_as(offsets))


@pytest.mark.parametrize("axis", [-1, 1])
def test_the_random_walk_with_the_same_steps_is_equal(axis):
    ours = AugmentationConfig(
        white_noise_std=0,
        constant_offset_std=0,
        random_cut=0,
        random_walk_std=0.5,
        random_walk_axis=axis,
    )
    x_BTC, n_bins_B = torch.randn(200, 9, 7), torch.full((200,), 9)
    found, _ = features.augment(x_BTC, n_bins_B, ours, torch.Generator().manual_seed(1))
    walk = found - x_BTC
    steps = torch.diff(walk, dim=axis, prepend=torch.zeros_like(walk.narrow(axis, 0, 1))) / 0.5
    assert steps.std().item() == pytest.approx(1, abs=0.03)
    expected, _ = augment(x_BTC.clone(), n_bins_B, asdict(ours), Given(0, random_walk=steps))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_the_cut_takes_the_same_bins_off_the_start():
    ours = AugmentationConfig(white_noise_std=0, constant_offset_std=0, random_cut=3)
    x_BTC, n_bins_B = torch.randn(2, 12, 3), torch.tensor([12, 9])
    seen = set()
    for seed in range(12):
        found, left_B = features.augment(x_BTC, n_bins_B, ours, torch.Generator().manual_seed(seed))
        cut = 12 - found.shape[1]
        expected, expected_B = augment(x_BTC.clone(), n_bins_B, asdict(ours), Given(cut))
        assert torch.equal(found, expected)
        assert torch.equal(left_B, expected_B)
        seen.add(cut)
    assert seen == {0, 1, 2}


def test_one_step_is_equal(recordings, packed):
    pair = Pair(settings(lr_warmup_steps=0, lr_warmup_steps_day=0), recordings, packed)
    indices = trials_of(packed, 0, 2)
    before = {name: tensor.clone() for name, tensor in pair.network.state_dict().items()}
    assert pair.ours_step(0, indices) == pytest.approx(pair.release_step(indices), abs=1e-5)
    pair.assert_same_weights(1e-6)
    after = pair.network.state_dict()
    # A day absent from the batch.
    assert torch.equal(after["day_weight"][1], before["day_weight"][1])
    assert not torch.equal(after["day_weight"][0], before["day_weight"][0])


STEPS = {
    "as published": {},
    "clipping": {"grad_norm_clip_value": 0.05},
    "epsilon of a short run, fast": {"epsilon": 1e-3, "lr_max": 0.01, "lr_max_day": 0.01},
    "weight decay of both groups": {
        "weight_decay": 0.2,
        "weight_decay_day": 0.4,
        "lr_max": 0.05,
        "lr_max_day": 0.03,
    },
    "the decay's end": {
        "lr_decay_steps": 8,
        "lr_decay_steps_day": 6,
        "lr_min": 0.001,
        "lr_min_day": 0.002,
    },
    "linear": {"lr_scheduler_type": "linear", "lr_decay_steps": 7, "lr_max_day": 0.02},
}


@pytest.mark.parametrize("changes", STEPS.values(), ids=list(STEPS))
def test_several_steps_with_days_that_come_and_go_are_equal(changes, recordings, packed):
    """Day 1 is absent at first, then there, absent for two batches, and there again."""
    pair = Pair(settings(**changes), recordings, packed)
    for step, days in enumerate(
        [(0, 2), (0, 1), (2, 0), (0, 2), (1, 2), (1, 0), (2, 1), (0, 2), (1, 0), (2, 1)]
    ):
        indices = trials_of(packed, *days)
        ours, release = pair.ours_step(step, indices), pair.release_step(indices)
        assert ours == pytest.approx(release, rel=1e-5), step
    pair.assert_same_weights(1e-6)


def test_frozen_parts_stay_and_the_others_move_alike(recordings, packed):
    model = GRUConfig(n_units=16, n_layers=1, rnn_dropout=0.0, rnn_trainable=False)
    model.input_network.input_layer_dropout = 0.0
    pair = Pair(
        replace(settings(lr_warmup_steps=0, lr_warmup_steps_day=0), model=model), recordings, packed
    )
    before = {name: tensor.clone() for name, tensor in pair.network.state_dict().items()}
    for step in range(3):
        indices = trials_of(packed, step % 3)
        pair.ours_step(step, indices)
        pair.release_step(indices)
    pair.assert_same_weights(1e-6)
    moved = {
        name
        for name, tensor in pair.network.state_dict().items()
        if not torch.equal(tensor, before[name])
    }
    assert moved == {"day_weight", "day_bias", "out.weight", "out.bias", "h0"}


def test_the_loss_curves_of_identical_batches_are_equal(recordings, packed):
    config = settings(
        epsilon=1e-3, lr_max=0.02, lr_max_day=0.02, lr_decay_steps=25, lr_decay_steps_day=25
    )
    pair = Pair(config, recordings, packed)
    split = pair.data.split("train")
    sampler = DayBalancedSampler(split.day_N, 6, 2, seed=4)
    curves = [
        (pair.ours_step(step, sampler.indices(step)), pair.release_step(sampler.indices(step)))
        for step in range(25)
    ]
    ours, release = np.array(curves).T
    np.testing.assert_allclose(ours, release, rtol=1e-4)
    # It has learnt something, so that there was something to differ in.
    assert ours[-5:].mean() < 0.5 * ours[:3].mean()


def test_validation_finds_the_same_errors(recordings, packed, monkeypatch):
    monkeypatch.setattr(release_trainer, "load_batch", rounded_batch)
    config = settings(
        epsilon=1e-3, lr_max=0.02, lr_max_day=0.02, lr_warmup_steps=0, lr_warmup_steps_day=0
    )
    pair = Pair(config, recordings, packed)
    for step in range(40):
        pair.ours_step(step, trials_of(packed, 0, 1, 2))
    with torch.no_grad():  # the same weights on both sides
        ours = pair.network.state_dict()
        for name, tensor in pair.release.model.state_dict().items():
            kind, _, day = name.partition(".")
            stacked = {"day_weights": "day_weight", "day_biases": "day_bias"}.get(kind)
            tensor.copy_(ours[name] if stacked is None else ours[stacked][int(day)])
    pair.network.eval()
    validator = Validator(pair.of("val"), RELEASE, config)
    with torch.no_grad():
        metrics, _ = validator.measure(
            lambda batch: read_output(pair.network(batch.x_BTC, batch.day_B)), ALONE
        )
    everything = np.arange(len(pair.data.split("val")))
    expected = pair.release.validate(pair.files("val", everything))
    assert 0 < metrics["val_per"] < 0.95
    assert metrics["val_per"] == pytest.approx(expected["per"], abs=1e-12)
    by_day = dict(zip(pair.data.sessions, expected["per_by_day"].values(), strict=True))
    assert metrics["val_per_by_session"] == pytest.approx(by_day, abs=1e-12)
    # Days have equally many trials.
    assert metrics["val_loss"] == pytest.approx(expected["loss"], rel=1e-4)


def test_edit_distances_by_hand():
    assert [
        edit_distance([1, 2, 3], [1, 3]),
        edit_distance([], [4, 5]),
        edit_distance([1, 2], [2, 1]),
    ] == [1, 2, 2]
