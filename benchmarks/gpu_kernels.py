"""The sections of `gpu_check.py` on single kernels, and on waits for the GPU; all need a GPU."""

from __future__ import annotations

import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from cortext.models.layers import attention
from cortext.training import Trainer
from cortext.training.loss import ctc_loss
from gpu_sections import MODELS, recordings, settings

if TYPE_CHECKING:
    from gpu_check import Checks

CTC_BOUND = 1e-5
"""Bound for the losses and gradients of our CTC, which adds up paths in float64."""


def check_waits(checks: Checks) -> None:
    """Check that the host waits for the GPU at no place of a training step."""
    if not checks.on_gpu:
        checks.cannot_run("host waits of a step", "they need a GPU")
        return
    masks = {"kind": "time_mask", "patch_bins": 4, "after_smoothing": True}
    noisy = {"batch_size": 8, "days_per_batch": 2, "augmentations": [masks]}
    for number, model in enumerate(MODELS):
        config = settings(model, 100, "bf16", dataset=noisy, batches_per_train_log=100)
        places = waits_of_steps(checks, config, checks.folder / f"waits-{number}")
        said = ", ".join(sorted(places))
        checks.at_most(f"{model}: waits of four steps", sum(places.values()), 0, said)
        checks.measured.setdefault("waits", {})[model] = dict(places)


def waits_of_steps(
    checks: Checks, config: Mapping[str, Any], out: Path, n_steps: int = 4
) -> Counter[str]:
    """Return the waits of some steps, by file and line of Python.

    The batches come three times: where they are replayed as graphs, the first time is a warm-up,
    and the second captures the graphs.
    """
    with Trainer(
        config, recordings(checks), out, device=checks.device, progress=False
    ) as trainer, warnings.catch_warnings(record=True) as said:  # fmt: skip
        backend = trainer.backend
        warnings.simplefilter("always")
        with backend.running():
            for mode in ("default", "default", "warn"):
                torch.cuda.synchronize()
                torch.cuda.set_sync_debug_mode(mode)
                try:
                    for step, batch in enumerate(backend.batches(0, n_steps)):
                        backend.update(step, batch)
                finally:
                    torch.cuda.set_sync_debug_mode("default")
        waits = [warning for warning in said if "synchronizing CUDA" in str(warning.message)]
    return Counter(f"{Path(warning.filename).name}:{warning.lineno}" for warning in waits)


def check_attention(checks: Checks) -> None:
    """Check that attention and its gradients run in one kernel, also that of the bias."""
    if not checks.on_gpu:
        checks.cannot_run("one kernel for attention", "it needs a GPU")
        return
    shape, device = (2, 6, 225, 64), checks.device
    for dtype in (torch.bfloat16, torch.float32):
        q, k, v = (
            torch.randn(shape, device=device, dtype=dtype, requires_grad=True) for _ in "qkv"
        )
        bias = torch.randn(1, 1, 225, 225, device=device, requires_grad=True)
        with sdpa_kernel([SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]):
            attention(q, k, v, bias, 0.35).sum().backward()
        finite = all(bool(x.grad.isfinite().all()) for x in (q, k, v, bias) if x.grad is not None)
        checks.holds(f"one kernel in {dtype}, finite gradients", finite and bias.grad is not None)


def check_ctc(checks: Checks) -> None:
    """Compare our CTC with torch's on the CPU in float64; torch's and cuDNN's are timed beside it.

    cuDNN's reads the lengths on the GPU, too. It is documented for trials of one length only.
    """
    if not checks.on_gpu:
        checks.cannot_run("CTC", "it needs a GPU")
        return
    sides = {"ours": ctc_loss, "torch": torch_ctc_loss, "cudnn": cudnn_ctc_loss}
    measured = checks.measured.setdefault("ctc", {})
    for n_tokens in (41, 1601):  # phonemes, diphones
        logits_BPV, *others = made_up_batch(n_tokens)
        expected = with_gradient(torch_ctc_loss, (logits_BPV.double(), *others), "cpu")
        for name, loss in sides.items():
            key = f"{name}, {n_tokens} tokens"
            try:
                found = with_gradient(loss, (logits_BPV, *others), checks.device)
                ms = loss_ms(loss, (logits_BPV, *others), checks.device)
            except RuntimeError as error:
                measured[key] = str(error)
                continue
            measured[key] = {
                part: float((a - b).abs().max() / b.abs().max())
                for part, a, b in zip(("losses", "gradients"), found, expected, strict=True)
            } | {"ms": ms}
        for part in ("losses", "gradients"):
            found_ours = measured[f"ours, {n_tokens} tokens"][part]
            checks.at_most(f"CTC of {n_tokens} tokens: {part}", found_ours, CTC_BOUND)


