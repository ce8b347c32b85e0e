"""Compiled frames of a Transformer against the formulas in float64."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from math import erf

import numpy as np
import pytest
from rounded_weights import ROUNDED
from vectors import vectors_of

from cortext import _native

EPSILON = 1e-5
F32 = np.float32


@dataclass
class Shape:
    """Units, heads, units of a head, layers; distances that have a number of their own."""

    D: int = 6
    H: int = 2
    E: int = 5
    L: int = 2
    n_distances: int = 4
    I: int = field(init=False)  # noqa: E741  the legend's letter

    def __post_init__(self):
        self.I = self.H * self.E


SHAPES = [Shape(), Shape(1, 1, 1, 1, 1), Shape(16, 2, 16, 1), Shape(33, 3, 21, 3), Shape(96, 3, 32)]


def draw(shape, n_rows=40, seed=0):
    """Blocks, the last norm, a frame, and the keys and values of `n_rows` frames."""
    rng = np.random.default_rng(seed)

    def normal(*size, mean=0.0):
        scale = size[-1] ** -0.5 if len(size) == 2 else 0.3
        return (mean + rng.normal(scale=scale, size=size)).astype(F32)

    D, I = shape.D, shape.I  # noqa: E741
    blocks = [
        (
            *(normal(D, mean=1), normal(D), normal(3 * I, D), normal(shape.n_distances)),
            *(normal(D, I), normal(D), normal(D, mean=1), normal(D)),
            *(normal(4 * D, D), normal(4 * D), normal(D, 4 * D), normal(D)),
        )
        for _ in range(shape.L)
    ]
    norm = normal(D, mean=1), normal(D)
    keys_LRI, values_LRI = normal(2, shape.L, n_rows, I) * 4
    return blocks, norm, normal(D) * 4, keys_LRI, values_LRI


def norm_of(x, weight, bias):
    return (x - x.mean()) / np.sqrt(x.var() + EPSILON) * weight + bias


def gelu(x):
    return np.array([each * (1 + erf(each / 2**0.5)) / 2 for each in x])


def formula(shape, drawn, row, n_before, rounded=ROUNDED["fp32"]):
    """The frame's result, and its keys and values [L, I]."""
    blocks, norm, x, keys_LRI, values_LRI = drawn
    x, now = x.astype(float), []
    for block, keys_RI, values_RI in zip(blocks, keys_LRI, values_LRI, strict=True):
        norm_w, norm_b, qkv, distances, out_w, out_b, next_w, next_b, widen, w_b, narrow, n_b = (
            block
        )
        q, k, v = np.split(rounded(qkv) @ norm_of(x, norm_w, norm_b), 3)
        now.append((k, v))
        keys = np.vstack([keys_RI[row - n_before : row], k])
        values = np.vstack([values_RI[row - n_before : row], v])
        found = []
        for head in range(shape.H):
            own = slice(head * shape.E, (head + 1) * shape.E)
            distance = np.arange(n_before, -1, -1)
            bias = distances[np.minimum(distance, len(distances) - 1)]
            scores = keys[:, own] @ q[own] / np.sqrt(shape.E) + bias
            weights = np.exp(scores - scores.max())
            found.append(weights @ values[:, own] / weights.sum())
        x = x + rounded(out_w) @ np.concatenate(found) + out_b
        x = x + rounded(narrow) @ gelu(rounded(widen) @ norm_of(x, next_w, next_b) + w_b) + n_b
    keys_LI, values_LI = (np.stack(each) for each in zip(*now, strict=True))
    return norm_of(x, *norm), keys_LI, values_LI


def native(shape, drawn, precision="fp32"):
    return _native.StepTransformer(drawn[0], drawn[1], EPSILON, shape.H, precision)


def stepped(step, drawn, row, n_before):
    """The frame's result, and all keys and values after it."""
    _, _, x, keys_LRI, values_LRI = drawn
    keys_LRI, values_LRI, y = keys_LRI.copy(), values_LRI.copy(), np.full_like(x, np.nan)
    step.step(x, keys_LRI, values_LRI, row, n_before, y)
    return y, keys_LRI, values_LRI


