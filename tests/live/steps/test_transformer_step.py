"""Single frames of a Transformer, computed by the compiled step, against the torch model."""

import copy

import numpy as np
import pytest
import torch
from rounded_weights import ROUNDED
from torch import nn

from cortext.models import TransformerConfig, build_model
from cortext.models.transformer import EmbeddingConfig
from cortext_live.steps.single_step import computes_ahead, for_single_steps

DAY_B = torch.tensor([1])
N_FEATURES, PATCH = 6, 4
SIZES = {"n_units": 24, "n_layers": 2, "n_heads": 2, "head_units": 12}


def make_network(**changes):
    config = TransformerConfig(**SIZES | {"context_frames": 62} | changes)
    torch.manual_seed(0)
    network = build_model(config, n_features=N_FEATURES, n_days=2, n_classes=41)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.1)
    return network.eval()


def bins(n_frames):
    rng = np.random.default_rng(0)
    return torch.from_numpy(rng.normal(size=(1, PATCH * n_frames, N_FEATURES)).astype(np.float32))


@torch.inference_mode()
def pieces(network, x_BTC, n_frames=(1,), state=None):
    """Logits [P, V] of pieces of `n_frames` frames, in turn, and the last state."""
    found, first, turn = [], 0, 0
    while first < x_BTC.shape[1]:
        until = first + PATCH * n_frames[turn % len(n_frames)]
        logits_BPV, state = network(x_BTC[:, first:until], DAY_B, state)
        found.append(logits_BPV[0])
        first, turn = until, turn + 1
    return torch.cat(found), state


