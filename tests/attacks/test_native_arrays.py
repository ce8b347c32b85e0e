"""Attacks on the compiled steps and recurrences of networks.

Arrays of other shapes, types and addresses.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from native_attacks import Attack, check_native, odd

from cortext import _native

NAN, INFINITE, F32 = math.nan, math.inf, np.float32


def gru(
    n_units: int = 4, n_inputs: int = 3, n_layers: int = 2, **changed_shapes: Any
) -> tuple[Any, dict[str, Any]]:
    """A stack of layers, and a step's arrays, some of another shape."""
    zeros, layers = np.float32(np.zeros(1)).dtype, []
    for layer in range(n_layers):
        width = n_units if layer else n_inputs
        shapes = [(3 * n_units, width), (3 * n_units, n_units), (3 * n_units,), (3 * n_units,)]
        layers.append(tuple(np.zeros(shape, zeros) for shape in shapes))
    arrays = {
        "x": (n_inputs,),
        "state_LD": (n_layers, n_units),
        "next_state_LD": (n_layers, n_units),
    } | changed_shapes
    return layers, {
        name: np.zeros(shape, zeros) if isinstance(shape, tuple) else shape
        for name, shape in arrays.items()
    }


def step(**changes: Any) -> None:
    layers, arrays = gru(**changes)
    _native.StepGRU(layers, "fp32").step(**arrays)


def spoilt_layer(number: int, shape: tuple[int, ...], kept_as: str = "fp32") -> None:
    """A stack one of whose arrays has another shape."""
    layers, arrays = gru()
    layer = list(layers[1])
    layer[number] = np.zeros(shape, np.float32)
    _native.StepGRU([layers[0], tuple(layer)], kept_as).step(**arrays)


def linear(
    weight: Any, bias: Any = None, kept_as: Any = "fp32", x: Any = None, y: Any = None
) -> None:
    layer = _native.StepLinear(weight, bias, kept_as)
    layer.apply(
        np.zeros(weight.shape[1], np.float32) if x is None else x,
        np.zeros(len(weight), np.float32) if y is None else y,
    )


UNITS_IN, ALL_HEADS, WIDE = 3, 4, 5
BLOCK = (
    *((UNITS_IN,), (UNITS_IN,), (3 * ALL_HEADS, UNITS_IN), (2,)),
    *((UNITS_IN, ALL_HEADS), (UNITS_IN,), (UNITS_IN,), (UNITS_IN,)),
    *((WIDE, UNITS_IN), (WIDE,), (UNITS_IN, WIDE), (UNITS_IN,)),
)


def frame(
    blocks: Any = None, n_heads: Any = 2, fill: float = 0.0, norm: Any = None, **changes: Any
) -> None:
    """One frame of two blocks over four kept ones, some of it changed."""
    blocks = [[np.full(shape, fill, F32) for shape in BLOCK]] * 2 if blocks is None else blocks
    norm = (np.ones(UNITS_IN, F32),) * 2 if norm is None else norm
    step = _native.StepTransformer([tuple(block) for block in blocks], norm, 1e-5, n_heads, "int8")
    kept = [np.full((2, 6, ALL_HEADS), fill, F32) for _ in range(2)]
    arguments = {
        "x": np.full(UNITS_IN, fill, F32),
        "y": np.zeros(UNITS_IN, F32),
        "row": 4,
        "n_before": 4,
    }
    step.step(**arguments | {"keys_LRI": kept[0], "values_LRI": kept[1]} | changes)


def spoilt_block(number: int, shape: tuple[int, ...]) -> list[Any]:
    block = [np.zeros(shape, F32) for shape in BLOCK]
    return [block, [*block[:number], np.zeros(shape, F32), *block[number + 1 :]]]


def embedding(x: Any, y: Any, fill: float = 0.0, n_units: int = 2) -> None:
    norms = [(np.full(n, fill, F32),) * 2 for n in (3, 2)]
    weight, bias = np.full((n_units, 3), fill, F32), np.full(n_units, fill, F32)
    _native.StepEmbedding(norms[0], weight, bias, norms[1], 1e-5, "bf16").apply(x, y)


