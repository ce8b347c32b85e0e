import time
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cortext.errors import TextError
from cortext.text import EN, Language, get_language, normalize

OTHERS = [
    *map(get_language, ("es", "de", "fr", "nl", "zh")),
    Language("he", "א-ת", hyphens="none"),
    Language("hi", "\u0900-\u0963", "none"),
    Language("th", "\u0e01-\u0e3a\u0e40-\u0e4e", "inside", "inside", "character"),
    Language("odd", "a-zı \u0300-\u036f", "beside", "beside"),
    Language("as written", "a-zA-Z", "none", "beside", lower_case=False),
]
ODD_TEXT = st.text(
    st.sampled_from("abéñßIİıΣ9你הkि\u0301\u0308\u200d\u200c\u00ad'’‐--  .,¿\ud800\ufffd")
    | st.characters(),
    max_size=30,
)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("es", "¿Qué frío! «Hola», pingüino—sí.", "qué frío hola pingüino sí"),
        ("de", "Straße, Äpfel: geht's?", "straße äpfel geht's"),
        ("fr", "L’œuvre qu'il aime, peut-être…", "l'œuvre qu'il aime peut-être"),
        ("nl", "'s Morgens zijn z'n foto's klaar.", "'s morgens zijn z'n foto's klaar"),
        ("zh", "你好，世界。", "你 好 世 界"),
        ("es", "- no - 'sí' bien-hecho -", "no sí bien-hecho"),
        ("es", "fri\u0301o y fr\u00edo", "frío y frío"),
    ],
)
def test_words_of_a_language(name, text, words):
    language = get_language(name)
    assert language.normalize(text) == words
    assert language.normalize(words) == words
    assert not language.damage(text)


def test_english_is_the_benchmarks():
    for text in ("It's well-known -- isn't it?", "say 'no'", "wait - what"):
        assert EN.normalize(text) == normalize(text)


@pytest.mark.parametrize(
    ("name", "text", "lost"),
    [
        ("en", "café olé", "é"),
        ("en", "3 cats", "3"),
        ("es", "coração 7", "çã7"),
        ("zh", "你好 abc", "abc"),
        ("en", "“Don’t” – no!", ""),
    ],
)
def test_letters_that_would_vanish_are_named(name, text, lost):
    language = get_language(name)
    assert language.damage(text) == lost
    if lost:
        with pytest.raises(TextError, match=f"'{name}' would lose {lost[0]}"):
            language.require(text)


def test_a_sign_that_is_spoken_is_refused_in_a_prompt_of_a_language_that_cannot_say_it():
    get_language("en").require("salt & pepper")
    with pytest.raises(TextError, match="'es' would lose & in 'sal & agua'"):
        get_language("es").require("sal & agua")


@pytest.mark.parametrize("name", ["es", "de", "fr", "nl"])
def test_typographic_forms_of_letters_and_marks_are_read_as_typed_ones(name):
    text = "o\u00adk \ufb01n\u00a0\uff2f\uff4b, oui/non \u2014 l\u2019eau e\u0301 \u201cla\u201d"
    assert get_language(name).normalize(text) == "ok fin ok oui non l'eau é la"
    assert get_language(name).damage(text) == ""


def test_marks_of_windows_1252_that_were_read_as_latin_1_are_read_as_typed_ones():
    text = "I\u2019m \u201cfine\u201d\u2014no".encode("cp1252").decode("latin-1")
    assert EN.words(text) == ["i'm", "fine", "no"]
    assert EN.damage(text) == ""
    assert EN.damage("don\x19t") == "\x19"


def test_signs_within_words_may_be_among_the_letters():
    catalan = Language.from_json({"name": "ca", "letters": "a-z àèéíïòóúüç·"})
    assert catalan.normalize("El col·lega · plora.") == "el col·lega plora"
    hebrew = Language.from_json({"name": "he", "letters": "א-ת ״ ׳"})
    assert hebrew.normalize("צה״ל, ״ כן") == "צה״ל כן"


def test_a_language_of_ones_own_from_a_mapping():
    hebrew = Language.from_json({"name": "he", "letters": "א-ת", "hyphens": "none"})
    assert hebrew.normalize("שלום-עולם!") == "שלום עולם"
    assert Language.from_json(hebrew.to_json()) == hebrew
    assert Language.from_json("es").to_json() == "es"


