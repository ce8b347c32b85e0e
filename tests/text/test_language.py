import pytest

from cortext.errors import TextError
from cortext.text import EN, Language, get_language, normalize


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
        ({"name": "en", "letters": "a"}, "built in"),
        ({"name": "x", "letters": "a", "hyphens": "no"}, "language.hyphens"),
    ],
)
def test_what_is_no_language_is_refused(mapping, said):
    with pytest.raises(TextError, match=said):
        Language.from_json(mapping)
