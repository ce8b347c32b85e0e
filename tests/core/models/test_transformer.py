"""The Transformer's equations, what its frames see, and its settings."""

import math

import numpy as np
import pytest
import torch

from cortext.errors import ConfigError
from cortext.models import TransformerConfig, build_model
from cortext.models.transformer import EmbeddingConfig

SIZES = {"n_units": 12, "n_layers": 2, "n_heads": 2, "head_units": 4, "patch_size": 4}


def small(day_layer="none", **settings):
    torch.manual_seed(0)
    settings = SIZES | {"context_frames": 5, "train_context_frames": [2, 5]} | settings
    config = TransformerConfig(**settings, input_network=EmbeddingConfig(day_layer=day_layer))
    model = build_model(config, n_features=6, n_days=3, n_classes=7).eval()
    with torch.no_grad():  # nothing is at its first, simple value
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.3)
    return model


def oracle(model, x_TC: np.ndarray, day: int) -> np.ndarray:
    """One trial, one frame, head and key at a time, in float64, from the equations."""
    config = model.config
    weights = {name: tensor.double().numpy() for name, tensor in model.state_dict().items()}

    def norm(x, name):
        x = (x - x.mean()) / math.sqrt(x.var() + 1e-5)
        return x * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def linear(x, name):
        return weights[f"{name}.weight"] @ x + weights.get(f"{name}.bias", 0.0)

    def gelu(x):
        return np.array([value / 2 * (1 + math.erf(value / math.sqrt(2))) for value in x])

    n_frames = math.ceil(len(x_TC) / config.patch_size)
    filled_TC = np.zeros((n_frames * config.patch_size, x_TC.shape[1]))
    filled_TC[: len(x_TC)] = x_TC
    kind = config.input_network.day_layer
    if kind != "none":
        filled_TC = np.array(
            [x @ weights["day_weight"][day] + weights["day_bias"][day] for x in filled_TC]
        )
    if kind == "softsign":
        filled_TC = filled_TC / (1 + np.abs(filled_TC))
    frames = [
        norm(linear(norm(patch, "patch_norm"), "embedding"), "embedding_norm")
        for patch in filled_TC.reshape(n_frames, -1)
    ]
    for layer in range(config.n_layers):
        name = f"blocks.layers.{layer}"
        width = config.n_heads * config.head_units
        qkv = [linear(norm(x, f"{name}.attention_norm"), f"{name}.qkv") for x in frames]
        after = []
        for p, x in enumerate(frames):
            begin = p // config.chunk_frames * config.chunk_frames
            if config.attention == "bidirectional":
                keys = list(range(n_frames))
            else:
                first = max(0, begin - config.context_frames)
                keys = list(range(first, min(begin + config.chunk_frames, n_frames)))
            heads = []
            for head in range(config.n_heads):
                own = slice(head * config.head_units, (head + 1) * config.head_units)
                scores = []
                for k in keys:
                    distance = max(-199, min(199, p - k))
                    score = qkv[p][:width][own] @ qkv[k][width : 2 * width][own]
                    score /= math.sqrt(config.head_units)
                    scores.append(score + weights[f"{name}.distance_bias"][distance + 199])
                share = np.exp(np.array(scores) - max(scores))
                share /= share.sum()
                heads.append(
                    sum(w * qkv[k][2 * width :][own] for w, k in zip(share, keys, strict=True))
                )
            after.append(x + linear(np.concatenate(heads), f"{name}.attended"))
        frames = [
            x
            + linear(
                gelu(linear(norm(x, f"{name}.feed_forward_norm"), f"{name}.widen")),
                f"{name}.narrow",
            )
            for x in after
        ]
    return np.array([linear(norm(x, "blocks.norm"), "out") for x in frames])


