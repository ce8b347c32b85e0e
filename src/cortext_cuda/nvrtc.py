"""CUDA kernels from source: compiled when first used, by the NVRTC that torch brings along.

No compiler and no CUDA headers are needed on the machine. Sources must do without headers, too:
not every torch has `cuda_fp16.h` beside it.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import torch

# cuda.h: CUfunction_attribute.
_LOCAL_BYTES, _REGISTERS, _MOST_SHARED_BYTES = 3, 4, 8


class KernelError(RuntimeError):
    """A kernel that could not be compiled, loaded or started; the first line says why."""


class Kernel:
    """A kernel on one device.

    Attributes:
        registers: 32-bit registers of a thread.
        local_bytes: Memory of a thread for registers that do not fit, and for arrays.
    """

    def __init__(self, binary: bytes, name: str, index: int) -> None:
        """Load a kernel on the device with that index, which is the current one."""
        self._index = index
        module = ctypes.c_void_p()
        self._function = ctypes.c_void_p()
        _check(_cuda().cuModuleLoadData(ctypes.byref(module), binary))
        _check(_cuda().cuModuleGetFunction(ctypes.byref(self._function), module, name.encode()))
        self._shared_bytes = 48 * 1024  # what every kernel may take unasked
        self.registers = self._attribute(_REGISTERS)
        self.local_bytes = self._attribute(_LOCAL_BYTES)

    def __call__(
        self,
        grid: int | Sequence[int],
        block: int | Sequence[int],
        args: Sequence[Any],
        shared_bytes: int = 0,
        stream: torch.cuda.Stream | None = None,
        cooperative: bool = False,
    ) -> None:
        """Start the kernel; a CUDA graph records it.

        Args:
            grid: Number of blocks, in one to three dimensions.
            block: Threads of a block, in one to three dimensions.
            args: Tensors (given as pointers), None (a null pointer), ints (`int`), floats
                (`float`), or values of ctypes.
            shared_bytes: Dynamic shared memory of a block.
            stream: None for the device's current one.
            cooperative: All blocks must run at once, because they wait for each other. CUDA
                refuses to start the kernel if they do not fit on the device.
        """
        values = [_argument(value) for value in args]
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        start = _cuda().cuLaunchCooperativeKernel if cooperative else _cuda().cuLaunchKernel
        where = (stream or torch.cuda.current_stream(self._index)).cuda_stream
        shape = (*_three(grid), *_three(block), shared_bytes, ctypes.c_void_p(where))
        with torch.cuda.device(self._index):
            self._allow(shared_bytes)
            _check(start(self._function, *shape, pointers, *(() if cooperative else (None,))))

    def blocks_at_once(self, threads: int, shared_bytes: int) -> int:
        """Return how many blocks a multiprocessor runs at once.

        Args:
            threads: Threads of a block.
            shared_bytes: Dynamic shared memory of a block.
        """
        n_blocks, shared = ctypes.c_int(), ctypes.c_size_t(shared_bytes)
        occupancy = _cuda().cuOccupancyMaxActiveBlocksPerMultiprocessor
        with torch.cuda.device(self._index):
            try:
                self._allow(shared_bytes)
            except KernelError:  # more than any block may have on this device
                return 0
            _check(occupancy(ctypes.byref(n_blocks), self._function, threads, shared))
        return n_blocks.value

    def _allow(self, shared_bytes: int) -> None:
        """Let the kernel take more shared memory than kernels usually may."""
        if shared_bytes > self._shared_bytes:
            set_attribute = _cuda().cuFuncSetAttribute
            _check(set_attribute(self._function, _MOST_SHARED_BYTES, shared_bytes))
            self._shared_bytes = shared_bytes

    def _attribute(self, number: int) -> int:
        value = ctypes.c_int()
        _check(_cuda().cuFuncGetAttribute(ctypes.byref(value), number, self._function))
        return value.value


def kernel(
    source: str, name: str, options: tuple[str, ...] = (), device: torch.device | None = None
) -> Kernel:
    """Compile a kernel for a device, or return the one compiled before.

    Args:
        source: CUDA C++, without `#include`.
        name: Name of an `extern "C" __global__` function.
        options: Options of NVRTC, for example `-DUNITS=768`.
        device: None for the current one.

    Raises:
        KernelError: If NVRTC is not found, or does not compile the source for this device.
    """
    index = torch.cuda.current_device() if device is None or device.index is None else device.index
    return _kernel(source, name, options, index)


@cache
def _kernel(source: str, name: str, options: tuple[str, ...], index: int) -> Kernel:
    major, minor = torch.cuda.get_device_capability(index)
    with torch.cuda.device(index):
        torch.cuda.synchronize()  # the device's context is made when it is first used
        binary, _ = compile_source(source, f"sm_{major}{minor}", options)
        return Kernel(binary, name, index)


def compile_source(
    source: str, architecture: str, options: tuple[str, ...] = ()
) -> tuple[bytes, str]:
    """Return the machine code of a source, and NVRTC's messages.

    Args:
        source: CUDA C++, without `#include`.
        architecture: For example `sm_90`.
        options: Options of NVRTC.

    Raises:
        KernelError: If NVRTC is not installed or does not compile it; with NVRTC's messages.
    """
    nvrtc, program = _nvrtc(), ctypes.c_void_p()
    every = (f"--gpu-architecture={architecture}", "--std=c++17", *options)
    given = (ctypes.c_char_p * len(every))(*(option.encode() for option in every))
    _compiled(nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), None, 0, None, None))
    try:
        status = nvrtc.nvrtcCompileProgram(program, len(every), given)
        log = _text(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program)
        said = log.decode(errors="replace").rstrip("\0")
        if status:
            raise KernelError(said or "NVRTC did not compile a kernel")
        return _text(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program), said
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _text(size_of: Any, text_of: Any, program: ctypes.c_void_p) -> bytes:
    size = ctypes.c_size_t()
    _compiled(size_of(program, ctypes.byref(size)))
    text = ctypes.create_string_buffer(size.value)
    _compiled(text_of(program, text))
    return text.raw


def _three(sizes: int | Sequence[int]) -> tuple[int, ...]:
    sizes = (sizes,) if isinstance(sizes, int) else tuple(sizes)
    return (*sizes, 1, 1)[:3]


def _argument(value: Any) -> Any:
    """Return a value of ctypes that holds a kernel's argument."""
    if value is None:
        return ctypes.c_void_p()
    if isinstance(value, torch.Tensor):
        return ctypes.c_void_p(value.data_ptr())
    if isinstance(value, int):
        return ctypes.c_int(value)
    return ctypes.c_float(value) if isinstance(value, float) else value


