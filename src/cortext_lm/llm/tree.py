"""Sentences that begin alike, scored by a causal language model that reads each token once.

A tree holds the tokens of all hypotheses, and one cache the keys and values of its tokens in the
order in which they came. A forward pass reads the new tokens of all hypotheses at once: each has
its depth as its position, and sees its ancestors and itself. Speculative decoding verifies trees of
guesses in the same way (SpecInfer, arXiv 2305.09781). Here the tree lives as long as an utterance,
and loses the branches that the search has left.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cortext.errors import DecodingError
from cortext_lm.llm.pool import FIRST_ROWS, GrowingRows, PoolCache, additive_mask

if TYPE_CHECKING:
    from cortext_lm.llm.model import CausalLM

MIB = 2**20

ROWS_AT_ONCE = 64
"""Rows of scores over the whole vocabulary that are in memory at once."""


class Node:
    """One token after those of its parent. Without a slot it is not in the cache.

    Attributes:
        log_prob: Log-probability of all tokens from the first of the sentence to this one; None:
            not known yet.
        slot: Its row in the cache, or -1.
        last_needed: Number of the last call that needed its row.
        retained: Number of the last call that wanted it kept.
        state: The model's cache of all tokens up to it, in a `StateTree`; else None.
    """

    __slots__ = (
        "children",
        "depth",
        "last_needed",
        "log_prob",
        "parent",
        "retained",
        "slot",
        "state",
        "token",
    )

    def __init__(self, parent: Node | None, token: int, depth: int) -> None:
        self.parent = parent
        self.token = token
        self.depth = depth
        self.children: dict[int, Node] = {}
        self.log_prob: float | None = None
        self.slot = -1
        self.last_needed = 0
        self.retained = 0
        self.state: Any = None

    def free(self) -> None:
        """Give up its row of the cache and its state."""
        self.slot = -1
        self.state = None

    def path(self) -> list[Node]:
        """Return the nodes from below the root to this one."""
        backwards = []
        node = self
        while node.parent is not None:
            backwards.append(node)
            node = node.parent
        return backwards[::-1]


class TokenTree:
    """Log-probabilities of token sequences after a prefix.

    One thread at a time may use it, and nobody after an exception.

    Attributes:
        prefix: Tokens before every sequence; at least one.
        cache_mb: Bound on the memory of the cache, in MiB; a single sequence may pass it.
        window: Tokens that all layers see, of `cache_kind`; None: all in the model's window.
        longest: Most tokens that a sequence can have.
        evaluated: Tokens that the model has read, the prefix and repeated readings included.
        passes: Forward passes.
        peak_mb: The most memory that the cache has held.
    """

    def __init__(
        self,
        lm: CausalLM,
        prefix: Sequence[int],
        cache_mb: float = 512.0,
        window: int | None = None,
    ) -> None:
        if not len(prefix):
            raise DecodingError("a token tree needs a prefix of at least one token")
        self._lm = lm
        self._prefix = list(prefix)
        self.longest = min(lm.window, window or lm.window) - len(prefix)
        self._cache_bytes = int(cache_mb * MIB)
        self._first = self._rows_before()
        self._root = Node(None, self._prefix[-1], len(prefix) - 1)
        self._root.log_prob = 0.0
        self._root.slot = self._first
        self._cached: list[Node] = [self._root]
        self._cache = PoolCache()
        self._outputs = GrowingRows()
        self._totals = GrowingRows()
        self._most = FIRST_ROWS
        self._calls = self.evaluated = self.passes = 0
        self.peak_mb = 0.0

    @torch.inference_mode()
    def score(self, sequences: Sequence[Sequence[int]]) -> list[float]:
        """Return the natural log-probability of each token sequence after the prefix.

        Raises:
            DecodingError: For a sequence that the model's window does not hold.
        """
        self._calls += 1
        if not self.passes:
            self._read_prefix()
        ends = [self._node(sequence) for sequence in sequences]
        unknown = sorted(
            {id(node): node for node in ends if node.log_prob is None}.values(),
            key=lambda n: n.depth,
        )
        while unknown:
            group, new = self._group(unknown)
            if new:
                self._evaluate(new)
            self._fill(group)
            unknown = unknown[len(group) :]
        return [float(node.log_prob or 0.0) for node in ends]

    @torch.inference_mode()
    def retain(self, sequences: Iterable[Sequence[int]]) -> None:
        """Forget all nodes that are on no path of these sequences."""
        self._calls += 1
        self._root.retained = self._calls
        for sequence in sequences:
            node = self._found(sequence)
            while node.retained != self._calls and node.parent:
                node.retained = self._calls
                node = node.parent
        stack = [self._root]
        while stack:
            node = stack.pop()
            for token in [
                token for token, child in node.children.items() if child.retained != self._calls
            ]:
                del node.children[token]
            stack.extend(node.children.values())
        for node in self._cached:
            if node.retained != self._calls:
                node.free()
        dead = sum(node.slot < 0 for node in self._cached)
        if dead > max(FIRST_ROWS // 4, len(self._cached) // 2):
            self._compact()

    @property
    def cached(self) -> list[Node]:
        """The nodes whose memory is at hand, the root first."""
        return [node for node in self._cached if node.slot >= 0]

    @property
    def n_cached(self) -> int:
        """Rows in the cache that are in use, the prefix's included."""
        return self._first + sum(node.slot >= 0 for node in self._cached)

    @property
    def cache_bytes(self) -> int:
        """Memory that the cache holds."""
        return sum(rows.capacity * rows.row_bytes for rows in self._rows())

    def _found(self, sequence: Sequence[int]) -> Node:
        """Return the node of a sequence's longest beginning in the tree."""
        node = self._root
        for token in sequence:
            child = node.children.get(token)
            if child is None:
                break
            node = child
        return node

    def _node(self, sequence: Sequence[int]) -> Node:
        if len(sequence) > self.longest:
            raise DecodingError(
                f"a hypothesis has {len(sequence)} tokens, and the model's window has room for"
                f" {self.longest}"
            )
        node = self._root
        for token in sequence:
            child = node.children.get(token)
            if child is None:
                child = node.children[token] = Node(node, token, node.depth + 1)
            node = child
        return node

    def _rows_before(self) -> int:
        """Return the number of rows before the root's: the prefix's other tokens."""
        return len(self._prefix) - 1

    def _read_prefix(self) -> None:
        self._read([self._prefix], (0, slice(-1, None)), self._cache)
        row_bytes = sum(rows.row_bytes for rows in self._rows())
        self._most = max(1, self._cache_bytes // row_bytes)
        for rows in self._rows():
            rows.most = self._most

    def _group(self, unknown: list[Node]) -> tuple[list[Node], list[Node]]:
        """Return the first nodes without scores whose ancestors fit into the cache.

        The second list has the ancestors to be evaluated.
        """
        needed: set[int] = {id(self._root)}
        group: list[Node] = []
        new: list[Node] = []
        most_nodes = self._most - self._first - 1
        for end in unknown:
            path = [node for node in end.path()[:-1] if id(node) not in needed]
            if group and len(needed) - 1 + len(path) > most_nodes:
                break
            group.append(end)
            for node in path:
                needed.add(id(node))
                node.last_needed = self._calls
                if node.slot < 0:
                    new.append(node)
        self._evict(len(new), needed)
        return group, new

    def _evict(self, n_new: int, needed: set[int]) -> None:
        """Evict leaves from the cache, least recently needed first, until new rows fit."""
        n_used = self._first + len(self._cached)
        if n_used + n_new <= self._most:
            return
        excess = self.n_cached + n_new - self._most
        if excess > 0:
            leaves = _leaves(self._cached)
            while excess > 0:
                spare = sorted(
                    (node for node in leaves if id(node) not in needed),
                    key=lambda node: node.last_needed,
                )
                if not spare:
                    break  # one sequence alone is longer than the bound
                for node in spare[:excess]:
                    node.free()
                excess -= len(spare[:excess])
                leaves = _leaves(self._cached)
        self._compact()

    def _compact(self) -> None:
        self._cached = [node for node in self._cached if node.slot >= 0]
        first = self._first
        slots = torch.tensor(
            [*range(first), *(node.slot for node in self._cached)], device=self._lm.device
        )
        for rows in self._cache.pools:
            rows.keep(slots)
        for rows in (self._outputs, self._totals):
            rows.keep(slots[first:] - first)
        for slot, node in enumerate(self._cached, start=first):
            node.slot = slot

    def _evaluate(self, new: list[Node]) -> None:
        """Read tokens that the cache lacks in one forward pass; each comes after its ancestors."""
        n_used = self._first + len(self._cached)
        for slot, node in enumerate(new, start=n_used):
            node.slot = slot
        device = self._lm.device
        self._read(
            [[node.token for node in new]],
            (0, slice(None)),
            self._cache,
            position_ids=torch.tensor([[node.depth for node in new]], device=device),
            attention_mask=additive_mask(
                self._visible(new, n_used + len(new)).to(device), self._lm.network.dtype
            ),
        )
        self._cached += new

    def _visible(self, new: list[Node], n_slots: int) -> Tensor:
        """Return the slots that new tokens see, their own and their ancestors': [N, n_slots]."""
        visible_NK = torch.zeros((len(new), n_slots), dtype=torch.bool)
        visible_NK[:, : len(self._prefix)] = True
        pairs = [(row, each.slot) for row, node in enumerate(new) for each in node.path()]
        rows, slots = torch.tensor(pairs).T
        visible_NK[rows, slots] = True
        return visible_NK

    def _read(
        self, tokens: list[list[int]], wanted: tuple[Any, Any], cache: Any, **inputs: Tensor
    ) -> None:
        """Have the model read a batch of tokens after a cache, and keep its output.

        At the `wanted` tokens, the hidden states are kept where logits are their products with a
        matrix, else the logits. A state takes far less memory, and one of its logits is a product
        of two rows. The logs of the logits' summed exponentials are kept, too.
        """
        lm = self._lm
        tokens_BT = torch.tensor(tokens, device=self._lm.device)
        with lm.lock:
            network = lm.body if lm.splits else lm.network
            output = network(input_ids=tokens_BT, past_key_values=cache, use_cache=True, **inputs)
            if lm.splits:
                outputs_NF = output.last_hidden_state[wanted]
                totals = [
                    lm.head(part).float().logsumexp(dim=-1)
                    for part in outputs_NF.split(ROWS_AT_ONCE)
                ]
            else:
                outputs_NF = output.logits[wanted].float()
                totals = [outputs_NF.logsumexp(dim=-1)]
        self._outputs.append(outputs_NF)
        self._totals.append(torch.cat(totals)[:, None])
        self.passes += 1
        self.evaluated += tokens_BT.numel()
        self.peak_mb = max(self.peak_mb, self.cache_bytes / MIB)

    def _logits(self, outputs_NF: Tensor, tokens_N: Tensor) -> Tensor:
        """Return the logit of one token by each row of outputs, float32 [N]."""
        if not self._lm.splits:
            return outputs_NF.gather(1, tokens_N[:, None])[:, 0]
        head = self._lm.head
        logits_N: Tensor = (outputs_NF.float() * head.weight[tokens_N].float()).sum(dim=-1)
        return logits_N if head.bias is None else logits_N + head.bias[tokens_N].float()

    def _fill(self, ends: list[Node]) -> None:
        """Compute the scores of nodes and their ancestors from the outputs of their parents."""
        nodes = list(
            {
                id(node): node for end in ends for node in end.path() if node.log_prob is None
            }.values()
        )
        parents = [node.parent for node in nodes if node.parent is not None]
        device = self._lm.device
        rows_N = torch.tensor([parent.slot - self._first for parent in parents], device=device)
        tokens_N = torch.tensor([node.token for node in nodes], device=device)
        logits_N = self._logits(self._outputs.rows[rows_N], tokens_N)
        gains = (logits_N - self._totals.rows[rows_N, 0]).tolist()
        for node, parent, gain in zip(nodes, parents, gains, strict=True):
            assert parent.log_prob is not None
            node.log_prob = parent.log_prob + gain

    def _rows(self) -> list[GrowingRows]:
        return [*self._cache.pools, self._outputs, self._totals]


def _leaves(cached: list[Node]) -> list[Node]:
    """Return the nodes in the cache without a child there."""
    with_children = {id(node.parent) for node in cached if node.slot >= 0}
    return [
        node for node in cached if node.slot >= 0 and node.parent and id(node) not in with_children
    ]
