"""Hours of use in fast motion: the real server with a usage log, both views in Chromium, and people
who correct, rate, answer, delete, speak in private and load pages again.

All that the server sends is counted by a client that never leaves. What the conversation must hold
follows from the messages and from what was asked, and is compared with what the server, its log on
the disk and the server after a restart say.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from datetime import datetime
from itertools import cycle
from pathlib import Path
from typing import Any

import httpx
from page_browser import TOKEN, PageServer, Watched
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import connect

BIN_S = 0.02
EVERY_S = 20.0
"""Signal between two things that somebody does."""
LEAST_PRIVATE = 10
"""Sentences of a private stretch."""
PATIENCE_S = 600.0
"""A long run gets little of a busy machine."""
HARMLESS = "Failed to load resource"
"""Beginning of a browser's complaint of a request that was refused."""
WHOLE = ("i see you", "i see me", "you and me")
"""What the recordings say."""
KINDS = (
    *("turn", "correct", "rate", "turn", "forget turn", "correct", "private", "reload"),
    *("turn", "rate", "forget one", "turn", "again", "correct", "forget stretch", "private turn"),
)
"""What is done, in this order again and again."""


def word(number: int) -> str:
    """A word that stands for a number, and is no part of another one."""
    return "q" + "".join(chr(ord("a") + int(digit)) for digit in f"{number:05d}") + "x"


@dataclass
class Counts:
    """What happened, and what was wrong.

    Attributes:
        signal_s: Seconds of signal that were decoded.
        sentences: Messages of finished sentences; `cut` of them ended with a stop.
        lost: Numbers of sentences that were never sent.
        wrong: Sentences with other words than were spoken.
    """

    signal_s: float = 0.0
    sentences: int = 0
    cut: int = 0
    private: int = 0
    lost: int = 0
    wrong: int = 0
    corrections: int = 0
    ratings: int = 0
    turns: int = 0
    private_turns: int = 0
    deleted: int = 0
    reloads: int = 0
    refused: int = 0


@dataclass
class Memory:
    """Megabytes and counts when the server pauses after so much signal."""

    signal_h: float
    server_mb: float
    pages: dict[str, dict[str, float]]


class Witness(threading.Thread):
    """A client that reads everything, and keeps the conversation as it must be.

    Attributes:
        said: The entries of the conversation by their numbers.
        wordless: Entries of sentences without words, which a correction takes into it.
        counts: What it saw.
        errors: Faults that the server reported.
    """

    def __init__(self, port: int) -> None:
        super().__init__(daemon=True)
        self.said: dict[int, dict[str, Any]] = {}
        self.wordless: dict[int, dict[str, Any]] = {}
        self.entry_of: dict[int, int | None] = {}
        self.private: list[int] = []
        self.counts = Counts()
        self.errors: list[str] = []
        self.lock = threading.Lock()
        self._socket = connect(f"ws://127.0.0.1:{port}/ws?token={TOKEN}", max_size=None).__enter__()
        self._latest = 0
        self.start()

    def run(self) -> None:
        while True:
            try:
                message = json.loads(self._socket.recv())
            except ConnectionClosed:
                return
            with self.lock:
                getattr(self, f"_{message['type']}", lambda _: None)(message)

    def close(self) -> None:
        self._socket.close()

    def _step(self, message: dict[str, Any]) -> None:
        self.counts.signal_s += BIN_S * (message["n_bins"] + message["dropped"])

    def _error(self, message: dict[str, Any]) -> None:
        self.errors.append(message["what"])

    def _utterance(self, message: dict[str, Any]) -> None:
        number, text, counts = message["id"], message["text"], self.counts
        counts.sentences += 1
        counts.lost += number - self._latest - 1
        self._latest = number
        is_cut = message["ended"] != "end of trial"
        counts.cut += is_cut
        counts.wrong += text not in WHOLE and not is_cut
        self.entry_of[number] = entry = message["entry"]
        if entry is None:
            self.private.append(number)
        else:
            (self.said if text else self.wordless)[entry] = {
                "entry": entry,
                "who": "participant",
                "when": message["when"],
                "text": text,
            }

    def _turn(self, message: dict[str, Any]) -> None:
        if message["entry"] is not None:
            entry = {name: message[name] for name in ("entry", "when", "text")}
            self.said[message["entry"]] = entry | {"who": "partner"}


