"""The voice of the program espeak-ng."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import wave

import numpy as np

from cortext.errors import DataError, MissingLibrary, first_line
from cortext.voices.voice import Voice, resampled, trimmed

PROGRAM, LANGUAGE = "espeak-ng", "en-us"


class EspeakVoice(Voice):
    """American English of espeak-ng at its usual rate.

    Raises MissingLibrary where the program is not installed.
    """

    name = PROGRAM

    def __init__(self) -> None:
        if shutil.which(PROGRAM) is None:
            raise MissingLibrary(
                f"{PROGRAM} is not installed",
                fix=f"apt-get install {PROGRAM}, or use --voice formant",
            )
        output = self._run("--version").decode(errors="replace")
        found = re.search(r"\d+(\.\d+)+\S*", output)
        self.revision = f"{found.group() if found else first_line(ValueError(output))} {LANGUAGE}"

    def can_speak(self, text: str) -> bool:
        """Tell whether the text has a letter or a digit: punctuation alone is not spoken."""
        return any(character.isalnum() for character in text)

    def speak(self, text: str) -> np.ndarray:
        """See `Voice.speak`. The silence at the ends is cut."""
        said = self._run("-v", LANGUAGE, "--stdin", "--stdout", said=text.encode())
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
