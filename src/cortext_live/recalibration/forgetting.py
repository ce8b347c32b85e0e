"""Deletion of what a chain keeps of utterances that were deleted from the usage log.

The service notices deleted entries by itself. Where it is not running, `forget_in_chain` does what
it would do. Models are never written again: those that learnt from a deleted utterance are named.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path
from typing import Any

from cortext.errors import RunError
from cortext.files import disk_errors, exclusive, parse_json_object
from cortext.models.storage import read_metadata, read_tensors, write_tensors
from cortext_live.recalibration.chain import read_chain
from cortext_live.recalibration.chain_entries import ChainContents, ChainEntry
from cortext_live.recalibration.learner import Learner
from cortext_live.recalibration.state import FILE, FIX, PARTS, WHAT
from cortext_live.usage.log import read_log

LEARNER = "learner"
SENTENCES = "sentences"
KNOWN = "known"
"""Labelled sentences of other recordings: of an old learner they do not name an utterance."""


def forget_in_chain(
    chain: Path, log: Path, numbers: Collection[int] | None = None
) -> tuple[list[str], list[str]]:
    """Delete what a chain keeps of deleted utterances.

    Args:
        chain: Directory of the chain.
        log: Directory of the usage log, from which they were deleted already.
        numbers: Entries whose models are named; None for all that were deleted.

    Returns:
        Names of the kept models that learnt from them, and notes.

    Raises:
        CortextError: The chain or the log cannot be read, or the disk is full.
    """
    if not (chain / "chain.jsonl").exists():
        return [], []
    contents = read_log(log)
    deleted = contents.deleted
    if contents.began is None or not deleted:
        return [], []
    named = deleted if numbers is None else set(numbers)
    models = models_that_learnt(read_chain(chain), contents.began, named)
    notes = []
    folder = chain / LEARNER
    if folder.is_dir():
        busy = RunError("the service of the chain is running", where=folder)
        try:
            with exclusive(folder, busy):
                forget_in_store(folder, contents.began, deleted)
        except RunError as error:
            if error is not busy:
                raise
            notes.append(
                f"{chain}: `cortext recalibrate` is running, {_follows(folder, contents.began)}"
            )
    return [model.model_name for model in models], notes


def _follows(folder: Path, began: int) -> str:
    """Return whether a running service deletes what it keeps of a log, in words."""
    note = _progress(folder / FILE).get("note", {})
    if note.get("position", {}).get("began") == began:
        return "and deletes it by itself"
    return "but follows another log: stop it, and delete again"


def models_that_learnt(
    contents: ChainContents, began: int, numbers: Collection[int]
) -> list[ChainEntry]:
    """Return the kept models that have learnt from utterances, themselves or in their descent.

    Args:
        contents: The chain.
        began: Second of the log's first entry.
        numbers: Numbers of the utterances in the log.
    """
    wanted = {(began, number) for number in numbers}
    return [
        contents.model(number)
        for number in contents.models
        if not wanted.isdisjoint(contents.learnt(number))
    ]


def numbers_in(learner: Learner, began: int | None) -> list[int]:
    """Return the numbers of a log's utterances that a learner replays.

    Args:
        learner: The learner.
        began: Second of the log's first entry.
    """
    state = learner.state()
    sentences = (each for part in PARTS for each in getattr(state, part, ()))
    entries = (each.entry for each in sentences if each.entry is not None)
    return sorted({number for log, number in entries if log == began})


def forget_in_store(folder: Path, began: int, numbers: Collection[int]) -> bool:
    """Remove utterances from the sentences that a saved learner replays; tell whether it had any.

    A sentence that was learnt before files named their utterance is removed as well.

    Args:
        folder: Directory of the learner, which no process uses.
        began: Second of the log's first entry.
        numbers: Numbers of the utterances in the log.

    Raises:
        RunError: The learner cannot be read or written.
    """
    path = folder / FILE
    progress = _progress(path)
    kept = {
        part: [
            name
            for name in progress[part]
            if not _is_of(folder / SENTENCES / Path(name).name, part, began, numbers)
        ]
        for part in PARTS
        if part in progress
    }
    changed = any(kept[part] != progress[part] for part in kept)
    if changed:
        tensors, metadata, _ = read_tensors(path, WHAT, FIX)
        metadata["progress"] = json.dumps(progress | kept)
        write_tensors(path, tensors, metadata)
    named = {Path(name).name for names in kept.values() for name in names}
    if (folder / SENTENCES).is_dir():
        # Also those that a kill has left: their order does not matter, the learner names none.
        for each in (folder / SENTENCES).iterdir():
            if each.name not in named:
                with disk_errors(each):
                    each.unlink(missing_ok=True)
    return changed


def _progress(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        return parse_json_object(read_metadata(path)["progress"])
    except (KeyError, ValueError):
        raise RunError(f"{WHAT} cannot be read", where=path, fix=FIX) from None


def _is_of(path: Path, part: str, began: int, numbers: Collection[int]) -> bool:
    metadata = read_metadata(path)
    if "log" not in metadata:
        return part != KNOWN
    number = metadata.get("entry", "")
    return metadata["log"] == str(began) and number.isdecimal() and int(number) in numbers
