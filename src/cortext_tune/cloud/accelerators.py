"""Accelerators of one machine on which a run can be launched, by SkyPilot's names."""

from __future__ import annotations

import re
from dataclasses import dataclass

from cortext.errors import CloudError, nearest

RUNTIMES = {
    "v5litepod": "v2-alpha-tpuv5-lite",
    "v6e": "v2-alpha-tpuv6e",
    "v5p": "v2-alpha-tpuv5",
    "v4": "tpu-ubuntu2204-base",
}
"""System images of Google for JAX, by generation (cloud.google.com/tpu/docs/runtimes)."""
TPU_CORES = {
    "tpu-v5litepod-1": 1,
    "tpu-v5litepod-4": 4,
    "tpu-v5litepod-8": 8,
    "tpu-v6e-1": 1,
    "tpu-v6e-4": 4,
    "tpu-v6e-8": 8,
    "tpu-v5p-8": 4,
    "tpu-v4-8": 4,
}
"""Number of JAX devices by name. The names of v4 and v5p count two cores per chip, one device."""
GPUS = ("T4", "L4", "A10G", "L40S", "A100", "A100-80GB", "RTXPRO6000", "H100", "H200", "B200")
MOST_GPUS = 8


@dataclass(frozen=True)
class Accelerator:
    """The accelerator of a rented machine.

    Attributes:
        name: SkyPilot's name.
        count: Number of GPUs; 1 for a TPU, whose name contains its size.
        cores: Devices that training must find.
        runtime: System image of a TPU; None for GPUs.
    """

    name: str
    count: int
    cores: int
    runtime: str | None = None

    @property
    def is_tpu(self) -> bool:
        """True for a TPU, False for GPUs."""
        return self.runtime is not None


def accelerator(text: str) -> Accelerator:
    """Read an accelerator from a text such as `tpu-v5litepod-8`, `v5e-8`, `H100` or `H100:8`.

    Raises:
        CloudError: For an unknown one (the message names the nearest), and for TPU slices of
            several machines.
    """
    name, _, number = text.strip().partition(":")
    # SkyPilot's spelling: `tpu-v5litepod-8` for a TPU v5e-8, capitals for GPUs.
    tpu = re.fullmatch(r"(?:tpu-?)?(v\d.*)", name.lower())
    name = f"tpu-{tpu[1].replace('v5e', 'v5litepod')}" if tpu else name.upper()
    if name not in TPU_CORES and name not in GPUS:
        generation = name.split("-")[1] if re.fullmatch(r"tpu-\w+-\d+", name) else None
        if generation in RUNTIMES:
            fix = f"use {', '.join(one for one in TPU_CORES if generation in one)}"
            raise CloudError(f"{text!r} is not a TPU of one machine", fix=fix)
        raise CloudError(f"unknown accelerator {text!r}; {nearest(name, (*TPU_CORES, *GPUS))}")
    most = 1 if name in TPU_CORES else MOST_GPUS
    if number and not (number.isdecimal() and 1 <= int(number) <= most):
        raise CloudError(
            f"{text!r}: {number} of {name}; one machine has {most}", fix=f"write {name}"
        )
    if name in TPU_CORES:
        return Accelerator(name, 1, TPU_CORES[name], RUNTIMES[name.split("-")[1]])
    count = int(number or 1)
    return Accelerator(name, count, count)
