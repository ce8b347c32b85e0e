"""Distances between a brain sequence and an audio sequence of another length.

Losses with a value for each trial.

B trials, P patches of brain signal, N frames of audio, A width of the audio tower, H any width, L
positions of the longer of two sequences, U of the shorter one. Everything is computed in float32
(float64 stays), also under autocast. Padding changes neither values nor gradients, even where it is
NaN.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar, cast

import torch
import torch.nn.functional as F

Loss = TypeVar("Loss", bound=Callable[..., torch.Tensor])

NO_LENGTH = 1e-6
"""Length up to which a vector has no direction: its cosine with any is 0, without a gradient."""

IMPOSSIBLE = -1e4
"""Log-probability that excludes a path."""


def in_float32(loss: Loss) -> Loss:
    """Wrap a loss: it computes in float32, outside of autocast, from tensors of 16 bits."""

    @functools.wraps(loss)
    def wrapped(x: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        with torch.autocast(x.device.type, enabled=False):
            return loss(
                widened(x),
                *map(widened, args),
                **{name: widened(value) for name, value in kwargs.items()},
            )

    return cast(Loss, wrapped)


def widened(value: Any) -> Any:
    """Return a tensor of 16-bit numbers as float32, and anything else unchanged."""
    is_short = isinstance(value, torch.Tensor) and value.dtype in (torch.bfloat16, torch.float16)
    return value.float() if is_short else value


def length_mask(n_B: torch.Tensor, length: int) -> torch.Tensor:
    """Return a mask, bool [B, length]: True in each trial's first `n_B` positions."""
    return torch.arange(length, device=n_B.device) < n_B.unsqueeze(1)


def without_padding(x_BPH: torch.Tensor, n_B: torch.Tensor) -> torch.Tensor:
    """Return the sequences with zeros after each trial's first `n_B` positions."""
    mask_BP = length_mask(n_B.to(x_BPH.device), x_BPH.shape[1])
    return x_BPH.masked_fill(~mask_BP.unsqueeze(-1), 0.0)


@in_float32
def masked_mean(x_BPH: torch.Tensor, n_B: torch.Tensor) -> torch.Tensor:
    """Return the mean of each trial's first `n_B` vectors, [B, H]; zeros where it has none."""
    n_B = n_B.to(x_BPH.device)
    return without_padding(x_BPH, n_B).sum(1) / n_B.clamp(min=1).unsqueeze(1)


@in_float32
def match_lengths(
    x_BPA: torch.Tensor,
    n_patches_B: torch.Tensor,
    n_frames_B: torch.Tensor,
    n_positions: int | None = None,
) -> torch.Tensor:
    """Stretch each trial's patches over its frames by linear interpolation in time, [B, N, A].

    Patches and frames divide the same time evenly, and a vector belongs to the middle of its part.
    Before the first middle and after the last one, the vector is constant. The result is zero after
    a trial's frames.

    Args:
        x_BPA: Patches, padded.
        n_patches_B: int64 [B], patches of each trial.
        n_frames_B: int64 [B], frames of each trial.
        n_positions: N; None takes the longest trial's frames, which waits for the GPU.
    """
    device = x_BPA.device
    n_patches_B, n_frames_B = n_patches_B.to(device), n_frames_B.to(device)
    n_positions = int(n_frames_B.max()) if n_positions is None else n_positions
    weight_BNP = _interpolation(n_patches_B, n_frames_B, n_positions, x_BPA.shape[1]).to(
        x_BPA.dtype
    )
    return weight_BNP @ without_padding(x_BPA, n_patches_B)


def _interpolation(
    n_patches_B: torch.Tensor, n_frames_B: torch.Tensor, n_out: int, n_in: int
) -> torch.Tensor:
    """Return the weight of each patch in each frame, float32 [B, N, P]."""
    frame_N = torch.arange(n_out, device=n_patches_B.device)
    patch_P = torch.arange(n_in, device=n_patches_B.device)
    step_B1 = (n_patches_B / n_frames_B.clamp(min=1)).unsqueeze(1)
    where_BN = (frame_N + 0.5) * step_B1 - 0.5
    where_BN = torch.minimum(where_BN.clamp(min=0.0), (n_patches_B.unsqueeze(1) - 1).clamp(min=0))
    weight_BNP = (1.0 - (where_BN.unsqueeze(-1) - patch_P).abs()).clamp(min=0.0)
    return weight_BNP * length_mask(n_frames_B, n_out).unsqueeze(-1)


@in_float32
def unit(x: torch.Tensor) -> torch.Tensor:
    """Scale the vectors of the last dimension to length one.

    A vector without a direction (`NO_LENGTH`) becomes zero.
    """
    square = x.square().sum(-1, keepdim=True)
    known = square > NO_LENGTH**2
    return x * torch.where(known, square.clamp(min=NO_LENGTH**2).rsqrt(), 0.0)


