"""A network for one step of one trial at a time on a CPU, as live decoding takes them.

Such a step multiplies every matrix with one vector, and takes as long as reading the weights from
memory. Two measures make it faster:

1. The weights of GRUs and linear maps are laid out in the order in which they are read
   (`native/step_matrix.hpp`). In bfloat16 they take half the bytes, in int8 a quarter (each row of
   a matrix has a scale of its own). Only the weights are rounded: products and sums are float32.
2. Most of a step can be computed before its last bins are known: the products of the recurrent
   state, and of the first columns of a patch. The network is run with NaN for the missing bins. Its
   output is NaN, but its GRUs keep the products and its day layer keeps the bins for the step
   itself. Each is kept under the numbers that it was computed from, so that another day, utterance
   or patch never finds it.

B trials, T bins, C features, P patches, L layers, D hidden units, I inputs.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeGuard

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from cortext import _native
from cortext.errors import RunError
from cortext.models.inputs import DayLayers

Precision = Literal["fp32", "bf16", "int8"]
"""Number format of the weights."""


def for_single_steps(network: nn.Module, precision: Precision) -> nn.Module:
    """Copy a network, in evaluation mode, so that a step of one trial is faster.

    The copy shares the parameters of `network`, but its new layout holds their present values: copy
    again after training.
    """
    steps: list[_GRUStep | _LinearStep] = []

    def kept(step: _GRUStep | _LinearStep) -> Callable[..., Any]:
        steps.append(step)
        return step

    network = with_forwards(
        network,
        lambda gru: kept(_GRUStep(gru, precision)),
        lambda linear: kept(_LinearStep(linear, precision)),
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
) -> nn.Module:
    """Copy a network in evaluation mode, with other forward passes for its GRUs and linear maps.

    The copy shares the parameters.

    Args:
        network: The network.
        of_gru: Makes the forward pass of a GRU that is one-directional and batch-first, has biases,
            and is in float32 on a CPU; other GRUs keep their own.
        of_linear: Makes the forward pass of a linear map in float32 on a CPU; None keeps the
            module's own.

    Raises:
        RunError: For a network that cannot be copied.
    """
    shared = {id(tensor): tensor for tensor in [*network.parameters(), *network.buffers()]}
    try:
        network = copy.deepcopy(network, shared).eval()
    # torch refuses to copy a tensor that a module computes from parameters and keeps, as torch's
    # old weight_norm does.
    except RuntimeError as error:
        what = f"this network cannot be copied: {str(error).splitlines()[0]}"
        raise RunError(
            what, fix="use torch.nn.utils.parametrizations for weights that are computed"
        ) from None
    for module in network.modules():
        # Not subclasses: their `forward` may differ.
        if type(module) is nn.GRU and _is_forward(module):
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


def choose_prefetch(steps: Sequence[_GRUStep | _LinearStep]) -> None:
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
        return y_C


def _vector(x: torch.Tensor) -> object:
    return x.detach().float().reshape(-1).contiguous().numpy()
