"""Building: its options, spelling, KenLM's own estimator, and what is left behind when it fails."""

import json
import os
import random
import re
import resource
import shutil
import signal
import stat
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
from attack_process import check_all
from ngram_oracle import read_arpa
from refusals import refused

from cortext import _native
from cortext.decoding.ngram import LanguageModel
from cortext.decoding.ngram.vocabulary import LETTERS, LN10, read_vocabulary, spelt
from cortext.errors import LanguageModelError
from cortext_lm.ngram.database import Database, in_background

SENTENCES = ["The cat sat.", "the dog sat", "a cat - ran away!"]
MADE_BY_LMPLZ = Path(__file__).parents[2] / "core" / "decoding" / "ngram" / "lmplz"
TEXT = MADE_BY_LMPLZ / "text.txt"


IMPOSSIBLE = [
    (dict(order=0), "order is 0; it must be at least 1 and at most 6"),
    (dict(order=7), "order is 7; it must be at least 1 and at most 6"),
    (dict(kind="word"), "kind is 'word'; did you mean 'words'?"),
    (dict(binary="quantized"), "binary is 'quantized'; did you mean 'quantised'?"),
    (dict(engine="srilm"), "engine is 'srilm'"),
    (dict(prune=(0, 2, 1)), "prune is 0 2 1; numbers that do not fall"),
    (dict(prune=(0, 0, 0, 0)), "at most one for each of the 3 orders"),
    (dict(prune=()), "prune is empty"),
    (dict(prune=(1,)), "words are not pruned; use --vocab"),
    (dict(prune=(0, 9)), "no n-gram of order 2 is left; prune less"),
    (dict(kind="spelling", vocabulary=5), "vocabulary of a spelling model is the letters"),
    (dict(memory_bytes=1), "0.125 to 16384 are possible"),
    (dict(memory_bytes=1 << 60), "0.125 to 16384 are possible"),
    (dict(vocabulary=0), "a vocabulary of 0 words cannot be"),
]


def test_options_that_cannot_be_are_named_and_nothing_is_written(tmp_path):
    def check(row):
        options, message = row
        with refused(re.escape(message), most_mb=400, error=LanguageModelError):
            LanguageModel.build(SENTENCES, out=tmp_path / "lm", **({"order": 3} | options))
        assert not list(tmp_path.iterdir())

    check_all(IMPOSSIBLE, check)


@pytest.mark.parametrize(
    ("binary", "kind"),
    [("quantised", "quant_array_trie"), ("trie", "array_trie"), ("probing", "probing")],
)
def test_a_binary_of_each_type_holds_the_model(tmp_path, binary, kind):
    model = LanguageModel.build(SENTENCES, 3, tmp_path / "lm", binary=binary, keep_arpa=True)
    assert model.info()["binary"] == model.ngram.kind == kind
    assert model.info()["file"] == "lm.bin"  # preferred to lm.arpa
    as_text = _native.NGram.open(str(tmp_path / "lm" / "lm.arpa"))
    for sentence in ("the cat sat", "a dog ran away", "the zebra"):
        assert model.sentence(sentence) == pytest.approx(as_text.sentence(sentence), abs=1e-4)


def test_what_a_text_held_is_recorded(tmp_path):
    (tmp_path / "raw.txt").write_text(
        "<p>Dr. Smith paid $5 in 1999. He left!</p>\n\n12345 {x = y;}\nhttp://a.b/c\n"
    )
    info = LanguageModel.build(
        [tmp_path / "raw.txt"], 2, tmp_path / "lm", vocabulary=6, prune=(0, 0)
    ).info()
    recorded = json.loads((tmp_path / "lm" / "lm.json").read_text())
    assert recorded["text"]["sentences"] == recorded["sources"][0]["sentences"] >= 2
    assert recorded["text"]["rejected"]
    assert recorded["vocabulary"] == 6
    outside = recorded["out_of_vocabulary"]
    # Each word occurs once.
    assert outside["distinct"] == outside["words"] == recorded["sources"][0]["words"] - 6
    assert recorded["format_version"] == 2
    # Bigrams with words outside the vocabulary.
    assert recorded["left_out"][0] == 0 < recorded["left_out"][1]
    assert {"counts", "bytes_per_ngram", "binary", "discounts", "prune", "estimator"} <= set(
        recorded
    )
    assert info["bytes_per_ngram"] == pytest.approx(
        (tmp_path / "lm" / "lm.bin").stat().st_size / sum(recorded["counts"]), abs=0.01
    )


def test_stages_report_their_progress_up_to_the_total(tmp_path):
    reports = {}

    def stage(name):
        reports[name] = []
        return lambda done, total: reports[name].append((done, total))

    LanguageModel.build([TEXT], 3, tmp_path / "lm", stage=stage)
    assert list(reports) == ["reading", "pronouncing", "estimating", "writing lm.bin"]
    assert reports["estimating"] == [(step, 9) for step in range(1, 10)]
    assert reports["reading"][-1][1] == TEXT.stat().st_size


