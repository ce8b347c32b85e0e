"""A run directory: what it holds, and how it survives being killed at any moment.

Everything needed to go on is one file, `train_state/state.safetensors`, replaced whole. `metrics.jsonl` only grows;
the state records how long it was, and resuming cuts off what was written later and will be written again.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
import yaml
from safetensors import SafetensorError, safe_open
from safetensors.torch import save

from cortext.config import from_mapping, load_config, to_mapping
from cortext.data.disk import disk_errors
from cortext.errors import ConfigError, RunError
from cortext.models.acoustic import write_whole
from cortext.training.config import TrainConfig

STATE_VERSION = 1


@dataclass
class Progress:
    """How far a run is: everything that resuming needs beside tensors."""

    data: dict[str, Any] = field(default_factory=dict)
    """What the training data were (sessions, trials, features): resuming on others is refused."""
    step: int = 0
    """Batches trained on."""
    best: dict[str, Any] | None = None
    """Metrics of the validation whose weights are kept."""
    last: dict[str, Any] | None = None
    """Metrics of the last validation."""
    validations_since_best: int = 0
    loss_sum: float = 0.0
    """Of the batches since the last line about training."""
    loss_count: int = 0
    metrics_bytes: int = 0
    """Length of metrics.jsonl."""
    seconds: float = 0.0
    """Time trained so far, in all sittings."""
    finished: bool = False


class RunDirectory:
    """Paths and files of a run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.config, self.metrics = self.path / "config.yaml", self.path / "metrics.jsonl"
        self.state, self.summary = self.path / "train_state" / "state.safetensors", self.path / "summary.json"

    @contextmanager
    def held(self) -> Iterator[None]:
        """A context in which no other process trains here. Raises RunError where one does, or the path is no folder.

        A directory that is still empty at the end is removed. The system drops the lock of a process that is killed;
        a file system without locks keeps nobody out.
        """
        if self.path.exists() and not self.path.is_dir():
            raise RunError("is a file; a directory is needed", where=self.path, fix="give another --out")
        with disk_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            raise RunError("another training is writing here", where=self.path, fix="give another --out") from None
        except OSError:
            pass  # NFS and others cannot lock a directory: two trainings at once are then the user's business
        try:
            yield
        finally:
            if not any(self.path.iterdir()):
                self.path.rmdir()
            os.close(descriptor)

    def begin(self, config: TrainConfig, resume: bool) -> None:
        """Check that the run may start (or go on), and write its configuration. Raises RunError."""
        if self.summary.is_file():
            fix = "give another --out, or delete the directory"
            raise RunError("the run is finished", where=self.path, fix=fix)
        if resume:
            self._check_resumable(config)
            self._remove_unfinished()
            return
        if self.state.is_file():
            fix = "continue it with --resume, or give another --out"
            raise RunError("there is an unfinished run", where=self.path, fix=fix)
        if not self._is_ours():
            raise RunError("there is something else than a run", where=self.path, fix="give another --out")
        self._remove_unfinished()
        text = yaml.safe_dump(to_mapping(config), sort_keys=False, allow_unicode=True)
        write_whole(self.config, text.encode())

    def abandon(self) -> None:
        """Take back a run that came to nothing before its first state was written."""
        if not self.state.is_file():
            self.config.unlink(missing_ok=True)

    def _is_ours(self) -> bool:
        """Empty, or what is left of a run that was killed before its first state was written."""
        known = {self.config.name, self.metrics.name, "packed", "train_state", "tensorboard"}
        names = (path.name for path in self.path.iterdir())
        return all(name in known or name.startswith(".") for name in names)

    def _remove_unfinished(self) -> None:
        """Remove what a killed process was writing: nobody will rename it, and a state may take half a gigabyte."""
        for folder in (self.path, self.state.parent):
            for path in folder.glob(".*.tmp"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def _check_resumable(self, config: TrainConfig) -> None:
        if not self.config.is_file():
            raise RunError("there is no run to resume", where=self.path, fix="leave out --resume to start one")
        before, now = to_mapping(load_config(self.config, TrainConfig)), to_mapping(config)
        if changed := first_difference(before, now):
            key, old, new = changed
            fix = "resume with the configuration it began with, or start another run"
            raise RunError(f"the run was begun with {key} = {old!r}, now it is {new!r}", where=self.config, fix=fix)

    def save_state(self, tensors: Mapping[str, torch.Tensor], progress: Progress) -> None:
        """Replace the state. Raises RunError where it cannot be written; the state before stays."""
        metadata = {"version": str(STATE_VERSION), "progress": json.dumps(asdict(progress))}
        plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
        write_whole(self.state, save(plain, metadata=metadata))

    def load_state(self) -> tuple[dict[str, torch.Tensor], Progress] | None:
        """Tensors and progress of the last state, or None before the first. Raises RunError for a broken file."""
        if not self.state.is_file():
            return None
        try:
            with safe_open(self.state, framework="pt") as file:
                metadata = file.metadata()
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
            if metadata["version"] != str(STATE_VERSION):
                raise RunError(f"state version {metadata['version']} is not {STATE_VERSION}", where=self.state)
            return tensors, from_mapping(Progress, json.loads(metadata["progress"]))
        except (SafetensorError, OSError, KeyError, TypeError, ValueError, ConfigError) as error:
            fix = "the run cannot be resumed; start another"
            raise RunError(f"the saved state cannot be read: {error}", where=self.state, fix=fix) from None


class MetricsLog:
    """`metrics.jsonl`: one JSON object a line. Fields about time end in `seconds` or `_per_s`."""

    def __init__(self, path: Path, length: int) -> None:
        self.path = path
        with self._errors():
            self._file = path.open("ab")
            self._file.truncate(length)
            self._file.seek(length)

    def write(self, entry: Mapping[str, Any]) -> None:
        """Append a line."""
        with self._errors():
            self._file.write(json.dumps(entry).encode() + b"\n")
            self._file.flush()

    def sync(self) -> int:
        """Flush to the disk; returns the length in bytes."""
        with self._errors():
            os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Close the file, which tries once more to write what a full disk has refused."""
        with self._errors():
            self._file.close()

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """A context in which a failed write is a RunError that names the file."""
        try:
            yield
        except OSError as error:
            fix = "free some space and continue with --resume"
            raise RunError(f"cannot be written: {error.strerror}", where=self.path, fix=fix) from None


def first_difference(before: Any, now: Any, prefix: str = "") -> tuple[str, Any, Any] | None:
    """Dotted key, old and new value of the first difference between two nested mappings."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in before | now:
            if found := first_difference(before.get(key), now.get(key), f"{prefix}.{key}" if prefix else str(key)):
                return found
        return None
    return None if before == now else (prefix, before, now)