@lru_cache
def _cuda() -> ctypes.CDLL:
    """Return the library of the driver."""
    return ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")


@lru_cache
def _nvrtc() -> ctypes.CDLL:
    """Return NVRTC of the CUDA version that torch was built for; a torch for CPUs takes any."""
    major = (torch.version.cuda or "13").partition(".")[0]
    name = f"nvrtc64_{major}0_0.dll" if sys.platform == "win32" else f"libnvrtc.so.{major}"
    beside = Path(torch.__file__).parent.parent / "nvidia"
    folders = (f"cu{major}/lib", "cuda_nvrtc/lib")  # wheels of CUDA 13, and of CUDA 12
    for path in (name, *(str(beside / folder / name) for folder in folders)):
        try:
            return ctypes.CDLL(path)
        except OSError:
            continue
    raise KernelError(f"{name} is not installed")


def _check(status: int) -> None:
    if status:
        said = ctypes.c_char_p()
        _cuda().cuGetErrorString(status, ctypes.byref(said))
        raise KernelError(f"CUDA: {(said.value or b'unknown error').decode()}")


def _compiled(status: int) -> None:
    if status:
        nvrtc = _nvrtc()
        nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
        raise KernelError(f"NVRTC: {nvrtc.nvrtcGetErrorString(status).decode()}")