def test_a_vocabulary_is_a_number_or_a_file(tmp_path):
    assert read_vocabulary("125000") == 125000
    (tmp_path / "words.txt").write_text("the\ncat sat\n")
    assert read_vocabulary(str(tmp_path / "words.txt")) == ["the", "cat", "sat"]
    with pytest.raises(
        LanguageModelError, match=r"none.txt: cannot read the vocabulary: No such file"
    ):
        read_vocabulary(str(tmp_path / "none.txt"))
    # As editors on Windows save it.
    (tmp_path / "words.txt").write_bytes(b"\xef\xbb\xbfthe\r\ncat\r\n")
    assert read_vocabulary(str(tmp_path / "words.txt")) == ["the", "cat"]
    (tmp_path / "words.txt").write_text("the\nCat\n")
    with pytest.raises(
        LanguageModelError, match=r"words.txt: 'Cat' in the vocabulary is not a normalised word"
    ):
        read_vocabulary(str(tmp_path / "words.txt"))


def test_a_spelling_model_is_of_letters_and_ends_with_the_word(tmp_path):
    model = LanguageModel.build(
        ["O'Neil ate pies", "a well-known pie"], 3, tmp_path / "lm", kind="spelling"
    )
    assert set(model.lexicon) == set(LETTERS) == set(model.ngram.words()) - {"<s>", "</s>", "<unk>"}
    assert model.lexicon.pronunciations("a") == (("EY",),)
    assert model.lexicon.pronunciations("w")[0] == tuple("D AH B AH L Y UW".split())
    assert model.lexicon.pronunciations("apostrophe")[0][0] == "AH"
    # pie and pies: after "p i e" comes </s> or s, each once
    ngram, state = model.ngram, model.ngram.begin()
    for letter in "pie":
        state = ngram.score(state, letter)[1]
    assert ngram.end(state) == pytest.approx(ngram.score(state, "s")[0], abs=0.7)
    assert ngram.end(state) > ngram.score(state, "q")[0] + 1
    scored = model.evaluate(["a pie"])
    assert (scored["sentences"], scored["words"], scored["unknown_words"]) == (2, 4, 0)


def test_words_are_spelt_by_the_names_of_their_letters():
    assert list(spelt("o'neil well-off - a")) == [
        "o apostrophe n e i l", "w e l l hyphen o f f", "a",
    ]  # fmt: skip


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """A language-model directory to copy."""
    directory = tmp_path_factory.mktemp("built") / "lm"
    LanguageModel.build(SENTENCES, 2, directory)
    return directory


