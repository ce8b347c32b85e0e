"""A parser of programs that XLA has optimised: computations, and the trips of loops.

`compiled.as_text()` of JAX gives that text. XLA's own cost analysis counts the body of a loop once,
however often it runs; `cortext_tpu.cost` counts its trips.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property

_SHAPE = re.compile(r"([a-z]\w*)\[([\d,<=]*)\](?:\{([^}]*)\})?")
_HEADER = re.compile(r"(ENTRY\s+)?%?([\w.\-]+)\s.*\{\s*$")
_NAME = re.compile(r"\s+(ROOT )?%?([\w.\-]+) = ")
_OPCODE = re.compile(r"\s*([\w\-]+)\(")
_OPERAND = re.compile(r"%([\w.\-]+)")
_SPACE = re.compile(r"S\((\d+)\)")
_TRIPS = re.compile(r'"known_trip_count":\{"n":"(\d+)"\}')
MOST_TRIPS = 100_000
"""Most trips of a loop that are counted; the trips of a longer loop are unknown."""


@dataclass(frozen=True)
class HloArray:
    """An array as the program lays it out.

    Attributes:
        dtype: XLA's name of its type.
        dims: Its dimensions.
        space: 0 for the device's main memory; others are on the chip.
    """

    dtype: str
    dims: tuple[int, ...]
    space: int

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.dims)

    @property
    def n_bytes(self) -> int:
        """Number of bytes without the padding of tiles; tokens and the like have none."""
        if self.dtype == "pred":
            return self.size
        bits = re.match(r"[a-z]+(\d+)", self.dtype)
        return -(-self.size * int(bits[1]) // 8) if bits else 0


@dataclass(frozen=True)
class Instruction:
    """One line of a program.

    Attributes:
        name: Its name.
        opcode: Operation.
        arrays: Results, tuples flattened.
        operands: Names of the instructions that give its operands.
        literal: Value of a constant, as text.
        attributes: The rest of the line.
    """

    name: str
    opcode: str
    arrays: tuple[HloArray, ...]
    operands: tuple[str, ...]
    literal: str
    attributes: str

    def attribute(self, name: str) -> str:
        """Return the value of `name=value`, one word or the text in braces; empty without one."""
        match = re.search(rf"\b{name}=(?:\{{([^}}]*)\}}|%?([\w.\-]+))", self.attributes)
        return (match[1] or match[2] or "") if match else ""

    def numbers(self, name: str) -> tuple[int, ...]:
        """Return the whole numbers in the value of an attribute."""
        return tuple(int(number) for number in re.findall(r"\d+", self.attribute(name)))


@dataclass
class Computation:
    """Instructions by name, in their order, and the name of the root, which gives the result."""

    name: str
    instructions: dict[str, Instruction] = field(default_factory=dict)
    root: str = ""

    @cached_property
    def parameters(self) -> dict[int, str]:
        """Names of the parameters by number."""
        instructions = (i for i in self.instructions.values() if i.opcode == "parameter")
        return {int(instruction.literal): instruction.name for instruction in instructions}

    @cached_property
    def users(self) -> dict[str, list[Instruction]]:
        """Instructions that take an instruction as an operand, by the latter's name."""
        users: dict[str, list[Instruction]] = {name: [] for name in self.instructions}
        for instruction in self.instructions.values():
            for operand in dict.fromkeys(instruction.operands):
                users[operand].append(instruction)
        return users

    def operand(self, instruction: Instruction, number: int) -> Instruction:
        """Return the instruction whose result is an operand."""
        return self.instructions[instruction.operands[number]]


@dataclass
class Program:
    """Computations by name, and the entry, which is run."""

    computations: dict[str, Computation]
    entry: Computation

    def called(self, instruction: Instruction, attribute: str = "calls") -> Computation:
        """Return the computation that an attribute names."""
        return self.computations[instruction.attribute(attribute)]


def parse(text: str) -> Program:
    """Parse an HLO text. Raises ValueError for a text without an entry."""
    computations: dict[str, Computation] = {}
    entry = current = None
    for line in text.splitlines():
        if current is None:
            if header := _HEADER.match(line):
                current = Computation(header[2])
                computations[current.name] = current
                entry = current if header[1] else entry
        elif line.startswith("}"):
            current = None
        elif name := _NAME.match(line):
            current.instructions[name[2]] = _instruction(name[2], line[name.end() :])
            current.root = name[2] if name[1] or not current.root else current.root
    if entry is None:
        raise ValueError("no entry computation in the HLO text")
    return Program(computations, entry)


