"""Soft dynamic time warping (Cuturi & Blondel, ICML 2017).

Each step computes a whole anti-diagonal of every trial.

B trials, P patches, N frames, A width; Q = P + N - 1 anti-diagonals: cell (p, n) lies on diagonal p
+ n, and needs only cells of the two diagonals before it.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch.autograd.function import once_differentiable

from cortext_speechllm.losses.alignment import cosine_costs, in_float32, length_mask

FAR = -1e30
"""Number for minus infinity: the difference of two is a number, not NaN."""


@in_float32
def soft_dtw(
    brain_BPA: torch.Tensor,
    n_patches_B: torch.Tensor,
    target_BNA: torch.Tensor,
    n_frames_B: torch.Tensor,
    gamma: float = 0.1,
) -> torch.Tensor:
    """Return the cost per step of warping patches onto frames, float32 [B].

    A pair of patch and frame costs 1 - cosine, see `warping_cost`. From the warping cost, the value
    for costs of zero is subtracted; it is at most 0, falls with the number of paths, and has no
    gradient. The rest is divided by the longer length, which makes it comparable with
    `cosine_alignment`. The result is never negative. It is zero only where every patch has the
    direction of every frame.

    Args:
        brain_BPA: See `cosine_costs`, as for the others.
        n_patches_B: int64 [B], patches of each trial.
        target_BNA: Frames of the audio tower, padded.
        n_frames_B: int64 [B], frames of each trial.
        gamma: Softness, see `warping_cost`.
    """
    costs_BPN = cosine_costs(brain_BPA, n_patches_B, target_BNA, n_frames_B)
    n_patches_B, n_frames_B = n_patches_B.to(costs_BPN.device), n_frames_B.to(costs_BPN.device)
    cost_B = warping_cost(costs_BPN, n_patches_B, n_frames_B, gamma)
    of_zeros_B = -gamma * log_paths(n_patches_B, n_frames_B, min(costs_BPN.shape[1:])).to(
        cost_B.dtype
    )
    per_step_B: torch.Tensor = (cost_B - of_zeros_B) / torch.maximum(n_patches_B, n_frames_B).clamp(
        min=1
    )
    return per_step_B


def warping_cost(
    costs_BPN: torch.Tensor, n_patches_B: torch.Tensor, n_frames_B: torch.Tensor, gamma: float
) -> torch.Tensor:
    """Return the soft-DTW of a matrix of costs, [B].

    It is -gamma log of the sum over paths of exp(-(sum of a path's costs) / gamma). A path goes
    from the first pair to a trial's last one by steps of one patch, one frame, or one of both.

    Args:
        costs_BPN: Float, cost of each pair; the padding is ignored.
        n_patches_B: int64 [B], patches of each trial.
        n_frames_B: int64 [B], frames of each trial.
        gamma: Softness, above 0; the smaller, the closer the result is to the cheapest path's cost.
    """
    if costs_BPN.shape[1] > costs_BPN.shape[2]:  # diagonals are as long as the shorter side
        turned_B: torch.Tensor = warping_cost(
            costs_BPN.transpose(1, 2), n_frames_B, n_patches_B, gamma
        )
        return turned_B
    n_patches_B, n_frames_B = n_patches_B.to(costs_BPN.device), n_frames_B.to(costs_BPN.device)
    mask_BP = length_mask(n_patches_B, costs_BPN.shape[1])
    mask_BN = length_mask(n_frames_B, costs_BPN.shape[2])
    costs_BPN = costs_BPN.masked_fill(~(mask_BP.unsqueeze(2) & mask_BN.unsqueeze(1)), 0.0)
    value_B: torch.Tensor = _SoftDTW.apply(
        costs_BPN, n_patches_B.clamp(min=1), n_frames_B.clamp(min=1), gamma
    )  # type: ignore[no-untyped-call]
    return value_B


def log_paths(n_patches_B: torch.Tensor, n_frames_B: torch.Tensor, most: int) -> torch.Tensor:
    """Return the natural logarithm of the number of paths, float32 [B].

    The number is the Delannoy number of both lengths, less one each.

    Args:
        n_patches_B: int64 [B], patches of each trial.
        n_frames_B: int64 [B], frames of each trial.
        most: Upper bound of all trials' shorter lengths.
    """
    p_B1, n_B1 = (n_B.clamp(min=1).unsqueeze(1) - 1 for n_B in (n_patches_B, n_frames_B))
    both_K = torch.arange(most, device=n_patches_B.device)  # steps of both
    log_ways_BK = _log_choose(p_B1, both_K) + _log_choose(n_B1, both_K) + both_K * math.log(2.0)
    return log_ways_BK.logsumexp(1)


def _log_choose(n_B1: torch.Tensor, k_K: torch.Tensor) -> torch.Tensor:
    """Natural logarithm of the binomial coefficient, -inf where k > n."""
    return torch.lgamma(n_B1 + 1.0) - torch.lgamma(k_K + 1.0) - torch.lgamma(n_B1 - k_K + 1.0)


class _SoftDTW(torch.autograd.Function):
    """`warping_cost` of costs whose padding is zero.

    The gradient of a cost is the share of the paths through its cell. Forward keeps, for each cell,
    the shares of the three cells before it. Backward only multiplies: no precision is lost to
    differences of large sums.
    """

    @staticmethod
    def forward(
        ctx: Any,
        costs_BPN: torch.Tensor,
        n_patches_B: torch.Tensor,
        n_frames_B: torch.Tensor,
        gamma: float,
    ) -> torch.Tensor:
        costs_QBP = _by_diagonals(costs_BPN) / gamma
        n_diagonals, n_trials, n_patches = costs_QBP.shape
        # Scores are minus costs. Two diagonals and one patch before the first hold the start, and
        # impossible cells.
        score_QBP = costs_BPN.new_full((n_diagonals + 2, n_trials, n_patches + 1), FAR)
        score_QBP[0, :, 0] = 0.0
        part_Q3BP = costs_BPN.new_empty(n_diagonals, 3, n_trials, n_patches)
        # A cell needs only the two diagonals before its own. All cells of a diagonal are computed
        # at once, which takes P + N - 1 steps instead of P * N.
        for q in range(n_diagonals):
            before_3BP = torch.stack(
                (score_QBP[q + 1, :, 1:], score_QBP[q + 1, :, :-1], score_QBP[q, :, :-1])
            )
            score_QBP[q + 2, :, 1:] = before_3BP.logsumexp(0) - costs_QBP[q]
            torch.softmax(before_3BP, 0, out=part_Q3BP[q])
        ctx.save_for_backward(part_Q3BP, n_patches_B, n_frames_B)
        trial_B = torch.arange(n_trials, device=costs_BPN.device)
        return -gamma * score_QBP[n_patches_B + n_frames_B, trial_B, n_patches_B]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient_B: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        part_Q3BP, n_patches_B, n_frames_B = ctx.saved_tensors
        n_diagonals, _, n_trials, n_patches = part_Q3BP.shape
        flow_QBP = gradient_B.new_zeros(n_diagonals, n_trials, n_patches)
        trial_B = torch.arange(n_trials, device=gradient_B.device)
        flow_QBP[n_patches_B + n_frames_B - 2, trial_B, n_patches_B - 1] = gradient_B
        for q in range(n_diagonals - 2, -1, -1):
            here_BP = flow_QBP[q]
            next_BP = flow_QBP[q + 1]
            part_3BP = part_Q3BP[q + 1]
            here_BP.addcmul_(next_BP, part_3BP[0])
            here_BP[:, :-1].addcmul_(next_BP[:, 1:], part_3BP[1, :, 1:])
            if q + 2 < n_diagonals:
                here_BP[:, :-1].addcmul_(flow_QBP[q + 2, :, 1:], part_Q3BP[q + 2, 2, :, 1:])
        return _from_diagonals(flow_QBP), None, None, None


def _by_diagonals(x_BPN: torch.Tensor) -> torch.Tensor:
    """Return cells by diagonal, [Q, B, P]: cell (p, n) at diagonal p + n; zeros elsewhere.

    Row p is moved right by p.
    """
    n_trials, n_patches, n_frames = x_BPN.shape
    n_diagonals = n_patches + n_frames - 1
    rows_BX = F.pad(x_BPN, (0, n_patches)).flatten(1)[:, : n_patches * n_diagonals]
    return rows_BX.view(n_trials, n_patches, n_diagonals).permute(2, 0, 1).contiguous()


def _from_diagonals(x_QBP: torch.Tensor) -> torch.Tensor:
    """Undo `_by_diagonals`: [B, P, N]."""
    n_diagonals, n_trials, n_patches = x_QBP.shape
    rows_BX = F.pad(x_QBP.permute(1, 2, 0).flatten(1), (0, n_patches))
    return rows_BX.view(n_trials, n_patches, n_diagonals + 1)[:, :, : n_diagonals - n_patches + 1]
