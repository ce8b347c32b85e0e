"""The record of an import, `<out>/import.json`: an import that was cut off continues there."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cortext.data.conventions import FILE as CONVENTIONS
from cortext.data.conventions import checked_bin_ms, session_files_in
from cortext.errors import DataError
from cortext.files import atomic_write, read_json
from cortext.temporaries import clear
from cortext_data.readers.recording import Recording

RECORD = "import.json"
_FORMAT = {"format": "cortext-import", "format_version": 1}


class ImportRecord:
    """The settings of an import, and the recordings that it has written.

    Attributes:
        out: Directory of the session files.
        path: Path of the record.
        settings: Options that change the output.
        bin_ms: Length of the bins that are written; None until the first recording.
        n_features: Features of a bin; None until the first recording.
        written: Files, their sizes and times by recording, as JSON.

    Raises:
        DataError: For a directory with an import of other settings or with other session files, and
            for a record that cannot be read.
    """

    def __init__(self, out: Path, settings: dict[str, Any]) -> None:
        self.out = out
        self.path = out / RECORD
        self.settings = json.loads(json.dumps(settings))
        self.bin_ms: float | None = None
        self.n_features: int | None = None
        self.written: dict[str, dict[str, Any]] = {}
        self._claimed: dict[Path, Recording] = {}
        folders = [folder for folder in out.iterdir() if folder.is_dir()]
        clear(out, RECORD)
        clear(out, CONVENTIONS)
        for folder in folders:
            clear(folder)
        if self.path.exists():
            self._read()
        elif next(session_files_in(out), None):
            raise DataError(
                "holds session files that no import wrote",
                where=out,
                fix="choose a directory of its own",
            )

    def _read(self) -> None:
        fix = "choose another directory, or remove this one"
        try:
            values = read_json(self.path)
            if {key: values.get(key) for key in _FORMAT} != _FORMAT:
                raise ValueError(f"it is no {_FORMAT['format']} of version 1")
            self.written = dict(values["recordings"])
            if values["bin_ms"] is not None:
                self.bin_ms = checked_bin_ms(values["bin_ms"])
                self.n_features = int(values["n_features"])
        except (DataError, OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"cannot be read: {error}", where=self.path, fix=fix) from None
        other = values.get("settings")
        other = other if isinstance(other, dict) else {}
        keys = sorted({*self.settings, *other})
        if changed := [key for key in keys if other.get(key) != self.settings.get(key)]:
            which = f"other {', '.join(changed)}" if len(changed) > 1 else f"another {changed[0]}"
            raise DataError(f"holds an import with {which}", where=self.out, fix=fix)

    @staticmethod
    def _key(recording: Recording) -> str:
        first = recording.paths[0]
        return f"{recording.session}: {first.parent.name}/{first.name}"

    @staticmethod
    def state(recording: Recording) -> list[list[Any]]:
        """Return name, size and time of the recording's files; none where one cannot be found."""
        try:
            states = [(path.name, path.stat()) for path in recording.paths]
        except OSError:  # opening it says why
            return []
        return [[name, state.st_size, state.st_mtime_ns] for name, state in states]

    def has(self, recording: Recording) -> bool:
        """Return whether the recording has been written, and neither it nor the files changed."""
        entry = self.written.get(self._key(recording))
        if not isinstance(entry, dict) or entry.get("paths") != self.state(recording):
            return False
        sizes = entry.get("files")
        if not isinstance(sizes, dict) or not sizes:
            return False
        files = [self.out / name for name in sizes]
        if [path.stat().st_size if path.is_file() else None for path in files] != [*sizes.values()]:
            return False
        for path in files:
            self.claim(path, recording)
        return True

    def claim(self, path: Path, recording: Recording) -> None:
        """Reserve a session file. Raises DataError where another recording has written it."""
        other = self._claimed.setdefault(path, recording)
        if other is not recording:
            raise DataError(
                f"and {other.paths[0]} hold the same split of {recording.session}",
                where=recording.paths[0],
                fix="give them as one recording, or import them to separate directories",
            )
        if not self.path.exists():  # before the first session file: an import continues from here
            self._save()

    def add(
        self,
        recording: Recording,
        files: list[Path],
        bin_ms: float | None,
        n_features: int | None,
        notes: Sequence[str] = (),
        ranges: Mapping[str, Sequence[float]] | None = None,
    ) -> None:
        """Note that a recording has been written.

        Args:
            recording: The recording.
            files: Its session files.
            bin_ms: Length of the bins that are written.
            n_features: Features of a bin.
            notes: What the user was shown of it.
            ranges: Ranges of its values, see `survey.Ranges`.
        """
        self.bin_ms, self.n_features = bin_ms, n_features
        self.written[self._key(recording)] = {
            "paths": self.state(recording),
            "files": {str(path.relative_to(self.out)): path.stat().st_size for path in files},
            "notes": [*notes],
            "ranges": dict(ranges or {}),
        }
        self._save()

    def notes(self, recording: Recording) -> list[str]:
        """Return the notes on a recording that has been written."""
        known = self.written.get(self._key(recording), {}).get("notes")
        return [note for note in known if isinstance(note, str)] if isinstance(known, list) else []

    def ranges(self) -> dict[str, dict[str, list[float]]]:
        """Return the ranges of the values of all recordings that have been written, by session."""
        by_session: dict[str, dict[str, list[float]]] = {}
        for key, entry in self.written.items():
            ranges = entry.get("ranges") if isinstance(entry, dict) else None
            if isinstance(ranges, dict):
                by_session[key.partition(":")[0]] = {
                    k: v for k, v in ranges.items() if _is_range(v)
                }
        return by_session

    def _save(self) -> None:
        content = _FORMAT | {
            "settings": self.settings,
            "bin_ms": self.bin_ms,
            "n_features": self.n_features,
            "recordings": self.written,
        }
        atomic_write(self.path, (json.dumps(content, indent=1) + "\n").encode())


def _is_range(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 3 and all(isinstance(n, float) for n in value)
