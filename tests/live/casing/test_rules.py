"""Capitals and marks by rules. Expected sentences were written by hand."""

import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from random_casing import random_caser

from cortext.text.language import EN, LANGUAGES
from cortext_live.casing import NoCasing, RuleCaser, caser_for
from cortext_live.casing.writing import MARKS, capital, is_spelling, joined, named, upper


@pytest.mark.parametrize(
    "shown",
    [
        "I see you.",
        "I think I'll stay.",
        "How are you today?",
        "What I want is some tea.",
        "What time is it?",
        "What a beautiful day.",
        "When I was young we lived in Paris.",
        "When are you coming?",
        "Do you want some tea?",
        "Do it again.",
        "Don't worry.",
        "Don't you like it?",
        "Have a seat.",
        "Have you seen my glasses?",
        "You're coming, aren't you?",
        "Can I have some water, please?",
        "Yes, I would like that.",
        "My sister lives in New York.",
        "New York's streets are loud on Monday.",
        "I saw it on TV.",
        "TV's boring.",
        "Anna's dog barked at John.",
        "It may rain in April.",
        "'Em.",
    ],
)
def test_rules_show_a_sentence_as_people_write_it(shown):
    words = shown.lower().translate(str.maketrans("", "", ",.?!"))
    assert RuleCaser().show([words]) == [shown]


def test_names_go_before_the_rules_and_hold_for_possessives():
    names = {"avni": "Avni", "mcgill": "McGill", "tv": "tV", "iphone": "iPhone"}
    texts = ["avni's tv is at mcgill", "iphone"]
    assert RuleCaser().show(texts, names) == ["Avni's tV is at McGill.", "iPhone."]


def test_an_empty_text_stays_empty():
    assert RuleCaser().show(["", "yes"]) == ["", "Yes."]


def test_other_languages_are_shown_as_they_are_with_their_names():
    caser = caser_for(LANGUAGES["es"])
    assert isinstance(caser, NoCasing)
    assert caser.show(["el frío", ""]) == ["el frío", ""]
    assert caser.show(["el frío de avni"], {"avni": "Avni"}) == ["el frío de Avni"]
    assert isinstance(caser_for(EN), RuleCaser)


@pytest.mark.parametrize(
    ("word", "first", "all_letters"),
    [
        ("word", "Word", "WORD"),
        ("'em", "'Em", "'EM"),
        ("éa", "Éa", "ÉA"),
        ("ßa", "ßa", "ßA"),  # its capital is two letters
        ("σας", "Σας", "ΣΑς"),  # the last letter's capital leads back to another one
        ("-", "-", "-"),
    ],
)
def test_capitals_lead_back_to_the_word(word, first, all_letters):
    assert (capital(word), upper(word)) == (first, all_letters)


def test_a_word_with_capitals_gets_no_other_ones():
    assert capital("iPhone") == "iPhone"


def test_opening_marks_stand_before_the_sentence_that_they_belong_to():
    shown = [("Hola", "."), ("Qué", ""), ("tal", "?"), ("Bien", "!")]
    assert joined(shown, {"?": "¿", "!": "¡"}) == "Hola. ¿Qué tal? ¡Bien!"


def test_a_spelling_differs_from_its_word_in_capitals_alone():
    assert is_spelling("McGill", "mcgill")
    assert not is_spelling("McGil", "mcgill")
    assert not is_spelling("Mr.", "mr.")
    assert named("mcgill's", {"mcgill": "McGill"}) == "McGill's"
    assert named("gill", {"mcgill": "McGill"}) is None


WORDS = st.lists(
    st.one_of(
        st.sampled_from("i i'm see you new york tv mcgill may don't what is it 's -".split()),
        st.text(st.characters(exclude_categories=("Z", "C", "P")), min_size=1, max_size=8).filter(
            lambda word: word == word.lower() and not set(word) & set("".join(MARKS))
        ),
    ),
    max_size=12,
)
NAMES = st.dictionaries(st.sampled_from(["i", "mcgill", "see"]), st.booleans()).map(
    lambda large: {word: word.upper() if flag else word.title() for word, flag in large.items()}
)


@settings(max_examples=50, deadline=None)
@given(st.lists(WORDS, max_size=4), NAMES, st.integers(0, 3))
def test_no_caser_changes_a_word(sentences, names, seed):
    texts = [" ".join(words) for words in sentences]
    for caser in (
        RuleCaser(),
        NoCasing("es"),
        random_caser(EN, seed),
        random_caser(LANGUAGES["es"], seed),
    ):
        shown = caser.show(texts, names)
        assert len(shown) == len(texts)
        for words, text in zip(sentences, shown, strict=True):
            pieces = text.split()
            assert len(pieces) == len(words)
            for word, piece in zip(words, pieces, strict=True):
                assert piece.strip("¿¡").rstrip("".join(MARKS)).lower() == word


def test_the_guide_prints_what_it_says(capsys):
    guide = (Path(__file__).parents[3] / "docs/guides/casing.md").read_text()
    [code] = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    exec(code, {})
    assert capsys.readouterr().out.strip() == code.splitlines()[-1].removeprefix("# ")
