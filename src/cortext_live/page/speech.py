"""Sound of the server's voice for those who have a token: a WAV file that is sent as it is made."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from cortext.errors import CortextError, LiveError
from cortext_live.core.log import repeated_event
from cortext_live.core.speech import Request, Speech
from cortext_live.page.access.tokens import Holder
from cortext_live.page.requests import Refused, error_answer, to_speak

MOST_OPEN = 8
"""Answers at a time whose sound has not been taken wholly."""
MOST_OPEN_GUESTS = 3
"""Those of guests among them: fewer than wait for the voice, so that the owner's always get in."""
PATIENCE_S = 30.0
"""Seconds that a piece of sound may wait for a client that does not read."""
_UNKNOWN = 0x7FFFF000
"""Stands for the number of bytes in the header of a file whose length is not known yet."""


def wav_header(samples_per_s: int) -> bytes:
    """Return the head of a WAV file of 16-bit samples, one channel, of unknown length."""
    format_ = b"fmt \x10\0\0\0\x01\0\x01\0" + b"".join(
        number.to_bytes(4, "little") for number in (samples_per_s, 2 * samples_per_s)
    )
    size, data = ((_UNKNOWN + more).to_bytes(4, "little") for more in (36, 0))
    return b"RIFF" + size + b"WAVE" + format_ + b"\x02\0\x10\0" + b"data" + data


def sound_of(speech: Speech | None, body: dict[str, Any], holder: Holder) -> SpeechAnswer:
    """Return the answer to a request to speak.

    Args:
        speech: The server's voice.
        body: The body of the request.
        holder: Who asks.

    Raises:
        Refused: Too many sounds are on their way.
        CortextError: There is no voice, or see `Speech.ask`.
    """
    text, rate, pitch = to_speak(body)
    if speech is None:
        raise LiveError("the server has no voice", fix="start it with --voice")
    if SpeechAnswer.n_open >= MOST_OPEN:
        raise Refused(429, "too many sounds at a time; wait until one has been played")
    if holder.sounds >= holder.most_sounds or (
        holder.id and SpeechAnswer.n_guests >= MOST_OPEN_GUESTS
    ):
        raise Refused(429, "too many sounds of guests at a time; wait until one has been played")
    return SpeechAnswer(speech, text, rate, pitch, holder)


class SpeechAnswer(Response):
    """The sound of a text, as an answer.

    Sound that the client has not received when it leaves is not made.

    Attributes:
        n_open: Number of these answers that have not ended.
        n_guests: Number of those that guests asked for.

    Raises:
        CortextError: See `Speech.ask`.
    """

    n_open = 0
    n_guests = 0

    def __init__(
        self, speech: Speech, text: str, rate: float, pitch: float, holder: Holder
    ) -> None:
        super().__init__(media_type="audio/wav")
        self._holder = holder
        self._pieces: asyncio.Queue[int | bytes | CortextError | None] = asyncio.Queue()
        loop = asyncio.get_running_loop()

        def put(piece: int | bytes | CortextError | None) -> None:
            with suppress(RuntimeError):  # the loop has ended, and with it the client
                loop.call_soon_threadsafe(self._pieces.put_nowait, piece)

        self._request: Request = speech.ask(text, rate, pitch, put)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the sound while it is made."""
        self._count(1)
        leaving = asyncio.create_task(_left(receive))
        sending = asyncio.create_task(self._send(scope, receive, send))
        try:
            await asyncio.wait({leaving, sending}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._count(-1)
            self._request.cancel()
            for task in (leaving, sending):
                task.cancel()
        if sending.done() and not sending.cancelled():
            sending.result()

    def _count(self, n: int) -> None:
        SpeechAnswer.n_open += n
        SpeechAnswer.n_guests += n if self._holder.id else 0
        self._holder.sounds += n

    async def _send(self, scope: Scope, receive: Receive, send: Send) -> None:
        first = await self._pieces.get()
        if not isinstance(first, int):
            failed = first if isinstance(first, CortextError) else LiveError("there is no sound")
            await error_answer(failed)(scope, receive, send)
            return
        head = [(b"content-type", b"audio/wav")]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        piece: Any = wav_header(first)
        try:
            while isinstance(piece, bytes):
                async with asyncio.timeout(PATIENCE_S):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                piece = await self._pieces.get()
        except TimeoutError:
            repeated_event("client_too_slow", "info")
            return
        if piece is None:  # else it breaks off: the client sees that the file is not whole
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _left(receive: Receive) -> None:
    """Return when the client has left."""
    with suppress(ClientDisconnect):
        while (await receive())["type"] != "http.disconnect":
            pass
