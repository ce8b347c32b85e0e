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
from cortext_live.recalibration.learner import Learner, LearnerState
from cortext_live.recalibration.replay import LabelledSentence
from cortext_live.recalibration.settings import LearningOptions

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


class LearnerStore:
    """The directory of a learner; one process at a time may use it.

    It holds at most as many sentences as the learner keeps (`LearningOptions.remembered`), and
    while it saves, those that were learnt since the last time.

    Args:
        folder: The directory; made by the first `save`.
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = as_path(folder, "folder")
        self._sentences = self.folder / "sentences"
        # Weak: a sentence that is no longer replayed must not stay in memory for its name.
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
        # From here on the new state counts. What only the old one names is removed after this.
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
            settings=from_mapping(LearningOptions, progress["settings"]),
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
        # The file may be gone though the sentence has a name: `forgetting` deletes files.
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
        path = self._sentences / Path(name).name  # whatever a damaged file names, it lies here
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
