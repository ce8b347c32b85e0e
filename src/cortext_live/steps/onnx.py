"""Models as ONNX graphs of one step, for software without torch and for ONNX Runtime.

The graph takes a patch of smoothed features, the day and the recurrent state. It returns logits and
the next state. If no state is given, it takes the learnt first state of an utterance. All numbers
are float32; `day` is int64.

S bins in a patch, C features, V tokens.
"""

from __future__ import annotations

import json
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils._pytree import tree_flatten, tree_leaves, tree_unflatten

import cortext
from cortext.errors import RunError
from cortext.extras import need
from cortext.files import atomic_write
from cortext.models.acoustic import AcousticModel, check_causal, load_model
from cortext.models.card import CARD, patch_shape
from cortext.models.registry import read_output
from cortext_live.steps.onnx_stepper import (
    CONVENTIONS,
    DESCRIPTION,
    FILES,
    INT8_WEIGHTS,
    STATES,
    GraphRunner,
    crc32,
)
from cortext_live.steps.processor import require_exact_products
from cortext_live.steps.single_step import with_forwards

OPSET = 18
FORMAT_VERSION = 1
TOLERANCE = 1e-5
"""Largest difference from torch's logits; it is multiplied by the largest logit above 1."""


@dataclass(frozen=True)
class OnnxExport:
    """Description of an export, the content of `onnx.json`.

    Attributes:
        format_version: Version of this description.
        cortext: Version of cortext.
        kind: Kind of the model.
        opset: ONNX's version of the operations.
        inputs: Shapes of the graph's inputs, by name.
        outputs: Shapes of the graph's outputs, by name.
        card: Checksum of `model.json`.
        graphs: File, checksum and largest difference from torch's logits, by precision; for int8
            also the type of the weights.
        errors: Phoneme errors by precision; None if they were not measured.
    """

    format_version: int
    cortext: str
    kind: str
    opset: int
    inputs: dict[str, list[int]]
    outputs: dict[str, list[int]]
    card: str
    graphs: dict[str, dict[str, Any]]
    errors: dict[str, dict[str, Any]] | None = None


def export_onnx(run: str | Path, out: str | Path, int8: bool = False) -> OnnxExport:
    """Write `model.onnx`, `model.json` and `onnx.json`; check the logits against torch's.

    Args:
        run: Run directory.
        out: Directory to write.
        int8: Also write `model.int8.onnx`, with 8-bit weights and inputs of matrix products
            (dynamic quantisation), which are exact on every processor. Its cost in errors depends
            on the model: measure it with `cortext_live.steps.stepped`.

    Raises:
        MissingLibrary: Without the extra `onnx`.
        RunError: If the model cannot be read or exported, if the graph's logits differ from torch's
            by more than `TOLERANCE`, if 8-bit products are not exact here, or if the directory
            cannot be written.
    """
    need("onnxruntime", "onnx")
    model = load_model(run)
    if int8:
        require_exact_products(INT8_WEIGHTS, run, "export it without int8")
    out = Path(out)
    graph = _graph(model)
    contents = {"fp32": _with_first_state(graph, model)}
    if int8:
        contents["int8"] = _with_first_state(_quantised(graph), model)
    graphs = {}
    for precision, content in contents.items():
        difference, largest = _difference(model, content)
        allowed = TOLERANCE * max(1.0, largest) if precision == "fp32" else np.inf
        if not difference <= allowed:  # so that NaN fails, too
            problem = (
                f"the {precision} graph of this model gives other logits than torch, by up to"
                f" {difference:.2g}"
            )
            raise RunError(
                problem, where=run, fix="its network does something that an export does not capture"
            )
        graphs[precision] = {
            "file": FILES[precision],
            "crc32": crc32(content),
            "largest_difference": difference,
        }
    if int8:
        graphs["int8"]["weights"] = INT8_WEIGHTS
    card = model.card().to_json()
    export = OnnxExport(
        FORMAT_VERSION,
        cortext.__version__,
        model.network.config.kind,
        OPSET,
        {value.name: _dimensions(value) for value in graph.graph.input},
        {value.name: _dimensions(value) for value in graph.graph.output},
        crc32(card),
        graphs,
    )
    for precision, content in contents.items():
        atomic_write(out / FILES[precision], content)
    atomic_write(out / CARD, card)
    return record_errors(out, export, None)


def record_errors(
    out: str | Path, export: OnnxExport, errors: dict[str, dict[str, Any]] | None
) -> OnnxExport:
    """Write `onnx.json` with the phoneme errors of each graph.

    Args:
        out: Directory of the export.
        export: Description of the export.
        errors: Phoneme errors by precision, see `cortext_live.steps.stepped`; None for none.

    Returns:
        The description with the errors.
    """
    export = replace(export, errors=errors)
    atomic_write(Path(out) / DESCRIPTION, json.dumps(asdict(export), indent=2).encode())
    return export