@torch.inference_mode()
def whole(network, x_BTC):
    """Logits [P, V] of the whole trial, which never continues from a state."""
    x_BTC, day_B = x_BTC.expand(2, -1, -1), DAY_B.expand(2)
    n_patches_B = torch.full((2,), x_BTC.shape[1] // PATCH)
    logits_BPV, state = network(x_BTC, day_B, n_patches_B=n_patches_B)
    assert state is None
    return logits_BPV[0]


def rounded(network, precision):
    """A copy whose matrices hold the numbers that the step keeps."""
    network = copy.deepcopy(network)
    for module in network.modules():
        if isinstance(module, nn.Linear):
            kept = ROUNDED[precision](module.weight.detach().numpy())
            module.weight.data = torch.from_numpy(kept.astype(np.float32))
    return network


# Up to two minutes: frames are forgotten, keys and values move to new arrays, and with the context of
# 20 s frames are further apart than the 199 distances that have a number of their own.
@pytest.mark.parametrize(("context_frames", "n_frames"), [(1, 100), (62, 400), (250, 1500)])
@pytest.mark.parametrize("precision", ROUNDED)
@pytest.mark.parametrize("day_layer", ["none", "softsign"])
def test_steps_equal_the_whole_trial_with_the_same_weights(
    context_frames, n_frames, precision, day_layer
):
    config = {"context_frames": context_frames, "input_network": EmbeddingConfig(day_layer)}
    network, x_BTC = make_network(**config), bins(n_frames)
    assert network.has_days == (day_layer == "softsign")
    stepped_PV, _ = pieces(for_single_steps(network, precision), x_BTC)
    expected_PV = whole(rounded(network, precision), x_BTC)
    assert float(expected_PV.std()) > 0.5
    torch.testing.assert_close(stepped_PV, expected_PV, atol=1e-5, rtol=0)


def test_steps_and_longer_pieces_continue_from_each_other():
    network, x_BTC = make_network(), bins(150)
    stepped_PV, state = pieces(for_single_steps(network, "fp32"), x_BTC, (1, 1, 3, 1, 20))
    expected_PV, expected = pieces(network, x_BTC, (7,))
    torch.testing.assert_close(stepped_PV, expected_PV, atol=1e-5, rtol=0)
    for found, wanted in zip(state, expected, strict=True):
        assert found.shape == wanted.shape
        torch.testing.assert_close(found, wanted, atol=1e-5, rtol=0)


def test_a_state_is_as_it_was_after_any_number_of_steps_from_it():
    fast, x_BTC = for_single_steps(make_network(), "fp32"), bins(300)
    _, state = pieces(fast, x_BTC[:, : 40 * PATCH])
    before = [tensor.clone() for tensor in state]
    first_PV, _ = pieces(fast, x_BTC[:, 40 * PATCH :], state=state)
    again_PV, _ = pieces(fast, x_BTC[:, 40 * PATCH :], state=state)
    assert all(map(torch.equal, state, before))
    assert torch.equal(first_PV, again_PV)


def test_two_trials_in_turn_do_not_meet():
    fast = for_single_steps(make_network(), "fp32")
    xs = bins(200).split(100 * PATCH, 1)
    expected = [pieces(fast, x_BTC)[0] for x_BTC in xs]
    states, found = [None, None], ([], [])
    for first in range(0, 100 * PATCH, PATCH):
        for trial in (0, 1):
            piece_BTC = xs[trial][:, first : first + PATCH]
            logits_PV, states[trial] = pieces(fast, piece_BTC, state=states[trial])
            found[trial].append(logits_PV)
    for trial in (0, 1):
        assert torch.equal(torch.cat(found[trial]), expected[trial])


def test_batches_and_gradients_have_the_modules_own_step():
    network = make_network()
    fast, x_BTC = for_single_steps(network, "int8"), bins(1)
    logits_BPV, state = fast(x_BTC, DAY_B)
    assert torch.equal(logits_BPV, network(x_BTC, DAY_B)[0])
    logits_BPV.sum().backward()
    assert network.blocks.layers[0].qkv.weight.grad is not None
    x_BTC = bins(1).expand(3, -1, -1)
    with torch.no_grad():
        for given in (
            None,
            tuple(each.expand(*each.shape[:1], 3, *each.shape[2:]) for each in state),
        ):
            found = fast.blocks.advance(torch.ones(3, 1, 24), given or fast.first_state(3))[0]
            wanted, _ = network.blocks.advance(
                torch.ones(3, 1, 24), given or network.first_state(3)
            )
            assert torch.equal(found, wanted)


def test_the_weights_of_blocks_are_laid_out_once_and_nothing_is_computed_ahead():
    fast = for_single_steps(make_network(), "fp32")
    replaced = [name for name, module in fast.named_modules() if "forward" in vars(module)]
    assert replaced == ["out"]
    assert "embed" in vars(fast)
    assert {"advance", "first_state"} <= set(vars(fast.blocks))
    assert not computes_ahead(fast)


def doubled(module, arguments, output):
    return 2 * output


def spoil(network, how):
    block = network.blocks.layers[1]
    if how == "hook":
        block.widen.register_forward_hook(doubled)
    elif how == "weight_norm":
        nn.utils.parametrizations.weight_norm(block.narrow)
    elif how == "embedding":
        network.embedding.register_forward_hook(doubled)
    elif how == "spectral_norm":
        nn.utils.spectral_norm(block.qkv)
    else:
        block.__class__ = type("Own", (type(block),), {})
    return network.eval()


@pytest.mark.parametrize("how", ["hook", "weight_norm", "spectral_norm", "subclass", "embedding"])
def test_blocks_that_compute_otherwise_are_left_as_they_are(how):
    network, x_BTC = spoil(make_network(), how), bins(20)
    fast = for_single_steps(network, "fp32")
    assert "go_on" not in vars(fast.blocks)
    assert "embed" not in vars(fast)
    torch.testing.assert_close(pieces(fast, x_BTC)[0], whole(network, x_BTC), atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", ["chunked", "bidirectional"])
def test_blocks_that_are_not_causal_are_left_as_they_are(kind):
    network = make_network(attention=kind, chunk_frames=2 if kind == "chunked" else 1)
    fast = for_single_steps(network, "fp32")
    assert "go_on" not in vars(fast.blocks)
    assert torch.equal(whole(fast, bins(20)), whole(network, bins(20)))
