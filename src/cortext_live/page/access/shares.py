"""Shares of the server's time for those who have shown no token: each address has one.

Whoever floods the server uses up the share of his address, and then that of all addresses without
a token. Neither takes anything from a request with a token, nor a connection from an address that
has shown one lately.
"""

from __future__ import annotations

import ipaddress
import time
from collections import OrderedDict
from collections.abc import Callable

OF_ADDRESS = 50.0, 1000.0
"""Work a second of one address without a token, and at once; see `CONNECTION` and so on.

The page is 40 requests and 0.25 MB: several browsers behind one address may open it at once.
"""
OF_ALL = 200.0, 4000.0
"""The same of all of them together."""
CONNECTION = REQUEST = 1.0
"""Work of a connection that is accepted, and of a request."""
PAGE = 10.0
"""Work of a page that begins to watch."""
BYTES = 1.0 / 65_536
"""Work of a byte of an answer."""
MOST_ADDRESSES = 1024
"""Addresses whose use is remembered, the latest ones."""
OWN = frozenset({int(ipaddress.ip_address("127.0.0.1")), int(ipaddress.ip_address("::1")) >> 64})
"""Networks (`connections.network`) of this machine's operator, or of a proxy on it."""


class Share:
    """Work that may be done: so much a second, and so much at once."""

    def __init__(self, per_s: float, at_once: float, clock: Callable[[], float]) -> None:
        self._per_s, self._at_once, self._clock = per_s, at_once, clock
        self._left, self._last_s = at_once, clock()

    def has(self, work: float) -> bool:
        """Return whether so much is left."""
        now_s = self._clock()
        refilled = self._left + (now_s - self._last_s) * self._per_s
        self._left, self._last_s = min(refilled, self._at_once), now_s
        return self._left >= work

    def use(self, work: float) -> None:
        """Use so much; an answer may take more than is left, which later work waits for."""
        self._left = max(self._left - work, -self._at_once)


class Shares:
    """The shares of addresses. It belongs to the thread of the event loop.

    Args:
        clock: Returns seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._all = Share(*OF_ALL, clock)
        self._shares: OrderedDict[int, Share] = OrderedDict()
        self._known: OrderedDict[int, None] = OrderedDict()

    def know(self, network: int) -> None:
        """Note that an address has shown a token."""
        self._known[network] = None
        self._known.move_to_end(network)
        if len(self._known) > MOST_ADDRESSES:
            self._known.popitem(last=False)

    def accepts(self, network: int) -> bool:
        """Count a connection; return whether it is let in.

        One of an address that has shown a token, or of this machine, always is: it may have one.
        """
        allowed = self.allows(network, CONNECTION)
        return allowed or network in self._known or network in OWN

    def allows(self, network: int, work: float) -> bool:
        """Count work without a token; return whether it is within the shares."""
        share = self._of(network)
        if not (share.has(work) and self._all.has(work)):
            return False
        self.use(network, work)
        return True

    def use(self, network: int, work: float) -> None:
        """Count work that is done in any case."""
        for share in (self._of(network), self._all):
            share.use(work)

    def _of(self, network: int) -> Share:
        share = self._shares.setdefault(network, Share(*OF_ADDRESS, self._clock))
        self._shares.move_to_end(network)
        if len(self._shares) > MOST_ADDRESSES:
            self._shares.popitem(last=False)
        return share
