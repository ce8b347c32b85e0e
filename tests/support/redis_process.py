"""A real redis-server of a test's own, and waiting for what will happen."""

from __future__ import annotations

import contextlib
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

BINARY = shutil.which("redis-server") or "/usr/bin/redis-server"
DEADLINE_S = 20.0


def wait_for(condition: Callable[[], Any], what: str, deadline_s: float = DEADLINE_S) -> Any:
    """The condition's first true value.

    Fails, saying what did not happen, when the deadline passes.
    """
    end = time.monotonic() + deadline_s
    while True:
        if value := condition():
            return value
        if time.monotonic() > end:
            raise AssertionError(f"within {deadline_s} s there was no {what}")
        time.sleep(0.005)


class RedisServer:
    """A real redis-server that can be stopped, killed, frozen and started again on the same port.

    persist: keep what is written over a restart (an append-only file); by default nothing is kept
    config:  more settings, as on the command line (`maxmemory="2mb"`, `requirepass="secret"`)
    """

    def __init__(self, directory: Path, **config: str) -> None:
        self.directory, self.config, self.persist = directory, config, False
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port: int = free.getsockname()[1]
        self._process: subprocess.Popen[bytes] | None = None
        self._clients: list[Any] = []

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def client(self, **options: Any) -> Any:
        """A connection; closed when the test ends."""
        import redis

        password = self.config.get("requirepass")
        client = redis.Redis(host="127.0.0.1", port=self.port, **({"password": password} | options))
        self._clients.append(client)
        return client

    def start(self) -> RedisServer:
        settings = {"port": self.port, "bind": "127.0.0.1", "dir": self.directory, "save": ""}
        settings |= {"appendonly": "yes" if self.persist else "no", "appendfsync": "always"}
        settings |= {
            "maxmemory-policy": "noeviction",
            "enable-debug-command": "local",
        } | self.config
        arguments = [text for name, value in settings.items() for text in (f"--{name}", str(value))]
        log = (self.directory / "redis.log").open("ab")
        self._process = subprocess.Popen([BINARY, *arguments], stdout=log, stderr=log)
        log.close()
        wait_for(self._answers, "answer from redis-server")
        return self

    def stop(self) -> None:
        """Kill it, as a crash would."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        """Kill it and start it again; what it held is gone unless `persist`."""
        self.stop()
        self.start()

    def freeze(self) -> None:
        """Stop its process: connections stay open and nobody answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def set_maxmemory(self, size: str) -> None:
        """Change the limit of memory while it runs ("0" is none); beyond it writing is refused."""
        self.client().config_set("maxmemory", size)

    def close(self) -> None:
        for client in self._clients:
            client.close()
        self.stop()

    def _answers(self) -> bool:
        import redis

        assert self._process is not None
        assert self._process.poll() is None, (self.directory / "redis.log").read_text()
        client = redis.Redis(
            host="127.0.0.1", port=self.port, password=self.config.get("requirepass")
        )
        try:
            return bool(client.ping())
        except redis.exceptions.ConnectionError:
            return False
        finally:
            client.close()
