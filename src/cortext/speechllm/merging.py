"""A shorter sequence for the language model: one vector for each phoneme that the encoder hears.

B trials, P patches, Q merged patches, A width of a vector.
"""

from __future__ import annotations

import torch

from cortext.speechllm.alignment import length_mask


def merge_blanks(
    x_BPA: torch.Tensor, token_BP: torch.Tensor, n_patches_B: torch.Tensor, blank: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean vector of each run of equal tokens, runs of blanks left out.

    [B, Q, A] and int64 [B], how many.

    The runs are those of CTC's best path (Graves et al., 2006), as Gaido et al. (2021) shorten
    speech for a translator. A trial in which everything is blank keeps the mean of all its patches,
    so that none is empty. Zeros behind.

    Args:
        token_BP: int64 [B, P], the likeliest token of each patch.
        n_patches_B: int64 [B], what follows being padding.
    """
    inside_BP = length_mask(n_patches_B, token_BP.shape[1])
    silent_B = ~((token_BP != blank) & inside_BP).any(1)
    token_BP = torch.where(silent_B[:, None], blank + 1, token_BP)
    begins_BP = torch.ones_like(inside_BP)
    begins_BP[:, 1:] = token_BP[:, 1:] != token_BP[:, :-1]
    kept_BP = inside_BP & (token_BP != blank)
    n_runs_B = (begins_BP & kept_BP).sum(1)
    run_BP = ((begins_BP & kept_BP).cumsum(1) - 1).clamp(min=0)
    member_BPQ = (
        run_BP[..., None] == torch.arange(int(n_runs_B.max()), device=run_BP.device)
    ) & kept_BP[..., None]
    share_BQP = member_BPQ.to(x_BPA.dtype).transpose(1, 2)
    x_BPA = x_BPA.masked_fill(~inside_BP[..., None], 0.0)
    size_BQ1 = share_BQP.sum(2, keepdim=True).clamp(min=1)
    return share_BQP @ x_BPA / size_BQ1, n_runs_B