def loss_ms(
    loss: Callable[..., torch.Tensor], batch: tuple[torch.Tensor, ...], device: str
) -> float:
    """Return the time of a loss and its gradient, with what it takes already on the device.

    Only torch's wants the lengths on the host.
    """
    logits_BPV, n_patches_B, labels_BU, n_labels_B = batch
    logits_BPV = logits_BPV.to(device).requires_grad_()
    labels_BU = labels_BU.to(device)
    if loss is not torch_ctc_loss:
        n_patches_B, n_labels_B = n_patches_B.to(device), n_labels_B.to(device)

    def call() -> object:
        losses_B = loss(logits_BPV, n_patches_B, labels_BU, n_labels_B)
        return torch.autograd.grad(losses_B.sum(), logits_BPV)

    return milliseconds(call)


def made_up_batch(n_tokens: int) -> tuple[torch.Tensor, ...]:
    """Return logits [64, 225, V] and what else `ctc_loss` takes; the lengths differ."""
    generator = torch.Generator().manual_seed(0)
    logits_BPV = torch.randn(64, 225, n_tokens, generator=generator)
    n_patches_B = torch.randint(112, 226, (64,), generator=generator)
    labels_BU = torch.randint(1, n_tokens, (64, 60), generator=generator)
    n_labels_B = torch.randint(20, 50, (64,), generator=generator)
    return logits_BPV, n_patches_B, labels_BU, n_labels_B


def with_gradient(
    loss: Callable[..., torch.Tensor], batch: tuple[torch.Tensor, ...], device: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the losses [B] of a batch and the gradient of its logits, on the host."""
    logits_BPV, n_patches_B, labels_BU, n_labels_B = batch
    logits_BPV = logits_BPV.detach().to(device).requires_grad_()
    losses_B = loss(logits_BPV, n_patches_B, labels_BU.to(device), n_labels_B)
    losses_B.sum().backward()
    assert logits_BPV.grad is not None
    return losses_B.detach().cpu(), logits_BPV.grad.cpu()


def torch_ctc_loss(
    logits_BPV: torch.Tensor,
    n_patches_B: torch.Tensor,
    labels_BU: torch.Tensor,
    n_labels_B: torch.Tensor,
) -> torch.Tensor:
    """Return what `cortext.training.loss.ctc_loss` returns, computed by torch."""
    log_probs_PBV = logits_BPV.log_softmax(-1).transpose(0, 1)
    return torch.nn.functional.ctc_loss(
        log_probs_PBV, labels_BU, n_patches_B, n_labels_B, reduction="none"
    )


def cudnn_ctc_loss(
    logits_BPV: torch.Tensor,
    n_patches_B: torch.Tensor,
    labels_BU: torch.Tensor,
    n_labels_B: torch.Tensor,
) -> torch.Tensor:
    """Return what `cortext.training.loss.ctc_loss` returns, computed by cuDNN."""
    device = logits_BPV.device
    inside_BP = torch.arange(logits_BPV.shape[1], device=device) < n_patches_B.to(device)[:, None]
    # The gradient of the padding may be anything.
    log_probs_BPV = logits_BPV.log_softmax(-1).where(inside_BP[..., None], 0.0)
    n_labels_B = n_labels_B.to(device)
    own_BU = torch.arange(labels_BU.shape[1], device=device) < n_labels_B[:, None]
    labels_N = labels_BU[own_BU].int()
    lengths = n_patches_B.int().to(device), n_labels_B.int()
    log_probs_PBV = log_probs_BPV.transpose(0, 1).contiguous()
    found: torch.Tensor = torch.ops.aten._cudnn_ctc_loss.Tensor(
        log_probs_PBV, labels_N, *lengths, 0, True, False
    )[0]
    return found


def milliseconds(call: Callable[[], object], repeats: int = 20) -> float:
    """Return the mean time of a call on the GPU, after three that do not count."""
    for _ in range(3):
        call()
    torch.cuda.synchronize()
    started = time.perf_counter()
    for _ in range(repeats):
        call()
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - started) / repeats


SECTIONS: dict[str, Callable[[Checks], None]] = {
    "attention": check_attention,
    "CTC": check_ctc,
    "host waits": check_waits,
}
"""The sections in their order."""
