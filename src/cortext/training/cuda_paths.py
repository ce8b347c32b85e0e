"""Which path training takes on a CUDA device, and why; `cortext doctor` shows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from cortext.training import ctc_cuda


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


def _ctc_why_not(device: torch.device) -> str | None:
    return ctc_cuda.why_not(device, ctc_cuda.MOST_LABELS)


PARTS = (
    Part("training step", "one CUDA graph for each length", "kernel by kernel", _ctc_why_not),
    Part("CTC", "kernels of ours, which read lengths there", "torch's, which waits", _ctc_why_not),
)
"""The parts, in the order in which they are shown."""


def describe_paths(device: torch.device) -> list[str]:
    """Return lines: the compute capability of a CUDA device, and the path of each part there."""
    major, minor = torch.cuda.get_device_capability(device)
    return [f"compute capability {major}.{minor}", *(part.describe(device) for part in PARTS)]
