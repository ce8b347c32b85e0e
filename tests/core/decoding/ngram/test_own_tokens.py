"""Language models of other tokens and languages than the published ones."""

import json
import math

import pytest
from attack_process import check_all
from refusals import refused

from cortext.decoding.ngram import LanguageModel
from cortext.errors import LanguageModelError
from cortext.text import CHARACTERS, EN, HANDWRITING, LM, RELEASE, Inventory, Lexicon, get_language

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
    (directory / "lm.arpa").write_text(ARPA.replace("sí", "a").replace("no", "b"))
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


# Building

TEXT = ["¿Sí o no?", "No sé. No, no."]
SOUNDS = Inventory("sounds", ("_", "#", "e", "i", "n", "o", "s"), "_", "#")


@pytest.fixture
def lexicon(tmp_path):
    path = tmp_path / "words.txt"
    path.write_text("sí s i #\nno\t0.5 n o\nno n o n\n")
    return path


def test_a_lexicon_of_ones_own_makes_a_model_that_opens_as_it_was_built(tmp_path, lexicon):
    own = dict(inventory=SOUNDS, language="es", lexicon=lexicon)
    model = LanguageModel.build(TEXT, 2, tmp_path / "lm", **own)
    assert (model.inventory, model.language.name, model.unit) == (SOUNDS, "es", "word")
    assert (tmp_path / "lm" / "tokens.txt").read_text().split() == list(SOUNDS.symbols)
    assert (tmp_path / "lm" / "lexicon.txt").read_text() == (
        "no\t0.5 n o #\nno n o n #\nsí s i #\n"
    )
    facts = json.loads((tmp_path / "lm" / "lm.json").read_text())
    assert facts["inventory"] == {"name": "sounds", "roles": {"blank": "_", "silence": "#"}}
    assert facts["language"] == "es"
    assert "unit" not in facts
    # o once, sé once; no four times, sí once
    assert facts["pronunciations"] == {"from_lexicon": 2, "without": 2}
    assert facts["without_pronunciation"] == ["o", "sé"]
    assert facts["out_of_vocabulary"] == {"words": 2, "distinct": 2, "rate": pytest.approx(2 / 7)}
    assert sorted(model.ngram.words()) == ["</s>", "<s>", "<unk>", "no", "sí"]
    scored = model.evaluate(["¡NO! Sí, no sé"])
    assert (scored["sentences"], scored["words"], scored["unknown_words"]) == (2, 4, 1)
    assert model.sentence("¡No!") == model.ngram.sentence("no")
    assert LanguageModel.open(tmp_path / "lm").info() == model.info()


def test_sources_of_pronunciations_come_one_after_another(tmp_path, lexicon):
    command = r"""sh -c 'while read w; do case $w in o) printf "o\to\no\te #\n";; esac; done'"""
    options = dict(inventory=SOUNDS, language="es", lexicon=lexicon, g2p=command, spell=True)
    model = LanguageModel.build([*TEXT, "son"], 2, tmp_path / "lm", **options)
    assert model.lexicon.pronunciations("o") == (("o",), ("e",))
    assert model.lexicon.pronunciations("son") == (("s", "o", "n"),)
    assert model.info()["pronunciations"] == {
        "from_lexicon": 2, "from_g2p": 1, "spelt": 1, "without": 1,
    }  # fmt: skip
    assert model.info()["without_pronunciation"] == ["sé"]


def test_tokens_are_those_of_the_lexicon_where_none_are_named(tmp_path, lexicon):
    lexicon.write_text("sí s i\nno n o\n")
    model = LanguageModel.build(TEXT, 2, tmp_path / "lm", language="es", lexicon=lexicon)
    assert model.tokens == ("BLANK", "i", "n", "o", "s", "SIL")
    own = Lexicon({"no": ["no"], "sí": ["si"]}, SOUNDS)
    assert LanguageModel.build(TEXT, 2, tmp_path / "lm", language="es", lexicon=own).tokens == (
        SOUNDS.symbols
    )


def test_english_words_of_ones_own_join_those_of_the_dictionary(tmp_path):
    (tmp_path / "names.txt").write_text("cortext K AO R T EH K S T\n")
    texts = ["the cortext"]
    model = LanguageModel.build(texts, 2, tmp_path / "lm", lexicon=tmp_path / "names.txt")
    assert model.inventory == LM
    assert model.lexicon.pronunciations("cortext") == (tuple("K AO R T EH K S T".split()),)
    assert model.lexicon.pronunciations("the")[0] == ("DH", "AH")
    assert model.info()["pronunciations"] == {"from_lexicon": 1, "added": 1, "without": 0}


