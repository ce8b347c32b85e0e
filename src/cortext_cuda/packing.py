"""Batches without their padding: the trials' own patches, one trial after the other.

A CUDA graph serves batches of other lengths, too, as long as the number of rows is the same. It is
therefore rounded up, and the last rows are of no trial.

B trials, P patches of the longest, N rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from cortext.memory import to_device

STEP = 512
"""Rows are rounded up to a multiple of this number."""

_n_rows: int | None = None


def rounded_rows(n_patches: int) -> int:
    """Return the rows for so many patches of all trials."""
    return -(-max(n_patches, 1) // STEP) * STEP


@contextmanager
def packed_rows(n_rows: int) -> Iterator[None]:
    """Within the context, pack batches into `n_rows` rows, without reading their lengths.

    They must not have more patches than that.
    """
    global _n_rows
    before, _n_rows = _n_rows, n_rows
    try:
        yield
    finally:
        _n_rows = before


@dataclass(frozen=True)
class PackedRows:
    """Places of the patches of a padded batch [B, P] in rows.

    Attributes:
        starts_B: int32, the first row of each trial.
        lengths_B: int32, rows of each trial.
        place_N: int64, the place of each row in the padded batch, b * P + p; B * P for rows of no
            trial.
        n_most: P.
    """

    starts_B: torch.Tensor
    lengths_B: torch.Tensor
    place_N: torch.Tensor
    n_most: int

    def without_padding(self, x_BPI: torch.Tensor) -> torch.Tensor:
        """Return the rows, [N, I]. Those of no trial repeat the last patch of the batch."""
        x_I = x_BPI.flatten(0, 1)
        return x_I.index_select(0, self.place_N.clamp(max=len(x_I) - 1))

    def with_padding(self, x_NI: torch.Tensor) -> torch.Tensor:
        """Return rows as a padded batch [B, P, I], with zeros for padding."""
        n_places = len(self.lengths_B) * self.n_most
        x_I = x_NI.new_zeros(n_places + 1, x_NI.shape[1]).index_copy(0, self.place_N, x_NI)
        return x_I[:n_places].view(-1, self.n_most, x_NI.shape[1])


def pack(n_patches_B: torch.Tensor, n_most: int, device: torch.device) -> PackedRows:
    """Return the rows of a batch.

    Args:
        n_patches_B: int64 [B], patches of each trial. If they lie on a GPU, nothing is left out,
            unless within `packed_rows`.
        n_most: Patches of a trial with padding, P.
        device: Device of the batch.
    """
    if n_patches_B.device.type == "cpu":
        n_rows = rounded_rows(int(n_patches_B.clamp(max=n_most).sum()))
        if _n_rows is not None and n_rows > _n_rows:
            raise ValueError(f"{n_rows} rows are needed; `packed_rows` allows {_n_rows}")
        n_rows = _n_rows or n_rows
    else:  # reading the lengths from a GPU would wait for it
        n_rows = _n_rows or len(n_patches_B) * n_most
    lengths_B = to_device(n_patches_B, device).clamp(max=n_most)
    ends_B = lengths_B.cumsum(0)
    row_N = torch.arange(n_rows, device=device)
    trial_N = torch.searchsorted(ends_B, row_N, right=True)
    n_trials = len(lengths_B)
    own_N = trial_N.clamp(max=n_trials - 1)
    place_N = own_N * n_most + row_N - (ends_B - lengths_B)[own_N]
    place_N = place_N.where(trial_N < n_trials, n_trials * n_most)
    return PackedRows((ends_B - lengths_B).int(), lengths_B.int(), place_N, n_most)
