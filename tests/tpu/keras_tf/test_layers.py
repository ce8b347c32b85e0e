"""Layers against hand computation, finite sums and `keras.layers.GRU`."""

import numpy as np
import pytest

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow", reason="run `make test-tf`")

import keras

from cortext_tpu.keras_tf import layers
from cortext_tpu.keras_tf.layers import (
    DayAffine,
    GradientReversal,
    GRULayer,
    Patches,
    StepSeeds,
    dropout,
)


def normal(*shape, seed=0):
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def again(layer):
    """The layer made anew from its settings, through the form in which they are saved."""
    return keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(layer))


def test_a_trial_gets_the_affine_map_of_its_day():
    layer = DayAffine(3)
    assert layer.weights == []
    x_BTC, day_B = normal(4, 5, 2), np.array([2, 0, 2, 1], np.int32)
    np.testing.assert_array_equal(layer(x_BTC, day_B), x_BTC)  # it begins as the identity
    weight, bias = normal(3, 2, 2, seed=1), normal(3, 2, seed=2)
    layer.set_weights([weight, bias])
    expected = np.stack([x_BTC[b] @ weight[day] + bias[day] for b, day in enumerate(day_B)])
    np.testing.assert_allclose(layer(x_BTC, day_B), expected, atol=1e-6)
    assert again(layer).n_days == 3


@pytest.mark.parametrize(
    ("size", "stride", "n_bins"), [(14, 4, 31), (6, 3, 12), (2, 5, 13), (4, 4, 11), (1, 1, 3)]
)
def test_patches_are_windows_side_by_side_and_gradients_go_back_to_their_bins(size, stride, n_bins):
    layer = again(Patches(size, stride))
    x_BTC = tf.constant(normal(2, n_bins, 3))
    starts = range(0, n_bins - size + 1, stride)
    expected = np.stack(
        [x_BTC[:, start : start + size].numpy().reshape(2, -1) for start in starts], axis=1
    )
    weights = normal(*expected.shape, seed=1)
    with tf.GradientTape() as tape:
        tape.watch(x_BTC)
        found = layer(x_BTC)
        total = tf.reduce_sum(found * weights)
    np.testing.assert_array_equal(found, expected)
    back = np.zeros(x_BTC.shape, np.float32)
    for number, start in enumerate(starts):
        back[:, start : start + size] += weights[:, number].reshape(2, size, 3)
    np.testing.assert_allclose(tape.gradient(total, x_BTC), back, atol=1e-6)


def test_a_patch_size_of_zero_leaves_single_bins():
    x_BTC = normal(2, 7, 3)
    np.testing.assert_array_equal(Patches(0, 4)(x_BTC), x_BTC)


@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16"])
def test_the_gradient_is_reversed_by_a_strength_that_may_change_without_another_program(policy):
    layer = GradientReversal(dtype=policy)
    x = tf.constant([0.3, -1.7, 1000.3], tf.bfloat16 if policy == "mixed_bfloat16" else tf.float32)

    @tf.function
    def run(x, strength):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layer(x, strength)
        return y, tape.gradient(y, x, output_gradients=tf.constant([1.0, 2.0, -4.0], y.dtype))

    for strength in (0.0, 0.3, 2.0):
        y, gradient = run(x, tf.constant(strength))
        assert y.dtype == x.dtype
        assert bool(tf.reduce_all(y == x))
        expected = tf.cast(-np.float32(strength) * np.array([1.0, 2.0, -4.0], np.float32), x.dtype)
        np.testing.assert_array_equal(tf.cast(gradient, tf.float32), tf.cast(expected, tf.float32))
    assert run.experimental_get_tracing_count() == 1


def outputs_and_gradients(layer, x_BPI, h0_BD, weights):
    with tf.GradientTape() as tape:
        tape.watch((x_BPI, h0_BD))
        hidden_BPD, last_BD = layer(x_BPI, initial_state=h0_BD)
        total = tf.reduce_sum(hidden_BPD * weights[0]) + tf.reduce_sum(last_BD * weights[1])
    variables = [variable.value for variable in layer.trainable_variables]
    return [hidden_BPD, last_BD, *tape.gradient(total, [x_BPI, h0_BD, *variables])]


@pytest.mark.parametrize("gpu", [False, True])
def test_a_gru_layer_is_that_of_keras_and_so_is_every_gradient(gpu, monkeypatch):
    # Where there is one it is Keras's own, too.
    monkeypatch.setattr(layers, "_has_gpu", lambda: gpu)
    x_BPI, h0_BD = tf.constant(normal(3, 9, 5)), tf.constant(normal(3, 4, seed=1))
    weights = normal(3, 9, 4, seed=2), normal(3, 4, seed=3)
    ours = again(GRULayer(4))
    assert ours.weights == []
    ours(x_BPI)
    theirs = keras.layers.GRU(4, return_sequences=True, return_state=True, use_cudnn=False)
    theirs(x_BPI)
    theirs.set_weights(
        [normal(*weight.shape, seed=4 + i) for i, weight in enumerate(theirs.weights)]
    )
    ours.set_weights(theirs.get_weights())
    found = outputs_and_gradients(ours, x_BPI, h0_BD, weights)
    expected = outputs_and_gradients(theirs, x_BPI, h0_BD, weights)
    assert len(found) == 7
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=2e-5)


def test_gates_are_in_float32_where_products_are_in_bfloat16():
    layer = GRULayer(4, dtype="mixed_bfloat16")
    hidden_BPD, _ = layer(normal(3, 9, 5))
    assert hidden_BPD.dtype == tf.bfloat16
    exact = GRULayer(4)
    exact.build((3, 9, 5))
    exact.set_weights(layer.get_weights())
    np.testing.assert_allclose(
        tf.cast(hidden_BPD, tf.float32), exact(normal(3, 9, 5))[0], atol=0.02
    )
    program = tf.function(layer).get_concrete_function(tf.zeros((3, 9, 5)))
    graphs = [
        program.graph,
        *(
            function.graph
            for function in program.graph._functions.values()
            if hasattr(function, "graph")
        ),
    ]
    types = {
        op.type: op.outputs[0].dtype
        for graph in graphs
        for op in graph.get_operations()
        if op.outputs
    }
    assert types["MatMul" if "MatMul" in types else "BatchMatMulV2"] == tf.bfloat16


@pytest.mark.parametrize("jit", [False, True])
def test_dropout_zeroes_its_share_and_keeps_the_mean(jit):
    ones, seeds = tf.ones((200, 500)), StepSeeds(3)

    @tf.function(jit_compile=jit)
    def run(key):
        with seeds.of(key):
            return dropout(ones, 0.4, seeds, training=True)

    found = run(tf.constant(5)).numpy()
    assert set(np.unique(found)) == {np.float32(0), np.float32(1 / 0.6)}
    assert abs((found == 0).mean() - 0.4) < 5 * (0.4 * 0.6 / found.size) ** 0.5
    assert dropout(ones, 0.4, StepSeeds(3), training=False) is ones


def test_dropout_is_a_function_of_seed_and_key_and_differs_from_draw_to_draw():
    def masks(seed, key):
        seeds = StepSeeds(seed)
        with seeds.of(key):
            return [dropout(tf.ones((50,)), 0.5, seeds, training=True).numpy() for _ in range(2)]

    first, second = masks(1, 7)
    np.testing.assert_array_equal(masks(1, tf.constant(7, tf.int64)), [first, second])
    assert (first != second).any()
    for other in (masks(2, 7), masks(1, 8)):
        assert (other[0] != first).any()
