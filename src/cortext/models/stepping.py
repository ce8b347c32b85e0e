"""A model that is fed one patch at a time, as live decoding does.

The smoothed bins of a patch in, its logits out.

S bins in a patch, K of them, C features, V tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, Protocol, get_args

import numpy as np
import torch

from cortext.errors import DataError, RunError
from cortext.models.acoustic import NOT_FINITE, AcousticModel, Smoothing, day_of, load_model
from cortext.models.precision import autocast, full_float32
from cortext.models.single_step import Precision, computes_ahead, for_single_steps
from cortext.text.phonemes import Inventory

Backend = Literal["torch", "onnx"]


class Stepper(Protocol):
    """A model of one recording day with its recurrent state.

    Attributes:
        session: The day whose layer is used; sessions: all that the model knows, the latest last.
        n_features: Features per bin of a recording, of which the stepper takes those that the model
            uses.
        smoothing: What the model was trained with; the bins of a step must have been smoothed
            already.
    """

    session: str
    sessions: tuple[str, ...]
    n_features: int
    patch_size: int
    patch_stride: int
    smoothing: Smoothing
    inventory: Inventory

    def use(self, session: str) -> None:
        """Take another day's layer from the next step on; `latest` is the last one.

        Raises RunError for an unknown.
        """
        ...

    def start(self) -> None:
        """Begin an utterance: the next step goes on from the learnt first state."""
        ...

    def prepare(self, bins_KC: np.ndarray) -> None:
        """Compute of the next step what its first K bins allow, float32 [K, C], while the others
        are awaited.

        It changes no result, and neither has to be called nor has the step to be of these bins.
        """
        ...

    def step(self, bins_SC: np.ndarray) -> np.ndarray:
        """Logits float32 [V] of the next patch, smoothed features float32 [S, C].

        The patch begins `patch_stride` bins after the one before. Raises DataError for another
        shape.
        """
        ...


def open_stepper(
    path: str | Path,
    session: str = "latest",
    backend: Backend = "torch",
    precision: Precision = "fp32",
) -> Stepper:
    """A stepper of a run directory (`torch`: fp32, bf16, int8) or of an exported one (`onnx`:
    fp32, int8).

    Raises what `load_model` or `OnnxStepper` raises, and RunError for an unknown session, backend
    or precision.
    """
    if backend == "onnx":
        from cortext.models.onnx import OnnxStepper

        return OnnxStepper(path, session, precision)
    if backend != "torch":
        raise RunError(f"unknown backend {backend!r}", fix="use torch or onnx")
    return TorchStepper(load_model(path), session, precision)


class TorchStepper:
    """A `Stepper` of a loaded model, on the device where the model is.

    The logits agree with the whole trial's to 1e-5.

    Args:
        session: A day that the model knows; `latest` is its last one. Raises RunError for another,
            and for a model that keeps no state between patches.
        precision: `bf16` and `int8` (on a CPU) round weights, which are half or a quarter of the
            bytes that a step has to read; see `single_step.py`.
    """

    def __init__(
        self, model: AcousticModel, session: str = "latest", precision: Precision = "fp32"
    ) -> None:
        on_cpu = model.device.type == "cpu"
        if precision not in get_args(Precision) or (precision == "int8" and not on_cpu):
            raise RunError(
                f"no steps in {precision} on {model.device.type}", fix="use fp32 or bf16"
            )
        config = model.network.config
        self.sessions, self.n_features = model.sessions, model.n_features
        self.patch_size, self.patch_stride = patch_shape(config.patch_size, config.patch_stride)
        self.smoothing, self.inventory = model.smoothing, model.inventory
        self._network: Any = for_single_steps(model.network, precision) if on_cpu else model.network
        self._device, self._autocast = model.device, precision == "bf16" and not on_cpu
        self._columns = model.feature_subset
        self._state: Any = None
        self.use(session)
        # What cannot step is found out now, and not with the first word that somebody says.
        bins_SC = np.ones((self.patch_size, self.n_features), dtype=np.float32)
        first_V = check_first_step(self.step(bins_SC))
        self.start()
        # A network of a user's own may change with each run: what is not a number would then stay
        # in it.
        is_pure = self.step(bins_SC).tobytes() == first_V.tobytes()
        self.start()
        self._computes_ahead = is_pure and computes_ahead(self._network)
        self.prepare(bins_SC[:0])

    def use(self, session: str) -> None:
        """See `Stepper`."""
        self.session, day = day_of(session, self.sessions)
        self._day_B = torch.tensor([day], device=self._device)

    def start(self) -> None:
        """See `Stepper`."""
        self._state = None

    def prepare(self, bins_KC: np.ndarray) -> None:
        """See `Stepper` and `single_step.py`.

        It does nothing on a GPU, and where `computes_ahead` says no.
        """
        if not self._computes_ahead:
            return
        bins_SC = np.full((self.patch_size, self.n_features), np.nan, dtype=np.float32)
        bins_SC[: len(bins_KC)] = bins_KC
        try:
            self._run(bins_SC)
        # a network of a user's own may refuse what is not a number; what else is wrong, `step`
        # finds
        except Exception:
            self._computes_ahead = False

    def step(self, bins_SC: np.ndarray) -> np.ndarray:
        """See `Stepper`."""
        check_patch(self, bins_SC)
        logits_BPV, self._state = self._run(
            np.array(bins_SC, dtype=np.float32)
        )  # theirs may be read-only
        if self._state is None:
            raise RunError(
                "this model keeps no state between patches; it cannot decode live",
                fix="use another model",
            )
        logits_V: np.ndarray = logits_BPV[0, 0].float().cpu().numpy()
        return logits_V

    @torch.inference_mode()
    def _run(self, bins_SC: np.ndarray) -> tuple[torch.Tensor, Any]:
        """Logits [1, 1, V] and the next state."""
        x_BTC = torch.from_numpy(bins_SC).to(self._device)[None]
        if self._columns is not None:
            x_BTC = x_BTC[..., self._columns]
        with full_float32(), autocast(self._device, self._autocast):
            logits_BPV, state = self._network(x_BTC, self._day_B, self._state)
        return logits_BPV, state


def patch_shape(size: int, stride: int) -> tuple[int, int]:
    """Bins in a patch and from one to the next: a patch size of 0 means single bins."""
    return (size, stride) if size else (1, 1)


def check_first_step(logits_V: np.ndarray) -> np.ndarray:
    """The logits of a first patch, of ones.

    Raises RunError where they are not finite: no other ones would be.
    """
    if not np.isfinite(logits_V).all():
        raise RunError(
            f"the model {NOT_FINITE}, whatever it reads",
            fix="take another model, or export the run again",
        )
    return logits_V


def check_patch(stepper: Stepper, bins_SC: np.ndarray) -> None:
    """Raise DataError for bins that are no patch of the stepper's model."""
    needed = (stepper.patch_size, stepper.n_features)
    if bins_SC.shape != needed:
        raise DataError(f"a patch of shape {list(bins_SC.shape)}; this model needs {list(needed)}")
