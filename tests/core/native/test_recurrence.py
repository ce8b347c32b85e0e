"""The compiled recurrence against `nn.GRU` in float64, with the products' operands rounded as it
rounds them.
"""

from itertools import pairwise

import pytest
import torch
from torch import nn

from cortext import _native
from cortext.models.recurrence import _Native

pytestmark = pytest.mark.skipif(
    not _native.can_run_recurrence(), reason="the processor has no AVX512-BF16"
)

LENGTHS = (7, 1, 23, 4, 4, 12, 9, 1, 30, 2, 17)  # more than are multiplied together


def layer(n_units, lengths, seed=0):
    """Inputs of `_Native`; what is rounded to bfloat16 anyhow is so already."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape, scale=1.0):
        return torch.randn(shape, generator=generator) * scale

    ends_B = torch.tensor(lengths).cumsum(0)
    input_NG = normal(sum(lengths), 3 * n_units).bfloat16()
    h0_BD = normal(len(lengths), n_units, scale=0.5)
    w_hh = normal(3 * n_units, n_units, scale=n_units**-0.5).bfloat16().float()
    return input_NG, ends_B, h0_BD, w_hh, normal(3 * n_units, scale=0.2)


def run(input_NG, ends_B, h0_BD, w_hh, b_hh, d_h_ND):
    """States and the gradients of input, first state, weight, bias."""
    learnt = [tensor.clone().requires_grad_() for tensor in (input_NG, h0_BD, w_hh, b_hh)]
    h_ND = _Native.apply(learnt[0], ends_B, *learnt[1:])
    h_ND.backward(d_h_ND)
    return [h_ND.detach(), *(tensor.grad for tensor in learnt)]


def by_module(input_NG, ends_B, h0_BD, w_hh, b_hh, d_h_ND):
    """The same by `nn.GRU` in float64, whose input weights are the identity, a trial at a time."""
    n_units = h0_BD.shape[1]
    module = nn.GRU(3 * n_units, n_units, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        module.weight_ih_l0.copy_(torch.eye(3 * n_units))
        module.weight_hh_l0.copy_(w_hh)
        module.bias_ih_l0.zero_()
        module.bias_hh_l0.copy_(b_hh)
    x_NG, h_BD = input_NG.double().requires_grad_(), h0_BD.double().requires_grad_()
    starts = [0, *ends_B.tolist()]
    h_ND = torch.cat(
        [
            module(x_NG[a:b][None], h_BD[i][None, None])[0][0]
            for i, (a, b) in enumerate(pairwise(starts))
        ]
    )
    h_ND.backward(d_h_ND.double())
    return [h_ND.detach(), x_NG.grad, h_BD.grad, module.weight_hh_l0.grad, module.bias_hh_l0.grad]


@pytest.mark.parametrize("n_units", [16, 48, 80, 256])
def test_states_and_gradients_are_those_of_the_module(n_units):
    inputs = layer(n_units, LENGTHS)
    d_h_ND = torch.randn(sum(LENGTHS), n_units)
    found, expected = run(*inputs, d_h_ND), by_module(*inputs, d_h_ND)
    torch.testing.assert_close(found[0].double(), expected[0], atol=0.01, rtol=0)
    for a, b in zip(found, expected, strict=True):
        # A bfloat16 number is right to 0.004.
        assert float((a.double() - b).norm() / b.norm()) < 0.005


def test_one_step_from_a_first_state_of_bfloat16_is_exact():
    input_NG, ends_B, h0_BD, w_hh, b_hh = layer(32, (1, 1, 1))
    inputs = (input_NG, ends_B, h0_BD.bfloat16().float(), w_hh, b_hh)
    d_h_ND = torch.randn(3, 32)
    torch.testing.assert_close(
        run(*inputs, d_h_ND)[0].double(), by_module(*inputs, d_h_ND)[0], atol=1e-6, rtol=0
    )


def test_neither_threads_nor_the_other_trials_change_a_bit(monkeypatch):
    inputs = layer(48, LENGTHS)
    d_h_ND = torch.randn(sum(LENGTHS), 48)
    alone = run(*inputs, d_h_ND)
    for n_threads in (2, 3, 40):
        monkeypatch.setattr(torch, "get_num_threads", lambda n=n_threads: n)
        for a, b in zip(alone, run(*inputs, d_h_ND), strict=True):
            assert torch.equal(a, b)
    first, last = sum(LENGTHS[:8]), sum(LENGTHS[:9])
    input_NG, _, h0_BD, w_hh, b_hh = inputs
    single = run(
        input_NG[first:last], torch.tensor([30]), h0_BD[8:9], w_hh, b_hh, d_h_ND[first:last]
    )
    for a, b in zip(
        single[:3], (alone[0][first:last], alone[1][first:last], alone[2][8:9]), strict=True
    ):
        assert torch.equal(a, b)


def test_saturated_gates_stay_finite():
    input_NG, ends_B, h0_BD, w_hh, b_hh = layer(16, (5, 3))
    input_NG[::2] = 1e30
    input_NG[1::2] = -1e30
    for result in run(input_NG, ends_B, h0_BD, w_hh, b_hh, torch.ones(8, 16)):
        assert result.isfinite().all()


def test_not_a_number_is_not_hidden():
    input_NG, ends_B, h0_BD, w_hh, b_hh = layer(16, (5, 3))
    input_NG[2, :16] = torch.nan  # only the reset gates of the first trial's third step
    h_ND = run(input_NG, ends_B, h0_BD, w_hh, b_hh, torch.ones(8, 16))[0]
    assert h_ND[2:5].isnan().all()
    assert h_ND[:2].isfinite().all()
    assert h_ND[5:].isfinite().all()


def test_trials_without_steps_and_no_trials_at_all():
    input_NG, ends_B, h0_BD, w_hh, b_hh = layer(16, (3, 0, 2))
    results = run(input_NG, ends_B, h0_BD, w_hh, b_hh, torch.ones(5, 16))
    assert torch.equal(results[2][1], torch.zeros(16))
    results = run(input_NG[:0], ends_B[:0], h0_BD[:0], w_hh, b_hh, torch.ones(0, 16))
    assert results[0].shape == (0, 16)


@pytest.mark.parametrize("ends", [(3, 2, 5), (3, 5, 6), (3, 4, 4), (-1, 3, 5), (3, 5)])
def test_rows_that_do_not_fit_the_trials_are_refused(ends):
    input_NG, _, h0_BD, w_hh, b_hh = layer(16, (3, 0, 2))
    with pytest.raises(ValueError, match="starts must"):
        run(input_NG, torch.tensor(ends), h0_BD, w_hh, b_hh, torch.ones(5, 16))


def test_wrong_shapes_and_types_are_refused():
    input_NG, ends_B, h0_BD, w_hh, b_hh = layer(16, (3, 2))
    for wrong in (
        (input_NG[:, :32], ends_B, h0_BD, w_hh, b_hh),
        (input_NG, ends_B, h0_BD, w_hh[:32], b_hh),
        (input_NG, ends_B, h0_BD, w_hh, b_hh[:32]),
        (input_NG, ends_B, h0_BD[:, :8], w_hh, b_hh),
    ):
        with pytest.raises(ValueError, match=r"shape|number of units"):
            _Native.apply(*wrong)
    with pytest.raises(TypeError):
        _Native.apply(input_NG, ends_B.int(), h0_BD, w_hh, b_hh)
