"""The loop of the service: work, wait for news in the log, and say what was decided."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from cortext.errors import CortextError
from cortext.recalibration.service import Recalibration


def watch(
    service: Recalibration,
    stop: threading.Event,
    say: Callable[[dict[str, Any]], None],
    wait_s: float,
    *,
    once: bool = False,
) -> None:
    """Work until asked to stop; a full disk or a damaged file is named and tried again.

    Args:
        service: The service.
        stop: Ends the work.
        say: Gets `model`, `action` and `reason` of each judgement, and `error` of each problem.
        wait_s: Seconds between two readings of a log without news.
        once: End when there is nothing more to do, and raise errors.
    """
    known, problem = len(service.chain.entries), ""
    while not stop.is_set():
        try:
            busy, problem = service.work(), ""
        except CortextError as error:
            if once:
                raise
            busy = False
            if str(error) != problem:
                problem = str(error)
                say({"error": problem})
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
            stop.wait(wait_s)
