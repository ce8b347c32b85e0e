"""Debian's Firefox, driven through WebDriver BiDi: <https://w3c.github.io/webdriver-bidi/>.

Firefox speaks this protocol by itself on a web socket. Playwright drives only a Firefox of its own,
and selenium needs a second program between the two.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

from websockets.sync.client import connect

FIREFOX = "/usr/bin/firefox-esr"
START_S = 60.0
ANSWER_S = 30.0
PREFERENCES = {
    "app.normandy.enabled": False,
    "app.update.disabledForTesting": True,
    "browser.aboutwelcome.enabled": False,
    "browser.safebrowsing.update.enabled": False,
    "datareporting.policy.dataSubmissionEnabled": False,
    "dom.push.connection.enabled": False,
    "extensions.systemAddon.update.enabled": False,
    "media.gmp-manager.updateEnabled": False,
    "network.captive-portal-service.enabled": False,
    "network.connectivity-service.enabled": False,
    "toolkit.telemetry.server": "",
}
"""What would ask other servers is off."""
KEYS = {"Enter": "\ue007", "Escape": "\ue00c", "Tab": "\ue004", "Space": " "}
"""Code points of keys without a letter (WebDriver, section "Keyboard actions")."""


class Firefox:
    """A Firefox without a window, with a new profile and one tab; a context manager.

    Args:
        profile: An empty directory.

    Attributes:
        complaints: Errors and warnings of the pages' consoles.
    """

    def __init__(self, profile: Path) -> None:
        self.profile = profile
        self.complaints: list[str] = []
        self._n_sent = 0

    def __enter__(self) -> Firefox:
        lines = [
            f"user_pref({json.dumps(name)}, {json.dumps(value)});\n"
            for name, value in PREFERENCES.items()
        ]
        (self.profile / "user.js").write_text("".join(lines))
        command = [FIREFOX, "--headless", "--no-remote", "--profile", str(self.profile)]
        self._process = subprocess.Popen(
            [*command, "--remote-debugging-port", "0", "about:blank"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"HOME": str(self.profile), "MOZ_HEADLESS": "1"},
            start_new_session=True,
        )
        try:
            self._socket = connect(f"{self._address()}/session", max_size=None).__enter__()
            self.ask("session.new", capabilities={})
            self.ask("session.subscribe", events=["log.entryAdded"])
            (tab,) = self.ask("browsingContext.getTree")["contexts"]
            self.tab = tab["context"]
        except BaseException:
            self._kill()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.ask("browser.close")
            self._process.wait(10)
        except Exception:
            if kind is None:
                raise
        finally:
            self._kill()

    def _address(self) -> str:
        assert self._process.stderr is not None
        for line in self._process.stderr:
            if line.startswith("WebDriver BiDi listening on "):
                return line.split()[-1]
        raise RuntimeError(f"{FIREFOX} ended before it listened")

    def _kill(self) -> None:
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(10)
        assert self._process.stderr is not None
        self._process.stderr.close()

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send a command; return its result. Events that come before it are noted."""
        self._n_sent += 1
        command = {"id": self._n_sent, "method": method, "params": parameters}
        self._socket.send(json.dumps(command))
        while True:
            answer = json.loads(self._socket.recv(timeout=ANSWER_S))
            if answer.get("id") == self._n_sent:
                break
            entry = answer.get("params", {})
            if entry.get("level") in ("error", "warn"):
                self.complaints.append(f"{entry['level']}: {entry['text']}")
        if answer["type"] == "error":
            raise RuntimeError(f"{method}: {answer['error']}: {answer['message']}")
        result: dict[str, Any] = answer["result"]
        return result

    def open(self, url: str) -> None:
        """Load a page in the tab."""
        self.ask("browsingContext.navigate", context=self.tab, url=url, wait="complete")

    def size(self, width: int, height: int) -> None:
        """Give the page so many pixels."""
        viewport = {"width": width, "height": height}
        self.ask("browsingContext.setViewport", context=self.tab, viewport=viewport)

    def run(self, expression: str) -> Any:
        """Return the value of a JavaScript expression, through JSON."""
        answer = self.ask(
            "script.evaluate",
            expression=f"Promise.resolve({expression}).then((it) => JSON.stringify(it) ?? 'null')",
            target={"context": self.tab},
            awaitPromise=True,
            userActivation=True,
        )
        if answer["type"] == "exception":
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']['text']}")
        return json.loads(answer["result"]["value"])

    def wait_for(self, expression: str, patience_s: float = 15.0) -> None:
        """Wait until a JavaScript expression is true."""
        deadline_s = time.monotonic() + patience_s
        while not self.run(expression):
            assert time.monotonic() < deadline_s, f"not within {patience_s} s: {expression}"
            time.sleep(0.05)

    def press(self, *keys: str) -> None:
        """Press and release keys, one after the other."""
        strokes = [
            {"type": kind, "value": KEYS.get(key, key)}
            for key in keys
            for kind in ("keyDown", "keyUp")
        ]
        actions = [{"type": "key", "id": "keyboard", "actions": strokes}]
        self.ask("input.performActions", context=self.tab, actions=actions)
