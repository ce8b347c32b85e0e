"""Programs compiled for a TPU that is not there, and for the CPU, against what they cost by
hand.
"""

import pytest

pytestmark = pytest.mark.tpu
pytest.importorskip("torchax", reason="run `make test-tpu`")

import jax
import jax.numpy as jnp

from cortext.errors import CortextError
from cortext_bench.tpu_compile import bench_tpu_compile
from cortext_tpu import compile as tpu_compile
from cortext_tpu.compile import Target
from cortext_tpu.cost import count
from cortext_tpu.hlo import parse

N_BINS, N_PATCHES, N_FEATURES, PATCH = 102, 23, 64, 14 * 64  # (102 - 14) / 4 + 1 patches
TRIALS = 2  # of 16 on each of 8 chips
UNITS = {
    "noise_units": 40,
    "noise_layers": 1,
    "clean_units": 48,
    "clean_layers": 2,
    "noisy_units": 32,
}
SETTINGS = (
    "dataset.batch_size=16",
    "model.noisy_layers=1",
    *(f"model.{key}={n}" for key, n in UNITS.items()),
)
SMALL = {"n_bins": N_BINS, "n_features": N_FEATURES, "n_days": 3, "n_labels": 12}


@pytest.fixture(scope="module")
def found():
    """The adversarial model has everything that the baseline has."""
    report = bench_tpu_compile({"small": Target("triple_gru", SETTINGS, **SMALL)})
    assert report["missing"] == {}
    return report["shapes"]["small"]


def test_a_step_takes_the_operations_of_the_formula_within_5_percent(found):
    noise = 120 * PATCH + 120 * 40 + 40 * PATCH
    clean = 144 * PATCH + 3 * 144 * 48 + 48 * 41
    noisy = 96 * PATCH + 96 * 32 + 32 * 41
    # A weight takes 6 operations for each patch; the matrix of a day 4 for each bin, as features
    # need no gradient.
    by_hand = TRIALS * (N_PATCHES * 6 * (noise + clean + noisy) + N_BINS * 4 * N_FEATURES**2)
    assert found["flops"] == pytest.approx(by_hand, rel=0.05)
    assert found["flops_by_formula"] == by_hand


def test_the_loops_over_time_are_found(found):
    # Products with recurrent weights.
    forwards = {
        6 * TRIALS * 40 * 40,
        6 * TRIALS * 48 * 48,
        6 * TRIALS * 32 * 32,
    }
    recurrent = [loop for loop in found["loops"] if loop["flops"] > 0]
    assert {loop["flops"] / N_PATCHES for loop in recurrent} == forwards
    assert len(recurrent) == 2 * 4  # layers, forwards and backwards
    assert {loop["trips"] for loop in found["loops"]} == {N_PATCHES}


def test_most_products_are_in_bfloat16(found):
    assert found["flops_by_precision"]["bf16"] > 0.9 * found["flops"]


def test_gradients_are_exchanged_in_float32_once(found):
    # Two biases of a gate have one gradient, which is exchanged once.
    (exchange,) = found["exchanges"]
    assert exchange["kind"] == "all-reduce"
    assert exchange["n_bytes"] == pytest.approx(4 * found["target"]["parameters"], rel=0.01)


def test_weights_and_moments_are_not_kept_twice(found):
    memory = found["memory"]
    three_times = 3 * 4 * found["target"]["parameters"]
    assert memory["arguments"] >= three_times
    assert memory["aliased"] >= three_times
    assert memory["total"] == sum(
        memory[part] for part in ("arguments", "temporaries", "program")
    ) + (memory["output"] - memory["aliased"])


def test_all_checks_hold(found):
    assert set(found["checks"].values()) == {True}


def test_the_transformers_step_takes_the_operations_of_its_formula_and_passes_all_checks():
    shape = {"n_layers": 2, "n_units": 128, "n_heads": 2, "head_units": 64}
    settings = ("dataset.batch_size=16", *(f"model.{key}={n}" for key, n in shape.items()))
    report = bench_tpu_compile({"small": Target("transformer_t15", settings, **SMALL)})
    assert report["missing"] == {}
    found = report["shapes"]["small"]
    n_patches = 26  # of 4 bins each, the last half empty
    block = 4 * 128 * 128 + 2 * 128 * 512
    weights = 4 * N_FEATURES * 128 + 2 * block + 128 * 41
    pairs = 2 * 2 * 128 * n_patches**2  # of frames: two products in two blocks
    assert found["flops_by_formula"] == 6 * TRIALS * (n_patches * weights + pairs)
    assert set(found["checks"].values()) == {True}


