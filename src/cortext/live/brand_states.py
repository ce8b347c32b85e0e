"""The states of a BRAND node, and the problems of an utterance."""

from __future__ import annotations

from dataclasses import dataclass, field

from cortext.live.brand_entries import timestamp
from cortext.live.log import event
from cortext.live.redis_link import RedisLink

MOST_PROBLEMS = 5
"""Problems of an utterance that are named; the others are counted."""


class States:
    """The stream NICK_state."""

    def __init__(self, link: RedisLink, nickname: str) -> None:
        self._link, self._nickname = link, nickname

    def tell(self, status: str, message: str = "") -> None:
        """Add an entry; the log gets it too.

        `status` is where nodes in Python have the state, `state` where those in C have it.
        """
        level = {"NODE_FATAL_ERROR": "error", "NODE_WARNING": "warning"}.get(status, "info")
        event(status.lower(), level, node=self._nickname, message=message)
        code = int(status == "NODE_FATAL_ERROR")
        fields = {
            "code": code,
            "status": status,
            "state": status,
            "message": message,
            "ts": timestamp(),
        }
        self._link.add(f"{self._nickname}_state", fields)


@dataclass
class Utterance:
    """An utterance in progress, and what went wrong in it."""

    trial: bytes = b""
    first_index: int | None = None
    n_bins: int = 0
    n_entries: int = 0
    n_lost: int = 0
    n_unusable: int = 0
    n_duplicates: int = 0
    problems: list[str] = field(default_factory=list)
    n_problems: int = 0

    def add_problem(self, problem: str) -> bool:
        """Note a problem; whether it is one to tell at once."""
        self.n_problems += 1
        if len(self.problems) < MOST_PROBLEMS:
            self.problems.append(problem)
            return True
        return False

    @property
    def counts(self) -> dict[str, int]:
        """Numbers of bins that were decoded and of entries that were not."""
        return {
            name: getattr(self, name) for name in ("n_bins", "n_lost", "n_unusable", "n_duplicates")
        }

    @property
    def error(self) -> str:
        """All problems in one text; empty without any."""
        more = self.n_problems - len(self.problems)
        return "; ".join([*self.problems, f"and {more} more"] if more else self.problems)
