"""CTC on CUDA, with lengths on the device: the host never waits, and a CUDA graph can record it.

torch's CTC reads the lengths on the host. It also waits for the copies of its tables, eight times
in a step. The kernels are in `ctc.cu`, compiled when first used. They prove themselves on a card
before they are taken there; see `check_kernels`.

B trials, P frames, V tokens, U labels, S = 2 U + 1 states of a path.
"""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch.autograd.function import once_differentiable

from cortext.memory import to_device
from cortext.training.progress import say
from cortext_cuda import proofs
from cortext_cuda.nvrtc import Kernel, KernelError, kernel

MOST_LABELS = 511
"""Labels of a trial: each state has a thread, and a block has at most 1,024."""
WARP = 32
CHECKED = ((6, 120, 41, 50), (3, 60, 1601, 20), (2, 700, 41, 300))
"""Trials, frames, tokens and labels of the comparisons with torch's CTC."""
MOST_ERROR = 1e-4
"""Bound of `check_kernels`: rounding gives a hundredth of it."""


def why_not(device: torch.device, n_labels: int) -> str | None:
    """Return why torch's CTC is taken; None if this one can be.

    Args:
        device: Device of the logits.
        n_labels: Labels of the longest trial, with padding.
    """
    if device.type != "cuda":
        return f"{device.type} has no kernel of ours"
    if n_labels > MOST_LABELS:
        return f"labels are longer than {MOST_LABELS}"
    return _cannot_compile(device) or proofs.why_not(f"{__name__}:check_kernels", device)


@lru_cache
def _cannot_compile(device: torch.device) -> str | None:
    try:
        for name in ("ctc_rows", "ctc_paths", "ctc_gradient"):
            _kernel(name, device)
    except KernelError as error:
        return str(error).partition("\n")[0]
    return None


def check_kernels(device: torch.device) -> str | None:
    """Compare losses and gradients with torch's CTC on the CPU, in float64.

    Returns:
        The fault; None if they agree, and are the same bits the second time.
    """
    for sizes in CHECKED:
        batch = _made_up(*sizes)
        on_device = [tensor.to(device) for tensor in batch]
        found, again = (_by_kernels(*on_device) for _ in range(2))
        expected = _by_torch(*batch)
        names = ("losses", "gradients")
        for name, own, other, right in zip(names, found, again, expected, strict=True):
            own_64 = own.cpu().double()
            if not torch.allclose(own_64, right, MOST_ERROR, MOST_ERROR, equal_nan=True):
                return f"its {name} of {sizes[2]} tokens are not those of torch"
            if not torch.equal(own.nan_to_num(), other.nan_to_num()):
                return f"its {name} of {sizes[2]} tokens differ from time to time"
    return None


def _made_up(n_trials: int, n_frames: int, n_tokens: int, n_labels: int) -> list[torch.Tensor]:
    """Return logits, frames, labels and their lengths, and the gradients of the losses.

    The first label is too long for its frames.
    """
    generator = torch.Generator().manual_seed(0)
    logits_BPV = 2 * torch.randn(n_trials, n_frames, n_tokens, generator=generator)
    labels_BU = torch.randint(1, n_tokens, (n_trials, n_labels), generator=generator)
    repeated_BU = labels_BU[:, 1::5]  # the same token twice
    repeated_BU.copy_(labels_BU[:, ::5][:, : repeated_BU.shape[1]])
    n_labels_B = n_labels - torch.arange(n_trials)
    n_patches_B = n_frames - 2 * torch.arange(n_trials)
    n_patches_B[0] = n_labels // 2
    d_losses_B = torch.linspace(0.5, 1.5, n_trials)
    return [logits_BPV, n_patches_B, labels_BU, n_labels_B, d_losses_B]


