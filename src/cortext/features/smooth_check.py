"""Comparison of `smooth_kernel` with the single steps, run by `models.proofs` and by the tests."""

from __future__ import annotations

import torch

from cortext.features.augment import AugmentationConfig, prepare


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
            for fast in (True, False)
        )  # fmt: skip
        if not torch.equal(found_B, plain_B):
            return "smoothing: other lengths"
        if not torch.equal(found_BTC == 0, plain_BTC == 0):
            return "smoothing: other bins are zero"
        if not torch.allclose(found_BTC, plain_BTC, rtol=1e-5, atol=1e-5):
            return f"smoothing: differs by {float((found_BTC - plain_BTC).abs().max()):.3g}"
    return None
