"""Augmentations by name: what each does to a batch, and what all of them promise."""

import numpy as np
import pytest
import torch

from cortext.errors import ConfigError
from cortext.features import (
    AugmentationConfig,
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


def test_masks_hide_whole_patches_of_the_trial_alone():
    """The last patch of a trial, and of a batch, may be short."""
    n_bins_B, n_patches_B = torch.tensor([42, 40, 9, 3]), (11, 10, 3, 1)
    for seed in range(200):
        masked_BT = (
            build("time_mask", n_masks=1, max_share=0.34, patch_bins=4)(
                torch.ones(4, 42, 2), n_bins_B, generator(seed)
            )
            == 0
        )[..., 0]
        for masked_T, n_patches in zip(masked_BT.tolist(), n_patches_B, strict=True):
            hidden = [masked_T[first : first + 4] for first in range(0, 42, 4)]
            assert all(len(set(patch)) == 1 for patch in hidden)
            numbers = [number for number, patch in enumerate(hidden) if patch[0]]
            assert len(numbers) <= int(0.34 * n_patches)
            assert all(number < n_patches for number in numbers)


def test_lengths_in_patches_are_equally_likely():
    n_trials = 20_000
    x_BTC, n_bins_B = torch.ones(n_trials, 38, 1), torch.full((n_trials,), 38)  # 10 patches
    mask = build("time_mask", n_masks=1, max_share=0.4, patch_bins=4)
    hidden_BP = (mask(x_BTC, n_bins_B, generator()) == 0)[:, ::4, 0].numpy()
    np.testing.assert_allclose(np.bincount(hidden_BP.sum(1)) / n_trials, [0.2] * 5, atol=0.01)


@pytest.mark.parametrize(("max_share", "published"), [(0.05, 0.40), (0.075, 0.53)])
def test_many_masks_hide_the_published_share_of_a_thousand_trials(max_share, published):
    """Against the probability that no mask covers a patch, and the published coverage."""
    n_masks, n_patches = 20, 200
    mask = build("time_mask", n_masks=n_masks, max_share=max_share, patch_bins=4)
    n_bins_B = torch.full((1_000,), 4 * n_patches)
    hidden_BTC = mask(torch.ones(1_000, 4 * n_patches, 1), n_bins_B, generator()) == 0
    # A mask of n patches has n_patches - n + 1 places; those from p - n + 1 to p cover patch p.
    covers_P = np.zeros(n_patches)
    lengths = range(int(max_share * n_patches) + 1)
    for n in lengths:
        for first in range(n_patches - n + 1):
            covers_P[first : first + n] += 1 / (n_patches - n + 1) / len(lengths)
    expected_P = 1 - (1 - covers_P) ** n_masks
    found_P = hidden_BTC[:, ::4, 0].float().mean(0).numpy()
    assert found_P.mean() == pytest.approx(expected_P.mean(), abs=0.005)
    assert found_P.mean() == pytest.approx(published, abs=0.01)
    np.testing.assert_allclose(found_P, expected_P, atol=0.07)  # 4.5 standard errors


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
    expected, shorter_B = augment(x_BTC, n_bins_B, AugmentationConfig(), stream)
    for augmentation in extra:
        expected = augmentation(expected, shorter_B, stream)
    found, found_n_B = prepare(x_BTC, n_bins_B, AugmentationConfig(), generator(3), extra=extra)
    assert torch.equal(found, smooth(expected))
    assert torch.equal(found_n_B, shorter_B)
    # Not in validation.
    assert torch.equal(
        prepare(x_BTC, n_bins_B, AugmentationConfig(), extra=extra)[0], smooth(x_BTC)
    )


def test_masks_after_smoothing_have_sharp_edges_and_leave_the_rest_as_it_was():
    x_BTC, n_bins_B = torch.randn(3, 40, 4, generator=generator()), torch.tensor([40, 31, 20])
    settings = {"kind": "time_mask", "n_masks": 3, "max_share": 0.3, "patch_bins": 4}
    configs = [settings | {"after_smoothing": True}, {"kind": "gain"}]
    mask, gain = build_augmentations(augmentation_configs(configs))
    stream = generator(3)
    expected, n_left_B = augment(x_BTC, n_bins_B, AugmentationConfig(), stream)
    expected = smooth(gain(expected, n_left_B, stream))  # although it stands after the mask
    expected = mask(expected, n_left_B, stream)
    found, _ = prepare(x_BTC, n_bins_B, AugmentationConfig(), generator(3), extra=[mask, gain])
    assert torch.equal(found, expected)
    assert bool((found == 0).any())


def test_processes_that_share_a_batch_mask_it_as_one_process_does():
    x_BTC, n_bins_B = torch.randn(5, 40, 4, generator=generator()), torch.tensor([40, 7, 31, 2, 20])
    settings = {"n_masks": 3, "max_share": 0.3, "patch_bins": 4, "after_smoothing": True}
    extra = [build("time_mask", **settings)]
    whole, n_left_B = prepare(x_BTC, n_bins_B, AugmentationConfig(), generator(3), extra=extra)
    for rows in (slice(0, None, 2), slice(1, None, 2)):
        own = torch.zeros_like(x_BTC)
        own[rows] = x_BTC[rows]
        found, n_found_B = prepare(own, n_bins_B, AugmentationConfig(), generator(3), rows, extra)
        assert torch.equal(found, whole[rows])
        assert torch.equal(n_found_B, n_left_B[rows])


def test_the_bins_after_a_trial_are_cleared_of_what_smoothing_spreads_there():
    x_BTC, n_bins_B = torch.ones(2, 30, 4), torch.tensor([30, 20])
    spread, _ = prepare(x_BTC, n_bins_B, AugmentationConfig(), generator(3))
    found, n_left_B = prepare(
        x_BTC, n_bins_B, AugmentationConfig(), generator(3), clear_padding=True
    )
    for n_left, spread_TC, found_TC in zip(n_left_B.tolist(), spread, found, strict=True):
        assert torch.equal(found_TC[:n_left], spread_TC[:n_left])
        assert not found_TC[n_left:].any()
    assert spread[1, n_left_B[1] :].any()
    assert torch.equal(x_BTC, torch.ones(2, 30, 4))


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
        (
            [{"kind": "gain", "trial_std": -1}],
            "gain.trial_std is -1.0; it must be at least 0 and at most 1",
        ),
        (
            [{"kind": "time_mask", "n_masks": 0}],
            "time_mask.n_masks is 0; it must be at least 1 and at most 100",
        ),
        ([{"kind": "time_mask", "patch_bins": 0}], "time_mask.patch_bins is 0; it must be at"),
        (
            [{"kind": "time_mask", "patch_bins": 4, "max_bins": 3}],
            "time_mask.max_bins is 3; it must be at least 4, or null",
        ),
        (
            [{"kind": "time_mask", "max_share": "much"}],
            r"max_share is 'much' \(str\); float is needed",
        ),
        (
            [{"kind": "channel_dropout", "probability": 1}],
            "channel_dropout.probability is 1.0; it must be above 0 and below 1",
        ),
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