@pytest.mark.parametrize(
    ("mapping", "said"),
    [
        (7, "a name"),
        ("xx", "unknown language 'xx'"),
        ({"name": "x", "letter": "a-z"}, "did you mean 'letters'"),
        ({"name": "x", "letters": "z-a"}, "no letter or range"),
        ({"name": "x", "letters": "a-z !"}, "no letter or range"),
        ({"name": "x", "letters": "A"}, "give small letters"),
        ({"name": "x", "letters": "A-Z"}, "has the capital 'A'; give small letters"),
        ({"name": "en", "letters": "a"}, "built in"),
        ({"name": "x", "letters": "a", "hyphens": "no"}, "language.hyphens"),
    ],
)
def test_what_is_no_language_is_refused(mapping, said):
    with pytest.raises(TextError, match=said):
        Language.from_json(mapping)


@pytest.mark.parametrize("language", OTHERS, ids=lambda language: language.name)
@given(text=ODD_TEXT)
@settings(max_examples=120, deadline=None)
def test_a_normalised_text_has_words_of_the_language_and_stays_as_it_is(language, text):
    found = language.normalize(text)
    assert language.normalize(found) == found
    letters = set(found) - set("'- ")
    assert not language.damage(found)
    assert all(unicodedata.category(letter)[0] in "LM" for letter in letters)
    for form in ("NFC", "NFD"):
        assert language.normalize(unicodedata.normalize(form, text)) == found
    if not language.damage(text) and language.name in ("es", "de", "fr", "nl", "he"):
        seen = [c for c in unicodedata.normalize("NFC", text).lower() if c.isalpha()]
        assert [c for c in found if c.isalpha()] == [c for c in seen if c != "ʼ"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Hij zei 'hallo' en 'ik ben moe,' zei ze.", "hij zei hallo en ik ben moe zei ze"),
        ("’t Is Hans’ boek", "'t is hans' boek"),
        ("‘’t Is mooi’, zei hij", "'t is mooi zei hij"),
        ("'s-Gravenhage en 'Den Haag'", "'s-gravenhage en den haag"),
        ("''hallo'' 'ja!', 'nee.' Hans' boek", "hallo ja nee hans' boek"),
        ("kom 'ns hier, z'n foto's", "kom 'ns hier z'n foto's"),
    ],
)
def test_dutch_quotation_marks_are_no_part_of_words(text, words):
    assert get_language("nl").normalize(text) == words


@pytest.mark.parametrize(
    ("name", "text", "words", "lost"),
    [
        ("es", "a\u00addiós a\u200ddiós a\u200cdiós \u202badiós\u202c", "adiós " * 4, ""),
        ("es", "İstanbul", "i stanbul", "\u0307"),  # i with a dot above that cannot be composed
        ("es", "a\ud800b", "a b", "\ud800"),
        ("es", "caf\ufffd", "caf", "\ufffd"),
        ("es", "½ kilo ²", "kilo", "½²"),
        ("fr", "l´ami", "l'ami", ""),
        ("turkish", "İSTANBUL IŞIK", "istanbul ışık", ""),
    ],
)
def test_characters_that_look_like_others_or_like_nothing(name, text, words, lost):
    turkish = Language("turkish", "a-z çğıöşü")
    language = turkish if name == "turkish" else get_language(name)
    assert language.normalize(text) == words.strip()
    assert language.damage(text) == lost


@pytest.mark.parametrize("name", ["es", "nl", "zh"])
def test_a_line_of_any_length_takes_linear_time(name):
    language = get_language(name)
    lines = ("'" * 200_000, "a'-" * 70_000, "a" + "\u0301\u0323" * 60_000, "-" * 200_000)
    start_s = time.process_time()
    for line in lines:
        language.normalize(line)
        language.damage(line)
    # Quadratic time would take minutes for one of them.
    assert time.process_time() - start_s < 20


def test_damage_names_the_first_lines_and_counts_them():
    places = [f"line {number}" for number in range(1, 6)]
    error = get_language("es").refused({"çã": places}, n_places=1234)
    assert str(error).startswith("line 1, line 2, line 3, line 4, line 5 and 1,229 more: language")


def test_a_word_in_small_letters_keeps_all_else():
    turkish = Language("tr", "a-z çğıöşü")
    cased = Language("cased", "a-zA-Z", lower_case=False)
    assert EN.small("McGill") == "mcgill"
    assert get_language("es").small("A\u0301rbol\u202e") == "\u00e1rbol\u202e"  # refused later
    assert turkish.small("IĞDIR") == "ığdır"
    assert cased.small("McGill") == "McGill"
