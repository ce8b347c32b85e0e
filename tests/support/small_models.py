"""Small models with made-up weights, and trials for them."""

import numpy as np
import torch

from cortext.data.conventions import RELEASE_CONVENTIONS
from cortext.models import AcousticModel, build_model
from cortext.models.card import Smoothing

SESSIONS = ("t15.2023.08.11", "t15.2023.08.13", "t15.2023.08.18")
N_FEATURES = 6


def make_model(config, feature_subset=None, conventions=RELEASE_CONVENTIONS):
    torch.manual_seed(0)
    n_used = N_FEATURES if feature_subset is None else len(feature_subset)
    n_classes = len(conventions.inventory)
    network = build_model(config, n_features=n_used, n_days=len(SESSIONS), n_classes=n_classes)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.1)
    return AcousticModel(
        network,
        sessions=SESSIONS,
        n_features=N_FEATURES,
        smoothing=Smoothing(),
        feature_subset=feature_subset,
        conventions=conventions,
    )


def trial(n_bins=60, seed=0):
    return np.random.default_rng(seed).normal(size=(n_bins, N_FEATURES)).astype(np.float32)
