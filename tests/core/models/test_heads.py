"""Diphones and the intermediate layer, against enumeration and against shallower networks."""

import itertools
import math

import pytest
import torch

from cortext.errors import ConfigError
from cortext.models import GRUConfig, TransformerConfig, build_model
from cortext.models.heads import diphone_labels, token_logits

SIZES = {"n_features": 4, "n_days": 2, "n_classes": 5}
GRU = {"n_units": 6, "patch_size": 3, "patch_stride": 2, "rnn_dropout": 0.0}
TRANSFORMER = {"n_units": 8, "n_heads": 2, "head_units": 4, "patch_size": 3, "patch_stride": 3}


def test_the_probability_of_a_path_of_tokens_is_the_sum_over_its_paths_of_diphones():
    n_frames, n_tokens = 3, 2
    generator = torch.Generator().manual_seed(0)
    diphones_PX = 3 * torch.randn(n_frames, n_tokens**2 + 1, generator=generator).double()
    of_diphones = diphones_PX.softmax(-1)
    of_tokens = token_logits(diphones_PX[None])[0].softmax(-1)
    sums = dict.fromkeys(itertools.product(range(n_tokens + 1), repeat=n_frames), 0.0)
    token_of = [0, 1, 2, 1, 2]  # blank; 1 after 1, 2 after 1, 1 after 2, 2 after 2
    for path in itertools.product(range(5), repeat=n_frames):
        probability = math.prod(float(of_diphones[p, x]) for p, x in enumerate(path))
        sums[tuple(token_of[x] for x in path)] += probability
    assert len(sums) == 27
    for path, probability in sums.items():
        found = math.prod(float(of_tokens[p, token]) for p, token in enumerate(path))
        assert found == pytest.approx(probability, rel=1e-12), path


def test_half_precision_diphones_are_added_up_in_float32():
    # 40 equal terms: log 40 is 3.689; the nearest bfloat16 is 3.6875.
    logits = token_logits(torch.zeros(1, 1, 1601, dtype=torch.bfloat16))
    assert logits.dtype == torch.float32
    assert float(logits[0, 0, 1]) == pytest.approx(math.log(40), rel=1e-6)
    assert float(logits[0, 0, 0]) == 0


@pytest.mark.parametrize(
    ("first", "expected"),
    [
        # Of three tokens: pair (i, j) is 1 + 3 (i - 1) + (j - 1).
        (3, [[8, 4, 2, 6], [7, 0, 0, 0], [0, 0, 0, 0]]),
        (None, [[5, 4, 2, 6], [1, 0, 0, 0], [0, 0, 0, 0]]),
    ],
)
def test_diphones_of_labels_begin_with_the_silence_or_with_the_token_itself(first, expected):
    labels_BU = torch.tensor([[2, 1, 2, 3], [1, 0, 0, 0], [0, 0, 0, 0]])
    assert diphone_labels(labels_BU, 10, first).tolist() == expected
    assert diphone_labels(labels_BU[:, :0], 10, first).shape == (3, 0)


def filled(config, seed=0):
    """A network whose weights, the zeros among them, are drawn anew."""
    network = build_model(config, **SIZES)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 3)
    return network


@pytest.mark.parametrize(
    "config", [GRUConfig(**GRU, n_layers=2), TransformerConfig(**TRANSFORMER, n_layers=2)]
)
def test_a_models_tokens_are_the_marginals_of_its_diphones(config):
    config.diphones = True
    network = filled(config).eval()
    x_BTC, day_B = torch.randn(2, 13, 4), torch.tensor([0, 1])
    n_patches_B = network.n_patches(torch.tensor([13, 9]))
    logits_BPV, _, extras = network(x_BTC, day_B, n_patches_B=n_patches_B)
    pieces_BPV, _ = network(x_BTC[:1], day_B[:1])
    assert extras["diphones"].shape == (*logits_BPV.shape[:2], 17)
    probabilities = extras["diphones"].softmax(-1)
    for token in range(1, 5):
        summed_BP = sum(probabilities[..., 1 + 4 * before + token - 1] for before in range(4))
        torch.testing.assert_close(logits_BPV.softmax(-1)[..., token], summed_BP)
    hidden_BPD, _ = network.hidden(x_BTC, day_B, n_patches_B=n_patches_B)
    assert torch.equal(network.read_out(hidden_BPD), logits_BPV)
    torch.testing.assert_close(pieces_BPV[0], logits_BPV[0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("diphones", [False, True])
@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("kind", ["gru", "transformer"])
def test_the_intermediate_logits_are_those_of_a_network_that_ends_there(kind, gradients, diphones):
    settings = (GRUConfig, GRU) if kind == "gru" else (TransformerConfig, TRANSFORMER)

    def make(**more):
        return filled(settings[0](**settings[1], diphones=diphones, **more)).eval()

    deep, shallow, plain = (
        make(n_layers=3, intermediate_layer=2),
        make(n_layers=2),
        make(n_layers=3),
    )
    shallow.load_state_dict(deep.state_dict(), strict=False)
    plain.load_state_dict(deep.state_dict())
    x_BTC, day_B = torch.randn(2, 13, 4), torch.tensor([1, 0])
    n_patches_B = deep.n_patches(torch.tensor([13, 7]))
    with torch.set_grad_enabled(gradients):
        logits_BPV, state, extras = deep(x_BTC, day_B, n_patches_B=n_patches_B)
        one = deep(x_BTC[:1], day_B[:1], n_patches_B=n_patches_B[:1])  # has a state in any model
        expected = shallow(x_BTC, day_B, n_patches_B=n_patches_B)
        whole = plain(x_BTC, day_B, n_patches_B=n_patches_B)
    found = extras["intermediate"]
    if diphones:
        found = token_logits(found)
    for trial, n in enumerate(n_patches_B.tolist()):
        torch.testing.assert_close(found[trial, :n], expected[0][trial, :n])
        torch.testing.assert_close(logits_BPV[trial, :n], whole[0][trial, :n])
    torch.testing.assert_close(one.extras["intermediate"][0], extras["intermediate"][0])
    assert one.state is not None
    if kind == "gru":
        torch.testing.assert_close(state, whole[1])


@pytest.mark.parametrize("layer", [0, 3])
@pytest.mark.parametrize("config", [GRUConfig, TransformerConfig])
def test_the_intermediate_layer_lies_before_the_last(config, layer):
    with pytest.raises(
        ConfigError, match=rf"model.intermediate_layer is {layer}; it must be at least 1 and at m"
    ):
        config(n_layers=3, intermediate_layer=layer)
