import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cortext.text import normalize


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        (
            "Nuclear rockets can destroy airfields with ease.",
            "nuclear rockets can destroy airfields with ease",
        ),
        ("I'm  fine,\n thanks! ", "i'm fine thanks"),
        ("3.5 km (café)", "km caf"),
        ("one\ttwo", "onetwo"),
        ("a well-known face", "a well-known face"),
        ("wait - what?", "wait what"),
        ("half- finished", "half finished"),
        ("yes--no", "yesno"),
        ("yes -- no", "yes - no"),
        ("yes-- no", "yes- no"),
        ("a---b", "a-b"),
        ("the end -", "the end -"),
        ("say 'no'", "say'no'"),
        ("'tis", "'tis"),
        ("?!", ""),
        ("", ""),
    ],
)
def test_punctuation_is_treated_as_the_benchmark_does(sentence, expected):
    assert normalize(sentence) == expected


@given(st.text(alphabet="abXYZ019 -'.,é\t\n", max_size=30))
def test_result_holds_only_what_is_scored_separated_by_single_blanks(sentence):
    result = normalize(sentence)
    assert re.fullmatch(r"(?:[a-z'-]+(?: [a-z'-]+)*)?", result)


@given(st.lists(st.text(alphabet="abcxyz", min_size=1, max_size=6)))
def test_plain_words_in_any_case_are_only_lowered(words):
    assert normalize("  ".join(words).upper()) == " ".join(words)
