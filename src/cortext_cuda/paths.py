"""The path that training takes on a CUDA device, and why; `cortext doctor` shows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from cortext.training.config import read_train_config
from cortext_cuda import ctc, fused
from cortext_cuda.recurrence_paths import KERNEL, path_of

WIDTHS = (768, 256)
"""Hidden units of the GRUs of the recipes `gru` and `demo`."""


@dataclass(frozen=True)
class Part:
    """A part of training with a fast path and one that runs anywhere.

    Attributes:
        name: The part.
        fast: The fast path, in a few words.
        otherwise: What runs instead.
        why_not: Function that returns why the fast path cannot be taken on a device; None if it
            can.
    """

    name: str
    fast: str
    otherwise: str
    why_not: Callable[[torch.device], str | None]

    def describe(self, device: torch.device) -> str:
        """Return a line: the path that a device takes, and why if it is not the fast one."""
        if why := self.why_not(device):
            return f"{self.name}: {self.otherwise} ({why})"
        return f"{self.name}: {self.fast}"


def _ctc(device: torch.device) -> str | None:
    return ctc.why_not(device, ctc.MOST_LABELS)


def _gru(n_units: int) -> Callable[[torch.device], str | None]:
    def why_not(device: torch.device) -> str | None:
        path, why = path_of(device, n_units)
        return None if path == KERNEL else why

    return why_not


def _transformer(device: torch.device) -> str | None:
    model = read_train_config("transformer_t15").model
    return fused.why_not_blocks(model, device)


def _kernels(check: str) -> Callable[[torch.device], str | None]:
    return lambda device: fused.why_no_kernels(check, device)


PARTS = (
    Part("a training step", "one CUDA graph for each length", "kernel by kernel", _ctc),
    Part("CTC", "kernels of ours, which read lengths there", "torch's, which waits", _ctc),
    *(
        Part(
            f"a GRU of {n_units} units, in 16 bits",
            "one kernel for all frames of a layer",
            "kernels for each frame",
            _gru(n_units),
        )
        for n_units in WIDTHS
    ),
    Part("a Transformer, in 16 bits", "fused kernels", "torch's kernels", _transformer),
    Part(
        "day layers, in 16 bits",
        "one kernel behind the product",
        "torch's kernels",
        _kernels(fused.CHECK_SOFTSIGN),
    ),
    Part(
        "noise and smoothing",
        "one kernel",
        "torch's kernels",
        _kernels(fused.CHECK_SMOOTHING),
    ),
)
"""The parts, in the order in which they are shown."""


def describe_paths(device: torch.device) -> list[str]:
    """Return lines: the compute capability of a CUDA device, and the path of each part there."""
    major, minor = torch.cuda.get_device_capability(device)
    return [f"compute capability {major}.{minor}", *(part.describe(device) for part in PARTS)]
