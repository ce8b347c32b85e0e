"""The server's voice, in a process of its own: sound never holds up decoding."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import closing, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from cortext.cores import available_cores
from cortext.errors import ConfigError, CortextError, DataError, LiveError, first_line, shown
from cortext.text.language import EN, Language
from cortext_live.core.log import event, internal_error

PROGRAMS = ("espeak-ng", "formant")
"""Voices that are no files."""
MOST_WAITING = 4
"""Texts that wait while one is spoken."""
MOST_CHARACTERS = 1000
"""Characters of a text."""
SLOWEST, FASTEST = 0.5, 2.0
"""Bounds of the rate, as multiples of the voice's own."""
HIGHEST = 2.0
"""Upper bound of the pitch, as a multiple of the voice's own; the lower one is 0."""
SILENT_S = 15.0
"""Seconds without sound after which the process is killed: it hangs."""
START_S = 300.0
"""Seconds that opening the voice may take."""
AGAIN_S = 5.0
"""Seconds from a start that failed to the next one."""
MOST_DEATHS = 3
"""Times in a row that a process which nobody asked anything may end and is started again."""
NICENESS = 5
"""Decoding goes before speaking where both want the same core."""
_TICK_S = 0.05
_LOOK_S = 1.0
"""Seconds between two looks at a process that waits."""

Put = Callable[[int | bytes | CortextError | None], None]
"""Takes the samples per second, then the sound piece by piece, then None; or what went wrong."""


def voice_named(name: str) -> str:
    """Return the voice as `open_voice` takes it. Raises ConfigError where there is none."""
    if name in PROGRAMS:
        return name
    path = Path(name)
    folder = path.parent if path.is_file() else path
    if name and folder.is_dir():
        return str(folder)
    problem = f"--voice: no voice {name!r}"
    raise ConfigError(problem, fix=f"give {', '.join(PROGRAMS)}, or the folder of a VITS model")


class Request:
    """A text to speak.

    Attributes:
        text, rate, pitch: See `Voice.aloud`.
        put: Takes the sound, in the thread of `Speech`; it must not wait.
    """

    def __init__(self, text: str, rate: float, pitch: float, put: Put) -> None:
        self.text = text
        self.rate = rate
        self.pitch = pitch
        self.put = put
        self._cancelled = threading.Event()

    def cancel(self) -> None:
        """Say that nobody listens any more; from any thread."""
        self._cancelled.set()

    @property
    def is_cancelled(self) -> bool:
        """Tell whether nobody listens any more."""
        return self._cancelled.is_set()


