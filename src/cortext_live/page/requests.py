"""Requests under /api/: whose token allows them, their bodies, what they do, and their answers.

Every error is one line of JSON, with a status that tells whose it is: 400 for a wrong request, 409
for one that the server cannot do now, 500 for an error of ours.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from io import BytesIO
from typing import Any

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from starlette.requests import ClientDisconnect, HTTPConnection

from cortext.errors import CortextError, LiveError
from cortext.extras import need
from cortext_live.core.log import event, internal_error, repeated_event
from cortext_live.page.access.rules import MAX_BODY, Access, token_of
from cortext_live.page.access.tokens import MAY, Holder, Right
from cortext_live.page.conversation import (
    MOST_LISTED,
    checked_turn,
    query_of,
    selection_of,
    whole_number,
)
from cortext_live.page.decoding_thread import DecodingThread
from cortext_live.usage.conversation import FORMATS, MEDIA_TYPES, export
from cortext_live.usage.log_entries import RATINGS
from cortext_live.usage.writer import now

BODY_S = 10.0
"""Seconds that the body of a request may take."""
NEEDS: dict[str, Right] = {
    "state": "read",
    "drift": "control",
    "start": "control",
    "stop": "control",
    "options": "control",
    "hotwords": "control",
    "context": "control",
    "day": "control",
    "gate": "control",
    "correction": "control",
    "rating": "rate",
    "guests": "control",
    "invite": "control",
    "revoke": "control",
    "choose": "rate",
    "turn": "control",
    "private": "control",
    "forget": "control",
    "conversation": "control",
    "export": "control",
    "speak": "read",
}
"""Right that each request under /api/ needs, asked for by GET or by POST. Others are not served."""
COUNTED = ("conversation", "export")
"""Requests by GET that count as changes do: they may read the whole log."""
KINDS: dict[Any, str] = {str: "a string", bool: "true or false", list: "a list"}
"""Types of fields in words; all others are numbers."""
Handler = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
"""Does what the body of a request asks for; returns the fields of its answer."""


class Refused(Exception):
    """A request that is answered with an error of this status."""

    def __init__(self, status: int, problem: str) -> None:
        super().__init__(problem)
        self.status = status


def holder_of(client: HTTPConnection, token: str | None, access: Access) -> Holder | None:
    """Return who has the token, and trust the connection if somebody has.

    Raises Refused where one guest asks for too much at a time.
    """
    holder = access.holder(token)
    if holder is not None:
        if len(holder.connections) >= holder.most_requests:
            raise Refused(429, "too many requests with this token at a time")
        client.state.connection.trust(holder.connections)
    return holder


def check_token(request: Request, access: Access, needed: Right) -> Holder:
    """Return who has the request's token. Raises Refused unless it has the right."""
    holder = holder_of(request, token_of(request.scope), access)
    if holder is None:
        raise Refused(401, "the token is missing or wrong")
    if not holder.may(needed):
        raise Refused(403, f"this token may only {MAY[holder.rights]}")
    return holder


def check_rate(holder: Holder, changes: float = 1.0) -> None:
    """Count a request as so many changes. Raises Refused where its sender asks too often."""
    if not holder.allows_another_change(changes):
        raise Refused(429, "too many requests; wait a second")


async def answer(result: Awaitable[dict[str, Any] | Response]) -> Response:
    """Return the result of a request, or one line about its error."""
    try:
        content = await result
    except Exception as error:
        return error_answer(error)
    return content if isinstance(content, Response) else JSONResponse(content)


def error_answer(error: Exception) -> JSONResponse:
    """Return the answer to a request that has failed."""
    if isinstance(error, Refused):
        return error_response(error.status, str(error))
    if isinstance(error, LiveError):
        return error_response(409, str(error))
    if isinstance(error, CortextError):
        return error_response(400, str(error))
    repeated_event("request_failed", "error", error=internal_error(error))
    return error_response(500, internal_error(error))


def error_response(status: int, problem: str) -> JSONResponse:
    """Return the answer that reports an error."""
    return JSONResponse({"error": problem}, status)


