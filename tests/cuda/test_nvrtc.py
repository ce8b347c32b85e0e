"""Kernels that are compiled at run time."""

import ctypes

import pytest
import torch

from cortext_cuda import nvrtc
from cortext_cuda.nvrtc import KernelError, kernel

SOURCE = """
extern "C" __global__ void scaled(const float* x, float* y, float by, int n) {
  extern __shared__ float own[];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  own[threadIdx.x] = i < n ? x[i] * by : 0.0f;
  if (i < n) y[i] = own[threadIdx.x];
}
"""


def test_arguments_take_the_types_of_c():
    x = torch.zeros(3)
    found = [nvrtc._argument(value) for value in (x, None, 3, 0.5, ctypes.c_double(2))]
    types = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_float, ctypes.c_double]
    assert [type(value) for value in found] == types
    assert [value.value for value in found] == [x.data_ptr(), None, 3, 0.5, 2]


def test_an_error_in_a_source_is_reported():
    try:
        nvrtc._nvrtc()
    except KernelError as error:
        pytest.skip(str(error))
    with pytest.raises(KernelError, match='identifier "y" is undefined'):
        nvrtc.compile_source("__global__ void f() { y; }", "sm_90")


@pytest.mark.gpu
@pytest.mark.parametrize("cooperative", [False, True])
def test_a_kernel_runs(cooperative):
    x = torch.arange(1000, device="cuda", dtype=torch.float32)
    y = torch.zeros_like(x)
    one = kernel(SOURCE, "scaled")
    assert one.blocks_at_once(256, 64 * 1024) >= 1
    assert one.blocks_at_once(256, 2**30) == 0
    one(4, 256, (x, y, 0.5, 999), 64 * 1024, cooperative=cooperative)
    assert torch.equal(y[:999], x[:999] / 2)
    assert y[999] == 0
    assert kernel(SOURCE, "scaled") is one
