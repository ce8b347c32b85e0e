"""Web sockets: `/ws`, through which a page watches, and `/feed`, which takes bins.

T bins, C features.
"""

from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from typing import Any

import numpy as np
from fastapi import WebSocket, WebSocketDisconnect

from cortext.errors import DataError, LiveError, shown
from cortext_live.core.log import event, repeated_event
from cortext_live.page.access.rules import (
    MAX_GUEST_READERS,
    MAX_MESSAGE,
    MAX_READERS,
    MAX_STRANGE_READERS,
    Access,
    token_of,
)
from cortext_live.page.access.shares import PAGE
from cortext_live.page.access.tokens import Holder
from cortext_live.page.decoding_thread import DecodingThread
from cortext_live.page.messages import Event, Reader
from cortext_live.page.requests import Refused, check_rate, holder_of

POLICY_VIOLATION = 1008
TRY_AGAIN = 1013
PAGE_CHANGES = 5.0
"""Changes that a guest's page counts as at first: it is sent the whole conversation."""
PATIENCE_S = 30.0
"""Seconds that one message may wait for a client that does not read."""


# Of a page


async def serve_page(ws: WebSocket, decoding: DecodingThread, access: Access) -> None:
    """Send a page the decoding's events, until it leaves or its access is withdrawn."""
    connection = ws.state.connection
    try:
        holder = holder_of(ws, token_of(ws.scope), access)
        if holder is not None and holder.id:
            check_rate(holder, PAGE_CHANGES)
    except Refused:
        await ws.close(TRY_AGAIN)
        return
    if holder is None:
        if not access.open_view:
            await ws.close(POLICY_VIOLATION)
            return
        if not connection.shares.allows(connection.address, PAGE):
            await ws.close(TRY_AGAIN)
            return
        holder = Holder("", "read")  # a stranger, who may watch
        most = MAX_STRANGE_READERS
        connection.trust(holder.connections)
    else:
        most = MAX_READERS if holder.may("control") else MAX_GUEST_READERS
    reader = Reader(asyncio.get_running_loop(), is_stranger=not holder.token)
    most_of_holder = holder.pages >= holder.most_pages
    if most_of_holder or not decoding.readers.admit(reader, most):
        n_open = holder.pages if most_of_holder else most
        await ws.accept()
        await ws.close(TRY_AGAIN, f"{n_open} pages are open already")
        return
    tasks: list[asyncio.Task[Any]] = []
    withdrawn = asyncio.Event()
    connection.when_withdrawn(withdrawn.set)
    holder.pages += 1
    try:
        await ws.accept()
        await asyncio.wrap_future(decoding.subscribe(reader, holder.rights))
        event("page_connected", pages=len(decoding.readers))
        jobs = (_send(ws, reader, withdrawn), _until_it_leaves(ws), withdrawn.wait())
        tasks += [asyncio.create_task(job) for job in jobs]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if withdrawn.is_set():
            decoding.readers.remove(reader)
            tasks[0].cancel()
            await _close_withdrawn(ws, tasks[1])
    finally:
        holder.pages -= 1
        decoding.readers.remove(reader)
        for task in tasks:
            task.cancel()
        event("page_disconnected", pages=len(decoding.readers))


async def _until_it_leaves(ws: WebSocket) -> None:
    while (await ws.receive())["type"] != "websocket.disconnect":
        pass  # a page has nothing to say here


async def _close_withdrawn(ws: WebSocket, leaving: asyncio.Task[None]) -> None:
    """Tell a page that its access was withdrawn; its connection soon ends, if it does not read."""
    with suppress(WebSocketDisconnect, RuntimeError):  # it has left
        await ws.close(POLICY_VIOLATION, "access was withdrawn")
        await leaving