def test_characters_spell_words_and_marks_may_follow_them(tmp_path):
    model = LanguageModel.build(["Don't well-do"], 1, tmp_path / "c", inventory="characters")
    assert model.lexicon.pronunciations("don't") == (("d", "o", "n", "'", "t"),)
    assert model.lexicon.pronunciations("well-do") == (tuple("welldo"),)
    assert (tmp_path / "c" / "lexicon.txt").read_text().splitlines()[0] == "don't d o n ' t"
    model = LanguageModel.build(["to"], 1, tmp_path / "h", inventory=HANDWRITING)
    assert set(model.lexicon.pronunciations("to")) == {
        tuple("to"), tuple("to~"), tuple("to,"), tuple("to?"),
    }  # fmt: skip


def test_words_of_a_vocabulary_and_of_a_limit_are_those_of_the_language(tmp_path, lexicon):
    own = dict(inventory=SOUNDS, language="es", lexicon=lexicon)
    model = LanguageModel.build(TEXT, 2, tmp_path / "lm", vocabulary=["sí", "no", "sé"], **own)
    assert sorted(model.lexicon) == ["no", "sí"]
    assert model.info()["without_pronunciation"] == ["sé"]
    assert sorted(model.only(["sí"]).lexicon) == ["sí"]
    assert model.only(["no"]).lexicon.weights("no") == (0.5, 1.0)
    assert model.only(["no"]).language.name == "es"
    with pytest.raises(LanguageModelError, match="word 'sé': no pronunciations are known"):
        model.only(["sé"])
    with pytest.raises(LanguageModelError, match="'Sí' in the vocabulary is not a normalised word"):
        LanguageModel.build(TEXT, 2, tmp_path / "lm", vocabulary=["Sí"], **own)


def test_a_spelling_model_of_another_language_has_its_letters(tmp_path):
    (tmp_path / "letters.txt").write_text("s e s e\nn e n e\no o\nhyphen i\n")
    options = dict(inventory=SOUNDS, language="es", lexicon=tmp_path / "letters.txt")
    model = LanguageModel.build(["no os son"], 2, tmp_path / "lm", kind="spelling", **options)
    assert sorted(model.ngram.words()) == ["</s>", "<s>", "<unk>", "n", "o", "s"]
    assert model.lexicon.pronunciations("n") == (("e", "n", "e"),)
    assert model.evaluate(["no son"])["words"] == 5


TOY = Inventory("toy", ("BLANK", "a", "b", "|"), boundary="|", silence=None, unit="character")


def test_an_open_vocabulary_is_the_n_gram_of_its_tokens(tmp_path):
    """The same sentences in words, one for each token, have the same probabilities."""
    texts = ["Ab a.", "Ba!", "a"]
    model = LanguageModel.build(texts, 3, tmp_path / "lm", inventory=TOY, unit="character")
    words = ["the cat dog the", "cat the", "the"]
    same = LanguageModel.build(words, 3, tmp_path / "words")
    assert model.unit == "character"
    assert model.ngram.counts == same.ngram.counts
    for text, in_words in (("ab a", words[0]), ("aab", "the the cat"), ("b b", "cat dog cat")):
        assert model.sentence(text) == pytest.approx(same.sentence(in_words), abs=1e-6)
    assert (tmp_path / "lm" / "lexicon.txt").read_text() == "a a\nb b\n| |\n"
    scored = model.evaluate(["Ab a.", "cab ab"])
    assert (scored["sentences"], scored["words"]) == (1, 4)
    assert scored["without_pronunciation"] == 1
    with pytest.raises(LanguageModelError, match="the vocabulary is open"):
        model.only(["ab"])
    with pytest.raises(LanguageModelError, match="'cab' cannot be spelt"):
        model.sentence("cab")


