import pytest
import torch

from cortext.errors import ConfigError
from cortext.features import AugmentationConfig, augment, prepare, smooth

NONE = {"white_noise_std": 0.0, "constant_offset_std": 0.0, "random_cut": 0}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def augmented(x_BTC, seed=0, **settings):
    n_bins_B = torch.full((len(x_BTC),), x_BTC.shape[1])
    return augment(x_BTC, n_bins_B, AugmentationConfig(**NONE | settings), generator(seed))


def test_published_defaults():
    assert AugmentationConfig() == AugmentationConfig(1.0, 0.2, 0.0, -1, 0.0, 3, True, 2.0, 100)


def test_nothing_switched_on_changes_nothing_but_the_type():
    x_BTC = torch.randn(2, 5, 3, generator=generator()).half()
    result, n_bins_B = augmented(x_BTC)
    assert result.dtype == torch.float32
    assert torch.equal(result, x_BTC.float())
    assert n_bins_B.tolist() == [5, 5]


def test_the_same_generator_gives_the_same_batch_and_the_input_stays():
    x_BTC = torch.randn(2, 20, 3, generator=generator())
    before = x_BTC.clone()
    settings = {
        "white_noise_std": 1.0,
        "constant_offset_std": 0.2,
        "random_walk_std": 0.1,
        "static_gain_std": 0.1,
    }
    first, second = (augmented(x_BTC, 1, random_cut=3, **settings)[0] for _ in range(2))
    assert torch.equal(first, second)
    assert not torch.equal(first, augmented(x_BTC, 2, random_cut=3, **settings)[0])
    assert torch.equal(x_BTC, before)


def test_white_noise_has_the_given_standard_deviation_and_no_correlation_over_time():
    noise, _ = augmented(torch.zeros(8, 500, 20), white_noise_std=0.7)
    assert float(noise.std()) == pytest.approx(0.7, rel=0.01)
    assert float((noise[:, 1:] * noise[:, :-1]).mean()) == pytest.approx(0, abs=0.01)


def test_constant_offset_is_one_number_per_trial_and_feature():
    offset, _ = augmented(torch.zeros(50, 6, 40), constant_offset_std=0.2)
    assert torch.equal(offset, offset[:, :1].expand_as(offset))
    assert float(offset[:, 0].std()) == pytest.approx(0.2, rel=0.05)


@pytest.mark.parametrize("axis", [1, -1])
def test_random_walk_adds_independent_steps_along_its_axis(axis):
    walk, _ = augmented(torch.zeros(20, 60, 60), random_walk_std=0.3, random_walk_axis=axis)
    steps = walk.diff(dim=axis)
    assert float(steps.std()) == pytest.approx(0.3, rel=0.02)
    other = 1 if axis == -1 else 2
    neighbours = steps.narrow(other, 1, 50) * steps.narrow(other, 0, 50)
    assert float(neighbours.mean()) == pytest.approx(0, abs=0.005)


def test_static_gain_mixes_the_features_of_a_trial_by_one_matrix_near_the_identity():
    x_BTC = torch.eye(30).expand(6, 30, 30)  # the result is then the matrix itself
    gain, _ = augmented(x_BTC, static_gain_std=0.1)
    noise = gain - torch.eye(30)
    assert float(noise.std()) == pytest.approx(0.1, rel=0.05)
    assert not torch.equal(noise[0], noise[1])


def test_random_cut_takes_the_same_zero_to_two_bins_from_every_trial_and_from_its_length():
    x_BTC = torch.arange(10.0).view(1, 10, 1).expand(4, 10, 1)
    cuts = set()
    for seed in range(30):
        result, n_bins_B = augmented(x_BTC, seed, random_cut=3)
        cut = 10 - result.shape[1]
        cuts.add(cut)
        assert torch.equal(result, x_BTC[:, cut:])
        assert n_bins_B.tolist() == [10 - cut] * 4
    assert cuts == {0, 1, 2}


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_a_batch_is_prepared_on_a_gpu_without_waiting_for_it():
    """Cuts of 0 to 2 bins are as likely as each other, and come from the generator alone."""
    x_BTC, n_bins_B = torch.zeros(4, 30, 8, device="cuda"), torch.tensor([30, 12, 30, 25])
    prepare(x_BTC, n_bins_B, AugmentationConfig(), torch.Generator("cuda"), clear_padding=True)
    cuts: list[list[int]] = []
    try:
        torch.cuda.set_sync_debug_mode("error")
        for _ in range(2):
            on_gpu = torch.Generator("cuda").manual_seed(5)
            prepared = [
                prepare(x_BTC, n_bins_B, AugmentationConfig(), on_gpu, clear_padding=True)
                for _ in range(300)
            ]
            cuts.append([30 - x_BTC.shape[1] for x_BTC, _ in prepared])
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert cuts[0] == cuts[1]
    assert all(70 <= cuts[0].count(cut) <= 130 for cut in range(3))  # 100 expected, 8 to a sigma


def test_prepare_smooths_after_augmenting_and_only_smooths_without_a_generator():
    x_BTC, n_bins_B = torch.randn(2, 30, 4, generator=generator()), torch.tensor([30, 20])
    settings = AugmentationConfig()
    noisy, shorter_B = augment(x_BTC, n_bins_B, settings, generator(3))
    result, result_n_B = prepare(x_BTC, n_bins_B, settings, generator(3))
    assert torch.equal(result, smooth(noisy))
    assert torch.equal(result_n_B, shorter_B)
    assert torch.equal(prepare(x_BTC, n_bins_B, settings)[0], smooth(x_BTC))
    raw = prepare(x_BTC.half(), n_bins_B, AugmentationConfig(smooth_data=False))[0]
    assert torch.equal(raw, x_BTC.half().float())


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("white_noise_std", -1.0),
        ("random_walk_axis", 5),
        ("smooth_kernel_std", 0.0),
        ("smooth_kernel_std", float("inf")),
        ("smooth_kernel_std", float("nan")),
        ("smooth_kernel_size", 0),
    ],
)
def test_settings_that_cannot_be_right_name_themselves(field, value):
    with pytest.raises(ConfigError, match=field):
        AugmentationConfig(**{field: value})


def test_the_result_is_float32_where_torchs_default_is_float64():
    settings = AugmentationConfig(static_gain_std=0.1, random_walk_std=0.1)
    torch.set_default_dtype(torch.float64)
    try:
        generator = torch.Generator().manual_seed(0)
        found, _ = augment(torch.zeros(2, 9, 3), torch.tensor([9, 8]), settings, generator)
    finally:
        torch.set_default_dtype(torch.float32)
    assert found.dtype == torch.float32
