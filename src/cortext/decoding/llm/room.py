"""Whether memory will hold a model, before it is fetched and loaded: a system may end a process instead of refusing."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

from cortext.errors import LanguageModelError

FLOAT32_BYTES = 4


def check_room(transformers: Any, config: Any, name: str) -> None:
    """Raise LanguageModelError where this machine's free memory is less than a model's weights take in float32."""
    free = free_bytes()
    if free is None:
        return
    with torch.device("meta"):  # weights without content
        network = transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    needed = FLOAT32_BYTES * sum(parameter.numel() for parameter in network.parameters())
    if needed > free:
        raise LanguageModelError(
            f"not enough memory to load the model: on a CPU its weights take {needed / 1e9:.1f} GB, and "
            f"{free / 1e9:.1f} GB are free",
            where=name,
            fix="use a smaller model, or a GPU with --llm-device cuda",
        )


def free_bytes(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Memory that this process may still take on Linux, also in a container; None where that cannot be told."""
    try:
        found = re.search(r"^MemAvailable:\s*(\d+) kB", (proc / "meminfo").read_text(), re.MULTILINE)
    except OSError:
        return None
    if found is None:
        return None
    free = 1024 * int(found.group(1))
    try:
        most, used = (int((cgroup / name).read_text()) for name in ("memory.max", "memory.current"))
        cached = re.search(r"^inactive_file (\d+)", (cgroup / "memory.stat").read_text(), re.MULTILINE)
    except (OSError, ValueError):  # no control group, or none with a bound ("max")
        return free
    return min(free, most - used + (int(cached.group(1)) if cached else 0))
