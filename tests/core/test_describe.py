"""One line and a table about an object, in a terminal and in a notebook."""

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cortext.data import Trial
from cortext.decoding import Hypothesis, NBest, Word
from cortext.describe import Described, some, with_interval
from cortext.text import error_rate

ATTACK = '<script>alert("1")</script>\n\x1b[31m&'


class Thing(Described):
    """A described object with what a stranger's file may hold."""

    def _facts(self) -> dict[str, Any]:
        return {
            "name": ATTACK,
            "missing": None,
            "count": 12345,
            "share": 0.123456,
            "path": Path(),
        }

    def _table(self) -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        return (ATTACK, "n"), [(ATTACK, 1), ("b", None)]


class Reader(HTMLParser):
    """The tags and the texts of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.texts: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)

    def handle_data(self, data: str) -> None:
        self.texts.append(data)


def read(html: str) -> Reader:
    reader = Reader()
    reader.feed(html)
    return reader


def test_the_line_names_the_facts_that_are_known() -> None:
    line = repr(Thing())
    assert line.startswith('Thing(name: <script>alert("1")</script> \\x1b[31m&, count: 12,345, ')
    assert line.endswith("share: 0.1235, path: .)")
    assert line.isprintable()


def test_no_text_of_an_object_becomes_markup_in_a_notebook() -> None:
    page = read(Thing()._repr_html_())
    assert set(page.tags) == {"b", "table", "tr", "th", "td"}
    assert page.texts.count('<script>alert("1")</script> \\x1b[31m&') == 3
    assert "\x1b" not in Thing()._repr_html_()


def test_long_texts_are_cut() -> None:
    trial = Trial(np.zeros((50, 3), np.float32), "day", 1, 2, "word " * 1000)
    assert len(repr(trial)) < 300
    assert len(trial._repr_html_()) < 2000


def test_a_trial_says_where_it_is_from_and_what_was_said() -> None:
    trial = Trial(np.zeros((50, 3), np.float32), "day", 1, 2, "a cat", np.array([8, 3, 40]))
    assert repr(trial) == (
        "Trial(trial: day/block 1/trial 2, bins and features: [50, 3], seconds: 1,"
        " sentence: 'a cat', phonemes: 3)"
    )
    withheld = Trial(np.zeros((50, 3), np.float32), "day", 1, 2)
    assert "sentence: withheld" in repr(withheld)


def test_an_nbest_list_shows_its_sentences_and_an_error_rate_its_interval() -> None:
    words = (Word("a", 0.0, 80.0, 0.5),)
    nbest = NBest([Hypothesis(f"text {n}", -float(n), -1.0, -2.0, words) for n in range(12)])
    assert repr(nbest) == "NBest(hypotheses: 12, best: 'text 0', score: -0)"
    page = read(nbest._repr_html_())
    assert "text 9" in page.texts
    assert "text 10" not in page.texts
    assert "0.5" in read(nbest[0]._repr_html_()).texts
    # one of four words wrong in the only trial: every resample has the same rate
    rate = error_rate(["what time is it"], ["what time was it"])
    assert repr(rate) == "ErrorRate(rate: 25.0 % (25.0 to 25.0), errors: 1, of: 4, trials: 1)"
    assert repr(error_rate([], [])) == "ErrorRate(rate: no references, errors: 0, of: 0, trials: 0)"


@pytest.mark.parametrize(
    ("names", "text"), [([], "0"), (["a"], "1 (a)"), (["a", "b", "c"], "3 (a to c)")]
)
def test_some_names_are_the_first_and_the_last(names: list[str], text: str) -> None:
    assert some(names) == text


def test_a_rate_has_an_interval_where_one_is_known() -> None:
    assert with_interval(0.0954, 0.0871, 0.1) == "9.5 % (8.7 to 10.0)"
    assert with_interval(0.0954, None, None) == "9.5 %"
    assert with_interval(None, None, None) is None
