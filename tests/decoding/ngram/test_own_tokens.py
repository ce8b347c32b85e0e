"""Language models of other tokens and languages than the published ones."""

import json

import pytest

from cortext.decoding.ngram import LanguageModel
from cortext.errors import LanguageModelError
from cortext.text import CHARACTERS, EN, LM, RELEASE, Inventory, get_language

ARPA = """\\data\\
ngram 1=5

\\1-grams:
-1.0\t<unk>
-99\t<s>
-0.7\t</s>
-0.4\tsí
-0.6\tno

\\end\\
"""
VOWELS = Inventory("vowels", ("_", "#", "i", "o", "n", "s"), "_", "#", groups=(("all", ("i",)),))
FACTS = {
    "inventory": {
        "name": "vowels",
        "roles": {"blank": "_", "silence": "#"},
        "groups": {"all": ["i"]},
    },
    "language": "es",
}


@pytest.fixture
def directory(tmp_path):
    """A language model of one's own, written by hand."""
    (tmp_path / "lm.arpa").write_text(ARPA)
    (tmp_path / "lexicon.txt").write_text("sí s i #\nno n o #\n")
    (tmp_path / "tokens.txt").write_text("_\n#\ni\no\nn\ns\n")
    (tmp_path / "lm.json").write_text(json.dumps(FACTS))
    return tmp_path


def test_tokens_and_their_roles_are_read_from_two_files(directory):
    model = LanguageModel.open(directory)
    assert model.inventory == VOWELS
    assert model.inventory.groups == VOWELS.groups
    assert model.language is get_language("es")
    assert model.unit == "word"
    assert model.tokens == VOWELS.symbols
    assert model.lexicon.pronunciations("sí") == (("s", "i"),)


def test_what_differs_from_a_model_is_one_line(directory):
    model = LanguageModel.open(directory)
    model.require(VOWELS, get_language("es"))
    model.require(VOWELS)
    permuted = Inventory("mine", ("_", "#", "o", "i", "n", "s"), "_", "#")
    with pytest.raises(LanguageModelError, match="in the language model token 2 is i, not o"):
        model.require(permuted)
    with pytest.raises(LanguageModelError, match="the language 'es' is not 'en'; build one"):
        model.require(VOWELS, EN)
    with pytest.raises(LanguageModelError, match="the language model and the checkpoint differ"):
        model.require(RELEASE, theirs="the checkpoint")


def test_published_directories_are_those_of_the_release(directory):
    (directory / "lm.json").unlink()
    (directory / "tokens.txt").write_text("\n".join(LM.symbols))
    (directory / "lexicon.txt").write_text("no N OW SIL\n")
    model = LanguageModel.open(directory)
    assert (model.inventory, model.language, model.unit) == (LM, EN, "word")
    model.require(RELEASE, EN)
    (directory / "tokens.txt").write_text("\n".join(sorted(LM.symbols)))
    with pytest.raises(LanguageModelError, match="token 0 is AA, not BLANK"):
        LanguageModel.open(directory).require(RELEASE)


def test_an_open_vocabulary_has_a_line_for_each_token(directory):
    (directory / "tokens.txt").write_text("\n".join(CHARACTERS.symbols))
    roles = {"blank": "BLANK", "boundary": "|"}
    facts = {"inventory": {"name": "characters", "roles": roles, "unit": "character"}}
    (directory / "lm.json").write_text(json.dumps(facts | {"unit": "character"}))
    lines = [f"{symbol} {symbol}\n" for symbol in CHARACTERS.symbols[1:]]
    (directory / "lexicon.txt").write_text("".join(lines))
    model = LanguageModel.open(directory)
    assert (model.inventory, model.unit) == (CHARACTERS, "character")
    assert model.lexicon.inventory.separator is None
    assert model.lexicon.pronunciations("|") == (("|",),)
    (directory / "lexicon.txt").write_text("".join(lines[:-1]))
    with pytest.raises(LanguageModelError, match="one line for each token but the blank"):
        LanguageModel.open(directory)


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("tokens.txt", "_ # i o n", r"line 1: unknown phoneme 's'"),
        ("tokens.txt", "_ # i o n s s", "'s' is there twice"),
        ("tokens.txt", "# _ i o n s", "the blank '_' is token 1; make it the first"),
        ("tokens.txt", "x # i o n s", "the blank '_' is none of its symbols"),
        ("tokens.txt", " ".join(map(str, range(300))), "300 tokens; 2 to 250 are possible"),
        ("tokens.txt", "_ # " + "i" * 41 + " o n s", "is no symbol"),
        ("lm.json", {}, "tokens.txt: lacks AA, AE"),
        ("lm.json", {"inventory": "arpabet"}, "lm.json .*inventory is no mapping"),
        ("lm.json", FACTS | {"inventory": {"name": "v", "rolls": {}}}, "unknown key 'rolls'"),
        ("lm.json", FACTS | {"language": "sp"}, "unknown language 'sp'"),
        ("lm.json", FACTS | {"unit": "character"}, "open vocabulary of phonemes is not possible"),
        ("lm.json", FACTS | {"unit": ["word"]}, r"unit is \['word'\]; word or character"),
        ("lexicon.txt", "sí s i\n", r"line 1: the pronunciation of 'sí' does not end with #"),
    ],
)
def test_damage_is_named_in_one_line(directory, name, content, said):
    text = content if isinstance(content, str) else json.dumps(content)
    (directory / name).write_text(text)
    with pytest.raises(LanguageModelError, match=said) as caught:
        LanguageModel.open(directory)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) <= 1000
