"""The voice of the program espeak-ng."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import wave

import numpy as np

from cortext.errors import DataError, MissingLibrary, TextError, first_line
from cortext.text.language import EN, Language
from cortext.voices.voice import Voice, resampled, trimmed

PROGRAM, AMERICAN = "espeak-ng", "en-us"


class EspeakVoice(Voice):
    """A voice of espeak-ng at its usual rate: American English, or another language.

    Args:
        language: Language of the texts; its name is that of an espeak-ng voice, such as `es`.

    Raises:
        MissingLibrary: Where the program is not installed.
        TextError: Where it has no voice for the language.
    """

    name = PROGRAM

    def __init__(self, language: Language = EN) -> None:
        if shutil.which(PROGRAM) is None:
            raise MissingLibrary(
                f"{PROGRAM} is not installed",
                fix=f"apt-get install {PROGRAM}, or use --voice formant",
            )
        output = self._run("--version").decode(errors="replace")
        found = re.search(r"\d+(\.\d+)+\S*", output)
        self._voice = AMERICAN if language.is_benchmark else _voice_of(language)
        self.revision = (
            f"{found.group() if found else first_line(ValueError(output))} {self._voice}"
        )

    def can_speak(self, text: str) -> bool:
        """Tell whether the text has a letter or a digit: punctuation alone is not spoken."""
        return any(character.isalnum() for character in text)

    def speak(self, text: str) -> np.ndarray:
        """See `Voice.speak`. The silence at the ends is cut."""
        said = self._run("-v", self._voice, "--stdin", "--stdout", said=text.encode())
        with wave.open(io.BytesIO(said)) as file:
            rate = file.getframerate()
            samples = np.frombuffer(file.readframes(len(said)), "<i2")
        return resampled(trimmed(samples.astype(np.float32) / 2**15, rate), rate)

    @staticmethod
    def _run(*arguments: str, said: bytes = b"") -> bytes:
        try:
            return subprocess.run(
                [PROGRAM, *arguments], input=said, capture_output=True, check=True
            ).stdout
        except (OSError, subprocess.CalledProcessError) as error:
            message = getattr(error, "stderr", b"") or str(error).encode()
            what = f"failed ({first_line(ValueError(message.decode(errors='replace')))})"
            raise DataError(
                what, where=PROGRAM, fix="install it again, or use another --voice"
            ) from None


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
