"""The product of overlapping patches with a weight, by fewer multiplications.

A patch of 14 bins every 4 bins shares most of its bins with its neighbours, so that a GRU's first
layer multiplies each bin 3.5 times. That product is most of a training step in float32. The
algorithms of Toom and Cook (Winograd 1980; for networks Lavin & Gray 2016) compute `TILE` patches
together. Bins, taken in blocks of one stride, are combined by a small matrix, each combination is
multiplied once, and the products are combined to the patches. Published settings need 6.5
multiplications instead of 14. Results differ from the plain product by rounding: 2e-6 of the
largest value.

y_j = sum over the taps i of g_i d_(j+i) is A ((G g) * (D d)); `toom_cook` gives A, G and D.

B trials, T bins, C features, K blocks, M tiles, N rows (patches), I values in a patch, G outputs.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F

TILE = 4
"""Patches that are computed together. With more, rounding errors grow quickly."""
TAPS = (3, 4)
"""Blocks in a patch for which it pays: two save little, and five have larger rounding errors."""
LEAST_ROWS = 256
"""Patches from which on the work on the weight is worth it."""
_POINTS = [Fraction(p) for p in ("0", "1", "-1", "2", "-2", "1/2", "-1/2")]


class Overlap(NamedTuple):
    """Bins from which patches are made.

    Attributes:
        x_BTC: Float [B, T, C].
        size: Bins of a patch.
        stride: Bins from one patch to the next.
    """

    x_BTC: torch.Tensor
    size: int
    stride: int

    def pays(self, n_patches: int) -> bool:
        """Tell whether `product` is faster than the plain one: in training in float32 on a CPU.

        Args:
            n_patches: Patches of all trials.
        """
        return (
            self.x_BTC.device.type == "cpu"
            and self.x_BTC.dtype == torch.float32
            and torch.is_grad_enabled()
            and not torch.is_autocast_enabled("cpu")
            and -(-self.size // self.stride) in TAPS
            and n_patches >= LEAST_ROWS
        )

    def product(self, weight_GI: torch.Tensor, lengths: list[int]) -> torch.Tensor:
        """Multiply each patch of each trial by a weight.

        Args:
            weight_GI: Float32 [G, size * C].
            lengths: Number of patches of each trial, at least one; they need no bin after the T-th.

        Returns:
            Float32 [N, G], the patches of one trial after those of another.
        """
        return _overlapping_product(*self, weight_GI, lengths)


def _overlapping_product(
    x_BTC: torch.Tensor, size: int, stride: int, weight_GI: torch.Tensor, lengths: list[int]
) -> torch.Tensor:
    n_trials, _, n_features = x_BTC.shape
    n_taps = -(-size // stride)
    # A trial's tiles begin every TILE blocks; each reads TILE + n_taps - 1 blocks.
    tiles = [-(-length // TILE) for length in lengths]
    n_blocks = max(tiles) * TILE + n_taps - 1
    short = n_blocks * stride - x_BTC.shape[1]
    # Bins after the last patch may be more than the tiles read (`short` is negative).
    rows_KI = F.pad(x_BTC, (0, 0, 0, short)).reshape(n_trials * n_blocks, stride * n_features)
    first_M = torch.cat([b * n_blocks + TILE * torch.arange(tiles[b]) for b in range(n_trials)])
    weight = F.pad(weight_GI, (0, (n_taps * stride - size) * n_features))
    weight = weight.view(len(weight_GI), n_taps, stride * n_features)
    # The last block of a patch may be cut short: its other columns have one tap less.
    whole = (size - (n_taps - 1) * stride) * n_features
    y = _product(rows_KI[:, :whole], weight[..., :whole], first_M)
    if whole < stride * n_features:
        y = y + _product(rows_KI[:, whole:], weight[:, :-1, whole:], first_M)
    starts = TILE * torch.tensor([0, *tiles]).cumsum(0)
    kept_N = torch.cat([start + torch.arange(n) for start, n in zip(starts, lengths, strict=False)])
    return y.transpose(0, 1).reshape(-1, len(weight_GI))[kept_N]


def _product(
    rows_KI: torch.Tensor, weight_GRI: torch.Tensor, first_M: torch.Tensor
) -> torch.Tensor:
    """Return [TILE, M, G]: the outputs of tiles that begin at the rows `first_M`."""
    n_outputs, n_taps, width = weight_GRI.shape
    combine, of_taps, of_blocks = (
        torch.tensor(matrix, dtype=torch.float32) for matrix in toom_cook(TILE, n_taps)
    )
    n = len(of_blocks)
    blocks = rows_KI[first_M + torch.arange(n)[:, None]]  # [n, M, I]
    d = (of_blocks @ blocks.view(n, -1)).view(n, -1, width)
    g = (of_taps @ weight_GRI.transpose(0, 1).reshape(n_taps, -1)).view(n, n_outputs, width)
    products = torch.bmm(d, g.transpose(1, 2))
    return (combine @ products.view(n, -1)).view(TILE, -1, n_outputs)


Matrix = list[list[float]]


@cache
def toom_cook(n_outputs: int, n_taps: int) -> tuple[Matrix, Matrix, Matrix]:
    """Return the matrices A [outputs, n], G [n, taps] and D [n, n], n = outputs + taps - 1.

    The product of two polynomials is known from its values at n points, one of which is infinity.
    Interpolation gives the coefficients from the values; transposed, it becomes a correlation.
    """
    n = n_outputs + n_taps - 1
    points = _POINTS[: n - 1]

    def values(n_coefficients: int) -> list[list[Fraction]]:
        """Return the matrix that evaluates a polynomial at all points."""
        finite = [[p**power for power in range(n_coefficients)] for p in points]
        return [*finite, [Fraction(0)] * (n_coefficients - 1) + [Fraction(1)]]

    interpolation = _inverse(values(n))
    return (
        _floats(zip(*values(n_outputs), strict=True)),
        _floats(values(n_taps)),
        _floats(zip(*interpolation, strict=True)),
    )


def _floats(matrix: Iterable[Sequence[Fraction]]) -> Matrix:
    return [[float(value) for value in row] for row in matrix]


def _inverse(matrix: list[list[Fraction]]) -> list[list[Fraction]]:
    """Return the inverse (Gauss and Jordan), without rounding."""
    n = len(matrix)
    rows = [[*row, *(Fraction(i == j) for j in range(n))] for i, row in enumerate(matrix)]
    for column in range(n):
        pivot = next(i for i in range(column, n) if rows[i][column])
        rows[column], rows[pivot] = rows[pivot], rows[column]
        rows[column] = [value / rows[column][column] for value in rows[column]]
        for i in range(n):
            if i != column:
                factor = rows[i][column]
                rows[i] = [a - factor * b for a, b in zip(rows[i], rows[column], strict=True)]
    return [row[n:] for row in rows]
