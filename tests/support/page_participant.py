"""The participant's view in a browser: with a real server, or with messages of the test's own."""

from __future__ import annotations

import json
from typing import Any

from page_browser import TOKEN, Watched
from page_voice import DOUBLES

HELLO = {
    "type": "hello", "rights": "rate", "session_log": True, "private": False, "voice": None,
    "language": {"name": "en", "lang": "en", "direction": "ltr", "unit": "word"},
    "state": "running", "latest": 0,
}  # fmt: skip
TALK = (
    ("participant", "Good morning."),
    ("partner", "Good morning! Did you sleep well?"),
    ("participant", "Yes, but I was a little cold in the night."),
    ("partner", "I will bring another blanket. Would you like breakfast now?"),
)
TEA = (
    "I would like some tea with honey, please.",
    "I would like some tea with money, please.",
    "I would like some peas with honey.",
    "I would like some tea without honey, please.",
)


def said(text: str) -> str:
    """The text without what showing adds to it."""
    return "".join(c for c in text.lower() if c.isalnum() or c == " ")


class Participant(Watched):
    """A page of the view. Its voices are doubles.

    Args:
        browser: Chromium.
        base: Address of the server.
        kept: What the browser remembers, such as `{"dwell": "0.4"}`.
        confidence: Confidence of all sentences, in place of the server's; None: as it sends them.
        options: Of the browser's context.
    """

    def __init__(
        self,
        browser: Any,
        base: str,
        kept: dict[str, str] | None = None,
        confidence: float | None = None,
        **options: Any,
    ) -> None:
        super().__init__(browser, base, **options)
        remembered = {f"cortext.{name}": value for name, value in (kept or {}).items()}
        self.page.add_init_script(
            f"for (const [name, value] of Object.entries({json.dumps(remembered)}))"
            " localStorage.getItem(name) ?? localStorage.setItem(name, value);"
        )
        self.page.add_init_script(DOUBLES)
        if confidence is not None:
            self.page.route_web_socket("**/ws*", lambda ws: self._pass_on(ws, confidence))

    @staticmethod
    def _pass_on(ws: Any, confidence: float) -> None:
        def changed(text: str) -> None:
            message = json.loads(text)
            if message["type"] == "utterance":
                message["confidence"] = confidence
            ws.send(json.dumps(message))

        ws.connect_to_server().on_message(changed)

    def open(self, token: str = TOKEN) -> Participant:
        self.page.goto(f"{self.base}participant" + (f"#token={token}" if token else ""))
        return self

    def connected(self) -> Participant:
        self.page.wait_for_selector("#state:not([data-kind=moment])")
        return self

    def until(self, script: str) -> None:
        self.page.wait_for_function(f"() => {script}")

    def spoken(self) -> list[str]:
        return self.page.evaluate("spoken.map(({ text }) => text)")

    def candidates(self) -> list[str]:
        return self.page.locator("#candidates li:visible .said").all_inner_texts()

    def tops(self, selector: str) -> list[float]:
        script = "all => all.map((it) => it.getBoundingClientRect().top)"
        return self.page.locator(selector).evaluate_all(script)


class Scripted(Participant):
    """A page whose server is the test: it is sent what the test sends, and what it asks is kept.

    Attributes:
        asked: Actions and bodies of its requests.
    """

    def __init__(self, *facts: Any, **options: Any) -> None:
        super().__init__(*facts, **options)
        self.asked: list[tuple[str, Any]] = []
        self.sockets: list[Any] = []
        self.is_stopped = False
        self.page.route_web_socket("**/ws*", lambda ws: self.sockets.append(ws))
        self.page.route("**/api/*", self._answer)

    def _answer(self, route: Any) -> None:
        request = route.request
        self.asked.append((request.url.rpartition("/")[2], request.post_data_json))
        route.fulfill(json={"ok": True})

    def greeted(self, **hello: Any) -> Scripted:
        """Open the page and greet it."""
        self.open()
        while not self.sockets:
            self.page.wait_for_timeout(10)
        self.send(**HELLO | hello)
        return self.connected()

    def stopped(self) -> Scripted:
        """Let time pass only with `pass_ms`, so that a busy machine changes nothing."""
        self.page.clock.install(time=0)
        return self

    def pass_ms(self, ms: float) -> None:
        """Let time pass; the first call stops the clock."""
        if not self.is_stopped:
            self.page.clock.pause_at(60_000)
            self.is_stopped = True
        self.page.clock.run_for(ms)

    def send(self, **message: Any) -> None:
        self.sockets[-1].send(json.dumps(message))

    def talk(self, entries: Any = TALK) -> None:
        """Send the conversation so far."""
        numbered = [
            {"entry": n, "who": who, "text": said(text) if who == "participant" else text,
             "shown": text, "when": "2026-01-05T10:00:00.000"}
            for n, (who, text) in enumerate(entries, 1)
        ]  # fmt: skip
        self.send(type="history", entries=numbered)

    def forming(self, stable: str, tail: str = "", utterance: int = 10) -> None:
        self.send(type="step", utterance=utterance, t_ms=1000, stable=stable, tail=tail)

    def decided(self, *texts: str, id: int = 10, **facts: Any) -> None:
        """Send a sentence and its candidates, and wait until it is shown."""
        nbest = [{"text": said(text), "shown": text} for text in texts]
        message = {"id": id, "entry": id, "confidence": 0.99, "nbest": nbest, **nbest[0]} | facts
        self.send(type="utterance", **message)
        self.page.wait_for_function(
            "(text) => document.querySelector('#announce').textContent === text", arg=texts[0]
        )