@pytest.mark.parametrize("lanes", [16, 8, 4])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("precision", ROUNDED)
def test_a_frame_is_the_formula_with_rounded_weights(lanes, shape, precision):
    drawn = draw(shape)
    with vectors_of(lanes):
        for row, n_before in ((0, 0), (1, 1), (7, 3), (20, 16), (39, 39)):
            expected_D, keys_LI, values_LI = formula(
                shape, drawn, row, n_before, ROUNDED[precision]
            )
            y, keys_LRI, values_LRI = stepped(native(shape, drawn, precision), drawn, row, n_before)
            np.testing.assert_allclose(y, expected_D, atol=1e-5)
            np.testing.assert_allclose(keys_LRI[:, row], keys_LI, atol=1e-5)
            np.testing.assert_allclose(values_LRI[:, row], values_LI, atol=1e-5)


@pytest.mark.parametrize("lanes", [16, 8, 4])
@pytest.mark.parametrize(("n_inputs", "n_units"), [(1, 1), (12, 5), (64, 16), (130, 70)])
@pytest.mark.parametrize("precision", ROUNDED)
def test_an_embedding_is_norm_map_and_norm(lanes, n_inputs, n_units, precision):
    rng = np.random.default_rng(0)
    first, last = ((1 + rng.normal(size=(2, n)) * 0.3).astype(F32) for n in (n_inputs, n_units))
    weight = (rng.normal(size=(n_units, n_inputs)) * n_inputs**-0.5).astype(F32)
    bias, x = (rng.normal(size=n).astype(F32) for n in (n_units, n_inputs))
    mapped = ROUNDED[precision](weight) @ norm_of(x.astype(float), *first) + bias
    y = np.full(n_units, np.nan, F32)
    with vectors_of(lanes):
        embedding = _native.StepEmbedding(
            tuple(first), weight, bias, tuple(last), EPSILON, precision
        )
        embedding.apply(x, y)
    np.testing.assert_allclose(y, norm_of(mapped, *last), atol=1e-5)


def test_an_embedding_of_wrong_shapes_is_refused():
    norms = {n: (np.ones(n, F32), np.ones(n, F32)) for n in (3, 4, 5)}
    weight, bias = np.ones((4, 3), F32), np.ones(4, F32)
    for name, arguments in {
        "weight": (norms[5], weight, bias, norms[4]),
        "bias": (norms[3], weight, bias[:3], norms[4]),
        "norm": (norms[3], weight, bias, (norms[4][0], norms[5][0])),
    }.items():
        with pytest.raises(ValueError, match=f"{name} has a wrong shape"):
            _native.StepEmbedding(*arguments, EPSILON, "fp32")
    embedding = _native.StepEmbedding(norms[3], weight, bias, norms[4], EPSILON, "fp32")
    for x, y in ((np.ones(4, F32), np.ones(4, F32)), (np.ones(3, F32), np.ones(3, F32))):
        with pytest.raises(ValueError, match=r"[xy] has a wrong shape"):
            embedding.apply(x, y)


def test_only_the_frames_own_row_is_written_and_only_the_rows_before_are_read():
    shape = Shape()
    drawn = draw(shape)
    expected_D, keys_LRI, values_LRI = stepped(native(shape, drawn), drawn, 20, 8)
    for before, after in zip(drawn[3:], (keys_LRI, values_LRI), strict=True):
        assert np.array_equal(np.delete(after, 20, 1), np.delete(before, 20, 1))
        before[:, :12] = before[:, 20:] = np.nan
    found_D, *_ = stepped(native(shape, drawn), drawn, 20, 8)
    assert found_D.tobytes() == expected_D.tobytes()


@pytest.mark.parametrize("lanes", [16, 8, 4])
def test_the_feed_forward_network_has_the_exact_gelu(lanes):
    """The norm's bias is all that it reads, and its maps are the identity."""
    x = np.linspace(-12, 12, 500).astype(F32)
    D = len(x)
    once, nothing = np.eye(D, dtype=F32), np.zeros((D, D), F32)
    zeros, ones = np.zeros(D, F32), np.ones(D, F32)
    qkv = np.zeros((3 * D, D), F32)
    block = (zeros, zeros, qkv, zeros, nothing, zeros, zeros, x, once, zeros, once, zeros)
    y, frames = np.empty(D, F32), np.zeros((2, 1, 1, D), F32)
    with vectors_of(lanes):
        step = _native.StepTransformer([block], (ones, zeros), EPSILON, 1, "fp32")
        step.step(zeros, frames[0], frames[1], 0, 0, y)
    expected = gelu(x.astype(float))
    # The last norm is undone.
    found = y * np.sqrt(expected.var() + EPSILON) + expected.mean()
    np.testing.assert_allclose(found, expected, atol=5e-6)