def test_probabilities_of_characters_follow_the_formula(tmp_path):
    # a twice; b, | and the end once: of order 1 the discounts are 0.5 and 1 (three counts of one,
    # no count of three), and 31 outcomes share what is discounted: 29 tokens, </s> and <unk>.
    text = ["ab a"]
    model = LanguageModel.build(text, 1, tmp_path / "lm", inventory="characters", unit="character")
    shared = (3 * 0.5 + 1) / 5 / (len(CHARACTERS) - 1 + 2)
    assert model.ngram.unigram("a") == pytest.approx(math.log((2 - 1) / 5 + shared), abs=1e-2)
    assert model.ngram.unigram("b") == pytest.approx(math.log((1 - 0.5) / 5 + shared), abs=1e-2)
    assert model.ngram.unigram("'") == pytest.approx(math.log(shared), abs=1e-2)


def test_sentences_that_characters_cannot_spell_are_left_out_and_named(tmp_path):
    options = dict(inventory="characters", language="es", unit="character", order=2)
    model = LanguageModel.build(["no sé. sí", "la niña", "no"], out=tmp_path / "lm", **options)
    assert model.info()["sources"][0]["sentences"] == 1
    assert model.info()["without_pronunciation"] == ["niña", "sé", "sí"]


def test_characters_without_a_boundary_and_with_a_silence(tmp_path):
    chinese = Inventory("hanzi", ("-", *"你好我很"), "-", None, unit="character")
    options = dict(inventory=chinese, language="zh", order=2)
    model = LanguageModel.build(["你好。我很好！"], out=tmp_path / "lm", **options)
    assert model.lexicon.pronunciations("好") == (("好",),)
    model = LanguageModel.build(["你好。我很好！"], out=tmp_path / "o", unit="character", **options)
    assert model.evaluate(["你好"])["words"] == 2
    silent = Inventory("silent", ("BLANK", "a", "b", "SIL"), unit="character")
    options = dict(inventory=silent, unit="character", order=2)
    model = LanguageModel.build(["ab a"], out=tmp_path / "s", **options)
    assert model.info()["sources"][0]["words"] == 4  # a b SIL a: no silence after the last word


UNFIT_OPTIONS = [
    (dict(language="es"), "no pronunciations are known for inventory 'lm' in language 'es'"),
    (dict(inventory="arpabe"), "'arpabe' is no inventory and no file; did you mean 'arpabet'"),
    (dict(language="sp"), "'sp' is no language and no file"),
    (dict(inventory=SOUNDS), "no pronunciations are known for inventory 'sounds'"),
    (dict(unit="letter"), "unit is 'letter'"),
    (dict(unit="character"), "needs tokens that are characters; those of inventory 'lm'"),
    (dict(unit="character", inventory=TOY, spell=True), "has no words to pronounce"),
    (dict(unit="character", inventory=TOY, vocabulary=5), "vocabulary of characters is open"),
    (dict(unit="character", inventory=TOY, kind="spelling"), "of characters is open"),
    (dict(kind="spelling", inventory=TOY), "use --unit character"),
    (dict(kind="spelling", spell=True), "names of English letters are known"),
    (dict(inventory=Inventory("two", ("BLANK",))), "it has 1 tokens; 2 to 250"),
    (
        dict(inventory=Inventory("x", ("BLANK", "<s>"), silence=None, unit="character"), unit="character"),
        "has the token '<s>', which an n-gram uses itself",
    ),
    (dict(lexicon="absent.txt"), "absent.txt: cannot read the lexicon"),
    (dict(inventory=SOUNDS, lexicon=Lexicon()), "in the inventory the blank is _, not BLANK"),
    (dict(g2p="false", inventory=SOUNDS), "g2p 'false': ended with status 1"),
    (dict(g2p="true", inventory=SOUNDS), "none of the 4 words of the texts has a pronunci"),
]  # fmt: skip


def test_options_that_do_not_go_together_are_one_line(tmp_path):
    def check(row):
        options, says = row
        options = {"order": 2, "out": tmp_path} | options
        with refused(says, error=LanguageModelError):
            LanguageModel.build(["no sin seis", "oh no no"], **options)
        assert not list(tmp_path.iterdir())

    check_all(UNFIT_OPTIONS, check)


