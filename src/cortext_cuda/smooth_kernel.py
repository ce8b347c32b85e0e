"""Smoothing on a GPU: noise, offset, cut, taps and cleared padding in one kernel.

Torch's convolution of single features takes ten times as long, with two transposed copies.

B trials, T bins, C features, K taps.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from cortext.features.augment import AugmentationConfig, prepare

BINS, FEATURES = 16, 64
"""Bins and features of a program."""


@triton.jit
def _smooth(
    x, noise, offset, taps, ends, found, x_trial, x_bin, n_bins, n_features, before,
    noise_std, offset_std, K: tl.constexpr, NOISE: tl.constexpr, OFFSET: tl.constexpr,
    CLEAR: tl.constexpr, BINS: tl.constexpr, FEATURES: tl.constexpr,
):  # fmt: skip
    """Smooth some bins and features of one trial."""
    t = tl.program_id(0) * BINS + tl.arange(0, BINS)
    c = (tl.program_id(1) * FEATURES + tl.arange(0, FEATURES))[None, :]
    trial = tl.program_id(2).to(tl.int64)
    own = c < n_features
    total = tl.zeros([BINS, FEATURES], tl.float32)
    if OFFSET:
        more = tl.load(offset + trial * n_features + c, own, 0.0) * offset_std
    for k in tl.static_range(K):
        at = (t - before + k)[:, None]
        inside = (at >= 0) & (at < n_bins) & own
        place = trial * x_trial + at * x_bin + c
        value = tl.load(x + place, inside, 0.0).to(tl.float32)
        if NOISE:
            value += tl.load(noise + place, inside, 0.0) * noise_std
        if OFFSET:
            value += tl.where(inside, more, 0.0)
        total += value * tl.load(taps + k)
    if CLEAR:
        total = tl.where((t < tl.load(ends + trial))[:, None], total, 0.0)
    place = (trial * n_bins + t[:, None]) * n_features + c
    tl.store(found + place, total, (t < n_bins)[:, None] & own)


def smooth(
    x_BTC: torch.Tensor,
    kernel_K: torch.Tensor,
    noise_BTC: torch.Tensor | None,
    offset_B1C: torch.Tensor | None,
    stds: tuple[float, float],
    end_B: torch.Tensor | None,
) -> torch.Tensor:
    """Smooth features, with noise added before and the padding cleared afterwards.

    Args:
        x_BTC: Float [B, T, C] on CUDA, the features of a bin side by side in memory.
        kernel_K: Float32 [K], the taps.
        noise_BTC: Float32 with the shape and strides of `x_BTC`; None adds none.
        offset_B1C: Float32 [B, 1, C], added to all bins; None adds none.
        stds: Factors of noise and offset.
        end_B: int64 [B], the bin from which on a trial's result is zero; None for none.

    Returns:
        Float32 [B, T, C].
    """
    n_trials, n_bins, n_features = x_BTC.shape
    found_BTC = x_BTC.new_empty(n_trials, n_bins, n_features, dtype=torch.float32)
    grid = triton.cdiv(n_bins, BINS), triton.cdiv(n_features, FEATURES), n_trials
    before = (len(kernel_K) - 1) // 2
    _smooth[grid](
        x_BTC, noise_BTC, offset_B1C, kernel_K, end_B, found_BTC, *x_BTC.stride()[:2], n_bins,
        n_features, before, *stds, len(kernel_K), noise_BTC is not None, offset_B1C is not None,
        end_B is not None, BINS, FEATURES,
    )  # fmt: skip
    return found_BTC


def check_smoothing(device: torch.device) -> str | None:
    """Compare noise, offset, cut, smoothing and cleared padding with the single steps."""
    torch.manual_seed(0)
    x_BTC = torch.randn(4, 70, 24, device=device).half()
    n_bins_B = torch.tensor([70, 12, 33, 60])
    cases = [
        (AugmentationConfig(), slice(None), True),
        (AugmentationConfig(), slice(1, None, 2), False),
    ]
    cases.append((AugmentationConfig(white_noise_std=0.0, random_cut=0), slice(None), False))
    for settings, rows, clear in cases:
        (found_BTC, found_B), (plain_BTC, plain_B) = (
            prepare(
                x_BTC, n_bins_B, settings, torch.Generator(device).manual_seed(5), rows,
                clear_padding=clear, in_one_kernel=fast,
            )
            for fast in (smooth, None)
        )  # fmt: skip
        if not torch.equal(found_B, plain_B):
            return "smoothing: other lengths"
        if not torch.equal(found_BTC == 0, plain_BTC == 0):
            return "smoothing: other bins are zero"
        if not torch.allclose(found_BTC, plain_BTC, rtol=1e-5, atol=1e-5):
            return f"smoothing: differs by {float((found_BTC - plain_BTC).abs().max()):.3g}"
    return None
