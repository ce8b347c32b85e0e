"""The training loop: it takes the steps, and logs, validates and saves when due.

Step `s` is a function of the weights, the optimiser's moments, the seeds and `s` alone: batches,
augmentation and dropout are drawn from (seed, s). A resumed run therefore continues bit-exactly (on
a CPU with the same number of threads; cuDNN draws the dropout between GRU layers from a state of
its own, and some CUDA kernels add in an order of their own).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any, Protocol

from cortext.errors import Interrupted
from cortext.training.backend import Backend
from cortext.training.callbacks import Callback, Trains
from cortext.training.config import TrainConfig
from cortext.training.optim import day_learning_rate, learning_rate
from cortext.training.progress import Advance
from cortext.training.runlog import RunLog
from cortext.training.validate import Validates


class RunsBatches(Trains, Protocol):
    """Interface of a trainer for the loop; see `Trainer`.

    Attributes:
        backend: Moves the weights.
        callbacks: Are called with the values of the log.
        log: The open log.
        validator: Measures the model on the validation split.
    """

    backend: Backend
    callbacks: list[Callback]
    log: RunLog
    validator: Validates

    def keep_best(self, metrics: dict[str, Any]) -> None:
        """Save the weights as the best so far, with their metrics."""


def run_batches(
    trainer: RunsBatches,
    end: int,
    bar: Advance,
    interrupted: threading.Event,
    after_batch: Callable[[], None],
) -> None:
    """Train on the batches up to number `end`, or until the run is finished.

    Args:
        trainer: An open run with an open log.
        end: Number of batches, from the start of the run, after which to return.
        bar: Function that moves the progress bar.
        interrupted: Set by Ctrl-C and SIGTERM.
        after_batch: Called after every batch.

    Raises:
        RunError: For a loss or a gradient that is not finite, and for a full disk.
        Interrupted: After Ctrl-C, when the state is saved.
    """
    config = trainer.config
    state = trainer.state
    log = trainer.log
    backend = trainer.backend
    started = time.perf_counter()
    seconds_before = state.seconds
    log.start_timing(state.step)
    with closing(backend.batches(state.step, end)) as batches:
        for batch in batches:
            log.add(backend.update(state.step, batch))  # here a batch becomes a step
            state.step += 1
            state.loss_count += 1
            due = Due.after(state.step, config)
            # Between two lines of the log, do not wait for a device that computes asynchronously.
            if due.log or due.save or backend.synchronous:
                log.read(backend)
                rate = log.trials_per_s(state.step)  # with what waiting for the device took
                bar(state.step, log.mean_loss(state), (state.last or {}).get("val_per"), rate)
                if due.log:
                    _log_training(trainer, rate)
            if due.validation:
                validate(trainer)
                state.finished = due.end or _no_longer_improves(trainer)
            if due.log or due.validation:
                log.start_timing(state.step)
            state.seconds = seconds_before + time.perf_counter() - started
            after_batch()
            stop = _all_stop(trainer, interrupted, due) and not state.finished
            if due.save or stop or state.step == end:
                trainer.save()
            if stop:
                problem = (
                    f"interrupted after {state.step} of {config.num_training_batches} batches;"
                    " everything is saved"
                )
                where = trainer.run_directory.path
                raise Interrupted(problem, where=where, fix="continue with --resume")
            if state.finished:
                break


@dataclass(frozen=True)
class Due:
    """Work that is due after a batch: a line in the log, a validation, a saved state."""

    log: bool
    validation: bool
    save: bool
    end: bool
    """True if it was the last batch of the run."""

    @classmethod
    def after(cls, step: int, config: TrainConfig) -> Due:
        """Return the work due after `step` batches."""
        end = step == config.num_training_batches
        validation = step % config.batches_per_val_step == 0 or end
        saves = bool(config.batches_per_save and step % config.batches_per_save == 0)
        return cls(
            log=step % config.batches_per_train_log == 0 or end,
            validation=validation,
            save=validation or saves,
            end=end,
        )


def validate(trainer: RunsBatches) -> dict[str, Any]:
    """Measure the model, log the metrics, and keep the weights if they are the best so far.

    All processes must call.

    Returns:
        The metrics by name.
    """
    started = time.perf_counter()
    config = trainer.config
    state = trainer.state
    metrics, results = trainer.validator.measure(trainer.backend.forward, trainer.processes)
    seconds = round(time.perf_counter() - started, 3)
    trainer.log.write("val", state.step, metrics | {"val_seconds": seconds})
    state.last = {"step": state.step, **metrics}
    state.validations_since_best += 1
    if _is_best(metrics, state.best, config.metric):
        state.validations_since_best = 0
        trainer.keep_best(state.last)
        if trainer.processes.first:
            trainer.validator.write(results, trainer.run_directory.path)
    if config.save_all_val_steps:
        trainer.save(f"step_{state.step}")
    for callback in trainer.callbacks:
        callback.on_validation(trainer, state.step, metrics)
    return metrics


def _log_training(trainer: RunsBatches, rate: float) -> None:
    config = trainer.config
    state = trainer.state
    log = trainer.log
    means = log.take_means(state)
    values = {"train_loss": means.pop("loss")}
    values |= {f"train_{name}": mean for name, mean in means.items()}
    values |= {
        "grad_norm": log.norm,
        "lr": learning_rate(config, state.step - 1),
        "lr_day": day_learning_rate(config, state.step - 1),
        "trials_per_s": round(rate, 1),
    }
    log.write("train", state.step, values)
    for callback in trainer.callbacks:
        callback.on_train(trainer, state.step, values)


def _all_stop(trainer: RunsBatches, interrupted: threading.Event, due: Due) -> bool:
    """Tell whether the run stops here.

    Several processes agree on it only when a log or a save is due, where they wait for each other
    anyway.
    """
    if trainer.processes.world == 1:
        return interrupted.is_set()
    return (due.log or due.save) and any(trainer.processes.gather(interrupted.is_set()))


def _is_best(metrics: dict[str, Any], best: dict[str, Any] | None, name: str) -> bool:
    if best is None:
        return True
    # Error rates of a small split take few values, so that ties are common.
    return bool((metrics[name], metrics["val_loss"]) < (best[name], best["val_loss"]))


def _no_longer_improves(trainer: RunsBatches) -> bool:
    config = trainer.config
    since_best = trainer.state.validations_since_best
    return config.early_stopping and since_best >= config.early_stopping_val_steps
