"""Tokens, their holders and rights: the owner's token allows everything, a guest's less.

A guest is another device, such as a participant's tablet, that the owner has invited. Its token
lasts until it is revoked or the server stops. Tokens are never logged and never shown again.
"""

from __future__ import annotations

import hmac
import math
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Literal

from cortext.errors import DataError, LiveError

if TYPE_CHECKING:
    from cortext_live.page.access.connections import Connection

Right = Literal["read", "rate", "control"]
RIGHTS: tuple[Right, ...] = ("read", "rate", "control")
"""Rights of a token; each includes those before it."""
MAY: dict[Right, str] = {"read": "read", "rate": "read and rate", "control": "do everything"}
"""Each right in words: "this token may only read"."""
MAX_GUESTS = 16
"""Guests at a time."""
MAX_NAME = 40
"""Characters of a guest's name."""
MAX_GUEST_PAGES = 4
"""Pages that one guest may watch at a time."""
MAX_GUEST_REQUESTS = 16
"""Requests and pages of one guest at a time."""
MAX_GUEST_SOUNDS = 2
"""Sounds of the server's voice that one guest may ask for at a time."""
REQUESTS_PER_S = 20.0
"""Changes a second that each holder of a token is let through in the long run."""
REQUESTS_AT_ONCE = 60.0
"""Changes that each is let through in a burst."""


def new_token() -> str:
    """Return a random token of 256 bits."""
    return secrets.token_urlsafe(32)


@dataclass(eq=False)
class Holder:
    """Somebody with a token.

    Attributes:
        id: Number of a guest; 0 is the owner.
        invited: Time of the invitation, in ISO 8601.
        connections: Those whose request in progress has shown the token.
        pages: Pages that watch with it.
        sounds: Sounds of the server's voice that are on their way to it.
    """

    token: str = field(repr=False)
    rights: Right = "control"
    name: str = ""
    id: int = 0
    invited: str = ""
    connections: set[Connection] = field(default_factory=set, repr=False)
    pages: int = 0
    sounds: int = 0
    _changes: float = REQUESTS_AT_ONCE
    _last_s: float = field(default_factory=time.monotonic)

    @property
    def most_pages(self) -> float:
        """Pages that may watch with this token at a time."""
        return MAX_GUEST_PAGES if self.id else math.inf

    @property
    def most_requests(self) -> float:
        """Requests and pages that may show this token at a time."""
        return MAX_GUEST_REQUESTS if self.id else math.inf

    @property
    def most_sounds(self) -> float:
        """Sounds that may be on their way to this holder at a time."""
        return MAX_GUEST_SOUNDS if self.id else math.inf

    def may(self, needed: Right) -> bool:
        """Return whether the token allows what needs this right."""
        return RIGHTS.index(self.rights) >= RIGHTS.index(needed)

    def shows(self, token: str | None) -> bool:
        """Return whether the token is this one; takes as long for a wrong one."""
        return hmac.compare_digest((token or "").encode(), self.token.encode())

    def allows_another_change(self, changes: float = 1.0) -> bool:
        """Count so many changes; return whether their rate is within its limit.

        Each holder has a limit of its own: a guest cannot use up the owner's.
        """
        now_s = time.monotonic()
        refilled = self._changes + (now_s - self._last_s) * REQUESTS_PER_S
        self._changes = min(refilled, REQUESTS_AT_ONCE)
        self._last_s = now_s
        if self._changes < changes:
            return False
        self._changes -= changes
        return True


class Guests:
    """Guests by their numbers. It belongs to the thread of the event loop."""

    def __init__(self) -> None:
        self._guests: dict[int, Holder] = {}
        self._n_invited = 0

    def __iter__(self) -> Iterator[Holder]:
        return iter(self._guests.values())

    def invite(self, rights: str, name: str) -> Holder:
        """Add a guest with a new token.

        Raises:
            DataError: The right is neither `read` nor `rate`, or the name cannot be shown.
            LiveError: There are too many guests, or one has this name.
        """
        if rights not in ("read", "rate"):
            raise DataError(f"unknown rights {rights[:40]!r}; known: read, rate")
        name = name.strip()
        if not (name and len(name) <= MAX_NAME and name.isprintable()):
            raise DataError(f"the name of a device has 1 to {MAX_NAME} characters that can be seen")
        if any(guest.name == name for guest in self):
            raise LiveError(f"there is a device named {name!r}", fix="choose another name")
        if len(self._guests) >= MAX_GUESTS:
            raise LiveError(f"{MAX_GUESTS} devices are invited already", fix="revoke one first")
        self._n_invited += 1
        now = datetime.now().astimezone().isoformat(timespec="seconds")
        guest = Holder(new_token(), rights, name, self._n_invited, now)  # type: ignore[arg-type]
        self._guests[guest.id] = guest
        return guest

    def revoke(self, number: int) -> Holder:
        """End a guest's access, and its web sockets and answers in progress, at once.

        Raises:
            LiveError: There is no such guest.
        """
        guest = self._guests.pop(number, None)
        if guest is None:
            raise LiveError(f"there is no device {str(number)[:20]}", fix="look at the list again")
        for connection in list(guest.connections):
            connection.withdraw()
        return guest
