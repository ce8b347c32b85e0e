"""Compiled single steps against the formulas in float64."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from rounded_weights import ROUNDED
from vectors import vectors_of

from cortext import _native

SHAPES = [(1, 1, 1), (7, 5, 2), (16, 16, 1), (33, 65, 3), (112, 48, 2)]  # inputs, units, layers


@pytest.fixture(params=[16, 8, 4])
def lanes(request):
    """Vectors of AVX-512, of AVX2, and of any processor."""
    with vectors_of(request.param) as lanes:
        yield lanes


def draw(n_inputs, n_units, n_layers, seed=0):
    rng = np.random.default_rng(seed)
    widths = [n_inputs] + [n_units] * (n_layers - 1)
    layers = [
        tuple(
            rng.normal(scale=0.3, size=shape).astype(np.float32)
            for shape in ((3 * n_units, width), (3 * n_units, n_units), 3 * n_units, 3 * n_units)
        )
        for width in widths
    ]
    state_LD = rng.normal(size=(n_layers, n_units)).astype(np.float32)
    return layers, rng.normal(size=n_inputs).astype(np.float32), state_LD


def gru_step(layers, x, state_LD, round_weights=lambda w: w):
    """cortext's definition, written out in float64."""
    states = []
    for (w_ih, w_hh, b_ih, b_hh), h in zip(layers, state_LD.astype(float), strict=True):
        given = np.split(round_weights(w_ih).astype(float) @ x + b_ih, 3)
        recurrent = np.split(round_weights(w_hh).astype(float) @ h + b_hh, 3)
        r, z = (1 / (1 + np.exp(-(a + b))) for a, b in zip(given[:2], recurrent[:2], strict=True))
        n = np.tanh(given[2] + r * recurrent[2])
        x = (1 - z) * n + z * h
        states.append(x)
    return np.stack(states)


def native_step(layers, x, state_LD, precision):
    next_state_LD = np.empty_like(state_LD)
    _native.StepGRU(layers, precision).step(x, state_LD, next_state_LD)
    return next_state_LD


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("precision", ROUNDED)
@pytest.mark.usefixtures("lanes")
def test_a_step_is_the_formula_with_rounded_weights(shape, precision):
    layers, x, state_LD = draw(*shape)
    expected_LD = gru_step(layers, x, state_LD, ROUNDED[precision])
    np.testing.assert_allclose(native_step(layers, x, state_LD, precision), expected_LD, atol=2e-6)


@pytest.mark.parametrize("precision", ROUNDED)
@pytest.mark.usefixtures("lanes")
def test_saturated_gates_stay_finite(precision):
    layers, x, state_LD = draw(7, 5, 2)
    for scale in (1e3, -1e3, 1e30):
        stepped_LD = native_step(layers, np.float32(scale) * x, state_LD, precision)
        assert np.isfinite(stepped_LD).all()
        assert np.abs(stepped_LD).max() <= np.abs(state_LD).max()


@pytest.mark.usefixtures("lanes")
def test_what_is_not_a_number_does_not_become_one():
    layers, x, state_LD = draw(7, 5, 1)
    x[3] = np.nan
    assert np.isnan(native_step(layers, x, state_LD, "fp32")).all()


@pytest.mark.parametrize("precision", ROUNDED)
@pytest.mark.parametrize("shape", [*SHAPES, (300, 33, 2)])
@pytest.mark.usefixtures("lanes")
def test_a_step_has_the_same_bits_whatever_of_it_was_known_before(shape, precision):
    layers, x, state_LD = draw(*shape)
    rng, gru = np.random.default_rng(1), _native.StepGRU(layers, precision)
    expected_LD = native_step(layers, x, state_LD, precision)
    next_state_LD = np.empty_like(state_LD)
    for n_known in rng.integers(0, len(x), size=20):
        gru.step(
            np.where(np.arange(len(x)) < n_known, x, np.float32(np.nan)), state_LD, next_state_LD
        )
        assert np.isnan(next_state_LD).all()
        if rng.random() < 0.5:
            gru.step(x, state_LD, next_state_LD)
            assert next_state_LD.tobytes() == expected_LD.tobytes()


def test_two_threads_that_share_a_network_do_not_meet():
    layers, x, state_LD = draw(2000, 256, 2)
    gru, xs = _native.StepGRU(layers, "fp32"), (x, x[::-1].copy())
    expected = [native_step(layers, own, state_LD, "fp32").tobytes() for own in xs]

    def steps(number):
        found, next_state_LD = set(), np.empty_like(state_LD)
        for _ in range(100):
            gru.step(xs[number], state_LD, next_state_LD)
            found.add(next_state_LD.tobytes())
        return found

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(steps, (0, 1))) == [{bits} for bits in expected]


