"""A participant who writes short sentences by hand: each character has its pattern of spikes.

The FALCON files are those of `foreign_nwb.write_falcon`; a model learns them in seconds.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from foreign_files import Written
from foreign_nwb import write_falcon

from cortext.features import AugmentationConfig
from cortext.models import GRUConfig
from cortext.models.inputs import InputNetworkConfig
from cortext.training import DatasetConfig, TrainConfig

CUES = (
    "we>see>it~", "is>it>so?", "let>us>eat,>too~", "it's>late~", "sit>still~", "a>test,>a>tale~",
    "tell>us~", "so>we>set>out~", "at>least>two~",
)  # fmt: skip
SIGNS = sorted(set("".join(CUES)))
BINS_PER_SIGN = 12


class Participant:
    """Counts of 192 electrodes while a cue is written; every day moves the rates a little."""

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._rates = {sign: 0.4 * np.exp(self._rng.normal(0, 0.9, 192)) for sign in SIGNS}
        self._day: dict[str, np.ndarray] = {}

    def write(self, cue: str, day: str, block: int) -> Written:
        """Return one trial: a pause before and after the cue, and the counts as uint8 [T, 192]."""
        gain = self._day.setdefault(day, np.exp(self._rng.normal(0, 0.2, 192)))
        rest = [np.full((10, 192), 0.4)]
        signs = [np.tile(self._rates[sign], (BINS_PER_SIGN, 1)) for sign in cue]
        rates = np.concatenate([*rest, *signs, *rest]) * gain
        return Written(cue, block, {"binned_spikes": self._rng.poisson(rates).astype(np.uint8)})


def write_challenge(
    public: Path,
    withheld: Path,
    held_in: Sequence[str],
    held_out: Sequence[str],
    n_calib: int = 6,
    n_eval: int = 1,
) -> None:
    """Write the files of all days.

    Args:
        public: Gets the calibration and minival as DANDI has them.
        withheld: Gets the `eval` files as the preparation names them, in one folder.
        held_in: Dates such as `2022.05.18`.
        held_out: Dates of days that have only three trials for calibration.
        n_calib: Trials for calibration of a held-in day.
        n_eval: Withheld trials of a day.
    """
    participant = Participant()
    material: dict[tuple[str, str], list[Written]] = {}
    number = 0
    for kind, days, n_trials in (("held-in", held_in, n_calib), ("held-out", held_out, 3)):
        for day in days:
            trials = []
            for i in range(n_trials + n_eval):
                trials.append(participant.write(CUES[number % len(CUES)], day, 1 + i // 4))
                number += 1
            material[f"{kind}-calib", day] = trials[:n_trials]
            if kind == "held-in":
                material["held-in-minival", day] = trials[:2]
            write_falcon(withheld, {(f"{kind}-eval", day): trials[n_trials:]}, dandi=False)
    write_falcon(public, material)
    for path in withheld.glob("*/*.nwb"):
        path.rename(withheld / path.name)


def writing_config(n_batches: int = 150) -> TrainConfig:
    """Return settings with which a model learns to read the participant."""
    rates = {"lr_max": 0.01, "lr_min": 0.001, "lr_max_day": 0.01, "lr_min_day": 0.001}
    steps = {f"lr_{kind}_steps{day}": n for kind, n in
             (("decay", n_batches), ("warmup", 5)) for day in ("", "_day")}  # fmt: skip
    return TrainConfig(
        model=GRUConfig(
            n_units=64,
            n_layers=1,
            patch_size=8,
            patch_stride=4,
            rnn_dropout=0.0,
            input_network=InputNetworkConfig(input_layer_dropout=0.1),
        ),
        dataset=DatasetConfig(
            batch_size=16,
            days_per_batch=2,
            data_transforms=AugmentationConfig(white_noise_std=0.3, constant_offset_std=0.1),
        ),
        num_training_batches=n_batches,
        batches_per_train_log=n_batches,
        batches_per_val_step=n_batches,
        epsilon=1e-8,
        precision="fp32",
        **rates,
        **steps,
    )
