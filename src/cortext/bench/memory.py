"""Memory of this process as Linux counts it."""

from __future__ import annotations

import re
from pathlib import Path

FIELDS = {"pss_mb": ("smaps_rollup", "Pss"), "rss_mb": ("status", "VmRSS"), "peak_rss_mb": ("status", "VmHWM")}


def memory() -> dict[str, float]:
    """Megabytes (1e6 bytes) of this process; empty where /proc does not tell.

    pss_mb:      resident, pages shared with other processes counted in part
    rss_mb:      resident, mapped files included
    peak_rss_mb: the most that rss_mb has been
    """
    found = {}
    for name, (file, field) in FIELDS.items():
        try:
            text = Path("/proc/self", file).read_text()
        except OSError:
            continue
        match = re.search(rf"^{field}:\s+(\d+) kB", text, re.MULTILINE)
        if match:
            found[name] = int(match[1]) * 1024 / 1e6
    return found
