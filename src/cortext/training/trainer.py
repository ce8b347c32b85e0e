"""The trainer: an open run directory, with everything that its next batch needs.

The data go one way: `_opened` opens the recordings, `_prepared` chooses the trials and builds the
model (`Setup`), `_take` hands both to a backend, and `run` takes batches to the end.
`cortext.training.loop` takes the steps. A task gives the model, the loss and the validation. A
backend moves the weights.

Several processes go this way together. `Processes.rank_zero_first` marks each place where the
others wait for rank zero; a comment there says why.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from pathlib import Path
from typing import Any, Self

import torch

from cortext.arguments import as_count, as_path, check_list, check_text, check_type
from cortext.data.packed import PackedDataset, PackedSplit, open_packed
from cortext.describe import Described, percent
from cortext.entry_points import load
from cortext.errors import ConfigError, DataError, RunError, first_line
from cortext.models import AcousticModel
from cortext.models.acoustic import look_ahead_text
from cortext.processes import interrupts
from cortext.training.backend import Backend, DeviceSpec, Job, backend_class
from cortext.training.batches import Batches
from cortext.training.callbacks import Callback
from cortext.training.checkpoint import RunDirectory, RunState
from cortext.training.config import TrainConfig, read_train_config
from cortext.training.loop import run_batches, validate
from cortext.training.memory import bound_kernel_cache, keep_freed_memory
from cortext.training.participants.joint import JointSetup
from cortext.training.participants.recordings import (
    Given,
    Recordings,
    conventions_to_start_from,
    open_for,
)
from cortext.training.prepare import Setup, check_same_data, prepare
from cortext.training.progress import reading_bar, say, training_bar
from cortext.training.runlog import MetricsLog, RunLog
from cortext.training.setup import LearningModel, notes
from cortext.training.summary import RunSummary, summarise, write_summary
from cortext.training.task import Task, build_task
from cortext.training.validate import Validates


class Trainer(Described):
    """A run, from its first batch or from its last saved state; a context manager.

    As one of several processes that `torchrun` started, it trains on its share of every batch.

    Args:
        config: A TrainConfig, a mapping of its fields, a YAML file, or the name of a shipped
            recipe.
        data: A packed directory, or one of session files, which are packed first.
        out: The run directory.
        task: The task, built for this very configuration; None builds the task that the
            configuration names (CTC on phonemes if it names none).
        lm: A language-model directory; without it no WER is reported.
        resume: Continue an unfinished run, bit-exactly.
        device: `cpu`, `cuda`, `cuda:N` or `tpu`; a `DeviceSpec` has more settings.
        init_from: A run whose weights to start from; None for fresh ones. Day layers are matched by
            session name; those of new sessions start afresh.
        model: A model to train as it is, instead of a new one; it may know sessions that the data
            lack.
        callbacks: See `Callback`.
        overrides: `key=value` changes of the configuration.
        skip_bad: Leave out trials that cannot be read, as in `pack`.
        progress: Draw a bar on stderr if it is a terminal.
        packed: Directory that session files are packed to; None for `out/packed`.
        check: Check a model, loss or augmentation of one's own first.

    Attributes:
        config: The configuration of the run.
        model: The model that learns.
        state: Batches done, the best and the last metrics, and whatever else resuming needs.
        processes: The processes that share the batches; `processes.first` is True in the one that
            writes.
        saves_state: Set it to False to write no state to resume from; for benchmarks.

    Raises:
        ConfigError, DataError, RunError: For settings, data and weights that cannot be trained
            with.
    """

    def __init__(
        self,
        config: TrainConfig | Mapping[str, Any] | str | Path,
        data: Given,
        out: str | Path,
        *,
        task: Task | None = None,
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
        check: bool = True,
    ) -> None:
        self.config = read_train_config(config, overrides)
        self.device_spec = device if isinstance(device, DeviceSpec) else DeviceSpec(device)
        out = as_path(out, "out")
        lm = None if lm is None else as_path(lm, "lm")
        init_from = None if init_from is None else as_path(init_from, "init_from")
        self.callbacks = list(check_list(callbacks, "callbacks", "a list of Callback objects"))
        for callback in self.callbacks:
            check_type(callback, Callback, "a callback", "an object of a subclass of Callback")
        self.shown = progress
        self.saves_state = True
        self._skip_bad = skip_bad
        self.task = task or build_task(self.config, self.device_spec, lm)
        # Before the directory is made: wrong settings leave nothing behind.
        self.task.check()
        keep_freed_memory()
        bound_kernel_cache()
        backend = backend_class(self.device_spec.backend_name)
        self.run_directory = RunDirectory(out)
        with ExitStack() as stack:
            self.processes = stack.enter_context(backend.processes(self.device_spec))
            # Rank zero alone holds the directory: to its lock the others would be another training.
            # They wait here, so none of them reads the directory before it is known to be ours.
            self.processes.rank_zero_first(
                lambda: stack.enter_context(self.run_directory.begun_with(self.config, resume))
            )
            stack.push(self._abandon)
            recordings = self._opened(
                data, packed or self.run_directory.path / "packed", skip_bad, init_from
            )
            if not resume and model is None:
                # Rank zero alone compares the labels with their sentences, which takes seconds.
                self.processes.rank_zero_first(lambda: self._note(*notes(self.config, recordings)))
            setup = self._prepared(recordings, init_from, model)
            self.model: LearningModel = setup.model
            if check and not resume:
                # The same first weights in every rank give the same answer, so one rank
                # checks, and the others stop with its error. A resumed run has passed before.
                self.processes.rank_zero_first(self._examine)
            self.skipped = (*recordings.bad_trials, *setup.left_out)
            self.n_unlabelled = setup.n_unlabelled
            if self.n_unlabelled:
                self._note(f"{self.n_unlabelled:,} training trials without a label left out")
            self._take(setup)
            self._begin({**setup.identity(), "language_model": lm is not None})
            # All went well: the directory stays held until `close`.
            self._open_files = stack.pop_all()
            self._closed = False

    def _abandon(self, failure: type[BaseException] | None, *_: object) -> None:
        """Remove what a failed start wrote; only rank zero has written, so it alone cleans up."""
        if failure is not None and self.processes.first:
            self.run_directory.abandon()

    def _opened(
        self, data: Given, packed: Path, skip_bad: bool, init_from: Path | None
    ) -> PackedDataset | Recordings:
        """Return the data, packed and checked by the first process while the others wait.

        Bins are joined as the run to start from had them joined, and again so at resume.
        """
        if isinstance(data, PackedDataset):
            return data
        if isinstance(data, Mapping):
            what = f"data names {len(data)} participants"
            raise ConfigError(what, fix="give the mapping to cortext.train")
        model = None
        if init_from is not None:
            model = conventions_to_start_from(init_from, data)
        elif self.run_directory.begun:
            with suppress(DataError):  # lost or damaged: packed again
                model = open_packed(packed).conventions

        def read() -> PackedDataset:
            with reading_bar(self.shown) as reading:
                dataset = open_for(
                    model, data, packed, skip_bad=skip_bad, progress=reading, shown=self.shown
                )
                dataset.verify(reading)
            return dataset

        # Rank zero first: two ranks that pack would write the same directory, and reading every
        # byte once is enough for all. Then the others open the packed copy, which they find.
        return self.processes.rank_zero_first(read) or open_for(
            model, data, packed, skip_bad=skip_bad, shown=False
        )

    def _prepared(
        self,
        data: PackedDataset | Recordings,
        init_from: Path | None,
        model: AcousticModel | None,
    ) -> Setup | JointSetup:
        """Return the model and the trials.

        Every rank prepares both by itself, from the same seed: the results are equal, and nothing
        is exchanged.
        """
        assert isinstance(data, PackedDataset)
        world = self.processes.world
        return prepare(
            self.config, self.task, data, init_from, model, world, skip_bad=self._skip_bad
        )

    def _examine(self) -> None:
        """Check a model, loss or augmentation of one's own; see `cortext.entry_points`."""
        assert isinstance(self.model, AcousticModel)
        load("cortext.checks", "before")(self.config, self.model)

    def _take(self, setup: Setup | JointSetup) -> None:
        """Make the backend, the validator and the log."""
        assert isinstance(setup, Setup)
        self.train_split = setup.train
        self.layer_of_day = setup.layer_of_day
        self.backend: Backend = backend_class(self.device_spec.backend_name)(self._job(setup))
        self.validator = self._new_validator(setup, self.backend)
        self.log = self._new_log(lambda step: setup.train)

    def _begin(self, identity: dict[str, Any]) -> None:
        """Continue from the last state, or write the first one.

        Args:
            identity: Properties of the data that must be the same when the run is resumed.
        """
        self.state = RunState(data=identity | self.task.identity())
        # Rank zero first: it may mend what the others then read, and it writes the first state of
        # a new run, which the others then load. So all begin with the same weights.
        self.processes.rank_zero_first(self._restore)
        if not self.processes.first:
            self._restore()

    def _new_log(self, split_of: Callable[[int], PackedSplit]) -> RunLog:
        batch_size = self.config.dataset.batch_size
        return RunLog(self.run_directory, split_of, self.processes, batch_size)

    @property
    def runs(self) -> dict[str, tuple[Path, PackedSplit]]:
        """The directory of each model and the trials that it is validated on, by participant.

        The name of the only participant is empty.
        """
        return {"": (self.run_directory.path, self.validator.batches.split)}

    def _facts(self) -> dict[str, Any]:
        best = self.state.best or {}
        return {
            "run": self.run_directory.path,
            "model": self.config.model.kind,
            "parameters": self.model.n_parameters,
            "look-ahead": look_ahead_text(self.model.look_ahead_ms),
            "training trials": len(self.train_split),
            "batches": f"{self.state.step:,} of {self.config.num_training_batches:,}",
            "best PER": percent(best["val_per"]) if "val_per" in best else None,
            "device": self.backend.name,
        }

    def _job(self, setup: Setup, participant: str | None = None) -> Job:
        """Return what a backend needs to take the steps of a run, or of one participant."""
        return Job(
            config=self.config,
            model=setup.model,
            split=setup.train,
            layer_of_day=setup.layer_of_day,
            sampler=setup.sampler,
            loss=self.task.loss(setup.model, setup.train),
            processes=self.processes,
            device_spec=self.device_spec,
            all_used=self.task.all_used,
            shown=self.shown,
            participant=participant,
        )

    def _new_validator(
        self, setup: Setup, backend: Backend, participant: str | None = None
    ) -> Validates:
        """Return what measures a model on the validation split."""
        batches = Batches(
            setup.val,
            setup.layer_of_day,
            self.config.dataset.data_transforms,
            backend.host,
            setup.model.network.n_patches,
            clear_padding=setup.model.pads_last_patch,
            participant=participant,
        )
        return self.task.validator(setup.model, batches, backend)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Release the run directory."""
        self._closed = True
        self._open_files.close()

    def run(
        self,
        n_batches: int | None = None,
        *,
        profile: AbstractContextManager[Callable[[], None]] | None = None,
    ) -> RunSummary | None:
        """Train on `n_batches` more batches, by default to the end.

        Args:
            n_batches: Number of batches; None for all that are left.
            profile: A context whose value is called after every batch; see `Backend.profiled`.

        Returns:
            The summary if the run is finished, otherwise None.

        Raises:
            RunError: For a loss that is not finite (`not_finite.json` in the run directory names
                the trials), when interrupted, and for a full disk; the last state stays.
        """
        if self._closed:
            raise RunError(
                "the trainer is closed",
                where=self.run_directory.path,
                fix="open the run again with resume=True",
            )
        state = self.state
        total = self.config.num_training_batches
        wanted = total if n_batches is None else as_count(n_batches, "n_batches")
        # A run that stopped improving is finished before its last batch.
        end = state.step if state.finished else min(total, state.step + wanted)
        with (
            self.backend.running(),
            self.log.open(state),
            training_bar(
                total,
                state.step,
                self.shown and self.processes.first,
                self.model.inventory.error_rate,
            ) as bar,
            interrupts() as interrupted,
            profile or nullcontext(lambda: None) as after_batch,
        ):
            run_batches(self, end, bar, interrupted, after_batch)
        return self._finish() if state.finished else None

    def validate(self) -> dict[str, Any]:
        """Measure the model on the validation split, and keep its weights if they are the best.

        Returns:
            The metrics by name; they are written to `metrics.jsonl`, too.
        """
        with self.log.open(self.state):
            metrics = validate(self)
            # The state holds the checksum of the best weights: a run resumed from an older state
            # would not know these weights, and would lose the best ones.
            self.save()
        return metrics

    def save(self, name: str | None = None) -> None:
        """Keep weights, optimiser and progress as `checkpoints/<name>.safetensors`.

        Without a name, keep them as the state that the run resumes from. All processes must call
        this.
        """
        if name is None and not self.saves_state:
            return
        check_type(name, (str, type(None)), "name", "a text")
        # The state counts the losses of all processes, also of steps that are still on the device.
        # Both calls need every process, so they cannot be part of rank zero's action.
        self.log.read(self.backend)
        self.log.gather(self.state)
        self.processes.rank_zero_first(lambda: self._write_state(name))

    def load(self, name: str) -> None:
        """Return to the state that `save(name)` kept, and continue from it.

        `metrics.jsonl` is cut back to its length at that state.
        """
        check_text(name, "name")
        # Every rank reads the file: only reading, so their order does not matter.
        self._continue_from(*self.run_directory.load_named(name, self._note))
        if self.processes.first:
            # The lines after this state are gone, so a resumed run may not begin later than it.
            MetricsLog(self.run_directory.metrics, self.state.metrics_bytes).close()
        self.save()

    def keep_best(self, metrics: dict[str, Any] | None) -> None:
        """Save the weights as the best so far, with their metrics; all processes must call."""
        self.state.best = metrics
        # Every rank keeps the metrics, by which all stop at the same batch; rank zero alone writes
        # the weights, and alone saves states, which have their checksum.
        self.backend.gather_weights()
        if self.processes.first:
            self.state.best_crc32 = self._save_best()

    def _save_best(self) -> str | None:
        """Write the weights; return their checksum."""
        assert isinstance(self.model, AcousticModel)
        return self.task.save(self.model, self.run_directory.path)

    def _note(self, *lines: str) -> None:
        """Print lines for the user, once for all ranks."""
        for line in lines:
            say(line, self.processes.first)

    def _restore(self) -> None:
        """Continue from the last state, or write the first one."""
        saved = self.run_directory.load_state(self._note)
        if saved is None:
            self._write_state()
        else:
            self._continue_from(*saved)

    def _continue_from(self, tensors: dict[str, torch.Tensor], state: RunState) -> None:
        identity = self.state.data
        if state.data:  # an imported run has no identity
            check_same_data(state.data, identity, self.run_directory.path)
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
        self.state = state
        state.data = identity
        self.log.continue_from(state)
        if state.finished and state.best is None:
            # The best weights are lost, and no validation will follow: keep the last weights.
            self.keep_best(state.last)

    def _write_state(self, name: str | None = None) -> None:
        # Lines first, then the state with their length: a kill between the two loses no line.
        self.log.sync(self.state)
        self.backend.gather_weights()
        weights = self.model.network.state_dict()
        moments = self.backend.state()
        tensors = {f"model/{key}": tensor for key, tensor in weights.items()}
        tensors |= {f"optimizer/{key}": tensor for key, tensor in moments.items()}
        if name is None:
            self.run_directory.save_state(tensors, self.state)
        else:
            self.run_directory.save_named(name, tensors, self.state)

    def _finish(self) -> RunSummary:
        if self.config.save_final_model:
            self.save("final")
        # Before the summary, which marks the run as finished: a callback that fails runs again when
        # the run is resumed. Every rank calls it.
        for callback in self.callbacks:
            callback.on_trained(self)
        summary = summarise(
            self.run_directory.path,
            self.config,
            self.model,
            self.state,
            self.skipped,
            self.backend.name,
            self.task.loss_name,
            self.n_unlabelled,
        )
        path = self.run_directory.summary
        # Rank zero first: then `on_end` finds the summary, whichever rank calls it.
        self.processes.rank_zero_first(lambda: write_summary(path, summary.to_json(), self.config))
        for callback in self.callbacks:
            callback.on_end(self, summary)
        return summary
