"""A GRU in training on CUDA: layers side by side, replayed as a CUDA graph.

For cards and sizes that `gru_kernel.py` does not take.

cuDNN starts two kernels for each layer and frame, forwards and backwards. The host needs longer to
start them than the GPU to compute them; a CUDA graph starts them all at once. cuDNN also computes
layer after layer. Here the trials are cut into pieces of frames: a layer takes a piece as soon as
the layer below has finished it, while that layer computes its next piece. As in cuDNN under
autocast, products and states are float16.

The dropout between the layers is torch's own. cuDNN keeps its random numbers in memory that it
replaces at every seed, which a graph would not notice.

Shapes: B trials, P patches, I values in a patch, D hidden units, L layers, G = 3 D gates.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd.function import once_differentiable

PIECE = 32
"""Frames in a piece. On an H100, 8 and 16 were slower."""
STEP = 32
"""Batches are padded to a multiple of so many frames, so that few lengths need a graph."""
MOST_GRAPHS = 8
"""Graphs of a module: each keeps the memory of a training step."""
DTYPE = torch.float16

_GRAPHS: weakref.WeakKeyDictionary[nn.GRU, dict[Any, _Graph | None]] = weakref.WeakKeyDictionary()
"""Graphs of each module by what they were made for; None for something seen once."""


_in_larger = False


@contextmanager
def in_larger_graph() -> Iterator[None]:
    """Within the context, record no graphs: a larger one will hold what runs there."""
    global _in_larger
    before, _in_larger = _in_larger, True
    try:
        yield
    finally:
        _in_larger = before


def graphed(
    module: nn.GRU,
    x_BPI: torch.Tensor,
    state_LBD: torch.Tensor,
    weights: list[list[torch.Tensor]],
    p: float,
) -> tuple[torch.Tensor, torch.Tensor] | None:
    """Run layers of a GRU in float16 on CUDA, from the second time on as a graph.

    Args:
        module: The GRU that the layers belong to.
        x_BPI: Float [B, P, I].
        state_LBD: Float [L, B, D], the first state of each layer.
        weights: Input weights, recurrent weights and both biases of each layer.
        p: Dropout between layers.

    Returns:
        Hidden units float16 [B, P, D], and the state float16 [L, B, D] after P patches and the
        padding to a multiple of `STEP`. None if a graph would be one too many: without one, cuDNN
        is faster.
    """
    n_patches = x_BPI.shape[1]
    x_BPI = F.pad(x_BPI, (0, 0, 0, -n_patches % STEP))
    if _in_larger or (x_BPI.is_cuda and torch.cuda.is_current_stream_capturing()):
        hidden_BPD, state_LBD = layers_side_by_side(x_BPI, state_LBD, weights, p)
        return hidden_BPD[:, :n_patches], state_LBD
    every = [x_BPI, state_LBD, *(weight for layer in weights for weight in layer)]
    key = (
        *(x_BPI.shape, x_BPI.dtype, state_LBD.dtype, p),
        *(tensor.requires_grad for tensor in every),
        *(weight.data_ptr() for weight in every[2:]),
    )
    graphs = _GRAPHS.setdefault(module, {})
    graph = graphs.get(key)
    if graph is None and key in graphs:
        if sum(map(bool, graphs.values())) >= MOST_GRAPHS:
            return None
        graph = graphs[key] = _Graph(every, p)
    graphs.setdefault(key, None)
    if graph is None or graph.in_use():
        hidden_BPD, state_LBD = layers_side_by_side(x_BPI, state_LBD, weights, p)
    else:
        hidden_BPD, state_LBD = _Replay.apply(graph, *every)  # type: ignore[no-untyped-call]
    return hidden_BPD[:, :n_patches], state_LBD


def layers_side_by_side(
    x_BPI: torch.Tensor, state_LBD: torch.Tensor, weights: list[list[torch.Tensor]], p: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run layers of a GRU piece by piece, each layer on a stream of its own.

    See `graphed` for the arguments.
    """
    device = x_BPI.device
    main = torch.cuda.current_stream(device) if device.type == "cuda" else None
    with torch.autocast(device.type, enabled=False):
        pieces = [x_BPI.transpose(0, 1).to(DTYPE).contiguous()]
        states, last = state_LBD.to(DTYPE).unbind(), []
        # Here, so that the weights' gradients arrive on the stream that torch expects.
        rounded = [[weight.to(DTYPE) for weight in own] for own in weights]
        ready = [main.record_event()] if main else []
        for layer, own in enumerate(rounded):
            stream = _streams(device)[layer % N_STREAMS] if main else None
            with torch.cuda.stream(stream):
                pieces, state_BD = _layer(pieces, states[layer], own, p if layer else 0.0, ready)
            last.append(state_BD)
            if main and stream:
                main.wait_stream(stream)
        return torch.cat(pieces).transpose(0, 1), torch.stack(last)


def _layer(
    pieces: list[torch.Tensor],
    state_BD: torch.Tensor,
    weights: list[torch.Tensor],
    p: float,
    ready: list[torch.cuda.Event],
) -> tuple[list[torch.Tensor], torch.Tensor]:
    """Run a layer on the current stream.

    Args:
        pieces: Its input, [P, B, I]: all of it, or the pieces of the layer below.
        state_BD: Its first state.
        weights: Input weights, recurrent weights and both biases.
        p: Dropout of its input.
        ready: Events after which each input is there; replaced by those of the output. Empty on
            a CPU.

    Returns:
        Hidden units [P, B, D] of each piece, and the last state.
    """
    w_ih, *others = weights
    found, done = [], []
    for number, x_PBI in enumerate(pieces):
        if ready:
            torch.cuda.current_stream(x_PBI.device).wait_event(ready[number])
        gates_PBG = F.linear(F.dropout(x_PBI, p) if p else x_PBI, w_ih)
        for piece_PBG in torch.split(gates_PBG, PIECE):
            hidden_PBD, state_BD = _Frames.apply(piece_PBG, state_BD, *others)  # type: ignore[no-untyped-call]
            found.append(hidden_PBD)
            if ready:
                done.append(torch.cuda.current_stream(x_PBI.device).record_event())
    ready[:] = done
    return found, state_BD