def _instruction(name: str, text: str) -> Instruction:
    end = _closing(text) if text.startswith("(") else text.index(" ")
    opcode = _OPCODE.match(text, end)
    if opcode is None:
        raise ValueError(f"no operation in the HLO line of {name}: {text[:80]!r}")
    start = opcode.end() - 1
    close = start + _closing(text[start:])
    inside = text[start + 1 : close - 1]
    return Instruction(
        name,
        opcode[1],
        _arrays(text[:end]),
        tuple(_OPERAND.findall(inside)),
        inside.strip(),
        text[close:],
    )


def _closing(text: str) -> int:
    """Return the position after the parenthesis that closes the first one."""
    depth = 0
    for bracket in re.finditer(r"[()]", text):
        depth += 1 if bracket[0] == "(" else -1
        if depth == 0:
            return bracket.end()
    raise ValueError(f"a parenthesis does not close in the HLO text: {text[:80]!r}")


def _arrays(text: str) -> tuple[HloArray, ...]:
    arrays = []
    for dtype, dims, layout in _SHAPE.findall(text):
        space = _SPACE.search(layout)
        sizes = tuple(int(size) for size in dims.replace("<=", "").split(",") if size)
        arrays.append(HloArray(dtype, sizes, int(space[1]) if space else 0))
    return tuple(arrays)


def trip_count(program: Program, parent: Computation, loop: Instruction) -> int | None:
    """Count the trips of a `while`; None if they depend on the program's input.

    XLA for CPUs and GPUs writes the number into the text; XLA for TPUs does not. For a TPU the
    condition and the counters are evaluated, if they consist of constants, additions and
    comparisons, as in `lax.scan` and `fori_loop`.

    Args:
        program: The program.
        parent: The computation that the loop is in.
        loop: The loop's instruction.
    """
    if known := _TRIPS.search(loop.attributes):
        return int(known[1])
    body, condition = program.called(loop, "body"), program.called(loop, "condition")
    start = parent.operand(loop, 0)
    after = body.instructions[body.root]
    if start.opcode != "tuple" or after.opcode != "tuple":
        return None
    scalars = _Scalars(program)
    state: dict[int, int | None] = {}  # values in the loop's tuple, by index

    def at_first(index: int) -> int | None:
        if index not in state:
            state[index] = scalars.value(parent, start.operands[index], lambda _: None)
        return state[index]

    def step(state: dict[int, int | None]) -> dict[int, int | None]:
        return {index: scalars.value(body, after.operands[index], state.get) for index in state}

    scalars.value(condition, condition.root, at_first)
    seen: set[int] = set()
    while new := state.keys() - seen:  # values that the condition depends on, and these in turn
        seen |= new
        for index in new:
            scalars.value(body, after.operands[index], at_first)
    for trips in range(MOST_TRIPS):
        going_on = scalars.value(condition, condition.root, state.get)
        if not going_on:
            return None if going_on is None else trips
        state = step(state)
    return None


class _Scalars:
    """Values of integers and booleans in a program; None if they are not known."""

    def __init__(self, program: Program) -> None:
        self.program = program

    def value(
        self,
        computation: Computation,
        name: str,
        element: Callable[[int], int | None],
        arguments: Sequence[int | None] | None = None,
    ) -> int | None:
        """Evaluate an instruction.

        Args:
            computation: The computation that the instruction is in.
            name: The instruction's name.
            element: Gives the values in the tuple that a loop's computation takes, by index.
            arguments: Arguments of a fused computation.
        """
        instruction = computation.instructions[name]
        opcode = instruction.opcode
        if opcode == "constant":
            literal = {"true": "1", "false": "0"}.get(instruction.literal, instruction.literal)
            return int(literal) if re.fullmatch(r"-?\d+", literal) else None
        if opcode == "parameter":
            return None if arguments is None else arguments[int(instruction.literal)]
        if opcode == "get-tuple-element":
            source = computation.operand(instruction, 0)
            return (
                element(int(instruction.attribute("index")))
                if source.opcode == "parameter"
                else None
            )
        if opcode not in (
            "fusion",
            "copy",
            "bitcast",
            "convert",
            "add",
            "subtract",
            "and",
            "compare",
        ):
            return None
        values = [
            self.value(computation, operand, element, arguments) for operand in instruction.operands
        ]
        if opcode == "fusion":
            inner = self.program.called(instruction)
            return self.value(inner, inner.root, lambda _: None, values)
        if any(value is None for value in values):
            return None
        return self._computed(instruction, [value for value in values if value is not None])

    def _computed(self, instruction: Instruction, values: list[int]) -> int:
        match instruction.opcode:
            case "add":
                return values[0] + values[1]
            case "subtract":
                return values[0] - values[1]
            case "and":
                return values[0] & values[1]
            case "compare":
                return int(
                    getattr(operator, instruction.attribute("direction").lower())(
                        values[0], values[1]
                    )
                )
            case _:
                return values[0]
