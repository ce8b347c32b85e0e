"""The ways to run a model that `cortext bench latency` compares."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from cortext.errors import MissingLibrary
from cortext.models import AcousticModel, save_model
from cortext.models.card import Conventional
from cortext_bench.posteriors import INVENTORY
from cortext_live.steps.stepper import Stepper
from cortext_live.steps.stepping import TorchStepper

EAGER = "torch eager fp32"
OURS = ("torch fp32", "torch bf16", "torch int8")
"""The ways whose matrix products are our own."""
MODES = (EAGER, *OURS, "onnx fp32", "onnx int8")
CHANCE = 1.1
"""Factor by which float32 may take longer by chance: torch and we read the same bytes, and ours
took 0.87 to 1.04 times torch's time in 14 runs of 60 steps beside other work."""


class Played(Conventional):
    """A stepper that computes as another does and returns given logits.

    Args:
        stepper: The one that computes.
        n_before: Steps of `fill`: the frames that the model's attention looks back.
    """

    def __init__(self, stepper: Stepper, n_before: int = 0) -> None:
        self.session = stepper.session
        self.sessions = stepper.sessions
        self.n_features = stepper.n_features
        self.patch_size = stepper.patch_size
        self.patch_stride = stepper.patch_stride
        self.pads_last_patch = stepper.pads_last_patch
        self.smoothing = stepper.smoothing
        self.conventions = replace(stepper.conventions, inventory=INVENTORY)
        self._stepper = stepper
        self._n_before = n_before
        self.logits: Iterator[np.ndarray] | None = None

    def use(self, session: str) -> None:
        """See `Stepper`."""
        self._stepper.use(session)

    def start(self) -> None:
        """See `Stepper`."""
        self._stepper.start()

    def fill(self) -> None:
        """Take the steps before an utterance, on noise."""
        rng = np.random.default_rng(0)
        shape = self.patch_size, self.n_features
        for _ in range(self._n_before):
            self._stepper.step(rng.standard_normal(shape, dtype=np.float32))

    def prepare(self, bins_KC: np.ndarray) -> None:
        """See `Stepper`."""
        self._stepper.prepare(bins_KC)

    def step(self, bins_SC: np.ndarray) -> np.ndarray:
        """See `Stepper`."""
        own_V = self._stepper.step(bins_SC)
        return own_V if self.logits is None else next(self.logits)


class _Eager(TorchStepper):
    """A stepper like the public release's: torch's own modules, one patch at a time."""

    def __init__(self, model: AcousticModel) -> None:
        super().__init__(model)
        self._network = model.network

    def prepare(self, bins_KC: np.ndarray) -> None:
        """See `Stepper`: torch's own modules compute nothing ahead."""


def no_more_work(work_ms: Mapping[str, float]) -> bool | None:
    """Return whether no way of ours does more work a step than torch's own modules, in float32.

    A way of laying out or fetching weights that is fast on one processor may be slow on another.

    Args:
        work_ms: Median processor time of a step by the name of the way.

    Returns:
        None where torch's modules or all of ours were not timed.
    """
    ours_ms = {name: work_ms[name] for name in OURS if name in work_ms}
    if EAGER not in work_ms or not ours_ms:
        return None
    return all(
        ms <= work_ms[EAGER] * (CHANCE if name == "torch fp32" else 1)
        for name, ms in ours_ms.items()
    )


def steppers(
    model: AcousticModel, modes: Sequence[str]
) -> tuple[dict[str, Stepper], dict[str, str]]:
    """Return steppers of the modes that can run here, and the reason for each of the others."""
    found: dict[str, Stepper] = {}
    missing: dict[str, str] = {}
    torch_modes: dict[str, Callable[[], Stepper]] = {
        EAGER: lambda: _Eager(model),
        "torch fp32": lambda: TorchStepper(model),
        "torch bf16": lambda: TorchStepper(model, precision="bf16"),
        "torch int8": lambda: TorchStepper(model, precision="int8"),
    }
    onnx_modes = [mode for mode in modes if mode.startswith("onnx ")]
    with tempfile.TemporaryDirectory() as folder:
        try:
            if onnx_modes:
                from cortext_live.steps.onnx import export_onnx
                from cortext_live.steps.onnx_stepper import OnnxStepper

                save_model(model, Path(folder, "run"))
                export_onnx(Path(folder, "run"), Path(folder, "onnx"), int8="onnx int8" in modes)
            for mode in modes:
                precision = mode.split()[1]
                found[mode] = (
                    OnnxStepper(Path(folder, "onnx"), precision=precision)
                    if mode in onnx_modes
                    else torch_modes[mode]()
                )
        except MissingLibrary as error:
            missing = dict.fromkeys(onnx_modes, str(error))
            found = {mode: torch_modes[mode]() for mode in modes if mode in torch_modes}
    return found, missing
