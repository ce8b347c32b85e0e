"""Options for the Redis server that commands speak with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import typer

from cortext.settings import Setting


@dataclass(frozen=True)
class RedisServer:
    """A Redis server, as the command line names it."""

    redis_host: Annotated[str, Setting(help="Host of the Redis server.")] = "localhost"
    redis_port: Annotated[
        int, Setting(help="Port of the Redis server.", minimum=1, maximum=65535)
    ] = 6379
    redis_url: Annotated[
        str | None,
        typer.Option(
            "--redis-url",
            envvar="CORTEXT_REDIS_URL",
            show_default=False,
            help=(
                "Instead of host and port: redis[s]://[user:password@]host[:port][/db] or"
                " unix:///path. Never logged."
            ),
        ),
    ] = None

    @property
    def url(self) -> str:
        """The address that clients connect to."""
        from cortext_live.core.redis_streams import redis_url

        return self.redis_url or redis_url(self.redis_host, self.redis_port)
