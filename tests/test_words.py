"""Words that docstrings, comments, names and pages must not use, and the field's terms instead.

The glossary (`docs/start/glossary.md`) says which word means which thing. Strings are not read:
messages, options and formats have tests of their own.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
CODE = ("src", "tools", "benchmarks")


class Banned(NamedTuple):
    """A pattern, the term to use in its place, and the kinds of passage it is banned in."""

    pattern: str
    instead: str
    kinds: tuple[str, ...] = ("text", "name", "page")


EVERYWHERE = ("text", "name", "page", "test")
BANNED = {
    "go on": Banned(r"(?i)\b(go|goes|going|gone|went)\s+on\b", "continue", EVERYWHERE),
    "heard": Banned(r"(?i)\bheard\b", "decoded, recorded, received"),
    "told": Banned(r"(?i)\btold\b", "given, reported; for `told apart`: distinguished", EVERYWHERE),
    "said": Banned(r"(?i)\bsaid\b", "spoken, reported, stated"),
    "speaker": Banned(
        r"(?i)\bspeakers?\b", "the model in use, participant, loudspeaker", EVERYWHERE
    ),
    "lesson": Banned(r"(?i)\blessons?\b", "update, training sentence", EVERYWHERE),
    "scribe": Banned(r"(?i)\bscribes?\b", "decoder, log", EVERYWHERE),
    "verb": Banned(r"(?i)\bverbs?\b", "command"),
    "led": Banned(r"(?i)\bled\b", "rank zero first", EVERYWHERE),
    "look": Banned(r"(?i)\blooks? of a (language )?model\b", "query"),
    "session": Banned(
        r"(?i)\b(decoder|decoding|search|live|log)\s+sessions?\b|\bsession\s+logs?\b",
        "decoder stream, utterance, connection, usage log",
        EVERYWHERE,
    ),
    "nothing but": Banned(r"(?i)\bnothing\s+but\b", "only"),
    "such as it is": Banned(r"(?i)\bsuch\s+as\s+(it|they)\b", "as it is"),
    "by heart": Banned(r"(?i)\bby\s+heart\b", "memorise"),
    "what is": Banned(r"(?i)\bwhat\s+(is|are|was|were)\b", "the thing's name", ("text",)),
    "a question": Banned(
        r"\A(What|How|Which|Who|Where|Why)\b", "begin with a verb or the thing's name", ("text",)
    ),
}


MEANT = {
    "src/cortext_live/recalibration/evaluation.py": ("heard",),  # a key of `online.json`
    "src/cortext_live/usage/kept_features.py": ("heard",),  # a folder of the usage log
    "src/cortext_live/usage/writer.py": ("heard",),
    "benchmarks/gpu_check.py": ("said",),  # a key of its results
    "docs/inside/fifty-sentences.md": ("said", "told"),  # the sentences themselves
    "src/cortext_data/simulate/grammar.py": ("verb",),  # of English
}


class Passage(NamedTuple):
    """A docstring or comment (`text`), a `name`, a line of a `page`, or any of a `test`."""

    kind: str
    file: str
    line: int
    text: str


def of_code(path: Path) -> Iterator[Passage]:
    """Yield the docstrings, comments and names of a module, from its source."""
    file = path.relative_to(ROOT).as_posix()
    source = path.read_text()
    yield Passage("name", file, 1, spaced(path.stem))
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ClassDef() | ast.FunctionDef() | ast.AsyncFunctionDef():
                yield Passage("name", file, node.lineno, spaced(node.name))
            case ast.Expr(value=ast.Constant(value=str(text))):  # of a field, too
                yield Passage("text", file, node.lineno, text)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield Passage("text", file, token.start[0], token.string)


def prose(page: str) -> Iterator[tuple[int, str]]:
    """Yield the numbers and the texts of a page's lines, without its code."""
    fenced = False
    for line, text in enumerate(page.splitlines(), 1):
        if text.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield line, re.sub(r"`[^`]*`", "", text)


def spaced(name: str) -> str:
    """Return the words of a name: `test_itGoesOn` as `test it goes on`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name.replace("_", " ")).lower()


def found_in(passage: Passage) -> set[str]:
    """Return the entries of `BANNED` that a passage breaks."""
    return {
        word
        for word, banned in BANNED.items()
        if passage.kind in banned.kinds and re.search(banned.pattern, passage.text)
    }


@cache
def passages() -> tuple[Passage, ...]:
    """Return all passages of packages, tools, benchmarks and pages, and of tests but the live ones."""
    found: list[Passage] = []
    for folder in CODE:
        for path in sorted((ROOT / folder).rglob("*.py")):
            found += of_code(path)
    for path in sorted((ROOT / "tests").rglob("*.py")):
        if path != Path(__file__) and "live" not in path.relative_to(ROOT).parts:
            found += [passage._replace(kind="test") for passage in of_code(path)]
    for path in sorted((ROOT / "docs").rglob("*.md")):
        file = path.relative_to(ROOT).as_posix()
        found += [Passage("page", file, line, text) for line, text in prose(path.read_text())]
    return tuple(found)


def test_no_passage_has_a_banned_word():
    wrong = [
        f"{passage.file}:{passage.line}: '{word}' in a {passage.kind}; use: {BANNED[word].instead}"
        for passage in passages()
        for word in sorted(found_in(passage) - set(MEANT.get(passage.file, ())))
    ]
    assert not wrong, "\n".join(wrong)


def test_every_exemption_is_still_needed():
    found: dict[str, set[str]] = {}
    for passage in passages():
        found.setdefault(passage.file, set()).update(found_in(passage))
    idle = {file: set(words) - found.get(file, set()) for file, words in MEANT.items()}
    assert not {file: words for file, words in idle.items() if words}


@pytest.mark.parametrize(
    ("passage", "word"),
    [
        (Passage("text", "a.py", 1, "The run goes on."), "go on"),
        (Passage("name", "a.py", 1, spaced("_goesOn")), "go on"),
        (Passage("page", "a.md", 1, "An error is told."), "told"),
        (Passage("text", "a.py", 1, "Return what\nis left."), "what is"),
        (Passage("text", "a.py", 1, "How long it takes."), "a question"),
        (Passage("text", "a.py", 1, "Nothing but its name."), "nothing but"),
    ],
)
def test_a_banned_word_is_found(passage, word):
    assert found_in(passage) == {word}


def test_code_of_pages_may_have_any_word():
    page = "Call `go on`.\n```\nwhat was said\n```\nIt is told."
    assert list(prose(page)) == [(1, "Call ."), (5, "It is told.")]


def test_a_banned_word_is_no_part_of_another():
    assert not found_in(Passage("text", "a.py", 1, "Called once; it follows adverbs. Somewhat is."))
