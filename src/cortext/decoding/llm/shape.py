"""How the hypotheses of a search can be read by a model: found out by trying, never guessed."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from cortext.decoding.llm.explain import out_of_memory
from cortext.decoding.llm.model import CausalLM
from cortext.decoding.llm.pool import plain_layers
from cortext.decoding.llm.states import StateTree, size
from cortext.decoding.llm.tree import MIB, TokenTree
from cortext.decoding.llm.whole import WholeSequences

SENTENCE_TOKENS = 128
"""So many tokens a sentence may well have.

A model whose layers see fewer after a prefix is not read as a tree.
"""

LEAST_STATES = 64
"""Where memory holds fewer states, they would be read again and again."""


@dataclass(frozen=True)
class Shape:
    """How hypotheses are read.

    Attributes:
        kind: `tree`: all in one cache (`TokenTree`); `states`: each token with a state of its own
            (`StateTree`); `whole`: each hypothesis from its beginning (`WholeSequences`).
        window: Tokens that all layers of the model see, where that is bounded.
        state_bytes: Memory of a state after one token.
        token_bytes: And for each token more.
    """

    kind: str
    window: int | None = None
    state_bytes: int = 0
    token_bytes: int = 0


def scorer(lm: CausalLM, prefix: Sequence[int], cache_mb: float) -> TokenTree | WholeSequences:
    """What scores hypotheses by a model, with the fewest tokens that the model and the memory
    allow.
    """
    found = shape(lm)
    if found.kind == "tree" and (
        found.window is None or found.window >= len(prefix) + SENTENCE_TOKENS
    ):
        return TokenTree(lm, prefix, cache_mb, found.window)
    state_bytes = found.state_bytes + (len(prefix) + SENTENCE_TOKENS // 4) * found.token_bytes
    if found.kind == "states" and cache_mb * MIB >= LEAST_STATES * state_bytes:
        return StateTree(lm, prefix, cache_mb)
    return WholeSequences(lm, prefix)


_shapes: weakref.WeakKeyDictionary[CausalLM, Shape] = weakref.WeakKeyDictionary()
_probing = threading.Lock()


def shape(lm: CausalLM) -> Shape:
    """How a model can read hypotheses.

    Tried out with a few tokens the first time, and remembered.
    """
    with _probing:
        if lm not in _shapes:
            _shapes[lm] = next(_possible(lm))
        return _shapes[lm]


def _possible(lm: CausalLM) -> Iterator[Shape]:
    """What a model can do, the best first.

    Three branches, in two calls, score as each does by itself.
    """
    plain, window = plain_layers(lm.network.config)
    tokens = [lm.vocab_size * (2 * each + 1) // 16 for each in range(8)]
    one, two, three = tokens[:4], [*tokens[:2], *tokens[4:6]], [tokens[6], *tokens[2:5]]
    prefix = lm.prefix()
    expected, spread = _plain(lm, prefix, [one, two, three])
    tolerance = 1e-5 + spread * (5e-3 if lm.network.dtype == torch.float32 else 0.1)

    def agrees(tree: TokenTree) -> bool:
        try:
            found = [*tree.score([one]), *tree.score([three, two])[::-1]]
        except Exception as error:  # whatever a model raises that cannot be read so
            if out_of_memory(error):
                raise
            return False
        return max(abs(a - b) for a, b in zip(found, expected, strict=True)) <= tolerance

    if (
        plain
        and min(lm.window, window or lm.window) >= len(prefix) + len(one)
        and agrees(TokenTree(lm, prefix))
    ):
        yield Shape("tree", window)
    states = StateTree(lm, prefix)
    if agrees(states):
        first, last = (
            size(node.state)
            for node in (states.cached[0], max(states.cached, key=lambda node: node.depth))
        )
        yield Shape("states", state_bytes=first, token_bytes=(last - first) // (len(one) - 1))
    yield Shape("whole")


@torch.inference_mode()
def _plain(
    lm: CausalLM, prefix: list[int], sequences: list[list[int]]
) -> tuple[list[float], float]:
    """Log-probabilities of sequences, each read alone, and how far the logits of a row are from
    each other.
    """
    scores, spread = [], 0.0
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
