"""The instructions that models are computed with, here and on narrower processors."""

import json
import sys

import pytest
from narrow_processor import PROCESSORS, run_on

from cortext import _native
from cortext.errors import RunError
from cortext_live.steps import processor
from cortext_live.steps.processor import describe_int8, describe_vectors, require_exact_products

CODE = """
import json
import numpy as np
from cortext import _native
from cortext.errors import RunError
from cortext_live.steps.processor import describe_int8, describe_vectors, require_exact_products

def refusal(do, *arguments):
    try:
        do(*arguments)
    except (RunError, ValueError) as error:
        return str(error)

row = np.zeros((1, 48), np.int16)
states = [np.zeros((1, n), np.float32) for n in (16, 16, 64)]
weights = np.zeros((48, 16), np.float32), np.zeros(48, np.float32)
passes = np.array([0, 1]), row, states[0], *weights, states[1], row[:, :16].copy(), states[2], 1
print(json.dumps({
    "lanes": _native.vector_lanes(),
    "wider": [lanes for lanes in (8, 16) if _native.use_vector_lanes(lanes)],
    "signed": refusal(require_exact_products, "int8", "a graph", "export again"),
    "unsigned": refusal(require_exact_products, "uint8", "a graph", "export again"),
    "recurrence": refusal(_native.recurrence_forward, *passes),
    "lines": [*describe_vectors(), describe_int8()],
}))
"""
SATURATES = (
    "a graph: ONNX Runtime's sums of products with int8 weights saturate on this processor,"
    " so the logits would be wrong; export again"
)
LANES = {"avx512": 16, "avx2": 8, "sse": 4}


@pytest.mark.parametrize("name", PROCESSORS)
def test_a_narrower_processor_is_recognised_and_says_what_it_computes(name):
    pytest.importorskip("onnxruntime")
    found = json.loads(run_on(name, CODE))
    lanes = min(LANES[name], _native.vector_lanes())
    vectors = {16: "AVX-512", 8: "AVX2", 4: "SSE"}[lanes]
    # With SSE alone signed weights are widened to 16 bits, too.
    signed = SATURATES if lanes > 4 else None
    assert found["lanes"] == lanes
    assert found["wider"] == [each for each in (8, 16) if each <= lanes]
    assert (found["signed"], found["unsigned"]) == (signed, None)
    assert found["recurrence"] == "this number of units or this processor is not supported"
    live, training, int8 = found["lines"]
    assert (
        live
        == f"live steps: {vectors}, vectors of {lanes} numbers; int8 is exact, as float32 numbers"
    )
    assert training == "training a GRU in bfloat16 on this processor: torch's operations"
    assert int8 == "int8 in ONNX Runtime: exact"


def test_this_processor_says_what_it_computes():
    live, training = describe_vectors()
    assert f"vectors of {_native.vector_lanes()} numbers" in live
    assert ("compiled" in training) == _native.can_run_recurrence()


def test_unsigned_weights_are_exact_here():
    pytest.importorskip("onnxruntime")
    require_exact_products("uint8", "a graph", "export again")
    assert describe_int8() == "int8 in ONNX Runtime: exact"


def test_a_runtime_that_does_not_work_is_one_line(monkeypatch):
    runtime = pytest.importorskip("onnxruntime")
    monkeypatch.setattr(runtime, "InferenceSession", lambda *_, **__: 1 / 0)
    processor.products_are_exact.cache_clear()
    with pytest.raises(
        RunError, match=r"^ONNX Runtime cannot multiply 8-bit matrices: division by zero"
    ):
        describe_int8()


def test_without_the_runtime_the_line_says_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    processor.products_are_exact.cache_clear()
    assert describe_int8() == "int8 in ONNX Runtime: onnxruntime is not installed"
