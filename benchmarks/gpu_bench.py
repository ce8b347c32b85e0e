"""Compare training on a GPU with the CPU's, then time each part that makes it faster.

    make bench-gpu                 # the first GPU, less than six minutes
    make bench-gpu DEVICE=cpu      # what runs without a GPU: it shows that the script works

Writes one JSON file and one page with the device and the date, like `gpu_check.py`.
"""

from __future__ import annotations

from pathlib import Path

import gpu_check
import gpu_kernels
import gpu_sections
import gpu_variants

SECTIONS = {
    "paths": gpu_variants.check_paths,
    "attention": gpu_kernels.check_attention,
    "CTC": gpu_kernels.check_ctc,
    "host waits": gpu_kernels.check_waits,
    "training": gpu_sections.check_training,
    "gradients": gpu_sections.check_gradients,
    "variants, same results": gpu_variants.check_variants,
    "variants, times": gpu_variants.time_variants,
    "own tests": gpu_sections.check_own_tests,
}
"""The sections in their order: parity first."""


def main() -> int:
    """Run the sections; return the exit status."""
    return gpu_check.run(SECTIONS, __doc__, Path("build/gpu-bench"))


if __name__ == "__main__":
    raise SystemExit(main())
