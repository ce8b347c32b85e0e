"""Run directories, which survive being killed at any moment.

One file, `train_state/state.safetensors`, holds everything that resuming needs; it is replaced as a
whole. The state before it stays as `state.previous.safetensors`: a run resumes from it if the
newest is damaged. `metrics.jsonl` only grows. The state records its length; resuming cuts off the
lines written later, which will be written again.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml

from cortext.config import first_difference, from_mapping, load_config, to_mapping
from cortext.errors import ConfigError, RunError, nearest
from cortext.files import atomic_write, disk_errors, exclusive, parse_json_object
from cortext.models.participants import (
    FOLDER,
    joined_checksum,
    participant_folder,
    read_participants,
)
from cortext.models.storage import read_metadata, read_tensors, write_tensors
from cortext.temporaries import clear
from cortext.training.config import TrainConfig

STATE_VERSION = 1


@dataclass
class RunState:
    """The state of a run: everything that resuming needs beside tensors."""

    data: dict[str, Any] = field(default_factory=dict)
    """Identity of the training data (sessions, trials, features); resuming refuses other data."""
    step: int = 0
    """Batches trained on."""
    best: dict[str, Any] | None = None
    """Metrics of the validation whose weights are kept."""
    best_crc32: str | None = None
    """Checksum of those weights in model.safetensors; None where it is not known."""
    last: dict[str, Any] | None = None
    """Metrics of the last validation."""
    validations_since_best: int = 0
    loss_sums: dict[str, float] = field(default_factory=dict)
    """Sums of the batches' mean losses since the last line about training, by name."""
    loss_count: int = 0
    metrics_bytes: int = 0
    """Length of metrics.jsonl."""
    seconds: float = 0.0
    """Training time so far, in seconds, with that before the run was resumed."""
    finished: bool = False

    def __post_init__(self) -> None:
        if min(self.step, self.validations_since_best, self.loss_count, self.metrics_bytes) < 0:
            raise ConfigError("it counts below 0")
        for metrics in (self.best, self.last):
            if metrics is not None and not all(
                isinstance(metrics.get(name), int | float) for name in ("step", "val_loss")
            ):
                raise ConfigError("its metrics lack a step or val_loss")


