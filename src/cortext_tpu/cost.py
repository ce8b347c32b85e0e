"""Costs of one run of a program that XLA has optimised: operations, traffic, exchanges, loops.

The body of a loop counts once per trip. Operations are those of matrix products (a multiplication
and an addition are two). Traffic is that of the device's main memory (HBM); arrays that stay on the
chip have none.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from dataclasses import dataclass, field

import numpy as np

from cortext_tpu.hlo import Computation, HloArray, Instruction, Program, trip_count

COLLECTIVES = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute")
_NO_TRAFFIC = {
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "while",
    "conditional",
    "call",
    "after-all",
    "partition-id",
    "replica-id",
    "iota",
    "opt-barrier",
    "add-dependency",
}
_SLICES = ("dynamic-slice", "slice", "gather")
_ALIAS = re.compile(r"\{(\d+)\}: \((\d+), \{\}\)")
_CYCLES = re.compile(r'"estimated_cycles":"(\d+)"')


@dataclass
class Loop:
    """A loop of the program.

    Attributes:
        name: Name of the instruction.
        source: Operation of JAX that it comes from.
        trips: Number of trips each time that it is entered; None if the text does not tell, which
            counts as one.
        entered: Number of times that it is entered.
        flops: Operations of all trips.
        hbm_bytes: Traffic of all trips.
        cycles: Cycles of all trips.
    """

    name: str
    source: str
    trips: int | None
    entered: int
    flops: float = 0
    hbm_bytes: float = 0
    cycles: float = 0


@dataclass
class Exchange:
    """Exchanges of one kind.

    Attributes:
        kind: One of `COLLECTIVES`.
        overlapped: True if the device computes at the same time.
        n_bytes: Bytes that each device sends.
        number: Number of exchanges.
    """

    kind: str
    overlapped: bool
    n_bytes: int = 0
    number: int = 0


@dataclass
class Cost:
    """Costs of one run of a program.

    Attributes:
        flops: Operations of matrix products, by the type of their operands (`bf16`, `f32`, ...).
        hbm_bytes: Bytes read from and written to the device's main memory.
        exchanges: Exchanges between devices, by kind, and by whether the device computes meanwhile.
        cycles: Cycles of the schedule as the compiler estimates them; 0 if it does not.
        loops: Loops, each before the loops inside it.
    """

    flops: Counter[str] = field(default_factory=Counter)
    hbm_bytes: float = 0
    exchanges: dict[tuple[str, bool], Exchange] = field(default_factory=dict)
    cycles: float = 0
    loops: list[Loop] = field(default_factory=list)

    @property
    def iterations(self) -> int:
        """Number of runs of loop bodies, which follow each other."""
        return sum((loop.trips or 1) * loop.entered for loop in self.loops)


def count(program: Program) -> Cost:
    """Count the costs of one run of a program; every branch of a conditional counts."""
    cost = Cost()
    _add(program, program.entry, 1, cost)
    return cost


def _add(program: Program, computation: Computation, times: int, cost: Cost) -> None:
    for instruction in computation.instructions.values():
        if instruction.opcode == "while":
            _add_loop(program, computation, instruction, times, cost)
            continue
        if instruction.opcode in ("call", "conditional"):
            names = re.findall(r"[\w.\-]+", instruction.attribute("branch_computations"))
            for name in names or [instruction.attribute("to_apply")]:
                _add(program, program.computations[name], times, cost)
            continue
        for inner, within in _products(program, computation, instruction):
            cost.flops[precision(inner, within)] += times * product_flops(inner, within)
        cost.hbm_bytes += times * traffic(program, computation, instruction)
        cycles = _CYCLES.search(instruction.attributes)
        cost.cycles += times * int(cycles[1]) if cycles else 0
        _add_exchange(program, computation, instruction, times, cost)


def _add_exchange(
    program: Program, computation: Computation, instruction: Instruction, times: int, cost: Cost
) -> None:
    kind = instruction.opcode.removesuffix("-start")
    overlapped = instruction.opcode.endswith("-start")
    given = [
        array for name in instruction.operands for array in computation.instructions[name].arrays
    ]
    if (inner := _exchange_in(program, instruction)) is not None:
        if _continues(program, instruction, inner):
            return
        kind = inner.opcode
        overlapped = _starts(program, instruction)
        inside = program.called(instruction)
        given = [array for name in inner.operands for array in inside.instructions[name].arrays]
    if kind in COLLECTIVES:
        exchange = cost.exchanges.setdefault((kind, overlapped), Exchange(kind, overlapped))
        exchange.n_bytes += times * sum(array.n_bytes for array in given)
        exchange.number += times


def _exchange_in(program: Program, instruction: Instruction) -> Instruction | None:
    """Return the exchange in a fusion."""
    if instruction.opcode != "fusion":
        return None
    inside = program.called(instruction).instructions.values()
    return next((each for each in inside if each.opcode in COLLECTIVES), None)


def _starts(program: Program, instruction: Instruction) -> bool:
    """Tell whether a fusion begins an exchange that continues in later fusions."""
    inside = program.called(instruction).instructions.values()
    return any("AsyncCollectiveStart" in each.attributes for each in inside)


def _continues(program: Program, instruction: Instruction, inner: Instruction) -> bool:
    """Tell whether a fusion continues or ends an exchange that another fusion has begun."""
    return "chain_id" in inner.attributes and not _starts(program, instruction)


def _add_loop(
    program: Program, parent: Computation, instruction: Instruction, times: int, cost: Cost
) -> None:
    trips = trip_count(program, parent, instruction)
    source = re.search(r'op_name="([^"]*)"', instruction.attributes)
    loop = Loop(instruction.name, source[1] if source else "", trips, times)
    cost.loops.append(loop)
    before = cost.flops.total(), cost.hbm_bytes, cost.cycles
    runs = times * (1 if trips is None else trips)
    _add(program, program.called(instruction, "body"), runs, cost)
    _add(program, program.called(instruction, "condition"), runs, cost)
    loop.flops = cost.flops.total() - before[0]
    loop.hbm_bytes = cost.hbm_bytes - before[1]
    loop.cycles = cost.cycles - before[2]


def _products(
    program: Program, computation: Computation, instruction: Instruction
) -> list[tuple[Instruction, Computation]]:
    """Return the instruction, or the matrix products in its fusion, each with its computation."""
    if instruction.opcode in ("dot", "convolution"):
        return [(instruction, computation)]
    if instruction.opcode != "fusion":
        return []
    inner = program.called(instruction)
    return [
        product
        for each in inner.instructions.values()
        for product in _products(program, inner, each)
    ]


def precision(instruction: Instruction, computation: Computation) -> str:
    """Return the wider type of a product's operands; `highest` is added if none is rounded."""
    operands = [computation.operand(instruction, number).arrays[0] for number in (0, 1)]
    widest = max(operands, key=lambda array: array.n_bytes / max(array.size, 1))
    return (
        f"{widest.dtype} highest"
        if "highest" in instruction.attribute("operand_precision")
        else widest.dtype
    )


