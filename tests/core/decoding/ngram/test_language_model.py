"""The language-model directory."""

import gzip
import json
import os
import shutil
import threading

import pytest

from cortext.decoding.engine import NativeEngine
from cortext.decoding.ngram import LanguageModel
from cortext.errors import LanguageModelError
from cortext.text.inventory import LM

SENTENCES = ["The cat sat.", "the dog sat", "a cat - ran away!"]


@pytest.fixture(scope="module")
def built_once(tmp_path_factory):
    return LanguageModel.build(SENTENCES, 3, tmp_path_factory.mktemp("built") / "lm")


@pytest.fixture
def built(built_once, tmp_path):
    """A model in a directory that the test may change."""
    shutil.copytree(built_once.directory, tmp_path / "lm")
    return LanguageModel.open(tmp_path / "lm")


def test_a_directory_holds_the_trio_and_how_it_was_made(built_once):
    directory = built_once.directory
    assert sorted(path.name for path in directory.iterdir()) == [
        "lexicon.txt",
        "lm.bin",
        "lm.json",
        "tokens.txt",
    ]
    assert tuple((directory / "tokens.txt").read_text().split()) == LM.symbols
    assert "cat K AE T SIL" in (directory / "lexicon.txt").read_text().splitlines()
    assert {"a AH SIL", "a EY SIL"} <= set((directory / "lexicon.txt").read_text().splitlines())
    facts = json.loads((directory / "lm.json").read_text())
    assert facts["sources"] == [{"path": None, "sentences": 3, "words": 10}]
    assert facts["counts"] == [10, 11, 10]
    assert facts["order"] == len(facts["discounts"]) == 3
    assert facts["discounts"][0] == {"values": [0.5, 1.0, 1.5], "fallback": True}
    assert list(directory.parent.iterdir()) == [directory]  # nothing temporary is left


def test_the_model_opens_as_it_was_built(built_once):
    opened = LanguageModel.open(built_once.directory)
    assert opened.sentence("The cat ran.") == built_once.sentence("the cat ran")
    assert opened.info() == built_once.info()
    state = opened.begin()
    log_prob, state = opened.score(state, "the")
    assert log_prob + opened.score(state, "dog")[0] < 0
    assert opened.end(state) < 0


def test_files_and_sentences_are_sources(tmp_path):
    (tmp_path / "one.txt").write_text("the cat sat\n\nthe dog\n")
    (tmp_path / "two.txt.gz").write_bytes(gzip.compress(b"a cat ran\n"))
    texts = [tmp_path / "one.txt", "the dog ran", tmp_path / "two.txt.gz", "A dog sat. The 3 ran."]
    model = LanguageModel.build(texts, 2, tmp_path / "lm")
    assert [(source["sentences"], source["words"]) for source in model.info()["sources"]] == [
        (2, 5),
        (1, 3),
        (3, 9),
    ]
    words = ["a", "cat", "dog", "ran", "sat", "the", "three"]
    assert sorted(model.ngram.words()) == ["</s>", "<s>", "<unk>", *words]
    evaluated = model.evaluate(tmp_path / "one.txt")
    assert evaluated["words"] == 5
    assert evaluated["oov_rate"] == 0.0
    assert evaluated == model.evaluate(["the cat sat", "the dog"])


def test_words_outside_a_given_vocabulary_are_left_out(tmp_path):
    model = LanguageModel.build(
        SENTENCES, 2, tmp_path / "lm", vocabulary=["the", "cat", "sat", "zebra"]
    )
    assert sorted(model.ngram.words()) == ["</s>", "<s>", "<unk>", "cat", "sat", "the", "zebra"]
    assert sorted(model.lexicon) == ["cat", "sat", "the", "zebra"]
    assert model.info()["out_of_vocabulary"] == {"words": 4, "distinct": 4, "rate": 0.4}
    # lmplz gives <unk> the uniform share too.
    assert model.ngram.unigram("away") == model.ngram.unigram("zebra")


def test_the_vocabulary_by_frequency_takes_the_alphabet_for_ties(tmp_path):
    # cat, sat, the twice; a, away, ... once.
    model = LanguageModel.build(SENTENCES, 2, tmp_path / "lm", vocabulary=4)
    assert sorted(model.lexicon) == ["a", "cat", "sat", "the"]


