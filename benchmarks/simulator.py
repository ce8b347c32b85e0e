"""How many times faster than real time the simulator makes the recordings of 256 electrodes, on
one core.

    python benchmarks/simulator.py [--json FILE] [--trials 50]

Times are of the processor, so that other work on the machine does not count: once without the disk
(one block of trials, z-scored) and once as `cortext simulate` does it, session files included.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

from cortext.data.simulate import preset_config, simulate
from cortext.data.simulate.brain import electrodes
from cortext.data.simulate.plan import PlannedBlock, PlannedDay, PlannedTrial, Prompt
from cortext.data.simulate.sentences import handwritten
from cortext.data.simulate.write import simulate_block


def in_memory(n_trials: int, repeats: int) -> tuple[float, float]:
    """Seconds of recording, and the least processor seconds that it took."""
    config = preset_config("t15")
    sentences = [sentence.text for sentence in handwritten()[:n_trials]]
    trials = tuple(PlannedTrial(i, "train", Prompt(text, "")) for i, text in enumerate(sentences))
    day = PlannedDay("sim.2025.01.06", (1,), (PlannedBlock(1, trials),))
    e = electrodes(config, day.history)
    simulate_block(config, day, day.blocks[0], e)  # reads the dictionary and warms up
    times = []
    for _ in range(repeats):
        started = time.process_time()
        made = simulate_block(config, day, day.blocks[0], e)
        times.append(time.process_time() - started)
    return sum(one.trial.n_bins for one in made) * 0.02, min(times)


def to_disk(n_trials: int, folder: Path) -> tuple[float, float]:
    """Seconds of recording and processor seconds that it took, everything included."""
    regular = [
        "plan=regular",
        "n_days=2",
        f"train_per_day={n_trials}",
        f"val_per_day={n_trials // 5}",
    ]
    started = time.process_time()
    simulate(folder / "out", "t15", overrides=[*regular, "test_per_day=0"])
    seconds = time.process_time() - started
    return json.loads((folder / "out" / "simulation.json").read_text())["hours"] * 3600, seconds


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="file to write the numbers to")
    parser.add_argument("--trials", type=int, default=50, help="trials of a block")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    result: dict[str, Any] = {"electrodes": 256, "trials": arguments.trials}
    with tempfile.TemporaryDirectory() as folder:
        measured = {
            "in memory": in_memory(arguments.trials, arguments.repeats),
            "to session files": to_disk(arguments.trials, Path(folder)),
        }
    print(f"{'256 electrodes, one core':28}{'recording s':>12}{'CPU s':>10}{'x real time':>14}")
    for name, (recorded, took) in measured.items():
        result[name] = {"recording_s": recorded, "seconds": took, "ratio": recorded / took}
        print(f"{name:28}{recorded:12.0f}{took:10.2f}{recorded / took:14.0f}")
    result["ratio"] = result["in memory"]["ratio"]
    if arguments.json:
        arguments.json.write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    sys.exit(main())