def frozen(array: np.ndarray) -> np.ndarray:
    array.setflags(write=False)
    return array


STEPS = [
    *(
        Attack(f"{name} of shape {shape}", lambda t, n=name, s=shape: step(**{n: s}), f"^{name}|arguments")
        for name in ("x", "state_LD", "next_state_LD")
        for shape in ((), (0,), (2,), (3, 1), (1, 4), (2, 3), (0, 4), (2, 2, 4), (10**6,))
        if shape != {"x": (3,)}.get(name)
    ),
    *(
        Attack(f"array {number} of a layer of shape {shape}", lambda t, n=number, s=shape: spoilt_layer(n, s))
        for number in range(4)
        for shape in ((), (0,), (0, 0), (12, 0), (11, 4), (12, 5), (13,), (10**6, 1))
    ),
    Attack("no layers", lambda t: _native.StepGRU([], "fp32"), "layers"),
    Attack("a layer of nothing", lambda t: _native.StepGRU([()], "fp32"), "arguments"),
    Attack("a layer of None", lambda t: _native.StepGRU([(None,) * 4], "fp32"), "arguments"),
    Attack("units of no size", lambda t: step(n_units=0)),
    Attack("inputs of no size", lambda t: step(n_inputs=0)),
    Attack("kept as nothing known", lambda t: linear(np.zeros((2, 2), F32), kept_as="int4"), "kept_as"),
    Attack("a step never begun", lambda t: _native.StepGRU.__new__(_native.StepGRU).step(**gru()[1])),
    Attack("a step begun twice", lambda t: step_begun_twice()),
    Attack("a step in its own state", lambda t: step_in_place()),
    Attack("a step into what must not be written", lambda t: step(next_state_LD=frozen(np.zeros((2, 4), F32))), "arguments"),
    Attack("a step of doubles", lambda t: step(x=np.zeros(3)), "arguments"),
    Attack("a step at an odd address", lambda t: step(x=odd(np.zeros(3, F32)), next_state_LD=odd(np.zeros((2, 4), F32)))),
    Attack("weights at an odd address", lambda t: linear(odd(np.ones((33, 17), F32)))),
    Attack("weights of NaN", lambda t: [linear(np.full((3, 3), NAN, F32), None, kept) for kept in ("fp32", "bf16", "int8")]),
    Attack("weights of inf", lambda t: [linear(np.full((3, 3), INFINITE, F32), None, kept) for kept in ("fp32", "bf16", "int8")]),
    Attack("weights of 3e38", lambda t: [linear(np.full((3, 3), 3e38, F32), None, kept) for kept in ("fp32", "bf16", "int8")]),
    Attack("no weights", lambda t: linear(np.zeros((0, 0), F32)), "weight"),
    Attack("weights of no columns", lambda t: linear(np.zeros((3, 0), F32)), "weight"),
    Attack("a bias too short", lambda t: linear(np.zeros((3, 3), F32), np.zeros(2, F32)), "bias"),
    Attack("an input too long", lambda t: linear(np.zeros((3, 3), F32), x=np.zeros(4, F32)), "^x"),
    Attack("an output too short", lambda t: linear(np.zeros((3, 3), F32), y=np.zeros(2, F32)), "^y"),
    Attack("many threads in one step", lambda t: many_steps()),
    *(
        Attack(f"{name} of a frame of shape {shape}", lambda t, n=name, s=shape: frame(**{n: np.zeros(s, F32)}), f"^({name}|values_LRI)|arguments")
        for name in ("x", "y", "keys_LRI", "values_LRI")
        for shape in ((), (0,), (2,), (4,), (2, 6, 3), (1, 6, 4), (3, 6, 4), (2, 0, 4), (2, 5, 4, 1), (10**6,))
    ),
    *(
        Attack(f"array {number} of a block of shape {shape}", lambda t, n=number, s=shape: frame(spoilt_block(n, s)), "wrong shape|arguments")
        for number in range(12)
        for shape in ((), (0,), (0, 0), (13, 3), (12, 4), (10**6, 1))
    ),
    Attack("no blocks", lambda t: frame([]), "blocks"),
    Attack("a block of nothing", lambda t: frame([()]), "arguments"),
    *(Attack(f"{n} heads", lambda t, n=n: frame(n_heads=n), "n_heads|arguments") for n in (0, -1, 3, 5, 2**63)),
    *(Attack(f"row {row}", lambda t, r=row: frame(row=r), "row|arguments") for row in (-1, 6, 2**63, 3)),
    *(Attack(f"{n} frames before", lambda t, n=n: frame(n_before=n), "n_before|arguments") for n in (-1, 5, 2**63)),
    Attack("a norm of no size", lambda t: frame(norm=(np.zeros(0, F32),) * 2), "norm"),
    Attack("a norm of another size", lambda t: frame(norm=(np.zeros(4, F32),) * 2), "norm"),
    *(Attack(f"a frame of {fill}", lambda t, f=fill: frame(fill=f)) for fill in (NAN, INFINITE, 3e38, 1e-45)),
    Attack("a frame at an odd address", lambda t: frame(x=odd(np.zeros(3, F32)))),
    Attack("a frame into what must not be written", lambda t: frame(y=frozen(np.zeros(3, F32))), "arguments"),
    Attack("frames that must not be written", lambda t: frame(keys_LRI=frozen(np.zeros((2, 6, 4), F32))), "arguments"),
    Attack("a frame in its own place", lambda t: frame_in_place()),
    Attack("keys that are the values", lambda t: frame(**dict.fromkeys(("keys_LRI", "values_LRI"), np.ones((2, 6, 4), F32)))),
    Attack("frames never begun", lambda t: _native.StepTransformer.__new__(_native.StepTransformer).set_prefetch(True)),
    *(
        Attack(f"a patch of shape {x} to units of shape {y}", lambda t, x=x, y=y: embedding(np.zeros(x, F32), np.zeros(y, F32)), "^[xy]|arguments")
        for x, y in (((), (2,)), ((2,), (2,)), ((3,), (3,)), ((3,), (0,)), ((3, 1), (2,)), ((10**6,), (2,)))
    ),
    *(Attack(f"a patch of {f}", lambda t, f=f: embedding(np.full(3, f, F32), np.zeros(2, F32), f)) for f in (NAN, INFINITE, 3e38)),
    Attack("an embedding of another size", lambda t: embedding(np.zeros(3, F32), np.zeros(2, F32), n_units=4), "weight"),
    Attack("an embedding never begun", lambda t: _native.StepEmbedding.__new__(_native.StepEmbedding).set_prefetch(True)),
]  # fmt: skip


