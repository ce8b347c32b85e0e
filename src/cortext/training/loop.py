"""Training: from packed recordings and a configuration to a run directory.

Step `s` is a function of the weights, the optimiser's moments, the seeds and `s` alone: batches, augmentation and
dropout are drawn from (seed, s). A resumed run therefore continues bit-exactly (on a CPU with the same number of
threads; some CUDA kernels add in an order of their own).
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cortext.data.packed import PackedDataset, PackedSplit, open_data
from cortext.data.sampler import DayBalancedSampler
from cortext.errors import ConfigError, DataError, RunError, nearest
from cortext.models import AcousticModel, build_model, load_model, save_model
from cortext.models.acoustic import Smoothing
from cortext.text.phonemes import RELEASE
from cortext.training.batches import DROPOUT, Batches, TrainBatch, derived_seed
from cortext.training.checkpoint import MetricsLog, Progress, RunDirectory, first_difference
from cortext.training.config import TrainConfig, read_train_config
from cortext.training.loss import check_labels_fit, ctc_loss, name_trials
from cortext.training.memory import bound_kernel_cache, keep_freed_memory
from cortext.training.optim import Optimizer
from cortext.training.progress import Advance, TensorBoard, reading_bar, training_bar
from cortext.training.summary import RunSummary, summarise, write_summary
from cortext.training.validate import Validator


def train(
    config: TrainConfig | str | Path,
    data: str | Path,
    out: str | Path,
    *,
    lm: str | Path | None = None,
    resume: bool = False,
    device: str = "cpu",
    init_from: str | Path | None = None,
    overrides: Iterable[str] = (),
    skip_bad: bool = False,
    progress: bool = True,
) -> RunSummary:
    """Train a phoneme decoder and write a run directory.

    config:    a TrainConfig, a YAML file, or the name of a shipped recipe; `overrides` are `key=value` texts
    data:      a packed directory, or one of session files (packed into `out/packed` first; `skip_bad` as in `pack`)
    lm:        language-model directory; without it no WER is reported
    resume:    go on with an unfinished run, bit-exactly
    init_from: a run whose weights to start from; day layers are taken by session name, new sessions start afresh
    progress:  draw a bar on stderr where it is a terminal
    Raises ConfigError, DataError and RunError (also for a loss that is not finite, and when interrupted).
    """
    settings = read_train_config(config, overrides)
    keep_freed_memory()
    bound_kernel_cache()
    run = RunDirectory(out)
    if lm is None and settings.best_metric == "val_wer":
        raise ConfigError("best_metric is 'val_wer', which needs a language model", fix="give --lm or another metric")
    with run.held():
        run.begin(settings, resume)
        try:
            with reading_bar(progress) as reading:
                dataset = open_data(data, run.path / "packed", skip_bad=skip_bad, progress=reading)
                dataset.verify(reading)
            with torch.random.fork_rng():
                return _Trainer(settings, dataset, run, _device(device), lm, init_from).run(progress)
        except BaseException:
            run.abandon()
            raise


class _Trainer:
    """One run, from the first batch or from where its state says it was."""

    def __init__(
        self,
        config: TrainConfig,
        data: PackedDataset,
        run: RunDirectory,
        device: torch.device,
        lm: str | Path | None,
        init_from: str | Path | None,
    ) -> None:
        self.config, self.run_directory, self.device = config, run, device
        self.sessions, self.skipped = _sessions(config, data), data.bad_trials
        self.train_split, val_split = (_select(config, data, self.sessions, name) for name in ("train", "val"))
        self.model = self._build(data, init_from)
        network = self.model.network
        check_labels_fit(self.train_split, network.n_patches, max(0, config.dataset.data_transforms.random_cut - 1))
        check_labels_fit(val_split, network.n_patches)
        layer_of_day = np.array([_position(name, self.sessions) for name in data.sessions])
        transforms = config.dataset.data_transforms
        self.batches = Batches(self.train_split, layer_of_day, transforms, device)
        val_batches = Batches(val_split, layer_of_day, transforms, device)
        self.validator = Validator(val_batches, self.model.inventory, network.n_patches, config, lm)
        self.sampler = DayBalancedSampler(
            layer_of_day[self.train_split.day_N],
            config.dataset.batch_size,
            config.dataset.days_per_batch,
            config.dataset.seed,
            config.dataset.must_include_days,
            self.train_split.n_bins_N,
            config.dataset.length_buckets,
            n_days=len(self.sessions),
        )
        self.optimizer = Optimizer(network, config)
        self.bf16 = uses_bf16(config.precision, device)
        identity = {"sessions": list(self.sessions), "n_features": data.n_features}
        identity |= {"n_train": len(self.train_split), "n_val": len(val_split)}
        identity |= {"crc32": dict(data.checksums), "language_model": lm is not None}
        self.progress = Progress(data=identity)
        self._restore_or_begin()

    def _build(self, data: PackedDataset, init_from: str | Path | None) -> AcousticModel:
        subset, wanted = self.config.dataset.feature_subset, self.config.model.n_input_features
        n_features = len(subset) if subset is not None else data.n_features
        if wanted not in (None, n_features):
            what = f"model.n_input_features is {wanted}; the data have {n_features} features"
            raise ConfigError(what, fix="leave it out, or use the matching data")
        torch.manual_seed(self.config.seed)
        network = build_model(
            self.config.model, n_features=n_features, n_days=len(self.sessions), n_classes=len(RELEASE)
        )
        if init_from is not None:
            _start_from(network, self.sessions, load_model(init_from), Path(init_from))
        transforms = self.config.dataset.data_transforms
        smoothing = Smoothing(transforms.smooth_data, transforms.smooth_kernel_std, transforms.smooth_kernel_size)
        return AcousticModel(
            network.to(self.device),
            sessions=self.sessions,
            n_features=data.n_features,
            inventory=RELEASE,
            smoothing=smoothing,
            feature_subset=subset,
        )

    def _restore_or_begin(self) -> None:
        saved = self.run_directory.load_state()
        if saved is None:
            self._save_state()
            return
        tensors, progress = saved
        if changed := first_difference(progress.data, self.progress.data):
            key, before, now = changed
            fix = "resume with the same data and language model"
            raise RunError(
                f"the run was begun with {key} = {before!r}, now it is {now!r}", where=self.run_directory.path, fix=fix
            )
        parts: dict[str, dict[str, torch.Tensor]] = {"model": {}, "optimizer": {}}
        for name, tensor in tensors.items():
            part, _, rest = name.partition("/")
            parts[part][rest] = tensor
        self.model.network.load_state_dict(parts["model"])
        self.optimizer.load(parts["optimizer"])
        self.progress = progress

    def run(self, progress: bool) -> RunSummary:
        """Train to the end; returns what summary.json holds."""
        started, before = time.perf_counter(), self.progress.seconds
        log = MetricsLog(self.run_directory.metrics, self.progress.metrics_bytes)
        board = TensorBoard(self.run_directory.path / "tensorboard", self.progress.step)
        total = self.config.num_training_batches
        with (
            closing(log),
            closing(board),
            training_bar(total, self.progress.step, progress) as bar,
            _interrupts() as interrupted,
        ):
            self.log, self.board = log, board
            self.window = (started, self.progress.step)  # for trials per second: since the last line about training
            end = self.progress.step if self.progress.finished else total
            with closing(self.batches.training(self.sampler, self.config.seed, self.progress.step, end)) as batches:
                for batch in batches:
                    save = self._step(batch, bar)
                    self.progress.seconds = before + time.perf_counter() - started
                    if save or interrupted.is_set():
                        self.progress.metrics_bytes = log.sync()
                        self._save_state()
                    if interrupted.is_set() and not self.progress.finished:
                        what = f"interrupted after {self.progress.step} of {total} batches; everything is saved"
                        raise RunError(what, where=self.run_directory.path, fix="continue with --resume")
                    if self.progress.finished:
                        break
        summary = summarise(
            self.run_directory.path, self.config, self.model, self.progress, self.skipped, str(self.device)
        )
        write_summary(self.run_directory.summary, summary, self.config)
        return summary

    def _step(self, batch: TrainBatch, bar: Advance) -> bool:
        """One batch, and what is due after it; returns whether the state must be saved."""
        config, progress = self.config, self.progress
        loss, norm = self._update(batch)
        progress.step += 1
        progress.loss_sum += loss
        progress.loss_count += 1
        rate = config.dataset.batch_size * (progress.step - self.window[1]) / (time.perf_counter() - self.window[0])
        bar(progress.step, loss, progress.last["val_per"] if progress.last else None, rate)
        last = progress.step == config.num_training_batches
        if progress.step % config.batches_per_train_log == 0 or last:
            self._log_training(norm, rate)
            self.window = (time.perf_counter(), progress.step)
        if progress.step % config.batches_per_val_step == 0 or last:
            self._validate()
            self.window = (time.perf_counter(), progress.step)
            progress.finished = last or self._no_longer_improves()
            return True
        return bool(config.batches_per_save) and progress.step % config.batches_per_save == 0

    def _update(self, batch: TrainBatch) -> tuple[float, float]:
        """Loss and gradient norm of the batch, after the parameters have moved. Raises RunError if not finite."""
        network, step = self.model.network.train(), self.progress.step
        torch.manual_seed(derived_seed(self.config.seed, DROPOUT, step))
        logits_BPV = self._forward(batch.x_BTC, batch.day_B)
        n_patches_B = network.n_patches(batch.n_bins_B)
        losses_B = ctc_loss(logits_BPV, n_patches_B, batch.labels_BU, batch.n_labels_B)
        loss = losses_B.mean()
        if not math.isfinite(value := loss.item()):
            culprits = batch.indices[~losses_B.detach().isfinite().cpu().numpy()]
            raise self._not_finite(f"the loss of batch {step} is {value}", culprits)
        loss.backward()  # type: ignore[no-untyped-call]
        norm = self.optimizer.step(step, batch.days)
        if not math.isfinite(norm):
            raise self._not_finite(f"the gradient of batch {step} has norm {norm}", batch.indices)
        return value, norm

    def _not_finite(self, what: str, indices: np.ndarray) -> RunError:
        trials = name_trials(self.train_split, indices)
        fix = "look at these trials, leave them out with dataset.bad_trials_dict, or lower lr_max"
        return RunError(f"{what}, in trials {trials}", where=self.run_directory.path, fix=fix)

    def _forward(self, x_BTC: torch.Tensor, day_B: torch.Tensor) -> torch.Tensor:
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.bf16):
            logits_BPV: torch.Tensor = self.model.network(x_BTC, day_B)[0]
        return logits_BPV

    def _log_training(self, norm: float, rate: float) -> None:
        progress, step = self.progress, self.progress.step
        values = {"train_loss": progress.loss_sum / progress.loss_count, "grad_norm": norm}
        values |= {"lr": self.optimizer.lr(step - 1), "lr_day": self.optimizer.lr_day(step - 1)}
        progress.loss_sum, progress.loss_count = 0.0, 0
        self._record("train", values | {"trials_per_s": round(rate, 1)})

    def _validate(self) -> None:
        started, progress = time.perf_counter(), self.progress
        self.model.network.eval()
        metrics = self.validator.measure(self._forward)
        seconds = round(time.perf_counter() - started, 3)
        self._record("val", metrics | {"val_seconds": seconds})
        progress.last = {"step": progress.step, **metrics}
        progress.validations_since_best += 1
        if self._is_best(metrics):
            progress.best, progress.validations_since_best = progress.last, 0
            save_model(self.model, self.run_directory.path)

    def _record(self, kind: str, values: dict[str, Any]) -> None:
        step = self.progress.step
        self.log.write({"kind": kind, "step": step, **values})
        self.board.scalars({name: value for name, value in values.items() if not isinstance(value, dict)}, step)

    def _is_best(self, metrics: dict[str, Any]) -> bool:
        best, name = self.progress.best, self.config.best_metric
        if best is None:
            return True
        return bool((metrics[name], metrics["val_loss"]) < (best[name], best["val_loss"]))

    def _no_longer_improves(self) -> bool:
        patience = self.config.early_stopping_val_steps
        return self.config.early_stopping and self.progress.validations_since_best >= patience

    def _save_state(self) -> None:
        tensors = {f"model/{name}": tensor for name, tensor in self.model.network.state_dict().items()}
        tensors |= {f"optimizer/{name}": tensor for name, tensor in self.optimizer.state().items()}
        self.run_directory.save_state(tensors, self.progress)


def uses_bf16(precision: str, device: torch.device) -> bool:
    """Whether matrix products run in bfloat16: as told, or (`auto`) where the hardware multiplies it natively."""
    if precision != "auto":
        return precision == "bf16"
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported())
    return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise RunError(f"device {name!r} cannot be used: {reason}", fix="use cpu, cuda or cuda:N") from None
    return device


def _sessions(config: TrainConfig, data: PackedDataset) -> tuple[str, ...]:
    sessions = tuple(config.dataset.sessions or data.sessions)
    for name in sessions:
        if name not in data.sessions:
            raise ConfigError(f"dataset.sessions names {name!r}, which the data lack; {nearest(name, data.sessions)}")
    if len(set(sessions)) != len(sessions):
        raise ConfigError("dataset.sessions names a session twice; name each once")
    return sessions


def _position(name: str, sessions: tuple[str, ...]) -> int:
    return sessions.index(name) if name in sessions else -1


def _select(config: TrainConfig, data: PackedDataset, sessions: tuple[str, ...], name: str) -> PackedSplit:
    settings = config.dataset
    split = data.split(name).select(
        sessions=sessions, bad_trials=settings.bad_trials_dict, feature_subset=settings.feature_subset
    )
    if not len(split):
        what = f"the {name} split has no trials after dataset.sessions and bad_trials_dict"
        raise DataError(what, where=data.path, fix="name fewer bad trials or more sessions")
    return split


def _start_from(network: torch.nn.Module, sessions: tuple[str, ...], source: AcousticModel, where: Path) -> None:
    """Copy the source's weights; day layers by session name."""
    weights = source.network.state_dict()
    for name, tensor in network.state_dict().items():
        old = weights.get(name)
        skip = 1 if name.startswith("day_") else 0  # the number of days may differ
        if old is None or old.shape[skip:] != tensor.shape[skip:]:
            found = "absent" if old is None else list(old.shape)
            raise RunError(f"{name} is {found}; {list(tensor.shape)} is needed to start from it", where=where)
        if not skip:
            tensor.copy_(old)
            continue
        for day, session in enumerate(sessions):
            if session in source.sessions:
                tensor[day] = old[source.day(session)]


@contextmanager
def _interrupts() -> Iterator[threading.Event]:
    """While inside, the first Ctrl-C only sets the event, so that no step is cut in two; a second one is obeyed."""
    interrupted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield interrupted
        return

    def note(number: int, frame: Any) -> None:
        if interrupted.is_set():
            raise KeyboardInterrupt
        interrupted.set()

    before = signal.signal(signal.SIGINT, note)
    try:
        yield interrupted
    finally:
        signal.signal(signal.SIGINT, before)
