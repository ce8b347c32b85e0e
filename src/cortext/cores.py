"""Processor cores of this process, and the threads that compute on them.

`import cortext` prepares the libraries that compute, before they are loaded.
"""

from __future__ import annotations

import math
import os
from contextlib import suppress
from pathlib import Path

SPINS = "1000"
"""Turns of the loop in which a waiting OpenMP thread keeps its core before it sleeps.

OpenMP's own 300,000 turns keep a core for milliseconds. Where other programs need that core, the
thread with work waits for the idle one: the slowest runs of small products had 3 GFLOP/s instead of
118. Sleeping at once halves their speed on a quiet machine: docs/measured/fewer-cores.md.
"""
ARE_THREADS_CHOSEN = "OMP_NUM_THREADS" in os.environ
"""True if the user chose the number of threads."""
_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUPS = Path("/proc/self/cgroup")


def available_cores() -> int:
    """Return the number of cores that this process may use, at least 1.

    That is the smaller of two numbers: the cores that the system gives to the process, and the
    quota of its container (`docker --cpus=1.5` counts as 2).
    """
    return max(1, math.ceil(min(_given_cores(), container_quota())))


def _given_cores() -> int:
    if hasattr(os, "sched_getaffinity"):  # not on macOS
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def container_quota(cgroups: Path = _CGROUPS, own: Path = _OWN_CGROUPS) -> float:
    """Return the processor time that the container grants, in cores; infinity without a limit.

    Args:
        cgroups: Folder of the system's control groups, of version 1 or 2.
        own: File that names the groups of this process.
    """
    quota = math.inf
    with suppress(OSError, ValueError):
        for line in own.read_text().splitlines():
            _, controllers, name = line.split(":", 2)
            if controllers and "cpu" not in controllers.split(","):
                continue
            # A group cannot use more than those around it. Within a container the name may be
            # that of the machine outside; then the container's limit lies at the root.
            root = cgroups / controllers
            group = root / name.lstrip("/")
            quota = min(quota, _limit(root), _limit(group), *map(_limit, group.parents))
    return quota


def _limit(folder: Path) -> float:
    """Return the cores that one control group grants."""
    with suppress(OSError, ValueError):  # no such folder, no limit, or "max"
        if (folder / "cpu.max").exists():
            granted, period = (folder / "cpu.max").read_text().split()
        else:
            granted = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        if int(granted) > 0 and int(period) > 0:  # -1 is no limit
            return int(granted) / int(period)
    return math.inf


def prepare_threads() -> None:
    """Tell OpenMP how many threads to start, and how long idle ones keep their cores.

    Only programs that load torch afterwards follow. What the user has set in the environment
    stays.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", SPINS)
    cores = available_cores()
    if cores < _given_cores():  # OpenMP does not know the quota of a container
        os.environ.setdefault("OMP_NUM_THREADS", str(cores))
