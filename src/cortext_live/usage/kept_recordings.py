"""Recordings of a usage log to learn from: corrected and confirmed utterances, with their labels.

    DIR/recordings/<session>/data_train.hdf5

T bins, C features.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np

from cortext.data.conventions import Conventions
from cortext.data.session_files import read_trials, write_session
from cortext.data.trial import Trial, make_trial
from cortext.errors import CortextError, DataError, LiveError, TextError
from cortext.temporaries import clear
from cortext.text.lexicon import Lexicon
from cortext.text.pronunciation import to_tokens
from cortext_live.usage.log_entries import LoggedUtterance

RECORDINGS = "recordings"
SESSION_FILE = "data_train.hdf5"
HELD_UTTERANCES = 32
"""Utterances that can still be corrected or confirmed with their features."""
HELD_BYTES = 256 << 20
"""Most memory of these features: about a megabyte each, but an utterance may be long."""


class KeptRecordings:
    """The recordings of a log. For one thread at a time.

    Args:
        folder: Directory of the log.
        conventions: Tokens, language and length of a bin.
        lexicon: Pronunciations for the labels of an inventory of one's own.
    """

    def __init__(self, folder: Path, conventions: Conventions, lexicon: Lexicon | None) -> None:
        self.folder = folder
        self._conventions = conventions
        self._lexicon = lexicon
        self._held: OrderedDict[int, np.ndarray] = OrderedDict()
        self._labels: dict[str, dict[tuple[int, int], str]] = {}

    def check_conventions(self) -> None:
        """Raise LiveError where recordings that the log keeps have other conventions."""
        root = self.folder / RECORDINGS
        if not any(root.glob(f"*/{SESSION_FILE}")):
            return
        with failures(root):
            kept = Conventions.read(root)
        self._conventions.require(
            kept,
            mine="the model",
            theirs="the recordings of this log",
            where=root,
            error=LiveError,
            fix="give another --session-log",
        )

    def tidy(self) -> None:
        """Remove what a killed process was writing."""
        for folder in self.folder.glob(f"{RECORDINGS}/*"):
            with suppress(OSError):
                clear(folder)

    def hold(self, number: int, features_TC: np.ndarray) -> None:
        """Hold the features of an utterance, float32 [T, C], until others need the memory."""
        self._held[number] = features_TC
        while (
            len(self._held) > HELD_UTTERANCES
            or sum(x.nbytes for x in self._held.values()) > HELD_BYTES
        ):
            self._held.popitem(last=False)

    def forget(self, numbers: Iterable[int]) -> None:
        """Hold some utterances no longer; session files may change meanwhile."""
        self._labels.clear()
        for number in numbers:
            self._held.pop(number, None)

    def keep(self, key: tuple[int, int], entry: LoggedUtterance) -> bool:
        """Make the day's session file agree with the log; return whether the utterance is in it.

        Args:
            key: Block and number of the utterance.
            entry: Its line, with the feedback so far.

        Raises:
            LiveError: The disk is full, or the label cannot be kept.
        """
        try:
            labels = self._labels_of(entry.session)
            if key not in labels and key[1] not in self._held:
                return False
            unspoken = self._unspoken(entry.label)
            # A label without a pronunciation takes the recording's earlier one away.
            label = None if unspoken else entry.label
            if labels.get(key) != label:
                self._rewrite(entry.session, key, labels, label)
            if unspoken:
                raise unspoken
        except (CortextError, OSError) as error:
            raise LiveError(f"it is logged, but its recording is not kept: {error}") from None
        return entry.label is not None

    def _unspoken(self, label: str | None) -> TextError | None:
        """Return the error for a label with a word that the lexicon lacks."""
        if label is None or self._lexicon is None:
            return None
        try:
            to_tokens(label, self._conventions.inventory, self._conventions.language, self._lexicon)
        except TextError as error:
            return error
        return None

    def _file(self, session: str) -> Path:
        return self.folder / RECORDINGS / session / SESSION_FILE

    def _labels_of(self, session: str) -> dict[tuple[int, int], str]:
        """Return the labels of a session file by block and trial number, read once."""
        if session not in self._labels:
            path = self._file(session)
            trials = (
                read_trials(path, labels_required=True, session=session) if path.exists() else ()
            )
            self._labels[session] = {
                (trial.block, trial.trial): trial.sentence or "" for trial in trials
            }
        return self._labels[session]

    def _rewrite(
        self,
        session: str,
        key: tuple[int, int],
        labels: dict[tuple[int, int], str],
        label: str | None,
    ) -> None:
        """Write the session file again, with the utterance under its label, or without it."""
        path = self._file(session)

        def trials() -> Iterator[Trial]:
            for trial in read_trials(path, labels_required=True, session=session) if labels else ():
                if (trial.block, trial.trial) != key:
                    yield trial
                elif label is not None:
                    yield self._trial(trial.features_TC, session, key, label)
            if label is not None and key not in labels:
                yield self._trial(self._held[key[1]], session, key, label)

        for folder in (path.parents[1], path.parent):
            folder.mkdir(mode=0o700, exist_ok=True)
        left = {other: value for other, value in labels.items() if other != key}
        if label is not None:
            left[key] = label
        if left:
            write_session(path, trials())
            path.chmod(0o600)  # until here its folder alone keeps others out
        else:
            path.unlink()
        self._labels[session] = left

    def _trial(
        self, features_TC: np.ndarray, session: str, key: tuple[int, int], label: str
    ) -> Trial:
        return make_trial(
            features_TC,
            session,
            *key,
            label,
            conventions=self._conventions,
            lexicon=self._lexicon,
        )


@contextmanager
def failures(path: Path) -> Iterator[None]:
    """Raise errors of the disk as LiveError."""
    try:
        yield
    except OSError as error:
        fix = "free some space or check the folder's permissions"
        raise LiveError(
            f"the log cannot be written: {error.strerror}", where=path, fix=fix
        ) from None
    except DataError as error:
        raise LiveError(error.what, where=error.where) from None