def product_flops(instruction: Instruction, computation: Computation) -> int:
    """Count the operations of a `dot` or `convolution`: two for each multiplication it needs."""
    left, right = (computation.operand(instruction, number).arrays[0] for number in (0, 1))
    if instruction.opcode == "dot":
        summed = math.prod(left.dims[d] for d in instruction.numbers("lhs_contracting_dims"))
        return 2 * instruction.arrays[0].size * summed
    return _convolution_flops(instruction, left, right)


def _convolution_flops(instruction: Instruction, left: HloArray, right: HloArray) -> int:
    """Return the operations of a convolution, without products with padding or holes.

    The TPU's compiler writes batched products as convolutions. Labels name the dimensions: `b` and
    `f` are batch and features, `i` and `o` the kernel's inputs and outputs, digits are space.
    """
    labels = re.search(r"dim_labels=(\w+)_(\w+)->(\w+)", instruction.attributes)
    assert labels is not None, instruction.attributes
    inputs, kernel, outputs = labels.groups()
    out = instruction.arrays[0]
    taps = 1
    for axis in (label for label in outputs if label.isdigit()):
        n_in = left.dims[inputs.index(axis)]
        n_out = out.dims[outputs.index(axis)]
        taps *= _taps(n_in, n_out, right.dims[kernel.index(axis)], _window(instruction, int(axis)))
    return (
        2
        * taps
        * right.dims[kernel.index("i")]
        * out.dims[outputs.index("b")]
        * out.dims[outputs.index("f")]
    )