class _Step(nn.Module):
    """One patch of one trial, with the recurrent state as a list of tensors."""

    def __init__(self, model: AcousticModel, structure: Any) -> None:
        super().__init__()
        self.network = with_forwards(model.network, _plain_gru)
        self.columns = model.feature_subset
        self.structure = structure

    def forward(
        self, x_BSC: torch.Tensor, day_B: torch.Tensor, *state: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        if self.columns is not None:
            x_BSC = x_BSC[..., self.columns]
        output = read_output(
            self.network(x_BSC, day_B, tree_unflatten(list(state), self.structure))
        )
        return output.logits[:, 0], *tree_leaves(output.state)


def _plain_gru(module: nn.GRU) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """Return a GRU's forward pass of one step as matrix products, which can be quantised.

    ONNX's own GRU cannot, and is no faster for one step.
    """

    def forward(x_BPI: torch.Tensor, state_LBD: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x_BI = x_BPI[:, 0]
        states = []
        for layer in range(module.num_layers):
            w_ih, w_hh, b_ih, b_hh = (
                getattr(module, f"{name}_l{layer}")
                for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            in_r, in_z, in_n = F.linear(x_BI, w_ih, b_ih).chunk(3, -1)
            rec_r, rec_z, rec_n = F.linear(state_LBD[layer], w_hh, b_hh).chunk(3, -1)
            r = torch.sigmoid(in_r + rec_r)
            z = torch.sigmoid(in_z + rec_z)
            n = torch.tanh(in_n + r * rec_n)
            x_BI = n + z * (state_LBD[layer] - n)
            states.append(x_BI)
        return x_BI[:, None], torch.stack(states)

    return forward


@torch.no_grad()
def _graph(model: AcousticModel) -> Any:
    """Return the model's ONNX graph (a `ModelProto`)."""
    need("onnxscript", "onnx")
    check_causal(model.network)
    if not hasattr(model.network, "first_state"):
        problem = f"a model of kind {model.network.config.kind!r} does not tell its first state"
        raise RunError(problem, fix="give its class a method first_state(n_trials)")
    leaves, structure = tree_flatten(model.network.first_state(1))
    size = _patch(model)[0]
    features = torch.zeros(1, size, model.n_features)
    with _without_warnings():
        program: Any = torch.onnx.export(
            _Step(model, structure).eval(),
            (features, torch.tensor([0]), *leaves),
            input_names=["features", "day", *_state_names(STATES[0], len(leaves))],
            output_names=["logits", *_state_names(STATES[1], len(leaves))],
            opset_version=OPSET,
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    return program.model_proto


@torch.no_grad()
def _with_first_state(graph: Any, model: AcousticModel) -> bytes:
    """Return the graph as a file; its inputs for the state default to the learnt first state.

    Its metadata have the model's conventions where they differ from the release's.
    """
    numpy_helper = need("onnx.numpy_helper", "onnx")
    graph = type(graph).FromString(graph.SerializeToString())
    leaves = tree_leaves(model.network.first_state(1))
    for name, leaf in zip(_state_names(STATES[0], len(leaves)), leaves, strict=True):
        # An initialiser that has the name of an input is its default.
        graph.graph.initializer.append(numpy_helper.from_array(leaf.numpy(), name))
    if differing := model.conventions.to_json():
        text = json.dumps(differing, ensure_ascii=False)
        graph.metadata_props.add(key=CONVENTIONS, value=text)
    content: bytes = graph.SerializeToString()
    return content


def _patch(model: AcousticModel) -> tuple[int, int]:
    return patch_shape(model.network.config.patch_size, model.network.config.patch_stride)


def _state_names(stem: str, n: int) -> list[str]:
    return [stem] if n == 1 else [f"{stem}_{i}" for i in range(n)]


def _dimensions(value: Any) -> list[int]:
    return [dimension.dim_value for dimension in value.type.tensor_type.shape.dim]


def _quantised(graph: Any) -> Any:
    """Return the graph with 8-bit matrix products, the weights scaled by column and without sign.

    See `products_are_exact` for why the weights have no sign.
    """
    quantization = need("onnxruntime.quantization", "onnx")
    copied = type(graph).FromString(graph.SerializeToString())
    # Remove the shapes between nodes: those of the transposed weights would be wrong.
    del copied.graph.value_info[:]
    with tempfile.TemporaryDirectory() as folder, _without_warnings():
        path = Path(folder, "model.onnx")
        quantization.quantize_dynamic(
            copied, path, weight_type=quantization.QuantType.QInt8, per_channel=True
        )
        return _without_sign(type(graph).FromString(path.read_bytes()))


def _without_sign(graph: Any) -> Any:
    """Move the weights of matrix products and their zero points from int8 to uint8, by 128.

    The results are the same integers.
    """
    numpy_helper = need("onnx.numpy_helper", "onnx")
    products = [node for node in graph.graph.node if node.op_type == "MatMulInteger"]
    names = {name for node in products for name in (node.input[1], node.input[3])}
    for tensor in graph.graph.initializer:
        if tensor.name in names:
            moved = (numpy_helper.to_array(tensor).astype(np.int16) + 128).astype(INT8_WEIGHTS)
            tensor.CopyFrom(numpy_helper.from_array(moved, tensor.name))
    return graph


@contextmanager
def _without_warnings() -> Iterator[None]:
    """Silence the warnings of exporting and quantising; none of them concerns these models."""
    disabled = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(disabled)


def _difference(model: AcousticModel, content: bytes, n_patches: int = 12) -> tuple[float, float]:
    """Return the largest difference from torch's logits, and the largest absolute logit.

    Both are taken over random trials of up to three days.
    """
    size, stride = _patch(model)
    rng = np.random.default_rng(0)
    differences = []
    largest = 0.0
    runner = GraphRunner(content, model.network.config.kind)
    for day in sorted({0, len(model.sessions) // 2, len(model.sessions) - 1}):
        x_TC = rng.normal(size=(size + (n_patches - 1) * stride, model.n_features)).astype(
            np.float32
        )
        expected_PV = model.logits(x_TC, model.sessions[day], smooth=False)
        largest = max(largest, float(np.abs(expected_PV).max()))
        runner.state = {}
        for p, logits_V in enumerate(expected_PV):
            stepped_V = runner.step(x_TC[p * stride : p * stride + size], day)
            differences.append(np.abs(stepped_V - logits_V).max())
    return float(np.max(differences)), largest
