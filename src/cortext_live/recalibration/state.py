"""A learner on disk, which survives being killed at any moment.

The directory has one file, `learner.safetensors`, with weights, the optimiser's moments and
counters. It names the sentences that are kept for replay, each a file of its own under
`sentences/`, which never changes. Saving writes the new sentences, replaces `learner.safetensors`
as a whole, and then removes the sentences that it no longer names. What a kill leaves behind is the
state before or the new one. Nothing here is a pickle.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch

from cortext.arguments import as_path
from cortext.config import from_mapping, to_mapping
from cortext.errors import CortextError, RunError
from cortext.files import disk_errors, parse_json_object
from cortext.models import AcousticModel
from cortext.models.acoustic import network_of
from cortext.models.card import CARD, card_of
from cortext.models.storage import read_tensors, write_tensors
from cortext.temporaries import clear
from cortext.training.config import TrainConfig
from cortext_live.recalibration.learner import LabelledSentence, Learner, LearnerState
from cortext_live.recalibration.settings import LearningSettings
from cortext_live.usage.log import LogContents

FILE = "learner.safetensors"
FORMAT_VERSION = "1"
PARTS = ("known", "decoded", "corrected", "today")
"""Fields of `LearnerState` that hold sentences."""
WHAT = "the saved learner"
FIX = (
    "stop the service and remove the directory learner of the chain; learning goes on from its"
    " latest model"
)
"""Advice for a directory that cannot be read."""


@dataclass
class Position:
    """The part of a log that was learnt from; saved with the learner.

    Attributes:
        began: Second of the log's first entry, which tells one log from another; None before it.
        next: First utterance that was not considered yet.
        considered: Earlier utterances that had labels, and the revision of the label that was
            considered: a person may correct again.
        latest: Model of the chain that the learner goes on from.
        before: Latest one from before the day that it learnt from last.
        decoded: Utterances that it has learnt from since `latest`, as they were decoded.
        corrected: Utterances that it has learnt from since, as they were corrected.
        today: Utterances of the latest day, where those of a day learn together.
        fresh: Utterances that are in no model of the chain yet, learnt or waiting.
        rested: The last steps of that day were taken.
        pending: The learner has learnt what the next model of the chain has to.
        ends: The next model (if `pending`) or else the latest one has the last steps of the day.
    """

    began: int | None = None
    next: int = 0
    considered: dict[int, int] = field(default_factory=dict)
    latest: int = 0
    before: int | None = None
    decoded: list[int] = field(default_factory=list)
    corrected: list[int] = field(default_factory=list)
    today: list[int] = field(default_factory=list)
    fresh: list[int] = field(default_factory=list)
    rested: bool = False
    pending: bool = False
    ends: bool = False

    def to_note(self) -> dict[str, Any]:
        """Return it as plain values."""
        return asdict(self) | {"considered": list(self.considered.items())}

    @classmethod
    def of_note(cls, note: Mapping[str, Any]) -> Position:
        """Return the position of `to_note`."""
        return cls(**{**note, "considered": dict(note["considered"])})

    def begin(self, model: int) -> None:
        """Go on from a model of the chain; what was learnt since another one counts no longer."""
        self.latest = model
        self.rested = self.pending = self.ends = False
        self.decoded, self.corrected, self.today, self.fresh = [], [], [], []

    def consider_again(self) -> None:
        """Let labels that changed since `latest` be learnt again: no model knows them yet."""
        for number in (*self.corrected, *self.fresh):
            self.considered.pop(number, None)

    def note_learnt(self, number: int, *, corrected: bool) -> None:
        """Note that an utterance was learnt from."""
        part = self.corrected if corrected else self.decoded
        if number not in part:
            part.append(number)

    def next_correction(self, log: LogContents) -> int | None:
        """Return an earlier utterance whose label has changed since it was considered, or None."""
        for number, utterance in log.utterances.items():
            if number >= self.next:
                break
            if utterance.revision != self.considered.get(number, 0):
                self.considered[number] = utterance.revision
                return number
        return None

    def next_utterance(self, log: LogContents, settled: datetime) -> int | None:
        """Return the next new utterance; None if there is none, or it has to wait.

        Args:
            log: The log.
            settled: An utterance after this time may still be corrected, unless a later one is
                older: clocks are set.
        """
        while self.next < len(log.entries) and self.next not in log.utterances:
            self.next += 1  # a partner's turn, or deleted
        if self.next >= len(log.entries):
            return None
        utterance = log.utterances[self.next]
        since = min(entry.when for entry in log.entries[self.next :])
        if utterance.label is None and since > settled:
            return None
        number, self.next = self.next, self.next + 1
        if utterance.revision:
            self.considered[number] = utterance.revision
        return number


class LearnerStore:
    """The directory of a learner; one process at a time may use it.

    It holds at most as many sentences as the learner keeps (`LearningSettings.remembered`), and
    while it saves, those that were learnt since the last time.

    Args:
        folder: The directory; made by the first `save`.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = as_path(folder, "folder")
        self._sentences = self.folder / "sentences"
        self._names: WeakKeyDictionary[LabelledSentence, str] = WeakKeyDictionary()
        numbers = (int(path.stem) for path in self._sentences.glob(f"{'[0-9]' * 8}.safetensors"))
        self._next = 1 + max(numbers, default=-1)

    def save(self, learner: Learner, note: Mapping[str, Any] | None = None) -> None:
        """Write the learner, whole or not at all.

        Args:
            learner: The learner.
            note: Plain values that belong to it, such as the last line of a log that it has learnt
                from. They are saved with it and never without.

        Raises:
            RunError, DataError: If it cannot be written (a full disk); the state before it stays.
        """
        state = learner.state()
        with disk_errors(self._sentences):
            self._sentences.mkdir(parents=True, exist_ok=True)
        there = {path.name for path in self._sentences.iterdir()}
        names = {
            part: [self._written(sentence, there) for sentence in getattr(state, part)]
            for part in PARTS
        }
        weights = state.model.network.state_dict()
        tensors = {f"model/{name}": tensor for name, tensor in weights.items()}
        tensors |= {f"optimizer/{name}": tensor for name, tensor in state.moments.items()}
        progress = {
            "settings": to_mapping(state.settings),
            "config": to_mapping(state.config),
            "seed": state.seed,
            "n_steps": state.n_steps,
            "session": state.session,
            "steps_today": state.steps_today,
            "note": dict(note or {}),
            **names,
        }
        metadata = {
            "version": FORMAT_VERSION,
            CARD: state.model.card().to_json().decode(),
            "progress": json.dumps(progress),
        }
        write_tensors(self.folder / FILE, tensors, metadata)
        self._remove_all_but({name for each in names.values() for name in each})

    def load(self) -> tuple[Learner, dict[str, Any]] | None:
        """Return the learner and the note that were saved last; None where nothing was.

        Raises:
            RunError: For files that are missing, damaged or of another version.
        """
        path = self.folder / FILE
        if not path.is_file():
            return None
        tensors, metadata, checksum = read_tensors(path, WHAT, FIX)
        try:
            if checksum is None:
                raise ValueError("it has no checksum")
            if metadata["version"] != FORMAT_VERSION:
                raise ValueError(f"its version is {metadata['version']}, not {FORMAT_VERSION}")
            progress = parse_json_object(metadata["progress"])
            weights = {
                name.removeprefix("model/"): tensor
                for name, tensor in tensors.items()
                if name.startswith("model/")
            }
            card = card_of(parse_json_object(metadata[CARD]), path)
            model = AcousticModel.of(card, network_of(card, weights, path))
            return Learner.restored(self._state(model, tensors, progress)), dict(progress["note"])
        except RunError:
            raise
        except KeyError as error:
            reason = f"it lacks {error}"
        except (CortextError, TypeError, ValueError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
        raise RunError(f"{WHAT} cannot be read: {reason}", where=path, fix=FIX)

    def _state(
        self, model: AcousticModel, tensors: Mapping[str, torch.Tensor], progress: dict[str, Any]
    ) -> LearnerState:
        return LearnerState(
            model=model,
            config=from_mapping(TrainConfig, progress["config"]),
            settings=from_mapping(LearningSettings, progress["settings"]),
            seed=int(progress["seed"]),
            n_steps=int(progress["n_steps"]),
            session=progress["session"],
            steps_today=int(progress["steps_today"]),
            known=self._read_all(progress["known"]),
            decoded=self._read_all(progress["decoded"]),
            corrected=self._read_all(progress["corrected"]),
            today=self._read_all(progress["today"]),
            moments={
                name.removeprefix("optimizer/"): tensor
                for name, tensor in tensors.items()
                if name.startswith("optimizer/")
            },
        )

    def _written(self, sentence: LabelledSentence, there: Collection[str]) -> str:
        """Return the name of a sentence's file, which is written unless it is there."""
        if self._names.get(sentence) not in there:
            name = f"{self._next:08d}.safetensors"
            arrays = {
                "features_TC": torch.from_numpy(np.ascontiguousarray(sentence.features_TC)),
                "labels_U": torch.from_numpy(np.ascontiguousarray(sentence.labels_U, np.int64)),
            }
            facts = {"session": sentence.session, "corrected": str(int(sentence.corrected))}
            if sentence.entry is not None:  # for `forgetting`
                facts |= dict(zip(("log", "entry"), map(str, sentence.entry), strict=True))
            write_tensors(self._sentences / name, arrays, facts)
            self._names[sentence] = name
            self._next += 1
        return self._names[sentence]

    def _read_all(self, names: Iterable[str]) -> tuple[LabelledSentence, ...]:
        return tuple(map(self._read, names))

    def _read(self, name: str) -> LabelledSentence:
        path = self._sentences / Path(name).name
        try:
            arrays, metadata, _ = read_tensors(path, "a sentence kept for replay", FIX)
        except FileNotFoundError:
            raise RunError("a sentence kept for replay is missing", where=path, fix=FIX) from None
        entry = (int(metadata["log"]), int(metadata["entry"])) if "log" in metadata else None
        sentence = LabelledSentence(
            arrays["features_TC"].numpy(),
            metadata["session"],
            arrays["labels_U"].numpy(),
            entry=entry,
            corrected=metadata["corrected"] == "1",
        )
        self._names[sentence] = path.name
        return sentence

    def _remove_all_but(self, names: Iterable[str]) -> None:
        """Remove sentences that are kept no longer, and unfinished files of a killed process."""
        kept = set(names)
        old = [path for path in self._sentences.iterdir() if path.name not in kept]
        for path in old:
            with disk_errors(path):
                path.unlink(missing_ok=True)
        with disk_errors(self.folder):
            clear(self.folder)
