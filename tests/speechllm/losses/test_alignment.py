"""Alignment losses against hand computations, plain loops, finite differences, and for what
padding may not do.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch.autograd import gradcheck

from cortext_speechllm.losses import ALIGNMENTS
from cortext_speechllm.losses.alignment import (
    cosine_alignment,
    masked_mean,
    match_lengths,
    monotonic_attention,
    mse_alignment,
    unit,
)

SEED = 7
LENGTHS = [(5, 5), (6, 3), (3, 6), (1, 4), (4, 1), (1, 1), (6, 5)]
Loss = Callable[..., torch.Tensor]
each_alignment = pytest.mark.parametrize("loss", ALIGNMENTS.values(), ids=ALIGNMENTS.keys())


def trials(
    lengths: list[tuple[int, int]],
    width: int = 4,
    dtype: torch.dtype = torch.float64,
    padding: float = 0.0,
):
    """Random sequences of the given lengths, padded to two positions more than the longest."""
    generator = torch.Generator().manual_seed(SEED)
    longest_p, longest_n = (max(pair[k] for pair in lengths) + 2 for k in (0, 1))
    brain_BPA = torch.full((len(lengths), longest_p, width), padding, dtype=dtype)
    target_BNA = torch.full((len(lengths), longest_n, width), padding, dtype=dtype)
    for i, (n_patches, n_frames) in enumerate(lengths):
        brain_BPA[i, :n_patches] = torch.randn(
            n_patches, width, generator=generator, dtype=torch.float64
        ).to(dtype)
        target_BNA[i, :n_frames] = torch.randn(
            n_frames, width, generator=generator, dtype=torch.float64
        ).to(dtype)
    n_patches_B, n_frames_B = torch.tensor(lengths).T.contiguous()
    return brain_BPA, n_patches_B, target_BNA, n_frames_B


def value_and_gradients(loss: Loss, brain_BPA, n_patches_B, target_BNA, n_frames_B):
    brain_BPA, target_BNA = brain_BPA.clone().requires_grad_(), target_BNA.clone().requires_grad_()
    value_B = loss(brain_BPA, n_patches_B, target_BNA, n_frames_B)
    gradients = torch.autograd.grad(value_B.sum(), (brain_BPA, target_BNA))
    return value_B.detach(), *gradients


def test_three_patches_over_six_frames_are_what_one_computes_by_hand():
    x_BPA = torch.tensor([[[0.0], [4.0], [8.0]]])
    # Middles of patches at 1, 3, 5 sixths of the time (twelfths: 2, 6, 10), of frames at 1, 3, 5,
    # 7, 9, 11 twelfths.
    expected = [0.0, 1.0, 3.0, 5.0, 7.0, 8.0]
    found_BNA = match_lengths(x_BPA, torch.tensor([3]), torch.tensor([6]))
    torch.testing.assert_close(found_BNA[0, :, 0], torch.tensor(expected))


def test_four_patches_over_two_frames_are_means_of_neighbours():
    x_BPA = torch.tensor([[[1.0], [2.0], [10.0], [20.0]]])
    found_BNA = match_lengths(x_BPA, torch.tensor([4]), torch.tensor([2]))
    assert found_BNA[0, :, 0].tolist() == [1.5, 15.0]


@pytest.mark.parametrize(("n_patches", "n_frames"), [(133, 80), (80, 133), (1, 7), (7, 1), (9, 9)])
def test_matching_is_what_torch_interpolates(n_patches, n_frames):
    x_BPA = trials([(n_patches, n_frames)], dtype=torch.float32)[0]
    found_BNA = match_lengths(x_BPA, torch.tensor([n_patches]), torch.tensor([n_frames]))
    expected_BAN = F.interpolate(x_BPA[:, :n_patches].transpose(1, 2), size=n_frames, mode="linear")
    torch.testing.assert_close(found_BNA, expected_BAN.transpose(1, 2), atol=1e-5, rtol=1e-5)


def test_equal_lengths_are_left_as_they_are():
    x_BPA = trials([(133, 133)], dtype=torch.float32)[0]
    found_BNA = match_lengths(x_BPA, torch.tensor([133]), torch.tensor([133]))
    assert torch.equal(found_BNA, x_BPA[:, :133])


def test_masked_mean_is_the_mean_of_the_true_part():
    x_BPH = torch.tensor(
        [[[1.0, 2.0], [3.0, 6.0], [100.0, 100.0]], [[5.0, 5.0], [9.0, 9.0], [9.0, 9.0]]]
    )
    assert masked_mean(x_BPH, torch.tensor([2, 1])).tolist() == [[2.0, 4.0], [5.0, 5.0]]
    assert masked_mean(x_BPH, torch.tensor([0, 3]))[0].tolist() == [0.0, 0.0]


def test_cosine_is_what_one_computes_by_hand():
    brain_BPA = torch.tensor([[[3.0, 4.0], [1.0, 0.0]]])
    target_BNA = torch.tensor([[[6.0, 8.0], [-2.0, 0.0]]])
    # The same direction costs 0, the opposite one 2.
    assert cosine_alignment(
        brain_BPA, torch.tensor([2]), target_BNA, torch.tensor([2])
    ).item() == pytest.approx(1.0)
    only_first = cosine_alignment(brain_BPA, torch.tensor([1]), target_BNA, torch.tensor([1]))
    assert only_first.item() == pytest.approx(0.0, abs=1e-6)
    # One patch (3, 4) for both frames: 0, and 1 + 3/5.
    stretched = cosine_alignment(brain_BPA, torch.tensor([1]), target_BNA, torch.tensor([2]))
    assert stretched.item() == pytest.approx(0.8)


def test_mse_is_what_one_computes_by_hand():
    brain_BPA = torch.tensor([[[1.0, 2.0], [3.0, 4.0]]])
    target_BNA = torch.tensor([[[2.0, 2.0], [3.0, 1.0]]])
    # Squared differences 1, 0 and 0, 9.
    assert mse_alignment(
        brain_BPA, torch.tensor([2]), target_BNA, torch.tensor([2])
    ).item() == pytest.approx(2.5)
    assert mse_alignment(
        brain_BPA, torch.tensor([1]), target_BNA, torch.tensor([1])
    ).item() == pytest.approx(0.5)


@each_alignment
def test_gradients_are_those_of_finite_differences(loss):
    brain_BPA, n_patches_B, target_BNA, n_frames_B = trials(LENGTHS, width=2)

    def of_tensors(brain_BPA, target_BNA):
        return loss(brain_BPA, n_patches_B, target_BNA, n_frames_B)

    assert gradcheck(
        of_tensors, (brain_BPA.requires_grad_(), target_BNA.requires_grad_()), fast_mode=False
    )


@each_alignment
@pytest.mark.parametrize("padding", [1e3, math.inf, math.nan])
def test_padding_changes_neither_values_nor_gradients(loss, padding):
    expected = value_and_gradients(loss, *trials(LENGTHS, dtype=torch.float32))
    found = value_and_gradients(loss, *trials(LENGTHS, dtype=torch.float32, padding=padding))
    for found_B, expected_B in zip(found, expected, strict=True):
        assert torch.equal(found_B, expected_B)
    for gradient, n_true in zip(found[1:], zip(*LENGTHS, strict=True), strict=True):
        for i, n in enumerate(n_true):
            # One position alone may have nothing to choose.
            assert gradient[i, :n].any() or 1 in LENGTHS[i]
            assert not gradient[i, n:].any()


@each_alignment
def test_a_batch_of_one_equals_a_batch_of_many(loss):
    many = trials(LENGTHS)
    together_B = loss(*many)
    for i, (n_patches, n_frames) in enumerate(LENGTHS):
        brain_BPA, n_patches_B, target_BNA, n_frames_B = (x[i : i + 1] for x in many)
        alone_B = loss(brain_BPA[:, :n_patches], n_patches_B, target_BNA[:, :n_frames], n_frames_B)
        torch.testing.assert_close(alone_B[0], together_B[i])


@each_alignment
@pytest.mark.parametrize(
    "case", ["all equal", "zero brain", "zero target", "zero both", "one zero", "huge", "tiny"]
)
def test_degenerate_sequences_give_finite_values_and_gradients(loss, case):
    brain_BPA, n_patches_B, target_BNA, n_frames_B = trials(LENGTHS, dtype=torch.float32)
    if case == "all equal":
        brain_BPA, target_BNA = torch.ones_like(brain_BPA), torch.ones_like(target_BNA)
    elif case == "one zero":
        brain_BPA[:, 0], target_BNA[:, -1] = 0.0, 0.0
    elif case in ("huge", "tiny"):
        factor = {"huge": 1e6, "tiny": 1e-7}[case]
        brain_BPA, target_BNA = brain_BPA * factor, target_BNA * factor
    else:
        brain_BPA = brain_BPA * (case == "zero target")
        target_BNA = target_BNA * (case == "zero brain")
    for found in value_and_gradients(loss, brain_BPA, n_patches_B, target_BNA, n_frames_B):
        assert found.isfinite().all()


@each_alignment
@pytest.mark.parametrize("lengths", [(0, 3), (3, 0), (0, 0)])
def test_a_trial_of_nothing_neither_counts_nor_teaches(loss, lengths):
    many = trials([(4, 3), lengths], dtype=torch.float32)
    value_B, *gradients = value_and_gradients(loss, *many)
    assert 0 <= value_B[1] < 10
    assert value_B[0] == loss(*(each[:1] for each in many))
    for gradient in gradients:
        assert gradient.isfinite().all()
        # Which counts frames to which nothing is near.
        assert not gradient[1].any() or loss is mse_alignment


@each_alignment
def test_sixteen_bits_are_computed_in_float32(loss):
    brain_BPA, n_patches_B, target_BNA, n_frames_B = trials(LENGTHS, width=64, dtype=torch.bfloat16)

    def autocast(*args):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return loss(*args)

    expected = value_and_gradients(
        loss, brain_BPA.float(), n_patches_B, target_BNA.float(), n_frames_B
    )
    of_floats = value_and_gradients(
        autocast, brain_BPA.float(), n_patches_B, target_BNA.float(), n_frames_B
    )
    for found, wanted in zip(of_floats, expected, strict=True):
        assert torch.equal(found, wanted)
    value_B, gradient_BPA, _ = value_and_gradients(
        autocast, brain_BPA, n_patches_B, target_BNA, n_frames_B
    )
    assert value_B.dtype == torch.float32
    assert torch.equal(value_B, expected[0])
    assert torch.equal(gradient_BPA, expected[1].bfloat16())


@each_alignment
def test_targets_of_float16_go_with_a_brain_of_float32(loss):
    brain_BPA, n_patches_B, target_BNA, n_frames_B = trials(LENGTHS, dtype=torch.float32)
    expected_B = loss(brain_BPA, n_patches_B, target_BNA.half().float(), n_frames_B)
    assert torch.equal(loss(brain_BPA, n_patches_B, target_BNA.half(), n_frames_B), expected_B)


@each_alignment
def test_what_is_stretched_evenly_costs_less_than_what_is_in_another_order(loss):
    generator = torch.Generator().manual_seed(SEED)
    target_BNA = torch.randn(1, 8, 16, generator=generator)
    brain_BPA = target_BNA.repeat_interleave(2, dim=1)
    lengths = torch.tensor([16]), torch.tensor([8])
    right, wrong = (
        loss(x_BPA, lengths[0], target_BNA, lengths[1]).item()
        for x_BPA in (brain_BPA, brain_BPA.flip(1))
    )
    assert right < 0.2 * wrong


def attention_paths(longer: int, shorter: int):
    """All ways to go through `shorter` positions in `longer` steps, each visited, by staying or
    moving by one.
    """
    for steps in itertools.combinations(range(1, longer), shorter - 1):
        yield [sum(step <= position for step in steps) for position in range(longer)]


@pytest.mark.parametrize(
    ("n_patches", "n_frames"), [(5, 3), (3, 5), (4, 4), (1, 1), (6, 1), (1, 4), (7, 5)]
)
def test_monotonic_attention_is_the_sum_over_all_paths(n_patches, n_frames):
    brain_BPA, n_patches_B, target_BNA, n_frames_B = trials([(n_patches, n_frames), (8, 8)])
    brain, target = brain_BPA[0, :n_patches].tolist(), target_BNA[0, :n_frames].tolist()
    long, short = (brain, target) if n_patches >= n_frames else (target, brain)
    attention = []
    for a in long:
        powers = [
            math.exp(sum(map(operator.mul, a, b)) / math.hypot(*a) / math.hypot(*b) / 0.3)
            for b in short
        ]
        attention.append([power / sum(powers) for power in powers])
    paths = list(attention_paths(len(long), len(short)))
    assert len(paths) == math.comb(len(long) - 1, len(short) - 1)
    probability = sum(math.prod(attention[t][u] for t, u in enumerate(path)) for path in paths)
    found_B = monotonic_attention(brain_BPA, n_patches_B, target_BNA, n_frames_B, temperature=0.3)
    assert found_B[0].item() == pytest.approx(-math.log(probability) / len(long))


def test_even_attention_costs_what_one_computes_by_hand():
    # Three positions over two: 2 ways, each of probability 1/8.
    ones = torch.ones(1, 3, 4)
    found_B = monotonic_attention(ones, torch.tensor([3]), ones, torch.tensor([2]))
    assert found_B.item() == pytest.approx(-math.log(2 / 8) / 3)


def test_unit_vectors_have_length_one_and_none_where_there_is_no_direction():
    found = unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    torch.testing.assert_close(found, torch.tensor([[0.6, 0.8], [0.0, 0.0]]))
