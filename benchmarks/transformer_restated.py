"""The yardstick of the Transformer: the time-masked model, restated in plain PyTorch.

Nothing of cortext is imported, and no other code was read for it. The description has these facts
(LightBeam, arXiv 2603.14002; an earlier version is arXiv 2507.02800):

- patches of 4 bins (T15) or 5 bins (T12), without overlap, then LayerNorm, Linear, LayerNorm;
- 5 pre-norm blocks, width 384, 6 heads of 64, feed-forward of 4 x 384 with GELU, a last LayerNorm;
- one learnt scalar for each distance, shared by the heads, clamped at 199 (399 scalars a block);
- chunks of 1 patch make attention causal; the left context is bounded, and drawn in training;
- 20 time masks a trial on raw patches, set to 0 before the embedding; each has a length
  U{0 .. floor(p * length)}, with p = 0.05 (T15) or 0.075 (T12);
- AdamW with weight decay 1e-5, batch 64, CTC divided by the label's length, gradients clipped at a
  norm of 100.

The description leaves these points open. The choice taken here:

- the last patch of a trial is filled with zeros; the bins of a patch stand one after the other;
- dropout at the input follows the embedding; dropout of the body acts on attention weights, after
  the output of attention, and after both linear layers of the feed-forward part;
- queries, keys and values have no biases; the other linear layers have them;
- GELU is the exact one; the scores are divided by sqrt(64) before the scalar of the distance;
- a left context of W frames means W frames before the chunk, and the chunk itself;
- a mask of length n begins at U{0 .. length - n}, so that it lies within the trial;
- AdamW's betas and epsilon are torch's; weights of all kinds decay;
- the loss is the mean over trials.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import nn

MAX_DISTANCE = 199
"""Distances beyond it share its scalar."""

Mark = Callable[[str], None]
"""Called with the name of each part of a step when it is over."""


@dataclass(frozen=True)
class Shape:
    """Sizes of the model; the values are those of T15.

    Attributes:
        chunk: Frames that see each other; 1 is causal, None is the whole trial (bidirectional).
        context: Frames before a chunk that it sees in evaluation: 20 s of 80 ms.
        contexts: Least and greatest number of such frames in training: 5 to 20 s.
    """

    n_features: int = 512
    n_classes: int = 41
    patch: int = 4
    width: int = 384
    n_blocks: int = 5
    n_heads: int = 6
    head_width: int = 64
    feed_forward: int = 4
    input_dropout: float = 0.2
    dropout: float = 0.35
    chunk: int | None = 1
    context: int = 250
    contexts: tuple[int, int] = (62, 250)


class Attention(nn.Module):
    """Self-attention with a learnt scalar for each distance."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        inner = shape.n_heads * shape.head_width
        self.norm = nn.LayerNorm(shape.width)
        self.qkv = nn.Linear(shape.width, 3 * inner, bias=False)
        self.out = nn.Linear(inner, shape.width)
        self.distance = nn.Embedding(2 * MAX_DISTANCE + 1, 1)
        self.dropout = nn.Dropout(shape.dropout)

    def forward(self, x_BPD: torch.Tensor, seen_BPP: torch.Tensor) -> torch.Tensor:
        """Return what the attention adds to its input.

        Args:
            x_BPD: Input, [B, P, width].
            seen_BPP: True where a frame (row) sees another one (column), bool [B or 1, P, P].
        """
        n_frames = x_BPD.shape[1]
        query, key, value = (
            part.unflatten(2, (self.shape.n_heads, self.shape.head_width)).transpose(1, 2)
            for part in self.qkv(self.norm(x_BPD)).chunk(3, dim=2)
        )
        scores = query @ key.transpose(2, 3) / math.sqrt(self.shape.head_width)
        place = torch.arange(n_frames, device=x_BPD.device)
        distance = (place[:, None] - place).clamp(-MAX_DISTANCE, MAX_DISTANCE) + MAX_DISTANCE
        scores = scores + self.distance(distance)[:, :, 0]
        scores = scores.masked_fill(~seen_BPP[:, None], -math.inf)
        attended = self.dropout(scores.softmax(3)) @ value
        return self.dropout(self.out(attended.transpose(1, 2).flatten(2)))


