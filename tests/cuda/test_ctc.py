"""CTC's CUDA kernels: their source runs on the CPU here, thread by thread, beside torch's CTC."""

import ctypes
import importlib
import os
import shutil
import subprocess
from contextlib import nullcontext
from pathlib import Path
from unittest.mock import MagicMock

import pytest
import torch

from cortext.training.loss import ctc_loss
from cortext_cuda import ctc
from cortext_cuda.ctc import cuda_ctc_loss
from cortext_cuda.nvrtc import _argument

ROOT = Path(__file__).resolve().parents[2]
COMPILER = shutil.which(os.environ.get("CXX", "c++"))


def made_up(n_trials, n_frames, n_tokens, n_labels, seed=0):
    """Logits [B, P, V], lengths [B], labels [B, U] and their lengths [B]; each label fits."""
    generator = torch.Generator().manual_seed(seed)
    logits_BPV = 2 * torch.randn(n_trials, n_frames, n_tokens, generator=generator)
    n_patches_B = torch.randint(n_frames // 2, n_frames + 1, (n_trials,), generator=generator)
    labels_BU = torch.randint(1, n_tokens, (n_trials, n_labels), generator=generator)
    most = min(n_labels, n_frames // 4)  # a repeated token needs two frames
    n_labels_B = torch.randint(0, most + 1, (n_trials,), generator=generator)
    return logits_BPV, n_patches_B, labels_BU, n_labels_B


def weights(n_trials):
    """The gradient that each loss gets, [B]."""
    return torch.linspace(0.5, 1.5, n_trials)


def by_torch(logits_BPV, n_patches_B, labels_BU, n_labels_B, d_losses_B, blank=0):
    """Losses and gradients by torch on the CPU, in float64."""
    logits_BPV = logits_BPV.double().requires_grad_()
    losses_B = torch.nn.functional.ctc_loss(
        logits_BPV.log_softmax(-1).transpose(0, 1), labels_BU, n_patches_B, n_labels_B,
        blank=blank, reduction="none",
    )  # fmt: skip
    losses_B.backward(d_losses_B.double())
    return losses_B.detach(), logits_BPV.grad


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The kernels' source, compiled for the CPU."""
    if COMPILER is None:
        pytest.skip("needs a C++ compiler")
    library = tmp_path_factory.mktemp("ctc") / "ctc.so"
    folders = ["-I", ROOT / "src" / "cortext_cuda"]
    source = ROOT / "tests" / "support" / "ctc_on_cpu.cpp"
    command = [COMPILER, "-O1", "-std=c++17", "-shared", "-fPIC", *folders, source, "-o", library]
    subprocess.run(command, check=True)
    return ctypes.CDLL(str(library))


@pytest.fixture
def by_kernels(library, monkeypatch):
    """Function that gives losses and gradients by `cuda_ctc_loss`, whose kernels run on the CPU."""

    def kernel(name, device):
        def start(grid, threads, args, shared_bytes=0):
            values = [_argument(value) for value in args]
            pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
            x, y = (grid, 1) if isinstance(grid, int) else grid
            assert shared_bytes <= 48 * 1024
            assert getattr(library, f"start_{name}")(x, y, threads, pointers) == 0

        return start

    monkeypatch.setattr(ctc, "why_not", lambda device, n_labels: None)
    monkeypatch.setattr(ctc, "_kernel", kernel)
    monkeypatch.setattr(torch.cuda, "device", lambda device: nullcontext())
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: MagicMock())

    def losses_and_gradients(logits_BPV, n_patches_B, labels_BU, n_labels_B, d_losses_B, blank=0):
        logits_BPV = logits_BPV.clone().requires_grad_()
        losses_B = cuda_ctc_loss(logits_BPV, n_patches_B, labels_BU, n_labels_B, blank)
        losses_B.backward(d_losses_B)
        return losses_B.detach(), logits_BPV.grad

    return losses_and_gradients


@pytest.mark.parametrize(
    "sizes",
    [(6, 17, 5, 9), (2, 40, 200, 20), (3, 30, 2, 3), (2, 6, 4, 0), (2, 3, 7, 40)],
    ids=["repeats", "many tokens", "one token", "no labels", "padding longer than trials"],
)
def test_losses_and_gradients_are_those_of_torch_in_float64(by_kernels, sizes):
    batch, d_losses_B = made_up(*sizes), weights(sizes[0])
    losses_B, d_logits_BPV = by_kernels(*batch, d_losses_B)
    expected_B, expected_BPV = by_torch(*batch, d_losses_B)
    torch.testing.assert_close(losses_B.double(), expected_B, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(d_logits_BPV.double(), expected_BPV, rtol=1e-5, atol=1e-6)


def test_without_a_gradient_only_the_losses_are_computed(by_kernels):
    batch = made_up(2, 9, 5, 3)
    with torch.no_grad():
        losses_B = cuda_ctc_loss(*batch, 0)
    expected_B, _ = by_torch(*batch, weights(2))
    torch.testing.assert_close(losses_B.double(), expected_B, rtol=1e-6, atol=1e-6)


def test_logits_of_16_bits_get_a_gradient_of_16_bits(by_kernels):
    logits_BPV, *others = made_up(2, 9, 5, 3)
    rounded_BPV = logits_BPV.bfloat16()
    losses_B, d_logits_BPV = by_kernels(rounded_BPV, *others, weights(2))
    expected_B, expected_BPV = by_torch(rounded_BPV, *others, weights(2))
    assert losses_B.dtype == torch.float32
    assert d_logits_BPV.dtype == torch.bfloat16
    torch.testing.assert_close(losses_B.double(), expected_B, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(d_logits_BPV.double(), expected_BPV, rtol=4e-3, atol=1e-3)


def test_the_proof_on_a_card_passes_and_finds_a_wrong_kernel(by_kernels, monkeypatch):
    monkeypatch.setattr(ctc, "CHECKED", ((3, 24, 41, 9), (2, 24, 200, 10)))
    device, kernel = torch.device("cpu"), ctc._kernel
    assert ctc.check_kernels(device) is None

    def spoils(name, change):
        """Change what a kernel of this name has written to its `number`th argument."""

        def spoilt(asked, device):
            def start(grid, threads, args, shared_bytes=0):
                kernel(asked, device)(grid, threads, args, shared_bytes)
                if asked == name:
                    change(args)

            return start

        return spoilt

    monkeypatch.setattr(ctc, "_kernel", spoils("ctc_paths", lambda args: args[9][1].add_(0.1)))
    assert ctc.check_kernels(device) == "its losses of 41 tokens are not those of torch"
    noise = iter(range(100))
    change = lambda args: args[10][1].mul_(1 + 1e-6 * next(noise))  # noqa: E731
    monkeypatch.setattr(ctc, "_kernel", spoils("ctc_gradient", change))
    assert ctc.check_kernels(device) == "its gradients of 41 tokens differ from time to time"


def test_a_card_on_which_the_proof_fails_takes_torchs(monkeypatch):
    monkeypatch.setattr(ctc, "_cannot_compile", lambda device: None)
    asked = []

    def why_not(check, device):
        asked.append(check)
        return "its losses are wrong"

    monkeypatch.setattr(ctc.proofs, "why_not", why_not)
    assert ctc.why_not(torch.device("cuda", 0), 40) == "its losses are wrong"
    module, _, name = asked[0].partition(":")
    assert getattr(importlib.import_module(module), name) is ctc.check_kernels


def test_the_blank_may_be_any_token(by_kernels):
    logits_BPV, n_patches_B, labels_BU, n_labels_B = made_up(3, 12, 6, 4)
    batch = logits_BPV, n_patches_B, labels_BU - 1, n_labels_B, weights(3)
    losses_B, d_logits_BPV = by_kernels(*batch, blank=5)
    expected_B, expected_BPV = by_torch(*batch, blank=5)
    torch.testing.assert_close(losses_B.double(), expected_B, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(d_logits_BPV.double(), expected_BPV, rtol=1e-5, atol=1e-6)


def test_long_trials_lose_no_digits(by_kernels):
    # Log-probabilities of -4,000: float32 holds those to 0.0002 only, and posteriors no better.
    logits_BPV, _, labels_BU, _ = made_up(1, 400, 3, 1)
    batch = 20 * logits_BPV, torch.tensor([400]), labels_BU, torch.tensor([1])
    losses_B, d_logits_BPV = by_kernels(*batch, torch.ones(1))
    expected_B, expected_BPV = by_torch(*batch, torch.ones(1))
    assert float(expected_B) > 1000
    torch.testing.assert_close(losses_B.double(), expected_B, rtol=1e-6, atol=0)
    torch.testing.assert_close(d_logits_BPV.double(), expected_BPV, rtol=1e-5, atol=1e-5)


def test_impossible_labels_and_empty_trials_are_as_torch_has_them(by_kernels):
    logits_BPV, _, labels_BU, _ = made_up(6, 8, 5, 6)
    labels_BU[4] = 2
    n_patches_B = torch.tensor([0, 0, 3, 8, 7, 5])
    n_labels_B = torch.tensor([0, 2, 6, 0, 4, 4])  # 2 2 2 2 needs seven frames
    batch = logits_BPV, n_patches_B, labels_BU, n_labels_B
    losses_B, d_logits_BPV = by_kernels(*batch, weights(6))
    expected_B, expected_BPV = by_torch(*batch, weights(6))
    assert losses_B.isinf().tolist() == [False, True, True, False, False, False]
    torch.testing.assert_close(losses_B.double(), expected_B, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(
        d_logits_BPV.double(), expected_BPV, rtol=1e-5, atol=1e-6, equal_nan=True
    )


def test_a_label_that_is_no_token_gives_nan_and_reads_nothing_beyond_the_logits(by_kernels):
    logits_BPV, n_patches_B, labels_BU, _ = made_up(2, 9, 5, 3)
    labels_BU[1, 1] = 5
    batch = logits_BPV, n_patches_B, labels_BU, torch.tensor([3, 3])
    losses_B, d_logits_BPV = by_kernels(*batch, torch.ones(2))
    assert losses_B.isnan().tolist() == [False, True]
    assert d_logits_BPV[0].isfinite().all()


def test_what_does_not_fit_is_left_to_torch_with_a_reason():
    assert "cpu" in ctc.why_not(torch.device("cpu"), 40)
    assert "511" in ctc.why_not(torch.device("cuda", 0), 512)


def on_gpu(batch, d_losses_B, lengths_on):
    logits_BPV, n_patches_B, labels_BU, n_labels_B = batch
    logits_BPV = logits_BPV.cuda().requires_grad_()
    losses_B = ctc_loss(
        logits_BPV, n_patches_B.to(lengths_on), labels_BU.cuda(), n_labels_B.to(lengths_on)
    )
    losses_B.backward(d_losses_B.cuda())
    return losses_B.detach().cpu(), logits_BPV.grad.cpu()


@pytest.mark.gpu
@pytest.mark.parametrize("sizes", [(64, 225, 41, 60), (8, 225, 1601, 60), (2, 1000, 41, 500)])
def test_on_a_gpu_it_is_torchs_on_the_cpu_and_the_same_bits_again(sizes):
    batch, d_losses_B = made_up(*sizes), weights(sizes[0])
    assert ctc.why_not(torch.device("cuda", 0), sizes[3]) is None
    losses_B, d_logits_BPV = on_gpu(batch, d_losses_B, "cpu")
    expected_B, expected_BPV = by_torch(*batch, d_losses_B)
    torch.testing.assert_close(losses_B.double(), expected_B, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(d_logits_BPV.double(), expected_BPV, rtol=1e-5, atol=1e-6)
    again_B, again_BPV = on_gpu(batch, d_losses_B, "cuda")
    assert torch.equal(again_B, losses_B)
    assert torch.equal(again_BPV, d_logits_BPV)


@pytest.mark.gpu
def test_a_graph_reads_the_lengths_of_the_batch_that_it_is_replayed_for():
    first, second = made_up(4, 50, 41, 12), made_up(4, 50, 41, 12, seed=1)
    static = [tensor.cuda() for tensor in first]
    static[0].requires_grad_()
    graph = torch.cuda.CUDAGraph()
    assert ctc.why_not(torch.device("cuda", 0), 12) is None  # compiled before it is recorded
    with torch.cuda.graph(graph):
        losses_B = ctc_loss(*static)
        (d_logits_BPV,) = torch.autograd.grad(losses_B.sum(), static[0])
    for mine, given in zip(static, second, strict=True):
        mine.data.copy_(given)
    graph.replay()
    expected_B, expected_BPV = by_torch(*second, torch.ones(4))
    torch.testing.assert_close(losses_B.detach().cpu().double(), expected_B, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(d_logits_BPV.cpu().double(), expected_BPV, rtol=1e-5, atol=1e-6)
