"""The instructions that this processor computes models with, and whether its results are exact."""

from __future__ import annotations

import platform
from functools import cache
from pathlib import Path
from typing import Literal

import numpy as np

from cortext import _native
from cortext.errors import MissingLibrary, RunError, first_line
from cortext.extras import need

EightBits = Literal["int8", "uint8"]
"""Type of 8-bit weights."""


@cache
def products_are_exact(weights: EightBits) -> bool:
    """Return whether ONNX Runtime multiplies 8-bit matrices exactly on this processor.

    Processors without VNNI multiply unsigned inputs by signed weights with an instruction that adds
    two products in 16 bits and saturates: 2 * 255 * 127 does not fit. Weights without sign are
    widened to 16 bits first, and their sums have 32 bits on every processor.

    Args:
        weights: Type of the weights; the inputs are uint8.

    Raises:
        MissingLibrary: Without the extra `onnx`.
        RunError: Where ONNX Runtime does not work.
    """
    columns_KN = np.where(np.arange(16) % 2, 127, -127) * np.ones((64, 1), dtype=np.int64)
    inputs_1K = np.full((1, 64), 255, dtype=np.uint8)
    try:
        products_1N = _multiplied(inputs_1K, columns_KN, weights)
    except MissingLibrary:
        raise
    except Exception as error:  # the runtime's errors have no other common base
        what = f"ONNX Runtime cannot multiply 8-bit matrices: {first_line(error)}"
        raise RunError(what, fix="install it again") from None
    return np.array_equal(products_1N, (inputs_1K - np.int64(1)) @ columns_KN)


def _multiplied(inputs_MK: np.ndarray, weights_KN: np.ndarray, kept_as: EightBits) -> np.ndarray:
    """Return ONNX Runtime's product of inputs with zero point 1 and constant weights."""
    runtime, helper = need("onnxruntime", "onnx"), need("onnx.helper", "onnx")
    numpy_helper, kinds = need("onnx.numpy_helper", "onnx"), helper.TensorProto
    shape, shift = (len(inputs_MK), weights_KN.shape[1]), 128 if kept_as == "uint8" else 0
    arrays = {
        "weights": (weights_KN + shift).astype(kept_as),
        "zero_of_inputs": np.array(1, dtype=np.uint8),
        "zeros_of_weights": np.full(shape[1], shift, dtype=kept_as),
    }
    graph = helper.make_graph(
        [helper.make_node("MatMulInteger", ["inputs", *arrays], ["products"])],
        "products",
        [helper.make_tensor_value_info("inputs", kinds.UINT8, inputs_MK.shape)],
        [helper.make_tensor_value_info("products", kinds.INT32, shape)],
        [numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    opset = helper.make_opsetid("", 18)
    model = helper.make_model(graph, opset_imports=[opset], ir_version=10)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = runtime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    products_MN: np.ndarray = session.run(None, {"inputs": inputs_MK})[0]
    return products_MN


def require_exact_products(weights: EightBits, where: str | Path, fix: str) -> None:
    """Raise RunError where ONNX Runtime's products with 8-bit weights are not exact.

    Args:
        weights: Type of the weights.
        where: The file or run that the error names.
        fix: What the user can do.
    """
    if not products_are_exact(weights):
        what = f"ONNX Runtime's sums of products with {weights} weights saturate on this processor"
        raise RunError(f"{what}, so the logits would be wrong", where=where, fix=fix)


def describe_vectors() -> list[str]:
    """Return a line on the instructions of live steps and one on those of training."""
    lanes = _native.vector_lanes()
    is_arm = platform.machine().lower() in ("aarch64", "arm64")
    name = {16: "AVX-512", 8: "AVX2"}.get(lanes, "NEON" if is_arm else "SSE")
    compiled = "compiled (AVX512-BF16)" if _native.can_run_recurrence() else "torch's operations"
    return [
        f"live steps: {name}, vectors of {lanes} numbers; int8 is exact, as float32 numbers",
        f"training a GRU in bfloat16 on this processor: {compiled}",
    ]


def describe_int8() -> str:
    """Return a line on ONNX Runtime's 8-bit products.

    Raises:
        RunError: Where ONNX Runtime does not work.
    """
    try:
        exact = products_are_exact("uint8")
    except MissingLibrary as error:
        return f"int8 in ONNX Runtime: {error.what}"
    return f"int8 in ONNX Runtime: {'exact' if exact else 'refused, its sums saturate here'}"
