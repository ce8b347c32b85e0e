"""Small models and made-up trials for checks; random numbers that leave the program's own alone.

B trials, T bins, C features, P frames, U labels, V tokens.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch

from cortext.models import GRUConfig, TransformerConfig, TripleGRUConfig
from cortext.models.card import patch_shape
from cortext.models.transformer import EmbeddingConfig
from cortext.training.batches import TrainBatch
from cortext.training.distributed import own_random_numbers

SMALL = {
    "gru": GRUConfig(n_units=16, n_layers=2),
    "transformer": TransformerConfig(
        n_units=16,
        n_layers=2,
        n_heads=2,
        head_units=8,
        context_frames=6,
        input_network=EmbeddingConfig(day_layer="affine"),
    ),
    "triple_gru": TripleGRUConfig(noise_units=10, clean_units=16, noisy_units=8),
}
"""Every shipped model, quick to run: the tests of all models use them, and losses are checked with
them."""
LONGEST = 10_000
"""Most bins that are tried for a number of frames."""


@contextmanager
def separate_random_numbers(seed: int = 0) -> Iterator[None]:
    """Seed the generators of torch (on the CPU), NumPy and Python; restore them afterwards."""
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 # see seed_generators
    with own_random_numbers(torch.device("cpu")):
        seed_generators(seed, seed)
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002


def seed_generators(torch_seed: int, other_seed: int) -> None:
    """Seed torch's global generator on the CPU, and with another number NumPy's and Python's."""
    torch.default_generator.manual_seed(torch_seed)
    random.seed(other_seed)
    np.random.seed(other_seed)  # noqa: NPY002 # a user's own class may draw from it


def bins_for(network: Any, n_frames: int) -> int:
    """Return the fewest bins, in whole patches, of which the model makes so many frames."""
    size, stride = patch_shape(network.config.patch_size, network.config.patch_stride)
    n_bins = size + (n_frames - 1) * stride
    while int(network.n_patches(n_bins)) < n_frames and n_bins < LONGEST:
        n_bins += stride
    return n_bins


def make_batch(
    network: Any,
    n_bins: list[int],
    *,
    n_features: int,
    n_classes: int,
    days: list[int],
    n_labels: list[int] | None = None,
    more_bins: int = 0,
    seed: int = 0,
) -> TrainBatch:
    """Make a batch of noise, in which the padding is noise, too.

    The bins and labels of the trials depend on the seed and the trials' lengths alone.

    Args:
        network: The model, which gives the frames.
        n_bins: Bins of each trial.
        n_features: Features of a bin, C.
        n_classes: Tokens, V.
        days: Day of each trial.
        n_labels: Labels of each trial; None for one or two.
        more_bins: Bins of padding after the longest trial.
        seed: Seed of the noise.
    """
    rng = np.random.default_rng(seed)
    n_labels = n_labels or [2 - i % 2 for i in range(len(n_bins))]
    inside = [rng.normal(size=(n, n_features)) for n in n_bins]
    labels = [rng.integers(1, n_classes, n) for n in n_labels]
    padding = np.random.default_rng(seed + 1 + more_bins)
    x_BTC = padding.normal(size=(len(n_bins), max(n_bins) + more_bins, n_features))
    labels_BU = np.zeros((len(n_bins), max(1, *n_labels)), dtype=np.int64)
    for i in range(len(n_bins)):
        x_BTC[i, : n_bins[i]] = inside[i]
        labels_BU[i, : n_labels[i]] = labels[i]
    n_bins_B = torch.tensor(n_bins)
    return TrainBatch(
        torch.from_numpy(x_BTC.astype(np.float32)),
        torch.tensor(days),
        n_bins_B,
        torch.as_tensor(network.n_patches(n_bins_B)),
        torch.from_numpy(labels_BU),
        torch.tensor(n_labels),
        np.arange(len(n_bins)),
        torch.tensor(sorted(set(days))),
    )
