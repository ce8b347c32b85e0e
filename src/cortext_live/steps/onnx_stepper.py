"""Exported models, stepped in ONNX Runtime.

S bins in a patch, C features, V tokens.
"""

from __future__ import annotations

import zlib
from pathlib import Path

import numpy as np

from cortext.data.conventions import Conventions
from cortext.errors import CortextError, RunError, first_line
from cortext.extras import need
from cortext.files import parse_json_object, read_json
from cortext.models.acoustic import NOT_FINITE, day_of
from cortext.models.card import CARD, Conventional, patch_shape, read_card
from cortext_live.steps.processor import EightBits, require_exact_products
from cortext_live.steps.stepper import check_first_step, check_patch

FILES: dict[str, str] = {"fp32": "model.onnx", "int8": "model.int8.onnx"}
DESCRIPTION = "onnx.json"
INT8_WEIGHTS: EightBits = "uint8"
"""Type of the weights of an int8 graph."""
STATES = "state", "next_state"
"""Stems of the names of the state's inputs and of its outputs."""
CONVENTIONS = "cortext.conventions"
"""Key of the graph's metadata for the conventions of the recordings, as JSON."""


def crc32(content: bytes) -> str:
    """Return the CRC-32 of a file's content as eight hexadecimal digits."""
    return f"{zlib.crc32(content):08x}"


def _of_input(output: str) -> str:
    """Return the name of the state's input that takes an output of the state."""
    return output.replace(STATES[1], STATES[0], 1)