@dataclass
class LongUse:
    """Use of a server; see the module.

    Args:
        root: A directory for recordings and the usage log.
        browser: Chromium.
        speed: Seconds of signal in a second; a busy machine decodes fewer.
        seed: Of what is chosen.
    """

    root: Path
    browser: Any
    speed: float
    seed: int = 0
    memory: list[Memory] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.random = random.Random(self.seed)
        self.server = PageServer(self.root, "--speed", str(self.speed), "--loop").start()
        self.client = httpx.Client(
            base_url=self.server.url,
            headers={"Authorization": f"Bearer {TOKEN}"},
            timeout=PATIENCE_S,
        )
        self.witness = Witness(self.server.port)
        # Small windows: drawing them takes most of the time.
        window = {"viewport": {"width": 1000, "height": 640}}
        self.observers = Watched(self.browser, self.server.url, **window).open().connected()
        self.participants = Watched(self.browser, self.server.url, **window)
        for view in (self.observers, self.participants):
            view.page.set_default_timeout(1000 * PATIENCE_S)
        self.participants.page.goto(f"{self.server.url}participant#token={TOKEN}")
        self.views = {"observers": self.observers, "participant": self.participants}
        self.tools = {}
        for name, view in self.views.items():
            self.tools[name] = view.context.new_cdp_session(view.page)
            self.tools[name].send("Performance.enable")
        self.n_words = 0
        self.secrets: list[str] = []
        self.stretches = 0

    @property
    def counts(self) -> Counts:
        return self.witness.counts

    def run(self, hours: float, n_measures: int, say: Callable[[str], None] = print) -> None:
        """Use the server for so many hours of signal, and measure memory so often.

        It takes longer where not everything has been done by then, because the machine is busy.
        """
        kinds, due_s, n_done = cycle(KINDS), EVERY_S, 0
        self.ask("start")
        for i in range(1, n_measures + 1):
            share = i / n_measures
            while self.counts.signal_s < 3600 * hours * share or n_done < share * len(KINDS):
                if self.counts.signal_s < due_s:
                    self.wait(20)
                    continue
                due_s, n_done = due_s + EVERY_S, n_done + 1
                getattr(self, "do_" + next(kinds).replace(" ", "_"))()
            self.measure()
            say(f"{self.memory[-1]} {self.counts}")
        self.ask("stop")
        self.settle()

    def wait(self, ms: float) -> None:
        self.observers.page.wait_for_timeout(ms)

    def until(self, true: Callable[[], bool], what: str) -> None:
        deadline_s = time.monotonic() + PATIENCE_S
        while not true():
            assert time.monotonic() < deadline_s, f"not within {PATIENCE_S} s: {what}"
            self.wait(10)

    def ask(self, action: str, **body: Any) -> dict[str, Any]:
        answer = self.client.post(f"/api/{action}", json=body)
        assert answer.status_code == 200, (action, body, answer.text)
        return dict(answer.json())

    def settle(self) -> None:
        """Wait until the witness and the pages have read what was sent."""
        self.until(lambda: self.client.get("/api/state").json()["state"] != "running", "a stop")
        seen = -1
        while seen != self.counts.sentences:
            seen = self.counts.sentences
            self.wait(300)

    # What people do

    def said(self, who: str) -> list[dict[str, Any]]:
        with self.witness.lock:
            return [each for each in self.witness.said.values() if each["who"] == who]

    def new_word(self) -> str:
        self.n_words += 1
        return word(self.n_words)

    def do_turn(self) -> None:
        text = f"so {self.new_word()} then"
        entry = self.ask("turn", text=text)["entry"]
        self.until(lambda: entry in self.witness.said, "the turn is sent")
        assert self.witness.said[entry]["text"] == text
        self.counts.turns += 1

    def do_correct(self) -> None:
        """In the observers' page, with the keyboard."""
        page, text = self.observers.page, f"i see {self.new_word()}"
        page.keyboard.press("e")
        if not page.locator("#editor").is_visible():
            return
        page.keyboard.insert_text(text)
        with page.expect_response(lambda it: it.url.endswith("/api/correction")) as got:
            page.keyboard.press("Enter")
        self.counts.corrections += self.taken(got.value, correction=text)
        if got.value.status != 200:
            page.keyboard.press("Escape")

    def do_rate(self) -> None:
        page, rating = self.observers.page, self.random.choice(("right", "mostly right", "wrong"))
        if not page.locator(f"[data-rating='{rating}']").is_enabled():
            return
        with page.expect_response(lambda it: it.url.endswith("/api/rating")) as got:
            page.locator(f"[data-rating='{rating}']").evaluate("it => it.click()")
        self.counts.ratings += self.taken(got.value, rating=rating)

    def taken(self, response: Any, **feedback: str) -> bool:
        """Note what a page sent, unless the server refused it."""
        number = response.request.post_data_json["utterance"]
        self.until(lambda: number in self.witness.entry_of, "the sentence is sent")
        # Of a sentence that a pause cut, the recording may be too short for the label.
        if response.status != 200 and "it is logged" not in response.text():
            # It was private, or has been deleted meanwhile.
            self.counts.refused += 1
            entry = self.witness.entry_of[number]
            assert entry is None or entry not in self.witness.said, response.text()
            return False
        with self.witness.lock:
            entry = self.witness.entry_of[number]
            if "correction" in feedback and entry in self.witness.wordless:
                self.witness.said[entry] = self.witness.wordless.pop(entry)
            (self.witness.wordless | self.witness.said)[entry].update(feedback)
        return True

    def do_reload(self) -> None:
        self.observers.page.reload()
        self.observers.connected()
        self.counts.reloads += 1

    def do_again(self) -> None:
        """The participant's view connects again, as after a pause of the network."""
        self.participants.page.evaluate("location.hash += '&again'")
        self.counts.reloads += 1

    def do_private(self) -> None:
        before = len(self.witness.private)
        self.ask("private", on=True)
        self.stretches += 1
        self.until(lambda: len(self.witness.private) >= before + LEAST_PRIVATE, "private sentences")
        self.ask("private", on=False)

    def do_private_turn(self) -> None:
        secret = self.new_word()
        self.ask("private", on=True)
        self.stretches += 1
        before = len(self.witness.private)
        assert self.ask("turn", text=f"so {secret} then")["entry"] is None
        self.until(lambda: len(self.witness.private) > before, "a private sentence")
        self.ask("private", on=False)
        self.secrets.append(secret)
        self.counts.private_turns += 1

    def do_forget_turn(self) -> None:
        self.forget_entry(self.random.choice(self.said("partner")[-20:]))

    def do_forget_one(self) -> None:
        self.forget_entry(self.random.choice(self.said("participant")[-50:-5]))

    def forget_entry(self, entry: dict[str, Any]) -> None:
        number = entry["entry"]
        assert self.forget(entries=[number])["deleted"] == 1
        self.dropped([number])

    def forget(self, **what: Any) -> dict[str, Any]:
        """Delete while nobody speaks: the log is rewritten, and may wait for the disk.

        In fast motion more sentences would end meanwhile than may wait for the log.
        """
        self.ask("stop")
        answer = self.ask("forget", **what)
        self.ask("start")
        return answer

    def do_forget_stretch(self) -> None:
        """All from one time to another, which lie between entries."""
        said = sorted(self.witness.said.copy().values(), key=lambda each: each["entry"])[-40:-10]
        when = [datetime.fromisoformat(each["when"]) for each in said]
        cuts = [i for i in range(1, len(said)) if when[i - 1] < when[i]]
        first, end = cuts[0], cuts[min(6, len(cuts) - 1)]
        between = [
            (when[i - 1] + (when[i] - when[i - 1]) / 2).isoformat(timespec="microseconds")
            for i in (first, end)
        ]
        self.forget(since=between[0], until=between[1])
        self.dropped([each["entry"] for each in said[first:end]])

    def dropped(self, numbers: list[int]) -> None:
        with self.witness.lock:
            for number in numbers:
                gone = self.witness.said.pop(number)
                told = gone["text"] if gone["who"] == "partner" else gone.get("correction", "")
                self.secrets += [part for part in told.split() if part.startswith("q")]
        self.counts.deleted += len(numbers)

    # What is measured

    def measure(self) -> None:
        """Measure memory while the server pauses."""
        self.ask("stop")
        self.settle()
        pages = {name: self.collected(name) for name in self.views}
        status = Path(f"/proc/{self.server._process.pid}/status").read_text()
        resident_kb = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        server_mb = int(resident_kb.split()[1]) / 1024
        self.memory.append(Memory(self.counts.signal_s / 3600, server_mb, pages))
        self.ask("start")

    def collected(self, name: str) -> dict[str, float]:
        """Memory of a page without garbage, which is not always found at once."""
        found = []
        for _ in range(4):
            self.wait(100)
            self.tools[name].send("HeapProfiler.collectGarbage")
            metrics = self.tools[name].send("Performance.getMetrics")["metrics"]
            found.append({each["name"]: each["value"] for each in metrics})
        least = {name: min(each[name] for each in found) for name in found[0]}
        return {
            "heap_mb": least["JSHeapUsedSize"] / 1e6,
            "nodes": least["Nodes"],
            "listeners": least["JSEventListeners"],
        }

    # What is compared

    def conversation(self) -> Iterator[dict[str, Any]]:
        """The conversation as the server tells it, the newest first."""
        before = ""
        while True:
            page = self.client.get("/api/conversation", params={"limit": 500, "before": before})
            entries = page.json()["entries"]
            yield from reversed(entries)
            if not page.json()["more"]:
                return
            before = entries[0]["entry"]

    def expected(self) -> list[dict[str, Any]]:
        return [
            {name: each.get(name) for name in ("entry", "who", "text", "correction", "rating")}
            for _, each in sorted(self.witness.said.items())
        ]

    def compare(self, told: list[dict[str, Any]]) -> int:
        """Number of entries that are missing, too many or different."""
        kept = {
            each["entry"]: {
                name: each.get(name) for name in ("entry", "who", "text", "correction", "rating")
            }
            for each in told
        }
        expected = {each["entry"]: each for each in self.expected()}
        numbers = kept.keys() | expected.keys()
        return sum(kept.get(n) != expected.get(n) for n in numbers)

    def private_stretches(self) -> int:
        """Number of stretches of consecutive private sentences."""
        private = self.witness.private
        return sum(i == 0 or private[i - 1] != number - 1 for i, number in enumerate(private))

    def on_disk(self, words: list[str]) -> list[str]:
        """Those of the words that a file of the log holds."""
        files = [file.read_bytes() for file in (self.root / "log").rglob("*") if file.is_file()]
        return [each for each in words if any(each.encode() in content for content in files)]

    def finish(self) -> dict[str, Any]:
        """Compare the conversation everywhere, end the server, start it again, compare again."""
        different = {"asked": self.compare(list(self.conversation()))}
        exported = self.client.get("/api/export", params={"format": "jsonl"}).text
        different["exported"] = self.compare([json.loads(each) for each in exported.splitlines()])
        newest = self.expected()[-6:]
        shown = self.participants.page.locator("main").inner_text().lower()
        unseen = [each for each in newest if (each["correction"] or each["text"]) not in shown]
        complaints = [text for view in self.views.values() for text in view.complaints]
        for view in self.views.values():
            view.context.close()
        self.counts.private = len(self.witness.private)
        self.witness.close()
        self.server.stop()
        turns = [each["text"] for each in self.expected() if each["who"] == "partner"]
        self.server.start()
        different["after a restart"] = self.compare(list(self.conversation()))
        self.server.stop()
        self.client.close()
        return {
            "counts": asdict(self.counts),
            "memory": [asdict(each) for each in self.memory],
            "different": different,
            "newest entries unseen": unseen,
            "private stretches": [self.stretches, self.private_stretches()],
            "deleted words on the disk": self.on_disk(self.secrets),
            "kept turns not on the disk": sorted({*turns} - {*self.on_disk(turns)}),
            "errors": self.witness.errors,
            "complaints": [text for text in complaints if not text.startswith(HARMLESS)],
        }


def is_faultless(result: dict[str, Any]) -> bool:
    """Tell whether nothing was lost, nothing wrong, and nothing kept that must go."""
    counts = result["counts"]
    stretches, found = result["private stretches"]
    lists = ("deleted words on the disk", "kept turns not on the disk", "errors", "complaints")
    return (
        counts["lost"] == counts["wrong"] == 0
        and stretches == found
        and not any(result["different"].values())
        and not any(result[name] for name in (*lists, "newest entries unseen"))
    )
