"""Settings of the operating system and environment variables that a TPU depends on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

HUGEPAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
ENABLE_HUGEPAGES = f'sudo sh -c "echo always > {HUGEPAGES}"'
OLDER = ("v2", "v3", "v4", "v5p")
"""Generations that transparent hugepages hardly make faster."""

_BF16 = (
    "only torch_xla read it, and it turned losses and optimiser into bfloat16, too; --precision"
    " bf16 does not"
)
_XRT = (
    "torch_xla's first runtime read it, which is gone; --tpu says which TPU, if it is not found"
    " without"
)
DEPRECATED = {
    "XLA_USE_BF16": _BF16,
    "XLA_DOWNCAST_BF16": _BF16,
    "XLA_USE_F16": _BF16,
    "XRT_TPU_CONFIG": _XRT,
    "XRT_WORKERS": _XRT,
    "XRT_DEVICE_MAP": _XRT,
    "XRT_SHARD_WORLD_SIZE": _XRT,
    "PJRT_DEVICE": "only torch_xla reads it; --device tpu says where to train",
}
"""Environment variables of older scripts that have no effect here."""
HIDING = (
    "TPU_VISIBLE_CHIPS",
    "TPU_VISIBLE_DEVICES",
    "TPU_CHIPS_PER_PROCESS_BOUNDS",
    "TPU_PROCESS_BOUNDS",
)
"""Environment variables that hide some of the chips from a process."""


@dataclass(frozen=True)
class Hugepages:
    """Setting of transparent hugepages, and advice.

    Attributes:
        state: `always`, `madvise` or `never`; None for a kernel without them.
        advice: A line of advice; None if none is needed.
        command: Shell command that enables them; None if none is needed.
    """

    state: str | None
    advice: str | None
    command: str = ENABLE_HUGEPAGES


def hugepages(generation: str | None, path: Path = HUGEPAGES) -> Hugepages:
    """Read the setting, and advise for a TPU of that generation (None without a TPU)."""
    try:
        match = re.search(r"\[(\w+)\]", path.read_text(errors="replace"))
    except OSError:
        return Hugepages(None, None)
    state = match[1] if match else None
    if state in ("always", None) or generation is None or generation in OLDER:
        return Hugepages(state, None)
    problem = (
        f"transparent hugepages are {state!r}; a TPU {generation} starts and stops much faster with"
        " 'always'"
    )
    return Hugepages(state, f"{problem}: {ENABLE_HUGEPAGES}")


def variables(env: Mapping[str, str], chips: int) -> list[str]:
    """Return a line for every environment variable whose effect may surprise the user."""
    lines = [
        f"{name}={env[name]} changes nothing: {why}"
        for name, why in DEPRECATED.items()
        if env.get(name)
    ]
    if chips:
        lines += [
            f"{name}={env[name]} hides chips from this process" for name in HIDING if env.get(name)
        ]
        if (platforms := env.get("JAX_PLATFORMS")) and "tpu" not in platforms.split(","):
            lines.append(f"JAX_PLATFORMS={platforms} hides the TPU from JAX; unset it")
    return lines
