"""A model that takes one patch of smoothed bins at a time and returns its logits.

Live decoding uses it.

S bins in a patch, K of them, C features, V tokens.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal, get_args

import numpy as np
import torch

from cortext.arguments import check_text, check_type
from cortext.errors import RunError
from cortext.models.acoustic import (
    NOT_FINITE,
    AcousticModel,
    check_causal,
    day_of,
    load_model,
)
from cortext.models.card import Conventional
from cortext.models.precision import autocast, full_float32
from cortext.models.registry import check_output
from cortext.plugins import place
from cortext_live.steps.single_step import Precision, computes_ahead, for_single_steps
from cortext_live.steps.stepper import Stepper, check_first_step, check_patch

Backend = Literal["torch", "onnx"]


def open_stepper(
    path: str | Path,
    session: str = "latest",
    backend: Backend = "torch",
    precision: Precision = "fp32",
) -> Stepper:
    """Open a model for stepping.

    Args:
        path: A run directory; for `onnx`, the directory that `cortext export --format onnx` wrote.
        session: Recording day; `latest` is the last one.
        backend: `torch` or `onnx`.
        precision: Number format of the weights: `fp32`, `int8` or, with torch, `bf16`.

    Raises:
        RunError: For an unknown session, backend or precision, and for a directory that
            `load_model` or `OnnxStepper` cannot read.
        MissingLibrary: For `onnx` without the extra of that name.
    """
    check_text(backend, "backend")
    if backend == "onnx":
        from cortext_live.steps.onnx_stepper import OnnxStepper

        return OnnxStepper(path, session, precision)
    if backend != "torch":
        raise RunError(f"unknown backend {backend!r}", fix="use torch or onnx")
    return TorchStepper(load_model(path), session, precision)


class TorchStepper(Conventional):
    """A `Stepper` of a loaded model, on the device where the model is.

    The logits agree with the whole trial's to 1e-5.

    Args:
        model: The model.
        session: A day that the model knows; `latest` is its last one.
        precision: `bf16` and `int8` (on a CPU) round the weights to a half or a quarter of the
            bytes that a step has to read; see `single_step.py`.

    Raises:
        RunError: For an unknown session, and for a model that keeps no state between patches.
    """

    def __init__(
        self, model: AcousticModel, session: str = "latest", precision: Precision = "fp32"
    ) -> None:
        check_type(model, AcousticModel, "model", "an AcousticModel (load_model)")
        check_text(precision, "precision")
        check_causal(model.network)
        on_cpu = model.device.type == "cpu"
        if precision not in get_args(Precision) or (precision == "int8" and not on_cpu):
            raise RunError(
                f"no steps in {precision} on {model.device.type}", fix="use fp32 or bf16"
            )
        self.sessions = model.sessions
        self.n_features = model.n_features
        self.patch_size, self.patch_stride = model.patch_size, model.patch_stride
        self.pads_last_patch = model.pads_last_patch
        self.smoothing = model.smoothing
        self.conventions = model.conventions
        self._network: Any = for_single_steps(model.network, precision) if on_cpu else model.network
        self._device = model.device
        self._autocast = precision == "bf16" and not on_cpu
        self._columns = model.feature_subset
        self._state: Any = None
        self.use(session)
        # A model that cannot step fails here, not when the first word is spoken.
        bins_SC = np.ones((self.patch_size, self.n_features), dtype=np.float32)
        first_V = check_first_step(self._logits(bins_SC))
        self.start()
        # A user's own network may keep something of every call, and would keep the NaN of
        # `prepare`. Use `prepare` only if two first steps agree to the bit.
        is_pure = self._logits(bins_SC).tobytes() == first_V.tobytes()
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
        """See `Stepper`; it does nothing on a GPU, or if `computes_ahead` is false."""
        if not self._computes_ahead:
            return
        bins_SC = np.full((self.patch_size, self.n_features), np.nan, dtype=np.float32)
        bins_SC[: len(bins_KC)] = bins_KC
        try:
            self._run(bins_SC)
        # A user's own network may refuse NaN. `step` reports any other error.
        except Exception:
            self._computes_ahead = False

    def step(self, bins_SC: np.ndarray) -> np.ndarray:
        """See `Stepper`."""
        check_patch(self, bins_SC)
        logits_V = self._logits(bins_SC)
        if not np.isfinite(logits_V).all():
            where = place(self._network, "forward")
            raise RunError(f"the model {NOT_FINITE} for this patch", where=where)
        return logits_V

    def _logits(self, bins_SC: np.ndarray) -> np.ndarray:
        """Take a step; return its logits [V], which may not be finite."""
        # Copy: the caller's array may be read-only, which torch warns about.
        computed = self._run(np.array(bins_SC, dtype=np.float32))
        # A user's own network may give anything, also at a later step.
        output = check_output(self._network, computed, (1, 1, len(self.inventory)), 1)
        self._state = output.state
        if self._state is None:
            raise RunError(
                "this model keeps no state between patches; it cannot decode live",
                fix="use another model",
            )
        logits_V: np.ndarray = output.logits[0, 0].float().cpu().numpy()
        return logits_V

    @torch.inference_mode()
    def _run(self, bins_SC: np.ndarray) -> Any:
        """Return the result of `forward`: logits [1, 1, V] and the next state."""
        x_BTC = torch.from_numpy(bins_SC).to(self._device)[None]
        if self._columns is not None:
            x_BTC = x_BTC[..., self._columns]
        with full_float32(), autocast(self._device, self._autocast):
            return self._network(x_BTC, self._day_B, self._state)
