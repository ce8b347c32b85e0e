"""Batches without their padding, and the gradient of numbers that distances look up."""

import pytest
import torch

from cortext.models.layers import by_distance, distance_gradient
from cortext_cuda import packing
from cortext_cuda.packing import pack, packed_rows, rounded_rows

LENGTHS = torch.tensor([3, 5, 1])
N_MOST, WIDTH = 5, 2


@pytest.fixture(autouse=True)
def small_step(monkeypatch):
    monkeypatch.setattr(packing, "STEP", 4)


def batch():
    return torch.randn(len(LENGTHS), N_MOST, WIDTH, requires_grad=True)


def test_rows_are_the_trials_own_patches_and_the_rest_rounds_up():
    x_BPI, rows = batch(), pack(LENGTHS, N_MOST, torch.device("cpu"))
    x_NI = rows.without_padding(x_BPI)
    assert len(x_NI) == 12  # 9 patches, rounded up to a multiple of 4
    expected = torch.cat([x_BPI[b, :length] for b, length in enumerate(LENGTHS)])
    torch.testing.assert_close(x_NI[:9], expected, rtol=0, atol=0)
    for b, (start, length) in enumerate(zip(rows.starts_B, rows.lengths_B, strict=True)):
        torch.testing.assert_close(x_NI[start : start + length], x_BPI[b, :length], rtol=0, atol=0)


def test_padding_returns_as_zeros_and_gives_no_gradient():
    x_BPI, rows = batch(), pack(LENGTHS, N_MOST, torch.device("cpu"))
    again_BPI = rows.with_padding(2 * rows.without_padding(x_BPI))
    own = torch.arange(N_MOST) < LENGTHS[:, None]
    expected = 2 * x_BPI.detach() * own[..., None]
    torch.testing.assert_close(again_BPI, expected, rtol=0, atol=0)
    again_BPI.sum().backward()
    torch.testing.assert_close(x_BPI.grad, 2.0 * own[..., None].expand(-1, -1, WIDTH))


def test_rows_of_no_trial_get_no_gradient():
    rows = pack(LENGTHS, N_MOST, torch.device("cpu"))
    x_NI = torch.randn(12, WIDTH, requires_grad=True)
    rows.with_padding(x_NI).sum().backward()
    assert x_NI.grad[:9].eq(1).all()
    assert x_NI.grad[9:].eq(0).all()


def test_batches_of_other_lengths_fit_into_the_rows_of_a_graph():
    for lengths in (LENGTHS, torch.tensor([5, 5, 2]), torch.tensor([0, 1, 0])):
        with packed_rows(rounded_rows(12)):
            rows = pack(lengths, N_MOST, torch.device("cpu"))
        x_BPI = batch()
        assert len(rows.place_N) == 12
        own = torch.arange(N_MOST) < lengths[:, None]
        again_BPI = rows.with_padding(rows.without_padding(x_BPI))
        torch.testing.assert_close(again_BPI, x_BPI * own[..., None], rtol=0, atol=0)


def test_more_patches_than_rows_are_refused():
    with packed_rows(8), pytest.raises(ValueError, match="12 rows are needed"):
        pack(LENGTHS, N_MOST, torch.device("cpu"))


@pytest.mark.parametrize("most", [2, 4, 9])
@pytest.mark.parametrize("later", [0, 1, 6])
def test_gradient_of_distances_is_that_of_the_lookup(most, later):
    n_frames = 7
    value_N = torch.randn(2 * most + 1, dtype=torch.float64, requires_grad=True)
    i = torch.arange(n_frames)
    distance_PK = i[:, None] - i
    d_PK = torch.randn(n_frames, n_frames, dtype=torch.float64).masked_fill(distance_PK < -later, 0)
    (by_distance(value_N, distance_PK) * d_PK).sum().backward()
    sums = [d_PK.diagonal(-distance).sum() for distance in range(-later, n_frames)]
    found_N = distance_gradient(torch.stack(sums), -later, 2 * most + 1)
    torch.testing.assert_close(found_N, value_N.grad)
