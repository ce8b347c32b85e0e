"""Triton's interpreter, which runs kernels on a CPU with numpy, where there is no GPU.

Import this before any kernel: Triton reads the setting when it meets a kernel.
"""

from __future__ import annotations

import os
from importlib.util import find_spec

import torch

HAS_TRITON = find_spec("triton") is not None

if HAS_TRITON and not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"
    from triton.runtime import interpreter

    _patched = interpreter._patch_lang_tensor

    def _patch(tensor, scope=None):
        # numpy 2.4 makes an int only of arrays without axes; the interpreter's have one.
        found = _patched(tensor) if scope is None else _patched(tensor, scope)
        tensor.__index__ = lambda self: int(self.handle.data.item())
        return found

    interpreter._patch_lang_tensor = _patch
