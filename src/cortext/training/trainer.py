"""The trainer: a run directory that is open, with everything that its next batch needs.

Step `s` is a function of the weights, the optimiser's moments, the seeds and `s` alone: batches,
augmentation and dropout are drawn from (seed, s). A resumed run therefore continues bit-exactly (on
a CPU with the same number of threads; cuDNN draws the dropout between GRU layers from a state of
its own, and some CUDA kernels add in an order of their own). What takes the steps is an engine.
Where it computes on a device of its own, nothing here waits for that between two lines about
training: a batch that is not finite moves nothing and is named at the next line.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch

from cortext.config import first_difference
from cortext.data.packed import PackedDataset, open_data
from cortext.errors import ConfigError, Interrupted, RunError, first_line
from cortext.files import disk_errors
from cortext.models import AcousticModel, save_model
from cortext.processes import interrupts
from cortext.training.backend import Backend, DeviceSpec, Job, StepResult, backend_class
from cortext.training.batches import Batches
from cortext.training.checkpoint import RunDirectory, RunState
from cortext.training.config import TrainConfig, read_train_config
from cortext.training.loss import Loss, build_loss, check_labels_fit
from cortext.training.memory import bound_kernel_cache, keep_freed_memory
from cortext.training.optim import day_learning_rate, learning_rate
from cortext.training.progress import Advance, reading_bar, say, training_bar
from cortext.training.runlog import MetricsLog, TensorBoard, check_finite
from cortext.training.setup import (
    batch_sampler,
    day_layers,
    freeze,
    new_model,
    training_sessions,
    training_splits,
)
from cortext.training.summary import RunSummary, summarise, write_summary
from cortext.training.torch_backend import own_random_numbers
from cortext.training.validate import Validator, write_logits


class Callback:
    """Called as training goes; every method may be left out.

    An exception stops the run, whose last state stays.

    `trainer.model` is the model, `trainer.processes.first` tells which of several processes this
    is.
    """

    def on_train(self, trainer: Trainer, step: int, values: dict[str, Any]) -> None:
        """After every `batches_per_train_log` batches.

        Mean losses by name, `grad_norm`, `lr`, `trials_per_s`.
        """

    def on_validation(self, trainer: Trainer, step: int, metrics: dict[str, Any]) -> None:
        """After every validation: `val_loss`, `val_per`, `val_per_by_session`, `val_wer`."""

    def on_end(self, trainer: Trainer, summary: RunSummary) -> None:
        """After the last batch, when everything is written."""


class Trainer:
    """A run, from the first batch or from where its state says it was. Use it as a context manager.

    Raises ConfigError, DataError and RunError. In one of several processes that `torchrun` started
    it works on its share of every batch.

    Args:
        config: A TrainConfig, a YAML file, or the name of a shipped recipe; `overrides` are
            `key=value` texts.
        data: A packed directory, or one of session files (packed into `packed`, by default
            `out/packed`, first; `skip_bad` as in `pack`).
        out: The run directory.
        lm: language-model directory; without it no WER is reported.
        resume: Go on with an unfinished run, bit-exactly.
        device: Cpu, cuda, cuda:N or tpu; a `DeviceSpec` says more.
        init_from: A run whose weights to start from; day layers are taken by session name, new
            sessions start afresh.
        model: A model to start from as it is, instead; its sessions may be more than the data's.
        callbacks: See `Callback`.
        progress: Draw a bar on stderr where it is a terminal.
    """

    Config: ClassVar[type[TrainConfig]] = TrainConfig
    """What a configuration file is read as."""
    loss_name: ClassVar[str] = "CTC loss"
    """What `val_loss` is."""

    def __init__(
        self,
        config: TrainConfig | str | Path,
        data: PackedDataset | str | Path,
        out: str | Path,
        *,
        lm: str | Path | None = None,
        resume: bool = False,
        device: str | DeviceSpec = "cpu",
        init_from: str | Path | None = None,
        model: AcousticModel | None = None,
        callbacks: Iterable[Callback] = (),
        overrides: Iterable[str] = (),
        skip_bad: bool = False,
        progress: bool = True,
        packed: Path | None = None,
    ) -> None:
        self.config = read_train_config(config, overrides, self.Config)
        self.device_spec = device if isinstance(device, DeviceSpec) else DeviceSpec(device)
        self.callbacks, self.shown = list(callbacks), progress
        self._check(lm)
        keep_freed_memory()
        bound_kernel_cache()
        engine = backend_class(self.device_spec.backend_name)
        self.run_directory, self.packed = RunDirectory(out), packed
        with ExitStack() as stack:
            self.processes = stack.enter_context(engine.processes(self.device_spec))
            self.processes.rank_zero_first(lambda: self._begin(stack, resume))
            try:
                dataset = self._open(data, skip_bad)
                self._prepare(engine, dataset, init_from, model, lm)
            except BaseException:
                if self.processes.first:
                    self.run_directory.abandon()
                raise
            self._open_files = stack.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the run directory."""
        self._open_files.close()

    def _check(self, lm: str | Path | None) -> None:
        """Raise ConfigError for what cannot be, before anything is read or written."""
        if lm is None and self.config.best_metric == "val_wer":
            what = "best_metric is 'val_wer', which needs a language model"
            raise ConfigError(what, fix="give --lm or another metric")

    def _begin(self, stack: ExitStack, resume: bool) -> None:
        stack.enter_context(self.run_directory.held())
        self.run_directory.begin(self.config, resume)

    def _open(self, data: PackedDataset | str | Path, skip_bad: bool) -> PackedDataset:
        """The data, packed and checked by the first process while the others wait."""
        if isinstance(data, PackedDataset):
            return data
        packed = self.packed or self.run_directory.path / "packed"

        def read() -> PackedDataset:
            with reading_bar(self.shown) as reading:
                dataset = open_data(data, packed, skip_bad=skip_bad, progress=reading)
                dataset.verify(reading)
            return dataset

        return self.processes.rank_zero_first(read) or open_data(data, packed, skip_bad=skip_bad)

    def _prepare(
        self,
        engine: type[Backend],
        data: PackedDataset,
        init_from: str | Path | None,
        model: AcousticModel | None,
        lm: str | Path | None,
    ) -> None:
        config, settings = self.config, self.config.dataset
        if self.processes.world > settings.batch_size:
            what = (
                f"{self.processes.world} processes share a batch of {settings.batch_size} trials;"
                " each needs one"
            )
            raise ConfigError(what, fix="start fewer, or raise dataset.batch_size")
        sessions = training_sessions(settings, data) if model is None else model.sessions
        self.skipped = data.bad_trials
        self.train_split, val_split = training_splits(settings, data, sessions)
        with own_random_numbers(torch.device("cpu")):
            self.model = model or self._new_model(data, sessions, init_from)
        network = self.model.network
        freeze(network, config.trainable)
        check_labels_fit(
            self.train_split, network.n_patches, max(0, settings.data_transforms.random_cut - 1)
        )
        check_labels_fit(val_split, network.n_patches)
        layer_of_day = day_layers(data, sessions)
        self.layer_of_day = layer_of_day
        sampler = batch_sampler(settings, self.train_split, layer_of_day, len(sessions))
        job = Job(
            config,
            self.model,
            self.train_split,
            layer_of_day,
            sampler,
            self._loss(),
            self.processes,
            self.device_spec,
            all_used=self._all_used,
            shown=self.shown,
        )
        self.backend = engine(job)
        val_batches = Batches(
            val_split, layer_of_day, settings.data_transforms, self.backend.host, network.n_patches
        )
        self.validator = self._validator(val_batches, lm)
        self._log: MetricsLog | None = None
        self._board: TensorBoard | None = None
        identity = {"sessions": list(sessions), "n_features": data.n_features}
        identity |= {"n_train": len(self.train_split), "n_val": len(val_split)}
        identity |= {
            "crc32": dict(data.checksums),
            "language_model": lm is not None,
        } | self._identity()
        self.state = RunState(data=identity)
        self.processes.rank_zero_first(self._restore)
        if not self.processes.first:
            self._restore()

    def _new_model(
        self, data: PackedDataset, sessions: tuple[str, ...], init_from: str | Path | None
    ) -> AcousticModel:
        """The model to be trained, on the CPU."""
        return new_model(self.config, data, sessions, init_from)

    def _loss(self) -> Loss:
        """What is minimised; the model and the training split are there."""
        return build_loss(self.config.loss, self.config.model.kind)

    @property
    def _all_used(self) -> bool:
        """Whether every parameter that learns has a gradient in every batch."""
        return self.config.loss is None

    def _validator(self, batches: Batches, lm: str | Path | None) -> Validator:
        """What measures the model; the engine is there."""
        return Validator(batches, self.model.inventory, self.config, lm)

    def _identity(self) -> dict[str, Any]:
        """What else must be the same where a run is resumed."""
        return {}

    def _save_model(self) -> str:
        """Write the model into the run directory; returns the checksum of its weights."""
        return save_model(self.model, self.run_directory.path)

    def _restore(self) -> None:
        """Go on from the last state, or write the first one."""
        self._updates: list[StepResult] = []  # those that have not been read
        self._sums: dict[str, float] = {}
        saved = self.run_directory.load_state(lambda line: say(line, self.processes.first))
        if saved is None:
            self._write_state()
        else:
            self._take_over(*saved)

    def _take_over(self, tensors: dict[str, torch.Tensor], progress: RunState) -> None:
        identity = self.state.data
        if progress.data and (
            changed := first_difference(progress.data, identity)
        ):  # an imported one has none
            key, before, now = changed
            what = f"the run was begun with {key} = {before!r}, now it is {now!r}"
            raise RunError(
                what,
                where=self.run_directory.path,
                fix="resume with the same data and language model",
            )
        parts: dict[str, dict[str, torch.Tensor]] = {"model": {}, "optimizer": {}}
        for name, tensor in tensors.items():
            part, _, rest = name.partition("/")
            parts.setdefault(part, {})[rest] = tensor
        try:
            self.model.network.load_state_dict(parts["model"])
            self.backend.load(parts["optimizer"])
        except (KeyError, RuntimeError) as error:  # a tensor that is missing or has another shape
            what = f"the saved state is not one of this model: {first_line(error)}"
            raise RunError(what, where=self.run_directory.path, fix="start another run") from None
        self.state = progress
        progress.data = identity
        self._updates, self._sums = [], dict(progress.loss_sums) if self.processes.first else {}
        if (
            progress.finished and progress.best is None
        ):  # the best weights are lost: the last ones are what there is
            self._keep_best(progress.last)

    def run(
        self,
        n_batches: int | None = None,
        *,
        profile: AbstractContextManager[Callable[[], None]] | None = None,
    ) -> RunSummary | None:
        """Train on `n_batches` more batches, by default to the end.

        Returns the summary when that is reached.

        Args:
            profile: A context whose value is called after every batch.

        Raises:
            RunError: For a loss that is not finite (the trials' names are in `not_finite.json`
                beside the run), when interrupted, and for a full disk; the last state stays.
        """
        progress, total = self.state, self.config.num_training_batches
        started, before = time.perf_counter(), progress.seconds
        wanted = total if n_batches is None else n_batches
        end = progress.step if progress.finished else min(total, progress.step + wanted)
        with ExitStack() as stack:
            enter = stack.enter_context
            enter(self.backend.running())
            self._start_logs(stack)
            bar = enter(training_bar(total, progress.step, self.shown and self.processes.first))
            interrupted = enter(interrupts())
            stepped = enter(profile or nullcontext(lambda: None))
            self._window = (
                started,
                progress.step,
            )  # for trials per second: since the last line about training
            for batch in enter(closing(self.backend.batches(progress.step, end))):
                due = self._step(batch, bar)
                progress.seconds = before + time.perf_counter() - started
                stepped()
                stop = self._agreed(interrupted, due) and not progress.finished
                if due or stop or progress.step == end:
                    self._save_state()
                if stop:
                    what = (
                        f"interrupted after {progress.step} of {total} batches; everything is saved"
                    )
                    raise Interrupted(
                        what, where=self.run_directory.path, fix="continue with --resume"
                    )
                if progress.finished:
                    break
        return self._finish() if progress.finished else None

    def validate(self) -> dict[str, Any]:
        """Measure the model on the validation split, record it, and keep its weights if they are
        the best so far.
        """
        with ExitStack() as stack:
            self._start_logs(stack)
            metrics = self._validate()
            self._save_state()
        return metrics

    def save(self, name: str) -> None:
        """Keep weights, optimiser and progress as `checkpoints/<name>.safetensors`."""
        self._read()
        self._gather_sums()
        self.processes.rank_zero_first(lambda: self._write_state(name))

    def load(self, name: str) -> None:
        """Go back to what `save(name)` kept, and go on from there.

        `metrics.jsonl` is cut back to it.
        """
        self._take_over(
            *self.run_directory.load_named(name, lambda line: say(line, self.processes.first))
        )
        if self.processes.first:
            MetricsLog(self.run_directory.metrics, self.state.metrics_bytes).close()
        self._save_state()

    def _start_logs(self, stack: ExitStack) -> None:
        if self.processes.first:
            stack.callback(self._forget_logs)
            self._log = stack.enter_context(
                closing(MetricsLog(self.run_directory.metrics, self.state.metrics_bytes))
            )
            board = TensorBoard(self.run_directory.path / "tensorboard", self.state.step)
            self._board = stack.enter_context(closing(board))

    def _forget_logs(self) -> None:
        # After an exception more is written than the last state knows of; this trainer may go on
        # from where it is.
        self.state.metrics_bytes = self.run_directory.metrics.stat().st_size
        self._log = self._board = None

    def _agreed(self, interrupted: threading.Event, due: bool) -> bool:
        """Whether to stop; several processes agree on it where they meet anyway."""
        if self.processes.world == 1:
            return interrupted.is_set()
        meet = due or self.state.step % self.config.batches_per_train_log == 0
        return meet and any(self.processes.gather(interrupted.is_set()))

    def _step(self, batch: Any, bar: Advance) -> bool:
        """One batch, and what is due after it; returns whether the state must be saved."""
        config, progress = self.config, self.state
        self._updates.append(self.backend.update(progress.step, batch))
        progress.step += 1
        progress.loss_count += 1
        step, last = progress.step, progress.step == config.num_training_batches
        logs = step % config.batches_per_train_log == 0 or last
        validates = step % config.batches_per_val_step == 0 or last
        saves = validates or bool(config.batches_per_save and step % config.batches_per_save == 0)
        if logs or saves or self.backend.synchronous:
            self._read()  # waits for the device, and what it took belongs to the rate
            rate = (
                config.dataset.batch_size
                * (step - self._window[1])
                / (time.perf_counter() - self._window[0])
            )
            per = progress.last["val_per"] if progress.last else None
            bar(step, self._sums["loss"] / progress.loss_count * self.processes.world, per, rate)
            if logs:
                self._log_training(rate)
        if validates:
            self._validate()
            progress.finished = last or self._no_longer_improves()
        if logs or validates:
            self._window = (time.perf_counter(), step)
        return saves

    def _read(self) -> None:
        """Look at what was found in the steps since the last look; all processes must."""
        found = self.backend.read(self._updates)
        self._updates = []
        check_finite(found, self.run_directory.path, self.train_split, self.processes)
        for step in found:
            for name, loss_B in step.losses.items():
                mean = float(loss_B.sum(dtype=np.float64)) / self.config.dataset.batch_size
                self._sums[name] = self._sums.get(name, 0.0) + mean
            self._norm = step.norm

    def _gather_sums(self) -> None:
        """Bring the sums of losses to the first process, where they are logged and saved."""
        progress = self.state
        parts = self.processes.gather(self._sums)
        progress.loss_sums = {
            name: sum(part.get(name, 0.0) for part in parts) for name in sorted(set().union(*parts))
        }

    def _log_training(self, rate: float) -> None:
        progress, step = self.state, self.state.step
        self._gather_sums()
        means = {name: total / progress.loss_count for name, total in progress.loss_sums.items()}
        values = {"train_loss": means.pop("loss")} | {
            f"train_{name}": mean for name, mean in means.items()
        }
        values |= {"grad_norm": self._norm, "lr": learning_rate(self.config, step - 1)}
        values |= {
            "lr_day": day_learning_rate(self.config, step - 1),
            "trials_per_s": round(rate, 1),
        }
        self._sums, progress.loss_sums, progress.loss_count = {}, {}, 0
        self._record("train", values)
        for callback in self.callbacks:
            callback.on_train(self, step, values)

    def _validate(self) -> dict[str, Any]:
        started, progress, config = time.perf_counter(), self.state, self.config
        metrics, results = self.validator.measure(self.backend.forward, self.processes)
        self._record("val", metrics | {"val_seconds": round(time.perf_counter() - started, 3)})
        progress.last = {"step": progress.step, **metrics}
        progress.validations_since_best += 1
        if self._is_best(metrics):
            progress.validations_since_best = 0
            self._keep_best(progress.last)
            if config.save_val_logits and self.processes.first:
                write_logits(
                    self.run_directory.path / "val_logits", self.validator.batches.split, results
                )
        if config.save_all_val_steps:
            self.save(f"step_{progress.step}")
        for callback in self.callbacks:
            callback.on_validation(self, progress.step, metrics)
        return metrics

    def _keep_best(self, metrics: dict[str, Any] | None) -> None:
        self.state.best = metrics
        self.backend.gather_weights()
        if self.processes.first:
            self.state.best_crc32 = self._save_model()

    def _record(self, kind: str, values: dict[str, Any]) -> None:
        if self._log is None or self._board is None:
            return
        step = self.state.step
        self._log.write({"kind": kind, "step": step, **values})
        self._board.scalars(
            {name: value for name, value in values.items() if not isinstance(value, dict)}, step
        )

    def _is_best(self, metrics: dict[str, Any]) -> bool:
        best, name = self.state.best, self.config.best_metric
        if best is None:
            return True
        return bool((metrics[name], metrics["val_loss"]) < (best[name], best["val_loss"]))

    def _no_longer_improves(self) -> bool:
        patience = self.config.early_stopping_val_steps
        return self.config.early_stopping and self.state.validations_since_best >= patience

    def _state(self) -> dict[str, torch.Tensor]:
        self.backend.gather_weights()
        tensors = {
            f"model/{name}": tensor for name, tensor in self.model.network.state_dict().items()
        }
        return tensors | {
            f"optimizer/{name}": tensor for name, tensor in self.backend.state().items()
        }

    def _save_state(self) -> None:
        """Save where the run is; all processes must."""
        self._read()
        self._gather_sums()
        self.processes.rank_zero_first(self._write_state)

    def _write_state(self, name: str | None = None) -> None:
        if self._log is not None:
            self.state.metrics_bytes = self._log.sync()
        if name is None:
            self.run_directory.save_state(self._state(), self.state)
        else:
            self.run_directory.save_named(name, self._state(), self.state)

    def _finish(self) -> RunSummary:
        if self.config.save_final_model:
            self.save("final")
        path = self.run_directory.path
        summary = summarise(
            path,
            self.config,
            self.model,
            self.state,
            self.skipped,
            self.backend.name,
            self.loss_name,
        )
        self.processes.rank_zero_first(
            lambda: write_summary(self.run_directory.summary, summary, self.config)
        )
        for callback in self.callbacks:
            callback.on_end(self, summary)
        return summary