@pytest.mark.parametrize("broken", ["reading", "estimating", "writing lm.bin", "pronouncing"])
def test_an_interrupted_build_leaves_the_old_model_and_nothing_else(built, tmp_path, broken):
    shutil.copytree(built, tmp_path / "lm")
    before = {path.name: path.read_bytes() for path in (tmp_path / "lm").iterdir()}

    def stage(name):
        if name == broken:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        LanguageModel.build([TEXT], 3, tmp_path / "lm", stage=stage)
    assert {path.name: path.read_bytes() for path in (tmp_path / "lm").iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["lm"]


@pytest.fixture
def ctrl_c():
    """Ctrl-C as at a terminal: what runs in the background of a script ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: os.kill(os.getpid(), signal.SIGINT)
    signal.signal(signal.SIGINT, before)


def test_ctrl_c_is_heard_while_the_database_works(tmp_path, ctrl_c):
    # The query needs time but no memory, which could run out before Ctrl-C comes.
    with Database(tmp_path, 256 << 20) as database:
        threading.Timer(0.3, ctrl_c).start()
        started = time.monotonic()
        with pytest.raises(KeyboardInterrupt):
            database.run("SELECT sum(a.range * b.range) FROM range(1000000) a, range(1000000) b")
        assert time.monotonic() - started < 10


def test_work_that_misses_the_first_requests_to_stop_is_asked_again(ctrl_c):
    ended, asked = threading.Event(), []

    def interrupt():
        asked.append(time.monotonic())
        if len(asked) == 3:
            ended.set()

    threading.Timer(0.1, ctrl_c).start()
    with pytest.raises(KeyboardInterrupt):
        in_background(lambda: ended.wait(30), interrupt)
    assert len(asked) == 3


@contextmanager
def files_of_at_most(size):
    """A disk that is full: larger files cannot be written."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


# Of the word numbers, their n-grams, the text, lm.bin.
@pytest.mark.parametrize("size", [0, 2_000, 20_000, 60_000])
def test_a_full_disk_is_one_line_and_leaves_the_old_model(built, tmp_path, size):
    shutil.copytree(built, tmp_path / "lm")
    before = (tmp_path / "lm" / "lm.json").read_text()
    with files_of_at_most(size), pytest.raises(LanguageModelError) as caught:
        LanguageModel.build([TEXT], 4, tmp_path / "lm")
    assert "\n" not in str(caught.value)
    assert "too large" in str(caught.value) or "write" in str(caught.value)
    assert (tmp_path / "lm" / "lm.json").read_text() == before
    assert [path.name for path in tmp_path.iterdir()] == ["lm"]


def test_counting_within_little_memory_gives_the_same(tmp_path):
    rng = random.Random(0)
    words = ["".join(rng.choices("abcdefgh", k=3)) for _ in range(400)]
    text = tmp_path / "text.txt"
    text.write_text("\n".join(" ".join(rng.choices(words, k=12)) for _ in range(4_000)))
    for name, memory in (("small", 128 << 20), ("large", 2 << 30)):
        LanguageModel.build([text], 3, tmp_path / name, memory_bytes=memory)
    assert (tmp_path / "small" / "lm.bin").read_bytes() == (
        tmp_path / "large" / "lm.bin"
    ).read_bytes()


def test_lmplz_is_asked_for_where_it_is_missing(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LanguageModelError, match="lmplz is not on PATH; build KenLM"):
        LanguageModel.build(SENTENCES, 3, tmp_path / "lm", engine="lmplz")


@pytest.mark.parametrize(
    ("script", "message"),
    [
        (
            "#!/bin/sh\necho 'reading' >&2; echo 'out of luck' >&2; exit 3\n",
            "lmplz ended with status 3: out of luck",
        ),
        ("#!/bin/sh\nexit 0\n", "lmplz ended with status 0: no message"),
        ("#!/no/such/interpreter\n", "cannot run lmplz"),
    ],
)
def test_a_failing_lmplz_is_one_line(tmp_path, monkeypatch, script, message):
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "lmplz"
    program.write_text(script)
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    with pytest.raises(LanguageModelError, match=message) as caught:
        LanguageModel.build(SENTENCES, 3, tmp_path / "lm", engine="lmplz")
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["bin"]


def test_lmplz_gets_the_text_the_vocabulary_and_the_thresholds(tmp_path, monkeypatch):
    """A stand-in that copies what it gets and hands out a model that lmplz made."""
    made = tmp_path / "made.arpa"
    made.write_text((tmp_path / "none").name)
    LanguageModel.build(
        SENTENCES, 3, tmp_path / "ours", keep_arpa=True, vocabulary=["cat", "the", "sat"]
    )
    shutil.copy(tmp_path / "ours" / "lm.arpa", made)
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "lmplz"
    program.write_text(f"""#!/bin/sh
echo "$@" > {tmp_path}/arguments
while [ $# -gt 0 ]; do
    case $1 in
        --text) cp "$2" {tmp_path}/text;;
        --limit_vocab_file) cp "$2" {tmp_path}/words;;
        --arpa) cp {made} "$2";;
    esac
    shift
done
""")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    model = LanguageModel.build(
        SENTENCES,
        3,
        tmp_path / "lm",
        engine="lmplz",
        vocabulary=["cat", "the", "sat", "zebra"],
        prune=(0, 0),
    )
    assert [line.split() for line in (tmp_path / "text").read_text().splitlines()] == [
        ["the", "cat", "sat"], ["the", "dog", "sat"], ["a", "cat", "ran", "away"],
    ]  # fmt: skip
    assert (tmp_path / "words").read_text().split() == ["cat", "sat", "the"]
    assert "--order 3 --prune 0 0 0 " in (tmp_path / "arguments").read_text()
    assert sorted(model.lexicon) == ["cat", "sat", "the"]
    assert model.info()["estimator"] == "lmplz"


@pytest.mark.skipif(shutil.which("lmplz") is None, reason="lmplz is not installed")
@pytest.mark.parametrize("options", [{}, dict(prune=(0, 0, 1)), dict(prune=(0, 1), vocabulary=100)])
def test_lmplz_itself_gives_what_the_built_in_estimator_gives(tmp_path, options):
    models = []
    for engine in ("cortext", "lmplz"):
        LanguageModel.build([TEXT], 4, tmp_path / engine, engine=engine, keep_arpa=True, **options)
        arpa = read_arpa(tmp_path / engine / "lm.arpa")
        names = {number: word for word, number in arpa.words.items()}
        models.append(
            {" ".join(names[word] for word in ngram): p / LN10 for ngram, p in arpa.probs.items()}
        )
    assert models[0] == pytest.approx(models[1], abs=1e-6)
