"""Learning curves of the published loop and ours, from the same weights on the same batches.

They show whether the fast training costs accuracy.

Dropout, noise and cuts are drawn independently on each side, so that the curves agree as two runs
of one trainer do.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from cortext.evaluation.figures import Curve, learning_curves, save_picture
from cortext.files import disk_errors
from cortext.provenance import provenance
from cortext_bench.harness import Stage
from cortext_bench.training.compare import TrainingBenchSettings, TrainingShape, start
from cortext_bench.training.data import SimulatedRecordings

VALIDATIONS = 8
NAMES = {"release": "published", "ours": "cortext"}


def training_curves(
    steps: int,
    plan: TrainingBenchSettings,
    picture: Path | None = None,
    recording: SimulatedRecordings | None = None,
    overrides: Sequence[str] = (),
    stage: Stage = lambda name: None,
) -> dict[str, Any]:
    """Train the release and ours for `steps` steps of the demo recipe, its schedule fitted to them.

    Returns what `--json` prints: by side the loss of each step, and validations as [step, PER,
    loss]. `final_loss` is the mean loss of the last tenth of the steps.

    Args:
        steps: Training steps of each side.
        plan: Device, threads and processes.
        picture: A PNG (or SVG) of the losses and the validation errors.
        recording: Recordings to train on; by default half of the demo's.
        overrides: `key=value` changes of the configuration.
        stage: Called with the name of each stage.
    """
    recording = recording or SimulatedRecordings(6, 110, 128, 0, preset="demo")
    schedule = [f"{name}={steps}" for name in ("lr_decay_steps", "lr_decay_steps_day")]
    schedule += [f"{name}={steps // 10}" for name in ("lr_warmup_steps", "lr_warmup_steps_day")]
    shape = TrainingShape("demo", recording, (*schedule, *overrides, "batches_per_train_log=1"))
    if picture is not None:
        with disk_errors(picture):  # before the work
            picture.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="cortext-bench-") as name, ExitStack() as stack:
        folder = Path(name)
        stage("simulating")
        recording.write(folder)
        sides = {
            side: stack.enter_context(start(side, folder, shape, plan))
            for side in ("ours", "release")
        }
        weights = str(folder / "weights.safetensors")
        sides["ours"].ask("give", path=weights)
        sides["release"].ask("take", path=weights)
        found: dict[str, dict[str, Any]] = {
            side: {"losses": [], "validations": [], "precision": child.loaded["precision"]}
            for side, child in sides.items()
        }
        ends = sorted(
            {round(steps * part / VALIDATIONS) for part in range(1, VALIDATIONS + 1)} - {0}
        )
        for begin, end in zip([0, *ends], ends, strict=False):
            for side, child in sides.items():
                stage(f"{side}: {end} of {steps} steps")
                found[side]["losses"] += child.ask("train", n=end - begin)["losses"]
                metrics = child.ask("validate")
                found[side]["validations"].append([end, metrics["per"], metrics["loss"]])
    for values in found.values():
        values["final_loss"] = statistics.fmean(values["losses"][-max(1, steps // 10) :])
        values["final_per"] = values["validations"][-1][1]
    if picture is not None:
        _draw(found, picture)
    return {"curves": found, "steps": steps, "provenance": provenance()}


def _draw(found: dict[str, dict[str, Any]], path: Path) -> None:
    losses = []
    errors = []
    for side, name in NAMES.items():
        values = found[side]
        label = f"{name}, {found[side]['precision']}"
        losses.append(Curve(label, range(1, len(values["losses"]) + 1), values["losses"]))
        errors.append(
            Curve(
                label,
                *zip(*((step, 100 * per) for step, per, _ in values["validations"]), strict=True),
            )
        )
    with disk_errors(path):
        save_picture(learning_curves(losses, errors), path)