@in_float32
def cosine_costs(
    brain_BPA: torch.Tensor,
    n_patches_B: torch.Tensor,
    target_BNA: torch.Tensor,
    n_frames_B: torch.Tensor,
) -> torch.Tensor:
    """Return 1 - cosine of each patch with each frame, [B, P, N]: 0 to 2, and 1 in the padding.

    Args:
        brain_BPA: Float, patches in the space of the audio tower's frames, padded.
        n_patches_B: int64 [B], patches of each trial.
        target_BNA: Float, the audio tower's frames, padded.
        n_frames_B: int64 [B], frames of each trial.
    """
    brain_BPA = without_padding(brain_BPA, n_patches_B)
    target_BNA = without_padding(target_BNA, n_frames_B)
    return 1.0 - unit(brain_BPA) @ unit(target_BNA).transpose(1, 2)


@in_float32
def cosine_alignment(
    brain_BPA: torch.Tensor,
    n_patches_B: torch.Tensor,
    target_BNA: torch.Tensor,
    n_frames_B: torch.Tensor,
) -> torch.Tensor:
    """Return the mean over frames of 1 - cosine of frame and stretched brain signal, [B].

    Args:
        brain_BPA: See `cosine_costs`, as for the others.
        n_patches_B: int64 [B], patches of each trial.
        target_BNA: Frames of the audio tower, padded.
        n_frames_B: int64 [B], frames of each trial.
    """
    matched_BNA = match_lengths(brain_BPA, n_patches_B, n_frames_B, target_BNA.shape[1])
    cosine_BN = (unit(matched_BNA) * unit(without_padding(target_BNA, n_frames_B))).sum(-1)
    return masked_mean((1.0 - cosine_BN).unsqueeze(-1), n_frames_B).squeeze(-1)


@in_float32
def mse_alignment(
    brain_BPA: torch.Tensor,
    n_patches_B: torch.Tensor,
    target_BNA: torch.Tensor,
    n_frames_B: torch.Tensor,
) -> torch.Tensor:
    """Return the mean over N and A of the stretched brain signal's squared error, [B].

    Args:
        brain_BPA: See `cosine_costs`, as for the others.
        n_patches_B: int64 [B], patches of each trial.
        target_BNA: Frames of the audio tower, padded.
        n_frames_B: int64 [B], frames of each trial.
    """
    matched_BNA = match_lengths(brain_BPA, n_patches_B, n_frames_B, target_BNA.shape[1])
    error_BNA = (matched_BNA - without_padding(target_BNA, n_frames_B)).square()
    return masked_mean(error_BNA, n_frames_B).mean(-1)


@in_float32
def monotonic_attention(
    brain_BPA: torch.Tensor,
    n_patches_B: torch.Tensor,
    target_BNA: torch.Tensor,
    n_frames_B: torch.Tensor,
    temperature: float = 0.1,
) -> torch.Tensor:
    """Return the negative log-probability of monotonic attention per position, float32 [B].

    Each position of the longer sequence attends to the shorter one by a softmax of cosines over a
    temperature. A monotonic path goes from the first to the last position; at each step it stays or
    moves by one (Shih et al. 2021, Badlani et al. 2021). The loss is -log of the summed
    probability of all such paths, divided by the longer length. CTC computes it: the label is every
    position of the shorter sequence, and blanks are impossible. Only relative likeness counts: a
    single frame costs nothing.

    Args:
        brain_BPA: See `cosine_costs`, as for the others.
        n_patches_B: int64 [B], patches of each trial.
        target_BNA: Frames of the audio tower, padded.
        n_frames_B: int64 [B], frames of each trial.
        temperature: Divisor of the cosines.
    """
    likeness_BPN = (
        1.0 - cosine_costs(brain_BPA, n_patches_B, target_BNA, n_frames_B)
    ) / temperature
    n_patches_B = n_patches_B.to(likeness_BPN.device)
    n_frames_B = n_frames_B.to(likeness_BPN.device)
    n_short, n_long = sorted(likeness_BPN.shape[1:])
    n_long_B = torch.maximum(n_patches_B, n_frames_B)
    n_short_B = torch.minimum(n_patches_B, n_frames_B)
    square_BLL = F.pad(
        likeness_BPN, (0, n_long - likeness_BPN.shape[2], 0, n_long - likeness_BPN.shape[1])
    )
    turned_B11 = (n_patches_B < n_frames_B).view(-1, 1, 1)
    likeness_BLU = torch.where(turned_B11, square_BLL.transpose(1, 2), square_BLL)[:, :, :n_short]
    mask_BU = length_mask(n_short_B.clamp(min=1), n_short)
    attention_BLU = likeness_BLU.masked_fill(~mask_BU.unsqueeze(1), IMPOSSIBLE).log_softmax(-1)
    log_probs_BLV = F.pad(attention_BLU, (1, 0), value=IMPOSSIBLE)  # the blank
    label_BU = torch.arange(1, n_short + 1, device=mask_BU.device).expand(len(mask_BU), -1)
    loss_B = F.ctc_loss(
        log_probs_BLV.transpose(0, 1), label_BU, n_long_B, n_short_B, reduction="none"
    )
    return loss_B.masked_fill(n_short_B == 0, 0.0) / n_long_B.clamp(min=1)
