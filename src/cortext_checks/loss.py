"""Checks of a loss: values, gradients, padding, unusual labels.

B trials, P frames.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_map

from cortext.errors import ConfigError
from cortext.models import build_model
from cortext.models.precision import full_float32
from cortext.plugins import place
from cortext.text.inventory import RELEASE
from cortext.training.batches import TrainBatch
from cortext.training.loss import LOSSES, build_loss, check_losses
from cortext_checks.made_up import (
    bins_for,
    make_batch,
    seed_generators,
    separate_random_numbers,
)
from cortext_checks.network import no_gradient
from cortext_checks.report import CheckResult, Named, Report, examine, methods

CHEAP_CHECKS = ("values", "repeats", "padding")
"""Checks that training begins with."""
ALL_CHECKS = (*CHEAP_CHECKS, "empty label", "long label", "gradients")
N_FEATURES = 8
FRAMES = (15, 9, 5)
"""Frames of the trials; none is the number of trials or of their bins."""
TOLERANCE = 1e-4
"""Largest change of a loss that should not change, times the largest loss above 1."""


def check_loss(config: Any, model: Any, report: Report | None = None) -> list[CheckResult]:
    """Check a registered loss on made-up data.

    Args:
        config: Dataclass of its settings.
        model: Settings of a model that it trains.
        report: Called with each result when it is there.
    """
    built: list[LossChecks] = []

    def build() -> str:
        n_features = model.n_input_features or N_FEATURES
        sizes = {"n_features": n_features, "n_days": 2, "n_classes": len(RELEASE)}
        network = build_model(model, **sizes).eval()
        built.append(LossChecks(build_loss(config, model.kind), network, **sizes))
        return f"with model {model.kind}"

    def checks() -> Iterator[Named]:
        yield "builds", build
        for each in built:
            yield from methods(each, *ALL_CHECKS)

    with separate_random_numbers(), full_float32():
        return examine(f"loss {config.kind}", checks(), [LOSSES[config.kind]], report=report)


class LossChecks:
    """Checks of a loss with a network on the CPU, in evaluation mode.

    Args:
        loss: The loss.
        network: A model that it trains.
        n_features: Features of a bin.
        n_days: Number of day layers.
        n_classes: Tokens.
    """

    def __init__(
        self, loss: Any, network: Any, *, n_features: int, n_days: int, n_classes: int
    ) -> None:
        self.loss = loss
        self.network = network
        self.where = place(loss)
        self.n_classes = n_classes
        self.n_calls = 0
        n_bins = [bins_for(network, n) for n in FRAMES]
        days = [0, n_days - 1, 0]
        self.make = partial(
            make_batch, network, n_bins, n_features=n_features, n_classes=n_classes, days=days
        )
        self.batch = self.make()

    def values(self) -> str:
        """Check names, shapes and types at the begin and the end of a training."""
        for fraction in (0.0, 0.99):
            losses = self._values(self.batch, fraction=fraction)
            for name, loss_B in losses.items():
                if loss_B.dtype != torch.float32:
                    kind = str(loss_B.dtype).removeprefix("torch.")
                    what = f"the loss gives {name!r} as {kind}; float32 is needed"
                    raise ConfigError(what, where=self.where, fix="give it with .float()")
            if not bool(losses["loss"].isfinite().all()):
                what = f"the loss is not finite when {fraction:g} of the training is done"
                raise ConfigError(what, where=self.where)
        return f"{', '.join(losses)}: a finite value for each of {len(self.batch)} trials"

    def padding(self) -> str:
        """Check that neither the content nor the length of padding changes the loss."""
        plain = self._values(self.batch)["loss"]
        labels_BU = self.batch.labels_BU.clone()
        outside_BU = torch.arange(labels_BU.shape[1]) >= self.batch.n_labels_B[:, None]
        labels_BU[outside_BU] = self.n_classes - 1
        noisy = TrainBatch(**vars(self.batch) | {"labels_BU": labels_BU})
        changes = {
            "what the padding holds": self._values(noisy, self._with_noise)["loss"],
            "more padding": self._values(self.make(more_bins=40))["loss"],
        }
        worst = 0.0
        for name, changed in changes.items():
            change = float((changed - plain).abs().max())
            if not change <= TOLERANCE * max(1.0, float(plain.abs().max())):
                what = f"{name} changes the loss by up to {change:.2g}"
                fix = "leave out frames and labels after n_patches_B and n_labels_B"
                raise ConfigError(what, where=self.where, fix=fix)
            worst = max(worst, change)
        return f"changes the loss by {worst:.1e}"

    def gradients(self) -> str:
        """Check that finite gradients reach the model."""
        self.network.zero_grad()
        loss_B = self._losses(self.batch)["loss"]
        if not loss_B.requires_grad:
            raise no_gradient(self.network, self.batch, self.loss)
        loss_B.mean().backward()  # type: ignore[no-untyped-call]
        given = [p.grad for p in self.network.parameters() if p.grad is not None]
        if not all(bool(gradient.isfinite().all()) for gradient in given):
            raise ConfigError("the gradients are not finite", where=self.where)
        if not any(bool(gradient.any()) for gradient in given):
            raise ConfigError("all gradients are zero", where=self.where)
        return f"finite, in {len(given)} parameters"

    def repeats(self) -> str:
        """Check that chance comes from torch's global generator, which training seeds."""
        first, again = (self._values(self.batch)["loss"] for _ in range(2))
        if not torch.equal(first, again):
            what = "the same seed gives another loss"
            raise ConfigError(what, where=self.where, fix="draw with torch's global generator")
        return "the same seed gives the same loss"

    def empty_label(self) -> str:
        """Check that a trial without phonemes has a finite loss."""
        losses = self._values(self.make(n_labels=[2, 0, 1]))
        if not bool(losses["loss"].isfinite().all()):
            raise ConfigError("a trial with an empty label has no finite loss", where=self.where)
        return f"its loss is {float(losses['loss'][1]):.3g}"

    def long_label(self) -> str:
        """Check that a label longer than its frames harms no other trial."""
        loss_B = self._values(self.make(n_labels=[2, 2 * FRAMES[1], 1]))["loss"]
        if not bool(loss_B[[0, 2]].isfinite().all()):
            what = "a label longer than its frames makes the loss of other trials not finite"
            raise ConfigError(what, where=self.where, fix="compute each trial on its own")
        return f"its loss is {float(loss_B[1]):.3g}, the others are finite"

    def _values(self, *arguments: Any, **settings: Any) -> dict[str, torch.Tensor]:
        return {name: x.detach() for name, x in self._losses(*arguments, **settings).items()}

    def _losses(
        self,
        batch: TrainBatch,
        wrap: Callable[[TrainBatch], Any] | None = None,
        fraction: float = 0.5,
    ) -> dict[str, torch.Tensor]:
        # A function, because a network may be wrapped for several processes: a loss that reads
        # attributes of it fails here.
        network = wrap(batch) if wrap else lambda *args, **kwargs: self.network(*args, **kwargs)
        self.n_calls += 1
        seed_generators(0, self.n_calls)  # other chance than torch's shows as another loss
        given = {k: x.clone() for k, x in vars(batch).items() if isinstance(x, torch.Tensor)}
        losses: dict[str, torch.Tensor] = self.loss(
            network, TrainBatch(**vars(batch) | given), fraction
        )
        for name, tensor in given.items():
            if not torch.equal(tensor, getattr(batch, name)):
                what = f"the batch's {name} changes"
                raise ConfigError(
                    what, where=self.where, fix=f"work on a copy: batch.{name}.clone()"
                )
        check_losses(losses, len(batch), self.loss)
        return losses

    def _with_noise(self, batch: TrainBatch) -> Any:
        """Return the network with noise added to all outputs [B, P, ...] in the padding."""
        n_frames = int(self.network.n_patches(batch.x_BTC.shape[1]))
        inside_BP = torch.arange(n_frames) < batch.n_patches_B[:, None]

        def add(x: Any) -> Any:
            if not isinstance(x, torch.Tensor) or x.shape[:2] != inside_BP.shape:
                return x
            inside = inside_BP.reshape(*inside_BP.shape, *[1] * (x.ndim - 2))
            return torch.where(inside, x, 10 * torch.randn(x.shape))

        return lambda *args, **kwargs: tree_map(add, self.network(*args, **kwargs))
