"""Memory budget: of a model before it is loaded, and of sentences that go through it together.

It is checked beforehand, as a system may end a process instead of refusing it memory.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch

from cortext.errors import LanguageModelError

FLOAT32_BYTES = 4

SHARE = 0.5
"""So much of the free memory may be taken by what goes through a model at once."""

AT_WORK = 32
"""So many times its hidden units a token takes in a layer at work.

And twice in each layer, for its keys and values. Where that says 48, of 8 layers, 20 to 33 were
measured (Llama, OPT, GPT-2; with and without a context).
"""


def check_memory(transformers: Any, config: Any, name: str) -> None:
    """Raise LanguageModelError where free memory does not hold a model's weights in float32."""
    free = free_bytes()
    if free is None:
        return
    with torch.device("meta"):  # weights without content
        network = transformers.AutoModelForCausalLM.from_config(config, trust_remote_code=False)
    needed = FLOAT32_BYTES * sum(parameter.numel() for parameter in network.parameters())
    if needed > free:
        raise LanguageModelError(
            f"not enough memory to load the model: on a CPU its weights take {needed / 1e9:.1f} GB,"
            f" and {free / 1e9:.1f} GB are free",
            where=name,
            fix="use a smaller model, or a GPU (the device cuda)",
        )


def tokens_that_fit(network: Any, most: int) -> int:
    """Return how many tokens may go through a network at once.

    `most`, halved until `SHARE` of the free memory holds them; at least one. `most` where the free
    memory is not known.
    """
    config = network.config.get_text_config(decoder=True)
    width, layers = getattr(config, "hidden_size", None), getattr(config, "num_hidden_layers", None)
    free = free_bytes() if network.device.type == "cpu" else free_gpu_bytes(network.device)
    if free is None or not width or not layers:
        return most
    token_bytes = network.dtype.itemsize * width * (2 * layers + AT_WORK)
    while most > 1 and most * token_bytes > SHARE * free:
        most //= 2
    return most


def free_gpu_bytes(device: torch.device) -> int:
    """Return the memory of a GPU that is free, or that torch has reserved and not used."""
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0] + kept)


def free_bytes(proc: Path = Path("/proc"), cgroup: Path = Path("/sys/fs/cgroup")) -> int | None:
    """Return the memory that this process may still take on Linux, also in a container.

    None where that is not known.
    """
    try:
        found = re.search(
            r"^MemAvailable:\s*(\d+) kB", (proc / "meminfo").read_text(), re.MULTILINE
        )
    except OSError:
        return None
    if found is None:
        return None
    free = 1024 * int(found.group(1))
    try:
        most, used = (int((cgroup / name).read_text()) for name in ("memory.max", "memory.current"))
        cached = re.search(
            r"^inactive_file (\d+)", (cgroup / "memory.stat").read_text(), re.MULTILINE
        )
    except (OSError, ValueError):  # no control group, or none with a bound ("max")
        return free
    return min(free, most - used + (int(cached.group(1)) if cached else 0))
