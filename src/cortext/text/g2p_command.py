"""Pronunciations from a program of the user's own (`cortext lm build --g2p COMMAND`).

The program gets words on its standard input, one a line, and writes `word<TAB>P1 P2 ...`: one line
for each pronunciation, in any order. It may leave words out. It is started without a shell, and
only where a user named it.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from cortext.errors import TextError
from cortext.text.inventory import Inventory
from cortext.text.lexicon import MOST_PHONEMES, Lexicon

LEAST_S = 60.0
"""Seconds that every program gets."""
WORD_S = 0.1
"""Seconds that it gets for each word besides."""
MOST_BYTES = 256 << 20
"""Most bytes that it may write."""
_POLL_S = 0.02
_FIX = "a line is 'word<TAB>P1 P2 ...', for a word that it was given"


def run_g2p(command: str, words: Iterable[str], inventory: Inventory) -> Lexicon:
    """Return the pronunciations that a program gives for words.

    Args:
        command: The program and its arguments, as a shell splits them.
        words: Words, normalised.
        inventory: Tokens that pronunciations consist of; a closing silence may follow them.

    Raises:
        TextError: For a program that cannot be started, fails, takes longer than `LEAST_S` and
            `WORD_S` for each word, writes more than `MOST_BYTES`, or writes a line that is none.
    """
    asked = list(dict.fromkeys(words))
    try:
        arguments = shlex.split(command)
    except ValueError as error:
        raise _error(command, f"cannot be split into arguments: {error}") from None
    if not arguments:
        raise _error(command, "is empty", "name a program")
    with tempfile.TemporaryDirectory(prefix="cortext-g2p-") as folder:
        output = _run(command, arguments, "".join(f"{word}\n" for word in asked), Path(folder))
    return _parsed(command, output, frozenset(asked), inventory)


def _run(command: str, arguments: list[str], text: str, folder: Path) -> bytes:
    """Return the output of a program. Files, not pipes: neither side waits for the other."""
    given, written, complaints = (folder / name for name in ("in", "out", "err"))
    given.write_text(text, encoding="utf-8")
    limit_s = LEAST_S + WORD_S * text.count("\n")
    with given.open("rb") as stdin, written.open("wb") as out, complaints.open("wb") as err:
        try:
            # A session of its own: what the program starts ends with it.
            process = subprocess.Popen(
                arguments, stdin=stdin, stdout=out, stderr=err, start_new_session=True
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise _error(command, f"cannot be started: {reason}") from None
        try:
            deadline_s = time.monotonic() + limit_s
            while process.poll() is None:
                if time.monotonic() > deadline_s:
                    raise _error(command, f"has not ended after {limit_s:,.0f} seconds")
                if max(os.fstat(file.fileno()).st_size for file in (out, err)) > MOST_BYTES:
                    raise _error(command, f"writes more than {MOST_BYTES:,} bytes")
                time.sleep(_POLL_S)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
    if process.returncode:
        raise _error(command, f"ended with status {process.returncode}: {_last_line(complaints)}")
    if written.stat().st_size > MOST_BYTES:
        raise _error(command, f"writes more than {MOST_BYTES:,} bytes")
    return written.read_bytes()


def _last_line(path: Path) -> str:
    """Return the last line of a program's complaints, which says most."""
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 2000))
        lines = [
            line for line in file.read().decode("utf-8", "replace").split("\n") if line.strip()
        ]
    return lines[-1].strip()[:240] if lines else "no message"


def _parsed(command: str, output: bytes, asked: frozenset[str], inventory: Inventory) -> Lexicon:
    lexicon = Lexicon(inventory=inventory)
    try:
        lines = output.decode("utf-8").split("\n")
    except UnicodeDecodeError:
        raise _error(command, "writes no UTF-8") from None
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        word, tab, rest = line.partition("\t")
        symbols = rest.split()
        if symbols and symbols[-1] == inventory.silence:
            symbols.pop()
        if not tab or word not in asked or len(symbols) > MOST_PHONEMES:
            raise _error(command, f"writes {line[:60]!r} as line {number:,}", _FIX)
        if not symbols:
            continue  # it knows none
        try:
            lexicon.add(word, symbols)
        except TextError as error:
            raise _error(
                command, f"line {number:,}, {word!r}: {error.what}", error.fix or _FIX
            ) from None
    return lexicon


def _error(
    command: str, problem: str, fix: str = "correct the command, or leave it out"
) -> TextError:
    return TextError(problem, where=f"g2p {command[:80]!r}", fix=fix)