UNFIT_LEXICONS = [
    ("Sí s i\nno n o\n", "es", r"words.txt: 'Sí' of the lexicon .* write 'Sí' as 'sí'"),
    ("sí s i\nno n o\n", "en", r"'sí' of the lexicon are no normalised words of .* 'en'"),
    ("мир s i\n", "es", r"'мир' of the lexicon .* 'es'; remove it, or choose its language"),
    ("sí s ii\n", "es", r"words.txt, line 1: unknown phoneme 'ii'"),
    ("sí s # i\n", "es", r"line 1: unknown phoneme '#'"),
    ("sí\n", "es", r"line 1: empty pronunciation"),
    ("sí\t-1 s i\n", "es", r"line 1: weight -1.0 of 'sí' is not a positive number"),
    ("", "es", r"words.txt: no pronunciations"),
    ("casa n o s\n", "es", r"words.txt: none of the 4 words of the texts has a pronunciation"),
]  # fmt: skip


def test_a_lexicon_that_does_not_fit_is_one_line(tmp_path, lexicon):
    def check(row):
        lines, language, says = row
        lexicon.write_text(lines)
        text = TEXT if language == "es" else ["no no"]
        options = dict(inventory=SOUNDS, language=language, lexicon=lexicon, order=2)
        with refused(says, error=LanguageModelError):
            LanguageModel.build(text, out=tmp_path / "lm", **options)
        assert not (tmp_path / "lm").exists()

    check_all(UNFIT_LEXICONS, check)


def test_text_of_other_letters_than_the_tokens_is_named_as_such(tmp_path):
    options = dict(inventory="characters", language="es", unit="character", order=2)
    with pytest.raises(LanguageModelError, match="the tokens spell none of the 2 sentences"):
        LanguageModel.build(["Un niño.", "Mañana sí."], out=tmp_path / "lm", **options)


def test_text_that_the_language_would_damage_is_an_error_or_left_out(tmp_path, lexicon):
    text, held = tmp_path / "text.txt", tmp_path / "held.txt"
    text.write_text("No sé.\nNo 3. Sí.\nJá não.\n")
    held.write_text("Sí.\nÇa\n")
    options = dict(inventory=SOUNDS, language="es", lexicon=lexicon, order=2, out=tmp_path / "lm")
    lost = "text.txt, line 2, line 3: language 'es' would lose 3 ã; .*--skip-damaged"
    with pytest.raises(LanguageModelError, match=lost):
        LanguageModel.build([text], **options)
    model = LanguageModel.build([text], skip_damaged=True, **options)
    assert model.info()["text"]["rejected"] == {"damaged": 2}
    assert model.info()["text"]["sentences"] == 2
    with pytest.raises(LanguageModelError, match=r"held.txt, line 2: language 'es' would lose ç"):
        model.evaluate(held)
    text.write_text("No sé. Sí. No. Sí no.\n")
    mixed = options | dict(interpolate=True, held_out=held)
    with pytest.raises(LanguageModelError, match=r"held.txt, line 2: language 'es' would lose ç"):
        LanguageModel.build([text, *TEXT], **mixed)
    held.write_text("Sí no.\n")
    weights = LanguageModel.build([text, *TEXT], **mixed).info()["interpolation"]["weights"]
    assert sum(weights) == pytest.approx(1)


def test_a_lexicon_of_another_tool_is_named_in_the_facts_and_odd_words_are_left_out(tmp_path):
    words = "".join(f"{'b' * (i // 26 + 1)}{chr(97 + i % 26)}  B AH0\n" for i in range(1100))
    path = tmp_path / "cmu.dict"
    path.write_text(f"{words.upper()}NO(1)  N OW1\nA.M.  EY1 EH1 M\n<UNK>  SPN\n")
    model = LanguageModel.build(["no no no"], 1, tmp_path / "lm", lexicon=path)
    assert model.lexicon.pronunciations("no") == (("N", "OW"),)
    assert model.info()["lexicon"] == (
        "a CMU dictionary; 1 special entry left out (<UNK>); stress left out;"
        " words written in small letters; 1 word (a.m.) that 'en' cannot write left out"
    )


def test_tokens_and_words_with_a_mark_of_byte_order_are_read(tmp_path):
    model = LanguageModel.build(["no no"], 1, tmp_path / "lm")
    for name in ("tokens.txt", "lexicon.txt"):
        path = tmp_path / "lm" / name
        path.write_text(path.read_text(), encoding="utf-8-sig")
    again = LanguageModel.open(tmp_path / "lm")
    assert again.tokens == model.tokens
    assert list(again.lexicon) == ["no"]
