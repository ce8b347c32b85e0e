"""The optimiser of `cortext.training.optim` in Keras: AdamW in three groups.

A day's layer moves only in batches that have trials of the day.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from keras import ops

from cortext.training.config import TrainConfig
from cortext_tpu.keras_tf.layers import register


@register
class Schedule(keras.optimizers.schedules.LearningRateSchedule):  # type: ignore[misc]
    """Learning rate of `cortext.training.optim.lr_factor` in a graph, by the batch's number."""

    def __init__(
        self, kind: str, highest: float, floor: float, decay_steps: int, warmup_steps: int
    ) -> None:
        super().__init__()
        self.kind = kind
        self.highest = highest
        self.floor = floor
        self.decay_steps = decay_steps
        self.warmup_steps = warmup_steps

    def __call__(self, step: Any) -> Any:
        """Compute the rate of a batch, a float32 scalar."""
        step = ops.cast(step, "float32")
        if self.kind == "linear":
            return self.highest * (
                1 + (self.floor - 1) * ops.minimum(step, self.decay_steps) / self.decay_steps
            )
        progress = (step - self.warmup_steps) / max(1, self.decay_steps - self.warmup_steps)
        cosine = self.floor + (1 - self.floor) * 0.5 * (1 + ops.cos(math.pi * progress))
        factor = ops.where(step >= self.decay_steps, self.floor, cosine)
        return self.highest * ops.where(
            step < self.warmup_steps, step / max(1, self.warmup_steps), factor
        )

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of `from_config`."""
        return {
            name: getattr(self, name)
            for name in ("kind", "highest", "floor", "decay_steps", "warmup_steps")
        }


_SETTINGS = (
    "lr_scheduler_type",
    "lr_max",
    "lr_min",
    "lr_decay_steps",
    "lr_warmup_steps",
    "lr_max_day",
    "lr_min_day",
    "lr_decay_steps_day",
    "lr_warmup_steps_day",
    "beta0",
    "beta1",
    "epsilon",
    "weight_decay",
    "weight_decay_day",
    "grad_norm_clip_value",
)


@register
class DayAdamW(keras.optimizers.Optimizer):  # type: ignore[misc]
    """AdamW of a run's configuration; `move` moves variables, not the base class's `apply`.

    The first axis of a variable whose name starts with `day_` is the recording day. Each variable
    and each day counts its own steps; `iterations` is the number of the next batch.

    The settings are the keys of `TrainConfig` from `lr_scheduler_type` to `grad_norm_clip_value`,
    with its defaults.
    """

    def __init__(self, name: str = "day_adamw", **settings: Any) -> None:
        config = TrainConfig(**settings)
        kind, decay, warmup = (
            config.lr_scheduler_type,
            config.lr_decay_steps,
            config.lr_warmup_steps,
        )
        schedule = Schedule(kind, config.lr_max, config.lr_min / config.lr_max, decay, warmup)
        super().__init__(learning_rate=schedule, name=name)
        self.schedule = schedule
        floor = config.lr_min_day / config.lr_max_day
        decay, warmup = config.lr_decay_steps_day, config.lr_warmup_steps_day
        if kind == "linear":  # the day layers follow the same straight line
            floor = schedule.floor
            decay = config.lr_decay_steps
        self.schedule_day = Schedule(kind, config.lr_max_day, floor, decay, warmup)
        self.settings = {setting: getattr(config, setting) for setting in _SETTINGS}

    @classmethod
    def of(cls, config: TrainConfig) -> DayAdamW:
        """Build the optimiser of a run."""
        return cls(**{setting: getattr(config, setting) for setting in _SETTINGS})

    def build(self, variables: Sequence[Any]) -> None:
        """Make moments and step counts for the variables that learn."""
        if self.built:
            return
        super().build(variables)
        self.mean = [
            self.add_variable_from_reference(variable, name="mean") for variable in variables
        ]
        self.square = [
            self.add_variable_from_reference(variable, name="square") for variable in variables
        ]
        days = [variable.shape[0] for variable in variables if _is_day(variable)]
        shapes = [variable.shape[:1] if _is_day(variable) else () for variable in variables]
        self.counts = [self.add_variable(shape, dtype="int32", name="steps") for shape in shapes]
        self.n_days = days[0] if days else 0

    def move(self, gradients: Sequence[Any], variables: Sequence[Any], days_B: Any) -> Any:
        """Clip the gradients and move the variables.

        If the norm of the gradients is not finite, nothing moves, but the batch counts.

        Args:
            gradients: Gradients of the replica's trials; they are summed over replicas.
            variables: Variables that learn.
            days_B: Int [B], the recording days of the replica's trials.

        Returns:
            The norm before clipping, a float32 scalar.
        """
        if not self.built:
            with tf.init_scope():
                self.build(list(variables))
        seen_N = ops.sum(ops.one_hot(days_B, self.n_days, dtype="float32"), axis=0)
        replica = tf.distribute.get_replica_context()
        *gradients, seen_N = replica.all_reduce(tf.distribute.ReduceOp.SUM, [*gradients, seen_N])
        norm = ops.sqrt(
            sum(ops.sum(ops.square(ops.cast(gradient, "float32"))) for gradient in gradients)
        )
        limit = self.settings["grad_norm_clip_value"] or math.inf
        scale = ops.minimum(1.0, limit / (norm + 1e-6))  # as torch's clip_grad_norm_
        moves = ops.isfinite(norm)
        step = self.iterations
        rates = (self.schedule(step), self.schedule_day(step))
        pieces = []
        for index, (gradient, variable) in enumerate(zip(gradients, variables, strict=True)):
            is_day = _is_day(variable)
            moved = (seen_N > 0) & moves if is_day else moves
            decay = self.settings["weight_decay_day" if is_day else "weight_decay"]
            decay = 0.0 if "bias" in variable.name and not is_day else decay
            pieces.append((variable.value, index, gradient * scale, moved, rates[is_day], decay))
        tf.__internal__.distribute.interim.maybe_merge_call(
            self._move_all, tf.distribute.get_strategy(), pieces
        )
        self.iterations.assign_add(1)
        return norm

    def _move_all(self, strategy: Any, pieces: list[Any]) -> None:
        for variable, *rest in pieces:
            strategy.extended.update(variable, self._move_one, args=rest, group=False)

    def _move_one(
        self, variable: Any, index: int, gradient: Any, moved: Any, rate: Any, decay: float
    ) -> None:
        """Take one step of one variable; `moved` is one boolean for it, or one per day."""
        beta0, beta1 = self.settings["beta0"], self.settings["beta1"]
        mean, square, count = (slot[index].value for slot in (self.mean, self.square, self.counts))
        count.assign_add(tf.cast(moved, count.dtype))

        def per_day(x: Any) -> Any:
            return tf.reshape(x, (-1, *[1] * (len(variable.shape) - 1))) if len(x.shape) else x

        # A day that was never trained has count 0, and Adam would divide by 0.
        steps = tf.cast(tf.maximum(count, 1), tf.float32)
        corrections = [
            -tf.math.expm1(steps * math.log(beta)) if beta else tf.ones_like(steps)
            for beta in (beta0, beta1)
        ]
        new_mean = mean + (gradient - mean) * (1 - beta0)
        new_square = square * beta1 + tf.square(gradient) * (1 - beta1)
        denominator = (
            tf.sqrt(new_square) / per_day(tf.sqrt(corrections[1])) + self.settings["epsilon"]
        )
        after = (
            variable * (1 - rate * decay) - per_day(rate / corrections[0]) * new_mean / denominator
        )
        for old, new in ((variable, after), (mean, new_mean), (square, new_square)):
            old.assign(tf.where(per_day(moved), new, old))

    def get_config(self) -> dict[str, Any]:
        """Return the arguments of `from_config`."""
        return {"name": self.name, **self.settings}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> DayAdamW:
        """Build the optimiser that `get_config` describes."""
        return cls(**config)


def _is_day(variable: Any) -> bool:
    """Tell by its name whether a variable's first axis is the recording day, as with torch."""
    return str(variable.name).startswith("day_")
