"""One training step as one XLA program: augmentation, forward, loss, backward, clipping and AdamW.

The torch modules and losses run under torchax, which turns their operations into JAX's while the
program is traced. Numbers that change from step to step (learning rates, reversal strength, random
keys, days) are arguments, so that there is one program per length of trials. Weights and moments
are donated: the new ones take their memory.

B trials, T bins, C features, P patches, U tokens of the longest label, V tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np
import torch
import torchax
from jax.sharding import Mesh
from torch import nn
from torchax.interop import call_torch

import cortext_tpu.layers  # noqa: F401 # registers XLA's layers and CTC
from cortext.errors import ConfigError
from cortext.features import Augmenter, build_augmentations
from cortext.features.augment import follows_smoothing
from cortext.models import build_model, read_output
from cortext.models.precision import uses_bf16
from cortext.text.inventory import RELEASE
from cortext.training.batches import AUGMENTATION, DROPOUT, TrainBatch, derived_seed
from cortext.training.config import TrainConfig
from cortext.training.loss import Loss, build_loss, check_losses
from cortext_tpu.augment import prepare
from cortext_tpu.cores import check_shares
from cortext_tpu.mesh import by_trial, everywhere
from cortext_tpu.optimizer import AdamW, State, Tensors, first_state
from cortext_tpu.products import tracing

USED_WHOLE = ("gru", "triple_gru")
"""Models whose default loss reaches every weight; for others the idle weights are searched."""
Array = Any
"""A `jax.Array`."""
Batch = dict[str, Any]
"""Arrays by name: features float16 [B, T, C]; int32 day, n_bins, n_labels [B] and labels [B, U]."""
Numbers = dict[str, Any]
"""Scalars and keys that change from step to step.

float32 scalars lr, lr_day and fraction (the share of the training that is done); uint32 [2] keys
dropout and augmentation.
"""


HostWork = Literal["", "augment", "prepare"]
"""The host's part in preparing a batch: none, its augmentation, or smoothing as well."""


def host_work(augmentations: Sequence[Augmenter]) -> HostWork:
    """Return the work of the host for registered augmentations, which are torch's.

    It smooths only where an augmentation follows smoothing, because the cores smooth faster.
    """
    if any(map(follows_smoothing, augmentations)):
        return "prepare"
    return "augment" if augmentations else ""


