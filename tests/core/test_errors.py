"""Errors in one line, and texts from outside as they are shown and written."""

from __future__ import annotations

import json
import time

import pytest

from cortext.errors import DataError, first_line, nearest, plain, shown
from cortext.tables import csv_cell, csv_table, json_text


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


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("größer, 大, ½", "größer, 大, ½"),
        ("\x1b[2J\x07\x7f\x9b", "\\x1b[2J\\x07\\x7f\\x9b"),
        ("a\u202eb\u200fc\u2066d\ufeff", "a\\u202eb\\u200fc\\u2066d\\ufeff"),
        ("\ud800", "\\ud800"),
        ("  a  b", "  a  b"),
        ("a\r\nb\tc\x0bd\x85e\u2028f\u00a0g", "a  b c d e f g"),
        (7, "7"),
        ("a" * 1001, "a" * 662 + " ... " + "a" * 333),
    ],
)
def test_a_text_from_outside_is_one_line_that_nothing_obeys(text: object, line: str):
    assert plain(text) == line
    assert shown(text) == " ".join(line.split())


def test_a_text_of_100_mb_is_shown_at_once():
    word = "\x1b" * 100_000_000
    start = time.perf_counter()
    for text in (
        plain(word),
        shown(word),
        str(DataError(word)),
        str(DataError("a", where=word, fix=word)),
    ):
        assert len(text) == 1000
        assert text.isprintable()
    assert nearest(word, ["gru"]) == "known: gru"
    assert time.perf_counter() - start < 10


@pytest.mark.parametrize(
    ("value", "cell"),
    [
        ("=1+1", "'=1+1"),
        ("+1", "'+1"),
        ("-1", "'-1"),
        ("@SUM(1)", "'@SUM(1)"),
        ("\t=1", "' =1"),
        ("\r=1", "' =1"),
        ("＝1", "'＝1"),
        ("i see you", "i see you"),
        ("'cause", "'cause"),
        ("well-known", "well-known"),
        ("a\x1b[2J", "a\\x1b[2J"),
        ("a" * 40_000, plain("a" * 40_000, 32_767)),
        ("", ""),
        (-1.5, -1.5),
        (-1, -1),
        (None, None),
    ],
)
def test_a_cell_calculates_nothing(value: object, cell: object):
    assert csv_cell(value) == cell


def test_a_table_is_csv():
    rows = [(0, "i see, you"), (-1, None), ("=x", 'a "b"')]
    assert csv_table(("id", "@text"), rows) == b'id,\'@text\n0,"i see, you"\n-1,\n\'=x,"a ""b"""\n'


def test_json_for_people_hides_nothing():
    value = {"größer": "\x1b\x7f\x9b\u202e\ud800", "a": [1.5, None]}
    text = json_text(value, indent=1)
    assert "größer" in text
    assert text.replace("\n", "").isprintable()
    assert json.loads(text) == value