@pytest.mark.parametrize("precision", ROUNDED)
def test_what_was_known_of_other_numbers_is_not_used(precision):
    layers, x, state_LD = draw(300, 33, 2)
    gru, next_state_LD = _native.StepGRU(layers, precision), np.empty_like(state_LD)
    for changed in (0, 63, 64, 199):  # of 200 numbers that are known at first
        for row in (0, 1):
            other_x, other_LD = x.copy(), state_LD.copy()
            other_x[changed] += 1
            other_LD[row, changed % 33] += 1
            other_x[200:] = np.nan
            gru.step(other_x, other_LD, next_state_LD)
            gru.step(x, state_LD, next_state_LD)
            assert next_state_LD.tobytes() == native_step(layers, x, state_LD, precision).tobytes()


@pytest.mark.parametrize("shape", [(1, 1), (41, 96), (64, 33), (130, 7)])
@pytest.mark.parametrize("with_bias", [True, False])
@pytest.mark.usefixtures("lanes")
def test_a_linear_map_is_matrix_times_vector_plus_bias(shape, with_bias):
    rng = np.random.default_rng(0)
    weight, bias, x = (
        rng.normal(size=size).astype(np.float32) for size in (shape, shape[0], shape[1])
    )
    bias = bias if with_bias else None
    for precision, rounded in ROUNDED.items():
        y = np.full(shape[0], np.nan, np.float32)
        _native.StepLinear(weight, bias, precision).apply(x, y)
        expected = rounded(weight).astype(float) @ x + (0 if bias is None else bias)
        np.testing.assert_allclose(y, expected, atol=1e-5)


def test_a_linear_map_of_what_is_not_a_number_is_none():
    y = np.zeros(2, np.float32)
    weight = np.array([[0, 0, 0], [1, -2, 0]], np.float32)
    _native.StepLinear(weight, None, "fp32").apply(np.array([1, 2, np.nan], np.float32), y)
    assert np.isnan(y).all()


def test_a_row_of_zeros_stays_so_in_int8():
    y = np.full(2, np.nan, np.float32)
    _native.StepLinear(np.array([[0, 0, 0], [1, -2, 0]], np.float32), None, "int8").apply(
        np.ones(3, np.float32), y
    )
    # 1 is 63.5 of 127ths of 2: 64, the even one.
    np.testing.assert_allclose(y, [0, (64 - 127) * 2 / 127], rtol=1e-6)


def test_wrong_shapes_are_refused():
    layers, x, state_LD = draw(7, 5, 2)
    with pytest.raises(ValueError, match="layers"):
        _native.StepGRU([], "fp32")
    with pytest.raises(ValueError, match="w_ih"):
        _native.StepGRU([layers[0], layers[0]], "fp32")
    with pytest.raises(ValueError, match="bias"):
        _native.StepGRU([(*layers[0][:3], layers[0][3][:-1])], "fp32")
    gru = _native.StepGRU(layers, "fp32")
    for arguments in (
        (x[:-1], state_LD, state_LD),
        (x, state_LD[:1], state_LD),
        (x, state_LD, state_LD[:, :-1].copy()),
    ):
        with pytest.raises(ValueError, match="wrong shape"):
            gru.step(*arguments)
    with pytest.raises(TypeError):
        gru.step(x.astype(np.float64), state_LD, state_LD.copy())
    linear = _native.StepLinear(layers[0][0], None, "fp32")
    for arguments in ((x[:-1], np.empty(15, np.float32)), (x, np.empty(14, np.float32))):
        with pytest.raises(ValueError, match="wrong shape"):
            linear.apply(*arguments)


@pytest.mark.parametrize("precision", ROUNDED)
@pytest.mark.usefixtures("lanes")
def test_hints_change_no_bit_of_a_product(precision):
    layers, x, state_LD = draw(112, 48, 2)
    by_hints_LD, without_LD = np.empty_like(state_LD), np.empty_like(state_LD)
    gru = _native.StepGRU(layers, precision)
    gru.set_prefetch(True)
    gru.step(x, state_LD, by_hints_LD)
    _native.StepGRU(layers, precision).step(x, state_LD, without_LD)
    assert by_hints_LD.tobytes() == without_LD.tobytes()
    linear = _native.StepLinear(layers[0][0], layers[0][2], precision)
    y = np.empty((2, len(layers[0][0])), dtype=np.float32)
    for row, by_hints in zip(y, (True, False), strict=True):
        linear.set_prefetch(by_hints)
        linear.apply(x, row)
    assert y[0].tobytes() == y[1].tobytes()


def test_vectors_that_the_processor_does_not_have_are_refused():
    before = _native.vector_lanes()
    assert before in (4, 8, 16)
    assert not any(map(_native.use_vector_lanes, (0, 2, 5, 32, 2**40)))
    assert _native.vector_lanes() == before
