"""Operations of a training step by formula.

A multiplication and an addition of its matrix products are two.
"""

from __future__ import annotations

import torch
from torch import nn


def flops_per_patch(network: nn.Module) -> int:
    """6 for each weight of a GRU or a linear layer.

    2 forwards, 2 for the gradient of its input, 2 for its own.

    The input of the first layer needs its gradient, too, for the day layers.
    """
    matrices = (module for module in network.modules() if isinstance(module, nn.GRU | nn.Linear))
    return 6 * sum(
        parameter.numel()
        for module in matrices
        for name, parameter in module.named_parameters(recurse=False)
        if "weight" in name
    )


def flops_per_bin(network: nn.Module) -> int:
    """4 for each weight of the matrix of a day: 2 forwards, 2 for its gradient.

    The features need none.
    """
    weight_DCC = getattr(network, "day_weight", None)
    return 4 * weight_DCC[0].numel() if isinstance(weight_DCC, torch.Tensor) else 0