def test_the_compilers_estimate_is_above_the_roofline(found):
    assert found["estimate"]["schedule_ms"] > found["estimate"]["roofline_ms"] > 0


@pytest.mark.parametrize(
    ("topology", "message"),
    [
        (
            "v9:2x4",
            (
                "v9:2x4: libtpu cannot describe the topology: .*; name a topology of TPU v5e, such"
                " as v5e:2x4"
            ),
        ),
        ("v4:2x2x1", "v4:2x2x1: no figures are known for TPU v4; name a topology of TPU v5e"),
    ],
)
def test_a_topology_that_cannot_be_had_is_one_line(topology, message):
    with pytest.raises(CortextError, match=message) as caught:
        bench_tpu_compile({"x": Target("gru", topology=topology)})
    assert "\n" not in str(caught.value)


def test_trials_shorter_than_a_patch_are_one_line():
    with pytest.raises(CortextError, match=r"^trials of 13 bins hold no patch of 14$"):
        bench_tpu_compile({"x": Target("gru", n_bins=13)})


def test_a_step_that_does_not_fit_is_one_line_with_what_helps():
    class Lowered:
        def compile(self):
            raise jax.errors.JaxRuntimeError(
                "RESOURCE_EXHAUSTED: Ran out of memory on HBM (52G of 15.75G).\n\nLargest:"
            )

    with pytest.raises(
        CortextError, match=r"v5e:2x4: .*52G of 15.75G\).; lower dataset.batch_size"
    ) as caught:
        tpu_compile._compiled(Lowered(), Target("gru"))
    assert "\n" not in str(caught.value)


def cost_on_cpu(function, *arguments):
    return count(parse(jax.jit(function).lower(*arguments).compile().as_text()))


def test_a_scan_in_a_scan_is_counted_as_often_as_it_runs():
    weight = jnp.ones((16, 16))

    def inner(x, _):
        return jnp.tanh(x @ weight), None

    def outer(x, _):
        x, _ = jax.lax.scan(inner, x, None, length=5)
        return x @ weight, x.sum()

    cost = cost_on_cpu(lambda x: jax.lax.scan(outer, x, None, length=7), jnp.ones((4, 16)))
    assert cost.flops.total() == 7 * (5 + 1) * 2 * 4 * 16 * 16
    assert sorted((loop.trips, loop.entered) for loop in cost.loops) == [(5, 7), (7, 1)]


def test_a_recurrence_and_its_gradient_take_three_products_a_step():
    def loss(weight, x_PBD):
        def step(h, x):
            return jnp.tanh(x + h @ weight), None

        return jax.lax.scan(step, jnp.ones((4, 16)), x_PBD)[0].sum()

    cost = cost_on_cpu(jax.grad(loss), jnp.ones((16, 16)), jnp.ones((23, 4, 16)))
    assert cost.flops.total() == 23 * 3 * 2 * 4 * 16 * 16


def test_without_loops_the_count_is_xlas_own():
    def function(a, b):
        return jnp.einsum("bij,bjk->bik", a, b)

    compiled = jax.jit(function).lower(jnp.ones((3, 4, 5)), jnp.ones((3, 5, 6))).compile()
    cost, xlas = count(parse(compiled.as_text())), compiled.cost_analysis()
    assert cost.flops.total() == xlas["flops"] == 2 * 3 * 4 * 5 * 6
    assert cost.hbm_bytes == xlas["bytes accessed"] == 4 * 3 * (4 * 5 + 5 * 6 + 4 * 6)


def test_a_loop_that_ends_on_a_condition_is_named():
    def function(x, n):
        return jax.lax.while_loop(lambda at: at[0] < n, lambda at: (at[0] + 1, at[1] * 2), (0, x))

    assert [loop.trips for loop in cost_on_cpu(function, jnp.ones(3), 4).loops] == [None]
