"""Our Transformer beside one that was written from the published description alone
(`benchmarks/transformer_restated.py`).
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from cortext.features import build_augmentations
from cortext.models import TransformerConfig, build_model
from cortext.models.transformer import EmbeddingConfig
from cortext.training import TrainConfig, read_train_config
from cortext.training.batches import TrainBatch
from cortext.training.loss import CTCConfig, build_loss
from cortext.training.optim import Optimizer
from transformer_restated import (
    RestatedTrainer,
    RestatedTransformer,
    Shape,
    expected_mask_share,
    patches,
    time_masks,
)

T15 = Shape()
SMALL = Shape(
    n_features=16,
    width=32,
    n_heads=2,
    head_width=8,
    n_blocks=2,
    input_dropout=0.0,
    dropout=0.0,
    context=9,
    contexts=(7, 20),
)
KINDS = {"causal": 1, "chunked": 5, "bidirectional": None}
NO_DAY = torch.zeros(3, dtype=torch.int64)


def as_ours(restated: RestatedTransformer) -> dict[str, torch.Tensor]:
    """The restated parameters under our names."""
    state = restated.state_dict()
    modules = {
        "embedding.0": "patch_norm",
        "embedding.1": "embedding",
        "embedding.2": "embedding_norm",
        "norm": "blocks.norm",
        "out": "out",
    }
    parts = {
        "attention.norm": "attention_norm",
        "attention.out": "attended",
        "feed_forward.0": "feed_forward_norm",
        "feed_forward.1": "widen",
        "feed_forward.4": "narrow",
    }
    ours = {}
    for i in range(restated.shape.n_blocks):
        theirs, block = f"blocks.{i}", f"blocks.layers.{i}"
        modules |= {f"{theirs}.{part}": f"{block}.{name}" for part, name in parts.items()}
        ours[f"{block}.qkv.weight"] = state[f"{theirs}.attention.qkv.weight"]
        ours[f"{block}.distance_bias"] = state[f"{theirs}.attention.distance.weight"][:, 0]
    for theirs, name in modules.items():
        ours |= {f"{name}.{kind}": state[f"{theirs}.{kind}"] for kind in ("weight", "bias")}
    assert sum(tensor.numel() for tensor in ours.values()) == sum(
        tensor.numel() for tensor in state.values()
    )
    return {name: tensor.detach().clone() for name, tensor in ours.items()}


def pair(shape: Shape, attention: str) -> tuple[RestatedTransformer, torch.nn.Module]:
    """The same weights, restated and ours."""
    torch.manual_seed(0)
    shape = replace(shape, chunk=KINDS[attention])
    restated = RestatedTransformer(shape)
    with torch.no_grad():  # away from 0 and 1, so that biases and LayerNorms count
        for parameter in restated.parameters():
            if parameter.ndim == 1:
                parameter += 0.1 * torch.randn_like(parameter)
    config = TransformerConfig(
        n_units=shape.width,
        n_layers=shape.n_blocks,
        n_heads=shape.n_heads,
        head_units=shape.head_width,
        dropout=shape.dropout,
        patch_size=shape.patch,
        patch_stride=shape.patch,
        attention=attention,
        chunk_frames=shape.chunk or 1,
        context_frames=shape.context,
        train_context_frames=list(shape.contexts),
        input_network=EmbeddingConfig(input_layer_dropout=shape.input_dropout),
    )
    ours = build_model(config, n_features=shape.n_features, n_days=1, n_classes=shape.n_classes)
    ours.load_state_dict(as_ours(restated))
    return restated, ours


@torch.no_grad()
def logits(shape: Shape, attention: str, n_bins: list[int]) -> list[tuple[torch.Tensor, ...]]:
    """Logits [own frames, V] of each trial, restated and ours."""
    restated, ours = pair(shape, attention)
    x_BTC, n_bins_B = torch.randn(len(n_bins), max(n_bins), shape.n_features), torch.tensor(n_bins)
    n_frames_B = (n_bins_B + shape.patch - 1) // shape.patch
    for trial, bins in enumerate(n_bins):
        x_BTC[trial, bins:] = 0
    expected_BPV = restated.eval()(patches(x_BTC, shape.patch), n_frames_B)
    found_BPV, _ = ours.eval()(x_BTC, NO_DAY[: len(n_bins)], n_patches_B=n_frames_B)
    return [
        (found_BPV[trial, :frames], expected_BPV[trial, :frames])
        for trial, frames in enumerate(n_frames_B.tolist())
    ]


@pytest.mark.parametrize("attention", KINDS)
@pytest.mark.parametrize("patch", [4, 5])
def test_logits_are_equal(attention, patch):
    """Trials are longer than the context, and their last patches are partly filled."""
    for found, expected in logits(replace(SMALL, patch=patch), attention, [151, 98, 37]):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


def test_logits_of_the_published_shape_are_equal_beyond_context_and_greatest_distance():
    """1,203 bins are 301 frames: longer than 250 frames of context, and than distance 199."""
    for found, expected in logits(T15, "causal", [1203, 900]):
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


class Steps:
    """Training steps on the same batches, in float64: Adam divides by a gradient, however small."""

    def __init__(self, attention: str) -> None:
        restated, self.ours = pair(SMALL, attention)
        self.restated = RestatedTrainer(restated.shape, n_masks=0)
        self.restated.model.load_state_dict(restated.state_dict())
        self.restated.model.double()
        self.ours.double().train()
        config = TrainConfig(
            model=self.ours.config,
            lr_max=2e-3,
            lr_min=2e-4,
            lr_warmup_steps=0,
            epsilon=1e-8,
            weight_decay=1e-5,
            grad_norm_clip_value=100,
        )
        self.optimizer = Optimizer(self.ours, config)
        self.loss = build_loss(CTCConfig(per_label=True), "transformer")

    def step(self, number: int) -> tuple[float, float]:
        """Losses of both sides before a step; the generator draws the same context for both."""
        x_BTC, n_bins_B = torch.randn(3, 143, 16).double(), torch.tensor([143, 98, 77])
        labels_BU, n_labels_B = torch.randint(1, 41, (3, 8)), torch.tensor([8, 5, 3])
        batch = {"x_BTC": x_BTC, "n_bins_B": n_bins_B}
        batch |= {"labels_BU": labels_BU, "n_labels_B": n_labels_B}
        torch.manual_seed(number)
        expected = self.restated.step(batch)
        torch.manual_seed(number)
        ours = TrainBatch(
            x_BTC, NO_DAY, n_bins_B, self.ours.n_patches(n_bins_B), labels_BU, n_labels_B,
            indices=np.arange(3), days=NO_DAY[:1],
        )  # fmt: skip
        loss = self.loss(self.ours, ours, 0.0)["loss"].mean()
        loss.backward()
        self.optimizer.step(number, NO_DAY[:1])
        return loss.item(), expected

    def assert_same_weights(self) -> None:
        # Left over: our biases do not decay, the restated ones do, by 2e-8 of their value a step.
        expected = as_ours(self.restated.model)
        for name, parameter in self.ours.named_parameters():
            torch.testing.assert_close(
                parameter.detach(), expected[name], atol=1e-6, rtol=0, msg=name
            )


@pytest.mark.parametrize("attention", KINDS)
def test_optimiser_steps_are_equal(attention):
    sides = Steps(attention)
    before = as_ours(sides.restated.model)
    for number in range(3):
        found, expected = sides.step(number)
        assert found == pytest.approx(expected, abs=1e-5)
        sides.assert_same_weights()
    moved = {name for name, p in sides.ours.named_parameters() if not torch.equal(p, before[name])}
    assert moved == set(before)


def test_dropout_acts_in_the_same_places():
    """Trials repeated 3,000 times: mean and spread of the logits tell where values are dropped.

    Each place contributes its own variance. With one place left out, the spread of some logits
    differs by 10 % or more; that of 3,000 draws is known to 1.3 %.
    """
    shape = replace(SMALL, input_dropout=0.2, dropout=0.35, contexts=(9, 9))
    restated, ours = pair(shape, "causal")
    n_draws = 3000
    x_BTC = torch.randn(1, 48, 16).expand(n_draws, -1, -1)
    n_frames_B = torch.full((n_draws,), 12)
    with torch.no_grad():
        expected = restated.train()(patches(x_BTC, 4), n_frames_B)
        days_B = torch.zeros(n_draws, dtype=torch.int64)
        found, _ = ours.train()(x_BTC, days_B, n_patches_B=n_frames_B)
    spread = expected.std(0)
    torch.testing.assert_close(found.std(0) / spread, torch.ones_like(spread), atol=0.08, rtol=0)
    standard_error = spread * (2 / n_draws) ** 0.5
    worst = ((found.mean(0) - expected.mean(0)) / standard_error).abs().max()
    assert worst < 5.5


def test_restated_masks_cover_what_the_closed_form_says():
    """The published shares: about 40 % of a trial for T15, about 53 % for T12."""
    assert expected_mask_share(225, 20, 0.05) == pytest.approx(0.40, abs=0.02)
    assert expected_mask_share(225, 20, 0.075) == pytest.approx(0.53, abs=0.02)
    torch.manual_seed(0)
    for length in (40, 225):
        lengths_B = torch.full((300,), length)
        found = time_masks(lengths_B, length, 20, 0.075).double().mean()
        assert found == pytest.approx(expected_mask_share(length, 20, 0.075), abs=0.02)


@pytest.mark.parametrize("recipe", ["transformer_t15", "transformer_t12"])
def test_our_masks_cover_what_the_closed_form_says(recipe):
    """1,000 trials of 60 to 240 patches, the last of them filled in part."""
    (settings,) = read_train_config(recipe).dataset.augmentations
    n_bins_B = torch.arange(1000) % 721 + 240
    n_frames_B = -(-n_bins_B // settings.patch_bins)
    x_BTC = torch.ones(1000, 960, 1)
    (masks,) = build_augmentations([settings])
    masked_BT = masks(x_BTC, n_bins_B, torch.Generator().manual_seed(0))[..., 0] == 0
    masked_BP = masked_BT[:, :: settings.patch_bins]
    own_BP = torch.arange(masked_BP.shape[1]) < n_frames_B[:, None]
    assert not (masked_BP & ~own_BP).any()
    expected = [
        expected_mask_share(int(n), settings.n_masks, settings.max_share)
        for n in n_frames_B.unique()
    ]
    by_length = dict(zip(n_frames_B.unique().tolist(), expected, strict=True))
    found = (masked_BP.sum(1) / n_frames_B).mean().item()
    assert found == pytest.approx(np.mean([by_length[n] for n in n_frames_B.tolist()]), abs=0.01)


def test_the_closed_form_by_hand():
    """One mask of 0 or 1 of 2 patches hides a quarter; two hide 1 - (3/4) ** 2.

    Three patches: a mask of 1 or 2 covers the middle in 1/3 and 2/2 of its places, the ends in
    1/3 and 1/2; lengths 0, 1 and 2 are equally likely.
    """
    assert expected_mask_share(2, 1, 0.5) == pytest.approx(1 / 4)
    assert expected_mask_share(2, 2, 0.5) == pytest.approx(7 / 16)
    ends, middle = (1 / 3 + 1 / 2) / 3, (1 / 3 + 1) / 3
    assert expected_mask_share(3, 1, 0.7) == pytest.approx((2 * ends + middle) / 3)


def test_gradients_in_mixed_precision_are_close_to_float32():
    """A CPU's LayerNorm on bfloat16 sums the gradients of its weights with large errors."""
    config = TransformerConfig(
        n_units=32, n_layers=2, n_heads=2, head_units=16, dropout=0.0,
        input_network={"day_layer": "affine", "input_layer_dropout": 0.0},
    )  # fmt: skip
    torch.manual_seed(0)
    network = build_model(config, n_features=16, n_days=1, n_classes=41).train()
    x_BTC, n_frames_B = torch.randn(40, 320, 16), torch.full((40,), 80)
    target_BPV = torch.randn(40, 80, 41)

    def gradients(bf16: bool) -> dict[str, torch.Tensor]:
        network.zero_grad()
        torch.manual_seed(1)  # the same context
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            found_BPV, _ = network(
                x_BTC, torch.zeros(40, dtype=torch.int64), n_patches_B=n_frames_B
            )
        (found_BPV.float() - target_BPV).square().mean().backward()
        return {name: p.grad.clone() for name, p in network.named_parameters()}

    expected, found = gradients(bf16=False), gradients(bf16=True)
    errors = {name: ((found[name] - g).norm() / g.norm()).item() for name, g in expected.items()}
    assert max(errors.values()) < 0.03, errors