class Programs:
    """The programs of a run, lowered for one length of trials at a time.

    Args:
        network: The model on any device, also `meta`: its own parameters are never read.
        loss: The loss.
        config: Configuration of the run.
        mesh: Cores that share a batch.
        n_features: Features of a bin, C.
        n_labels: Tokens that labels are padded to, U.
        on_host: Work of the host; the step does the rest of a batch's preparation.

    Raises:
        ConfigError: For a batch that does not divide by the cores and the accumulated pieces, and
            for a network with a type of number that XLA does not get. Lowering raises it for a
            network that changes its buffers, and for a loss that `check_losses` refuses.
    """

    def __init__(
        self,
        network: nn.Module,
        loss: Loss,
        config: TrainConfig,
        mesh: Mesh,
        *,
        n_features: int,
        n_labels: int,
        on_host: HostWork = "",
    ) -> None:
        self.network = network
        self.loss = loss
        self.config = config
        self.mesh = mesh
        self.n_features = n_features
        self.n_labels = n_labels
        self.on_host = on_host
        self.clear_padding = bool(getattr(network, "pads_last_patch", False))
        self.bf16 = uses_bf16(config.precision, mesh.devices.flat[0].platform, by_torch=False)
        self.optimizer = AdamW(config)
        self._idle: frozenset[str] | None = None  # not known yet
        check_shares(config, mesh.devices.size)
        structures(network)

    def lower_update(self, n_bins: int) -> Any:
        """Lower the training step for trials padded to `n_bins`, as a `jax.stages.Lowered`.

        The program takes (weights, fixed, state, batch, numbers), see `structures`, and returns
        (weights, state, losses, norm): losses float32 [B] by name, and the norm of the gradient
        before clipping. It uses up the weights and the state that it is given.
        """
        replicated = everywhere(self.mesh)
        shared = by_trial(self.mesh)
        program = jax.jit(
            self._update,
            in_shardings=(replicated, replicated, replicated, shared, replicated),
            out_shardings=(replicated, replicated, shared, replicated),
            donate_argnums=(0, 2),
        )
        weights, fixed = structures(self.network)
        if self._idle is None:
            all_used = self.config.loss is None and self.config.model.kind in USED_WHOLE
            self._idle = frozenset() if all_used else self._unreached(n_bins)
        state = jax.eval_shape(first_state, weights)
        return self._lower(
            program,
            self.mesh,
            weights,
            fixed,
            state,
            self.batch(n_bins),
            numbers(self.config, 0, 0.0, 0.0),
        )

    def lower_forward(self, n_bins: int, n_trials: int, mesh: Mesh) -> Any:
        """Lower the forward pass of a validation.

        The program takes (weights, fixed, features, day, n_patches), with features float32
        [B, T, C], and returns logits float32 [B, P, V] and the extras of `Output`.

        Args:
            n_bins: Bins that trials are padded to, T.
            n_trials: Number of trials, B.
            mesh: Cores that share the trials; they may be fewer than in training.
        """
        replicated = everywhere(mesh)
        shared = by_trial(mesh)
        program = jax.jit(
            self._forward,
            in_shardings=(replicated, replicated, shared, shared, shared),
            out_shardings=shared,
        )
        of_trials = jax.ShapeDtypeStruct((n_trials,), jnp.int32)
        features = jax.ShapeDtypeStruct((n_trials, n_bins, self.n_features), jnp.float32)
        return self._lower(program, mesh, *structures(self.network), features, of_trials, of_trials)

    def batch(self, n_bins: int) -> Batch:
        """Return the shapes of a batch padded to `n_bins`."""
        size = self.config.dataset.batch_size
        batch = {
            name: jax.ShapeDtypeStruct((size,), jnp.int32) for name in ("day", "n_bins", "n_labels")
        }
        batch["labels"] = jax.ShapeDtypeStruct((size, self.n_labels), jnp.int32)
        batch["features"] = jax.ShapeDtypeStruct((size, n_bins, self.n_features), jnp.float16)
        return batch

    def _lower(self, program: Any, mesh: Mesh, *arguments: Any) -> Any:
        with tracing(self.bf16, mesh):
            return program.lower(*arguments)

    def _update(
        self, weights: Tensors, fixed: Tensors, state: State, batch: Batch, numbers: Numbers
    ) -> tuple[Tensors, State, Tensors, Array]:
        ready = {**batch, **self._prepared(batch, numbers)}
        gradients, losses = self.gradients(weights, fixed, ready, numbers)
        moved, state, norm = self.optimizer.move(
            weights,
            gradients,
            state,
            batch["day"],
            numbers["lr"],
            numbers["lr_day"],
            self._idle or frozenset(),
        )
        return moved, state, losses, norm

    def _prepared(self, batch: Batch, numbers: Numbers) -> Batch:
        """Return features float32 [B, T, C] for the model, and the bins int32 [B] of the trials."""
        if self.on_host == "prepare":
            return {"features": batch["features"].astype(jnp.float32)}
        features, n_bins_B = prepare(
            batch["features"],
            batch["n_bins"],
            self.config.dataset.data_transforms,
            None if self.on_host else numbers["augmentation"],
            clear_padding=self.clear_padding,
        )
        return {"features": features, "n_bins": n_bins_B}

    def _unreached(self, n_bins: int) -> frozenset[str]:
        """Return the names of weights that no gradient reaches: JAX has zeros, torch skips them."""
        weights, fixed = structures(self.network)
        batch = self.batch(n_bins)
        batch["features"] = batch["features"].update(dtype=jnp.float32)
        key = jax.eval_shape(jax.random.key, 0)
        fraction = np.float32(0)
        with tracing(self.bf16, self.mesh):
            traced = jax.make_jaxpr(jax.grad(self._losses, has_aux=True))(
                weights, fixed, batch, key, fraction
            )
        depends = set(traced.jaxpr.invars)
        for equation in traced.jaxpr.eqns:
            if any(
                variable in depends for variable in equation.invars if not hasattr(variable, "val")
            ):
                depends.update(equation.outvars)
        gradients = dict(zip(sorted(weights), traced.jaxpr.outvars, strict=False))
        return frozenset(name for name, gradient in gradients.items() if gradient not in depends)

    def gradients(
        self, weights: Tensors, fixed: Tensors, batch: Batch, numbers: Numbers
    ) -> tuple[Tensors, Tensors]:
        """Compute the gradients of the mean loss of a batch, and the losses float32 [B] by name.

        The batch goes through the model in `gradient_accumulation_steps` pieces.

        Args:
            weights: Weights that learn, by name.
            fixed: Other parameters and buffers, by name.
            batch: Smoothed features and labels.
            numbers: Numbers of the step.
        """
        differentiate = jax.grad(self._losses, has_aux=True)
        key = jax.random.wrap_key_data(numbers["dropout"])
        pieces = self.config.gradient_accumulation_steps
        if pieces == 1:
            found: tuple[Tensors, Tensors] = differentiate(
                weights, fixed, batch, key, numbers["fraction"]
            )
            return found

        def add(total: Tensors, at: tuple[Batch, Array]) -> tuple[Tensors, Tensors]:
            piece, number = at
            own = jax.random.fold_in(key, number)
            gradients, losses = differentiate(weights, fixed, piece, own, numbers["fraction"])
            return jax.tree.map(jnp.add, total, gradients), losses

        # Each piece has trials of every core: every `pieces`-th trial.
        split = jax.tree.map(lambda x: x.reshape(-1, pieces, *x.shape[1:]).swapaxes(0, 1), batch)
        none = jax.tree.map(jnp.zeros_like, weights)
        gradients, losses = jax.lax.scan(add, none, (split, jnp.arange(pieces)))
        return gradients, jax.tree.map(lambda x: x.swapaxes(0, 1).reshape(-1), losses)

    def _losses(
        self, weights: Tensors, fixed: Tensors, batch: Batch, key: Array, fraction: Array
    ) -> tuple[Array, Tensors]:
        def losses(weights: Any, fixed: Any, batch: Any, fraction: Any) -> dict[str, torch.Tensor]:
            n_patches_B = self.network.n_patches(batch["n_bins"])  # type: ignore[operator]
            trials = TrainBatch(
                batch["features"],
                batch["day"],
                batch["n_bins"],
                n_patches_B,
                batch["labels"],
                batch["n_labels"],
                np.arange(len(batch["day"])),
                batch["day"],
            )
            found = self.loss(self._with(weights, fixed), trials, fraction)
            check_losses(found, len(batch["day"]))
            return found

        self.network.train()
        found = self._on_torchax(losses, key, weights, fixed, batch, fraction)
        return found["loss"].sum() / self.config.dataset.batch_size, found

    def _forward(
        self, weights: Tensors, fixed: Tensors, x_BTC: Array, day_B: Array, n_patches_B: Array
    ) -> tuple[Array, dict[str, Array]]:
        def output(
            weights: Any, fixed: Any, x_BTC: Any, day_B: Any, n_patches_B: Any
        ) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            found = read_output(self._with(weights, fixed)(x_BTC, day_B, n_patches_B=n_patches_B))
            return found.logits.float(), dict(found.extras)

        self.network.eval()
        found: tuple[Array, dict[str, Array]] = self._on_torchax(
            output, jax.random.key(0), weights, fixed, x_BTC, day_B, n_patches_B
        )
        return found

    def _with(self, weights: Any, fixed: Any) -> Any:
        """Return the network as a function with these weights; a call that changes one raises."""
        given = {**weights, **fixed}
        values = {name: tensor.jax() for name, tensor in given.items()}

        def call(*args: Any, **kwargs: Any) -> Any:
            # If a module changes a tensor, the call puts another one here.
            tensors = dict(given)
            found = torch.func.functional_call(self.network, tensors, args, kwargs)
            for name, value in values.items():
                if tensors[name] is not given[name] or tensors[name].jax() is not value:
                    self._refuse_change(name)
            return found

        return call

    def _refuse_change(self, name: str) -> None:
        path, _, own = name.rpartition(".")
        module = (
            f"{type(self.network.get_submodule(path)).__name__} {path!r} of model"
            if path
            else "model"
        )
        problem = (
            f"{module} {self.config.model.kind!r} changes its {own!r} when it is called, which XLA"
            " would not keep"
        )
        raise ConfigError(
            problem,
            fix="train on cpu or cuda, or do without (a BatchNorm: track_running_stats=False)",
        )

    def _on_torchax(self, function: Any, key: Array, *arguments: Any) -> Any:
        with torchax.default_env().override_property(prng=key):
            return call_torch(function, *arguments)


