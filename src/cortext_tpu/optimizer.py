"""The optimiser of `cortext.training.optim` on XLA, with its groups and names of moments.

The days of a batch are a mask here, not a list, so that shapes do not depend on the batch: every
day's update is computed, and the updates of absent days are discarded.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax.numpy as jnp

from cortext.training.config import TrainConfig

Array = Any
"""A `jax.Array`."""
Tensors = dict[str, Array]


class State(NamedTuple):
    """Moments and step counts of the weights, by name.

    Attributes:
        mean: First moments.
        square: Second moments.
        steps: Step counts, float32 scalars, of all weights but the day layers.
        day_steps: Step counts of the day layers, int32 [days].
    """

    mean: Tensors
    square: Tensors
    steps: Tensors
    day_steps: Array


def is_day(name: str) -> bool:
    """Tell whether the first axis of a parameter is the recording day."""
    return name.startswith("day_")


def first_state(weights: Any) -> State:
    """Make the state before the first step, of weights float32 by name."""
    days = [tensor.shape[0] for name, tensor in weights.items() if is_day(name)]
    return State(
        {name: jnp.zeros(tensor.shape) for name, tensor in weights.items()},
        {name: jnp.zeros(tensor.shape) for name, tensor in weights.items()},
        {name: jnp.zeros(()) for name in weights if not is_day(name)},
        jnp.zeros(max(days, default=0), jnp.int32),
    )


@dataclass(frozen=True)
class AdamW:
    """AdamW with the release's groups; JAX traces `move`."""

    config: TrainConfig

    def move(
        self,
        weights: Tensors,
        gradients: Tensors,
        state: State,
        day_B: Array,
        lr: Array,
        lr_day: Array,
        idle: frozenset[str] = frozenset(),
    ) -> tuple[Tensors, State, Array]:
        """Clip the gradients and move the weights; a norm that is not finite moves nothing.

        Args:
            weights: Weights by name.
            gradients: Their gradients.
            state: Moments and step counts.
            day_B: int32 [B], days of the batch; other day layers do not move.
            lr: Learning rate.
            lr_day: Learning rate of the day layers.
            idle: Weights that no gradient reaches; as in torch, not even weight decay moves them.

        Returns:
            The new weights, the new state, and the norm of the gradient before clipping.
        """
        # One norm over all groups, as in the torch backend.
        norm = jnp.sqrt(
            sum((jnp.square(gradient).sum() for gradient in gradients.values()), jnp.zeros(()))
        )
        limit = self.config.grad_norm_clip_value or math.inf
        scale = jnp.minimum(1.0, limit / (norm + 1e-6))  # torch's clip_grad_norm_ adds 1e-6 too
        moves = jnp.isfinite(norm)
        present_D = jnp.zeros(state.day_steps.shape, bool).at[day_B].set(True) & moves
        day_steps = state.day_steps + present_D
        moved = dict(weights)
        mean = dict(state.mean)
        square = dict(state.square)
        steps = dict(state.steps)
        for name, weight in weights.items():
            if name in idle:
                continue
            if is_day(name):
                per_day = (-1, *[1] * (weight.ndim - 1))
                chosen = present_D.reshape(per_day)
                # A day that was never trained has taken 0 steps, and Adam divides by 0 there.
                count = jnp.maximum(day_steps, 1).reshape(per_day)
                rate = lr_day
                decay = self.config.weight_decay_day
            else:
                steps[name] = state.steps[name] + moves
                chosen = moves
                count = jnp.maximum(steps[name], 1.0)
                rate = lr
                decay = 0.0 if "bias" in name.rpartition(".")[2] else self.config.weight_decay
            before = (weight, state.mean[name], state.square[name])
            after = self._adam(*before, gradients[name] * scale, count, rate, decay)
            # `where`, not a product with 0: the update may be NaN, and 0 * NaN is NaN.
            kept = [jnp.where(chosen, new, old) for new, old in zip(after, before, strict=True)]
            moved[name], mean[name], square[name] = kept
        return moved, State(mean, square, steps, day_steps), norm

    def _adam(
        self,
        weight: Array,
        mean: Array,
        square: Array,
        gradient: Array,
        steps: Array,
        lr: Array,
        decay: float,
    ) -> tuple[Array, Array, Array]:
        beta0, beta1 = self.config.beta0, self.config.beta1
        mean = mean + (gradient - mean) * (1 - beta0)
        square = square * beta1 + gradient * gradient * (1 - beta1)
        root = jnp.sqrt(_missing(beta1, steps))
        step_size = lr / _missing(beta0, steps)
        weight = weight * (1 - lr * decay) - step_size * mean / (
            jnp.sqrt(square) / root + self.config.epsilon
        )
        return weight, mean, square


def _missing(beta: float, steps: Array) -> Array:
    """Return 1 - beta ** steps; computed directly in float32, the first lose half their digits."""
    if beta == 0:
        return jnp.ones(())
    return -jnp.expm1(steps.astype(jnp.float32) * math.log(beta))