@pytest.mark.parametrize("lanes", [16, 8, 4])
def test_scores_of_any_size_stay_finite(lanes):
    shape = Shape()
    drawn = draw(shape)
    drawn[3][...] *= F32(1e30)
    with vectors_of(lanes):
        y, *_ = stepped(native(shape, drawn), drawn, 20, 20)
    assert np.isfinite(y).all()


@pytest.mark.parametrize("where", range(2, 5))
@pytest.mark.parametrize("lanes", [16, 8, 4])
def test_what_is_not_a_number_does_not_become_one(where, lanes):
    drawn = draw(Shape())
    drawn[where][..., 3] = np.nan
    with vectors_of(lanes):
        assert np.isnan(stepped(native(Shape(), drawn), drawn, 20, 20)[0]).all()


@pytest.mark.parametrize("precision", ROUNDED)
@pytest.mark.parametrize("lanes", [16, 8, 4])
def test_hints_change_no_bit_of_a_frame(precision, lanes):
    shape = SHAPES[-1]
    drawn = draw(shape)
    with vectors_of(lanes):
        step = native(shape, drawn, precision)
        without, *_ = stepped(step, drawn, 20, 20)
        step.set_prefetch(True)
        by_hints, *_ = stepped(step, drawn, 20, 20)
    assert by_hints.tobytes() == without.tobytes()


def test_threads_that_share_the_blocks_do_not_meet():
    shape = Shape(128, 4, 32, 3)
    drawn = draw(shape)
    step = native(shape, drawn)
    expected = {n: stepped(step, drawn, 39, n)[0].tobytes() for n in (5, 39)}

    def steps(n_before):
        return {stepped(step, drawn, 39, n_before)[0].tobytes() for _ in range(100)}

    with ThreadPoolExecutor(2) as pool:
        assert list(pool.map(steps, expected)) == [{bits} for bits in expected.values()]


NAMES = {2: "qkv", 4: "attended", 8: "widen", 10: "narrow"}
NAMES |= dict.fromkeys((0, 1, 6, 7), "norm") | dict.fromkeys((5, 9, 11), "bias")


@pytest.mark.parametrize("number", NAMES)
def test_weights_of_a_wrong_shape_are_refused(number):
    blocks, norm, *_ = draw(Shape())
    last = list(blocks[1])
    *rows, columns = last[number].shape
    last[number] = np.zeros((*rows, columns + 3), F32)
    with pytest.raises(ValueError, match=f"{NAMES[number]} has a wrong shape"):
        _native.StepTransformer([blocks[0], tuple(last)], norm, EPSILON, 2, "fp32")


def test_frames_of_a_wrong_shape_are_refused():
    shape = Shape()
    blocks, norm, x, keys_LRI, values_LRI = drawn = draw(shape)
    step, y = native(shape, drawn), np.empty_like(x)
    for match, arguments in {
        "x has": (x[:-1], keys_LRI, values_LRI, 0, 0, y),
        "y has": (x, keys_LRI, values_LRI, 0, 0, y[:-1]),
        "keys_LRI has": (x, keys_LRI[:1], values_LRI, 0, 0, y),
        "values_LRI has": (x, keys_LRI, values_LRI[:, :-1].copy(), 0, 0, y),
        "row is not": (x, keys_LRI, values_LRI, 40, 0, y),
        "n_before is": (x, keys_LRI, values_LRI, 3, 4, y),
    }.items():
        with pytest.raises(ValueError, match=match):
            step.step(*arguments)
    with pytest.raises(TypeError):
        step.step(x, keys_LRI, values_LRI, -1, 0, y)
    with pytest.raises(ValueError, match="blocks"):
        _native.StepTransformer([], norm, EPSILON, 2, "fp32")
    for n_heads in (0, 3):
        with pytest.raises(ValueError, match="n_heads"):
            _native.StepTransformer(blocks, norm, EPSILON, n_heads, "fp32")
