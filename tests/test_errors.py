"""What errors say in one line."""

from __future__ import annotations

import pytest

from cortext.errors import first_line


@pytest.mark.parametrize(
    ("said", "line"),
    [
        ("boom.", "boom"),
        ("\n\n  boom \nand more of it", "boom"),
        ("", "ValueError"),
        (" \n", "ValueError"),
        ("wrong size:\n    found 3.\nneeded 4", "wrong size: found 3"),
        ("wrong:", "wrong:"),
        ("x" * 500, "x" * 240),
    ],
)
def test_the_first_line_of_any_error(said: str, line: str):
    assert first_line(ValueError(said)) == line
