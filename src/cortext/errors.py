"""Errors that a user can cause, in one line: the fault, its place, and what to do."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

MOST_CHARACTERS = 1000
"""Longest line that is shown of an error or of a text from outside."""
HIDDEN = re.compile(
    "[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ud800-\udfff\ufeff]"
)
"""Characters that a terminal obeys, that a page hides, or that turn the direction of writing, and
halves of surrogate pairs, which UTF-8 cannot encode.
"""


def plain(text: object, most: int = MOST_CHARACTERS) -> str:
    """Return a text from outside as one line that a terminal, a page or a table only shows.

    Blanks of every kind, ends of lines too, become spaces. What a terminal would obey or hide
    (escapes, marks of writing direction, lone surrogates) is written as a backslash escape. A text
    of more than `most` characters loses its middle: what a line of ours begins and ends with says
    where the fault is and what to do.
    """
    line = str(text)
    if len(line) > 4 * most:  # escaping a text of 100 MB to show a line of it takes a minute
        line = f"{line[: 2 * most]} ... {line[-2 * most :]}"
    if not line.isprintable():
        line = "".join(c if c.isprintable() else " " if c.isspace() else _escape(c) for c in line)
    return _cut(line, most)


def shown(text: object, most: int = MOST_CHARACTERS) -> str:
    """Return a text from outside as `plain` does, with one space in place of several."""
    return _cut(" ".join(plain(text, 4 * most).split()), most)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode()


def _cut(line: str, most: int) -> str:
    if len(line) <= most:
        return line
    n_end = most // 3
    return f"{line[: most - n_end - 5]} ... {line[-n_end:]}"


class CortextError(Exception):
    """Base of every error that a user can cause; `str(error)` is one line that is safe to print.

    Args:
        what: The fault, with the value found and the value expected.
        where: The file, trial or field it concerns.
        fix: What the user can do about it.
    """

    def __init__(
        self, what: str, *, where: str | Path | None = None, fix: str | None = None
    ) -> None:
        self.what = what
        self.where = where
        self.fix = fix
        line = f"{where}: {what}" if where is not None else what
        super().__init__(shown(f"{line}; {fix}" if fix else line))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the error for other processes."""
        return _again, (type(self), self.what, self.where, self.fix)


def _again(
    kind: type[CortextError], what: str, where: str | Path | None, fix: str | None
) -> CortextError:
    return kind(what, where=where, fix=fix)


class ConfigError(CortextError):
    """A configuration key or value that cannot be right."""


class DataError(CortextError):
    """A recording, trial or packed dataset that cannot be used."""


class TextError(CortextError):
    """Text, a pronunciation or a lexicon that cannot be used."""


class LanguageModelError(CortextError):
    """A language-model directory or file that cannot be used."""


class DecodingError(CortextError):
    """Log-probabilities or decoder options that cannot be decoded with."""


class RunError(CortextError):
    """A run directory or checkpoint that cannot be used."""


class LiveError(CortextError):
    """Something outside that live decoding needs: a server, a port, a stream, a library, a disk."""


class CloudError(CortextError):
    """A fault of a run on a rented machine: its accelerator, bucket, packages or engine."""


class MissingLibrary(CortextError):
    """A library that no installed extra brings."""


class WrongType(CortextError, TypeError):
    """An argument of another type than the one that is needed."""


class Interrupted(RunError):
    """Work that the user stopped, and that can be continued."""


_LONGEST_NAME = 200


def nearest(name: object, known: Iterable[str]) -> str:
    """Return `did you mean 'gru'?` for the nearest known name, else the list of known names.

    A name that is no text, which a caller may have given, has none near it.
    """
    names = sorted(known)
    if not isinstance(name, str):
        return f"known: {', '.join(names)}"
    short = [known_name for known_name in names if len(known_name) <= _LONGEST_NAME]
    # Comparing takes the product of the lengths.
    close = (
        difflib.get_close_matches(name, short, n=1, cutoff=0.5)
        if len(name) <= _LONGEST_NAME
        else []
    )
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names)}"


def wrong_type(name: str, value: object, needed: str) -> WrongType:
    """Return the error for an argument of another type.

    Args:
        name: Name of the argument.
        value: Its value, of which the line has only the type.
        needed: The types that are needed, such as `a path`.
    """
    found = "None" if value is None else f"of type {type(value).__name__}"
    return WrongType(f"{name} is {found}; {needed} is needed")


def first_line(error: BaseException) -> str:
    """Return the first line of an error of any library without its full stop, or else its kind.

    A line that ends with a colon has the next one, too.
    """
    lines = [line.strip() for line in str(error).split("\n") if line.strip()]
    said = " ".join(lines[: 2 if lines and lines[0].endswith(":") else 1])
    return (said or type(error).__name__)[:240].rstrip(".")
