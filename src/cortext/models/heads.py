"""Read-outs: from hidden units to the logits of tokens, through diphones or not.

A diphone is a token together with the one before it. A phoneme sounds, and is articulated,
differently after each other phoneme; "DCoND" (Li et al., 2024) therefore learns the pairs, and adds
up the pairs that end in the same token. With n tokens beside the blank there are n * n + 1 classes:

    0                          the blank
    1 + (i - 1) * n + (j - 1)  token j after token i; i and j are 1 to n

B trials, P frames, D hidden units, V = n + 1 tokens, X = n * n + 1 diphones, U labels.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn

from cortext.models.registry import Output


class Diphones(nn.Module):
    """A linear map from hidden units to diphones, of which the tokens' logits are the sums.

    Args:
        n_hidden: Hidden units, D.
        n_classes: Tokens with the blank, V.
    """

    def __init__(self, n_hidden: int, n_classes: int) -> None:
        super().__init__()
        self.diphones = nn.Linear(n_hidden, (n_classes - 1) ** 2 + 1)

    def forward(self, hidden_BPD: torch.Tensor) -> torch.Tensor:
        """Compute the logits of tokens, float [B, P, V]."""
        return token_logits(self.diphones(hidden_BPD))


def read_out_layer(n_hidden: int, n_classes: int, diphones: bool) -> nn.Linear | Diphones:
    """Return a read-out with fresh weights.

    Args:
        n_hidden: Hidden units, D.
        n_classes: Tokens with the blank, V.
        diphones: True for one through diphones.
    """
    return Diphones(n_hidden, n_classes) if diphones else nn.Linear(n_hidden, n_classes)


def outputs(
    read_out: nn.Module,
    hidden_BPD: torch.Tensor,
    middle_BPD: torch.Tensor | None,
    state: Any,
) -> Output | tuple[torch.Tensor, Any]:
    """Return what `forward` returns for whole trials, with what a loss reads beside the logits.

    Args:
        read_out: A layer of `read_out_layer`.
        hidden_BPD: Float [B, P, D], hidden units of the last layer.
        middle_BPD: Float [B, P, D], hidden units of the middle layer; None for none.
        state: State after the last patch.

    Returns:
        Logits float [B, P, V] and the state. Extras are, where the model has them, the logits
        `diphones` [B, P, X], and of the middle layer `intermediate` [B, P, X or V].
    """
    extras = {}
    if isinstance(read_out, Diphones):
        extras["diphones"] = read_out.diphones(hidden_BPD)
        logits_BPV = token_logits(extras["diphones"])
        if middle_BPD is not None:
            extras["intermediate"] = read_out.diphones(middle_BPD)
    else:
        logits_BPV = read_out(hidden_BPD)
        if middle_BPD is not None:
            extras["intermediate"] = read_out(middle_BPD)
    return Output(logits_BPV, state, extras) if extras else (logits_BPV, state)


def token_logits(diphones_BPX: torch.Tensor) -> torch.Tensor:
    """Return the logits of tokens, float [B, P, V], of those of diphones, float [B, P, X].

    The probability of a token is the sum over the tokens before it. As both are normalised by the
    same sum, a token's logit is the logarithm of the sum of its diphones' exponentials.
    """
    # float32: bfloat16 keeps two to three digits, and there are 40 terms.
    if diphones_BPX.dtype != torch.float64:
        diphones_BPX = diphones_BPX.float()
    n_tokens = math.isqrt(diphones_BPX.shape[-1] - 1)
    pairs = diphones_BPX[..., 1:].reshape(*diphones_BPX.shape[:-1], n_tokens, n_tokens)
    return torch.cat((diphones_BPX[..., :1], pairs.logsumexp(-2)), -1)


def diphone_labels(labels_BU: torch.Tensor, n_diphones: int, first: int | None) -> torch.Tensor:
    """Return the diphones of labels, int64 [B, U]; padding, which is 0, remains 0.

    Args:
        labels_BU: int64 [B, U], tokens, padded with 0.
        n_diphones: Diphones with the blank, X.
        first: The token that is taken to come before the first one: the silence or boundary
            between words. None takes the first token itself: few tokens follow themselves, so that
            the pair is free to stand for the beginning.
    """
    begin_B1 = labels_BU[:, :1] if first is None else torch.full_like(labels_BU[:, :1], first)
    before_BU = torch.cat((begin_B1, labels_BU[:, :-1]), 1)[:, : labels_BU.shape[1]]
    n_tokens = math.isqrt(n_diphones - 1)
    pairs_BU = 1 + (before_BU - 1) * n_tokens + (labels_BU - 1)
    return torch.where((labels_BU > 0) & (before_BU > 0), pairs_BU, 0)
