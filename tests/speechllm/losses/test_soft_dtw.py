"""Soft-DTW against all paths one by one, the plain recursion, hand computations and finite
differences.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch.autograd import gradcheck

from cortext_speechllm.losses.soft_dtw import log_paths, soft_dtw, warping_cost

SHAPES = [(1, 1), (1, 4), (4, 1), (2, 2), (3, 4), (4, 3), (5, 5)]
SEED = 3


def random_costs(n_patches: int, n_frames: int, n_trials: int = 1) -> torch.Tensor:
    generator = torch.Generator().manual_seed(SEED)
    return 2 * torch.rand(n_trials, n_patches, n_frames, generator=generator, dtype=torch.float64)


def lengths(*pairs: tuple[int, int]) -> tuple[torch.Tensor, torch.Tensor]:
    n_patches_B, n_frames_B = torch.tensor(pairs).T
    return n_patches_B, n_frames_B


def all_paths(p: int, n: int) -> Iterator[list[tuple[int, int]]]:
    """All warping paths from (0, 0) to (p, n)."""
    if (p, n) == (0, 0):
        yield [(0, 0)]
    for before in ((p - 1, n), (p, n - 1), (p - 1, n - 1)):
        if min(before) >= 0:
            for path in all_paths(*before):
                yield [*path, (p, n)]


def plain_soft_dtw(costs: list[list[float]], gamma: float) -> float:
    """The recursion of the paper, cell by cell."""
    table = {(-1, -1): 0.0}
    for p, row in enumerate(costs):
        for n, cost in enumerate(row):
            before = [
                table[cell] for cell in ((p - 1, n), (p, n - 1), (p - 1, n - 1)) if cell in table
            ]
            least = min(before)
            table[p, n] = (
                cost
                + least
                - gamma * math.log(sum(math.exp((least - value) / gamma) for value in before))
            )
    return table[len(costs) - 1, len(costs[0]) - 1]


def plain_dtw(costs: list[list[float]]) -> float:
    table = {(-1, -1): 0.0}
    for p, row in enumerate(costs):
        for n, cost in enumerate(row):
            before = ((p - 1, n), (p, n - 1), (p - 1, n - 1))
            table[p, n] = cost + min(table[cell] for cell in before if cell in table)
    return table[len(costs) - 1, len(costs[0]) - 1]


@pytest.mark.parametrize("gamma", [0.1, 1.0])
@pytest.mark.parametrize(("n_patches", "n_frames"), SHAPES)
def test_value_and_gradient_are_those_of_all_paths(n_patches, n_frames, gamma):
    costs_BPN = random_costs(n_patches, n_frames).requires_grad_()
    found_B = warping_cost(costs_BPN, *lengths((n_patches, n_frames)), gamma)
    gradient_PN = torch.autograd.grad(found_B.sum(), costs_BPN)[0][0]

    paths = list(all_paths(n_patches - 1, n_frames - 1))
    weights = [math.exp(-sum(costs_BPN[0, p, n].item() for p, n in path) / gamma) for path in paths]
    through = torch.zeros(n_patches, n_frames, dtype=torch.float64)
    for path, weight in zip(paths, weights, strict=True):
        for p, n in path:
            through[p, n] += weight / sum(weights)
    assert found_B.item() == pytest.approx(-gamma * math.log(sum(weights)))
    torch.testing.assert_close(gradient_PN, through)


@pytest.mark.parametrize(("n_patches", "n_frames"), [(40, 23), (23, 40), (30, 30)])
def test_long_sequences_agree_with_the_recursion_cell_by_cell(n_patches, n_frames):
    costs_BPN = random_costs(n_patches, n_frames)
    found_B = warping_cost(costs_BPN, *lengths((n_patches, n_frames)), 0.1)
    assert found_B.item() == pytest.approx(plain_soft_dtw(costs_BPN[0].tolist(), 0.1))


def test_a_small_gamma_gives_the_cheapest_path():
    costs_BPN = random_costs(12, 9)
    found_B = warping_cost(costs_BPN, *lengths((12, 9)), 1e-6)
    assert found_B.item() == pytest.approx(plain_dtw(costs_BPN[0].tolist()), abs=1e-5)
    in_float32_B = warping_cost(costs_BPN.float(), *lengths((12, 9)), 1e-6)
    assert in_float32_B.item() == pytest.approx(plain_dtw(costs_BPN[0].tolist()), rel=1e-5)


def test_costs_by_hand():
    assert warping_cost(torch.zeros(1, 2, 2), *lengths((2, 2)), 0.5).item() == pytest.approx(
        -0.5 * math.log(3)
    )
    # A single row has one path, the sum of its costs.
    assert warping_cost(
        torch.tensor([[[1.0, 2.0, 4.0]]]), *lengths((1, 3)), 0.5
    ).item() == pytest.approx(7.0)
    # Costs 0 on the diagonal and 1 beside it: paths of cost 0, 1 and 1.
    expected = -math.log(1 + 2 * math.exp(-1.0))
    assert warping_cost(1 - torch.eye(2)[None], *lengths((2, 2)), 1.0).item() == pytest.approx(
        expected
    )


def test_gradients_are_those_of_finite_differences():
    pairs = lengths((4, 3), (1, 3), (4, 1), (2, 2))
    costs_BPN = random_costs(4, 3, n_trials=4).requires_grad_()
    assert gradcheck(lambda costs: warping_cost(costs, *pairs, 0.3), costs_BPN)


@pytest.mark.parametrize("padding", [1e6, -1e6, math.inf, math.nan])
def test_padding_changes_neither_values_nor_gradients(padding):
    pairs = [(4, 3), (6, 5), (1, 5), (6, 1), (5, 2)]
    costs_BPN = random_costs(6, 5, n_trials=5).float()
    results = []
    for fill in (0.0, padding):
        padded_BPN = costs_BPN.clone()
        for i, (n_patches, n_frames) in enumerate(pairs):
            padded_BPN[i, n_patches:], padded_BPN[i, :, n_frames:] = fill, fill
        value_B = warping_cost(padded_BPN.requires_grad_(), *lengths(*pairs), 0.1)
        results.append((value_B, torch.autograd.grad(value_B.sum(), padded_BPN)[0]))
    for found, expected in zip(*results, strict=True):
        assert torch.equal(found, expected)
    for i, (n_patches, n_frames) in enumerate(pairs):
        alone_B = warping_cost(costs_BPN[i : i + 1, :n_patches, :n_frames], *lengths(pairs[i]), 0.1)
        torch.testing.assert_close(alone_B[0], results[0][0][i])
        gradient_PN = results[1][1][i]
        # Every path is that long.
        assert gradient_PN[:n_patches, :n_frames].sum() >= max(n_patches, n_frames) - 1e-4
        assert not gradient_PN[n_patches:].any()
        assert not gradient_PN[:, n_frames:].any()


def test_float32_keeps_its_precision_at_full_length():
    costs_BPN = random_costs(133, 80, n_trials=2)
    pairs = lengths((133, 80), (101, 77))
    gradients = []
    for dtype in (torch.float64, torch.float32):
        typed_BPN = costs_BPN.to(dtype).requires_grad_()
        gradients.append(
            torch.autograd.grad(warping_cost(typed_BPN, *pairs, 0.1).sum(), typed_BPN)[0].double()
        )
    torch.testing.assert_close(gradients[1], gradients[0], atol=1e-4, rtol=1e-3)


@pytest.mark.parametrize(("n_patches", "n_frames"), SHAPES)
def test_the_number_of_paths_is_counted_right(n_patches, n_frames):
    expected = sum(1 for _ in all_paths(n_patches - 1, n_frames - 1))
    found_B = log_paths(*lengths((n_patches, n_frames)), most=7)
    assert math.exp(found_B.item()) == pytest.approx(expected, rel=1e-5)


def test_per_step_it_is_zero_for_equal_vectors_and_the_cost_of_a_step_for_equal_costs():
    same = torch.ones(3, 9, 4)
    pairs = lengths((9, 5), (1, 1), (6, 9))
    assert soft_dtw(same, pairs[0], same, pairs[1]).tolist() == pytest.approx([0.0] * 3, abs=1e-6)
    # Vectors at right angles: a step costs 1. With a small gamma only the shortest paths count, of
    # the longer length.
    across = (
        torch.tensor([1.0, 0.0, 0.0, 0.0]).expand(3, 9, 4),
        torch.tensor([0.0, 1.0, 0.0, 0.0]).expand(3, 9, 4),
    )
    found_B = soft_dtw(across[0], pairs[0], across[1], pairs[1], gamma=1e-5)
    assert found_B.tolist() == pytest.approx([1.0] * 3, abs=1e-4)


def test_per_step_it_is_the_path_sum_less_that_of_zero_costs_over_the_longer_length():
    generator = torch.Generator().manual_seed(SEED)
    brain_BPA, target_BNA = (
        torch.randn(1, n, 3, generator=generator, dtype=torch.float64) for n in (4, 3)
    )
    costs = [
        [1 - torch.cosine_similarity(p, n, dim=0).item() for n in target_BNA[0]]
        for p in brain_BPA[0]
    ]
    expected = (plain_soft_dtw(costs, 0.2) - plain_soft_dtw([[0.0] * 3] * 4, 0.2)) / 4
    found_B = soft_dtw(brain_BPA, *lengths((4, 3))[:1], target_BNA, *lengths((4, 3))[1:], gamma=0.2)
    assert found_B.item() == pytest.approx(expected, rel=1e-6)
