"""Programs that run as on a processor with fewer instructions, see narrow_processor.c."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

PROCESSORS = ("avx512", "avx2", "sse")
"""AVX-512 without VNNI and bfloat16; AVX2; neither."""
CANNOT = 77
"""Exit status of a program that the kernel does not let run so."""


def run_on(processor: str, code: str, *arguments: object) -> str:
    """Run Python code as on a processor; return what it prints.

    The test is skipped where this machine cannot hide instructions.
    """
    if "NARROW_PROCESSOR" in os.environ:
        pytest.skip("the tests run as on a narrower processor already")
    narrow = {"LD_PRELOAD": str(_library()), "NARROW_PROCESSOR": processor}
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        env={**os.environ, **narrow},
        capture_output=True,
        text=True,
        timeout=120,
    )
    if done.returncode == CANNOT:
        pytest.skip("this kernel or processor does not let CPUID be answered by a program")
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="narrow-processor-")


@functools.cache
def _library() -> Path:
    compiler = shutil.which("cc")
    if compiler is None or not sys.platform.startswith("linux") or os.uname().machine != "x86_64":
        pytest.skip("instructions are hidden on Linux on x86-64, with a C compiler")
    library = Path(_folder().name, "narrow_processor.so")
    source = Path(__file__).with_suffix(".c")
    subprocess.run([compiler, "-O1", "-shared", "-fPIC", source, "-o", library, "-ldl"], check=True)
    return library