def test_a_model_is_replaced_but_nothing_else_is(tmp_path, built):
    again = LanguageModel.build(["the end"], 2, built.directory)
    assert again.ngram.order == 2
    assert [path.name for path in tmp_path.iterdir()] == ["lm"]
    (tmp_path / "mine" / "lm.bin").mkdir(parents=True)
    with pytest.raises(
        LanguageModelError, match=r"holds 'lm.bin', which is no part of a language model"
    ):
        LanguageModel.build(["the end"], 2, tmp_path / "mine")
    (built.directory / "notes.txt").write_text("mine")
    with pytest.raises(
        LanguageModelError, match=r"holds 'notes.txt', which is no part of a language model"
    ):
        LanguageModel.build(["the end"], 2, built.directory)
    (tmp_path / "file").write_text("")
    with pytest.raises(LanguageModelError, match="is a file"):
        LanguageModel.build(["the end"], 2, tmp_path / "file")


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(LanguageModelError, match=r"file/lm: cannot be written: Not a directory"):
        LanguageModel.build(SENTENCES, 2, tmp_path / "file" / "lm")


def test_a_model_is_replaced_where_it_is_however_it_is_named(built, tmp_path):
    (tmp_path / "link").symlink_to(built.directory)
    for out in (tmp_path / "lm" / ".." / "lm", tmp_path / "link"):
        LanguageModel.build(["the end"], 1, out)
        assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "lm"]
        assert (tmp_path / "link").is_symlink()
        assert LanguageModel.open(tmp_path / "lm").ngram.order == 1


def test_the_current_directory_is_not_replaced(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        LanguageModelError, match=r"is the current directory; give a directory in it"
    ):
        LanguageModel.build(["the end"], 1, ".")
    assert not list(tmp_path.iterdir())


def test_a_failed_build_leaves_nothing(tmp_path):
    with pytest.raises(LanguageModelError, match="no sentence is long enough"):
        LanguageModel.build(["hi"], 4, tmp_path / "lm")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "no sentence in the texts"),
        (["...", "- --"], "no sentence in the texts, 2 rejected as no_letters; give prose"),
        ("the cat", "texts is 'the cat'; a list of Paths and sentences is needed"),
    ],
)
def test_texts_without_sentences_are_refused(tmp_path, texts, message):
    with pytest.raises(LanguageModelError, match=message):
        LanguageModel.build(texts, 2, tmp_path / "lm")


def test_a_line_without_end_is_read_in_parts_that_cut_no_sentence(tmp_path, monkeypatch):
    monkeypatch.setattr("cortext.decoding.ngram.corpus._LONGEST", 10_000)  # of 2^20 characters
    (tmp_path / "text.txt").write_text("The cat sat here. A dog ran. " * 1_000)
    facts = LanguageModel.build([tmp_path / "text.txt"], 2, tmp_path / "lm").info()
    assert facts["text"]["sentences"] == 2_000
    assert facts["vocabulary"] == 7
    assert facts["text"]["rejected"] == {}


def test_a_text_may_come_through_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    writer = threading.Thread(
        target=(tmp_path / "pipe").write_text, args=["the cat sat\nthe dog ran\n"]
    )
    writer.start()
    model = LanguageModel.build([tmp_path / "pipe"], 2, tmp_path / "lm")
    writer.join()
    assert set(model.lexicon) == {"the", "cat", "dog", "sat", "ran"}


def test_texts_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(LanguageModelError, match=r"absent.txt: cannot read the text: No such file"):
        LanguageModel.build([tmp_path / "absent.txt"], 2, tmp_path / "lm")
    (tmp_path / "latin.txt").write_bytes("café".encode("latin-1"))
    with pytest.raises(LanguageModelError, match=r"latin.txt: neither UTF-8 nor UTF-16 text"):
        LanguageModel.build([tmp_path / "latin.txt"], 2, tmp_path / "lm")
    (tmp_path / "one.txt").write_text("the cat")
    with pytest.raises(LanguageModelError, match="is the name of a file; give it as a Path"):
        LanguageModel.build([str(tmp_path / "one.txt")], 2, tmp_path / "lm")


@pytest.mark.parametrize(
    ("vocabulary", "message"), [(["The"], "'The' in the vocabulary"), ([], "is empty")]
)
def test_a_vocabulary_that_cannot_be_is_refused(tmp_path, vocabulary, message):
    with pytest.raises(LanguageModelError, match=message):
        LanguageModel.build(["the cat"], 2, tmp_path / "lm", vocabulary=vocabulary)


