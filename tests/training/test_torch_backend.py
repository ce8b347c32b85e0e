"""Operations of the published shapes, worked out by hand."""

import torch

from cortext.models import GRUConfig, build_model
from cortext.models.triple_gru import TripleGRUConfig
from cortext.training.torch_backend import flops_per_bin, flops_per_patch


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
