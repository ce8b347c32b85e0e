"""Losses against a trial's sentence: cross-entropy of its tokens, and contrast of pooled vectors.

B trials, K tokens of the answer, V vocabulary, H width of a pooled vector, M answer tokens of all
trials.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from cortext.speechllm.losses.alignment import in_float32, length_mask, unit, widened


def token_cross_entropy(
    logits_BKV: torch.Tensor, targets_BK: torch.Tensor, n_tokens_B: torch.Tensor
) -> torch.Tensor:
    """Return the mean negative log-probability (natural) of a trial's tokens, float32 [B].

    The first `n_tokens_B` of a trial are meant.

    Only the logits of true tokens are widened to float32; a trial without tokens gives 0.
    """
    n_tokens_B = n_tokens_B.to(logits_BKV.device)
    mask_BK = length_mask(n_tokens_B, targets_BK.shape[1])
    trial_M = mask_BK.nonzero()[:, 0]
    with torch.autocast(logits_BKV.device.type, enabled=False):
        loss_M = F.cross_entropy(
            widened(logits_BKV[mask_BK]), targets_BK[mask_BK], reduction="none"
        )
        sum_B = loss_M.new_zeros(len(n_tokens_B)).index_add(0, trial_M, loss_M)
        return sum_B / n_tokens_B.clamp(min=1)


@in_float32
def info_nce(
    x_BH: torch.Tensor,
    y_BH: torch.Tensor,
    same_BB: torch.Tensor | None = None,
    temperature: float = 0.1,
) -> torch.Tensor:
    """Return the InfoNCE loss of x and y of each trial among those of the others, float32 [B].

    The cross-entropy of cosines over a temperature (van den Oord et al. 2018), half of it with x
    looking for its y, half with y looking for its x (Radford et al. 2021).

    Args:
        x_BH: One view of each trial.
        y_BH: The other.
        same_BB: True where two trials say the same, so that neither is a wrong answer for the
            other.
        temperature: Divisor of the cosines.
    """
    logits_BB = unit(x_BH) @ unit(y_BH).T / temperature
    if same_BB is not None:
        itself_BB = torch.eye(len(x_BH), dtype=torch.bool, device=x_BH.device)
        logits_BB = logits_BB.masked_fill(same_BB.to(x_BH.device) & ~itself_BB, -torch.inf)
    chance_B = (logits_BB.logsumexp(0) + logits_BB.logsumexp(1)) / 2
    return chance_B - logits_BB.diagonal()