async def read_body(request: Request) -> dict[str, Any]:
    """Return the JSON object of a request; an empty body is an empty object."""
    content = b""
    try:
        async with asyncio.timeout(BODY_S):
            async for chunk in request.stream():
                content += chunk
                if len(content) > MAX_BODY:
                    raise Refused(413, f"the request has more than {MAX_BODY} bytes")
        # Python reads NaN and Infinity, which are no JSON and which a browser could not read back.
        body = json.loads(content or b"{}", parse_constant=_no_constant)
        # Half of a surrogate pair can be read, but never be encoded: the log or a page would fail.
        json.dumps(body, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise Refused(
            400, "the request holds half of a surrogate pair, which is no character"
        ) from None
    except (ValueError, RecursionError):
        raise Refused(400, "the request is no JSON") from None
    except TimeoutError:
        raise Refused(408, f"the request takes longer than {BODY_S:g} s") from None
    except ClientDisconnect:
        raise Refused(400, "the request was cut off") from None
    if not isinstance(body, dict):
        raise Refused(400, "the request is no JSON object")
    return body


def _no_constant(name: str) -> None:
    raise ValueError(name)


def handlers(decoding: DecodingThread) -> dict[str, Handler]:
    """Return the handler of each request to the decoding thread by its name."""
    return _control_handlers(decoding) | _conversation_handlers(decoding)


def _waits_for(ask: Callable[[dict[str, Any]], Future[Any]]) -> Handler:
    """Return a handler that answers when the future of `ask` is done."""

    async def handler(body: dict[str, Any]) -> dict[str, Any]:
        result = await asyncio.wrap_future(ask(body))
        return {"kept": result} if isinstance(result, bool) else {}

    return handler


def _control_handlers(decoding: DecodingThread) -> dict[str, Handler]:
    """Return the handlers of requests about decoding and its settings."""

    def start(body: dict[str, Any]) -> Future[None]:
        _check_fields(body, trial=int, session=str)
        return decoding.start(body.get("trial"), body.get("session"))

    def stop(body: dict[str, Any]) -> Future[None]:
        _check_fields(body)
        return decoding.stop()

    def day(body: dict[str, Any]) -> Future[None]:
        _check_fields(body, session=str)
        return decoding.choose_day(body.get("session"))

    def context(body: dict[str, Any]) -> Future[None]:
        _check_fields(body, text=str, conversation=bool)
        if body.get("conversation") is None:
            return decoding.set_context(body.get("text") or "")
        if body.get("text") is not None:
            raise Refused(400, "text and conversation are given; give one of them")
        return decoding.read_conversation(body["conversation"])

    def gate(body: dict[str, Any]) -> Future[None]:
        _check_fields(body, threshold=(int, float))
        return decoding.set_gate_threshold(_required(body, "threshold"))

    asks: dict[str, Callable[[dict[str, Any]], Future[Any]]] = {
        "start": start,
        "stop": stop,
        "options": decoding.set_options,
        "hotwords": decoding.change_hotwords,
        "context": context,
        "day": day,
        "gate": gate,
    }
    return {action: _waits_for(ask) for action, ask in asks.items()}


def _conversation_handlers(decoding: DecodingThread) -> dict[str, Handler]:
    """Return the handlers of requests about the conversation."""

    def correction(body: dict[str, Any]) -> Future[bool]:
        _check_fields(body, utterance=int, text=str)
        return decoding.correct(_required(body, "utterance"), _required(body, "text"))

    def rating(body: dict[str, Any]) -> Future[bool]:
        _check_fields(body, utterance=int, rating=str)
        given = _required(body, "rating")
        if given not in RATINGS:
            raise Refused(400, f"unknown rating {given[:40]!r}; known: {', '.join(RATINGS)}")
        return decoding.rate(_required(body, "utterance"), given)

    async def choose(body: dict[str, Any]) -> dict[str, Any]:
        _check_fields(body, utterance=int, text=str)
        utterance, text = _required(body, "utterance"), _required(body, "text")
        if not await asyncio.wrap_future(decoding.choose(utterance, text)):
            return {}
        return {"kept": await asyncio.wrap_future(decoding.correct(utterance, text))}

    def private(body: dict[str, Any]) -> Future[None]:
        _check_fields(body, on=bool)
        return decoding.set_private(_required(body, "on"))

    async def turn(body: dict[str, Any]) -> dict[str, Any]:
        _check_fields(body, text=str)
        text = checked_turn(_required(body, "text"))
        return {"entry": await asyncio.wrap_future(decoding.add_turn(text))}

    async def forget(body: dict[str, Any]) -> dict[str, Any]:
        _check_fields(body, entries=list, since=str, until=str, all=bool)
        return await decoding.forget(selection_of(body))

    return {
        "correction": _waits_for(correction),
        "rating": _waits_for(rating),
        "private": _waits_for(private),
        "choose": choose,
        "turn": turn,
        "forget": forget,
    }


async def conversation_page(decoding: DecodingThread, request: Request) -> dict[str, Any]:
    """Return entries of the conversation, the latest that hold `search`, before one entry."""
    asked = query_of(request.query_params.multi_items(), search="", before="", limit="100")
    before = whole_number("before", asked["before"], 1 << 48) if asked["before"] else None
    most = whole_number("limit", asked["limit"], MOST_LISTED)
    matching = await asyncio.wrap_future(decoding.found(asked["search"], before, most + 1))
    entries = matching[max(0, len(matching) - most) :]
    return {"entries": [each.to_json() for each in entries], "more": len(matching) > most}


async def conversation_file(decoding: DecodingThread, request: Request) -> Response:
    """Return the conversation as a file to save."""
    asked = query_of(request.query_params.multi_items(), search="", format="text")
    form = asked["format"]
    if form not in FORMATS:
        raise Refused(400, f"unknown format {form[:40]!r}; known: {', '.join(FORMATS)}")
    entries = await asyncio.wrap_future(decoding.found(asked["search"]))
    content = await asyncio.to_thread(export, entries, form)
    name = f"conversation-{now():%Y-%m-%d}.{FORMATS[form]}"
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type=MEDIA_TYPES[form], headers=headers)