class Speech:
    """Speaks texts one after the other, in a process that is started again when it fails.

    Args:
        voice: `espeak-ng`, `formant`, or the directory of a VITS checkpoint.
        language: Language of the texts.
        silent_s: Seconds without sound after which the process is killed.

    Attributes:
        failed: Gets a line when the process has failed; in the thread of this class.

    Raises:
        ConfigError: There is no such voice.
    """

    def __init__(self, voice: str, language: Language = EN, silent_s: float = SILENT_S) -> None:
        self._voice = voice_named(voice)
        self.name = self._voice if self._voice in PROGRAMS else Path(self._voice).name
        self.takes: tuple[str, ...] = ()
        self.failed: Callable[[str], None] = _ignore
        self._language = language
        self._silent_s = silent_s
        self._waiting = deque[Request]()
        self._news = threading.Condition()
        self._closing = False
        self._is_ready = False
        self._was_ready = False
        self._refusal: str | None = None
        self._n_deaths = 0
        self._started_s = -float("inf")
        self._process: subprocess.Popen[bytes] | None = None
        self._link: Connection
        self._thread = threading.Thread(target=self._work, name="speech", daemon=True)
        self._thread.start()

    def wait(self) -> None:
        """Wait until the voice can speak. Raises ConfigError where it cannot be opened."""
        with self._news:
            self._news.wait_for(lambda: self._is_ready or self._refusal or self._closing)
            refusal = self._refusal
        if refusal is not None:
            self.close()
            raise ConfigError(f"--voice: {refusal}")

    def ask(self, text: str, rate: float, pitch: float, put: Put) -> Request:
        """Have a text spoken; return at once.

        Raises:
            DataError: The text is empty or too long, or rate or pitch are out of their range.
            LiveError: Too many texts wait.
        """
        if len(text) > MOST_CHARACTERS:
            raise DataError(
                f"a text of {len(text)} characters; at most {MOST_CHARACTERS} are spoken"
            )
        spoken = "".join(each if each.isprintable() else " " for each in text).strip()
        if not spoken:
            raise DataError("there is no text to speak")
        if not SLOWEST <= rate <= FASTEST:
            raise DataError(
                f"rate is {shown(str(rate), 20)}; a number from {SLOWEST} to {FASTEST} is needed"
            )
        if not 0 <= pitch <= HIGHEST:
            raise DataError(
                f"pitch is {shown(str(pitch), 20)}; a number from 0 to {HIGHEST} is needed"
            )
        request = Request(spoken, rate, pitch, put)
        with self._news:
            if self._closing:
                raise LiveError("the server is stopping")
            self._waiting = deque(each for each in self._waiting if not each.is_cancelled)
            if len(self._waiting) >= MOST_WAITING:
                raise LiveError(f"{MOST_WAITING} texts wait for the voice already", fix="wait")
            self._waiting.append(request)
            self._news.notify_all()
        return request

    def close(self, timeout_s: float = 5.0) -> None:
        """End the process and the thread; what waits is not spoken."""
        with self._news:
            self._closing = True
            self._news.notify_all()
        self._thread.join(timeout_s)

    # In the thread

    def _work(self) -> None:
        try:
            self._open()
            while (request := self._next()) is not None:
                self._answer(request)
        finally:
            self._kill()
            for request in self._waiting:
                request.put(LiveError("the server is stopping"))

    def _next(self) -> Request | None:
        """Return the next text; None at the end. Starts a process again that died meanwhile.

        One that dies again and again is started when there is something to speak.
        """
        while True:
            with self._news:
                self._news.wait_for(lambda: self._waiting or self._closing, timeout=_LOOK_S)
                if self._closing:
                    return None
                if self._waiting:
                    return self._waiting.popleft()
            if self._process is not None and self._process.poll() is not None:
                self._n_deaths += 1
                if self._n_deaths <= MOST_DEATHS:
                    self._restart("ended by itself")
                    continue
                self._kill()
                self._refusal = "its process ended by itself, again and again"
                self.failed(f"the voice {self.name}: {self._refusal}")

    def _answer(self, request: Request) -> None:
        if request.is_cancelled:
            return
        if not self._is_ready and time.monotonic() - self._started_s > AGAIN_S:
            self._open()
        if not self._is_ready:
            request.put(LiveError(f"the voice {self.name} cannot be opened: {self._refusal}"))
            return
        try:
            problem = self._speak(request)
        except (OSError, EOFError):  # the process has ended, or was killed
            problem = "ended in the middle of a text"
        except Exception as error:  # no one waits for this thread
            problem = internal_error(error)
        if problem is None:
            self._n_deaths = 0
        if problem is not None and not self._closing:
            request.put(LiveError(f"the voice {self.name} {problem}"))
            self._restart(problem)

    def _speak(self, request: Request) -> str | None:
        """Pass on the sound of a text; return why the process must be killed, if it must."""
        self._link.send((request.text, request.rate, request.pitch))
        last_message_s, cancel_sent = time.monotonic(), False
        while not self._closing:
            if request.is_cancelled and not cancel_sent:
                self._link.send(None)
                cancel_sent = True
            if not self._link.poll(_TICK_S):
                if time.monotonic() - last_message_s > self._silent_s:
                    return f"made no sound for {self._silent_s:g} s"
                continue
            kind, content = self._link.recv()
            last_message_s = time.monotonic()
            if not request.is_cancelled:
                request.put(DataError(content) if kind == "error" else content)
            if kind in ("end", "error"):
                return None
        return None

    def _restart(self, problem: str) -> None:
        event("voice_failed", "warning", problem=problem)
        self.failed(f"the voice {self.name} {problem}; it begins again")
        self._open()

    def _open(self) -> None:
        """Start a process; wait until its voice can speak, or cannot."""
        self._kill()
        self._started_s = time.monotonic()
        refusal = None
        try:
            self._start()
            kind, content = self._first_message()
            if kind == "ready":
                self.takes = content
            else:
                refusal = content
        except (OSError, EOFError):
            refusal = "its process ended at once"
        except Exception as error:
            refusal = internal_error(error)
        if refusal is not None:
            self._kill()
            event("voice_not_opened", "warning", problem=refusal)
        with self._news:
            self._refusal = refusal
            self._is_ready = refusal is None
            self._was_ready |= self._is_ready
            self._news.notify_all()

    def _start(self) -> None:
        # A fresh process, since forking one that holds threads may fail. Not one of
        # multiprocessing's, which would import this process's main module.
        self._link, theirs = multiprocessing.Pipe()
        program = f"import sys; sys.path[:] = {sys.path!r}"
        program += f"; from {__name__} import voice_process; voice_process({theirs.fileno()})"
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-c", program],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        # At the first start nothing is decoded yet: the server waits for the voice.
        self._link.send((self._voice, self._language, self._was_ready))

    def _first_message(self) -> tuple[str, Any]:
        """Return what the process says of itself: that it is ready, or why it refuses."""
        while time.monotonic() - self._started_s < START_S and not self._closing:
            if self._link.poll(_TICK_S):
                kind, content = self._link.recv()
                return kind, content
        return "refused", "the voice was not opened in time"

    def _kill(self) -> None:
        """Kill the process, and what it has started."""
        process, self._process = self._process, None
        self._is_ready = False
        if process is None:
            return
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
        self._link.close()


