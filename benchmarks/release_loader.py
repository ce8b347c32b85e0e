"""The yardstick of data loading: how the T15 release reads a training batch, restated.

Facts from the release's `model_training/dataset.py`: a batch opens the HDF5 file of each of its
days with h5py, reads `input_features`, `seq_class_ids` and `transcription` of every trial whole,
reads four attributes, turns arrays into torch tensors, and pads with `pad_sequence`. Files are
opened anew for every batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import h5py
import torch
from torch.nn.utils.rnn import pad_sequence

ATTRIBUTES = ("n_time_steps", "seq_len", "block_num", "trial_num")


def load_batch(chosen: Mapping[int, tuple[Path, Sequence[int]]]) -> dict[str, torch.Tensor]:
    """Read one batch.

    Args:
        chosen: By day, the session file and the numbers of its trials.
    """
    arrays: dict[str, list[torch.Tensor]] = {
        "input_features": [],
        "seq_class_ids": [],
        "transcription": [],
    }
    numbers: dict[str, list[int]] = {name: [] for name in (*ATTRIBUTES, "day")}
    for day, (path, trials) in chosen.items():
        with h5py.File(path, "r") as file:
            for number in trials:
                group = file[f"trial_{number:04d}"]
                for name, values in arrays.items():
                    values.append(torch.from_numpy(group[name][:]))
                for name in ATTRIBUTES:
                    numbers[name].append(int(group.attrs[name]))
                numbers["day"].append(day)
    batch = {name: torch.tensor(values) for name, values in numbers.items()}
    for name in ("input_features", "seq_class_ids"):
        batch[name] = pad_sequence(arrays[name], batch_first=True, padding_value=0)
    batch["transcription"] = torch.stack(arrays["transcription"])
    return batch
