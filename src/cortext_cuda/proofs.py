"""Fast paths on a GPU prove themselves on the very card before they are taken.

A kernel that is right on one card may be wrong on another, crash there, or wait for ever, and an
error of a kernel ends everything that its process does on the GPU. So a check runs in a process of
its own, with a limit on its time. It compares the path's results with those of torch's own
operations. Its answer is remembered for this card, driver, torch and code.

The process is `python -m cortext_cuda.proofs CHECK DEVICE NUMBER...`.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from contextlib import suppress
from functools import cache
from hashlib import sha256
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import torch

from cortext.files import atomic_write

ANSWER = "cortext_cuda.proofs: "
"""Prefix of the line with the answer; libraries write to stdout, too."""
PLAIN = "CORTEXT_PLAIN_GPU"
"""Environment variable that turns all fast paths off."""
MOST_SECONDS = 120.0
"""Limit of a check; compiling the kernels is most of it."""


def turned_off() -> str | None:
    """Return a line if the user turned all fast paths off, otherwise None."""
    return f"{PLAIN} is set" if os.environ.get(PLAIN) else None


@cache
def why_not(check: str, device: torch.device, *given: int) -> str | None:
    """Return why a path is not taken on a GPU, in one line; None if it is right there.

    Call it before the path's first use, and outside a CUDA graph's capture.

    Args:
        check: `module:function`. It is called as `function(device, *given)`, and returns None if
            the path is right on the device, otherwise a line that names the fault.
        device: The GPU.
        given: Sizes that the path is compiled for.
    """
    if off := turned_off():
        return off
    key = _key(check, device, given)
    known = _remembered()
    if key not in known:
        logging.getLogger(__name__).warning("checking %s on this GPU, once ...", check)
        # What a check cannot tell itself, for example that the GPU's memory is full, may pass.
        found, lasts = _asked(check, device, given)
        if not lasts:
            return found
        with suppress(OSError):
            _memory().parent.mkdir(parents=True, exist_ok=True)
            content = json.dumps(_remembered() | {key: found}, indent=1, sort_keys=True)
            atomic_write(_memory(), content.encode())
        return found
    return known[key]


def _asked(check: str, device: torch.device, given: tuple[int, ...]) -> tuple[str | None, bool]:
    """Return the answer of a check in a process of its own, and whether it is worth remembering."""
    command = [sys.executable, "-m", __name__, check, str(device), *map(str, given)]
    try:
        done = subprocess.run(command, capture_output=True, timeout=MOST_SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return f"its check did not end within {MOST_SECONDS:.0f} s", False
    for line in done.stdout.decode(errors="replace").splitlines():
        if line.startswith(ANSWER):
            answer: str | None = json.loads(line.removeprefix(ANSWER))
            return answer, True
    said = done.stderr.decode(errors="replace").strip().splitlines()
    return f"its check failed: {said[-1] if said else f'exit status {done.returncode}'}", False


def _key(check: str, device: torch.device, given: tuple[int, ...]) -> str:
    """Return what an answer is remembered for."""
    card = torch.cuda.get_device_properties(device)
    facts = (
        *(check, *given, card.name, f"{card.major}.{card.minor}"),
        *(card.multi_processor_count, torch.__version__, torch.version.cuda, _driver()),
        _code(check.partition(":")[0]),
    )
    return " ".join(map(str, facts))


def _driver() -> str:
    """Return the version of the NVIDIA driver; empty where it is not found."""
    with suppress(OSError):
        return Path("/sys/module/nvidia/version").read_text().strip()
    return ""


@cache
def _code(module: str) -> str:
    """Return a checksum of the code beside a check, of this package, and of what they compare."""
    folders = set()
    for name in (module, __name__, "cortext.models", "cortext.features"):
        spec = find_spec(name)
        assert spec is not None
        assert spec.origin is not None
        folders.add(Path(spec.origin).parent)
    files = (path for folder in sorted(folders) for path in sorted(folder.glob("*.[pc]*")))
    content = b"".join(path.read_bytes() for path in files if path.suffix in (".py", ".cu"))
    return sha256(content).hexdigest()[:16]


def _memory() -> Path:
    return Path.home() / ".cache" / "cortext" / "gpu-proofs.json"


def _remembered() -> dict[str, str | None]:
    """Return the answers by key; none where the file is missing or damaged."""
    with suppress(OSError, ValueError):
        found = json.loads(_memory().read_text())
        if isinstance(found, dict):
            return found
    return {}


def main(check: str, device: str, *given: str) -> None:
    """Run a check, and print its answer."""
    module, _, name = check.partition(":")
    found = getattr(import_module(module), name)(torch.device(device), *map(int, given))
    print(ANSWER + json.dumps(found), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
