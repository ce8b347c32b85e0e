"""Recordings of two participants with other electrodes, days and bins, legible to a small model."""

from pathlib import Path

import numpy as np
import pytest
from safetensors.torch import load_file
from small_training import schedule

from cortext.data import write_session
from cortext.data.conventions import Conventions
from cortext.data.trial import Trial
from cortext.errors import CortextError
from cortext.features import AugmentationConfig
from cortext.models import GRUConfig
from cortext.models.inputs import InputNetworkConfig
from cortext.text.language import EN, Language
from cortext.training import DatasetConfig, TrainConfig, train

PHONEME_MS = 280
SENTENCES = "a cat sat", "a cat", "sat a cat", "cat sat"


def write_participant(
    root: Path,
    sessions: tuple[str, ...],
    n_features: int,
    bin_ms: float = 20,
    n_train: int = 12,
    n_val: int = 4,
    seed: int = 0,
    language: Language = EN,
    participant: str | None = None,
) -> Path:
    """Session files in which a frame tells its phoneme, by patterns of this participant's own."""
    rng = np.random.default_rng(seed)
    patterns = rng.normal(size=(41, n_features)) * 2
    conventions = Conventions(language=language, bin_ms=bin_ms, participant=participant)
    conventions.write(root)
    for session in sessions:
        (root / session).mkdir(parents=True)
        for block, (split, n_trials) in enumerate({"train": n_train, "val": n_val}.items()):
            trials = []
            for number in range(n_trials):
                labels_U = rng.integers(1, 6, size=rng.integers(3, 6))
                labels_U[-1] = 40
                clean = np.repeat(patterns[labels_U], round(PHONEME_MS / bin_ms), axis=0)
                features_TC = (clean + rng.normal(size=clean.shape)).astype(np.float32)
                labels_U = labels_U.astype(np.int64)
                of_trial = (
                    session,
                    block,
                    number,
                    SENTENCES[number % 4],
                    labels_U,
                    None,
                    conventions,
                )
                trials.append(Trial(features_TC, *of_trial))
            write_session(root / session / f"data_{split}.hdf5", trials)
    return root


A_DAYS = ("a.2024.01.01", "a.2024.01.03", "a.2024.01.08")
B_DAYS = ("b.2023.05.02", "b.2023.05.09")
C_DAYS = ("c.2025.02.02",)


def write_two(root: Path) -> dict[str, Path]:
    """A has 8 features, three days and bins of 20 ms; B has 12, two days and bins of 10 ms."""
    return {
        "A": write_participant(root / "a", A_DAYS, 8),
        "B": write_participant(root / "b", B_DAYS, 12, bin_ms=10, n_train=9, seed=1),
    }


def small_config(n_batches: int = 12, read_in: int | None = 6, **settings) -> TrainConfig:
    """A run of seconds for both of them."""
    model = {"n_units": 16, "n_layers": 1, "rnn_dropout": 0.0, "patch_size": 6, "patch_stride": 2}
    inputs = InputNetworkConfig(read_in=read_in, input_layer_dropout=0.2)
    transforms = AugmentationConfig(white_noise_std=0.2, smooth_kernel_std=1, random_cut=0)
    return TrainConfig(
        model=GRUConfig(**model, input_network=inputs),
        dataset=DatasetConfig(batch_size=6, days_per_batch=3, data_transforms=transforms),
        **schedule(n_batches, lr_max=0.01),
        **{"batches_per_train_log": 3, "batches_per_val_step": 4} | settings,
    )


def weights(folder: Path) -> dict:
    """The tensors of a model by name."""
    return load_file(folder / "model.safetensors")


def own(name: str) -> bool:
    """True for a weight of one participant alone."""
    return name.startswith(("day_", "read_in."))


def refused(config: TrainConfig, data, folder: Path, **settings) -> CortextError:
    """The one line with which a training is refused."""
    with pytest.raises(CortextError) as caught:
        train(config, data, folder / "refused", progress=False, **settings)
    assert "\n" not in str(caught.value)
    return caught.value
