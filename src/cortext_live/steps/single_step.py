"""A network for one step of one trial at a time on a CPU, as live decoding takes them.

Such a step multiplies every matrix with one vector, and takes as long as reading the weights from
memory. Two measures make it faster:

1. The weights of GRUs, linear maps and Transformers are laid out in the order in which
   they are read (`native/step_matrix.hpp`). In bfloat16 they take half the bytes, in int8 a
   quarter (each row of a matrix has a scale of its own). Only the weights are rounded: products,
   sums, and the keys and values of attention are float32.
2. Most of a step of a GRU can be computed before its last bins are known: the products of the
   recurrent state, and of the first columns of a patch. The network is run with NaN for the missing
   bins. Its output is NaN, but its GRUs keep the products and its day layer keeps the bins for the
   step itself. Each is kept under the numbers that it was computed from, so that another day,
   utterance or patch never finds it.

B trials, T bins, C features, P patches, L layers, D hidden units, I inputs or the units of all
heads of an attention, W kept frames, R rows of an array with room for more frames.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeGuard, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from cortext import _native
from cortext.errors import RunError
from cortext.models.inputs import DayLayers
from cortext.models.transformer import (
    MOST_DISTANCE,
    State,
    Transformer,
    TransformerBlock,
    TransformerBlocks,
)

Precision = Literal["fp32", "bf16", "int8"]
"""Number format of the weights."""


def for_single_steps(network: nn.Module, precision: Precision) -> nn.Module:
    """Copy a network, in evaluation mode, so that a step of one trial is faster.

    The copy shares the parameters of `network`, but its new layout holds their present values: copy
    again after training.
    """
    steps: list[_Step] = []

    def kept(step: StepT) -> StepT:
        steps.append(step)
        return step

    network = with_forwards(
        network,
        lambda gru: kept(_GRUStep(gru, precision)),
        lambda linear: kept(_LinearStep(linear, precision)),
        lambda model: (
            kept(_EmbeddingStep(model, precision)),
            kept(_BlocksStep(model.blocks, precision)),
        ),
    )
    choose_prefetch(steps)
    for module in network.modules():
        if _has_day_layers(module) and _is_plain(module):
            vars(module)["inputs"] = _InputsStep(module)
    return network


def computes_ahead(network: nn.Module) -> bool:
    """Tell whether running a network of `for_single_steps` before a patch is complete saves time.

    It does if GRUs hold most of the weights. Other layers (convolutions, attention) keep nothing
    and would compute everything again with every bin.
    """
    in_grus = others = 0
    for module in network.modules():
        size = sum(parameter.numel() for parameter in module.parameters(recurse=False))
        if type(module) is nn.GRU and "forward" in vars(module):
            in_grus += size
        elif not (_has_day_layers(module) or "forward" in vars(module)):
            others += size
    return in_grus > others


def with_forwards(
    network: nn.Module,
    of_gru: Callable[[nn.GRU], Callable[..., Any]],
    of_linear: Callable[[nn.Linear], Callable[..., Any]] | None = None,
    of_transformer: Callable[[Transformer], tuple[_EmbeddingStep, _BlocksStep]] | None = None,
) -> nn.Module:
    """Copy a network in evaluation mode, with other forward passes for some of its layers.

    The copy shares the parameters.

    Args:
        network: The network.
        of_gru: Makes the forward pass of a GRU that is one-directional and batch-first, has biases,
            and is in float32 on a CPU; other GRUs keep their own.
        of_linear: Makes the forward pass of a linear map in float32 on a CPU; None keeps the
            module's own.
        of_transformer: Makes the steps of the embedding and the blocks of a Transformer that is
            causal and in float32 on a CPU; None keeps its own.

    Raises:
        RunError: For a network that cannot be copied.
    """
    shared = {id(tensor): tensor for tensor in [*network.parameters(), *network.buffers()]}
    try:
        network = copy.deepcopy(network, shared).eval()
    # torch refuses to copy a tensor that a module computes from parameters and keeps, as torch's
    # old weight_norm does.
    except RuntimeError as error:
        problem = f"this network cannot be copied: {str(error).splitlines()[0]}"
        raise RunError(
            problem, fix="use torch.nn.utils.parametrizations for weights that are computed"
        ) from None
    compiled: set[nn.Module] = set()
    for module in network.modules():
        if module in compiled:
            continue
        # Not subclasses: their `forward` may differ.
        if of_transformer is not None and isinstance(module, Transformer) and _is_known(module):
            embedding, blocks = of_transformer(module)
            vars(module).update(embed=embedding)
            vars(module.blocks).update(advance=blocks, first_state=blocks.first_state)
            compiled.update(_layers(module))
        elif type(module) is nn.GRU and _is_forward(module):
            vars(module)["forward"] = of_gru(module)
        elif of_linear is not None and type(module) is nn.Linear and _is_plain(module):
            vars(module)["forward"] = of_linear(module)
    return network


def _has_day_layers(module: nn.Module) -> TypeGuard[DayLayers]:
    return (
        isinstance(module, DayLayers)
        and module.has_days
        and type(module).inputs is DayLayers.inputs
    )


def _is_forward(module: nn.GRU) -> bool:
    return module.batch_first and module.bias and not module.bidirectional and _is_plain(module)


def _is_known(model: Transformer) -> bool:
    """Tell whether all that `_EmbeddingStep` and `_BlocksStep` replace is as they compute it."""
    known = (TransformerBlocks, TransformerBlock, nn.ModuleList, nn.LayerNorm, nn.Linear)
    is_known = type(model).embed is Transformer.embed and model.config.attention == "causal"
    return is_known and all(
        type(module) in known and _is_plain(module) and not module._forward_hooks
        for module in _layers(model)
    )


def _layers(model: Transformer) -> list[nn.Module]:
    embedding = [model.patch_norm, model.embedding, model.embedding_norm]
    return [*embedding, *model.blocks.modules()]


def _is_plain(module: nn.Module) -> bool:
    # A hook may compute the weights anew before each product (torch's old spectral_norm).
    is_float_on_cpu = all(
        p.device.type == "cpu" and p.dtype == torch.float32 for p in module.parameters()
    )
    return is_float_on_cpu and not module._forward_pre_hooks


class _GRUStep:
    """The forward pass of an `nn.GRU`: its own, but for one step of one trial."""

    def __init__(self, module: nn.GRU, precision: Precision) -> None:
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        layers = [
            tuple(
                getattr(module, f"{name}_l{layer}").detach().contiguous().numpy() for name in names
            )
            for layer in range(module.num_layers)
        ]
        self.native = _native.StepGRU(layers, precision)
        self._shape = module.num_layers, module.hidden_size
        self._n_inputs = module.input_size
        self._original = module.forward

    def __call__(
        self, x_BPI: torch.Tensor, state_LBD: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if x_BPI.shape[:2] != (1, 1) or state_LBD is None or torch.is_grad_enabled():
            return self._original(x_BPI, state_LBD)
        next_LBD = torch.empty_like(state_LBD, memory_format=torch.contiguous_format)
        self.native.step(
            _vector(x_BPI), state_LBD[:, 0].contiguous().numpy(), next_LBD[:, 0].numpy()
        )
        return next_LBD[-1:], next_LBD

    def read_all(self, number: float) -> None:
        """Multiply all weights with a number; another than before, or sums are used again."""
        state_LD = np.full(self._shape, number, dtype=np.float32)
        self.native.step(
            np.full(self._n_inputs, number, dtype=np.float32), state_LD, np.empty_like(state_LD)
        )


class _LinearStep:
    """The forward pass of an `nn.Linear`: its own, but for one vector."""

    def __init__(self, module: nn.Linear, precision: Precision) -> None:
        self._weight = module.weight.detach()
        self._bias = bias = module.bias
        self.native = _native.StepLinear(
            self._weight.contiguous().numpy(),
            None if bias is None else bias.detach().numpy(),
            precision,
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if x.shape[-1] != x.numel() or torch.is_grad_enabled():
            return F.linear(x, self._weight, self._bias)
        y = x.new_empty(*x.shape[:-1], len(self._weight))
        self.native.apply(_vector(x), y.view(-1).numpy())
        return y

    def read_all(self, number: float) -> None:
        """Multiply all weights with a number."""
        n_outputs, n_inputs = self._weight.shape
        self.native.apply(
            np.full(n_inputs, number, dtype=np.float32), np.empty(n_outputs, dtype=np.float32)
        )


class _EmbeddingStep:
    """`Transformer.embed`: its own, but for one patch of one trial."""

    def __init__(self, model: Transformer, precision: Precision) -> None:
        self.native = _native.StepEmbedding(
            _norm(model.patch_norm),
            _array(model.embedding.weight),
            _array(model.embedding.bias),
            _norm(model.embedding_norm),
            model.patch_norm.eps,
            precision,
        )
        self._day_layer = model.day_layer
        self._n_bins = model.config.patch_size
        self._shape = model.embedding.weight.shape
        self._original = model.embed

    def __call__(self, x_BTC: torch.Tensor, day_B: torch.Tensor) -> torch.Tensor:
        if x_BTC.shape[:2] != (1, self._n_bins) or torch.is_grad_enabled():
            return self._original(x_BTC, day_B)
        x_D = x_BTC.new_empty(self._shape[0], dtype=torch.float32)
        self.native.apply(_vector(self._day_layer(x_BTC, day_B)), x_D.numpy())
        return x_D[None, None]

    def read_all(self, number: float) -> None:
        """Multiply all weights with numbers."""
        n_units, n_inputs = self._shape
        x_I = np.full(n_inputs, number, dtype=np.float32)
        self.native.apply(x_I, np.empty(n_units, dtype=np.float32))


class _BlocksStep:
    """`TransformerBlocks.advance`: its own, but for one frame of one trial.

    Keys and values of a trial's frames lie in an array with room for further frames. A state is a
    view of its latest W rows. Thus a step copies nothing, reads the rows in the order in which they
    lie, and leaves older states as they were. Once in W steps the room is used up, and the latest
    rows move to a new array; so do those of a state that is not of the step before.
    """

    def __init__(self, blocks: TransformerBlocks, precision: Precision) -> None:
        config = blocks.config
        self.native = _native.StepTransformer(
            [_block_arrays(block) for block in blocks.layers],
            _norm(blocks.norm),
            blocks.norm.eps,
            config.n_heads,
            precision,
        )
        self._n_units = config.n_units
        self._n_most = config.context_frames
        self._shape = config.n_layers, config.n_heads * config.head_units
        self._original = blocks.advance
        self._original_first_state = blocks.first_state
        self._state: State | None = None

    def first_state(self, n_trials: int) -> State:
        """Return the state with which trials begin; see `TransformerBlocks`."""
        if n_trials != 1:
            return self._original_first_state(n_trials)
        n_layers, width = self._shape
        # Zeros, because others multiply the rows before the first frame by 0, and 0 * NaN is NaN.
        self._frames_2LRI = np.zeros((2, n_layers, 2 * self._n_most, width), dtype=np.float32)
        self._row, self._n_kept = self._n_most, 0
        return self._view()

    def __call__(self, x_BPD: torch.Tensor, state: State) -> tuple[torch.Tensor, State]:
        if x_BPD.shape[:2] != (1, 1) or torch.is_grad_enabled():
            return self._original(x_BPD, state)
        if state is not self._state or self._row == 2 * self._n_most:
            self._move(state)
        keys_LRI, values_LRI = self._frames_2LRI
        y_BPD = torch.empty_like(x_BPD, dtype=torch.float32)
        self.native.step(
            _vector(x_BPD), keys_LRI, values_LRI, self._row, self._n_kept, y_BPD.view(-1).numpy()
        )
        self._row += 1
        self._n_kept = min(self._n_kept + 1, self._n_most)
        return y_BPD, self._view()

    def _move(self, state: State) -> None:
        """Continue from a state in a new array."""
        keys_LBWI, values_LBWI, n_kept_1B = state
        self.first_state(1)
        self._n_kept = int(n_kept_1B[0, 0])
        for frames_LRI, kept_LBWI in zip(self._frames_2LRI, (keys_LBWI, values_LBWI), strict=True):
            frames_LRI[:, : self._n_most] = kept_LBWI[:, 0].numpy()

    def _view(self) -> State:
        """Return the state after the latest row."""
        latest = self._frames_2LRI[:, :, None, self._row - self._n_most : self._row]
        keys_LBWI, values_LBWI = torch.from_numpy(latest)
        self._state = keys_LBWI, values_LBWI, torch.tensor([[self._n_kept]])
        return self._state

    def read_all(self, number: float) -> None:
        """Multiply all weights with numbers."""
        n_layers, width = self._shape
        keys_LRI, values_LRI = np.empty((2, n_layers, 1, width), dtype=np.float32)
        x_D = np.full(self._n_units, number, dtype=np.float32)
        self.native.step(x_D, keys_LRI, values_LRI, 0, 0, np.empty_like(x_D))


_BLOCK_ARRAYS = (
    *("attention_norm.weight", "attention_norm.bias", "qkv.weight", "distance_bias"),
    *("attended.weight", "attended.bias", "feed_forward_norm.weight", "feed_forward_norm.bias"),
    *("widen.weight", "widen.bias", "narrow.weight", "narrow.bias"),
)


def _block_arrays(block: nn.Module) -> tuple[np.ndarray, ...]:
    arrays = {name: _array(block.get_parameter(name)) for name in _BLOCK_ARRAYS}
    # Frames look only back.
    arrays["distance_bias"] = arrays["distance_bias"][MOST_DISTANCE:]
    return tuple(arrays.values())


def _norm(module: nn.LayerNorm) -> tuple[np.ndarray, np.ndarray]:
    return _array(module.weight), _array(module.bias)


def _array(parameter: torch.Tensor) -> np.ndarray:
    array: np.ndarray = parameter.detach().contiguous().numpy()
    return array


_Step = _GRUStep | _LinearStep | _EmbeddingStep | _BlocksStep
StepT = TypeVar("StepT", bound=_Step)


def choose_prefetch(steps: Sequence[_Step]) -> None:
    """Let weights be fetched by hints where that is faster on this processor.

    All weights are read in turn, as a step reads them, so that none are found in a cache that a
    step would not find them in. An AMD processor (EPYC 9004) does a step in bfloat16 in 1.2 times
    the time with hints; an Intel one (Sapphire Rapids) is reported to do one in float32 in 0.84
    times.
    """

    def seconds(by_hints: bool, number: float) -> float:
        for step in steps:
            step.native.set_prefetch(by_hints)
        began_s = time.thread_time()
        for step in steps:
            step.read_all(number)
        return time.thread_time() - began_s

    # Both in turn, and of each the least: other work on the machine only adds to it.
    taken_s = [(seconds(False, number), seconds(True, -number)) for number in (1.0, 0.5, 0.25, 0.1)]
    without, by_hints = map(min, zip(*taken_s, strict=True))
    for step in steps:
        step.native.set_prefetch(by_hints < without)


class _InputsStep:
    """`DayLayers.inputs` of one patch; it reuses the results of bins of the patch before."""

    def __init__(self, module: DayLayers) -> None:
        self._module = module
        self._original = module.inputs
        self._n_bins = max(module.config.patch_size, 1)
        self._day: int | None = None
        self._layer: Any = None
        self._known: dict[bytes, np.ndarray] = {}

    def __call__(self, x_BTC: torch.Tensor, day_B: torch.Tensor | None) -> torch.Tensor:
        if day_B is None or x_BTC.shape[:2] != (1, self._n_bins) or torch.is_grad_enabled():
            return self._original(x_BTC, day_B)
        self._use(int(day_B[0]))
        bins = [(x_C.tobytes(), x_C) for x_C in x_BTC[0].float().contiguous().numpy()]
        self._known = {
            bits: self._known[bits] if bits in self._known else self._computed(x_C)
            for bits, x_C in bins
        }
        return torch.from_numpy(np.concatenate([self._known[bits] for bits, _ in bins]))[None, None]

    def _use(self, day: int) -> None:
        if day != self._day:
            weight_CC, bias_C = (
                p[day].detach() for p in (self._module.day_weight, self._module.day_bias)
            )
            self._layer = _native.StepLinear(
                weight_CC.T.contiguous().numpy(), bias_C.contiguous().numpy(), "fp32"
            )
            self._day = day
            self._known = {}

    def _computed(self, x_C: np.ndarray) -> np.ndarray:
        y_C = np.empty_like(x_C)
        self._layer.apply(x_C, y_C)
        if self._module.config.input_network.day_layer == "softsign":
            y_C /= 1 + np.abs(y_C)
        if self._module.read_in is not None:
            y_C = self._module.read_in(torch.from_numpy(y_C)).numpy()
        return y_C


def _vector(x: torch.Tensor) -> object:
    return x.detach().float().reshape(-1).contiguous().numpy()
