"""Recordings of Spanish characters in bins of 10 ms, in which each character has its pattern."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np

from cortext.data import write_session
from cortext.data.conventions import Conventions
from cortext.data.trial import make_trial
from cortext.features import AugmentationConfig
from cortext.models import GRUConfig
from cortext.models.inputs import InputNetworkConfig
from cortext.text.inventory import Inventory
from cortext.text.language import EN, LANGUAGES
from cortext.training import DatasetConfig, TrainConfig
from cortext.training.config import TPUConfig

LETTERS = Inventory("letras", ("_", "|", *"aeilmorsí"), "_", None, "|", "character")
OWN = Conventions(LETTERS, LANGUAGES["es"], 10)
SENTENCES = ("el mar", "la sal", "mi río", "sí", "a mares", "oler a sal", "la rima", "mil riales")
DAYS = ("lab.2026.01.05", "lab.2026.01.06")
N_FEATURES = 8
NO_CHANCE = AugmentationConfig(white_noise_std=0.0, constant_offset_std=0.0, random_cut=0)
_SWAPPED = (*LETTERS.symbols[:2], *LETTERS.symbols[3:1:-1], *LETTERS.symbols[4:])
OTHERS = {
    "a permuted inventory": (
        replace(OWN, inventory=replace(LETTERS, symbols=_SWAPPED)),
        "token 2 is [ae], not [ae]",
    ),
    "another language": (replace(OWN, language=EN), "the language '(es|en)' is not '(es|en)'"),
    "another bin": (replace(OWN, bin_ms=20), "bins last [12]0 ms, not [12]0 ms"),
}
"""Conventions that do not go with `OWN`, and the words for it."""


def write_own(root: Path, splits: dict[str, int], conventions: Conventions = OWN) -> Path:
    """Write session files of two days; a character lasts 28 bins. Return the directory."""
    rng = np.random.default_rng(0)
    patterns = 2 * rng.normal(size=(len(LETTERS), N_FEATURES))
    for day in DAYS:
        for block, (split, n_trials) in enumerate(splits.items()):
            trials = []
            for number in range(n_trials):
                sentence = SENTENCES[(number + block) % len(SENTENCES)]
                symbols = [*sentence.replace(" ", "|")]
                clean = np.repeat(patterns[[LETTERS.index[s] for s in symbols]], 28, axis=0)
                x_TC = clean + rng.normal(size=clean.shape)
                trials.append(
                    make_trial(x_TC, day, block, number, sentence, conventions=conventions)
                )
            write_session(root / day / f"data_{split}.hdf5", trials)
    return root


def own_config(n_batches: int = 60, *, by_chance: bool = True) -> TrainConfig:
    """Return settings that learn such recordings in a second or two.

    Without `by_chance` there is no noise and no dropout: every backend then learns the same.
    """
    rates = {"lr_max": 0.02, "lr_min": 0.002, "lr_max_day": 0.02, "lr_min_day": 0.002}
    steps = {f"lr_{kind}_steps{day}": n for kind, n in
             (("decay", n_batches), ("warmup", 2)) for day in ("", "_day")}  # fmt: skip
    return TrainConfig(
        model=GRUConfig(
            n_units=24,
            n_layers=1,
            patch_size=28,
            patch_stride=8,
            rnn_dropout=0.0,
            input_network=InputNetworkConfig(input_layer_dropout=0.2 if by_chance else 0.0),
        ),
        dataset=DatasetConfig(
            batch_size=8,
            days_per_batch=2,
            data_transforms=AugmentationConfig(white_noise_std=0.5) if by_chance else NO_CHANCE,
        ),
        tpu=TPUConfig(length_shapes=1, compilation_cache=None),
        num_training_batches=n_batches,
        batches_per_train_log=n_batches,
        batches_per_val_step=n_batches,
        epsilon=1e-8,
        precision="fp32",
        **rates,
        **steps,
    )
