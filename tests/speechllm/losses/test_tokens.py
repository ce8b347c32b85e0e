"""Cross-entropy of tokens and InfoNCE against plain loops and finite differences."""

from __future__ import annotations

import math

import pytest
import torch
from torch.autograd import gradcheck

from cortext_speechllm.losses.speech_loss import info_nce, token_cross_entropy

SEED = 11


def random(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(
        *shape, generator=torch.Generator().manual_seed(SEED), dtype=torch.float64
    ).to(dtype)


def test_cross_entropy_of_even_odds_is_the_logarithm_of_the_vocabulary():
    targets_BK = torch.tensor([[0, 4, 2], [1, 0, 0]])
    found_B = token_cross_entropy(torch.zeros(2, 3, 5), targets_BK, torch.tensor([3, 1]))
    assert found_B.tolist() == pytest.approx([math.log(5)] * 2)


def test_cross_entropy_is_what_one_computes_by_hand():
    logits_BKV = torch.tensor([[[2.0, 1.0, 0.0], [0.0, 0.0, 3.0], [9.0, 9.0, 9.0]]])
    first = math.log(math.e**2 + math.e + 1) - 1.0
    second = math.log(2 + math.e**3) - 3.0
    found_B = token_cross_entropy(logits_BKV, torch.tensor([[1, 2, 0]]), torch.tensor([2]))
    assert found_B.item() == pytest.approx((first + second) / 2)


def test_cross_entropy_has_gradients_of_finite_differences():
    targets_BK, n_tokens_B = (
        torch.tensor([[0, 4, 2], [1, 0, 0], [3, 2, 0]]),
        torch.tensor([3, 1, 2]),
    )
    logits_BKV = random(3, 3, 5).requires_grad_()
    assert gradcheck(lambda logits: token_cross_entropy(logits, targets_BK, n_tokens_B), logits_BKV)


@pytest.mark.parametrize(
    ("logit", "target"), [(1e4, 3), (math.nan, 0), (0.0, -100), (math.inf, 10**6)]
)
def test_padding_of_answers_changes_nothing(logit, target):
    n_tokens_B = torch.tensor([2, 3, 1])
    padding_BK = torch.arange(4) >= n_tokens_B.unsqueeze(1)
    targets_BK = torch.randint(5, (3, 4), generator=torch.Generator().manual_seed(SEED))
    results = []
    for fill in (False, True):
        logits_BKV = random(3, 4, 5, dtype=torch.float32)
        if fill:
            logits_BKV[padding_BK], targets_BK = logit, targets_BK.masked_fill(padding_BK, target)
        loss_B = token_cross_entropy(logits_BKV.requires_grad_(), targets_BK, n_tokens_B)
        results.append((loss_B, torch.autograd.grad(loss_B.sum(), logits_BKV)[0]))
    for found, expected in zip(*results, strict=True):
        assert torch.equal(found, expected)
    assert not results[1][1][padding_BK].any()


def test_cross_entropy_of_one_trial_is_that_among_many_and_no_tokens_cost_nothing():
    logits_BKV, targets_BK = (
        random(3, 4, 5),
        torch.tensor([[1, 2, 3, 4], [4, 3, 0, 0], [0, 0, 0, 0]]),
    )
    n_tokens_B = torch.tensor([4, 2, 0])
    together_B = token_cross_entropy(logits_BKV, targets_BK, n_tokens_B)
    alone = [
        token_cross_entropy(logits_BKV[i : i + 1], targets_BK[i : i + 1], n_tokens_B[i : i + 1])
        for i in range(3)
    ]
    torch.testing.assert_close(torch.cat(alone), together_B)
    assert together_B[2].item() == 0.0


def test_cross_entropy_of_sixteen_bits_is_computed_in_float32():
    logits_BKV = 10 * random(2, 3, 50, dtype=torch.bfloat16)
    targets_BK, n_tokens_B = torch.tensor([[7, 8, 9], [1, 2, 3]]), torch.tensor([3, 2])
    expected_B = token_cross_entropy(logits_BKV.float(), targets_BK, n_tokens_B)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found_B = token_cross_entropy(logits_BKV, targets_BK, n_tokens_B)
    assert found_B.dtype == torch.float32
    assert torch.equal(found_B, expected_B)


def plain_info_nce(
    x_BH: torch.Tensor, y_BH: torch.Tensor, same_BB: torch.Tensor, temperature: float
) -> list[float]:
    """InfoNCE in loops over lists."""

    def likeness(a: list[float], b: list[float]) -> float:
        product = sum(p * q for p, q in zip(a, b, strict=True))
        return product / math.sqrt(sum(p * p for p in a) * sum(q * q for q in b)) / temperature

    x, y, n = x_BH.tolist(), y_BH.tolist(), len(x_BH)
    found = []
    for i in range(n):
        others = [j for j in range(n) if j == i or not same_BB[i, j]]
        right = likeness(x[i], y[i])
        by_x = math.log(sum(math.exp(likeness(x[i], y[j])) for j in others)) - right
        by_y = math.log(sum(math.exp(likeness(x[j], y[i])) for j in others)) - right
        found.append((by_x + by_y) / 2)
    return found


@pytest.mark.parametrize("diagonal", [True, False])
def test_info_nce_is_that_of_plain_loops_and_takes_no_repeated_sentence_for_wrong(diagonal):
    sentence_B = torch.tensor([3, 1, 3, 2, 1])
    same_BB = sentence_B.unsqueeze(0) == sentence_B.unsqueeze(1)
    if not diagonal:
        same_BB = same_BB & ~torch.eye(5, dtype=torch.bool)
    x_BH, y_BH = random(5, 6), random(5, 12)[:, ::2]
    found_B = info_nce(x_BH, y_BH, same_BB, temperature=0.3)
    assert found_B.tolist() == pytest.approx(plain_info_nce(x_BH, y_BH, same_BB, 0.3))


def test_info_nce_without_repeated_sentences_takes_all_others_for_wrong():
    x_BH, y_BH = random(4, 3), random(4, 6)[:, 3:]
    nothing_BB = torch.zeros(4, 4, dtype=torch.bool)
    assert info_nce(x_BH, y_BH).tolist() == pytest.approx(
        plain_info_nce(x_BH, y_BH, nothing_BB, 0.1)
    )


def test_info_nce_is_symmetric_and_zero_where_there_is_nothing_to_confuse():
    x_BH, y_BH = random(4, 3), random(4, 6)[:, 3:]
    torch.testing.assert_close(info_nce(x_BH, y_BH), info_nce(y_BH, x_BH))
    assert info_nce(x_BH[:1], y_BH[:1]).item() == pytest.approx(0.0, abs=1e-12)
    assert info_nce(x_BH, y_BH, torch.ones(4, 4, dtype=torch.bool)).tolist() == pytest.approx(
        [0.0] * 4, abs=1e-12
    )


def test_info_nce_has_gradients_of_finite_differences():
    same_BB = torch.tensor([[1, 0, 1], [0, 1, 0], [1, 0, 1]], dtype=torch.bool)
    x_BH, y_BH = random(3, 4).requires_grad_(), random(3, 8)[:, 4:].requires_grad_()
    assert gradcheck(lambda x, y: info_nce(x, y, same_BB, 0.2), (x_BH, y_BH))


@pytest.mark.parametrize("vector", [0.0, 1.0])
def test_info_nce_of_equal_or_zero_vectors_is_finite(vector):
    x_BH = torch.full((4, 3), vector, requires_grad=True)
    loss_B = info_nce(x_BH, torch.ones(4, 3))
    assert loss_B.tolist() == pytest.approx([math.log(4)] * 4)
    assert torch.autograd.grad(loss_B.sum(), x_BH)[0].isfinite().all()


def test_info_nce_under_autocast_is_computed_in_float32():
    x_BH, y_BH = random(4, 32, dtype=torch.bfloat16), random(4, 64, dtype=torch.bfloat16)[:, 32:]
    expected_B = info_nce(x_BH.float(), y_BH.float())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(info_nce(x_BH, y_BH), expected_B)
        assert torch.equal(info_nce(x_BH.float(), y_BH.float()), expected_B)
