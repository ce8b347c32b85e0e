"""The loop of the service: work, wait for news in the log, and report decisions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Container, Mapping
from typing import Any

from cortext.errors import CortextError
from cortext_live.recalibration.service import Recalibration

LONGEST_WAIT_S = 60.0
"""Longest pause between two tries while a problem lasts: it doubles with each try."""


def watch(
    service: Recalibration,
    stop: threading.Event,
    say: Callable[[dict[str, Any]], None],
    wait_s: float,
    *,
    once: bool = False,
) -> None:
    """Work until asked to stop; a full disk or a damaged file is named and tried again.

    An utterance that can never be used is named once, and the work continues without it.

    Args:
        service: The service.
        stop: Ends the work.
        say: Gets `model`, `action` and `reason` of each judgement, `error` of each problem, and
            `set_aside` (numbers of entries) and `reason` of utterances that are not used.
        wait_s: Seconds between two readings of a log without news.
        once: End when there is nothing more to do, and raise errors.
    """
    known, problem = len(service.chain.entries), ""
    named, n_failures = set[int](), 0
    while not stop.is_set():
        try:
            busy, problem, n_failures = service.work(), "", 0
        except CortextError as error:
            if once:
                raise
            busy, n_failures = False, n_failures + 1
            if str(error) != problem:
                problem = str(error)
                say({"error": problem})
        named &= service.set_aside.keys()  # of another log, none is
        for reason, numbers in _by_reason(service.set_aside, named).items():
            say({"set_aside": numbers, "reason": reason})
            named.update(numbers)
        for entry in service.chain.entries[known:]:
            if entry.kind == "judged":
                facts = {name: entry.facts[name] for name in ("action", "reason")}
                say({"model": entry.model, **facts})
            elif entry.kind == "checked" and entry.facts["reason"]:
                say({"model": entry.model, "action": "stop", "reason": entry.facts["reason"]})
        known = len(service.chain.entries)
        if not busy:
            if once:
                return
            stop.wait(max(wait_s, min(wait_s * 2 ** min(n_failures, 16), LONGEST_WAIT_S)))


def _by_reason(set_aside: Mapping[int, str], named: Container[int]) -> dict[str, list[int]]:
    """Return the utterances that were not named yet, in order, by the reason why they are aside."""
    numbers_by_reason: dict[str, list[int]] = {}
    for number, reason in sorted(set_aside.items()):
        if number not in named:
            numbers_by_reason.setdefault(reason, []).append(number)
    return numbers_by_reason
