"""Memory of this process and its children as Linux counts it, and copies to a GPU's memory."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch

FIELDS = {
    "pss_mb": ("smaps_rollup", "Pss"),
    "rss_mb": ("status", "VmRSS"),
    "peak_rss_mb": ("status", "VmHWM"),
}


def memory() -> dict[str, float]:
    """Return the memory of this process in megabytes (1e6 bytes); empty without /proc.

    pss_mb:      resident, pages shared with other processes counted in part
    rss_mb:      resident, mapped files included
    peak_rss_mb: the most that rss_mb has been
    """
    found = {name: _megabytes(os.getpid(), file, field) for name, (file, field) in FIELDS.items()}
    return {name: value for name, value in found.items() if value is not None}


def restart_peak() -> None:
    """Restart the peak: `peak_rss_mb` is then the most from here on.

    Does nothing where Linux does not allow it (proc(5), clear_refs).
    """
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


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


def to_device(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    """Return a tensor on a device; the host does not wait for a copy to a GPU.

    A copy from ordinary memory waits for all work that the GPU still has to do. A copy from pinned
    memory takes its place in the queue of that work.
    """
    if tensor.device.type != "cpu" or device.type != "cuda":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def gpu_memory() -> dict[str, float]:
    """Return `gpu_peak_mb`, the most megabytes that torch has held on this process's GPU.

    Empty where it used none.
    """
    import torch

    held = torch.cuda.max_memory_allocated() if torch.cuda.is_available() else 0
    return {"gpu_peak_mb": held / 1e6} if held else {}


def children_pss_mb() -> float:
    """Return the megabytes of this process's children; shared pages are counted in part."""
    try:
        children = Path("/proc/self/task", str(os.getpid()), "children").read_text().split()
    except OSError:
        return 0.0
    return sum(_megabytes(int(child), *FIELDS["pss_mb"]) or 0.0 for child in children)


def _megabytes(process: int, file: str, field: str) -> float | None:
    try:
        text = Path("/proc", str(process), file).read_text()
    except OSError:
        return None
    match = re.search(rf"^{field}:\s+(\d+) kB", text, re.MULTILINE)
    return int(match[1]) * 1024 / 1e6 if match else None
