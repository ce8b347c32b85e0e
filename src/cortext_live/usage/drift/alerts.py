"""Alerts: a line in the log of the program, and a message to a web hook on this machine."""

from __future__ import annotations

import ipaddress
import json
import logging
import urllib.error
import urllib.request
from collections.abc import Sequence
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cortext.errors import ConfigError, shown

HOOK_TIMEOUT_S = 5.0

logger = logging.getLogger("cortext.usage.drift")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any, **__: Any) -> None:
        """Follow no redirect: it could lead to another machine."""


def check_hook(url: str) -> None:
    """Raise ConfigError for an address that is not on this machine."""
    fix = "give http://127.0.0.1:PORT/PATH"
    try:
        parts = urlsplit(url)
        port, host = parts.port, parts.hostname
    except ValueError:
        raise ConfigError("--hook is no address", fix=fix) from None
    # Names are not accepted: another program decides where `localhost` leads.
    try:
        is_here = ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        is_here = False
    if parts.scheme != "http" or not is_here or port is None or parts.username is not None:
        raise ConfigError(f"--hook is {url!r:.100}, not an address of this machine", fix=fix)


def send_alerts(alerts: Sequence[str], source: Path, hook: str | None) -> str | None:
    """Log alerts, and post them to a web hook as `{"source": ..., "alerts": [...]}`.

    Args:
        alerts: Sentences; without any, nothing happens.
        source: The directory that they are about.
        hook: Address on this machine, or None.

    Returns:
        The reason why the hook did not take them; None if it did.

    Raises:
        ConfigError: The hook is not on this machine.
    """
    if hook is not None:
        check_hook(hook)
    for alert in alerts:
        logger.warning("%s", shown(f"{source}: {alert}"))
    if hook is None or not alerts:
        return None
    body = json.dumps({"source": str(source), "alerts": list(alerts)}).encode()
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(hook, body, headers, method="POST")
    # No proxy: it would answer for itself, and learn of the participant.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects())
    try:
        with opener.open(request, timeout=HOOK_TIMEOUT_S):
            return None
    except urllib.error.HTTPError as error:
        error.close()
        return f"the web hook answered {error.code}; the alert was not taken"
    except (OSError, HTTPException, ValueError) as error:
        return shown(f"the web hook cannot be reached: {error}", 200)
