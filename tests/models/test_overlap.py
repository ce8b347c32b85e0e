"""The product of overlapping patches by fewer multiplications, compared with the plain product."""

from fractions import Fraction

import pytest
import torch

from cortext.models.gru import GRU, GRUConfig
from cortext.models.overlap import LEAST_ROWS, Overlap, toom_cook


@pytest.mark.parametrize("n_taps", [1, 2, 3, 4])
def test_small_matrices_give_a_correlation_exactly(n_taps: int) -> None:
    combine, of_taps, of_blocks = (
        [[Fraction(value).limit_denominator(1000) for value in row] for row in matrix]
        for matrix in toom_cook(4, n_taps)
    )

    def times(matrix: list[list[Fraction]], vector: list[Fraction]) -> list[Fraction]:
        return [sum(a * b for a, b in zip(row, vector, strict=True)) for row in matrix]

    taps = [Fraction(k) for k in (3, -1, 4, 7)][:n_taps]
    data = [Fraction(k) for k in (2, 7, -1, 8, 2, 8, -5)][: 4 + n_taps - 1]
    products = [a * b for a, b in zip(times(of_taps, taps), times(of_blocks, data), strict=True)]
    plain = [sum(taps[i] * data[j + i] for i in range(n_taps)) for j in range(4)]
    assert times(combine, products) == plain


def _plain(x: torch.Tensor, weight: torch.Tensor, size: int, stride: int, lengths: list[int]):
    """Return the product in float64, patch by patch."""
    rows = [
        x[b, p * stride : p * stride + size].flatten()
        for b, n in enumerate(lengths)
        for p in range(n)
    ]
    return torch.stack(rows).double() @ weight.double().t()


@pytest.mark.parametrize(("size", "stride"), [(14, 4), (16, 4), (9, 4), (5, 2), (3, 1)])
@pytest.mark.parametrize("bins_after", [0, 3, 40])
def test_product_and_gradients_are_those_of_each_patch(
    size: int, stride: int, bins_after: int
) -> None:
    lengths = [7, 1, 12, 4]
    generator = torch.Generator().manual_seed(size)
    n_bins = (max(lengths) - 1) * stride + size + bins_after
    x = torch.randn(4, n_bins, 6, generator=generator, requires_grad=True)
    weight = torch.randn(5, size * 6, generator=generator, requires_grad=True)
    found = Overlap(x, size, stride).product(weight, lengths)
    expected = _plain(x, weight, size, stride, lengths)
    assert found.shape == (24, 5)
    toward = torch.randn(24, 5, generator=generator)
    gradients = torch.autograd.grad((found * toward).sum(), (x, weight))
    right = torch.autograd.grad((expected * toward).sum(), (x, weight))
    for ours, plain in zip((found, *gradients), (expected, *right), strict=True):
        assert (ours - plain).abs().max() < 3e-6 * plain.abs().max()


def test_training_of_the_gru_uses_it_and_learns_the_same() -> None:
    torch.manual_seed(0)
    config = GRUConfig(n_units=16, n_layers=2, rnn_dropout=0.0)
    config.input_network.input_layer_dropout = 0.0
    model = GRU(config, n_features=8, n_days=1, n_classes=5)
    n_patches = torch.tensor([70, 50, 64, 80, 10])
    x = torch.randn(5, 14 + 79 * 4, 8)
    assert Overlap(x, 14, 4).pays(int(n_patches.sum()))
    assert not Overlap(x, 14, 4).pays(LEAST_ROWS - 1)

    def gradients(model: GRU, x: torch.Tensor) -> list[torch.Tensor]:
        model.zero_grad()
        logits = model(x, torch.zeros(5, dtype=torch.int64), n_patches_B=n_patches)[0]
        for b, n in enumerate(n_patches.tolist()):
            logits[b, :n].sum().backward(retain_graph=True)
        return [parameter.grad.clone() for parameter in model.parameters()]

    fast = gradients(model, x)
    plain = gradients(model.double(), x.double())  # float64 is computed by torch's own layers
    for ours, right in zip(fast, plain, strict=True):
        assert (ours - right).abs().max() <= 2e-5 * right.abs().max()
