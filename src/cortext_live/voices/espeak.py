"""The voice of the program espeak-ng."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import wave
from collections.abc import Iterator

import numpy as np

from cortext.errors import DataError, MissingLibrary, TextError, first_line
from cortext.text.language import EN, Language
from cortext_live.voices.voice import Voice, resampled, trimmed

PROGRAM, AMERICAN = "espeak-ng", "en-us"
HEADER_BYTES, PIECE_BYTES = 44, 8192
WORDS_PER_MINUTE, PITCH = 175, 50
"""espeak-ng's own speed and pitch; it takes 80 to 450 words a minute, and a pitch of 0 to 99."""


class EspeakVoice(Voice):
    """A voice of espeak-ng at its usual rate: American English, or another language.

    Args:
        language: Language of the texts; its name is that of an espeak-ng voice, such as `es`.

    Raises:
        MissingLibrary: Where the program is not installed.
        TextError: Where it has no voice for the language.
    """

    name = PROGRAM
    takes = ("rate", "pitch")

    def __init__(self, language: Language = EN) -> None:
        if shutil.which(PROGRAM) is None:
            raise MissingLibrary(
                f"{PROGRAM} is not installed",
                fix=f"apt-get install {PROGRAM}, or use --voice formant",
            )
        output = self._run("--version").decode(errors="replace")
        version = re.search(r"\d+(\.\d+)+\S*", output)
        self._voice = AMERICAN if language.is_benchmark else _voice_of(language)
        self.revision = (
            f"{version.group() if version else first_line(ValueError(output))} {self._voice}"
        )

    def can_speak(self, text: str) -> bool:
        """Tell whether the text has a letter or a digit: punctuation alone is not spoken."""
        return any(character.isalnum() for character in text)

    def speak(self, text: str) -> np.ndarray:
        """See `Voice.speak`. The silence at the ends is cut."""
        sound = self._run("-v", self._voice, "--stdin", "--stdout", text=text.encode())
        with wave.open(io.BytesIO(sound)) as file:
            rate = file.getframerate()
            samples = np.frombuffer(file.readframes(len(sound)), "<i2")
        return resampled(trimmed(samples.astype(np.float32) / 2**15, rate), rate)

    def aloud(
        self, text: str, rate: float = 1.0, pitch: float = 1.0
    ) -> tuple[int, Iterator[bytes]]:
        """See `Voice.aloud`. The sound comes while the program makes it."""
        speed = round(min(max(rate * WORDS_PER_MINUTE, 80), 450))
        height = round(min(max(pitch * PITCH, 0), 99))
        changed = ["-s", str(speed), "-p", str(height), "-b", "1"]
        # Not -m: the text is no markup. What stands in [[ ]] would be read as phonemes.
        escaped = re.sub(r"\[(?=\[)", "[ ", text)
        process = subprocess.Popen(
            [PROGRAM, "-v", self._voice, *changed, "--stdin", "--stdout"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            bufsize=0,
        )
        pieces = _pieces(process, escaped.encode())
        header = next(pieces)
        if len(header) < HEADER_BYTES:  # it ends, and the rest tells why
            for _ in pieces:
                pass
            raise DataError("made no sound", where=PROGRAM)
        return int.from_bytes(header[24:28], "little"), pieces

    @staticmethod
    def _run(*arguments: str, text: bytes = b"") -> bytes:
        try:
            return subprocess.run(
                [PROGRAM, *arguments], input=text, capture_output=True, check=True
            ).stdout
        except (OSError, subprocess.CalledProcessError) as error:
            message = getattr(error, "stderr", b"") or str(error).encode()
            problem = f"failed ({first_line(ValueError(message.decode(errors='replace')))})"
            raise DataError(
                problem, where=PROGRAM, fix="install it again, or use another --voice"
            ) from None


def _pieces(process: subprocess.Popen[bytes], text: bytes) -> Iterator[bytes]:
    """Yield the header of the program's WAV file, then its samples as they come."""
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        process.stdin.write(text)  # less than a pipe holds
        process.stdin.close()
        head = b""
        while len(head) < HEADER_BYTES and (more := process.stdout.read(HEADER_BYTES - len(head))):
            head += more
        yield head
        half = b""
        while piece := process.stdout.read(PIECE_BYTES):
            piece = half + piece
            whole = len(piece) & ~1
            half = piece[whole:]
            if whole:
                yield piece[:whole]
        status = process.wait()
    except BrokenPipeError:
        status = process.wait()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    if status:
        fix = "install it again, or use another --voice"
        raise DataError(f"ended with status {status}", where=PROGRAM, fix=fix)


def _voice_of(language: Language) -> str:
    """Return the espeak-ng voice of a language. Raises TextError where it has none."""
    name = language.name
    # Anything else than a language's tag would be the path of a voice file.
    if re.fullmatch(r"[a-z]{2,3}(-[A-Za-z0-9]{2,8})*", name):
        asked = [PROGRAM, "-q", "-v", name, "--stdin"]
        if subprocess.run(asked, input=b"", capture_output=True, check=False).returncode == 0:
            return name
    raise TextError(
        f"{PROGRAM} has no voice for language {name!r}",
        fix=f"give the language the name of one that `{PROGRAM} --voices` lists",
    )
