"""Deletion of entries of the conversation: on the disk, in memory and on pages."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from cortext.errors import CortextError, DataError
from cortext_live.core.log import event
from cortext_live.page.utterance_decoder import UtteranceDecoder
from cortext_live.usage.deletion import Selection
from cortext_live.usage.log_entries import Deleted
from cortext_live.usage.writer import UsageLog


def forget_in_memory(utterances: UtteranceDecoder, selection: Selection) -> dict[str, Any]:
    """Forget entries of a server without a usage log. Runs in the decoding thread.

    Raises:
        DataError: There is no such entry.
    """
    numbers = utterances.conversation.selected(selection)
    _check(selection, numbers)
    utterances.forget(numbers, selection.everything)
    return {"deleted": len(numbers), "models": [], "notes": []}


def forget(
    log: UsageLog,
    known: set[int],
    forget_numbers: Callable[[set[int], bool], None],
    chain: Path | None,
    selection: Selection,
) -> dict[str, Any]:
    """Delete entries from the log, then from memory and pages, then from a chain.

    Runs in the thread of the log, and waits for the decoding thread.

    Args:
        log: The usage log.
        known: The selected entries that are in memory, also those that could not be logged. Where
            they can be, they were: else a sentence would be logged after it was deleted.
        forget_numbers: Forgets entries in memory; see `UtteranceDecoder.forget`.
        chain: Directory of the chain of models that is followed; None for none.
        selection: The entries.

    Returns:
        The number of entries, names of models that learnt from them, and notes.

    Raises:
        DataError: There is no such entry.
        LiveError: The disk is full. Deleted entries are forgotten in memory, too.
    """
    entries = log.entries
    logged = {n for n, each in enumerate(entries) if not isinstance(each, Deleted)}
    _check(selection, logged | known)
    on_disk = selection
    if selection.entries is not None:
        on_disk = Selection(tuple(logged.intersection(selection.entries)))
    numbers = set(on_disk.of(entries))
    try:
        log.delete(on_disk)
    finally:
        gone = {n for n, each in enumerate(log.entries) if isinstance(each, Deleted)}
        rest = known - logged
        everything = selection.everything and gone >= numbers
        if (forgotten := (numbers & gone) | rest) or everything:
            forget_numbers(forgotten, everything)
    models: list[str] = []
    notes: list[str] = []
    if chain is not None:
        models, notes = _forget_in_chain(chain, log.folder, numbers)
    return {"deleted": len(numbers | rest), "models": models, "notes": notes}


def _forget_in_chain(chain: Path, folder: Path, numbers: set[int]) -> tuple[list[str], list[str]]:
    """Delete from what the models of a chain learn from, as far as that is possible now."""
    from cortext_live.recalibration.forgetting import forget_in_chain

    try:
        return forget_in_chain(chain, folder, numbers)
    except CortextError as error:
        return [], [f"not deleted from {chain}: {error}"]


def finish_forgetting(chain: Path, folder: Path) -> None:
    """Repeat in a chain a log's deletion whose process was killed before it reached the chain."""
    _, notes = _forget_in_chain(chain, folder, set())
    for note in notes:
        event("not_forgotten", "warning", note=note)


def _check(selection: Selection, known: set[int]) -> None:
    for number in selection.entries or ():
        if number not in known:
            raise DataError(f"there is no entry {number}, or it was deleted")
