import numpy as np
import pytest
import torch
from scipy.ndimage import convolve1d, gaussian_filter1d

from cortext.features import gaussian_kernel, smooth
from cortext.features.smooth import _add_up, _convolve


def release_kernel(std: float, size: int) -> np.ndarray:
    """The recipe of the release, with the peer library it uses."""
    impulse = np.zeros(size, dtype=np.float32)
    impulse[size // 2] = 1
    response = gaussian_filter1d(impulse, std)
    response = response[response > 0.01]
    return response / response.sum()


@pytest.mark.parametrize(
    ("std", "size"), [(2, 100), (1, 100), (3.5, 100), (2, 7), (20, 40), (0.5, 10)]
)
def test_kernel_is_the_impulse_response_of_scipy_cut_and_renormalised(std, size):
    kernel = gaussian_kernel(std, size)
    assert kernel.dtype == np.float32
    np.testing.assert_allclose(kernel, release_kernel(std, size), rtol=2e-6)


def test_published_kernel_has_nine_taps_and_weighs_the_middle_with_a_fifth():
    kernel = gaussian_kernel(2, 100)
    assert len(kernel) == 9
    # By hand: 1 / sum of exp(-k^2 / 8) for k = -4..4.
    assert kernel[4] == pytest.approx(0.2042, abs=1e-4)
    assert kernel.sum() == pytest.approx(1)


def test_a_std_too_large_for_any_tap_is_refused():
    with pytest.raises(ValueError, match="60"):
        gaussian_kernel(60, 1000)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_same_padding_smooths_like_scipy_with_zeros_outside(dtype):
    x_BTC = torch.randn(2, 30, 3, generator=torch.Generator().manual_seed(0)).to(dtype)
    smoothed = smooth(x_BTC)
    expected = convolve1d(
        x_BTC.double().numpy(), gaussian_kernel().astype(float), axis=1, mode="constant"
    )
    assert smoothed.dtype == torch.float32
    np.testing.assert_allclose(smoothed.numpy(), expected, atol=1e-6)


@pytest.mark.parametrize(("before", "after"), [(4, 4), (2, 3), (0, 0)])
def test_the_ways_of_a_cpu_and_of_a_gpu_agree(before, after):
    x_BTC = torch.randn(2, 30, 3, generator=torch.Generator().manual_seed(0))
    kernel_K = torch.from_numpy(gaussian_kernel())
    found = _add_up(x_BTC, kernel_K, before, after)
    torch.testing.assert_close(found, _convolve(x_BTC, kernel_K, before, after), atol=1e-6, rtol=0)


def test_valid_padding_keeps_the_bins_that_see_a_full_kernel():
    x_BTC = torch.randn(1, 30, 3, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(
        smooth(x_BTC, padding="valid"), smooth(x_BTC)[:, 4:-4], atol=1e-6, rtol=0
    )


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
def test_an_even_kernel_is_padded_as_torch_pads_same():
    x_BTC = torch.randn(1, 12, 1, generator=torch.Generator().manual_seed(0))
    # All six points of an off-centre impulse are above the floor.
    kernel = torch.from_numpy(gaussian_kernel(3, 6))
    assert len(kernel) == 6
    expected = torch.nn.functional.conv1d(
        x_BTC.transpose(1, 2), kernel.view(1, 1, -1), padding="same"
    )
    torch.testing.assert_close(smooth(x_BTC, 3, 6), expected.transpose(1, 2))


def test_too_few_bins_for_valid_padding_are_refused():
    with pytest.raises(ValueError, match="8 bins"):
        smooth(torch.zeros(1, 8, 2), padding="valid")


def test_smoothing_a_real_trial_keeps_its_mean_and_lowers_its_variance(real_data):
    features = np.load(real_data / "neural" / "t12_one_trial_256x591.npy").T
    x_BTC = torch.from_numpy(np.ascontiguousarray(features))[None]
    smoothed = smooth(x_BTC, padding="valid")
    assert smoothed.shape == (1, 583, 256)
    assert float(smoothed.mean()) == pytest.approx(float(x_BTC.mean()), abs=0.01)
    # White noise keeps the sum of the squared taps, 0.14, of its variance; slower signal keeps
    # more.
    assert float((gaussian_kernel() ** 2).sum()) == pytest.approx(0.14, abs=0.01)
    assert 0.14 < float(smoothed.var() / x_BTC.var()) < 0.5