KINDS = {
    "causal": {},
    "a patch of five bins": {"patch_size": 5, "patch_stride": 5},
    "chunks of three frames": {"attention": "chunked", "chunk_frames": 3},
    "both directions": {"attention": "bidirectional"},
    "an affine map of each day": {"day_layer": "affine"},
    "an affine map and softsign": {"day_layer": "softsign"},
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_bins", [46, 48])
def test_logits_are_those_of_the_equations(kind, n_bins):
    model = small(**KINDS[kind])
    x_TC = np.random.default_rng(1).normal(size=(n_bins, 6))
    expected_PV = oracle(model, x_TC, day=2)
    x_BTC = torch.from_numpy(x_TC).float()[None]
    day_B = torch.tensor([2])
    with torch.no_grad():
        alone_PV = model(x_BTC, day_B)[0][0]
        n_patches_B = torch.tensor([len(expected_PV)] * 2)
        batch_PV = model(x_BTC.repeat(2, 1, 1), day_B.repeat(2), n_patches_B=n_patches_B)[0][1]
    np.testing.assert_allclose(alone_PV, expected_PV, atol=2e-5)
    np.testing.assert_allclose(batch_PV, expected_PV, atol=2e-5)


def test_distances_beyond_199_share_one_number():
    model = small(context_frames=260, n_layers=1)
    x_TC = np.random.default_rng(2).normal(size=(4 * 230, 6))
    with torch.no_grad():
        found_PV = model(torch.from_numpy(x_TC).float()[None], torch.tensor([0]))[0][0]
    np.testing.assert_allclose(found_PV, oracle(model, x_TC, day=0), atol=2e-5)


@pytest.mark.parametrize(
    ("settings", "seen"),
    [
        ({}, lambda p: range(max(0, p - 5), p + 1)),
        (
            {"attention": "chunked", "chunk_frames": 3},
            lambda p: range(max(0, p // 3 * 3 - 5), min(p // 3 * 3 + 3, 14)),
        ),
        ({"attention": "bidirectional"}, lambda p: range(14)),
    ],
)
def test_a_frame_depends_on_the_frames_that_it_sees_and_on_no_other(settings, seen):
    model = small(n_layers=1, **settings)
    x_BTC = torch.randn(1, 56, 6, generator=torch.Generator().manual_seed(1), requires_grad=True)
    logits_PV = model(x_BTC, torch.tensor([0]))[0][0]
    for p in range(14):
        (slope,) = torch.autograd.grad(logits_PV[p].sum(), x_BTC, retain_graph=True)
        reached = slope[0].abs().amax(1).view(14, 4).amax(1) > 0
        assert reached.nonzero().flatten().tolist() == list(seen(p))


def test_the_context_of_a_training_batch_is_drawn_between_its_bounds():
    model = small(n_layers=1, dropout=0.0, train_context_frames=[2, 5]).train()
    model.config.input_network.input_layer_dropout = 0.0
    x_BTC = torch.randn(1, 56, 6, generator=torch.Generator().manual_seed(1), requires_grad=True)
    contexts = []
    for seed in (*range(40), 0):
        torch.manual_seed(seed)
        logits_PV = model(x_BTC, torch.tensor([0]), n_patches_B=torch.tensor([14]))[0][0]
        (slope,) = torch.autograd.grad(logits_PV[-1].sum(), x_BTC)
        contexts.append(int((slope[0].abs().amax(1).view(14, 4).amax(1) > 0).sum()) - 1)
    assert set(contexts) == {2, 3, 4, 5}
    assert contexts[0] == contexts[-1]  # the same seed, the same context


def test_a_bidirectional_model_sees_nothing_of_the_padding():
    model = small(attention="bidirectional")
    generator = torch.Generator().manual_seed(3)
    x_BTC = torch.randn(2, 40, 6, generator=generator)
    n_patches_B, day_B = torch.tensor([10, 6]), torch.tensor([0, 0])
    with torch.no_grad():
        alone_PV = model(x_BTC[1:, :24], day_B[1:])[0][0]
        x_BTC[1, 24:] = 1000.0
        logits_BPV, state = model(x_BTC, day_B, n_patches_B=n_patches_B)
    np.testing.assert_allclose(logits_BPV[1, :6], alone_PV, atol=1e-5)
    assert state is None


@pytest.mark.parametrize(
    ("n_bins", "n_patches"), [(-3, 0), (0, 0), (1, 1), (4, 1), (5, 2), (325, 82)]
)
def test_every_bin_belongs_to_a_frame(n_bins, n_patches):
    model = small()
    assert model.n_patches(n_bins) == n_patches
    assert model.n_patches(np.array([n_bins])).tolist() == [n_patches]
    assert model.n_patches(torch.tensor([n_bins])).tolist() == [n_patches]
    if n_patches:
        logits_BPV, _ = model(torch.zeros(1, n_bins, 6), torch.tensor([0]))
        assert logits_BPV.shape == (1, n_patches, 7)


def test_the_published_size_has_the_weights_of_its_shapes():
    model = build_model(TransformerConfig(), n_features=512, n_days=45, n_classes=41)
    embedding = 2 * 2048 + 2048 * 384 + 384 + 2 * 384
    attention = 2 * 384 + 384 * 3 * 384 + 399 + 384 * 384 + 384
    feed_forward = 2 * 384 + 384 * 1536 + 1536 + 1536 * 384 + 384
    expected = embedding + 5 * (attention + feed_forward) + 2 * 384 + 384 * 41 + 41
    assert sum(parameter.numel() for parameter in model.parameters()) == expected


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"patch_stride": 2}, "patches do not overlap"),
        ({"patch_size": 0, "patch_stride": 0}, "patch"),
        ({"chunk_frames": 3}, "chunk_frames 3"),
        ({"attention": "chunked"}, "chunk_frames 1"),
        ({"attention": "sideways"}, "sideways"),
        ({"context_frames": 0}, "context_frames is 0"),
        ({"train_context_frames": [5]}, "train_context_frames"),
        ({"train_context_frames": [9, 5]}, "train_context_frames"),
        ({"dropout": 1.0}, "model.dropout is 1.0"),
        ({"n_heads": 0}, "n_heads is 0"),
        ({"n_layers": 1, "intermediate_layer": 1}, "intermediate_layer is 1; it must be null"),
    ],
)
def test_impossible_settings_name_the_field(settings, line):
    with pytest.raises(ConfigError, match=line):
        TransformerConfig(**settings)


def test_a_context_of_hours_costs_a_short_trial_nothing():
    """A trial alone, and in a batch, reads its own frames, and no rows before its first."""
    few, many = small(context_frames=30), small(context_frames=100_000)
    x_BTC = torch.randn(1, 120, 6)
    day_B, n_patches_B = torch.tensor([0]), torch.tensor([30])
    keys = []

    def kept(module, arguments):
        keys.append(arguments[1].shape[1])

    many.blocks.layers[0].register_forward_pre_hook(kept)
    with torch.no_grad():
        expected, state = few(x_BTC, day_B, n_patches_B=n_patches_B)
        found, long_state = many(x_BTC, day_B, n_patches_B=n_patches_B)
    assert keys == [30]
    torch.testing.assert_close(found, expected)
    for short, long in zip(state[:2], long_state[:2], strict=True):
        assert long.shape[2] == 100_000
        torch.testing.assert_close(long[:, :, -30:], short)
        assert not long[:, :, :-30].any()
    assert long_state[2].tolist() == [[30]]
