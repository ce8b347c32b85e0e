"""Runs of equal tokens made one vector each, by hand and against a loop."""

import itertools

import torch

from cortext.speechllm.merging import merge_blanks


def merged_by_a_loop(x_PA: torch.Tensor, tokens: list[int]) -> list[torch.Tensor]:
    runs, start = [], 0
    for token, run in itertools.groupby(tokens):
        end = start + len(list(run))
        if token:
            runs.append(x_PA[start:end].mean(0))
        start = end
    return runs or [x_PA[: len(tokens)].mean(0)]


def test_by_hand():
    x_BPA = torch.tensor([[[1.0], [2.0], [4.0], [8.0], [16.0], [32.0]]])
    tokens_BP = torch.tensor([[0, 5, 5, 0, 5, 7]])
    merged_BQA, n_B = merge_blanks(x_BPA, tokens_BP, torch.tensor([6]))
    assert n_B.tolist() == [3]
    assert merged_BQA[0, :, 0].tolist() == [3.0, 16.0, 32.0]  # a blank sets equal tokens apart


def test_is_the_loop_in_any_batch_and_padding_changes_nothing():
    generator = torch.Generator().manual_seed(0)
    x_BPA = torch.randn(6, 30, 4, generator=generator)
    tokens_BP = torch.randint(0, 3, (6, 30), generator=generator)
    lengths = [30, 1, 7, 29, 12, 5]
    tokens_BP[4] = 0  # silence
    n_patches_B = torch.tensor(lengths)
    for row, length in enumerate(lengths):
        x_BPA[row, length:] = torch.nan
    merged_BQA, n_B = merge_blanks(x_BPA, tokens_BP, n_patches_B)
    assert merged_BQA.isfinite().all()
    for row, length in enumerate(lengths):
        expected = merged_by_a_loop(x_BPA[row], tokens_BP[row, :length].tolist())
        assert int(n_B[row]) == len(expected)
        torch.testing.assert_close(merged_BQA[row, : len(expected)], torch.stack(expected))
        assert (merged_BQA[row, len(expected) :] == 0).all()


def test_gradient_reaches_the_patches_of_runs_only():
    x_BPA = torch.ones(1, 4, 2, requires_grad=True)
    merged_BQA, _ = merge_blanks(x_BPA, torch.tensor([[0, 3, 3, 0]]), torch.tensor([4]))
    merged_BQA.sum().backward()
    assert x_BPA.grad is not None
    assert x_BPA.grad[0, :, 0].tolist() == [0.0, 0.5, 0.5, 0.0]
