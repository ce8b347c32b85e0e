"""A tiny recorded participant, an untrained model and a language model, made once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from cortext.data import make_trial, write_session
from cortext.decoding.ngram import LanguageModel
from cortext.models import AcousticModel, build_model, model_config, save_model
from cortext.models.card import Smoothing
from cortext.text.inventory import RELEASE

N_FEATURES = 8
DAYS = ("t15.2023.08.11", "t15.2023.08.13")
SENTENCES = {
    "train": ("I see you.", "You see me!", "we see you"),
    "val": ("I see you!", "me and you", "we see me"),
    "test": (None, None),
}


@dataclass(frozen=True)
class Tiny:
    run: Path
    data: Path
    lm: Path


def write_session_files(root: Path, days: tuple[str, ...] = DAYS, n_bins: int = 150) -> Path:
    generator = np.random.default_rng(0)
    for day in days:
        for split, sentences in SENTENCES.items():
            trials = [
                make_trial(
                    generator.normal(size=(n_bins + 5 * n, N_FEATURES)),
                    day,
                    1 + n // 2,
                    n,
                    sentence,
                )
                for n, sentence in enumerate(sentences)
            ]
            write_session(root / day / f"data_{split}.hdf5", trials)
    return root


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    root = tmp_path_factory.mktemp("evaluation")
    data = write_session_files(root / "data")
    (root / "lm.txt").write_text("i see you\nyou see me\nwe see you\n")
    LanguageModel.build([root / "lm.txt"], 2, root / "lm")
    torch.manual_seed(0)
    config = model_config({"kind": "gru", "n_units": 8, "n_layers": 1})
    network = build_model(config, n_features=N_FEATURES, n_days=len(DAYS), n_classes=len(RELEASE))
    model = AcousticModel(
        network,
        sessions=DAYS,
        n_features=N_FEATURES,
        inventory=RELEASE,
        smoothing=Smoothing(),
        feature_subset=None,
    )
    save_model(model, root / "run")
    (root / "run" / "config.yaml").write_text("seed: 7\n")
    return Tiny(root / "run", data, root / "lm")