class RunDirectory:
    """Paths and files of a run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config = self.path / "config.yaml"
        self.metrics = self.path / "metrics.jsonl"
        self.state = self.path / "train_state" / "state.safetensors"
        self.summary = self.path / "summary.json"
        self.previous = self.state.with_name("state.previous.safetensors")
        self._newest_is_sound = True
        self._resumed_with: dict[Path, tuple[int, int]] | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep other processes from training here.

        A directory that is still empty at the end is removed.

        Raises:
            RunError: If another process trains here, or if the path is a file.
        """
        if self.path.exists() and not self.path.is_dir():
            raise RunError(
                "is a file; a directory is needed", where=self.path, fix="give another --out"
            )
        with disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
        busy = RunError(
            "another training is writing here", where=self.path, fix="give another --out"
        )
        with exclusive(self.path, busy):
            try:
                yield
            finally:
                if not any(self.path.iterdir()):
                    self.path.rmdir()

    @contextmanager
    def begun_with(self, config: TrainConfig, resume: bool) -> Iterator[None]:
        """Hold the directory and begin (or resume) a run with that configuration.

        Raises:
            RunError: See `held` and `begin`.
        """
        with self.held():
            self.begin(config, resume)
            yield

    def begin(self, config: TrainConfig, resume: bool) -> None:
        """Check that the run may start or resume, and write a new run's configuration.

        Args:
            config: Configuration of the run; a resumed run must have begun with the same.
            resume: True to resume a run, False to start one.

        Raises:
            RunError: If the run may not start or resume.
        """
        self.check(resume)
        if resume:
            self._check_resumable(config)
            self._remove_unfinished()
            self._resumed_with = self._packed()
            culprits_file(self.path).unlink(missing_ok=True)
            return
        self._remove_unfinished()
        text = yaml.safe_dump(to_mapping(config), sort_keys=False, allow_unicode=True)
        atomic_write(self.config, text.encode())

    def check(self, resume: bool) -> None:
        """Raise RunError if the run is finished.

        Without `resume`, also raise it if a run has begun or the directory holds other files.
        """
        if self.summary.is_file():
            fix = "give another --out, or delete the directory"
            raise RunError("the run is finished", where=self.path, fix=fix)
        if not resume and self.begun:
            fix = "continue it with --resume, or give another --out"
            raise RunError("there is an unfinished run", where=self.path, fix=fix)
        if not resume and self.path.is_dir() and not self._is_ours():
            raise RunError(
                "there is something else than a run", where=self.path, fix="give another --out"
            )

    def abandon(self) -> None:
        """Remove what a training wrote that failed before its first batch.

        Of a run that has no state yet, this is the configuration; packed data are used again. Of a
        run that was to be resumed, it is data that were packed for it.
        """
        if not self.begun:
            self.config.unlink(missing_ok=True)
        for folder, packed in self._packed().items():
            if self._resumed_with is not None and self._resumed_with.get(folder) != packed:
                shutil.rmtree(folder)
                if folder.parent != self.path and not any(folder.parent.iterdir()):
                    folder.parent.rmdir()

    def _packed(self) -> dict[Path, tuple[int, int]]:
        """Return the packed data in the run, with number and time of change of their index."""
        folders = [self.path / "packed", *self.path.glob(f"{FOLDER}/*/packed")]
        found = {folder: folder / "index.json" for folder in folders}
        status = {folder: index.stat() for folder, index in found.items() if index.is_file()}
        return {folder: (each.st_ino, each.st_mtime_ns) for folder, each in status.items()}

    @property
    def begun(self) -> bool:
        """True if there is a state to resume from."""
        return self.state.is_file() or self.previous.is_file()

    def _is_ours(self) -> bool:
        """Tell whether the directory is empty or holds only a run killed before its first state."""
        known = {
            self.config.name,
            self.metrics.name,
            "packed",
            "train_state",
            "tensorboard",
            "stages",
            FOLDER,
        }
        names = (path.name for path in self.path.iterdir())
        return all(name in known or name.startswith(".") for name in names)

    def _remove_unfinished(self) -> None:
        """Remove the unfinished files of a killed process.

        No process will finish them, and a state may take half a gigabyte.
        """
        for folder in (self.path, self.state.parent, self.path / "checkpoints"):
            clear(folder)

    def _check_resumable(self, config: TrainConfig) -> None:
        if not self.config.is_file():
            raise RunError(
                "there is no run to resume", where=self.path, fix="leave out --resume to start one"
            )
        before = to_mapping(load_config(self.config, type(config)))
        now = to_mapping(config)
        for settings in (before, now):
            settings.pop("tpu")  # settings of a device may change, because the device may
        if changed := first_difference(before, now):
            key, old, new = changed
            fix = "resume with the configuration it began with, or start another run"
            raise RunError(
                f"the run was begun with {key} = {old!r}, now it is {new!r}",
                where=self.config,
                fix=fix,
            )

    def save_state(self, tensors: Mapping[str, torch.Tensor], progress: RunState) -> None:
        """Replace the state; the state before it becomes the previous one.

        Raises:
            RunError: If the state cannot be written; both states then stay as they were.
        """
        # A damaged state must not replace the last sound one.
        keep = self.previous if self._newest_is_sound else None
        _write_state(self.state, tensors, progress, keep)
        self._newest_is_sound = True

    def load_state(
        self, note: Callable[[str], None] = lambda line: None
    ) -> tuple[dict[str, torch.Tensor], RunState] | None:
        """Return tensors and progress of the newest undamaged state; None before the first state.

        `progress.best` becomes None if model.safetensors does not hold the best weights of that
        state; the weights of the next validation are then kept.

        Args:
            note: Called with a line for the user if the newest state is damaged, or if the best
                weights are lost.

        Raises:
            RunError: If all states are damaged.
        """
        failures = []
        for path in (self.state, self.previous):
            if not path.is_file():
                continue
            try:
                state = _read_state(path)
            except RunError as error:
                failures.append(error)
                continue
            if failures:
                self._newest_is_sound = False
                line = " ".join(str(f"{failures[0].where}: {failures[0].what}").split())
                note(f"{line}; the run goes on from the state before it, batch {state[1].step}")
            self._forget_lost_best(state[1], note)
            return state
        if not failures:
            return None
        also = " (nor can the one before it)" if len(failures) > 1 else ""
        fix = f"start another run, from its best weights with --init-from {self.path}"
        raise RunError(f"{failures[0].what}{also}", where=self.state, fix=fix)

    def save_named(
        self, name: str, tensors: Mapping[str, torch.Tensor], progress: RunState
    ) -> Path:
        """Write a state to `checkpoints/<name>.safetensors`.

        Args:
            name: Up to 100 letters, digits, `_`, `-` and dots; not a dot or `-` at the start.
            tensors: Weights (`model/...`) and moments (`optimizer/...`).
            progress: Progress of the run.

        Returns:
            Path of the file.

        Raises:
            RunError: For another name, and if the file cannot be written.
        """
        path = self._named(name)
        _write_state(path, tensors, progress)
        return path

    def load_named(
        self, name: str, note: Callable[[str], None] = lambda line: None
    ) -> tuple[dict[str, torch.Tensor], RunState]:
        """Return the tensors and the progress that `save_named` wrote.

        See `load_state` for `note`.

        Raises:
            RunError: If no state of that name is saved, or if it is damaged.
        """
        path = self._named(name)
        if not path.is_file():
            names = [file.stem for file in path.parent.glob("[!.]*.safetensors")]
            hint = nearest(name, names) if names else "none was saved"
            raise RunError(f"there is no saved state {name!r}; {hint}", where=self.path)
        tensors, progress = _read_state(path)
        self._forget_lost_best(progress, note)
        return tensors, progress

    def _named(self, name: str) -> Path:
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", name):
            problem = f"{name!r} cannot name a state"
            raise RunError(
                problem,
                fix="use letters, digits, '_', '-' and dots, with no dot or '-' at the start",
            )
        return self.path / "checkpoints" / f"{name}.safetensors"

    def _forget_lost_best(self, progress: RunState, note: Callable[[str], None]) -> None:
        """Set `best` of the progress to None if model.safetensors does not hold those weights.

        The file may be missing, damaged, or of a later validation.
        """
        if progress.best is None or progress.best_crc32 is None:
            return
        folders = [participant_folder(self.path, name) for name in read_participants(self.path)]
        weights = (folders or [self.path])[0] / "model.safetensors"
        try:
            checksum = joined_checksum(
                [read_tensors(folder / weights.name)[2] for folder in folders or [self.path]]
            )
            reason = (
                f"is of another validation than that of batch {progress.best['step']}, the best"
                " until then"
            )
        except (RunError, FileNotFoundError) as error:
            checksum = None
            reason = "is missing" if isinstance(error, FileNotFoundError) else error.what
        if checksum != progress.best_crc32:
            note(
                f"{weights}: {reason}; the next validation's weights are kept, whatever they"
                " measure"
            )
            progress.best = progress.best_crc32 = None


