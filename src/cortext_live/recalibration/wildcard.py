"""Labels of which some words are not known, and their loss.

Shapes: B sentences, P frames, V tokens, U labels.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional

from cortext.models import read_output
from cortext.training.batches import TrainBatch

ANY = -1
"""Label that any frames match, one or more: blanks, tokens, and also words."""


class WildcardCTC:
    """CTC in which the label `ANY` costs nothing, whatever its frames are.

    Connectionist temporal classification with wild cards (Cai et al., ICLR 2022), which here may
    also stand between tokens. Without `ANY` it is CTC.
    """

    def __call__(self, network: Any, batch: TrainBatch, fraction: float) -> dict[str, torch.Tensor]:
        """Return `loss`, float32 [B], as losses of training do; see `cortext.training.loss.Loss`.

        Args:
            network: The network.
            batch: The sentences; their labels may have `ANY`.
            fraction: Ignored.
        """
        output = read_output(network(batch.x_BTC, batch.day_B, n_patches_B=batch.n_patches_B))
        log_probs_BPV = output.logits.float().log_softmax(-1)
        any_BP1 = torch.zeros_like(log_probs_BPV[..., :1])
        extended_BPV = torch.cat([log_probs_BPV, any_BP1], dim=-1)
        last = extended_BPV.shape[-1] - 1
        labels_BU = torch.where(batch.labels_BU == ANY, last, batch.labels_BU)
        loss_B = functional.ctc_loss(
            extended_BPV.transpose(0, 1),
            labels_BU,
            batch.n_patches_B,
            batch.n_labels_B,
            reduction="none",
        )
        return {"loss": loss_B}
