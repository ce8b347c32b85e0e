"""Speed of the simulator: 256 electrodes on one core, over real time.

    python benchmarks/simulator.py [--json FILE] [--trials 50]

Times are of the processor, so that other work on the machine does not count: once without the disk
(one block of trials, z-scored) and once as `cortext simulate` does it, session files included.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

from cortext.data import BIN_MS
from cortext_bench.harness import cost_of, markdown_table, study_arguments, write_result
from cortext_data.simulate import preset_config, simulate
from cortext_data.simulate.brain import electrodes
from cortext_data.simulate.plan import PlannedBlock, PlannedDay, PlannedTrial, Prompt
from cortext_data.simulate.sentences import handwritten
from cortext_data.simulate.write import simulate_block


def in_memory(n_trials: int, repeats: int) -> tuple[float, float]:
    """Return the seconds of a recording, and the fewest processor seconds that it took."""
    config = preset_config("t15")
    sentences = [sentence.text for sentence in handwritten()[:n_trials]]
    trials = tuple(PlannedTrial(i, "train", Prompt(text, "")) for i, text in enumerate(sentences))
    day = PlannedDay("sim.2025.01.06", (1,), (PlannedBlock(1, trials),))
    e = electrodes(config, day.history)
    made = simulate_block(config, day, day.blocks[0], e)  # reads the dictionary and warms up
    costs = [cost_of(lambda: simulate_block(config, day, day.blocks[0], e)) for _ in range(repeats)]
    seconds = sum(one.trial.n_bins for one in made) * BIN_MS / 1000
    return seconds, min(cost.cpu_seconds for cost in costs)


def to_disk(n_trials: int, folder: Path) -> tuple[float, float]:
    """Return the seconds of a recording and its processor seconds, files included."""
    regular = [
        "plan=regular",
        "n_days=2",
        f"train_per_day={n_trials}",
        f"val_per_day={n_trials // 5}",
    ]
    overrides = [*regular, "test_per_day=0"]
    cost = cost_of(lambda: simulate(folder / "out", "t15", overrides=overrides))
    hours = json.loads((folder / "out" / "simulation.json").read_text())["hours"]
    return hours * 3600, cost.cpu_seconds


def main() -> None:
    parser = study_arguments(__doc__)
    parser.add_argument("--trials", type=int, default=50, help="trials of a block")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    result: dict[str, Any] = {"electrodes": 256, "trials": arguments.trials}
    with tempfile.TemporaryDirectory() as folder:
        measured = {
            "in memory": in_memory(arguments.trials, arguments.repeats),
            "to session files": to_disk(arguments.trials, Path(folder)),
        }
    rows = []
    for name, (recorded, took) in measured.items():
        result[name] = {"recording_s": recorded, "seconds": took, "ratio": recorded / took}
        rows.append([name, f"{recorded:.0f}", f"{took:.2f}", f"{recorded / took:.0f}"])
    columns = ["256 electrodes, one core", "recording s", "CPU s", "x real time"]
    print(markdown_table(columns, rows))
    write_result(arguments.json, result | {"ratio": result["in memory"]["ratio"]})


if __name__ == "__main__":
    sys.exit(main())
