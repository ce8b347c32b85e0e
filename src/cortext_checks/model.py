"""Checks of a model: shapes, padding, time, gradients, files.

B trials, T bins, C features, P frames, V tokens.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from cortext.config import to_mapping
from cortext.data.trial import BIN_MS
from cortext.errors import ConfigError
from cortext.features import gaussian_kernel
from cortext.models import MODELS, AcousticModel, build_model, load_model, model_config, save_model
from cortext.models.card import Smoothing
from cortext.models.precision import full_float32
from cortext.models.registry import Output, check_output
from cortext.plugins import place
from cortext.text.inventory import RELEASE
from cortext.training.batches import TrainBatch
from cortext_checks.made_up import separate_random_numbers
from cortext_checks.network import FORWARD, LEARNING, NetworkChecks, difference
from cortext_checks.report import (
    CheckReport,
    Named,
    NotChecked,
    Report,
    examine,
    methods,
    skip,
)
from cortext_live.steps.onnx import export_onnx
from cortext_live.steps.stepper import patches_of
from cortext_live.steps.stepping import TorchStepper

SESSIONS = ("made-up-1", "made-up-2", "made-up-3")
N_FEATURES = 8
N_LONG_BINS = 3_000
"""Bins of a long trial: a minute."""
ARTEFACT = 1_000.0
"""Size of an artefact in features that usually lie around 1."""


def check_model(
    model: Any,
    *,
    loss: Any = None,
    smoothing: Smoothing | None = None,
    onnx: bool = True,
    report: Report | None = None,
) -> CheckReport:
    """Check a registered model on made-up data.

    Args:
        model: A name (`kind`), a registered class, a dataclass of settings, or a mapping of them.
        loss: Settings of the loss for the gradients; None takes the model's own.
        smoothing: Smoothing of the features, whose look-ahead is stated; None for the published.
        onnx: Export the model to ONNX, which takes seconds.
        report: Called with each result when it is there.

    Returns:
        The results, a line each.

    Raises:
        ConfigError: For an unknown model, and for settings that it does not have.
    """
    if isinstance(model, type):
        model = next((kind for kind, cls in MODELS.items() if cls is model), model.__name__)
    config = model_config({"kind": model} if isinstance(model, str) else model)
    n_features = config.n_input_features or N_FEATURES
    sizes: dict[str, Any] = {
        "n_features": n_features,
        "n_days": len(SESSIONS),
        "n_classes": len(RELEASE),
    }
    built: list[nn.Module] = []

    def checks() -> Iterator[Named]:
        yield "builds", lambda: _builds(config, sizes, built)
        for network in built:
            all_checks = ModelChecks(network, **sizes, loss=loss)
            yield from all_checks.thorough(smoothing or Smoothing(), onnx)

    with separate_random_numbers(), full_float32():
        blamed = [MODELS[config.kind]]
        found = examine(f"model {config.kind}", checks(), blamed, report=report)
    return CheckReport(tuple(found))


def _builds(config: Any, sizes: dict[str, Any], built: list[nn.Module]) -> str:
    def build(n_classes: int = len(RELEASE)) -> nn.Module:
        torch.default_generator.manual_seed(0)
        return build_model(config, **sizes | {"n_classes": n_classes})

    network = build()
    where = place(network, "__init__")
    if not isinstance(network, nn.Module):
        raise ConfigError("the class is no torch.nn.Module", where=where, fix="make it a subclass")
    for name in ("config", "n_patches"):
        if not hasattr(network, name):
            raise ConfigError(f"the model has no {name!r}", where=where, fix="add it to the class")
    if model_config(to_mapping(config)) != config:
        what = "its settings change when they are written to YAML and read again"
        raise ConfigError(what, where=where, fix="give every field a plain type")
    pairs = zip(network.state_dict().values(), build().state_dict().values(), strict=True)
    if not all(torch.equal(a, b) for a, b in pairs):
        what = "two models of one seed have different first weights"
        raise ConfigError(what, where=where, fix="draw them with torch's global generator")
    n_classes = len(RELEASE)
    if _shapes(build(n_classes + 1)) == _shapes(network):
        what = f"a model of {n_classes + 1} tokens has the same weights as one of {n_classes}"
        raise ConfigError(what, where=where, fix="make as many logits as n_classes says")
    with torch.no_grad():
        # A first weight of zero would hide mistakes: zero logits agree with zero logits.
        for parameter in network.parameters():
            parameter.add_(torch.randn(parameter.shape) * 0.05)
    built.append(network)
    n_weights = sum(parameter.numel() for parameter in network.parameters())
    return f"{n_weights:,} parameters, the same for the same seed"


def _shapes(network: nn.Module) -> dict[str, torch.Size]:
    return {name: tensor.shape for name, tensor in network.state_dict().items()}


class ModelChecks(NetworkChecks):
    """All checks of a network, whose weights they change; see `NetworkChecks`."""

    def thorough(self, smoothing: Smoothing, onnx: bool) -> list[Named]:
        """Return all checks; see `check_model` for the arguments."""
        return [
            *methods(self, *FORWARD, "long trials"),
            ("look-ahead", lambda: self.look_ahead(smoothing)),
            *methods(self, "pieces", "live steps", "tensors"),
            ("ONNX", lambda: self.onnx() if onnx else skip("it was switched off")),
            *methods(self, *LEARNING, "bfloat16", "save and load"),
        ]

    def bfloat16(self) -> str:
        """Check that the model trains with matrix products in bfloat16."""
        losses = self.backward(bf16=True)
        return f"finite; the loss is {float(losses['loss'].mean()):.3g} a trial"

    @torch.no_grad()
    def long_trials(self) -> str:
        """Check a trial of a minute, and one with an artefact."""
        batch = self.make([N_LONG_BINS], days=[0])
        for name, factor in (
            (f"of {N_LONG_BINS:,} bins", 1.0),
            (f"with features of {ARTEFACT:g}", ARTEFACT),
        ):
            found = self.run(batch, batch.x_BTC * factor)
            if not bool(found.logits.isfinite().all()):
                what = f"a trial {name} gives logits that are not finite"
                raise ConfigError(what, where=self.where)
        return f"finite over {N_LONG_BINS:,} bins, also with features of {ARTEFACT:g}"

    @torch.no_grad()
    def look_ahead(self, smoothing: Smoothing) -> str:
        """Check that no frame of a model with a state depends on bins after its patch."""
        ahead = 0
        if smoothing.smooth_data:
            kernel = gaussian_kernel(smoothing.smooth_kernel_std, smoothing.smooth_kernel_size)
            ahead = len(kernel) // 2
        smooths = f"smoothing looks {ahead} bins ahead ({ahead * BIN_MS:g} ms of {BIN_MS} ms bins)"
        size, stride = self.patch_size, self.stride
        n_bins = int(self.batch.n_bins_B[0])
        n_frames = int(self.network.n_patches(n_bins))
        one = self.trial(0)
        whole = self.run(one, one.x_BTC)
        # A trial for each frame p, in which all bins after the patch of p are others.
        x_PTC = one.x_BTC.repeat(n_frames, 1, 1)
        other_TC = self.make([n_bins], days=[0], seed=99).x_BTC[0]
        for p in range(n_frames):
            x_PTC[p, p * stride + size :] = other_TC[p * stride + size :]
        lengths_P = torch.full((n_frames,), n_frames)
        found = self.network(x_PTC, one.day_B.repeat(n_frames), n_patches_B=lengths_P)[0]
        change_PP = (found - whole.logits).abs().amax(-1)
        change_PP = torch.tril(change_PP)  # frame q <= p in the trial whose bins change after p
        allowed = self.allowed(whole.logits)
        if float(change_PP.max()) <= allowed:
            return f"no frame changes with bins after its patch; {smooths}"
        above = np.argwhere(change_PP.numpy() > allowed)
        what = (
            f"bins that are {int((above[:, 0] - above[:, 1]).max()) + 1} frames ahead of a patch"
            f" change its logits, by up to {float(change_PP.max()):.2g}"
        )
        if whole.state is None:
            raise NotChecked(f"it returns no state and so does not decode live; {what}; {smooths}")
        fix = "look back only, or return None as the state"
        raise ConfigError(f"{what}; a model with a state is stepped", where=self.where, fix=fix)

    @torch.no_grad()
    def pieces(self) -> str:
        """Check that a trial in pieces, with the state carried over, gives the whole trial."""
        one, whole = self._with_state()
        size, stride = self.patch_size, self.stride
        n_frames = whole.logits.shape[1]
        worst = 0.0
        for at_once in (1, 4):
            state = None
            for first in range(0, n_frames, at_once):
                last = min(first + at_once, n_frames) - 1
                x_BTC = one.x_BTC[:, first * stride : last * stride + size]
                shape = (1, last + 1 - first, self.n_classes)
                found = self.network(x_BTC, one.day_B, state)
                output = check_output(self.network, found, shape, shape[1])
                state = output.state
                worst = max(worst, difference(output.logits, whole.logits[:, first : last + 1]))
        what = "a trial in pieces gives other logits than the whole"
        fix = "begin where the given state ends, and return all that the next piece needs"
        self.refuse_above(worst, whole.logits, what, fix=fix)
        note = f"pieces of 1 and 4 patches differ from the whole by {worst:.1e}"
        if not hasattr(self.network, "first_state"):
            return note
        found = self.network(one.x_BTC, one.day_B, self.network.first_state(1))[0]
        what = "a trial begun with it has other logits than one without"
        where = place(self.network, "first_state")
        self.refuse_above(difference(found, whole.logits), whole.logits, what, where=where)
        return f"{note}; first_state begins a trial"

    def live_steps(self) -> str:
        """Check that steps as in live decoding give the whole trial."""
        one, whole = self._with_state()
        stepper = TorchStepper(self._acoustic_model(), SESSIONS[0])
        worst = 0.0
        patches = patches_of(stepper, one.x_BTC[0].numpy())
        for bins_SC, logits_V in zip(patches, whole.logits[0], strict=True):
            stepper.prepare(bins_SC[:-1])
            worst = max(worst, difference(torch.from_numpy(stepper.step(bins_SC)), logits_V))
        if worst > self.allowed(whole.logits):
            what = f"steps differ from the whole trial by up to {worst:.2g}"
            raise ConfigError(what, where=self.where, fix="keep nothing but the returned state")
        return f"steps and the whole trial differ by {worst:.1e}"

    def save_and_load(self) -> str:
        """Check that a model that was trained for a step has the same logits when it is read."""
        self._must_be_registered()
        self.backward()
        with tempfile.TemporaryDirectory() as folder, torch.no_grad():
            for parameter in self.network.parameters():
                if parameter.grad is not None:
                    parameter.sub_(parameter.grad.clamp(-1, 1), alpha=0.01)
            self.network.zero_grad()
            save_model(self._acoustic_model(), folder)
            torch.default_generator.manual_seed(1)  # random values that are not saved must differ
            loaded = load_model(folder).network
            before = self.output(self.batch).logits
            after = loaded(self.batch.x_BTC, self.batch.day_B, n_patches_B=self.batch.n_patches_B)[
                0
            ]
        if not torch.equal(before, after):
            worst = difference(before, after)
            what = f"the model gives other logits when it is read again, by up to {worst:.2g}"
            fix = "keep every tensor as a parameter or a buffer"
            raise ConfigError(what, where=self.where, fix=fix)
        return "the same logits when it is read again"

    def onnx(self) -> str:
        """Check the exported graph of a step."""
        if not hasattr(self.network, "first_state"):
            raise NotChecked("the model has no first_state, which an export needs")
        self._must_be_registered()
        with tempfile.TemporaryDirectory() as folder:
            save_model(self._acoustic_model(), folder)
            exported = export_onnx(folder, Path(folder, "onnx"))
        return f"graph and torch differ by {exported.graphs['fp32']['largest_difference']:.1e}"

    def _must_be_registered(self) -> None:
        if MODELS.get(self.kind) is not type(self.network):
            raise NotChecked("its class is not registered")

    @torch.no_grad()
    def _with_state(self) -> tuple[TrainBatch, Output]:
        """Return the longest trial and its output, which has a state."""
        one = self.trial(0)
        whole = self.run(one, one.x_BTC)
        if whole.state is None:
            raise NotChecked("it returns no state")
        return one, whole

    def _acoustic_model(self) -> AcousticModel:
        return AcousticModel(
            self.network,
            sessions=SESSIONS,
            n_features=self.batch.x_BTC.shape[2],
            inventory=RELEASE,
            smoothing=Smoothing(),
        )