async def _send(ws: WebSocket, reader: Reader, withdrawn: asyncio.Event) -> None:
    """Send the reader's messages until the page leaves, is given up or loses its access."""
    with suppress(WebSocketDisconnect, RuntimeError):  # it has left
        try:
            while True:
                text = await reader.get()
                if withdrawn.is_set():  # perhaps before the first message
                    return
                async with asyncio.timeout(PATIENCE_S):
                    await ws.send_text(text)
        except TimeoutError:
            repeated_event("page_too_slow")
        except LiveError as error:
            repeated_event("page_too_slow")
            with suppress(TimeoutError):
                async with asyncio.timeout(PATIENCE_S):
                    await ws.close(TRY_AGAIN, str(error))


# Of a feed


async def serve_feed(ws: WebSocket, decoding: DecodingThread, access: Access) -> None:
    """Decode the bins that a feed sends, until it leaves."""
    try:
        holder = holder_of(ws, token_of(ws.scope), access)
    except Refused:
        holder = None  # a guest's, which may not feed
    if holder is None or not holder.may("control"):
        await ws.close(POLICY_VIOLATION)
        return
    await ws.accept()
    try:
        _check_bins_of_feed(ws.query_params.get("bin_ms"), decoding.bin_ms)
        await asyncio.wrap_future(decoding.open_feed(ws))
    except (LiveError, DataError) as error:
        repeated_event("feed_refused")
        may_come_again = decoding.is_feed and isinstance(error, LiveError)
        await ws.close(TRY_AGAIN if may_come_again else POLICY_VIOLATION, str(error))
        return
    event("feed_connected")
    why: str | None = "the feed was disconnected in mid-utterance"
    try:
        while (message := await ws.receive())["type"] != "websocket.disconnect":
            ws.state.connection.received_whole()
            await _take_in(ws, decoding, message)
        if message.get("code") == 1009:
            why = f"the feed sent a message of more than {MAX_MESSAGE} bytes and was disconnected"
    except TimeoutError:
        why = "the feed did not read its answers and was disconnected"
    except (WebSocketDisconnect, RuntimeError):
        pass
    finally:
        event("feed_disconnected")
        decoding.close_feed(ws, why)  # not awaited: it is to happen even if this task is cancelled


def _check_bins_of_feed(stated: str | None, bin_ms: float) -> None:
    """Raise DataError for a feed that states bins of another length than the model's."""
    try:
        same = stated is None or float(stated) == bin_ms
    except ValueError:
        same = False
    if not same:
        problem = f"bin_ms is {shown(stated, 20)}; the model reads bins of {bin_ms:g} ms"
        raise DataError(problem, fix="join bins before they are sent")


async def _take_in(ws: WebSocket, decoding: DecodingThread, message: Any) -> None:
    """Take one message of a feed: bins, or the end of its utterance; answer errors."""
    try:
        content = message.get("bytes")
        if content is not None:
            await asyncio.wrap_future(decoding.feed(_bins(content, decoding.n_features)))
        elif _is_end(message.get("text")):
            await asyncio.wrap_future(decoding.end_fed_utterance())
        else:
            raise DataError('a text message of the feed is not {"end": true}')
    except DataError as error:
        repeated_event(
            "feed_message_refused", n_bytes=len(message.get("bytes") or message.get("text") or "")
        )
        await asyncio.wrap_future(decoding.refuse_fed(str(error)))
        async with asyncio.timeout(PATIENCE_S):
            await ws.send_text(Event("error", {"what": str(error)}).text)


def _bins(content: bytes, n_features: int) -> np.ndarray:
    """Return the bins [T, C] of a message: float32, little-endian."""
    if len(content) % (4 * n_features):
        problem = f"a message of {len(content)} bytes; a multiple of {4 * n_features} is needed"
        raise DataError(f"{problem} ({n_features} float32 a bin)")
    return np.frombuffer(content, dtype="<f4").astype(np.float32).reshape(-1, n_features)


def _is_end(text: str | None) -> bool:
    try:
        return bool(json.loads(text or "") == {"end": True})
    except (ValueError, RecursionError):
        return False