class _Frames(torch.autograd.Function):
    """Frames of a layer, with torch's fused kernel for the gates."""

    @staticmethod
    def forward(
        ctx: Any,
        gates_PBG: torch.Tensor,
        state_BD: torch.Tensor,
        w_hh: torch.Tensor,
        b_ih: torch.Tensor,
        b_hh: torch.Tensor,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        fused = torch.ops.aten._thnn_fused_gru_cell
        states, ctx.work = [state_BD], []
        for gates_BG in gates_PBG:
            own_BG = states[-1] @ w_hh.T
            state_BD, work = fused(gates_BG, own_BG, states[-1], b_ih, b_hh)
            states.append(state_BD)
            ctx.work.append(work)
        hidden_PBD = torch.stack(states[1:])
        ctx.save_for_backward(w_hh, states[0], hidden_PBD)
        return hidden_PBD, state_BD

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, d_hidden_PBD: torch.Tensor, d_BD: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        w_hh, first_BD, hidden_PBD = ctx.saved_tensors
        fused = torch.ops.aten._thnn_fused_gru_cell_backward
        d_gates, d_own = [], []
        with torch.autocast(w_hh.device.type, enabled=False):
            for d_hidden_BD, work in zip(d_hidden_PBD.flip(0), reversed(ctx.work), strict=True):
                d_gates_BG, d_own_BG, d_BD, _, _ = fused(d_BD + d_hidden_BD, work, False)
                d_BD = torch.addmm(d_BD, d_own_BG, w_hh)
                d_gates.append(d_gates_BG)
                d_own.append(d_own_BG)
            d_gates_PBG, d_own_PBG = torch.stack(d_gates[::-1]), torch.stack(d_own[::-1])
            before_PBD = torch.cat((first_BD[None], hidden_PBD[:-1]))
            d_w_hh = d_own_PBG.flatten(0, 1).T @ before_PBD.flatten(0, 1)
        return d_gates_PBG, d_BD, d_w_hh, d_gates_PBG.sum((0, 1)), d_own_PBG.sum((0, 1))


N_STREAMS = 16


@lru_cache
def _streams(device: torch.device) -> list[torch.cuda.Stream]:
    """Return the streams of the layers.

    They have a higher priority than the stream on which the next batch is prepared. torch hands
    out a few streams of each priority again and again, and a graph would record that work, too.
    """
    return [torch.cuda.Stream(device, priority=-1) for _ in range(N_STREAMS)]  # type: ignore[no-untyped-call]


class _Graph:
    """The forward and the backward pass of one shape, with the memory that they read and write."""

    def __init__(self, every: list[torch.Tensor], p: float) -> None:
        """Record both passes.

        Args:
            every: Input, first state, and the weights of all layers.
            p: Dropout between layers.
        """
        self.user: weakref.ref[_Use] | None = None
        self.inputs = [tensor.detach().clone() for tensor in every[:2]]
        self.forwards, self.backwards = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph()
        # A thread prepares the next batch meanwhile: its calls are none of the graph's.
        mode, stream = "thread_local", torch.cuda.Stream(every[0].device, priority=-1)  # type: ignore[no-untyped-call]
        with torch.cuda.graph(self.forwards, None, stream, mode):
            # Tensors of their own, whose gradients are computed on the graph's streams.
            own = [tensor.detach() for tensor in (*self.inputs, *every[2:])]
            for mine, tensor in zip(own, every, strict=True):
                mine.requires_grad_(tensor.requires_grad)
            weights = [own[first : first + 4] for first in range(2, len(own), 4)]
            outputs = layers_side_by_side(own[0], own[1], weights, p)
        self.d_outputs = [torch.zeros_like(output) for output in outputs]
        wanted = [tensor for tensor in own if tensor.requires_grad]
        with (
            torch.autocast("cuda", enabled=False),
            torch.cuda.graph(self.backwards, self.forwards.pool(), stream, mode),
        ):
            found = iter(torch.autograd.grad(outputs, wanted, self.d_outputs))
        self.outputs = [output.detach() for output in outputs]
        self.gradients = [next(found) if tensor.requires_grad else None for tensor in own]

    def in_use(self) -> bool:
        """Tell whether a backward pass may still come that needs the memory of the last forward."""
        return self.user is not None and self.user() is not None


class _Use:
    """One forward pass through a graph, until its backward pass."""


class _Replay(torch.autograd.Function):
    """Copy the inputs to where a graph reads them, and replay it."""

    @staticmethod
    def forward(ctx: Any, graph: _Graph, *every: torch.Tensor) -> tuple[torch.Tensor, ...]:
        for mine, tensor in zip(graph.inputs, every, strict=False):
            mine.copy_(tensor)
        graph.forwards.replay()
        ctx.graph, ctx.use = graph, _Use()
        graph.user = weakref.ref(ctx.use)
        return tuple(output.clone() for output in graph.outputs)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *d_outputs: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        graph, ctx.use = ctx.graph, None
        for mine, d_output in zip(graph.d_outputs, d_outputs, strict=True):
            mine.copy_(d_output)
        graph.backwards.replay()
        # Copies: torch keeps the tensors that it gets here as the gradients of the weights.
        return None, *(d if d is None else d.clone() for d in graph.gradients)