def _write_state(
    path: Path, tensors: Mapping[str, torch.Tensor], progress: RunState, keep: Path | None = None
) -> None:
    metadata = {"version": str(STATE_VERSION), "progress": json.dumps(asdict(progress))}
    write_tensors(path, tensors, metadata, keep)


def _read_state(path: Path) -> tuple[dict[str, torch.Tensor], RunState]:
    part = "the saved state"
    try:
        tensors, metadata, checksum = read_tensors(path, part)
        if checksum is None:
            raise ValueError("it has no checksum")
        version = metadata["version"]
        text = metadata["progress"]
        if version == str(STATE_VERSION):
            return tensors, from_mapping(RunState, parse_json_object(text))
    except (FileNotFoundError, KeyError, TypeError, ValueError, ConfigError) as error:
        raise RunError(f"{part} cannot be read: {error}", where=path) from None
    raise RunError(
        f"{part} cannot be read: its version is {version}, not {STATE_VERSION}", where=path
    )


def read_identity(run_dir: str | Path) -> dict[str, Any]:
    """Return the properties of the data that a run was trained on (`RunState.data`).

    Nothing where the run has no state that says them.
    """
    folder = Path(run_dir)
    identity = _saved_identity(folder)
    if not identity and folder.parent.name == FOLDER:  # of a participant in a run of several
        identity = _saved_identity(folder.parents[1]).get("participants", {}).get(folder.name)
    return identity if isinstance(identity, dict) else {}


def _saved_identity(run: Path) -> dict[str, Any]:
    text = read_metadata(RunDirectory(run).state).get("progress", "{}")
    try:
        identity = parse_json_object(text).get("data")
    except ValueError:
        return {}
    return identity if isinstance(identity, dict) else {}


def culprits_file(run_dir: Path) -> Path:
    """Return the path of the file that names the trials that stopped a run."""
    return run_dir / "not_finite.json"


def write_culprits(
    run_dir: str | Path, step: int, trials: Iterable[tuple[str, int, int]], what: str
) -> Path:
    """Write `not_finite.json`: the batch that stopped a run, and settings that omit its trials.

    Args:
        run_dir: The run directory.
        step: Number of the batch, from 0.
        trials: Session, block and trial number of each trial to leave out.
        what: The reason, in words.

    Returns:
        The path of the file.

    Raises:
        RunError: If it cannot be written.
    """
    named = sorted({(str(session), int(block), int(trial)) for session, block, trial in trials})
    bad: dict[str, dict[str, list[int]]] = {}
    for session, block, trial in named:
        bad.setdefault(session, {}).setdefault(str(block), []).append(trial)
    content = {
        "step": step,
        "reason": what,
        "trials": [
            {"session": session, "block": block, "trial": trial} for session, block, trial in named
        ],
        "settings_to_leave_them_out": {"dataset": {"bad_trials_dict": bad}},
    }
    path = culprits_file(Path(run_dir))
    atomic_write(path, json.dumps(content, indent=2).encode())
    return path
