"""A plug-in without a mistake: a model with a state and extras, a loss and an augmentation."""

import pytest

from cortext.features.augment import AUGMENTATIONS
from cortext.models import MODELS
from cortext.training import LOSSES
from cortext.training.config import TASKS

RIGHT = """
from dataclasses import dataclass, field
from typing import ClassVar, Literal

import numpy as np
import torch
from torch import nn

from cortext.features import register_augmentation
from cortext.models import Output, register
from cortext.models.inputs import DayLayers, InputNetworkConfig
from cortext.training import register_loss
from cortext.training.loss import ctc_loss


@dataclass
class RecurrentConfig:
    kind: Literal["mine"] = "mine"
    n_input_features: int | None = None
    patch_size: int = 14
    patch_stride: int = 4
    n_units: int = 12
    input_network: InputNetworkConfig = field(default_factory=InputNetworkConfig)


@register("mine")
class Recurrent(DayLayers):
    Config: ClassVar[type] = RecurrentConfig
    default_loss: ClassVar[str] = "my_loss"

    def __init__(self, config, *, n_features, n_days, n_classes):
        super().__init__(config, n_features=n_features, n_days=n_days)
        self.gru = nn.GRU(self.patch_width, config.n_units, batch_first=True)
        self.early = nn.Linear(self.patch_width, n_classes)
        self.out = nn.Linear(config.n_units, n_classes)
        self.register_buffer("scale", torch.rand(n_classes))

    def first_state(self, n_trials):
        return torch.zeros(1, n_trials, self.config.n_units)

    def forward(self, x_BTC, day_B, state=None, *, n_patches_B=None):
        x_BPI = self.inputs(x_BTC, day_B)
        if state is None:
            state = self.first_state(len(x_BPI))
        hidden_BPD, state = self.gru(x_BPI, state)
        logits_BPV = self.out(hidden_BPD) * self.scale
        return Output(logits_BPV, state, {"early": self.early(x_BPI)})


@dataclass
class LossConfig:
    kind: Literal["my_loss"] = "my_loss"


@register_loss("my_loss")
class MyLoss:
    Config: ClassVar[type] = LossConfig

    def __init__(self, config):
        self.config = config

    def __call__(self, network, batch, fraction):
        output = network(batch.x_BTC, batch.day_B, n_patches_B=batch.n_patches_B)
        lengths = batch.n_patches_B, batch.labels_BU, batch.n_labels_B
        ctc_B = ctc_loss(output.logits, *lengths)
        return {"loss": ctc_B + 0.1 * ctc_loss(output.extras["early"], *lengths), "ctc": ctc_B}


@dataclass
class NoiseConfig:
    kind: Literal["my_noise"] = "my_noise"


@register_augmentation("my_noise")
class MyNoise:
    Config: ClassVar[type] = NoiseConfig

    def __init__(self, config):
        self.config = config

    def __call__(self, x_BTC, n_bins_B, generator):
        noise_BTC = torch.randn(x_BTC.shape, generator=generator, device=x_BTC.device)
        return x_BTC + noise_BTC
"""


@pytest.fixture
def registries():
    """Forgets what a test registers."""
    kept = [(registry, dict(registry)) for registry in (MODELS, LOSSES, AUGMENTATIONS, TASKS)]
    yield
    for registry, before in kept:
        registry.clear()
        registry.update(before)
