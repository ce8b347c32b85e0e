"""Facts about the machine on the page of a verification, and texts that are private."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from cortext.cores import available_cores
from cortext.provenance import provenance


def private_texts(given: Mapping[str, str | Path | None]) -> dict[str, str]:
    """Return the given paths and the home directory with the names that stand for them."""
    texts = {
        text: name
        for name, path in given.items()
        if path is not None
        for text in (str(path), str(Path(path).absolute()), str(Path(path).resolve()))
    } | {str(Path.home()): "~"}
    # The longest first: one path may begin with another.
    longest = sorted(texts, key=len, reverse=True)
    return {text: texts[text] for text in longest if text not in ("/", ".")}


def machine(device: str) -> dict[str, Any]:
    """Return versions, processor, cores, threads, memory and device: all but names of a user."""
    facts = provenance()
    return {
        **facts["versions"],
        "commit": facts["commit"] or "installed package",
        "system": facts["platform"],
        "processor": _processor(),
        "cores": available_cores(),
        "torch threads": torch.get_num_threads(),
        "memory": _memory(),
        "device": torch.cuda.get_device_name(device) if device.startswith("cuda") else "CPU",
        "made": facts["created"],
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.machine()


def _memory() -> str:
    try:
        n_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        return "unknown"
    return f"{n_bytes / 1e9:.0f} GB"
