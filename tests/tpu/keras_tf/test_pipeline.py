"""tf.data batches against the common sampler, the split itself and torch's features."""

import numpy as np
import pytest
import torch

from cortext.data import DayBalancedSampler, open_packed
from cortext.errors import ConfigError
from cortext.features import AugmentationConfig, prepare
from cortext.training import DatasetConfig, TrainConfig
from cortext.training.batches import derived_seed

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow", reason="run `make test-tf`")

from cortext_tpu.keras_tf import pipeline
from cortext_tpu.shapes import Shapes

QUIET = dict(white_noise_std=0.0, constant_offset_std=0.0, random_cut=0)
LAYER_OF_DAY = np.array([2, 0, 1])


def n_patches(n_bins):
    return np.maximum((n_bins - 14) // 4 + 1, 0)


def made(split, settings, n_lengths=3, **dataset):
    """The batches of a split, and its sampler."""
    dataset = DatasetConfig(batch_size=6, days_per_batch=2, data_transforms=settings, **dataset)
    shapes = Shapes(split, n_lengths, 14, 4)
    batches = pipeline.Batches(split, LAYER_OF_DAY, TrainConfig(dataset=dataset), shapes)
    return batches, DayBalancedSampler(
        split.day_N, 6, 2, seed=4, n_bins_N=split.n_bins_N, length_buckets=3
    )


@pytest.fixture(scope="module")
def split(packed):
    return open_packed(packed).split("train")


def test_batches_are_the_sampler_s_in_few_shapes(split):
    batches, sampler = made(split, AugmentationConfig(**QUIET))
    lengths = set()
    for step, raw in enumerate(batches.training(sampler, 0, 30)):
        raw = {name: tensor.numpy() for name, tensor in raw.items()}
        indices = sampler.indices(step)
        assert np.array_equal(raw["indices"], indices)
        expected = split.batch(indices, raw["features"].shape[1])
        assert raw["features"].dtype == np.float16
        assert np.array_equal(raw["features"], expected.features_BTC)
        assert np.array_equal(raw["day"], LAYER_OF_DAY[split.day_N[indices]])
        assert np.array_equal(raw["n_bins"], split.n_bins_N[indices])
        assert np.array_equal(raw["n_patches"], n_patches(split.n_bins_N[indices]))
        assert np.array_equal(raw["n_labels"], split.n_labels_N[indices])
        assert raw["labels"].shape == (6, split.n_labels_N.max())
        for row, i in enumerate(indices):
            assert raw["labels"][row].tolist() == [
                *split.labels(i),
                *[0] * (split.n_labels_N.max() - len(split.labels(i))),
            ]
        lengths.add(raw["features"].shape[1])
    assert len(lengths) == 3
    assert step == 29


def test_a_single_length_makes_every_shape_static(split):
    batches, sampler = made(split, AugmentationConfig(), n_lengths=1)
    dataset = batches.training(sampler, 0, 3).map(
        lambda raw: pipeline.prepare(raw, AugmentationConfig())
    )
    shapes = {name: spec.shape.as_list() for name, spec in dataset.element_spec.items()}
    longest = int(np.ceil((split.n_bins_N.max() - 14) / 4) * 4 + 14)
    assert shapes["features"] == [6, longest, 16]
    assert shapes["labels"] == [6, int(split.n_labels_N.max())]
    assert all(shape is not None for sizes in shapes.values() for shape in sizes)


def test_training_continues_from_any_batch_with_the_same_noise(split):
    settings = AugmentationConfig()
    batches, sampler = made(split, settings)
    whole = [pipeline.prepare(raw, settings) for raw in batches.training(sampler, 0, 4)]
    rest = [pipeline.prepare(raw, settings) for raw in batches.training(sampler, 2, 4)]
    for before, after in zip(whole[2:], rest, strict=True):
        for name in before:
            assert np.array_equal(before[name].numpy(), after[name].numpy())
    assert not np.array_equal(
        whole[0]["features"].numpy()[0, :50], whole[1]["features"].numpy()[0, :50]
    )


def test_noise_is_the_same_wherever_a_trial_is_computed(split):
    settings = AugmentationConfig(static_gain_std=0.1, random_walk_std=0.1, smooth_data=False)
    batches, sampler = made(split, settings)
    raw = next(iter(batches.training(sampler, 0, 1)))
    whole = pipeline.prepare(raw, settings)["features"].numpy()
    for rows in (slice(0, 3), slice(3, 6), slice(5, 6)):
        part = pipeline.prepare({name: tensor[rows] for name, tensor in raw.items()}, settings)[
            "features"
        ].numpy()
        assert np.array_equal(part, whole[rows])
    assert len(np.unique(whole[:, 0, 0])) == 6


def test_feature_subset_and_bad_trials_hold(split):
    bad = {split.sessions[0]: {0: list(range(4))}}
    chosen = split.select(bad_trials=bad, feature_subset=[7, 2, 3])
    batches, sampler = made(chosen, AugmentationConfig(**QUIET))
    seen = set()
    for raw in batches.training(sampler, 0, 20):
        assert raw["features"].shape[2] == 3
        for i in raw["indices"].numpy():
            seen.add((int(chosen.day_N[i]), int(chosen.trial_N[i])))
    assert not seen & {(0, trial) for trial in range(4)}
    i = int(raw["indices"][0])
    first = split.features(
        int(
            np.flatnonzero((split.day_N == chosen.day_N[i]) & (split.trial_N == chosen.trial_N[i]))[
                0
            ]
        )
    )
    assert np.array_equal(raw["features"].numpy()[0, : len(first)], first[:, [7, 2, 3]])


@pytest.mark.parametrize(("std", "size"), [(2.0, 100), (3.5, 60), (0.7, 9)])
def test_smoothing_is_torch_s(split, std, size):
    settings = AugmentationConfig(**QUIET, smooth_kernel_std=std, smooth_kernel_size=size)
    batches, _ = made(split, settings)
    raw = batches.batch(np.array([0, 3, 9]))
    ours = pipeline.prepare(
        {name: tf.convert_to_tensor(values) for name, values in raw.items()}, settings
    )
    theirs, _ = prepare(
        torch.from_numpy(raw["features"]), torch.from_numpy(raw["n_bins"]), settings
    )
    assert np.abs(ours["features"].numpy() - theirs.numpy()).max() < 1e-6


def test_without_noise_a_training_batch_is_the_validation_s(split):
    settings = AugmentationConfig(**QUIET)
    batches, sampler = made(split, settings)
    raw = next(iter(batches.training(sampler, 5, 6)))
    theirs, _ = prepare(
        torch.from_numpy(raw["features"].numpy()), torch.from_numpy(raw["n_bins"].numpy()), settings
    )
    assert np.abs(pipeline.prepare(raw, settings)["features"].numpy() - theirs.numpy()).max() < 1e-6


def test_the_cut_shifts_all_trials_alike(split):
    settings = AugmentationConfig(**(QUIET | {"random_cut": 4}), smooth_data=False)
    batches, sampler = made(split, settings)
    cuts = []
    for raw in batches.training(sampler, 0, 40):
        before, after = raw["features"].numpy().astype(np.float32), pipeline.prepare(raw, settings)
        cut = int(raw["cut"][0])
        n_bins = before.shape[1]
        assert np.array_equal(after["features"].numpy()[:, : n_bins - cut], before[:, cut:])
        assert not after["features"].numpy()[:, n_bins - cut :].any()
        assert np.array_equal(after["n_bins"].numpy(), split.n_bins_N[raw["indices"].numpy()] - cut)
        assert np.array_equal(after["n_patches"].numpy(), n_patches(after["n_bins"].numpy()))
        cuts.append(cut)
    assert set(cuts) == {0, 1, 2, 3}


def spread(values):
    return float(np.std(values))


def test_noise_offset_gain_and_walk_have_torch_s_distribution():
    n_trials, n_bins, n_features = 40, 60, 16
    rng = np.random.default_rng(0)
    x_BTC = rng.normal(size=(n_trials, n_bins, n_features)).astype(np.float32)
    raw = {
        "features": tf.constant(x_BTC),
        "seed": tf.constant(rng.integers(-(2**31), 2**31, (n_trials, 2)), tf.int32),
        "cut": tf.zeros(n_trials, tf.int32),
    }

    def added(**settings):
        settings = AugmentationConfig(**(QUIET | {"smooth_data": False} | settings))
        return pipeline.prepare(raw, settings)["features"].numpy() - x_BTC

    noise = added(white_noise_std=0.5)
    assert spread(noise) == pytest.approx(0.5, rel=0.02)
    assert abs(noise.mean()) < 0.01
    assert abs(np.corrcoef(noise[:, 1:].ravel(), noise[:, :-1].ravel())[0, 1]) < 0.02
    offset = added(constant_offset_std=0.3)
    assert np.abs(offset - offset[:, :1]).max() < 1e-5  # the same throughout a trial
    assert spread(offset[:, 0]) == pytest.approx(0.3, rel=0.1)
    for axis in (1, -1):
        walk = added(random_walk_std=0.2, random_walk_axis=axis)
        steps = np.diff(walk, axis=axis)
        assert spread(steps) == pytest.approx(0.2, rel=0.02)
        last = walk[:, -1] if axis == 1 else walk[..., -1]
        assert spread(last) == pytest.approx(0.2 * walk.shape[axis] ** 0.5, rel=0.1)
    gain = added(static_gain_std=0.1)
    mixing = np.linalg.lstsq(x_BTC[0].astype(float), gain[0].astype(float), rcond=None)[0]
    assert np.abs(x_BTC[0] @ mixing - gain[0]).max() < 1e-4  # one matrix for the whole trial
    assert spread(mixing) == pytest.approx(0.1, rel=0.15)


def test_a_walk_over_trials_is_refused(split):
    with pytest.raises(ConfigError, match="lie on different cores; use -1"):
        made(split, AugmentationConfig(random_walk_std=0.1, random_walk_axis=0))


def test_registered_augmentations_act_on_the_host(split):
    mask = {"kind": "time_mask", "n_masks": 1, "max_share": 0.5}
    batches, sampler = made(
        split, AugmentationConfig(**QUIET, smooth_data=False), augmentations=[mask]
    )
    raw = next(iter(batches.training(sampler, 3, 4)))
    indices = sampler.indices(3)
    plain = split.batch(indices, raw["features"].shape[1])
    generator = torch.Generator().manual_seed(derived_seed(batches.config.seed, 2, 3))
    x_BTC = torch.from_numpy(plain.features_BTC.astype(np.float32))
    expected = batches.extra[0](x_BTC, torch.from_numpy(plain.n_bins_B), generator)
    assert not torch.equal(expected, x_BTC)
    assert np.array_equal(raw["features"].numpy(), expected.numpy())


def test_all_trials_in_order_and_the_last_batch_full(packed):
    split = open_packed(packed).split("val")
    batches, _ = made(split, AugmentationConfig())
    found = list(batches.in_order(4))
    assert [len(raw["day"]) for raw in found] == [4, 4, 4]
    n_real = [int((raw["n_patches"] > 0).numpy().sum()) for raw in found]
    assert n_real == [4, 4, 1]
    assert np.concatenate([raw["indices"] for raw in found])[:9].tolist() == list(range(9))
    assert "seed" not in found[0]
    assert np.array_equal(found[2]["features"].numpy()[0, : split.n_bins_N[8]], split.features(8))
    assert not found[2]["features"].numpy()[1:].any()