def _window(instruction: Instruction, axis: int) -> dict[str, int]:
    """Return the numbers of a convolution's window along one axis."""
    window = {"stride": 1, "pad": 0, "lhs_dilate": 1, "rhs_dilate": 1}
    for name, values in re.findall(r"(\w+)=(\S+)", instruction.attribute("window")):
        if name in window:
            # Padding has two sides; the low side decides.
            window[name] = int(values.split("x")[axis].split("_")[0])
    return window


def _taps(n_in: int, n_out: int, n_kernel: int, window: dict[str, int]) -> int:
    """Count the pairs of an output and a kernel position that meet an input, not padding."""
    at = (
        window["stride"] * np.arange(n_out)[:, None]
        + window["rhs_dilate"] * np.arange(n_kernel)
        - window["pad"]
    )
    inside = (
        (at >= 0) & (at <= (n_in - 1) * window["lhs_dilate"]) & (at % window["lhs_dilate"] == 0)
    )
    return int(inside.sum())


def traffic(program: Program, computation: Computation, instruction: Instruction) -> int:
    """Count the bytes that an instruction moves from and to the device's main memory.

    An array that it slices counts with the slice; an array that it updates, with the written piece.

    Args:
        program: The program.
        computation: The computation that the instruction is in.
        instruction: The instruction.
    """
    opcode, arrays = instruction.opcode, instruction.arrays
    if opcode in _NO_TRAFFIC or opcode.endswith("-done"):
        return 0
    if opcode == "copy-start":  # its arrays are the target, the source, and a token
        return sum(array.n_bytes for array in arrays[:2] if array.space == 0)
    if opcode == "slice-start":  # the source, the target, and a token
        return sum(arrays[1].n_bytes for array in arrays[:2] if array.space == 0)
    outputs, operands = list(range(len(arrays))), list(instruction.operands)
    if (inner := _exchange_in(program, instruction)) is not None:
        # An exchange passes arrays from fusion to fusion; its bytes count where it begins.
        through = {
            int(output): int(operand) for output, operand in _ALIAS.findall(instruction.attributes)
        }
        outputs = [number for number in outputs if number not in through]
        if _continues(program, instruction, inner):
            operands = [
                name for number, name in enumerate(operands) if number not in through.values()
            ]
    moved = sum(_written(program, computation, instruction, number) for number in outputs)
    for operand in dict.fromkeys(operands):
        source = computation.instructions[operand]
        if len(source.arrays) == 1 and source.arrays[0].space == 0:
            moved += _read(program, computation, [instruction], source)
    return moved


def _read(
    program: Program, computation: Computation, users: list[Instruction], source: Instruction
) -> int:
    """Return the bytes of `source` that its users read, which may be parts of a fusion."""
    whole = source.arrays[0].n_bytes
    parts = 0
    for user in users:
        first = user.operands[0] == source.name
        if user.opcode in _SLICES and first:
            parts += user.arrays[0].n_bytes
        elif user.opcode == "dynamic-update-slice" and first:
            continue  # the rest of the array stays where it is
        elif user.opcode == "bitcast" and user.name != computation.root:
            parts += _read(program, computation, computation.users[user.name], user)
        elif user.opcode == "fusion":
            inner = program.called(user)
            for number in (n for n, name in enumerate(user.operands) if name == source.name):
                parameter = inner.instructions[inner.parameters[number]]
                parts += _read(program, inner, inner.users[parameter.name], parameter)
        else:
            return whole
    return min(whole, parts)


def _written(
    program: Program, computation: Computation, instruction: Instruction, number: int
) -> int:
    """Return the bytes of result `number` that an instruction writes to main memory."""
    if instruction.arrays[number].space != 0:
        return 0
    at = instruction
    inside = computation
    while True:
        if at.opcode == "fusion":
            inside = program.called(at)
            at = inside.instructions[inside.root]
        elif at.opcode == "tuple":
            at = inside.operand(at, number)
            number = 0
        elif at.opcode == "bitcast" and at is not instruction:
            at = inside.operand(at, 0)
        elif at.opcode == "get-tuple-element":
            number = int(at.attribute("index"))
            at = inside.operand(at, 0)
        elif at.opcode == "dynamic-update-slice":
            return inside.operand(at, 1).arrays[0].n_bytes
        else:
            return at.arrays[min(number, len(at.arrays) - 1)].n_bytes