def frame_in_place() -> None:
    x = np.ones(UNITS_IN, F32)
    frame(x=x, y=x)


def step_begun_twice() -> None:
    layers, arrays = gru()
    gru_step = _native.StepGRU(layers, "fp32")
    gru_step.step(**arrays)
    gru_step.__init__(layers, "fp32")
    gru_step.step(**arrays)


def step_in_place() -> None:
    layers, arrays = gru()
    _native.StepGRU(layers, "fp32").step(arrays["x"], arrays["state_LD"], arrays["state_LD"])


def many_steps() -> None:
    layers, arrays = gru(64, 64)
    gru_step = _native.StepGRU(layers, "int8")

    def work() -> None:
        for _ in range(300):
            gru_step.step(arrays["x"], arrays["state_LD"], np.zeros((2, 64), F32))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


UNITS, ROWS, TRIALS = _native.recurrence_unit_multiple, 5, 2
FORWARD = {
    "starts": ((TRIALS + 1,), np.int64), "input_NG": ((ROWS, 3 * UNITS), np.int16), "h0_BD": ((TRIALS, UNITS), F32),
    "w_hh_GD": ((3 * UNITS, UNITS), F32), "b_hh_G": ((3 * UNITS,), F32), "h_ND": ((ROWS, UNITS), F32),
    "h_before_ND": ((ROWS, UNITS), np.int16), "gates_N4D": ((ROWS, 4 * UNITS), F32),
}  # fmt: skip
BACKWARD = {
    "starts": FORWARD["starts"], "d_h_ND": FORWARD["h_ND"], "h0_BD": FORWARD["h0_BD"], "w_hh_GD": FORWARD["w_hh_GD"],
    "h_ND": FORWARD["h_ND"], "gates_N4D": FORWARD["gates_N4D"], "d_input_NG": FORWARD["input_NG"],
    "d_recurrent_NG": FORWARD["input_NG"], "d_h0_BD": FORWARD["h0_BD"], "d_b_hh_G": FORWARD["b_hh_G"],
}  # fmt: skip


