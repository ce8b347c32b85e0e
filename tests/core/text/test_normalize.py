import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cortext.text import EN, get_language, normalize


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


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("We\u2019re here; it\u00b4s \u02bctil \u2018no\u2019", "we're here it's 'til no"),
        ("I\u00a0am\tso\nhere", "i am so here"),
        ("yes\u2014no \u2013 a\u2013b--c - d -", "yes no a b c d"),
        ("yes/no well,I it's\u2026true Hey!you x_y", "yes no well i it's true hey you x y"),
        ("well\u2010known co\u00adop zero\u200bwidth", "well-known coop zerowidth"),
        ("\u201cHi,\u201d 'I can't go' (he) [said]", "hi i can't go he said"),
        ("hold 'em, rock 'n' roll, the boys' 'tis", "hold 'em rock 'n' roll the boys' 'tis"),
        ("salt & pepper, R&B + tea", "salt and pepper r and b plus tea"),
        ("\ufb01ne \uff28\uff49 e\ufb03cient", "fine hi efficient"),
        ("U.S. a.m. Ph.D. e.g. end.Next I.He", "us am phd eg end next i he"),
        ("I ca n't, wo n't, do n't; it 's gon na", "i can't won't don't it's gonna"),
        ("half- finished t-t-then O'Neil's", "half finished t-t-then o'neil's"),
    ],
)
def test_a_label_has_the_words_that_a_person_reads(sentence, expected):
    assert EN.words(sentence) == expected.split()
    assert EN.damage(sentence) == ""


def test_a_label_of_plain_text_has_the_words_that_are_scored():
    plain = "Don't go, she said: well-known - and late -- or not? (Yes!) We 'll see; \"no\"."
    scored = "don't go she said well-known and late or not yes we'll see no"
    assert EN.words(plain) == [word for word in normalize(plain).split() if word != "-"]
    assert EN.words(plain) == scored.split()
    assert not EN.scored_otherwise(plain)


def test_a_note_says_how_many_sentences_are_scored_otherwise_than_labelled():
    assert EN.scoring_note(["We're here.", "No?"]) is None
    assert get_language("es").scoring_note(["sí\u2014no"]) is None
    note = EN.scoring_note(["We\u2019re here", "fine", "yes/no"])
    assert note == (
        "2 sentences have marks that labels read and scoring drops: 'yes/no' is labelled 'yes no'"
        " and scored 'yesno'; type ' - and blanks to have both agree"
    )
