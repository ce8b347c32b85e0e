"""A tree of hypotheses for models that carry a state: each token is read once, its state kept."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from cortext.decoding.llm.tree import Node, TokenTree


class StateTree(TokenTree):
    """A `TokenTree` whose tokens have a cache of the model's each, as recurrent layers need it.

    New tokens of one depth are read together, after the states of the tokens before them; so a
    query takes a forward pass for each depth that it adds to, and memory for each token, not for
    what it adds to the one before. States grow with attention layers beside the recurrent ones: a
    bound on memory may be passed by what they grow within a query.
    """

    _state_bytes = 0

    def _rows_before(self) -> int:
        return 0

    def _read_prefix(self) -> None:
        cache = DynamicCache(config=self._lm.network.config)
        self._read([self._prefix], (0, slice(-1, None)), cache)
        self._keep([self._root], [cache])

    def _evaluate(self, new: list[Node]) -> None:
        for _, nodes in groupby(
            sorted(new, key=lambda node: node.depth), key=lambda node: node.depth
        ):
            level = list(nodes)
            cache = joined([node.parent.state for node in level if node.parent])
            self._read([[node.token] for node in level], (slice(None), -1), cache)
            for slot, node in enumerate(level, start=len(self._cached)):
                node.slot = slot
            self._cached += level
            self._keep(level, [part(cache, row) for row in range(len(level))])

    def _keep(self, nodes: Sequence[Node], states: Sequence[Any]) -> None:
        for node, state in zip(nodes, states, strict=True):
            node.state = state
        self._state_bytes = max(self._state_bytes, size(states[-1]))
        self._most = max(
            1,
            self._cache_bytes // (self._state_bytes + sum(rows.row_bytes for rows in self._rows())),
        )

    @property
    def cache_bytes(self) -> int:
        """Memory that the states hold."""
        return self.n_cached * self._state_bytes + super().cache_bytes


def joined(states: Sequence[Any]) -> Any:
    """A cache of transformers with a row for each of several caches of one row.

    They share no memory.
    """
    return _made(states, torch.cat)


def part(cache: Any, row: int) -> Any:
    """One row of a cache, with memory of its own."""
    return _made([cache], lambda tensors: tensors[0][row : row + 1].clone())


def size(cache: Any) -> int:
    """Bytes of a cache's tensors."""
    return sum(tensor.nbytes for layer in cache.layers for tensor in _tensors(layer))


def _made(caches: Sequence[Any], make: Callable[[list[Tensor]], Tensor]) -> Any:
    """A cache whose tensors are made of those of others, which are alike.

    The rest is the first one's.
    """
    made = copy.copy(caches[0])
    made.layers = [copy.copy(layer) for layer in caches[0].layers]
    for number, layer in enumerate(made.layers):
        sources = [vars(cache.layers[number]) for cache in caches]
        for name, value in vars(layer).items():
            if isinstance(value, dict):
                parts = [source[name] for source in sources]
                setattr(
                    layer, name, {key: _one([each[key] for each in parts], make) for key in value}
                )
            else:
                setattr(layer, name, _one([source[name] for source in sources], make))
    return made


def _one(values: list[Any], make: Callable[[list[Tensor]], Tensor]) -> Any:
    return make(values) if isinstance(values[0], Tensor) and values[0].dim() > 1 else values[0]


def _tensors(layer: Any) -> Iterator[Tensor]:
    for value in vars(layer).values():
        yield from (
            each
            for each in (value.values() if isinstance(value, dict) else [value])
            if isinstance(each, Tensor)
        )