class GraphRunner:
    """A graph in ONNX Runtime, on one thread, with its state.

    Args:
        content: The graph's file.
        where: The file's path, or another name for it in errors.

    Attributes:
        shapes: Shapes of the inputs, by name.
        metadata: Texts that the file has beside the graph, by name.
        state: The recurrent state, by name of the input; empty for the learnt first state.
    """

    def __init__(self, content: bytes, where: str | Path) -> None:
        runtime = need("onnxruntime", "onnx")
        self._where = where
        options = runtime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.log_severity_level = 3
        try:
            # A graph read from bytes cannot refer to other files.
            self._session = runtime.InferenceSession(
                content, options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # the runtime's errors have no other common base
            problem = f"ONNX Runtime cannot read it: {error}"
            raise RunError(problem, where=where, fix="export the run again") from None
        self._outputs = [output.name for output in self._session.get_outputs()]
        self.shapes = {value.name: value.shape for value in self._session.get_inputs()}
        outputs = {value.name: value.shape for value in self._session.get_outputs()[1:]}
        # Without its output, an input would keep its default: each step would begin a trial.
        first = {value.name: value.shape for value in self._session.get_overridable_initializers()}
        if {_of_input(name): shape for name, shape in outputs.items()} != first:
            problem = f"the graph takes the state {first}, and gives the next one as {outputs}"
            raise RunError(problem, where=where, fix="export the run again")
        self.metadata: dict[str, str] = self._session.get_modelmeta().custom_metadata_map
        self.state: dict[str, np.ndarray] = {}

    def step(self, bins_SC: np.ndarray, day: int) -> np.ndarray:
        """Compute the logits float32 [V] of a patch, and keep the state for the next one."""
        given = {"features": bins_SC[None], "day": np.array([day]), **self.state}
        try:
            logits_BV, *leaves = self._session.run(self._outputs, given)
        except Exception as error:  # an inconsistent graph fails only here
            problem = f"ONNX Runtime cannot run it: {first_line(error)}"
            raise RunError(problem, where=self._where, fix="export the run again") from None
        self.state = {
            _of_input(name): leaf for name, leaf in zip(self._outputs[1:], leaves, strict=True)
        }
        logits_V: np.ndarray = logits_BV[0]
        return logits_V


class OnnxStepper(Conventional):
    """A `Stepper` in ONNX Runtime, on one thread.

    Args:
        directory: Directory that `cortext export --format onnx` wrote.
        session: A day that the model knows; `latest` is its last one.
        precision: `fp32` or `int8`.

    Raises:
        RunError: For a directory that is no export, a changed file or an unknown session, and for
            an int8 graph whose products are not exact on this processor.
        MissingLibrary: Without the extra `onnx`.
    """

    def __init__(
        self, directory: str | Path, session: str = "latest", precision: str = "fp32"
    ) -> None:
        directory = Path(directory)
        content, path = _read_graph(directory, precision)
        card = read_card(directory / CARD)
        self.sessions = tuple(card.sessions)
        self.n_features = card.n_features
        self.patch_size, self.patch_stride = patch_shape(card.patch["size"], card.patch["stride"])
        self.pads_last_patch = card.pads_last_patch
        self.smoothing = card.smoothing
        self.conventions = card.conventions
        self._path = path
        self._runner = GraphRunner(content, path)
        _conventions(self._runner, path).require(
            self.conventions,
            mine="the graph",
            theirs=CARD,
            where=path,
            error=RunError,
            fix="the files are not of one export; export the run again",
        )
        needed = [1, self.patch_size, self.n_features]
        if self._runner.shapes.get("features") != needed or "day" not in self._runner.shapes:
            problem = (
                f"the graph reads {self._runner.shapes}; model.json needs features {needed} and"
                " a day"
            )
            raise RunError(
                problem, where=path, fix="the files are not of one export; export the run again"
            )
        self.use(session)
        ones_SC = np.ones((self.patch_size, self.n_features), dtype=np.float32)
        check_first_step(self._runner.step(ones_SC, self._day))
        self.start()

    def use(self, session: str) -> None:
        """See `Stepper`."""
        self.session, self._day = day_of(session, self.sessions)

    def start(self) -> None:
        """See `Stepper`."""
        self._runner.state = {}

    def prepare(self, bins_KC: np.ndarray) -> None:
        """See `Stepper`; it does nothing, because a graph is run as a whole."""

    def step(self, bins_SC: np.ndarray) -> np.ndarray:
        """See `Stepper`."""
        check_patch(self, bins_SC)
        logits_V = self._runner.step(np.ascontiguousarray(bins_SC, dtype=np.float32), self._day)
        if not np.isfinite(logits_V).all():
            raise RunError(f"the model {NOT_FINITE} for this patch", where=self._path)
        return logits_V


def _conventions(runner: GraphRunner, path: Path) -> Conventions:
    """Return the conventions in a graph's metadata; those of the release where it has none."""
    try:
        return Conventions.from_json(parse_json_object(runner.metadata.get(CONVENTIONS, "{}")))
    except (ValueError, CortextError) as error:
        problem = f"the graph's {CONVENTIONS} cannot be read: {first_line(error)}"
        raise RunError(problem, where=path, fix="export the run again") from None


def _read_graph(directory: Path, precision: str) -> tuple[bytes, Path]:
    """Return the graph of a precision, and its path; check `model.json` against `onnx.json`."""
    description = directory / DESCRIPTION
    again = "export the run again with cortext export RUN --format onnx --out DIR"
    try:
        written = read_json(description)
        graphs = written["graphs"]
        card = written["card"]
        expected = {name: graphs[name]["crc32"] for name in FILES if name in graphs}
        if "int8" in graphs and graphs["int8"]["weights"] != INT8_WEIGHTS:
            raise ValueError(graphs["int8"]["weights"])
    except OSError as error:
        raise RunError(
            f"no exported model here: {error.strerror}", where=description, fix=again
        ) from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise RunError(
            "not a description of an exported model", where=description, fix=again
        ) from None
    if precision not in expected:
        fix = (
            "run bf16 with torch"
            if precision == "bf16"
            else f"{again} --int8"
            if precision == "int8"
            else again
        )
        raise RunError(
            f"it has no {precision} graph; found: {', '.join(expected)}", where=directory, fix=fix
        )
    # Another model's card would give wrong days, tokens and patches.
    _read(directory / CARD, card)
    path = directory / FILES[precision]
    if precision == "int8":
        require_exact_products(INT8_WEIGHTS, path, "run fp32")
    return _read(path, expected[precision]), path


def _read(path: Path, checksum: str) -> bytes:
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RunError(
            f"it cannot be read: {error.strerror}", where=path, fix="export the run again"
        ) from None
    if (own := crc32(content)) != checksum:
        problem = f"the file has changed: its checksum is {own}, {checksum} was written"
        raise RunError(problem, where=path, fix="copy the file again, or export the run again")
    return content
