"""The backend that trains Keras models on TensorFlow: a TPU's cores, several GPUs or one device.

One program drives all cores. Each core takes its share of every batch's trials, and the models sum
the gradients (`cortext_tpu.keras_tf.models`). The weights begin as those of the run's torch model
and are copied back whenever they are saved, so that the run directory is an ordinary one.

B trials, T bins, P patches, V tokens.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import torch

from cortext.errors import ConfigError, RunError
from cortext.models import Output
from cortext.models.precision import uses_bf16
from cortext.training.backend import DeviceSpec, Job, StepResult, StepValues
from cortext.training.batches import TrainBatch
from cortext.training.distributed import ALONE, Processes
from cortext.training.progress import say
from cortext_tpu.cores import check_shares
from cortext_tpu.explain import explain
from cortext_tpu.keras_tf.convert import from_torch, load_optimizer_state, optimizer_state, to_torch
from cortext_tpu.keras_tf.models import keras_model
from cortext_tpu.keras_tf.pipeline import Batches, prepare
from cortext_tpu.keras_tf.strategy import choose_strategy
from cortext_tpu.profile import traced_tensorflow
from cortext_tpu.shapes import Shapes


class KerasBackend:
    """See `cortext.training.backend.Backend`.

    Raises:
        ConfigError: For a model, loss or augmentation that has no form in TensorFlow, and for a
            batch that does not divide by the cores and the pieces of `gradient_accumulation_steps`.
        RunError: See `choose_strategy`.
    """

    host = torch.device("cpu")
    profiled = staticmethod(traced_tensorflow)

    def __init__(self, job: Job) -> None:
        if keras.backend.backend() != "tensorflow":
            problem = (
                f"Keras runs on {keras.backend.backend()}, and --backend tensorflow trains on"
                " TensorFlow"
            )
            raise ConfigError(problem, fix="unset KERAS_BACKEND, and look into ~/.keras/keras.json")
        config = job.config
        network = job.model.network
        self.job = job
        self.strategy = choose_strategy(job.device_spec, job.shown)
        self.cores = self.strategy.num_replicas_in_sync
        on_tpu = isinstance(self.strategy, tf.distribute.TPUStrategy)
        self.synchronous = not (on_tpu or tf.config.list_logical_devices("GPU"))
        kind = "tpu" if on_tpu else "cpu" if self.synchronous else "cuda"
        self.name = f"{kind} ({self.cores} core{'s' if self.cores != 1 else ''}, tensorflow)"
        self.bf16 = uses_bf16(config.precision, kind, by_torch=False)
        check_shares(config, self.cores)
        with self.strategy.scope():
            counts = {"n_days": len(job.model.sessions), "n_classes": len(job.model.inventory)}
            self.model = keras_model(
                config, n_features=job.split.n_features, bf16=self.bf16, **counts
            )
            from_torch(self.model, network)
            self.model.optimizer.build(self.model.trainable_variables)
        self.shapes = Shapes.of(job)
        self.data = Batches(job.split, job.layer_of_day, config, self.shapes)
        self._steps = tf.function(self._replicas_step, autograph=False)
        self._logits = tf.function(self._replicas_logits, autograph=False)
        self._next = -1  # the optimiser's next step

    @staticmethod
    @contextmanager
    def processes(spec: DeviceSpec) -> Iterator[Processes]:
        """See `Backend`: one process drives all cores."""
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            raise RunError(
                "torchrun has started several processes", fix="start one: it drives all cores"
            )
        yield ALONE

    @contextmanager
    def running(self) -> Iterator[None]:
        """See `Backend`."""
        setting = tf.config.experimental
        before = setting.tensor_float_32_execution_enabled()
        # If this is off, a TPU multiplies float32 in full; if on, it rounds it to bfloat16.
        setting.enable_tensor_float_32_execution(before and self.bf16)
        tf.get_logger().addFilter(_not_of_retracing)
        try:
            yield
        finally:
            tf.get_logger().removeFilter(_not_of_retracing)
            setting.enable_tensor_float_32_execution(before)

    def batches(self, first: int, end: int) -> Generator[dict[str, Any]]:
        """See `Backend`."""
        yield from self.data.training(self.job.sampler, first, end) if first < end else ()

    def update(self, step: int, batch: Mapping[str, Any]) -> StepResult:
        """See `Backend`."""
        if step != self._next:
            self.model.optimizer.iterations.assign(step)
        n_bins = batch["features"].shape[1]
        traces = self.traces
        with self._explained():
            losses, norm = self._steps(self._shared(batch))
        self._next = step + 1
        if self.traces > traces:
            known = f"{self.traces} of at most {len(self.shapes.all)}"
            say(
                f"compiled the training step for trials of {n_bins} bins ({known} lengths)",
                self.job.shown,
            )
        return StepResult(step, batch["indices"].numpy(), losses, norm)

    @property
    def traces(self) -> int:
        """Number of times that TensorFlow has traced the training step: once per batch length."""
        return int(self._steps.experimental_get_tracing_count())

    def read(self, updates: list[StepResult]) -> list[StepValues]:
        """See `Backend`."""
        found = []
        for update in updates:
            losses = {name: self._rows(values) for name, values in update.losses.items()}
            norm = float(self.strategy.experimental_local_results(update.norm)[0])
            found.append(StepValues(update.step, update.indices, losses, norm))
        return found

    def forward(self, batch: TrainBatch) -> Output:
        """See `Backend`."""
        padded = self.shapes.pad(batch, self.job.config.dataset.batch_size, self.cores)
        with self._explained():
            logits_BPV = torch.from_numpy(self._rows(self._logits(self._shared(padded))))
        n_patches = self.job.model.network.n_patches(batch.x_BTC.shape[1])
        return Output(logits_BPV[: len(batch), :n_patches])

    def gather_weights(self) -> None:
        """See `Backend`."""
        to_torch(self.model, self.job.model.network)

    def state(self) -> dict[str, torch.Tensor]:
        """See `Backend`."""
        return optimizer_state(self.model)

    def load(self, state: dict[str, torch.Tensor]) -> None:
        """See `Backend`."""
        from_torch(self.model, self.job.model.network)
        load_optimizer_state(self.model, state)

    def _replicas_step(self, raw: Any) -> Any:
        transforms = self.job.config.dataset.data_transforms
        return self.strategy.run(
            lambda share: self.model.update(prepare(share, transforms)), (raw,)
        )

    def _replicas_logits(self, batch: Any) -> Any:
        return self.strategy.run(
            lambda share: tf.cast(self.model(share, training=False)[0], "float32"), (batch,)
        )

    def _shared(self, batch: Mapping[str, Any]) -> Any:
        """Put the batch on the cores, which get the same number of rows each, in order."""
        batch = {name: values for name, values in batch.items() if name != "indices"}

        def share(core: Any) -> dict[str, Any]:
            return {
                name: tf.convert_to_tensor(_part(values, core)) for name, values in batch.items()
            }

        def _part(values: Any, core: Any) -> Any:
            n_rows = len(values) // self.cores
            return values[core.replica_id_in_sync_group * n_rows :][:n_rows]

        return self.strategy.experimental_distribute_values_from_function(share)

    def _rows(self, values: Any) -> np.ndarray:
        """Return every core's rows on the host, in the order of the batch."""
        return np.concatenate(
            [part.numpy() for part in self.strategy.experimental_local_results(values)]
        )

    @contextmanager
    def _explained(self) -> Iterator[None]:
        """Turn TensorFlow's errors, which are pages long, into one line."""
        try:
            yield
        except Exception as error:
            explained = explain(error, self.job.config.dataset.batch_size, self.cores)
            if explained is None:
                raise
            raise explained from error


def _not_of_retracing(record: logging.LogRecord) -> bool:
    """Tell whether a message is not the warning of many traces: one per length is intended."""
    return "retracing" not in record.getMessage()
