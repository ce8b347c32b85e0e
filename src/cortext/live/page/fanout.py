"""Messages from the thread that decodes to any number of readers, none of which can hold it up."""

from __future__ import annotations

import asyncio
import threading
from collections import deque

from cortext.errors import LiveError
from cortext.live.page.messages import Message, Step

MAX_WAITING = 512
"""Messages that wait for one reader before it is given up: the sentences of half an hour."""


class Reader:
    """What waits for one reader, on an event loop.

    At most one step waits, in which all that were not sent yet are joined, and one message of each
    kind of which only the latest matters. Sentences and errors all wait, up to `MAX_WAITING`: then
    the reader is given up, and told so.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop, self._ready = loop, asyncio.Event()
        self._mutex = threading.Lock()
        self._waiting: deque[Message] = deque()
        self._overrun = False

    def put(self, message: Message) -> None:
        """Add a message; from any thread, at once."""
        with self._mutex:
            if self._overrun:
                return
            self._waiting.append(self._supersede(message))
            if len(self._waiting) > MAX_WAITING:
                self._overrun = True
                self._waiting.clear()
            notify = len(self._waiting) <= 1
        if notify:
            self._notify()

    async def get(self) -> str:
        """The next message. Raises LiveError when the reader has been given up."""
        while True:
            with self._mutex:
                if self._overrun:
                    raise LiveError("messages were not read in time", fix="connect again")
                if self._waiting:
                    return self._waiting.popleft().text
                self._ready.clear()
            await self._ready.wait()

    def __len__(self) -> int:
        return len(self._waiting)

    def _supersede(self, message: Message) -> Message:
        """Take away what the message makes superfluous; the message that tells of both."""
        for waiting in self._waiting:
            if isinstance(message, Step) and isinstance(waiting, Step):
                self._waiting.remove(waiting)
                return waiting.joined(message)
            if message.only_latest and waiting.kind == message.kind:
                self._waiting.remove(waiting)
                break
        return message

    def _notify(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._ready.set)
        except RuntimeError:  # the loop has ended, and with it the reader
            self._waiting.clear()


class Fanout:
    """All readers."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._readers: set[Reader] = set()
        self._admitted: set[Reader] = set()

    def admit(self, reader: Reader, most: int) -> bool:
        """Keep a place for a reader before it is added; False where `most` have one.

        One call decides and takes the place: connections that come at the same time cannot all find
        it free.
        """
        with self._mutex:
            if len(self._admitted) >= most:
                return False
            self._admitted.add(reader)
            return True

    def add(self, reader: Reader) -> None:
        """Send it everything from now on."""
        with self._mutex:
            self._readers.add(reader)

    def remove(self, reader: Reader) -> None:
        """Send it nothing more, and give up its place."""
        with self._mutex:
            self._readers.discard(reader)
            self._admitted.discard(reader)

    def send(self, message: Message) -> None:
        """Send it to all, at once."""
        with self._mutex:
            readers = list(self._readers)
        for reader in readers:
            reader.put(message)

    def __len__(self) -> int:
        return len(self._readers)