def test_damage_is_an_error_of_the_language_model(built):
    (built.directory / "lexicon.txt").write_text("cat K AE T SIL\ndog D QQ SIL\n")
    with pytest.raises(LanguageModelError, match=r"lexicon.txt, line 2: unknown phoneme 'QQ'"):
        LanguageModel.open(built.directory)
    (built.directory / "tokens.txt").unlink()
    with pytest.raises(LanguageModelError, match=r"tokens.txt: cannot read the tokens"):
        LanguageModel.open(built.directory)


def test_a_directory_with_arpa_text_and_without_its_facts_is_read(tmp_path):
    model = LanguageModel.build(SENTENCES, 3, tmp_path / "lm", keep_arpa=True, binary="trie")
    (tmp_path / "lm" / "lm.bin").unlink()
    (tmp_path / "lm" / "lm.json").unlink()
    arpa = (tmp_path / "lm" / "lm.arpa").read_bytes()
    for name, content in (("lm.arpa", arpa), ("lm.arpa.gz", gzip.compress(arpa))):
        (tmp_path / "lm" / "lm.arpa").unlink(missing_ok=True)
        (tmp_path / "lm" / name).write_bytes(content)
        opened = LanguageModel.open(tmp_path / "lm")
        assert (opened.info()["file"], opened.info()["binary"], opened.info()["order"]) == (
            name,
            "arpa",
            3,
        )
        assert opened.sentence("the cat ran") == pytest.approx(
            model.sentence("the cat ran"), abs=1e-5
        )


def lm_of_words(directory, lexicon, known):
    """A directory with a lexicon of words and a unigram that knows others."""
    directory.mkdir()
    (directory / "lexicon.txt").write_text("".join(f"{word} AA SIL\n" for word in lexicon))
    (directory / "tokens.txt").write_text("\n".join(LM.symbols))
    grams = "".join(f"-1.0\t{word}\n" for word in ("<unk>", "<s>", "</s>", *known))
    (directory / "lm.arpa").write_text(
        f"\\data\\\nngram 1={len(known) + 3}\n\n\\1-grams:\n{grams}\n\\end\\\n"
    )
    return directory


def test_an_n_gram_of_other_words_than_the_lexicon_is_refused_with_its_case(tmp_path):
    lexicon = ["i", "see", "you"]
    upper = lm_of_words(tmp_path / "upper", lexicon, ["I", "SEE", "YOU", "WATER"])
    with pytest.raises(LanguageModelError) as raised:
        LanguageModel.open(upper)
    assert str(raised.value) == (
        f"{upper / 'lm.arpa'}: the n-gram knows none of the lexicon's 3 words; it has 'i' as 'I',"
        " in upper case; give a lexicon.txt and an n-gram of the same words"
    )
    other = lm_of_words(tmp_path / "other", lexicon, ["ich", "sehe", "dich"])
    with pytest.raises(LanguageModelError, match="none of the lexicon's 3 words; give a lexicon"):
        LanguageModel.open(other)


def test_a_lexicon_that_an_n_gram_knows_in_part_is_noted(tmp_path):
    words = [f"w{n}" for n in range(10)]
    part = LanguageModel.open(lm_of_words(tmp_path / "part", words, [*words[:6], "W6", "W7", "W8"]))
    assert part.n_known == 6
    assert part.info()["lexicon_words_in_ngram_share"] == 0.6
    (note,) = part.notes
    assert "does not know 40% of the lexicon's 10 words: it has 'w6' as 'W6', in upper" in note
    most = LanguageModel.open(lm_of_words(tmp_path / "most", words, words[:9]))
    assert (most.n_known, most.notes) == (9, [])


def test_a_second_n_gram_is_compared_with_the_lexicon_of_the_first(tmp_path, caplog):
    words = [f"w{n}" for n in range(10)]
    first = lm_of_words(tmp_path / "first", words, words)
    part = lm_of_words(tmp_path / "part", ["W1"], [*words[:6], "W1"])
    NativeEngine.from_dir(first, first)
    assert caplog.messages == []
    NativeEngine.from_dir(first, part)
    assert "part: the n-gram does not know 40% of the lexicon's 10 words" in caplog.text
    upper = lm_of_words(tmp_path / "upper", ["W1"], [word.upper() for word in words])
    with pytest.raises(
        LanguageModelError, match=r"upper: .*none of the lexicon's 10 words; it has"
    ):
        NativeEngine.from_dir(first, upper)
