"""Operations of the published shapes, worked out by hand."""

import torch

from cortext.models import GRUConfig, TransformerConfig, build_model
from cortext.models.triple_gru import TripleGRUConfig
from cortext.training.torch_backend import flops_of_attention, flops_per_bin, flops_per_patch


def network(config: object) -> torch.nn.Module:
    with torch.device("meta"):
        return build_model(config, n_features=512, n_days=45, n_classes=41)


def test_operations_of_the_baseline() -> None:
    baseline = network(GRUConfig())
    # A patch has 14 x 512 = 7,168 values; three gates of 768 units; five layers, of which four read
    # 768 units.
    weights = 2304 * 7168 + 4 * 2304 * 768 + 5 * 2304 * 768 + 768 * 41
    assert flops_per_patch(baseline) == 6 * weights
    assert flops_per_bin(baseline) == 4 * 512 * 512


def test_operations_of_the_three_networks_at_the_published_width() -> None:
    published = network(TripleGRUConfig(noise_units=7168))
    noise = 4 * 21504 * 7168
    clean = 2304 * 7168 + 5 * 2304 * 768 + 768 * 41
    noisy = 2304 * 7168 + 3 * 2304 * 768 + 768 * 41
    assert flops_per_patch(published) == 6 * (noise + clean + noisy)
    assert flops_per_bin(published) == 4 * 512 * 512


def test_a_noise_model_of_another_width_has_a_map_to_the_patch() -> None:
    narrow, wide = (
        network(TripleGRUConfig(noise_units=8)),
        network(TripleGRUConfig(noise_units=7168)),
    )
    noise, published = 24 * 7168 + 3 * 24 * 8 + 8 * 7168, 4 * 21504 * 7168
    assert flops_per_patch(wide) - flops_per_patch(narrow) == 6 * (published - noise)


def test_operations_of_the_published_transformer() -> None:
    transformer = network(TransformerConfig())
    # A patch has 4 x 512 = 2,048 values; queries, keys and values; 4 x 384 units between.
    block = 3 * 384 * 384 + 384 * 384 + 2 * 384 * 1536
    assert flops_per_patch(transformer) == 6 * (2048 * 384 + 5 * block + 384 * 41)
    assert flops_per_bin(transformer) == 0  # no day layer
    # 225 frames: two products in each of five blocks, of 384 units for each pair of frames.
    assert flops_of_attention(transformer, 225) == 6 * 5 * 2 * 225 * 225 * 384
    assert flops_of_attention(network(GRUConfig()), 225) == 0
