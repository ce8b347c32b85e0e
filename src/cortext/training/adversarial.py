"""The loss of the three-network model (`cortext.models.triple_gru`).

Two CTC losses, one of them adversarial, and a penalty on the energy of the noise estimate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch

from cortext.config import check_fields
from cortext.memory import to_device
from cortext.settings import AT_LEAST_0, Setting
from cortext.training.batches import TrainBatch
from cortext.training.loss import ctc_loss, register_loss


@dataclass
class AdversarialConfig:
    """Section `loss` for `kind: adversarial`."""

    kind: Literal["adversarial"] = "adversarial"
    """Name of the loss."""
    noisy_weight: Annotated[float, AT_LEAST_0] = 0.2
    """Weight of the adversary's CTC loss."""
    noise_weight: Annotated[float, AT_LEAST_0] = 0.001
    """Weight of the noise estimate's energy, see `noise_energy`."""
    reversal_start: Annotated[float, AT_LEAST_0] = 0.0
    """Reversal strength at the first batch."""
    reversal_end: Annotated[float, AT_LEAST_0] = 0.5
    """Reversal strength at the end of the ramp."""
    reversal_schedule: Literal["linear", "sigmoid"] = "linear"
    """Shape of the ramp from `reversal_start` to `reversal_end`.

    `linear` is a straight line. `sigmoid` is 2 / (1 + exp(-10 p)) - 1, which rises fast and then
    flattens.
    """
    reversal_ramp: Annotated[float, Setting(above=0, maximum=1)] = 1.0
    """Share of the training that the ramp takes."""

    def __post_init__(self) -> None:
        check_fields(self, "loss.")

    def reversal(self, fraction: float | torch.Tensor) -> float | torch.Tensor:
        """Return the reversal strength when `fraction` of the training is done.

        A tensor gives a tensor.
        """
        progress: Any = fraction / self.reversal_ramp
        traced = isinstance(progress, torch.Tensor)  # its value is not known yet
        progress = progress.clamp(max=1.0) if traced else min(1.0, progress)
        if self.reversal_schedule == "sigmoid":  # Ganin et al., JMLR 2016, section 5.2.2
            progress = 2 / (1 + (torch if traced else math).exp(-10 * progress)) - 1
        strength: float | torch.Tensor = (
            self.reversal_start + (self.reversal_end - self.reversal_start) * progress
        )
        return strength


@register_loss("adversarial")
class Adversarial:
    """CTC(clean) + 0.2 CTC(noisy, through gradient reversal) + 0.001 energy of the noise.

    The weights are settings.
    """

    Config: ClassVar[type] = AdversarialConfig
    models: ClassVar[tuple[str, ...]] = ("triple_gru",)  # the kinds it can train

    def __init__(self, config: AdversarialConfig) -> None:
        self.config = config

    def __call__(self, network: Any, batch: TrainBatch, fraction: float) -> dict[str, torch.Tensor]:
        """Return `loss` and its unweighted parts `clean`, `noisy` and `noise`, float32 [B] each.

        See `Loss`.
        """
        clean_BPV, noisy_BPV, noise_BPI = network(
            batch.x_BTC,
            batch.day_B,
            mode="full",
            reversal=self.config.reversal(fraction),
            n_patches_B=batch.n_patches_B,
        )
        labels = batch.n_patches_B, batch.labels_BU, batch.n_labels_B
        clean_B = ctc_loss(clean_BPV, *labels)
        noisy_B = ctc_loss(noisy_BPV, *labels)
        noise_B = noise_energy(noise_BPI, batch.n_patches_B)
        loss_B = clean_B + self.config.noisy_weight * noisy_B + self.config.noise_weight * noise_B
        return {
            "loss": loss_B,
            "clean": clean_B.detach(),
            "noisy": noisy_B.detach(),
            "noise": noise_B.detach(),
        }


def noise_energy(noise_BPI: torch.Tensor, n_patches_B: torch.Tensor) -> torch.Tensor:
    """Return the squared norm of a patch's noise, averaged over each trial's patches.

    Padding does not count. The energy is a sum over a patch's values and a mean over time, which
    suits a weight of 0.001. With the published patch (7,168 values with a mean square of about
    0.13), noise that takes out the whole input then costs one nat a trial; a CTC loss is tens of
    nats. A mean over the values would have no effect; a sum over time would outweigh the CTC loss.

    Args:
        noise_BPI: Noise estimate of each patch, float [B, P, I].
        n_patches_B: Patches of each trial, int64 [B], on any device.

    Returns:
        Float32 [B]; float64 for a float64 estimate.
    """
    n_patches_B = to_device(n_patches_B, noise_BPI.device)
    summed = torch.float64 if noise_BPI.dtype == torch.float64 else torch.float32
    energy_BP = noise_BPI.square().sum(-1, dtype=summed)
    inside_BP = torch.arange(energy_BP.shape[1], device=energy_BP.device) < n_patches_B[:, None]
    return torch.where(inside_BP, energy_BP, 0.0).sum(1) / n_patches_B.clamp(min=1)
