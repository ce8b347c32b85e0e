import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cortext.errors import TextError
from cortext.text import (
    ARPABET,
    CHARACTERS,
    EN,
    HANDWRITING,
    SIL,
    Lexicon,
    error_rate,
    lexicon_for,
    normalize,
    pronounce,
    to_phonemes,
    to_tokens,
)
from cortext.text.pronunciation import pronounced, pronouncer
from cortext_data.simulate.sentences import handwritten


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("cats", "K AE T S"),
        ("Cats", "K AE T S"),
        ("speakerphone's", "S P IY K ER F OW N Z"),
        ("jukebox's", "JH UW K B AA K S IH Z"),
        ("quesadilla's", None),
        ("notebook's", "N OW T B UH K S"),
        ("notebooks'", "N OW T B UH K S"),
        ("pilot'd", "P AY L AH T IH D"),
        ("people'll", "P IY P AH L AH L"),
        ("book-cat", "B UH K K AE T"),
        ("cat's-book", "K AE T S B UH K"),
        ("keep'em", "K IY P AH M"),
        ("'cats", "K AE T S"),
        ("btw", "B IY T IY D AH B AH L Y UW"),
    ],
)
def test_words_beyond_the_dictionary_are_built_from_their_parts(word, expected):
    found = pronounce(word)[0]
    assert found if expected is None else " ".join(found) == expected


def test_all_variants_of_the_parts_are_combined_most_usual_first():
    assert pronounce("the-read") == tuple(
        the + read
        for the in (("DH", "AH"), ("DH", "IY"))
        for read in (("R", "EH", "D"), ("R", "IY", "D"))
    )


def test_variants_of_many_parts_are_limited():
    assert len(pronounce("-".join(["the"] * 12))) <= 16


@given(
    st.text(alphabet="abcdefghijklmnopqrstuvwxyz'-", min_size=1, max_size=12).filter(
        lambda w: re.search("[a-z]", w)
    )
)
def test_every_word_with_a_letter_has_a_pronunciation(word):
    found = pronounce(word)
    assert found
    for variant in found:
        assert variant
        assert set(variant) <= set(ARPABET)


@pytest.mark.parametrize("word", ["", "-", "'", "--'", "café", "two words", "b2b", "Ⅳ"])
def test_word_without_letters_or_with_other_characters_is_an_error(word):
    with pytest.raises(TextError, match="no pronunciation for"):
        pronounce(word)


def test_sentence_has_silence_after_every_word():
    assert to_phonemes("Hello, the world!") == "HH AH L OW SIL DH AH SIL W ER L D SIL".split()


def test_pieces_without_letters_are_passed_over():
    assert to_phonemes("no -") == ["N", "OW", "SIL"]


@pytest.mark.parametrize("sentence", ["", "  ", "123!", "-", "' '"])
def test_sentence_without_words_is_an_error(sentence):
    with pytest.raises(TextError, match="no word in the sentence"):
        to_phonemes(sentence)


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [
        ("Hello, there. How are you?", "hello,>there~>how>are>you?"),
        ("Wait!", "wait~"),
        ("don't", "don't"),
        ('"Is it late?", Ann said...', "is>it>late?>ann>said~"),
        ("a well-known b - c", "a>wellknown>b>c"),
        ("so , what ?", "so>what"),  # a mark follows a letter
        ("well,I am", "well,>i>am"),
        ("yes/no U.S.", "yes>no>us~"),
    ],
)
def test_the_marks_of_a_sentence_follow_its_words_where_they_are_tokens(sentence, expected):
    assert "".join(to_tokens(sentence, HANDWRITING)) == expected
    plain = re.sub("[,~?]", "", expected).replace(">", "|")
    assert "".join(to_tokens(sentence, CHARACTERS)) == plain


def test_a_spelt_word_may_be_followed_by_every_mark():
    variants = pronouncer(HANDWRITING)("it's")
    assert ["".join(variant) for variant in variants] == ["it's", "it's~", "it's,", "it's?"]
    assert pronouncer(CHARACTERS)("it's") == (("i", "t", "'", "s"),)


def test_marks_change_no_word_of_the_simulator_s_sentences():
    words = [
        ["".join(word).strip(",~?") for word in pronounced(s.text, HANDWRITING)]
        for s in handwritten()
    ]
    assert words == [[w.replace("-", "") for w in normalize(s.text).split()] for s in handwritten()]


def test_lexicon_for_holds_exactly_the_words_that_sound():
    lexicon = lexicon_for(["read", "zork", "-"])
    assert list(lexicon) == ["read", "zork"]
    assert lexicon.pronunciations("read") == Lexicon.cmu().pronunciations("read")


@pytest.mark.parametrize(
    ("prompt", "typed"),
    [
        ("We\u2019re here", "we're here"),
        ("I\u2019ll see", "i'll see"),
        ("I\u00a0am", "i am"),
        ("I\tam\nhere", "i am here"),
        ("yes/no,I", "yes no i"),
        ("he\u2014she", "he she"),
        ("take 'em", "take 'em"),
    ],
)
def test_marks_of_a_prompt_change_no_phoneme(prompt, typed):
    words = [Lexicon.cmu().pronunciations(word)[0] for word in typed.split()]
    assert to_phonemes(prompt) == [symbol for word in words for symbol in (*word, SIL)]


def test_phonemes_of_real_prompts_agree_with_the_published_labels(real_data):
    lines = (real_data / "phonemes" / "t12_val_even.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    labels = [[SIL if symbol == "|" else symbol for symbol in row["true_phonemes"]] for row in rows]
    ours = [to_phonemes(row["reference"]) for row in rows]
    assert error_rate(labels, ours, "phoneme").rate < 0.005


def test_words_of_real_prompts_are_those_that_are_scored_with_few_exceptions(real_data):
    prompts = (real_data / "text" / "transcripts_train.txt").read_text().splitlines()
    others = [prompt for prompt in prompts if EN.scored_otherwise(prompt)]
    assert len(prompts) > 12_000
    assert len(others) == 7  # four times " 'em", two U+2019, and 'science and evidence'
    for name in ("t12", "t15"):
        lines = (real_data / "phonemes" / f"{name}_val_even.jsonl").read_text().splitlines()
        assert EN.scoring_note(json.loads(line)["reference"] for line in lines) is None