class RankZero(Callback):
    """Knows after a run whether this process, of perhaps several, is the one that tells the user
    what came of it.
    """

    here = False

    def on_end(self, trainer: Trainer, summary: RunSummary) -> None:
        """See `Callback`."""
        self.here = trainer.processes.first


def train(
    config: TrainConfig | str | Path,
    data: str | Path,
    out: str | Path,
    *,
    lm: str | Path | None = None,
    resume: bool = False,
    device: str | DeviceSpec = "cpu",
    init_from: str | Path | None = None,
    overrides: Iterable[str] = (),
    skip_bad: bool = False,
    progress: bool = True,
    callbacks: Iterable[Callback] = (),
    profile: str | Path | None = None,
    profile_steps: tuple[int, int] = (10, 15),
) -> RunSummary:
    """Train a phoneme decoder to the end and write a run directory.

    See `Trainer` for the arguments.

    Args:
        profile: A directory for a trace of the batches `profile_steps` (first and end, counted from
            the start of this sitting) that TensorBoard and chrome://tracing show.

    Raises:
        ConfigError, DataError, RunError: (also for a loss that is not finite, and when
            interrupted).
    """
    config = read_train_config(config, overrides)
    tracing = None
    if profile is not None:
        _check_window(profile_steps, config.num_training_batches)
        with disk_errors(Path(profile)):
            Path(profile).mkdir(parents=True, exist_ok=True)
    with Trainer(
        config,
        data,
        out,
        lm=lm,
        resume=resume,
        device=device,
        init_from=init_from,
        callbacks=callbacks,
        skip_bad=skip_bad,
        progress=progress,
    ) as trainer:
        if profile is not None:
            _check_window(profile_steps, config.num_training_batches - trainer.state.step)
            tracing = trainer.backend.profiled(Path(profile), *profile_steps)
        summary = trainer.run(profile=tracing)
    assert summary is not None  # it has run to the end
    return summary


def _check_window(profile_steps: tuple[int, int], left: int) -> None:
    """Refuse a profile that would begin after the last of the batches that are left."""
    if profile_steps[0] >= left:
        what = f"the profile begins at batch {profile_steps[0]}, and there are only {left}"
        raise ConfigError(what, fix="give smaller --profile-steps")
