"""Memory of a token tree.

Tensors that grow along their rows, and a cache of transformers made of them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

FIRST_ROWS = 64
"""Rows that are allocated at first."""


class GrowingRows:
    """A tensor [..., capacity, F] whose rows are appended in place.

    Its capacity doubles, up to `most` rows.
    """

    def __init__(self) -> None:
        self.used = 0
        self.most = FIRST_ROWS
        self._data: Tensor | None = None

    @property
    def capacity(self) -> int:
        """Number of rows that the memory holds."""
        return 0 if self._data is None else self._data.shape[-2]

    @property
    def row_bytes(self) -> int:
        """Memory of one row."""
        return 0 if self._data is None else self._data.nbytes // self.capacity

    def append(self, new: Tensor) -> Tensor:
        """Append rows [..., N, F] and return all rows, as a view."""
        end = self.used + new.shape[-2]
        if end > self.capacity:
            n_rows = max(end, min(max(FIRST_ROWS, 2 * self.capacity), self.most))
            grown = new.new_empty((*new.shape[:-2], n_rows, new.shape[-1]))
            if self._data is not None:
                grown[..., : self.used, :] = self.rows
            self._data = grown
        assert self._data is not None
        self._data[..., self.used : end, :] = new
        self.used = end
        return self.rows

    @property
    def rows(self) -> Tensor:
        """The rows in use."""
        assert self._data is not None
        return self._data[..., : self.used, :]

    def keep(self, rows_N: Tensor) -> None:
        """Keep the rows with these numbers, in this order."""
        if self._data is None:
            return
        kept = self._data.index_select(self._data.dim() - 2, rows_N)
        self.used = len(rows_N)
        self._data[..., : self.used, :] = kept


class PoolLayer(DynamicLayer):  # type: ignore[misc]
    """Keys and values of one layer, a row for each token of a tree."""

    def __init__(self, **_: Any) -> None:
        super().__init__()
        self.pools = (GrowingRows(), GrowingRows())

    def update(
        self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Append keys and values [1, heads, N, F] and return all of them."""
        self.is_initialized = True
        keys, values = self.pools
        return keys.append(key_states), values.append(value_states)

    def get_seq_length(self) -> int:
        """Return the number of tokens held."""
        return self.pools[0].used


class PoolCache(Cache):  # type: ignore[misc]
    """A cache of transformers whose sequence dimension is a pool of tokens.

    Tokens in it need not follow each other: the attention mask decides which tokens each one sees.
    """

    def __init__(self) -> None:
        super().__init__(layer_class_to_replicate=PoolLayer)

    @property
    def pools(self) -> list[GrowingRows]:
        """The rows of all layers."""
        return [rows for layer in self.layers for rows in layer.pools]


def plain_layers(config: Any) -> tuple[bool, int | None]:
    """Return whether each layer keeps keys and values, and of how many last tokens.

    The number is the smallest of all layers; None where all layers keep all tokens. A tree can be
    made for as many tokens as all layers keep.
    """
    from transformers.cache_utils import DynamicCache, DynamicSlidingWindowLayer

    kinds = DynamicCache(config=config).layers
    windows = [layer.sliding_window for layer in kinds if type(layer) is DynamicSlidingWindowLayer]
    plain = bool(kinds) and all(
        type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in kinds
    )
    return plain, min(windows, default=None)


def additive_mask(visible_NK: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the mask [1, 1, N, K] to add to attention scores."""
    mask_NK = torch.zeros(visible_NK.shape, dtype=dtype, device=visible_NK.device)
    return mask_NK.masked_fill_(~visible_NK, torch.finfo(dtype).min)[None, None]
