"""A model and a loss as users write them."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import nn

from cortext.models import Output
from cortext.training.loss import ctc_loss


@dataclass
class MeansConfig:
    kind: str = "means"
    n_input_features: int | None = None
    patch_size: int = 8
    patch_stride: int = 4


class Means(nn.Module):
    """A user's own model, of plain torch operations."""

    Config: ClassVar[type] = MeansConfig

    def __init__(self, config, *, n_features, n_days, n_classes):
        super().__init__()
        self.config = config
        self.day_bias = nn.Parameter(torch.zeros(n_days, n_features))
        self.mix = nn.Conv1d(n_features, 16, 8, stride=4)
        self.norm = nn.LayerNorm(16)
        self.out = nn.Linear(32, n_classes)
        self.unused = nn.Parameter(torch.ones(3))
        self.register_buffer("scale", torch.full((16,), 2.0))

    def n_patches(self, n_bins):
        return (n_bins - 8) // 4 + 1

    def forward(self, x_BTC, day_B, state=None, *, n_patches_B=None):
        x_BTC = x_BTC + self.day_bias[day_B][:, None]
        hidden_BPD = self.norm(self.mix(x_BTC.transpose(1, 2)).transpose(1, 2)) * self.scale
        both = torch.cat([hidden_BPD, torch.nn.functional.gelu(hidden_BPD)], dim=-1)
        logits_BPV = self.out(nn.functional.dropout(both, 0.0, self.training))
        return Output(logits_BPV, extras={"hidden": hidden_BPD})


@dataclass
class FadingConfig:
    kind: str = "fading"
    in_python: bool = False
    gives: str = "one for each trial"


class Fading:
    """A user's own loss, which changes as training proceeds."""

    Config: ClassVar[type] = FadingConfig

    def __init__(self, config):
        self.config = config

    def __call__(self, network, batch, fraction):
        logits_BPV = network(batch.x_BTC, batch.day_B, n_patches_B=batch.n_patches_B)[0]
        losses_B = ctc_loss(logits_BPV, batch.n_patches_B, batch.labels_BU, batch.n_labels_B)
        wrong = {
            "mean": {"loss": losses_B.mean()},
            "one": {"loss": losses_B[:1]},
            "other": {"ctc": losses_B},
        }
        if self.config.gives in wrong:
            return wrong[self.config.gives]
        energy_B = logits_BPV[:, 0].square().mean(1)
        if self.config.in_python and fraction > 0.5:
            energy_B = 0 * energy_B
        return {"loss": losses_B + (1 - fraction) * 0.1 * energy_B, "energy": energy_B.detach()}