def structures(network: nn.Module) -> tuple[Any, Any]:
    """Return the shapes of the weights that learn, and of all other weights and buffers, by name.

    Raises:
        ConfigError: For a type of number that XLA does not get.
    """
    learns = {name for name, parameter in network.named_parameters() if parameter.requires_grad}
    named = [*network.named_parameters(), *network.named_buffers()]
    for name, tensor in named:
        if tensor.dtype not in _DTYPES:
            known = ", ".join(str(dtype).removeprefix("torch.") for dtype in _DTYPES)
            problem = (
                f"the model's {name!r} is {str(tensor.dtype).removeprefix('torch.')}; XLA is given"
                f" {known}"
            )
            raise ConfigError(
                problem, fix="make it one of those (float32), or train on cpu or cuda"
            )
    shapes = {name: jax.ShapeDtypeStruct(tuple(x.shape), _DTYPES[x.dtype]) for name, x in named}
    weights = {name: shape for name, shape in shapes.items() if name in learns}
    return weights, {name: shape for name, shape in shapes.items() if name not in learns}


_DTYPES = {
    torch.float32: jnp.float32,
    torch.int64: jnp.int32,
    torch.int32: jnp.int32,
    torch.bool: jnp.bool_,
}


def numbers(config: TrainConfig, step: int, lr: float, lr_day: float) -> Numbers:
    """Return the numbers of a step; its random keys are a function of (seed, step).

    Args:
        config: Configuration of the run.
        step: Number of the batch, from 0.
        lr: Learning rate.
        lr_day: Learning rate of the day layers.
    """
    values: Numbers = {"lr": np.float32(lr), "lr_day": np.float32(lr_day)}
    values["fraction"] = np.float32(step / config.num_training_batches)
    for name, stream in (("dropout", DROPOUT), ("augmentation", AUGMENTATION)):
        values[name] = np.array(divmod(derived_seed(config.seed, stream, step), 1 << 32), np.uint32)
    return values


def lower_step(
    config: TrainConfig,
    mesh: Mesh,
    *,
    n_features: int,
    n_days: int,
    n_bins: int,
    n_labels: int,
    n_classes: int = len(RELEASE),
) -> Any:
    """Lower the training step of a configuration, without memory for its weights.

    Args:
        config: Configuration of a run.
        mesh: Cores, which may be those of a topology without devices.
        n_features: Features of a bin, C.
        n_days: Number of recording days.
        n_bins: Bins that trials are padded to, T.
        n_labels: Tokens that labels are padded to, U.
        n_classes: Number of tokens, V; the release's by default.

    Returns:
        A `jax.stages.Lowered`.
    """
    with torch.device("meta"):
        network = build_model(
            config.model, n_features=n_features, n_days=n_days, n_classes=n_classes
        )
    loss = build_loss(config.loss, config.model.kind)
    on_host = host_work(build_augmentations(config.dataset.augmentations))
    return Programs(
        network, loss, config, mesh, n_features=n_features, n_labels=n_labels, on_host=on_host
    ).lower_update(n_bins)
