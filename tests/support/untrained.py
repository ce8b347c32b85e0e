"""A run that has learnt nothing, for tests in which it does not matter what is decoded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from cortext.models import AcousticModel, build_model, model_config, save_model
from cortext.models.card import Smoothing
from cortext.text.inventory import RELEASE


def untrained_run(folder: Path, sessions: Sequence[str], n_features: int) -> Path:
    """Write the model of a run into the folder, always the same, and return the folder."""
    torch.manual_seed(0)
    config = model_config({"kind": "gru", "n_units": 8, "n_layers": 1})
    network = build_model(
        config, n_features=n_features, n_days=len(sessions), n_classes=len(RELEASE)
    )
    model = AcousticModel(
        network,
        sessions=sessions,
        n_features=n_features,
        inventory=RELEASE,
        smoothing=Smoothing(),
        feature_subset=None,
    )
    save_model(model, folder)
    return folder
