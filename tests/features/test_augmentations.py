"""Augmentations by name: what each does to a batch, and what all of them promise."""

import numpy as np
import pytest
import torch

from cortext.errors import ConfigError
from cortext.features import (
    Augmentation,
    augment,
    augmentation_configs,
    build_augmentations,
    prepare,
    register_augmentation,
    smooth,
)
from cortext.features.augment import AUGMENTATIONS
from cortext.training import DatasetConfig

SETTINGS = {
    "time_mask": {"n_masks": 3, "max_share": 0.3},
    "channel_dropout": {"probability": 0.4, "features_per_electrode": 2},
    "gain": {"trial_std": 0.2, "feature_std": 0.2},
}
"""Of every shipped augmentation: settings that surely do something."""


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def build(kind: str, **settings):
    return build_augmentations(augmentation_configs([{"kind": kind, **settings}]))[0]


def test_every_shipped_augmentation_is_tested_here():
    shipped = {kind for kind, cls in AUGMENTATIONS.items() if cls.__module__.startswith("cortext.")}
    assert shipped == set(SETTINGS)


@pytest.mark.parametrize("kind", SETTINGS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_a_generator_decides_what_is_drawn_and_the_input_stays(kind, dtype):
    x_BTC, n_bins_B = (
        torch.randn(4, 40, 6, generator=generator()).to(dtype),
        torch.tensor([40, 40, 20, 5]),
    )
    before, lengths = x_BTC.clone(), n_bins_B.clone()
    augmentation = build(kind, **SETTINGS[kind])
    torch.manual_seed(1)
    first = augmentation(x_BTC, n_bins_B, generator(3))
    torch.manual_seed(2)
    assert torch.equal(first, augmentation(x_BTC, n_bins_B, generator(3)))
    assert not torch.equal(first, augmentation(x_BTC, n_bins_B, generator(4)))
    assert first.shape == x_BTC.shape
    assert torch.equal(x_BTC, before)
    assert torch.equal(n_bins_B, lengths)
    # Each trial has a draw of its own.
    assert not torch.equal(first[0] / x_BTC[0], first[1] / x_BTC[1])


def test_a_time_mask_silences_stretches_no_longer_than_its_share_within_the_trial():
    n_bins_B = torch.tensor([100, 50, 7, 0])
    for seed in range(200):
        masked = (
            build("time_mask", n_masks=1, max_share=0.2)(
                torch.ones(4, 100, 3), n_bins_B, generator(seed)
            )
            == 0
        )
        assert torch.equal(masked, masked[..., :1].expand_as(masked))  # all features together
        for trial, (n_bins, longest) in enumerate([(100, 20), (50, 10), (7, 1), (0, 0)]):
            bins = np.flatnonzero(masked[trial, :, 0].numpy())
            assert len(bins) <= longest
            if len(bins):
                assert bins.tolist() == list(range(bins[0], bins[-1] + 1))
                assert bins[-1] < n_bins


def test_lengths_and_places_of_time_masks_are_equally_likely():
    x_BTC, n_bins_B = torch.ones(20_000, 10, 1), torch.full((20_000,), 10)
    masked_BT = (build("time_mask", n_masks=1, max_share=0.4)(x_BTC, n_bins_B, generator()) == 0)[
        ..., 0
    ].numpy()
    lengths = np.bincount(masked_BT.sum(1), minlength=5) / 20_000
    np.testing.assert_allclose(lengths, [0.2] * 5, atol=0.01)
    starts = np.bincount(masked_BT[masked_BT.sum(1) == 4].argmax(1)) / (masked_BT.sum(1) == 4).sum()
    np.testing.assert_allclose(starts, [1 / 7] * 7, atol=0.02)  # 4 bins have 7 places in 10


def test_a_time_mask_is_limited_in_bins_too():
    x_BTC, n_bins_B = torch.ones(200, 100, 1), torch.full((200,), 100)
    masked = (
        build("time_mask", n_masks=1, max_share=1.0, max_bins=4)(x_BTC, n_bins_B, generator()) == 0
    )
    assert int(masked.sum(1).max()) == 4


def test_channel_dropout_silences_an_electrode_with_all_its_features_for_the_whole_trial():
    x_BTC, n_bins_B = torch.ones(3000, 4, 6), torch.full((3000,), 4)
    settings = {"probability": 0.25, "features_per_electrode": 2}
    dropped = build("channel_dropout", **settings)(x_BTC, n_bins_B, generator()) == 0
    assert torch.equal(dropped, dropped[:, :1].expand_as(dropped))
    # Electrodes 0 to 2, then their second features.
    assert torch.equal(dropped[..., :3], dropped[..., 3:])
    assert float(dropped[:, 0, :3].float().mean()) == pytest.approx(0.25, abs=0.02)


def test_an_electrode_s_features_must_fit_the_data():
    augmentation = build("channel_dropout", features_per_electrode=2)
    with pytest.raises(ConfigError, match="features_per_electrode is 2; the data have 5 features"):
        augmentation(torch.ones(1, 4, 5), torch.tensor([4]), generator())


def test_gain_is_a_factor_of_the_trial_and_one_of_each_feature():
    x_BTC, n_bins_B = torch.ones(4000, 3, 5), torch.full((4000,), 3)
    factor = build("gain", trial_std=0.3, feature_std=0.1)(x_BTC, n_bins_B, generator())
    assert torch.equal(factor, factor[:, :1].expand_as(factor))
    factor_BC = factor[:, 0]
    assert float(factor_BC.mean()) == pytest.approx(1, abs=0.02)
    assert float(factor_BC.var(1).mean()) == pytest.approx(0.1**2, rel=0.05)  # within a trial
    # Independent, so variances add.
    assert float(factor_BC.var()) == pytest.approx(0.3**2 + 0.1**2, rel=0.05)


def test_they_follow_the_release_s_noise_in_their_order_and_precede_smoothing():
    x_BTC, n_bins_B = torch.randn(2, 30, 4, generator=generator()), torch.tensor([30, 20])
    extra = build_augmentations(augmentation_configs([{"kind": "gain"}, {"kind": "time_mask"}]))
    stream = generator(3)
    expected, shorter_B = augment(x_BTC, n_bins_B, Augmentation(), stream)
    for augmentation in extra:
        expected = augmentation(expected, shorter_B, stream)
    found, found_n_B = prepare(x_BTC, n_bins_B, Augmentation(), generator(3), extra=extra)
    assert torch.equal(found, smooth(expected))
    assert torch.equal(found_n_B, shorter_B)
    # Not in validation.
    assert torch.equal(prepare(x_BTC, n_bins_B, Augmentation(), extra=extra)[0], smooth(x_BTC))


@pytest.mark.parametrize(
    ("augmentations", "message"),
    [
        (
            [{"kind": "time_musk"}],
            "unknown augmentation 'time_musk'; did you mean 'time_mask'.*--plugin",
        ),
        (
            [{"kind": "gain"}, {"kind": "gain", "std": 1}],
            r"unknown key dataset.augmentations\[1\].std; did you mean",
        ),
        ([{"kind": "gain", "trial_std": -1}], "gain has trial_std -1"),
        ([{"kind": "time_mask", "n_masks": 0}], "time_mask has n_masks 0"),
        (
            [{"kind": "time_mask", "max_share": "much"}],
            r"max_share is 'much' \(str\); float is needed",
        ),
        ([{"kind": "channel_dropout", "probability": 1}], "channel_dropout has probability 1"),
        (
            [{"n_masks": 2}],
            rf"dataset.augmentations\[0\] has no kind; known: {', '.join(sorted(AUGMENTATIONS))}",
        ),
        (["gain"], r"dataset.augmentations\[0\] is a str; a section of keys is needed"),
    ],
)
def test_settings_that_cannot_be_right_are_named(augmentations, message):
    with pytest.raises(ConfigError, match=message):
        DatasetConfig(augmentations=augmentations)


def test_another_class_under_a_known_name_is_refused():
    with pytest.raises(
        ConfigError,
        match=r"two augmentations are called 'gain': cortext.features.augmentations.Gain and \S+Mine",
    ):

        @register_augmentation("gain")
        class Mine:
            Config = AUGMENTATIONS["gain"].Config
