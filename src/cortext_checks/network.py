"""Checks of a network that are cheap enough to be made before every training.

B trials, T bins, P frames, V tokens.
"""

from __future__ import annotations

from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from cortext.errors import ConfigError
from cortext.models.card import patch_shape
from cortext.models.precision import autocast
from cortext.models.registry import Output, check_output, read_output
from cortext.plugins import place
from cortext.text.inventory import RELEASE, Inventory
from cortext.training.batches import TrainBatch
from cortext.training.loss import build_loss, check_losses
from cortext_checks.made_up import bins_for, make_batch

FORWARD = ("shapes", "repeats", "padding")
"""Checks that need no loss."""
LEARNING = ("gradients", "unused parameters")
TOLERANCE = 1e-5
"""Largest difference between logits that should be equal, times the largest logit above 1."""


class NetworkChecks:
    """Checks of a built network, which they leave in evaluation mode.

    Args:
        network: The model, on the CPU.
        n_features: Features of a bin, C.
        n_days: Number of day layers.
        n_classes: Tokens, V.
        loss: Settings of the loss; None takes the model's own.
        inventory: Tokens of the labels, which a loss may read.
        frames: Frames of the trials of a batch.
        tolerance: Largest difference between logits that should be equal; see `TOLERANCE`.
    """

    def __init__(
        self,
        network: Any,
        *,
        n_features: int,
        n_days: int,
        n_classes: int,
        loss: Any = None,
        inventory: Inventory = RELEASE,
        frames: tuple[int, ...] = (15, 9, 4),
        tolerance: float = TOLERANCE,
    ) -> None:
        self.network = network
        self.kind = self.network.config.kind
        self.where = place(network, "forward")
        self.n_classes = n_classes
        self.n_days = n_days
        self.loss = loss
        self.inventory = inventory
        self.tolerance = tolerance
        self.make = partial(make_batch, network, n_features=n_features, n_classes=n_classes)
        self.frames = frames
        config = network.config
        self.patch_size, self.stride = patch_shape(config.patch_size, config.patch_stride)

    @cached_property
    def batch(self) -> TrainBatch:
        """Trials of different lengths and days; the longest has bins after its last patch."""
        days = [0, self.n_days - 1, self.n_days // 2]
        n_bins = [bins_for(self.network, n) for n in self.frames]
        n_bins[0] += self.stride - 1
        return self.make(n_bins, days=days[: len(n_bins)])

    @torch.no_grad()
    def shapes(self) -> str:
        """Check logits and frames of single trials and of a batch."""
        n_bins_B = self.batch.n_bins_B
        counts = [
            [int(self.network.n_patches(n)) for n in n_bins_B.tolist()],
            np.asarray(self.network.n_patches(n_bins_B.numpy())).tolist(),
            torch.as_tensor(self.network.n_patches(n_bins_B)).tolist(),
        ]
        where = place(self.network, "n_patches")
        if not counts[0] == counts[1] == counts[2]:
            what = f"integers, arrays and tensors give {counts[0]}, {counts[1]} and {counts[2]}"
            raise ConfigError(what, where=where, fix="make it count the same for all three")
        if min(counts[0]) < 1:
            what = f"trials of {n_bins_B.tolist()} bins have {counts[0]} frames"
            raise ConfigError(what, where=where, fix="make one patch one frame")
        output = self.output(self.batch)
        for i in range(len(self.batch)):
            alone = self.output(self.trial(i))
            if not bool(alone.logits.isfinite().all()):
                raise ConfigError("the logits are not finite", where=self.where)
        if not bool(output.logits.isfinite().all()):
            raise ConfigError("the logits of padding are not finite", where=self.where)
        if output.logits.dtype != torch.float32:
            kind = str(output.logits.dtype).removeprefix("torch.")
            raise ConfigError(f"the logits are {kind}; float32 is needed", where=self.where)
        extras = f", extras {', '.join(output.extras)}" if output.extras else ""
        return f"logits float32 {list(output.logits.shape)}, frames {counts[0]}{extras}"

    @torch.no_grad()
    def repeats(self) -> str:
        """Check that a call leaves nothing behind, and that evaluation draws nothing."""
        x_BTC = self.batch.x_BTC.clone()
        first, again = self.run(self.batch, x_BTC).logits, self.output(self.batch).logits
        if not torch.equal(x_BTC, self.batch.x_BTC):
            what = "the features that it is given change"
            raise ConfigError(what, where=self.where, fix="work on a copy: x_BTC.clone()")
        if not torch.equal(first, again):
            worst = difference(first, again)
            what = f"the same batch gives other logits again, by up to {worst:.2g}"
            fix = "keep nothing but the returned state, and draw nothing in evaluation"
            raise ConfigError(what, where=self.where, fix=fix)
        return "the same batch gives the same logits again"

    @torch.no_grad()
    def padding(self) -> str:
        """Check that a batch gives the logits of single trials."""
        logits_BPV = self.output(self.batch).logits
        alone = [self.output(self.trial(i)).logits[0] for i in range(len(self.batch))]
        pairs = zip(logits_BPV, alone, strict=True)
        worst = max(difference(logits_PV[: len(one_PV)], one_PV) for logits_PV, one_PV in pairs)
        what = "a batch gives other logits than single trials"
        fix = "let no frame depend on padding: n_patches_B says where it begins"
        self.refuse_above(worst, logits_BPV, what, fix=fix)
        return f"a batch and single trials differ by {worst:.1e}"

    def gradients(self) -> str:
        """Check that the loss and all gradients are finite."""
        losses = self.backward()
        wrong = [
            name
            for name, parameter in self.network.named_parameters()
            if parameter.grad is not None and not bool(parameter.grad.isfinite().all())
        ]
        if wrong:
            what = f"the gradient of {some(wrong)} is not finite"
            raise ConfigError(what, where=self.where)
        for name, parameter in self.network.named_parameters():
            if name.startswith("day_") and len(parameter) != self.n_days:
                what = f"{name} is {list(parameter.shape)} for {self.n_days} days"
                fix = "make the day its first axis, or choose a name without day_"
                raise ConfigError(what, where=place(self.network, "__init__"), fix=fix)
        return f"finite; the loss is {float(losses['loss'].mean()):.3g} a trial"

    def unused_parameters(self) -> str:
        """Check that every parameter that learns has got a gradient from `gradients`."""
        learns = {name: p for name, p in self.network.named_parameters() if p.requires_grad}
        idle = [name for name, parameter in learns.items() if parameter.grad is None]
        self.network.zero_grad()
        if idle:
            what = f"no gradient reaches {some(idle)}"
            fix = "use them, look for detach or numpy on the way, or freeze or remove them"
            raise ConfigError(what, where=self.where, fix=fix)
        return f"none; a gradient reaches all {len(learns)}"

    def tensors(self) -> str:
        """Check that every tensor of the modules is a parameter or a buffer."""
        kept = {id(x) for x in (*self.network.parameters(), *self.network.buffers())}
        values = [
            (f"{path}.{name}".lstrip("."), value)
            for path, module in self.network.named_modules()
            for name, values in vars(module).items()
            for value in tree_leaves(values)
        ]
        where = place(self.network, "__init__")
        loose = [name for name, x in values if isinstance(x, torch.Tensor) and id(x) not in kept]
        if loose:
            what = f"{some(loose)} is neither parameter nor buffer: no file or GPU gets it"
            raise ConfigError(what, where=where, fix="use register_buffer")
        lists = [
            name
            for name, x in values
            if isinstance(x, nn.Module) and any(id(p) not in kept for p in x.parameters())
        ]
        if lists:
            which = some(list(dict.fromkeys(lists)))
            what = f"layers in {which} are no part of the model: nothing trains or saves them"
            raise ConfigError(what, where=where, fix="use nn.ModuleList or nn.ModuleDict")
        return "all are parameters or buffers"

    def output(self, batch: TrainBatch) -> Output:
        """Return the checked output for a batch, in evaluation mode."""
        return self.run(batch, batch.x_BTC.clone())

    def run(self, batch: TrainBatch, x_BTC: torch.Tensor) -> Output:
        """Return the checked output for other features of a batch, in evaluation mode."""
        found = self.network.eval()(x_BTC, batch.day_B, n_patches_B=batch.n_patches_B)
        shape = (len(x_BTC), int(self.network.n_patches(x_BTC.shape[1])), self.n_classes)
        return check_output(self.network, found, shape, int(batch.n_patches_B.max()))

    def trial(self, i: int) -> TrainBatch:
        """Return one trial of the batch, without padding."""
        one = self.batch.part(i, len(self.batch))
        return TrainBatch(**vars(one) | {"x_BTC": one.x_BTC[:, : int(one.n_bins_B[0])]})

    def backward(self, bf16: bool = False) -> dict[str, torch.Tensor]:
        """Return the losses of the batch; leave the gradients of their mean."""
        loss = build_loss(self.loss, self.kind, self.inventory)
        self.network.zero_grad()
        torch.default_generator.manual_seed(0)
        with autocast(torch.device("cpu"), bf16):
            losses = loss(self.network.train(), self.batch, 0.5)
        check_losses(losses, len(self.batch), loss)
        if not losses["loss"].requires_grad:
            raise no_gradient(self.network, self.batch, loss)
        if not bool(losses["loss"].isfinite().all()):
            raise ConfigError("the loss is not finite", where=place(loss))
        losses["loss"].mean().backward()  # type: ignore[no-untyped-call]
        self.network.eval()
        return {name: loss_B.detach() for name, loss_B in losses.items()}

    def refuse_above(self, worst: float, logits: torch.Tensor, what: str, **rest: Any) -> None:
        """Raise ConfigError if logits differ from `logits` by more than allowed."""
        if worst > self.allowed(logits):
            raise ConfigError(f"{what}, by up to {worst:.2g}", **{"where": self.where} | rest)

    def allowed(self, logits: torch.Tensor) -> float:
        """Return the largest difference from these logits that is none."""
        return self.tolerance * max(1.0, float(logits.abs().max()))


def no_gradient(network: Any, batch: TrainBatch, loss: Any) -> ConfigError:
    """Return the line for a loss without a gradient; the model's if its logits have none."""
    output = read_output(network(batch.x_BTC, batch.day_B, n_patches_B=batch.n_patches_B))
    has_gradient = output.logits.requires_grad
    what = f"the {'loss does' if has_gradient else 'logits do'} not depend on the weights"
    where = place(loss) if has_gradient else place(network, "forward")
    return ConfigError(what, where=where, fix="look for detach, no_grad, argmax or numpy in it")


def difference(a: torch.Tensor, b: torch.Tensor) -> float:
    """Return the largest difference between two tensors of one shape."""
    return float((a - b).abs().max())


def some(names: list[str], most: int = 4) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
