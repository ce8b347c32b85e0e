"""Time of a training batch: session files, as the release reads them, against packed data.

    python benchmarks/data_loading.py [--json FILE] [--batches 20]

Both read the same trials from warm files (page cache), in one process and one thread. Batches are
timed in turns, so that a busy machine slows both. The release's loader gives float32; ours gives
float16, from which the model is trained.

A packed batch is copied into memory that was used before: it takes no fresh pages. Its time is
close to that of a plain copy of its bytes, which is timed beside it. The release's loader takes
fresh pages and decompresses, which is work of the processor. The ratio of both is therefore lower
where one core copies memory slowly, as on many servers.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cortext.data import DayBalancedSampler, PackedSplit, Trial, pack, write_session
from cortext_bench.harness import (
    MeasuredCost,
    cost_of,
    in_turns,
    markdown_table,
    study_arguments,
    write_result,
)

sys.path.insert(0, str(Path(__file__).parent))
from release_loader import load_batch


def write_sessions(
    root: Path, n_sessions: int, n_trials: int, n_features: int, mean_bins: int
) -> list[Path]:
    """Write session files of the release's shape; every trial is another stretch of the same noise.

    Args:
        root: Folder to write in.
        n_sessions: Number of sessions, one file each.
        n_trials: Trials of each session.
        n_features: Features of each bin.
        mean_bins: Mean length of a trial, in bins.

    Returns:
        The files, one a session.
    """
    generator = np.random.default_rng(0)
    noise = generator.standard_normal((3 * mean_bins, n_features), dtype=np.float32)
    paths = []
    for day in range(n_sessions):
        session = f"t15.2024.01.{day + 1:02d}"
        lengths = generator.integers(mean_bins // 2, mean_bins * 3 // 2, n_trials)
        starts = generator.integers(0, mean_bins, n_trials)
        labels = np.array([8, 3, 40, 12, 40], dtype=np.int64)
        trials = (
            Trial(noise[start : start + length], session, 1, number, "a bench mark", labels)
            for number, (start, length) in enumerate(zip(starts, lengths, strict=True))
        )
        paths.append(root / session / "data_train.hdf5")
        write_session(paths[-1], trials)
    return paths


def chosen_files(
    split: PackedSplit, indices: np.ndarray, paths: list[Path]
) -> dict[int, tuple[Path, list[int]]]:
    """Return a batch as the release's loader wants it.

    Args:
        split: Packed split.
        indices: Trials of the batch, int64 [B].
        paths: Session file of every day.

    Returns:
        By day, the session file and the numbers of its trials.
    """
    days = split.day_N[indices].tolist()
    return {
        day: (
            paths[day],
            [int(split.trial_N[i]) for i, other in zip(indices, days, strict=True) if other == day],
        )
        for day in dict.fromkeys(days)
    }


def check_same(theirs: dict[str, torch.Tensor], split: PackedSplit, indices: np.ndarray) -> None:
    """Check that both ways give the same batch, up to half precision.

    Args:
        theirs: Batch of the release's loader, by the release's names.
        split: Packed split.
        indices: Trials of the batch, int64 [B].
    """
    ours = split.batch(indices)
    theirs_BTC = theirs["input_features"].numpy()
    assert theirs_BTC.shape == ours.features_BTC.shape
    assert np.array_equal(theirs_BTC.astype(np.float16), ours.features_BTC)
    assert np.array_equal(theirs["day"].numpy(), ours.day_B)


def copying(shape: tuple[int, ...]) -> Callable[[], object]:
    """Copy as many bytes as a batch of this shape has, between arrays already in use."""
    source = np.ones(shape, np.float16)
    target = np.ones(shape, np.float16)
    return lambda: np.copyto(target, source)


def measure(folder: Path, arguments: argparse.Namespace) -> dict[str, Any]:
    paths = write_sessions(
        folder / "data", arguments.sessions, arguments.trials, arguments.features, arguments.bins
    )
    split = pack(folder / "data", folder / "packed").split("train")
    sampler = DayBalancedSampler(split.day_N, arguments.batch_size, arguments.days, seed=0)
    for path in [*paths, split.path]:
        path.read_bytes()  # warm
    check_same(
        load_batch(chosen_files(split, sampler.indices(0), paths)), split, sampler.indices(0)
    )
    costs = in_turns(
        {
            "release": lambda batch: cost_of(lambda: load_batch(batch[1])),
            "packed": lambda batch: cost_of(lambda: split.batch(batch[0])),
            "copy": lambda batch: cost_of(
                copying((len(batch[0]), int(split.n_bins_N[batch[0]].max()), split.n_features))
            ),
        },
        (
            (sampler.indices(step), chosen_files(split, sampler.indices(step), paths))
            for step in range(arguments.warmup + arguments.batches)
        ),
        warmup=arguments.warmup,
    )
    return summary(costs, arguments)


def summary(costs: dict[str, list[MeasuredCost]], arguments: argparse.Namespace) -> dict[str, Any]:
    result: dict[str, Any] = {"settings": {**vars(arguments), "json": None}}
    for name, found in costs.items():
        median = statistics.median(cost.seconds for cost in found)
        result[name] = {
            "batch_ms_median": 1e3 * median,
            "batch_ms_worst": 1e3 * max(cost.seconds for cost in found),
            "trials_per_s": arguments.batch_size / median,
            "fresh_pages_median": statistics.median(cost.fresh_pages for cost in found),
        }
    result["ratio"] = result["packed"]["trials_per_s"] / result["release"]["trials_per_s"]
    return result


def table(result: dict[str, Any]) -> str:
    labels = {
        "release": "release (h5py, float32)",
        "packed": "packed (map, float16)",
        "copy": "plain copy of the bytes",
    }
    rows = []
    for name, label in labels.items():
        row = result[name]
        ms = [f"{row[key]:.2f}" for key in ("batch_ms_median", "batch_ms_worst")]
        rows.append(
            [label, *ms, f"{row['trials_per_s']:,.0f}", f"{row['fresh_pages_median']:,.0f}"]
        )
    columns = ["", "ms a batch", "worst", "trials/s", "fresh pages"]
    return f"{markdown_table(columns, rows)}\nratio of trials/s: {result['ratio']:.1f}"


def main() -> None:
    parser = study_arguments(__doc__)
    shape = dict(
        sessions=8,
        trials=60,
        features=512,
        bins=900,
        batch_size=64,
        days=4,
        batches=20,
        warmup=6,
        threads=1,
    )
    for name, default in shape.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    with tempfile.TemporaryDirectory() as folder:
        result = measure(Path(folder), arguments)
    print(table(result))
    write_result(arguments.json, result)


if __name__ == "__main__":
    main()
