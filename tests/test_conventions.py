"""Other tokens, another language and another length of a bin are refused wherever two things meet.

The table in the documentation lists the places; its rows are the tests.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from other_conventions import World, make_world
from refusals import harmless

from cortext.cli import run as cortext

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "compared.md"
SAYS = {
    "tokens": r"token 2 is [ab], not [ab]",
    "language": r"language '(es|de)'.* '(es|de)'",
    "bins": r"bins last (10|20) ms, not (10|20) ms",
}
OTHER = {"tokens": "permuted", "language": "language", "bins": "bins"}


def refusal(capsys: pytest.CaptureFixture, arguments: list[str]) -> str:
    """Return the line with which a command ends; what it is doing may stand before it."""
    capsys.readouterr()
    status = cortext(arguments)
    printed = capsys.readouterr()
    assert status == 2, printed
    assert not printed.out
    lines = printed.err.splitlines()
    assert [number for number, line in enumerate(lines) if line.startswith("cortext: ")] == [
        len(lines) - 1
    ], printed.err
    return lines[-1]


def rows() -> list[tuple[str, str, str]]:
    """Return command, part that differs and kind of the difference, for each test."""
    cell = r"\| `(cortext [^`]+)` \| `(\w+)` \| ([\w, ]+) \|"
    return [
        (command, part, kind)
        for command, part, kinds in re.findall(cell, PAGE.read_text())
        for kind in kinds.split(", ")
    ]


@pytest.fixture(scope="module")
def world(tmp_path_factory) -> World:
    return make_world(tmp_path_factory.mktemp("conventions"))


@pytest.mark.parametrize(("command", "part", "kind"), rows())
def test_a_difference_is_refused_in_one_line(world, tmp_path, capsys, command, part, kind):
    words = shlex.split(command)[1:]
    made = {
        word: world.path(word, OTHER[kind] if word == part else "own", tmp_path)
        for word in words
        if word.isupper()
    }
    assert part in made
    with harmless(most_mb=1000, most_s=20):  # a server that was not refused would run on
        line = refusal(capsys, [str(made.get(word, word)) for word in words])
    assert re.search(SAYS[kind], line), line
    assert "; " in line.rpartition(" not ")[2], f"what to do is not said: {line}"
    written = {path.name for path in tmp_path.rglob("*")}
    assert not written & {"csv", "metrics.json", "model.json", "options.yaml", "step.onnx"}


def test_other_places_have_tests_of_their_own():
    named = re.findall(r"`(tests/[\w/]+\.py)::(\w+)` \|$", PAGE.read_text(), re.MULTILINE)
    assert len(named) >= 20
    for file, name in named:
        assert f"def {name}(" in (PAGE.parents[2] / file).read_text(), (file, name)


def test_the_table_is_read():
    assert len(rows()) >= 50
    assert {kind for _, _, kind in rows()} == set(SAYS)
    assert cortext(["--help"]) == 0