def guest_handlers(access: Access) -> dict[str, Handler]:
    """Return the handlers of requests about guests by their names."""

    async def invite(body: dict[str, Any]) -> dict[str, Any]:
        _check_fields(body, rights=str, name=str)
        rights, name = _required(body, "rights"), _required(body, "name")
        access.check_outside()
        segno = need("segno", "live")
        guest = access.guests.invite(rights, name)
        event("guest_invited", guest=guest.id, rights=guest.rights)
        url = access.invitation(guest.token)
        svg = BytesIO()
        # Black on white with a margin of four squares: readers of QR codes need both.
        segno.make_qr(url, error="m").save(
            svg, kind="svg", border=4, dark="#000", light="#fff", xmldecl=False, omitsize=True
        )
        code = svg.getvalue().decode()
        return {"id": guest.id, "name": guest.name, "rights": rights, "url": url, "qr": code}

    async def revoke(body: dict[str, Any]) -> dict[str, Any]:
        _check_fields(body, id=int)
        guest = access.guests.revoke(_required(body, "id"))
        event("guest_revoked", guest=guest.id)
        return {}

    return {"invite": invite, "revoke": revoke}


def guest_list(access: Access) -> dict[str, Any]:
    """Return the guests, without their tokens, and why none can be invited, or null."""
    refusal = None
    try:
        access.check_outside()
    except LiveError as error:
        refusal = str(error)
    guests = [
        {
            "id": guest.id,
            "name": guest.name,
            "rights": guest.rights,
            "invited": guest.invited,
            "pages": guest.pages,
        }
        for guest in access.guests
    ]
    return {"guests": guests, "refusal": refusal}


def to_speak(body: dict[str, Any]) -> tuple[str, float, float]:
    """Return the text, the rate and the pitch of a request to speak."""
    _check_fields(body, text=str, rate=(int, float), pitch=(int, float))
    rate, pitch = (1.0 if body.get(name) is None else body[name] for name in ("rate", "pitch"))
    return _required(body, "text"), rate, pitch


def _check_fields(body: dict[str, Any], **fields: type | tuple[type, ...]) -> None:
    """Refuse fields that are unknown or of another type; null stands for an absent field."""
    # By hand: pydantic's errors, put into these one-line messages, take more code than the checks.
    for name, value in body.items():
        if name not in fields:
            raise Refused(400, f"unknown field {name[:40]!r}; known: {', '.join(fields) or 'none'}")
        wanted = fields[name]
        # Python counts true and false as numbers.
        fits = isinstance(value, wanted) and isinstance(value, bool) == (wanted is bool)
        if value is not None and not fits:
            raise Refused(400, f"{name} must be {KINDS.get(wanted, 'a number')}")


def _required(body: dict[str, Any], name: str) -> Any:
    if body.get(name) is None:
        raise Refused(400, f"{name} is missing")
    return body[name]