def _ignore(problem: str) -> None:
    pass


# In the process


def voice_process(descriptor: int) -> None:
    """Speak what comes through a connection, until it or the standard input is closed."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    link = Connection(descriptor)
    name, language, is_again = link.recv()
    if is_again:
        os.nice(NICENESS)
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, available_cores() // 2)))
    with suppress(BrokenPipeError, EOFError, ConnectionResetError):
        try:
            from cortext_live.voices import open_voice

            voice = open_voice(name, language)
            # What a voice loads at its first word is there before anybody waits for it.
            for _ in voice.aloud("hello")[1]:
                pass
        except CortextError as error:
            link.send(("refused", str(error)))
            return
        except Exception as error:
            link.send(("refused", first_line(error)))
            return
        if not is_again:
            os.nice(NICENESS)
        link.send(("ready", voice.takes))
        while True:
            asked = link.recv()
            if asked is not None:  # else a cancel that came too late
                _speak(link, voice, *asked)


def _end_with_parent() -> None:
    sys.stdin.buffer.read()  # the parent holds its other end, and writes nothing
    os._exit(1)


def _speak(link: Connection, voice: Any, text: str, rate: float, pitch: float) -> None:
    try:
        if not voice.can_speak(text):
            link.send(("error", f"the voice {voice.name} can speak nothing of this text"))
            return
        samples_per_s, pieces = voice.aloud(text, rate, pitch)
        link.send(("rate", samples_per_s))
        with closing(pieces):
            for piece in pieces:
                link.send(("sound", piece))
                if link.poll():
                    link.recv()  # nobody listens any more
                    break
        link.send(("end", None))
    except CortextError as error:
        link.send(("error", str(error)))
    except (BrokenPipeError, EOFError, ConnectionResetError):
        raise
    except Exception as error:  # a voice's library raises errors of any class
        link.send(("error", first_line(error)))