class Block(nn.Module):
    """Attention, then the feed-forward part; each is added to its input."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.attention = Attention(shape)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(shape.width),
            nn.Linear(shape.width, shape.feed_forward * shape.width),
            nn.GELU(),
            nn.Dropout(shape.dropout),
            nn.Linear(shape.feed_forward * shape.width, shape.width),
            nn.Dropout(shape.dropout),
        )

    def forward(self, x_BPD: torch.Tensor, seen_BPP: torch.Tensor) -> torch.Tensor:
        """Return the block's output; see Attention.forward."""
        x_BPD = x_BPD + self.attention(x_BPD, seen_BPP)
        return x_BPD + self.feed_forward(x_BPD)


class RestatedTransformer(nn.Module):
    """Patches, embedding, blocks and output."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        self.embedding = nn.Sequential(
            nn.LayerNorm(shape.patch * shape.n_features),
            nn.Linear(shape.patch * shape.n_features, shape.width),
            nn.LayerNorm(shape.width),
        )
        self.input_dropout = nn.Dropout(shape.input_dropout)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.n_blocks))
        self.norm = nn.LayerNorm(shape.width)
        self.out = nn.Linear(shape.width, shape.n_classes)

    def forward(self, patches_BPF: torch.Tensor, n_frames_B: torch.Tensor) -> torch.Tensor:
        """Return logits [B, P, V].

        Args:
            patches_BPF: Smoothed features in patches, [B, P, patch * C]; see `patches`.
            n_frames_B: Frames of each trial, int64 [B].
        """
        seen_BPP = seen(
            patches_BPF.shape[1], n_frames_B, self.shape.chunk, self._context(patches_BPF.device)
        )
        x_BPD = self.input_dropout(self.embedding(patches_BPF))
        for block in self.blocks:
            x_BPD = block(x_BPD, seen_BPP)
        return self.out(self.norm(x_BPD))

    def _context(self, device: torch.device) -> int:
        if not self.training:
            return self.shape.context
        low, high = self.shape.contexts
        return int(torch.randint(low, high + 1, (), device=device))


def patches(x_BTC: torch.Tensor, size: int) -> torch.Tensor:
    """Return patches [B, ceil(T / size), size * C] without overlap, filled with zeros at the end.

    Args:
        x_BTC: Smoothed features, [B, T, C].
        size: Bins of a patch.
    """
    missing = -x_BTC.shape[1] % size
    filled = nn.functional.pad(x_BTC, (0, 0, 0, missing))
    return filled.unflatten(1, (-1, size)).flatten(2)


def seen(n_frames: int, n_frames_B: torch.Tensor, chunk: int | None, context: int) -> torch.Tensor:
    """Return which frames (rows) see which ones (columns), bool [B, P, P].

    Args:
        n_frames: Frames of the longest trial, P.
        n_frames_B: Frames of each trial, int64 [B]; frames beyond them are not seen.
        chunk: Frames that see each other; None means all.
        context: Frames before a chunk that it sees.
    """
    place = torch.arange(n_frames, device=n_frames_B.device)
    own_BP = place < n_frames_B[:, None]
    if chunk is None:
        return own_BP[:, None].expand(-1, n_frames, -1)
    begin = place // chunk * chunk
    near = (place >= begin[:, None] - context) & (place < begin[:, None] + chunk)
    # A frame of the padding sees itself, so that its softmax has something to sum.
    itself = torch.eye(n_frames, dtype=torch.bool, device=place.device)
    return near & (own_BP[:, None] | itself)


def time_masks(n_frames_B: torch.Tensor, n_frames: int, n_masks: int, share: float) -> torch.Tensor:
    """Draw which patches are masked, bool [B, P].

    Args:
        n_frames_B: Frames (patches) of each trial, int64 [B].
        n_frames: Frames of the longest trial, P.
        n_masks: Masks of each trial.
        share: Greatest length of a mask, as a share of the trial.
    """
    masked_BP = torch.zeros(len(n_frames_B), n_frames, dtype=torch.bool)
    for trial, length in enumerate(n_frames_B.tolist()):
        for _ in range(n_masks):
            size = int(torch.randint(0, int(share * length) + 1, ()))
            start = int(torch.randint(0, length - size + 1, ()))
            masked_BP[trial, start : start + size] = True
    return masked_BP


def expected_mask_share(length: int, n_masks: int, share: float) -> float:
    """Return the expected share of masked patches of a trial, exactly.

    A frame is free where all masks miss it. A mask of `size` patches covers frame i from as many
    starts as lie in [i - size + 1, i] and in [0, length - size].

    Args:
        length: Frames (patches) of the trial.
        n_masks: Masks of the trial.
        share: Greatest length of a mask, as a share of the trial.
    """
    longest = int(share * length)
    free = 0.0
    for frame in range(length):
        covered = 0.0
        for size in range(1, longest + 1):
            first, last = max(0, frame - size + 1), min(frame, length - size)
            covered += (last - first + 1) / (length - size + 1)
        free += (1 - covered / (longest + 1)) ** n_masks
    return 1 - free / length


class RestatedTrainer:
    """One training: masks, forward, loss, backward, clipping, AdamW.

    Args:
        shape: Sizes of the model.
        lr: Learning rate.
        n_masks: Time masks of each trial.
        share: Greatest length of a mask, as a share of the trial.
        autocast: Compute the model in bfloat16 (mixed precision).
        device: Device to train on.
    """

    def __init__(
        self,
        shape: Shape,
        lr: float = 2e-3,
        n_masks: int = 20,
        share: float = 0.05,
        autocast: bool = False,
        device: str | torch.device = "cpu",
    ) -> None:
        self.model = RestatedTransformer(shape).to(device)
        self.n_masks = n_masks
        self.share = share
        self.autocast = autocast
        self.device = torch.device(device)
        self.ctc = nn.CTCLoss(blank=0, reduction="none")
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr, weight_decay=1e-5)

    def step(self, batch: Mapping[str, torch.Tensor], mark: Mark = lambda part: None) -> float:
        """Train on one batch and return its loss.

        Parts: load (to the device), augment, forward, backward, step.

        Args:
            batch: `x_BTC` (smoothed), `n_bins_B`, `labels_BU`, `n_labels_B`.
            mark: Called after each part.
        """
        self.model.train()
        self.optimizer.zero_grad()
        x_BTC, n_bins_B, labels_BU, n_labels_B = (
            batch[name].to(self.device) for name in ("x_BTC", "n_bins_B", "labels_BU", "n_labels_B")
        )
        mark("load")
        size = self.model.shape.patch
        n_frames_B = (n_bins_B + size - 1) // size
        patches_BPF = patches(x_BTC, size)
        if self.n_masks:
            masked_BP = time_masks(n_frames_B, patches_BPF.shape[1], self.n_masks, self.share)
            patches_BPF = patches_BPF.masked_fill(masked_BP[:, :, None].to(self.device), 0)
        mark("augment")
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.autocast):
            logits_BPV = self.model(patches_BPF, n_frames_B)
        log_probs_PBV = logits_BPV.float().log_softmax(2).transpose(0, 1)
        loss = (self.ctc(log_probs_PBV, labels_BU, n_frames_B, n_labels_B) / n_labels_B).mean()
        mark("forward")
        loss.backward()
        mark("backward")
        nn.utils.clip_grad_norm_(self.model.parameters(), 100.0)
        self.optimizer.step()
        value = loss.item()
        mark("step")
        return value
