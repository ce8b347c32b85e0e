"""Find the cache with which a model can score the hypotheses of a search, by trying it.

Transformers' models keep keys and values, recurrent states or windows of them, and no setting
says which of our trees reads them right. So a few tokens are scored by each, and compared.
"""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from cortext_lm.llm.explain import out_of_memory
from cortext_lm.llm.model import CausalLM
from cortext_lm.llm.pool import plain_layers
from cortext_lm.llm.scoring import score_tokens
from cortext_lm.llm.tree import MIB, Node, TokenTree

SENTENCE_TOKENS = 128
"""Tokens that a long sentence may have.

A model whose layers see fewer after a prefix is not read as a tree.
"""

LEAST_STATES = 64
"""Fewest states worth keeping: with room for fewer, each would be read again and again."""


@dataclass(frozen=True)
class CacheKind:
    """The cache with which hypotheses are scored.

    Attributes:
        kind: `tree`: all hypotheses in one cache (`TokenTree`); `states`: a state for each token
            (`StateTree`); `uncached`: each hypothesis is read from its beginning
            (`UncachedScorer`).
        window: Tokens that all layers of the model see, where that is bounded.
        state_bytes: Memory of a state after one token.
        token_bytes: Memory that each further token adds to a state.
    """

    kind: str
    window: int | None = None
    state_bytes: int = 0
    token_bytes: int = 0


def scorer(lm: CausalLM, prefix: Sequence[int], cache_mb: float) -> TokenTree | UncachedScorer:
    """Return the scorer that reads the fewest tokens that the model and the memory allow.

    Args:
        lm: The model.
        prefix: Tokens before every hypothesis; at least one.
        cache_mb: Bound on the memory of the cache, in MiB.
    """
    cache = cache_kind(lm)
    if cache.kind == "tree" and (
        cache.window is None or cache.window >= len(prefix) + SENTENCE_TOKENS
    ):
        return TokenTree(lm, prefix, cache_mb, cache.window)
    state_bytes = cache.state_bytes + (len(prefix) + SENTENCE_TOKENS // 4) * cache.token_bytes
    if cache.kind == "states" and cache_mb * MIB >= LEAST_STATES * state_bytes:
        return StateTree(lm, prefix, cache_mb)
    return UncachedScorer(lm, prefix)


_kinds: weakref.WeakKeyDictionary[CausalLM, CacheKind] = weakref.WeakKeyDictionary()
_probing = threading.Lock()


def cache_kind(lm: CausalLM) -> CacheKind:
    """Return the cache that a model supports, found with a few tokens the first time."""
    with _probing:
        if lm not in _kinds:
            _kinds[lm] = next(_supported(lm))
        return _kinds[lm]


def _supported(lm: CausalLM) -> Iterator[CacheKind]:
    """Yield the caches that a model supports, the best first.

    A cache is supported if three branches, in two calls, score as each does by itself.
    """
    plain, window = plain_layers(lm.network.config)
    tokens = [lm.vocab_size * (2 * each + 1) // 16 for each in range(8)]
    one = tokens[:4]
    two = [*tokens[:2], *tokens[4:6]]
    three = [tokens[6], *tokens[2:5]]
    prefix = lm.prefix()
    expected, spread = _plain(lm, prefix, [one, two, three])
    tolerance = 1e-5 + spread * (5e-3 if lm.network.dtype == torch.float32 else 0.1)

    def agrees(tree: TokenTree) -> bool:
        try:
            scores = [*tree.score([one]), *tree.score([three, two])[::-1]]
        except Exception as error:  # a model without support for the cache raises anything
            if out_of_memory(error):
                raise
            return False
        return max(abs(a - b) for a, b in zip(scores, expected, strict=True)) <= tolerance

    if (
        plain
        and min(lm.window, window or lm.window) >= len(prefix) + len(one)
        and agrees(TokenTree(lm, prefix))
    ):
        yield CacheKind("tree", window)
    states = StateTree(lm, prefix)
    if agrees(states):
        first, last = (
            size(node.state)
            for node in (states.cached[0], max(states.cached, key=lambda node: node.depth))
        )
        yield CacheKind("states", state_bytes=first, token_bytes=(last - first) // (len(one) - 1))
    yield CacheKind("uncached")


@torch.inference_mode()
def _plain(
    lm: CausalLM, prefix: list[int], sequences: list[list[int]]
) -> tuple[list[float], float]:
    """Return the log-probabilities of sequences, each read alone, and the logits' mean spread."""
    scores = []
    spread = 0.0
    for sequence in sequences:
        with lm.lock:
            logits_NV = (
                lm.network(input_ids=torch.tensor([prefix + sequence], device=lm.device))
                .logits[0]
                .float()
            )
        rows_NV = logits_NV[len(prefix) - 1 : -1].log_softmax(dim=-1)
        scores.append(rows_NV[torch.arange(len(sequence)), torch.tensor(sequence)].sum().item())
        spread = max(spread, rows_NV.std(dim=-1).mean().item())
    return scores, spread


class UncachedScorer:
    """Scores token sequences by any causal model, each from its beginning, once.

    For models that cannot continue from a cache, and for states of which memory holds too few: a
    mixture of attention and recurrent layers may keep 50 MB for each token. Sentences are short,
    and a GPU reads a few of them in about the time of one token.

    Attributes:
        evaluated: Tokens that the model has read; a long prefix, which is shared, is counted for
            each sequence.
        passes: Times that sequences were read; each takes one forward pass or more.
        peak_mb: 0: nothing is kept but a number for each sequence.
    """

    def __init__(self, lm: CausalLM, prefix: Sequence[int]) -> None:
        self._lm = lm
        self._prefix = list(prefix)
        self.longest = lm.window - len(prefix)
        self._known: dict[tuple[int, ...], float] = {(): 0.0}
        self.evaluated = self.passes = 0
        self.peak_mb = 0.0

    def score(self, sequences: Sequence[Sequence[int]]) -> list[float]:
        """Return the natural log-probability of each token sequence after the prefix.

        Raises:
            LanguageModelError: Where the model fails or memory does not hold a single sequence.
        """
        wanted = [tuple(sequence) for sequence in sequences]
        unknown = list({each: None for each in wanted if each not in self._known})
        if unknown:
            self._known |= score_tokens(self._lm, self._prefix, unknown)
            self.passes += 1
            self.evaluated += sum(
                len(self._prefix) + len(read) for read in {each[:-1] for each in unknown}
            )
        return [self._known[each] for each in wanted]

    def retain(self, sequences: Iterable[Sequence[int]]) -> None:
        """Drop nothing: there is no cache."""


class StateTree(TokenTree):
    """A `TokenTree` in which each token has a model's cache of its own, as recurrent layers need.

    New tokens of one depth are read together, after the states of the tokens before them. So a
    query takes one forward pass for each depth that it adds to. Each token takes the memory of a
    whole state. With attention layers beside the recurrent ones states grow from token to token: by
    their growth within a query the cache may pass its bound.
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
    """Return a cache of transformers with a row for each of several caches of one row.

    It shares no memory with them.
    """
    return _made(states, torch.cat)


def part(cache: Any, row: int) -> Any:
    """Return one row of a cache, with memory of its own."""
    return _made([cache], lambda tensors: tensors[0][row : row + 1].clone())


def size(cache: Any) -> int:
    """Return the bytes of a cache's tensors."""
    return sum(tensor.nbytes for layer in cache.layers for tensor in _tensors(layer))


def _made(caches: Sequence[Any], make: Callable[[list[Tensor]], Tensor]) -> Any:
    """Return a cache in which `make` makes each tensor from those of several similar caches.

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
