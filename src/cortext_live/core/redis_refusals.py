"""The reasons why Redis lets nobody in: a password, a permission, encryption, protected mode.

None of them passes by itself, so that waiting for Redis would not end. Each is one line that says
what to do. No line has the URL, which may hold a password.
"""

from __future__ import annotations

import socket
import ssl
from contextlib import suppress
from typing import Any
from urllib.parse import parse_qs, quote, urlsplit

from cortext.errors import LiveError
from cortext_live.core.redis_streams import address

PROBE_S = 2.0
"""Seconds in which a server shows whether it encrypts."""
URL = "CORTEXT_REDIS_URL"
"""Environment variable with the URL of Redis: a command line can be read by others."""


def refusal(error: Exception, url: str, errors: Any) -> LiveError | None:
    """Return the line for an error that will not pass; None for one that may.

    Args:
        error: An error of the library redis.
        url: The URL of the connection.
        errors: `redis.exceptions`.
    """
    problem, fix = str(error).partition(", with args")[0], ""  # arguments are private
    if isinstance(error, errors.AuthenticationError | errors.AuthorizationError):
        problem, fix = _about_password(problem, url)
    elif isinstance(error, errors.NoPermissionError):
        problem = f"Redis refuses: {problem}"
        fix = "let the user do that (ACL SETUSER), or give another user in the address"
    elif problem.startswith("DENIED"):
        problem, fix = _protected(url)
    elif problem.startswith("DB index"):
        problem = f"Redis refuses: {problem}"
        fix = "give another number after the last / of the address"
    else:
        return None
    return LiveError(problem, where=address(url), fix=fix)


def no_connection(error: Exception, url: str) -> LiveError | None:
    """Return the line for a connection that cannot come about; None where it may later.

    One side alone encrypts, or Redis is in protected mode. Call it where no connection has come
    about so far: it asks the server once.

    Args:
        error: An error of the library redis while it connected.
        url: The URL of the connection.
    """
    parts, problem, fix = urlsplit(url), str(error).rstrip("."), ""
    server = parts.hostname or "localhost", parts.port or 6379
    if parts.scheme == "unix":
        return None
    if parts.scheme == "rediss" and "CERTIFICATE_VERIFY_FAILED" in problem:
        reason = (
            problem.partition("verify failed: ")[2].partition(" (_ssl")[0] or "it is not trusted"
        )
        problem = f"the certificate of Redis is not accepted: {reason}"
        fix = "append ?ssl_ca_certs=FILE with the certificate of its authority to the address"
    elif parts.scheme == "rediss" and _answer(*server).startswith((b"+", b"-")):
        problem, fix = "Redis does not encrypt at this port", "write redis:// in place of rediss://"
    elif parts.scheme == "rediss" and "_ssl.c" in problem:
        problem = "Redis ended the encrypted connection: it may ask for a certificate"
        fix = "append ?ssl_certfile=FILE&ssl_keyfile=FILE to the address"
    elif parts.scheme == "redis" and _answer(*server).startswith(b"-DENIED"):
        problem, fix = _protected(url)
    elif parts.scheme == "redis" and _encrypts(*server):
        problem, fix = "Redis encrypts at this port", f"give it as {_rediss(url)}{_how()}"
    else:
        return None
    return LiveError(problem, where=address(url), fix=fix)


def has_password_in(url: str) -> bool:
    """Tell whether a URL gives a password."""
    return urlsplit(url).password is not None or "password" in parse_qs(urlsplit(url).query)


def _about_password(answer: str, url: str) -> tuple[str, str]:
    """Return the fault of the password or user, and its remedy."""
    if "called without any password" in answer or "no password is set" in answer:
        return (
            "a password was given, and Redis has none",
            "leave it out of the address, or set it in Redis (requirepass)",
        )
    if not has_password_in(url):
        return "Redis asks for a password", _with_password(url)
    return f"Redis refuses: {answer.rstrip('.')}", "check user and password"


def _protected(url: str) -> tuple[str, str]:
    problem = "Redis is in protected mode: it takes connections of its own machine only"
    return problem, "set a password in Redis (requirepass), and " + _with_password(url)


def _with_password(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme == "unix":
        shown = f"unix://{quote(address(url))}?password=PASSWORD"
    else:
        shown = f"{parts.scheme}://[USER]:PASSWORD@{address(url)}{parts.path}"
    return f"give it as {shown}{_how()}"


def _rediss(url: str) -> str:
    return f"rediss://{address(url)}{urlsplit(url).path}"


def _how() -> str:
    return f" to --redis-url or in the environment variable {URL}"


def _encrypts(host: str, port: int) -> bool:
    """Tell whether a server shakes hands for TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent
    with (
        suppress(OSError),
        socket.create_connection((host, port), PROBE_S) as raw,
        context.wrap_socket(raw),
    ):
        return True
    return False


def _answer(host: str, port: int) -> bytes:
    """Return the beginning of a server's answer to a PING that is not encrypted."""
    with suppress(OSError), socket.create_connection((host, port), PROBE_S) as raw:
        with suppress(OSError):  # it may have answered and closed before
            raw.sendall(b"PING\r\n")
        return raw.recv(16)
    return b""
