"""Training, evaluation and prediction steps of the Keras models on TensorFlow.

A batch is a mapping of tensors, see `loss`. Everything random in training step `k` is a function of
(seed, k, replica).

B trials of a replica.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import tensorflow as tf

from cortext.errors import ConfigError
from cortext_tpu.keras_tf.layers import StepSeeds
from cortext_tpu.keras_tf.loss import CTC, Adversarial, batch_ctc
from cortext_tpu.keras_tf.optimizer import DayAdamW


class Steps(keras.Model):  # type: ignore[misc]
    """The base of the models. Compile them with an optimiser (`DayAdamW`) and a loss of `loss`.

    Args:
        seed: Seed of dropout.
        accumulation: Number of pieces that a batch is split into: the same gradient with less
            memory.
    """

    def __init__(self, *, seed: int = 0, accumulation: int = 1, **kwargs: Any) -> None:
        # No autocast: the layers cast their inputs, and nothing rounds the reversal strength.
        super().__init__(**{**kwargs, "autocast": False})
        self.accumulation = accumulation
        self.seeds = StepSeeds(seed)
        self.means = {
            name: keras.metrics.Mean(name=name)
            for name in ("loss", *Adversarial.parts, "grad_norm")
        }

    def compile(self, optimizer: Any, loss: Any, **kwargs: Any) -> None:
        """Compile, as every Keras model.

        Raises ConfigError for another optimiser than `DayAdamW`, or a loss of Keras.
        """
        for given, wanted in ((optimizer, DayAdamW), (loss, CTC | Adversarial)):
            if not isinstance(given, wanted):
                problem = (
                    f"compile got {given!r}, which does not know recording days or lengths of"
                    " trials"
                )
                raise ConfigError(
                    problem,
                    fix="give it a DayAdamW and a CTC or Adversarial of cortext_tpu.keras_tf",
                )
        super().compile(optimizer=optimizer, **kwargs)
        self.loss = loss  # not passed to Keras: it is not a function of prediction and truth
        self.compiled_with = {"optimizer": optimizer, "loss": loss, **kwargs}

    def get_compile_config(self) -> dict[str, Any]:
        """Return the argument of `compile_from_config`."""
        return {
            key: keras.saving.serialize_keras_object(value)
            for key, value in self.compiled_with.items()
        }

    def compile_from_config(self, config: dict[str, Any]) -> None:
        """Compile as `get_compile_config` says; Keras calls it when it reads a `.keras` file."""
        self.compile(
            **{key: keras.saving.deserialize_keras_object(value) for key, value in config.items()}
        )
        self.optimizer.build(self.trainable_variables)

    @property
    def metrics(self) -> list[Any]:
        """Running means, which Keras resets at every epoch."""
        parts = self.loss.parts if self.compiled else ()
        return [self.means[name] for name in ("loss", *parts, "grad_norm")]

    def update(self, batch: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
        """Take one optimiser step in a replica; nothing moves if the norm is not finite.

        The step minimises the mean loss over the trials of all replicas.

        Returns:
            The losses of the replica's trials, float32 [B] by name, and the norm of the gradient.

        Raises:
            ConfigError: For a batch that cannot be split into `accumulation` equal pieces.
        """
        replica = tf.distribute.get_replica_context()
        replicas = replica.num_replicas_in_sync
        n_trials = keras.ops.shape(batch["features"])[0]
        n_pieces = self.accumulation
        if n_pieces > 1 and n_trials % n_pieces:
            problem = (
                f"a batch of {n_trials} trials a core cannot be taken apart into {n_pieces} equal"
                " pieces"
            )
            raise ConfigError(
                problem, fix="change gradient_accumulation_steps or dataset.batch_size"
            )
        step = self.optimizer.iterations.value
        variables = self.trainable_variables

        def piece(number: Any) -> tuple[dict[str, Any], list[Any]]:
            """Return losses and gradients of every `n_pieces`-th trial."""
            part = (
                {name: _part(x, number, n_pieces) for name, x in batch.items()}
                if n_pieces > 1
                else batch
            )
            key = (tf.cast(step, tf.int64) * n_pieces + tf.cast(number, tf.int64)) * replicas
            with (
                self.seeds.of(key + tf.cast(replica.replica_id_in_sync_group, tf.int64)),
                tf.GradientTape() as tape,
            ):
                losses = self.loss(self, part, step)
                objective = tf.reduce_sum(losses["loss"]) / tf.cast(n_trials * replicas, tf.float32)
            unconnected = tf.UnconnectedGradients.ZERO
            gradients_found = tape.gradient(
                objective, [v.value for v in variables], unconnected_gradients=unconnected
            )
            return losses, [tf.convert_to_tensor(gradient) for gradient in gradients_found]

        if n_pieces == 1:
            losses, gradients = piece(0)
        else:
            losses, gradients = _added(piece, ("loss", *self.loss.parts), variables, n_pieces)
        norm = self.optimizer.move(gradients, variables, batch["day"])
        return losses, norm

    def train_step(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Take one optimiser step; return running means of the losses and the gradient's norm."""
        losses, norm = self.update(data)
        for name, loss_B in losses.items():
            self.means[name].update_state(loss_B)
        self.means["grad_norm"].update_state(norm)
        return {metric.name: metric.result() for metric in self.metrics}

    def test_step(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return the running mean of the CTC loss of the model's logits."""
        loss_B = batch_ctc(self(data, training=False)[0], data)
        real_B = tf.cast(data["n_patches"] > 0, tf.float32)
        # Sum over all replicas: Keras takes the result of one replica, or their mean.
        sums = [tf.reduce_sum(loss_B * real_B), tf.reduce_sum(real_B)]
        total, count = tf.distribute.get_replica_context().all_reduce(
            tf.distribute.ReduceOp.SUM, sums
        )
        self.means["loss"].update_state(tf.math.divide_no_nan(total, count), sample_weight=count)
        return {"loss": self.means["loss"].result()}

    def predict_step(self, data: Mapping[str, Any]) -> dict[str, Any]:
        """Return `logits`, float32 [B, P, V], and `n_patches` [B]; later frames are padding."""
        return {
            "logits": tf.cast(self(data, training=False)[0], tf.float32),
            "n_patches": data["n_patches"],
        }


def _part(x: Any, number: Any, n_pieces: int) -> Any:
    """Return every `n_pieces`-th trial from `number` on."""
    return tf.reshape(x, (-1, n_pieces, *x.shape[1:]))[:, number]


def _added(
    piece: Any, names: Sequence[str], variables: Sequence[Any], n_pieces: int
) -> tuple[Any, Any]:
    """Return the losses of all pieces in the order of the trials, and the sum of gradients."""

    def body(number: Any, rows: Any, sums: Any) -> tuple[Any, Any, Any]:
        losses, gradients = piece(number)
        rows = [row.write(number, losses[name]) for row, name in zip(rows, names, strict=True)]
        return number + 1, rows, [a + b for a, b in zip(sums, gradients, strict=True)]

    _, rows, gradients = tf.while_loop(
        lambda number, *_: number < n_pieces,
        body,
        (
            0,
            [tf.TensorArray(tf.float32, n_pieces) for _ in names],
            [tf.zeros(v.shape) for v in variables],
        ),
        parallel_iterations=1,
        maximum_iterations=n_pieces,
    )
    return {
        name: tf.reshape(tf.transpose(row.stack()), (-1,))
        for name, row in zip(names, rows, strict=True)
    }, gradients
