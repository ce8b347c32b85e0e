"""The paths that training takes on a GPU, as `cortext doctor` shows them."""

import torch

from cortext_cuda import ctc, paths
from cortext_cuda.nvrtc import KernelError


def test_a_path_that_is_not_taken_says_why():
    part = paths.Part("CTC", "ours", "torch's", lambda device: "no NVRTC")
    assert part.describe(torch.device("cuda", 0)) == "CTC: torch's (no NVRTC)"
    part = paths.Part("CTC", "ours", "torch's", lambda device: None)
    assert part.describe(torch.device("cuda", 0)) == "CTC: ours"


def test_a_machine_without_nvrtc_gets_a_line_for_each_part(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))
    device = torch.device("cuda", 0)
    monkeypatch.setattr(ctc, "_cannot_compile", lambda device: "libnvrtc.so.13 is missing")
    monkeypatch.setattr(paths, "path_of", lambda device, n_units: ("a graph", f"not {n_units}"))
    monkeypatch.setattr(paths.fused, "why_not_blocks", lambda model, device: None)
    monkeypatch.setattr(paths.fused, "why_no_kernels", lambda check, device: f"{check}: no")
    assert paths.describe_paths(device) == [
        "compute capability 9.0",
        "a training step: kernel by kernel (libnvrtc.so.13 is missing)",
        "CTC: torch's, which waits (libnvrtc.so.13 is missing)",
        "a GRU of 768 units, in 16 bits: kernels for each frame (not 768)",
        "a GRU of 256 units, in 16 bits: kernels for each frame (not 256)",
        "a Transformer, in 16 bits: fused kernels",
        "day layers, in 16 bits: torch's kernels (cortext_cuda.fused_checks:check_softsign: no)",
        "noise and smoothing: torch's kernels (cortext_cuda.smooth_kernel:check_smoothing: no)",
    ]


def test_an_error_of_the_compiler_is_a_reason_for_torchs_ctc(monkeypatch):
    def fails(name, device):
        raise KernelError("NVRTC did not compile a kernel:\nerror")

    monkeypatch.setattr(ctc, "_kernel", fails)
    ctc._cannot_compile.cache_clear()
    why = ctc.why_not(torch.device("cuda", 0), 10)
    ctc._cannot_compile.cache_clear()
    assert why == "NVRTC did not compile a kernel:"
