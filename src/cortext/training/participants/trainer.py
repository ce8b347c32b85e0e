"""The trainer of several participants: one body, and the first layers of each."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml

from cortext.config import to_mapping
from cortext.data.packed import PackedDataset, PackedSplit
from cortext.describe import percent
from cortext.entry_points import load
from cortext.errors import ConfigError
from cortext.files import atomic_write, disk_errors
from cortext.models import AcousticModel
from cortext.models.acoustic import look_ahead_text
from cortext.models.participants import (
    joined_checksum,
    participant_folder,
    write_participants,
)
from cortext.training.backend import DeviceSpec
from cortext.training.distributed import ALONE, Processes
from cortext.training.participants.backend import JointBackend
from cortext.training.participants.joint import JointSetup, check_settings, prepare_all
from cortext.training.participants.recordings import (
    Alternation,
    Given,
    Recordings,
    merged,
    open_recordings,
)
from cortext.training.prepare import Setup
from cortext.training.task import CTCTask
from cortext.training.trainer import Trainer
from cortext.training.validate import Forward, Validates


class JointTrainer(Trainer):
    """A run of several participants whose models share one body; see `Trainer`.

    Its data is a mapping of participants' names to their recordings. Each batch has trials of one
    participant. The run keeps each model in `participants/NAME`, a run directory of its own.
    """

    def __init__(self, *arguments: Any, device: str | DeviceSpec = "cpu", **settings: Any) -> None:
        spec = device if isinstance(device, DeviceSpec) else DeviceSpec(device)
        _require(spec.backend_name == "torch")  # before its libraries are asked for
        super().__init__(*arguments, device=spec, **settings)

    def _opened(
        self, data: Given, packed: Path, skip_bad: bool, init_from: Path | None
    ) -> Recordings:
        """See `Trainer`; the data of each participant is packed into its own folder."""
        _require(self.processes.world == 1)
        if not isinstance(self.task, CTCTask):
            what = f"task {self.config.task_name!r} trains one participant"
            raise ConfigError(what, fix="leave out task, or give one participant's data")
        check_settings(self.config)  # before session files are packed
        run = self.run_directory
        return open_recordings(data, run.path, skip_bad, self.shown, init_from, run.begun)

    def _prepared(
        self,
        data: PackedDataset | Recordings,
        init_from: Path | None,
        model: AcousticModel | None,
    ) -> JointSetup:
        """See `Trainer`."""
        assert isinstance(data, Recordings)
        assert model is None
        setup = prepare_all(
            self.config, self.task, data, init_from, self.shown, skip_bad=self._skip_bad
        )
        self.models = setup.model.of
        return setup

    def _examine(self) -> None:
        """See `Trainer`: the participants' models are of one class."""
        load("cortext.checks", "before")(self.config, next(iter(self.models.values())))

    def _take(self, setup: Setup | JointSetup) -> None:
        """See `Trainer`."""
        assert isinstance(setup, JointSetup)
        self.splits = {name: own.train for name, own in setup.of.items()}
        participant_of = Alternation({name: len(split) for name, split in self.splits.items()})
        jobs = {name: self._job(own, name) for name, own in setup.of.items()}
        backend = JointBackend(jobs, participant_of)
        self.backend = backend
        self.validators = {
            name: self._new_validator(own, backend.of[name], name) for name, own in setup.of.items()
        }
        self.validator = JointValidator(self.validators)
        self.log = self._new_log(lambda step: self.splits[participant_of(step)])

    @property
    def runs(self) -> dict[str, tuple[Path, PackedSplit]]:
        """See `Trainer`."""
        folder = partial(participant_folder, self.run_directory.path)
        return {name: (folder(name), own.batches.split) for name, own in self.validators.items()}

    def _facts(self) -> dict[str, Any]:
        per = (self.state.best or {}).get("val_per_by_participant", {})
        trials = {name: len(split) for name, split in self.splits.items()}
        return {
            "run": self.run_directory.path,
            "model": self.config.model.kind,
            "parameters": self.model.n_parameters,
            "training trials": ", ".join(f"{name} {count:,}" for name, count in trials.items()),
            "batches": f"{self.state.step:,} of {self.config.num_training_batches:,}",
            "best PER": ", ".join(f"{name} {percent(rate)}" for name, rate in per.items()),
            "look-ahead": look_ahead_text(self.model.look_ahead_ms),
            "device": self.backend.name,
        }

    def _save_best(self) -> str | None:
        """See `Trainer`; `participants.json` comes first, so that none of the models is missed."""
        run = self.run_directory.path
        models = self.models
        write_participants(run, {name: model.sessions for name, model in models.items()})
        config = yaml.safe_dump(to_mapping(self.config), sort_keys=False, allow_unicode=True)
        checksums = []
        for name, model in models.items():
            folder = participant_folder(run, name)
            with disk_errors(folder):
                folder.mkdir(parents=True, exist_ok=True)
            atomic_write(folder / "config.yaml", config.encode())
            checksums.append(self.task.save(model, folder))
        return joined_checksum(checksums)


def _require(alone: bool) -> None:
    if not alone:
        what = "several participants train in one process, on a CPU or one GPU"
        raise ConfigError(what, fix="start without torchrun, with --device cpu or cuda")


class JointValidator:
    """The validator of several participants; each metric is their mean.

    Args:
        of: Validator of each participant, by name.

    Attributes:
        batches: Batches of the first participant's validation split.
    """

    def __init__(self, of: Mapping[str, Validates]) -> None:
        self.of = dict(of)
        self.batches = next(iter(self.of.values())).batches

    def measure(
        self, forward: Forward, processes: Processes = ALONE
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """See `Validates`; the results are by participant."""
        found = {name: own.measure(forward, processes) for name, own in self.of.items()}
        return merged({name: metrics for name, (metrics, _) in found.items()}), {
            name: results for name, (_, results) in found.items()
        }

    def write(self, results: Mapping[str, Any], folder: Path) -> None:
        """See `Validates`."""
        for name, own in self.of.items():
            own.write(results[name], participant_folder(folder, name))
