"""Errors as XLA, JAX and TensorFlow word them, and the one line that users read instead."""

import pytest

from cortext.errors import ConfigError, RunError
from cortext_tpu.explain import explain


class XlaRuntimeError(RuntimeError):
    """As JAX calls it."""


class ResourceExhaustedError(Exception):
    """As TensorFlow calls it."""


HBM = (
    "RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm."
    " Used 18.52G of 15.75G hbm. Exceeded hbm capacity by 2.77G.\n\nTotal hbm usage >= 18.77G:\n   "
    " reserved 258.00M\n"
)


COMPILED = (  # as jax 0.10.2 with libtpu 0.0.42.1 words it when it compiles for a v5e
    "RESOURCE_EXHAUSTED: Ran out of memory on HBM, the total memory required for HLO temporaries"
    " (80.47G) exceeds available HBM (15.75G)."
)


def test_sizes_are_read_from_what_the_compiler_says():
    assert "64, 8 trials a core (it needs 80.47G of 15.75G a core); " in str(
        explain(XlaRuntimeError(COMPILED), 64, 8)
    )


def test_too_large_a_batch_is_named_with_what_to_lower():
    line = str(explain(XlaRuntimeError(HBM), batch_size=256, cores=8))
    assert line.startswith(
        "out of memory: resource exhausted with a batch of 256, 32 trials a core (it needs 18.52G"
        " of 15.75G a core); "
    )
    assert "gradient_accumulation_steps" in line
    assert "dataset.batch_size" in line
    assert "\n" not in line


@pytest.mark.parametrize(
    "error",
    [
        XlaRuntimeError(
            "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1073741824 bytes."
        ),
        ResourceExhaustedError(
            "{{function_node __wrapped__MatMul}} OOM when allocating tensor with shape[32,7168]"
        ),
    ],
)
def test_memory_runs_out_in_many_words(error):
    assert str(explain(error, batch_size=64)).startswith(
        "out of memory: resource exhausted with a batch of 64; "
    )


@pytest.mark.parametrize(
    ("error", "types"),
    [
        (
            TypeError(
                "scan body function carry input and carry output must have equal types, but they differ:\nThe input "
                "carry h has type float32[32,7168] but the corresponding output carry component has type "
                "bfloat16[32,7168], so the dtypes do not match."
            ),
            "f32[32,7168] and bf16[32,7168]",
        ),
        (
            XlaRuntimeError("INVALID_ARGUMENT: Call parameter must match argument; got parameter 0 shape: "
                            "bf16[32,7168], argument shape: f32[32,7168]."),
            "bf16[32,7168] and f32[32,7168]",
        ),
    ],
)  # fmt: skip
def test_two_types_that_meet_are_named(error, types):
    told = explain(error, 256, 8)
    assert isinstance(told, RunError)
    assert str(told).startswith(
        f"two types of numbers meet in the model: {types}; train with --precision fp32"
    )


def test_shapes_that_differ_are_no_clash_of_types():
    assert (
        explain(TypeError("must have equal types: float32[32,7168] and bfloat16[32,768] differ"))
        is None
    )


def test_a_tpu_that_is_held_is_no_broken_one():
    error = RuntimeError(
        "Unable to initialize backend 'tpu': ABORTED: The TPU is already in use by process with"
        " pid 42."
    )
    assert str(explain(error)).startswith("the TPU is in use by process 42; end it")


def test_one_process_for_each_core_is_one_too_many():
    error = RuntimeError(
        "Invalid --2a88_slice_builder_worker_addresses specified. Expected 8 worker addresses,"
        " got 1."
    )
    assert str(explain(error)).startswith(
        "one core instead of 8: this program was started as one of 8 processes; "
    )


def test_a_backend_that_does_not_start_sends_to_the_doctor():
    error = RuntimeError(
        "Unable to initialize backend 'tpu': UNKNOWN: TPU initialization failed: open(/dev/accel0)"
    )
    line = str(explain(error))
    assert line.startswith(
        "the TPU did not start: RuntimeError: Unable to initialize backend 'tpu'"
    )
    assert "cortext doctor" in line


def test_other_errors_are_nobodys():
    assert explain(ValueError("f32[32,7168] is a fine shape")) is None
    assert explain(KeyError("loss")) is None


def test_what_is_one_line_already_stays():
    error = ConfigError("a key is wrong")
    assert explain(error) is error


@pytest.mark.tpu
def test_jax_words_a_clash_in_a_scan_as_it_is_read_here():
    jax = pytest.importorskip("jax", reason="run `make test-tpu`")
    jnp = jax.numpy
    with pytest.raises(TypeError) as caught:
        jax.lax.scan(
            lambda h, x: ((h + x).astype(jnp.bfloat16), h), jnp.zeros((4, 8)), jnp.zeros((3, 4, 8))
        )
    assert str(explain(caught.value)).startswith(
        "two types of numbers meet in the model: f32[4,8] and bf16[4,8]"
    )