def _by_kernels(
    logits_BPV: torch.Tensor,
    n_patches_B: torch.Tensor,
    labels_BU: torch.Tensor,
    n_labels_B: torch.Tensor,
    d_losses_B: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return losses and the gradient of the logits by our kernels."""
    logits_BPV = logits_BPV.detach().requires_grad_()
    losses_B = _Loss.apply(logits_BPV, labels_BU, n_patches_B, n_labels_B, 0)  # type: ignore[no-untyped-call]
    return losses_B.detach(), torch.autograd.grad(losses_B, logits_BPV, d_losses_B)[0]


def _by_torch(
    logits_BPV: torch.Tensor,
    n_patches_B: torch.Tensor,
    labels_BU: torch.Tensor,
    n_labels_B: torch.Tensor,
    d_losses_B: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return losses and the gradient of the logits by torch, in float64."""
    logits_BPV = logits_BPV.double().requires_grad_()
    log_probs_PBV = logits_BPV.log_softmax(-1).transpose(0, 1)
    losses_B = torch.nn.functional.ctc_loss(
        log_probs_PBV, labels_BU, n_patches_B, n_labels_B, reduction="none"
    )
    return losses_B.detach(), torch.autograd.grad(losses_B, logits_BPV, d_losses_B.double())[0]


@lru_cache
def _source() -> str:
    return Path(__file__).with_name("ctc.cu").read_text(encoding="utf-8")


def _kernel(name: str, device: torch.device) -> Kernel:
    return kernel(_source(), name, device=device)


@lru_cache
def say_once(line: str) -> None:
    """Say the same line once in a process."""
    say(line, True)


def cuda_ctc_loss(
    logits_BPV: torch.Tensor,
    n_patches_B: torch.Tensor,
    labels_BU: torch.Tensor,
    n_labels_B: torch.Tensor,
    blank: int,
) -> torch.Tensor | None:
    """Return what `cortext.training.loss.ctc_loss` does; None where torch's CTC must do.

    Args:
        logits_BPV: Float [B, P, V] on CUDA, not normalised.
        n_patches_B: Frames of each trial, int64 [B], on any device.
        labels_BU: Labels, int64 [B, U], on any device.
        n_labels_B: Length of each label, int64 [B], on any device.
        blank: Number of the CTC blank.
    """
    device = logits_BPV.device
    if reason := why_not(device, labels_BU.shape[1]):
        say_once(f"torch's CTC is used, which waits for the GPU: {reason}")
        return None
    labels_BU, n_patches_B, n_labels_B = (
        to_device(tensor.long(), device).contiguous()
        for tensor in (labels_BU, n_patches_B, n_labels_B)
    )
    found: torch.Tensor = _Loss.apply(  # type: ignore[no-untyped-call]
        logits_BPV.float().contiguous(), labels_BU, n_patches_B, n_labels_B, blank
    )
    return found


class _Loss(torch.autograd.Function):
    """Losses float32 [B] of logits float32 [B, P, V]."""

    @staticmethod
    def forward(
        ctx: Any,
        logits_BPV: torch.Tensor,
        labels_BU: torch.Tensor,
        n_patches_B: torch.Tensor,
        n_labels_B: torch.Tensor,
        blank: int,
    ) -> torch.Tensor:
        (n_trials, n_frames, n_tokens), n_labels = logits_BPV.shape, labels_BU.shape[1]
        wanted = ctx.needs_input_grad[0]
        threads = -(-(2 * n_labels + 1) // WARP) * WARP
        empty, device = torch.empty, logits_BPV.device
        log_sums_BP = empty((n_trials, n_frames), device=device)
        losses_B = empty(n_trials, device=device)
        of_paths_B = empty(n_trials, device=device, dtype=torch.float64)
        shape = (2, n_trials, n_frames, 2 * n_labels + 1)
        both_BPS = empty(shape, device=device, dtype=torch.float64) if wanted else (None, None)
        links_BU = empty((n_trials, n_labels), device=device, dtype=torch.int32)
        ctx.sizes = n_frames, n_tokens, n_labels, blank
        given = logits_BPV, labels_BU, n_patches_B, n_labels_B, log_sums_BP
        with torch.cuda.device(device):
            if n_rows := n_trials * n_frames:
                rows = logits_BPV, n_patches_B, log_sums_BP, n_rows, n_frames, n_tokens
                _kernel("ctc_rows", device)(-(-n_rows // 4), 4 * WARP, rows)
            if n_trials:
                _kernel("ctc_paths", device)(
                    (n_trials, 2 if wanted else 1),
                    threads,
                    (*given, *both_BPS, links_BU, of_paths_B, losses_B, *ctx.sizes),
                    shared_bytes=2 * 8 * (threads + 2),
                )
        if wanted:
            ctx.save_for_backward(*given, both_BPS, links_BU, of_paths_B)
        return losses_B

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_losses_B: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        logits_BPV, *given, both_BPS, links_BU, of_paths_B = ctx.saved_tensors
        d_logits_BPV, d_losses_B = torch.empty_like(logits_BPV), d_losses_B.contiguous()
        tensors = logits_BPV, *given, *both_BPS, links_BU, of_paths_B, d_losses_B, d_logits_BPV
        n_trials, n_frames, n_tokens = logits_BPV.shape
        # The thread of autograd may have used no CUDA yet. Then it lacks the device's context,
        # which a kernel of ours needs and a call of CUDA's runtime brings.
        torch.cuda.current_stream(logits_BPV.device).record_event()
        threads = 4 * WARP if n_tokens <= 4 * WARP else 8 * WARP
        if n_trials * n_frames:
            with torch.cuda.device(logits_BPV.device):
                _kernel("ctc_gradient", logits_BPV.device)(
                    (n_frames, n_trials),
                    threads,
                    (*tensors, *ctx.sizes),
                    shared_bytes=8 * WARP,
                )
        return d_logits_BPV, None, None, None, None
