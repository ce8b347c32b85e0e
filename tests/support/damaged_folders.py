"""Tables of damage to a folder that is otherwise sound, and commands that read the folder."""

from __future__ import annotations

import io
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from attack_process import check_all
from commands import Ended
from refusals import harmless

from cortext.cli import run
from cortext.text.inventory import LM

ESCAPE = "\x1b]0;owned\x07\x1b[2J\u202e"
ARPA = """\\data\\
ngram 1=5
ngram 2=3

\\1-grams:
-1.0\t<unk>
-99\t<s>\t-0.5
-0.7\t</s>
-0.4\tgo\t-0.3
-0.6\thome\t0

\\2-grams:
-0.2\t<s> go
-0.3\tgo home
-0.1\thome </s>

\\end\\
"""
LEXICON = "go G OW SIL\nhome HH OW M SIL\n"

Change = Callable[[Path], object]
Content = str | bytes | Callable[[], str | bytes]
"""Of a file; large ones are made by a function when a row needs them, not in every process."""


@dataclass(frozen=True)
class Damage:
    """What is done to a folder, and the line that it is refused with.

    says: pattern of the line; empty where the folder may be used, too
    command: what reads it; FOLDER stands for it
    """

    name: str
    change: Change
    says: str = ""
    command: str = ""

    def __str__(self) -> str:
        return self.name


def check_damages(sound: Path, table: Sequence[Damage], command: str, scratch: Path) -> None:
    """Check the rows of a table, each with a copy of the folder.

    Args:
        sound: A folder that the commands can use.
        table: The rows.
        command: What reads the folder where a row has no command of its own.
        scratch: An empty directory for the copies.
    """

    def check(row: Damage) -> None:
        folder = scratch / "folder"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(sound, folder)
        row.change(folder)
        words = (row.command or command).split()
        ended = run_here(*[word.replace("FOLDER", str(folder)) for word in words])
        made = {path.name for path in folder.glob("out*")}
        assert made <= (set() if row.says else {"out"}), f"it leaves {made}"
        if row.says:
            ended.check_refused(row.says, most_s=20)
        else:
            ended.check_harmless(most_s=20)

    check_all(table, check)


def run_here(*arguments: str) -> Ended:
    """Run a command in this process, which is one for attacks: its output goes to files."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        sys.stdout = io.TextIOWrapper(out, "utf-8", write_through=True)
        sys.stderr = io.TextIOWrapper(err, "utf-8", "backslashreplace", write_through=True)
        start_s = time.monotonic()
        try:
            with harmless(most_mb=800, most_s=20):
                status = run(list(arguments))
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
        seconds = time.monotonic() - start_s
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read().decode(errors="surrogateescape"))
    return Ended(status, *texts, seconds, peak_mb=0)


def write(name: str, content: Content) -> Change:
    """Put other content in a file of the folder."""

    def change(folder: Path) -> None:
        made = content() if callable(content) else content
        data = made.encode(errors="surrogatepass") if isinstance(made, str) else made
        (folder / name).write_bytes(data)

    return change


def remove(name: str) -> Change:
    """Take a file out of the folder."""
    return lambda folder: (folder / name).unlink()


def pipe(name: str) -> Change:
    """Put a pipe that nobody writes to in the place of a file."""

    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)

    return change


def link(name: str, to: str) -> Change:
    """Put a link in the place of a file."""

    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        (folder / name).symlink_to(to)

    return change


def sparse(name: str, size: int) -> Change:
    """Put a file of zeros that takes no room on the disk in the place of another."""

    def change(folder: Path) -> None:
        (folder / name).unlink(missing_ok=True)
        with (folder / name).open("wb") as file:
            file.truncate(size)

    return change


def cut(name: str, share: float) -> Change:
    """Keep the beginning of a file."""

    def change(folder: Path) -> None:
        data = (folder / name).read_bytes()
        (folder / name).write_bytes(data[: int(len(data) * share)])

    return change


def write_model(folder: Path) -> Path:
    """Write a small language model; return the folder."""
    (folder / "lm.arpa").write_text(ARPA)
    (folder / "lexicon.txt").write_text(LEXICON)
    (folder / "tokens.txt").write_text("\n".join(LM.symbols))
    return folder
