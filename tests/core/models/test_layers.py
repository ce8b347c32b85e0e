import pytest
import torch
from torch import nn

from cortext import _native
from cortext.models.layers import (
    attention,
    by_distance,
    day_affine,
    dropout,
    gru,
    patches,
    reverse_gradient,
)


def gradients(function, *inputs):
    for tensor in inputs:
        tensor.grad = None
    outputs = function()
    sum(
        (output * torch.linspace(0.5, 1.5, output.shape[-1])).square().sum() for output in outputs
    ).backward()
    return [output.detach() for output in outputs], [tensor.grad.clone() for tensor in inputs]


@pytest.mark.parametrize("n_layers", [1, 3])
def test_gru_and_its_gradients_are_those_of_the_module(n_layers):
    torch.manual_seed(0)
    module = nn.GRU(7, 5, n_layers, batch_first=True)
    x, state = (
        torch.randn(3, 9, 7, requires_grad=True),
        torch.randn(n_layers, 3, 5, requires_grad=True),
    )
    inputs = (x, state, *module.parameters())
    expected, found = (
        gradients(f, *inputs) for f in (lambda: module(x, state), lambda: gru(module, x, state))
    )
    for a, b in zip(expected[0] + expected[1], found[0] + found[1], strict=True):
        torch.testing.assert_close(b, a, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("n_units", [64, 60])  # 60 is not for the compiled recurrence
def test_gru_in_bfloat16_is_close_to_float32(n_units):
    torch.manual_seed(0)
    module = nn.GRU(32, n_units, 2, batch_first=True)
    x, state = torch.randn(4, 40, 32, requires_grad=True), torch.zeros(2, 4, n_units)

    def in_bfloat16():
        with torch.autocast("cpu", torch.bfloat16):
            return gru(module, x, state)

    expected, found = (
        gradients(f, x, *module.parameters()) for f in (lambda: module(x, state), in_bfloat16)
    )
    assert found[0][0].dtype == torch.float32
    torch.testing.assert_close(found[0][0], expected[0][0], atol=0.02, rtol=0)
    for a, b in zip(expected[1], found[1], strict=True):
        assert float((a - b).norm() / a.norm()) < 0.02


@pytest.mark.parametrize("bf16", [False, True])
def test_padding_has_no_part_in_what_a_gru_makes_of_the_rest(bf16):
    torch.manual_seed(0)
    lengths = [9, 4, 1, 7]
    inside_BP = torch.arange(10) < torch.tensor(lengths)[:, None]
    module = nn.GRU(24, 32, 2, batch_first=True)
    x, state = torch.randn(4, 10, 24, requires_grad=True), torch.randn(2, 4, 32, requires_grad=True)

    def real_patches(*n_patches):
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            return (gru(module, x, state, *n_patches)[0][inside_BP],)

    inputs = (x, state, *module.parameters())
    expected, found = (
        gradients(f, *inputs) for f in (real_patches, lambda: real_patches(torch.tensor(lengths)))
    )
    for a, b in zip(expected[0] + expected[1], found[0] + found[1], strict=True):
        torch.testing.assert_close(b, a, atol=1e-6, rtol=0.01 if bf16 else 1e-5)
    assert gru(module, x, state, torch.tensor(lengths))[0].isfinite().all()


@pytest.mark.skipif(
    not _native.can_run_recurrence(), reason="the processor has no AVX512-BF16 to compare with"
)
def test_processors_without_the_compiled_recurrence_train_the_same(monkeypatch):
    torch.manual_seed(0)
    module = nn.GRU(24, 32, 2, batch_first=True)
    x, state = torch.randn(4, 10, 24, requires_grad=True), torch.randn(2, 4, 32, requires_grad=True)

    def in_bfloat16():
        with torch.autocast("cpu", torch.bfloat16):
            return gru(module, x, state, torch.tensor([10, 1, 0, 7]))  # no patch is taken for one

    inputs = (x, state, *module.parameters())
    results = [gradients(in_bfloat16, *inputs)]
    monkeypatch.setattr(_native, "can_run_recurrence", lambda: False)
    results.append(gradients(in_bfloat16, *inputs))
    for a, b in zip(*([*hidden, *found] for hidden, found in results), strict=True):
        assert float((a - b).norm() / b.norm()) < 0.01


def test_a_frozen_gru_hands_on_the_same_gradient():
    module, x, found = nn.GRU(8, 32, batch_first=True), torch.randn(2, 5, 8, requires_grad=True), []
    for learns in (True, False):
        module.requires_grad_(learns)
        with torch.autocast("cpu", torch.bfloat16):
            hidden, _ = gru(module, x, torch.zeros(1, 2, 32))
        found.append(torch.autograd.grad(hidden.square().sum(), x)[0])
    assert torch.equal(*found)


@pytest.mark.parametrize("bf16", [False, True])
def test_second_derivatives_are_refused_and_not_wrong(bf16):
    module, x = nn.GRU(8, 32, batch_first=True), torch.randn(2, 5, 8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        hidden, _ = gru(module, x, torch.zeros(1, 2, 32))
    with pytest.raises(RuntimeError, match="first derivatives only"):
        torch.autograd.grad(hidden.sum(), x, create_graph=True)


@pytest.mark.parametrize(
    "days", [(2, 2, 0, 0), (1, 1, 1, 1), (0, 1, 2, 0), (1, 1, 2, 0), (2, 0, 2, 0), (1,)]
)
def test_each_trial_goes_through_the_map_of_its_day(days):
    torch.manual_seed(0)
    x = torch.randn(len(days), 6, 5, requires_grad=True)
    weight, bias = torch.randn(3, 5, 5, requires_grad=True), torch.randn(3, 5, requires_grad=True)

    def by_hand():
        return [torch.stack([x[i] @ weight[day] + bias[day] for i, day in enumerate(days)])]

    inputs = (x, weight, bias)
    expected, found = (
        gradients(f, *inputs)
        for f in (by_hand, lambda: [day_affine(x, torch.tensor(days), weight, bias)])
    )
    for a, b in zip(expected[0] + expected[1], found[0] + found[1], strict=True):
        torch.testing.assert_close(b, a, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("n_bins", "size", "stride"), [(30, 14, 4), (31, 14, 4), (14, 14, 4), (20, 6, 2), (20, 3, 5)]
)
def test_patches_lay_bins_side_by_side_and_hand_gradients_back(n_bins, size, stride):
    x = torch.randn(2, n_bins, 3, requires_grad=True)
    n_patches = (n_bins - size) // stride + 1

    def by_hand():
        rows = [x[:, p * stride : p * stride + size].flatten(1) for p in range(n_patches)]
        return (torch.stack(rows, 1),)

    expected, found = (gradients(f, x) for f in (by_hand, lambda: (patches(x, size, stride),)))
    assert torch.equal(expected[0][0], found[0][0])
    torch.testing.assert_close(found[1][0], expected[1][0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_dropout_zeroes_the_given_share_and_keeps_the_mean(dtype):
    torch.manual_seed(0)
    x = torch.ones(101, 997, dtype=dtype, requires_grad=True)
    y = dropout(x, 0.3, training=True)
    y.sum().backward()
    zeros = y == 0
    assert float(zeros.float().mean()) == pytest.approx(0.3, abs=0.005)
    assert float(y.detach().float().mean()) == pytest.approx(1, abs=0.01)
    assert torch.equal(y.detach(), x.grad)
    for shift in (1, 2, 3):  # the lanes of one draw are independent
        both = (zeros.flatten()[shift:] & zeros.flatten()[:-shift]).float().mean()
        assert float(both) == pytest.approx(0.09, abs=0.004)


def test_dropout_does_nothing_outside_training_or_at_zero():
    x = torch.randn(3, 4)
    assert torch.equal(dropout(x, 0.5, training=False), x)
    assert torch.equal(dropout(x, 0.0, training=True), x)


def attention_inputs(dtype, n_trials_of_bias=1):
    """Three trials, two heads, six frames of a past of nine; each frame sees five keys or more."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(3, 2, n, 4, dtype=dtype, requires_grad=True) for n in (6, 9, 9))
    bias = torch.randn(n_trials_of_bias, 1, 6, 9, dtype=dtype)
    bias.masked_fill_(torch.arange(9) > torch.arange(6)[:, None] + 4, -torch.inf)
    return q, k, v, bias.requires_grad_()


def plain_attention(q, k, v, bias, p=0.0):
    weight = (q @ k.transpose(2, 3) / q.shape[-1] ** 0.5 + bias).softmax(-1)
    return dropout(weight, p, training=True) @ v


@pytest.mark.parametrize("p", [0.0, 0.4])
@pytest.mark.parametrize("n_trials_of_bias", [1, 3])
def test_attention_and_its_gradients_are_those_of_its_formula(p, n_trials_of_bias):
    inputs = attention_inputs(torch.float64, n_trials_of_bias)

    def computed_by(function):
        torch.manual_seed(1)  # the same dropout
        return (function(*inputs, p),)

    expected, found = (
        gradients(lambda f=f: computed_by(f), *inputs) for f in (plain_attention, attention)
    )
    for a, b in zip(expected[0] + expected[1], found[0] + found[1], strict=True):
        torch.testing.assert_close(b, a, atol=1e-12, rtol=1e-9)
    with torch.no_grad():
        without = attention(*inputs)
    torch.testing.assert_close(without, plain_attention(*inputs), atol=1e-12, rtol=1e-9)


def test_attention_in_bfloat16_is_close_to_float32():
    inputs = attention_inputs(torch.float32)
    expected = gradients(lambda: (plain_attention(*inputs),), *inputs)

    def in_bfloat16():
        q, k, v = (x.bfloat16() for x in inputs[:3])
        return (attention(q, k, v, inputs[3]),)

    found = gradients(in_bfloat16, *inputs)
    assert found[0][0].dtype == torch.bfloat16
    for a, b in zip(expected[0] + expected[1], found[0] + found[1], strict=True):
        assert float((a - b).norm() / a.norm()) < 0.02


def test_second_derivatives_of_attention_are_refused_and_not_wrong():
    inputs = attention_inputs(torch.float32)
    with pytest.raises(RuntimeError, match="first derivatives only"):
        torch.autograd.grad(attention(*inputs).sum(), inputs[0], create_graph=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_gradient_of_dropout_has_the_zeros_and_the_scale_of_its_result(dtype):
    x = torch.full((1000, 7), 3.0, dtype=dtype, requires_grad=True)
    y = dropout(x, 0.35, training=True)
    (slope,) = torch.autograd.grad(y.sum(), x)
    assert torch.equal(slope * 3, y)
    assert slope.unique().tolist() == pytest.approx([0, 1 / 0.65], rel=0.005)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("strength", [0.0, 0.3, torch.tensor(2.0)])
def test_reversal_changes_no_bit_forwards_and_the_gradients_sign_and_scale_backwards(
    dtype, strength
):
    torch.manual_seed(0)
    x = torch.randn(50, 20).to(dtype).requires_grad_()
    y = reverse_gradient(x, strength)
    weight = torch.randn(50, 20).to(dtype)
    y.backward(weight)
    assert torch.equal(y, x)
    torch.testing.assert_close(x.grad, -float(strength) * weight)


@pytest.mark.parametrize(("n_frames", "n_keys"), [(7, 7), (3, 10), (1, 6)])
def test_a_number_is_looked_up_for_each_distance_and_the_last_one_for_larger_ones(n_frames, n_keys):
    first = n_keys - n_frames  # keys before the first frame
    distance_PK = torch.arange(n_frames)[:, None] + first - torch.arange(n_keys)
    found = by_distance(torch.tensor([-20.0, -10.0, 0.0, 10.0, 20.0]), distance_PK)
    expected = [
        [10.0 * max(-2, min(2, frame + first - key)) for key in range(n_keys)]
        for frame in range(n_frames)
    ]
    assert found.tolist() == expected