def recurrence(
    which: dict[str, Any], n_threads: Any = 1, starts: Any = (0, 2, ROWS), **changes: Any
) -> None:
    """A pass, with arrays some of which are others."""
    arrays = {name: np.zeros(shape, kind) for name, (shape, kind) in which.items()}
    arrays |= {"starts": np.array(starts, np.int64)} | changes
    run = _native.recurrence_forward if which is FORWARD else _native.recurrence_backward
    run(*arrays.values(), n_threads)


def wrong_shapes() -> Iterator[Attack]:
    """Every array of both passes in every other shape and type."""
    for direction, which in {"forward": FORWARD, "backward": BACKWARD}.items():
        for name, (shape, kind) in which.items():
            if name == "starts":
                continue
            first, *rest = shape
            shapes = {(), (0,), (0,) * len(shape), (first - 1, *rest), (*shape, 1)}
            shapes |= {tuple(n + 1 for n in shape)}
            shapes |= {(first, 0), (0, *rest), (first, rest[0] - 1)} if rest else set()
            says = "shape|arguments|number of units|starts must"
            wrong = {f"of shape {other}": (np.zeros(other, kind), says) for other in shapes}
            wrong["of doubles"] = np.zeros(shape), "arguments|shape"
            wrong["at an odd address"] = odd(np.zeros(shape, kind)), ""
            for how, (array, says) in wrong.items():
                yield Attack(
                    f"{direction}: {name} {how}",
                    lambda t, w=which, n=name, a=array: recurrence(w, **{n: a}),
                    says,
                )


RECURRENCES = [
    *wrong_shapes(),
    *(
        Attack(f"starts {starts}", lambda t, s=starts: recurrence(FORWARD, starts=s), "starts must")
        for starts in ((), (0,), (0, 5), (0, 2, 4), (1, 2, 5), (0, 6, 5), (0, -1, 5), (0, 2, 2**62), (-(2**63), 0, 5), (0, 2, 3, 5))
    ),
    *(
        Attack(f"{n} threads", lambda t, n=n: recurrence(FORWARD, n), says)
        for n, says in ((-1, "arguments"), (2**64, "arguments"), (2.5, "arguments"), (0, ""), (2**64 - 1, ""))
    ),
    Attack("100,000 trials in as many threads", lambda t: many_trials(100_000)),
    Attack("no trials", lambda t: many_trials(0)),
    Attack("NaN everywhere", lambda t: recurrence(FORWARD, h0_BD=np.full((TRIALS, UNITS), NAN, F32))),
    Attack("no units", lambda t: no_units(), "number of units|wrong shape"),
]  # fmt: skip


def many_trials(n: int) -> None:
    shapes = {
        name: ((n, *shape[1:]) if name not in ("w_hh_GD", "b_hh_G") else shape, kind)
        for name, (shape, kind) in FORWARD.items()
    }
    arrays = {
        name: np.zeros(shape, kind) for name, (shape, kind) in shapes.items() if name != "starts"
    }
    recurrence(FORWARD, n_threads=n, starts=range(n + 1), **arrays)


def no_units() -> None:
    recurrence(
        FORWARD,
        **{
            name: np.zeros((shape[0], 0) if len(shape) == 2 else (0,), kind)
            for name, (shape, kind) in FORWARD.items()
            if name != "starts"
        },
    )


def test_a_step_refuses_other_arrays() -> None:
    check_native(STEPS)


@pytest.mark.skipif(not _native.can_run_recurrence(), reason="the processor has no AVX512-BF16")
def test_a_recurrence_refuses_other_arrays() -> None:
    check_native(RECURRENCES)
