"""Reading OpenFst's binary files: vector transducers with standard (tropical) arcs.

The format, little-endian: the header is a magic number, the types of transducer and arc as counted
strings, version, flags, properties, the start state and the numbers of states and arcs, and symbol
tables if the flags say so. Then each state: its final weight (float32, infinite if it is not
final), the number of its arcs (int64), and the arcs, each of input label, output label (int32),
weight (float32) and next state (int32). Weights are negative natural logs.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cortext.errors import LanguageModelError

_MAGIC = 2125659606
_SYMBOLS_MAGIC = 2125658996
_HAS_INPUT_SYMBOLS = 1
_HAS_OUTPUT_SYMBOLS = 2
_LONGEST_NAME = 4096
_STATE = struct.Struct("<fq")  # a state's head, 12 bytes
_ARC = 16  # bytes of an arc


@dataclass(frozen=True, slots=True, eq=False)
class Fst:
    """A weighted transducer, arcs in the order of their states.

    Attributes:
        inputs, outputs, targets: Labels and next state of each arc, int32 [A].
        start: Number of the start state.
        final: Final weight of each state, float32 [S], inf where it is not final.
        first: Number of the first arc of each state, int64 [S + 1].
        weights: float32 [A].
    """

    start: int
    final: np.ndarray
    first: np.ndarray
    inputs: np.ndarray
    outputs: np.ndarray
    weights: np.ndarray
    targets: np.ndarray

    @property
    def sources(self) -> np.ndarray:
        """The state that each arc leaves, int32 [A]."""
        return np.repeat(np.arange(len(self.final), dtype=np.int32), np.diff(self.first))


def read_fst(path: str | Path) -> Fst:
    """Read a vector transducer with standard arcs.

    Needs about three times the size of the file in memory.

    Raises:
        LanguageModelError: Naming the file for: no OpenFst file, another type of transducer or arc,
            a file that ends early or continues after its last state, and arcs or a start that lead
            to no state.
    """
    path = Path(path)
    try:
        with (
            path.open("rb") as file,
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        ):
            return _Reader(path, content).read()
    except ValueError:
        raise LanguageModelError("is empty", where=path, fix="copy or download it again") from None
    except OSError as error:
        raise LanguageModelError(f"cannot read it: {error.strerror or error}", where=path) from None
    except MemoryError:
        size = path.stat().st_size / 1e9
        fix = "use the pruned G.fst (--grammar G.fst), or a machine with more memory"
        raise LanguageModelError(
            f"too large for the memory here ({size:.1f} GB)", where=path, fix=fix
        ) from None


class _Reader:
    """A reader of a file from a position on, never beyond the end of the file."""

    def __init__(self, path: Path, content: mmap.mmap) -> None:
        self.path = path
        self.content = content
        self.position = 0
        self.size = len(content)

    def error(self, problem: str, fix: str = "copy or download it again") -> LanguageModelError:
        return LanguageModelError(problem, where=self.path, fix=fix)

    def take(self, layout: str) -> int:
        """Return the next number, of a `struct` layout."""
        form = struct.Struct(f"<{layout}")
        if self.position + form.size > self.size:
            raise self.error("the file is truncated: it ends in its header")
        value = form.unpack_from(self.content, self.position)[0]
        self.position += form.size
        return int(value)

    def skip(self, n_bytes: int) -> bytes:
        if not 0 <= n_bytes <= min(_LONGEST_NAME, self.size - self.position):
            raise self.error("damaged: a name in the header is longer than the file")
        self.position += n_bytes
        return self.content[self.position - n_bytes : self.position]

    def name(self) -> str:
        return self.skip(self.take("i")).decode("utf-8", "replace")

    def read(self) -> Fst:
        if self.size < 4 or self.take("i") != _MAGIC:
            raise self.error("no OpenFst file", fix="give the binary G.fst of a Kaldi folder")
        kind = self.name()
        arc = self.name()
        if kind != "vector":
            raise self.error(
                f"a transducer of type {kind!r}; 'vector' is needed",
                "convert it: fstconvert --fst_type=vector",
            )
        if arc != "standard":
            raise self.error(
                f"arcs of type {arc!r}; 'standard' ones are needed",
                "convert it with OpenFst's fstmap",
            )
        _version = self.take("i")
        flags = self.take("i")
        _properties = self.take("Q")
        start = self.take("q")
        n_states = self.take("q")
        _n_arcs = self.take("q")
        for flag in (_HAS_INPUT_SYMBOLS, _HAS_OUTPUT_SYMBOLS):
            if flags & flag:
                self.symbols()
        first = self.states(n_states)
        return self.checked(start, first)

    def symbols(self) -> None:
        """Pass over a symbol table."""
        if self.take("i") != _SYMBOLS_MAGIC:
            raise self.error("damaged: no symbol table where the header announces one")
        self.name()
        self.take("q")
        for _ in range(self.take("q")):
            self.name()
            self.take("q")

    def states(self, n_states: int) -> np.ndarray:
        """Return the number of the first arc of each state, int64 [S + 1].

        -1 states: an unknown number, up to the end of the file.
        """
        if n_states < -1 or n_states * _STATE.size > self.size:
            raise self.error(
                f"damaged: the header announces {n_states} states in {self.size} bytes"
            )
        position = self.position
        first = [0]
        total = 0
        while len(first) <= n_states or (n_states == -1 and position < self.size):
            if position + _STATE.size > self.size:
                raise self.error(
                    f"the file is truncated: it ends before state {len(first) - 1} of {n_states}"
                )
            n_arcs = _STATE.unpack_from(self.content, position)[1]
            position += _STATE.size + n_arcs * _ARC
            if n_arcs < 0 or position > self.size:
                raise self.error(f"truncated or damaged: state {len(first) - 1} has {n_arcs} arcs")
            total += n_arcs
            first.append(total)
        if position != self.size:
            raise self.error(f"damaged: {self.size - position} bytes follow the last state")
        return np.array(first, dtype=np.int64)

    def checked(self, start: int, first: np.ndarray) -> Fst:
        """Gather final weights and arcs, all of four-byte fields, and check where the arcs lead."""
        n_states = len(first) - 1
        n_arcs = int(first[-1])
        fields = np.frombuffer(self.content, "<u4", 3 * n_states + 4 * n_arcs, self.position)
        heads = 3 * np.arange(n_states) + 4 * first[:-1]
        final = fields[heads].view(np.float32)
        inside = np.ones(len(fields), dtype=bool)
        for offset in range(3):
            inside[heads + offset] = False
        arcs = fields[inside].reshape(n_arcs, 4)
        del fields  # the file cannot be closed while an array lies on it
        labels_targets = arcs.view(np.int32)
        weights = arcs[:, 2].copy().view(np.float32)
        inputs, outputs, targets = (labels_targets[:, column].copy() for column in (0, 1, 3))
        if not 0 <= start < n_states:
            raise self.error(f"damaged: the start is state {start} of {n_states}")
        if n_arcs and not (targets.min() >= 0 and targets.max() < n_states):
            raise self.error(f"damaged: an arc leads to a state beyond the {n_states} there are")
        if n_arcs and min(inputs.min(), outputs.min()) < 0:
            raise self.error("damaged: an arc has a negative label")
        if np.isnan(weights).any() or np.isnan(final).any():
            raise self.error("damaged: a weight is no number")
        return Fst(start, final, first, inputs, outputs, weights, targets)
