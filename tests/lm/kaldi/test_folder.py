"""Kaldi folders as language models.

Grammars made by Kaldi's code, and by a writer of our own for random models.
"""

import itertools
import json
import math
import random
import shutil
import struct
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from ngram_oracle import NGram, read_arpa
from openfst_files import openfst

from cortext.errors import LanguageModelError
from cortext_lm.kaldi.folder import import_kaldi, read_words, write_arpa
from cortext_lm.kaldi.grammar import Words, read_ngrams
from cortext_lm.kaldi.openfst import read_fst

KALDI = Path(__file__).parent
LMPLZ = Path(__file__).parents[2] / "core" / "decoding" / "ngram" / "lmplz"
SENTENCES = [
    *(LMPLZ / "tiny.txt").read_text().splitlines(),
    "the dog away cat a ran",
    "ran ran ran",
    "away",
]


@pytest.fixture(scope="module")
def original():
    return NGram(read_arpa(LMPLZ / "tiny.arpa.gz"))


@pytest.mark.parametrize("style", ["new", "old"])
def test_kaldi_grammars_score_as_the_model_they_were_made_of(tmp_path, original, style):
    model = import_kaldi(KALDI / style, tmp_path / "lm")
    for sentence in SENTENCES:
        assert model.sentence(sentence) == pytest.approx(original.sentence(sentence), abs=1e-4)
    # KenLM adds the <unk> that the older scripts leave out.
    assert model.ngram.counts == original.counts
    assert set(model.ngram.words()) == {"<unk>", "<s>", "</s>", *original.vocabulary}


def test_every_ngram_comes_back(tmp_path):
    grammar = KALDI / "new" / "G.fst"
    write_arpa(
        tmp_path / "lm.arpa",
        *read_ngrams(read_fst(grammar), read_words(KALDI / "new" / "words.txt"), grammar),
    )
    expected, found = (
        named(read_arpa(path)) for path in (LMPLZ / "tiny.arpa.gz", tmp_path / "lm.arpa")
    )
    assert expected[0].keys() == found[0].keys()
    for ngram, log_prob in expected[0].items():
        assert ngram == ("<s>",) or found[0][ngram] == pytest.approx(log_prob, abs=1e-5)
    for context, backoff in expected[1].items():
        assert found[1].get(context, 0.0) == pytest.approx(backoff, abs=1e-5)


def named(arpa):
    words = {number: word for word, number in arpa.words.items()}
    return tuple({tuple(words[n] for n in ngram): value for ngram, value in part.items()}
                 for part in (arpa.probs, arpa.backoffs))  # fmt: skip


def test_how_it_was_made_is_recorded(tmp_path):
    import_kaldi(KALDI / "old", tmp_path / "lm")
    facts = json.loads((tmp_path / "lm" / "lm.json").read_text())
    assert facts["imported"] == {
        "folder": str(KALDI / "old"),
        "grammar": "G_no_prune.fst",
        "states": 18,
        "arcs": 40,
    }
    assert facts["pronunciations"] == {"from_folder": 0, "added": 7, "without": 0}
    assert "cat K AE T SIL" in (tmp_path / "lm" / "lexicon.txt").read_text().splitlines()


def test_the_lexicon_of_the_folder_is_used(tmp_path):
    folder = tmp_path / "kaldi"
    shutil.copytree(KALDI / "old", folder)
    (folder / "units.txt").write_text("AA 1\nAE 2\nK 3\nT 4\nD 5\nG 6\n")
    (folder / "lexicon_numbers.txt").write_text("CAT 3 1 4\nCAT(2) 3 2 4\nDOG 5 1 6\n")
    model = import_kaldi(folder, tmp_path / "lm")
    assert model.lexicon.pronunciations("cat") == (("K", "AA", "T"), ("K", "AE", "T"))
    assert model.info()["pronunciations"] == {"from_folder": 2, "added": 5, "without": 0}
    (folder / "lexicon.txt").write_text("<UNK> SPN\nCAT K AE1 T SIL\n")
    model = import_kaldi(folder, tmp_path / "lm")
    assert model.lexicon.pronunciations("cat") == (("K", "AE", "T"),)


def test_the_unpruned_grammar_is_preferred_and_one_can_be_chosen(tmp_path, original):
    folder = tmp_path / "kaldi"
    shutil.copytree(KALDI / "new", folder)
    (folder / "G_no_prune.fst").write_bytes(b"not read when another is asked for")
    assert import_kaldi(folder, tmp_path / "lm", "G.fst").ngram.counts == original.counts
    with pytest.raises(LanguageModelError, match=r"G_no_prune.fst: no OpenFst file"):
        import_kaldi(folder, tmp_path / "lm")


def test_words_are_put_in_lower_case_unless_two_would_be_one(tmp_path):
    (tmp_path / "words.txt").write_text("<eps> 0\nA 1\na 2\nA. 3\n#0 4\n<s> 5\n</s> 6\n")
    words = read_words(tmp_path / "words.txt")
    assert words.names == ["<eps>", "A", "a", "a.", "#0", "<s>", "</s>"]
    assert (words.begin, words.end, words.backoff) == (5, 6, 4)


def graph(model, n_words, order):
    """The acceptor of a model {ngram: (log_prob, backoff)} over words 1..n_words.

    -1 is <s>, -2 is </s>.
    """
    contexts = {(): 0}
    for ngram in model:
        for context in (ngram[:-1],):
            contexts.setdefault(context, len(contexts))
    contexts.setdefault((-1,), len(contexts))

    def longest(history):
        while history not in contexts:
            history = history[1:]
        return history

    states = [[None, []] for _ in contexts]
    for context, state in contexts.items():
        if context:
            backoff = model[context][1] if context in model else 0.0
            states[state][1].append((n_words + 1, 0, -backoff, contexts[longest(context[1:])]))
    for ngram, (log_prob, _) in model.items():
        state = states[contexts[ngram[:-1]]]
        if ngram[-1] == -2:
            state[0] = -log_prob
        elif ngram[-1] > 0:
            state[1].append(
                (
                    ngram[-1],
                    ngram[-1],
                    -log_prob,
                    contexts[longest(ngram[-order + 1 :] if order > 1 else ())],
                )
            )
    return contexts[(-1,)], states


def random_model(seed, n_words, order):
    """Any back-off model.

    Probabilities need not sum to one, and shorter n-grams of a listed one may be missing.
    """
    chance = random.Random(seed)
    model = {(word,): (-chance.uniform(0.1, 6), 0.0) for word in (*range(1, n_words + 1), -2)}
    model[(-1,)] = (-99 * math.log(10), 0.0)
    for length in range(2, order + 1):
        for context in [ngram for ngram in model if len(ngram) == length - 1 and ngram[-1] != -2]:
            for word in (*range(1, n_words + 1), -2):
                if chance.random() < 0.4:
                    model[(*context, word)] = (-chance.uniform(0.1, 6), 0.0)
    extended = {ngram[:-1] for ngram in model}
    return {n: (p, chance.uniform(-2, 1) if n in extended else 0.0) for n, (p, _) in model.items()}


def plain_score(model, order, sentence):
    """Log-probability by the definition of back-off, one word at a time."""
    history, total = (-1,), 0.0
    for word in (*sentence, -2):
        context = history[-(order - 1) :] if order > 1 else ()
        while (*context, word) not in model:
            total += model[context][1] if context in model else 0.0
            context = context[1:]
        total += model[*context, word][0]
        history = (*history, word)
    return total


WORDS = ["<eps>", "a", "b", "c", "#0", "<s>", "</s>"]


@example(3905, 3)  # nothing but `<s> a` is longer than a word
@settings(max_examples=60)
@given(st.integers(0, 10**6), st.integers(1, 4))
def test_random_models_come_back_exactly(tmp_path_factory, seed, order):
    path = tmp_path_factory.mktemp("fst") / "G.fst"
    model = random_model(seed, 3, order)
    path.write_bytes(openfst(*graph(model, 3, order)))
    names, levels = read_ngrams(read_fst(path), Words(WORDS, 5, 6, 4), path)
    code = {"a": 1, "b": 2, "c": 3, "<s>": -1, "</s>": -2}
    found = {}
    for level in levels:
        for ngram, prob, backoff in zip(
            level.words, level.log10_prob, level.log10_backoff, strict=True
        ):
            found[tuple(code[names[number]] for number in ngram)] = (
                prob * math.log(10),
                backoff * math.log(10),
            )
    assert found.keys() == model.keys()
    for length in range(4):
        for sentence in itertools.product((1, 2, 3), repeat=length):
            expected = plain_score(model, order, sentence)
            assert plain_score(found, order, sentence) == pytest.approx(expected, abs=1e-4)


def test_histories_that_only_back_off_are_folded_in(tmp_path):
    """By hand: `a b` leads to a state of `b` that costs 0.5 to leave and does nothing else."""
    states = [
        (1.0, [(1, 1, 2.0, 1), (2, 2, 3.0, 2)]),  # empty: </s> 1, a 2, b 3
        (None, [(2, 2, 0.25, 2), (4, 0, 0.75, 0)]),  # a: b 0.25, back-off 0.75
        (None, [(4, 0, 0.5, 0)]),  # b: back-off 0.5
        (None, [(4, 0, 0.125, 0)]),  # <s>
    ]
    path = tmp_path / "G.fst"
    path.write_bytes(openfst(3, states))
    names, (unigrams, bigrams) = read_ngrams(read_fst(path), Words(WORDS, 5, 6, 4), path)
    cost = {
        names[n[0]]: -p * math.log(10)
        for n, p in zip(unigrams.words, unigrams.log10_prob, strict=True)
    }
    backoff = {
        names[n[0]]: -p * math.log(10)
        for n, p in zip(unigrams.words, unigrams.log10_backoff, strict=True)
    }
    assert {w: round(c, 6) for w, c in cost.items() if w != "<s>"} == {
        "a": 2.0,
        "b": 3.5,
        "</s>": 1.0,
    }
    assert {w: round(c, 6) for w, c in backoff.items()} == {
        "a": 0.75,
        "b": 0.0,
        "</s>": 0.0,
        "<s>": 0.125,
    }
    assert [[names[number] for number in ngram] for ngram in bigrams.words] == [["a", "b"]]
    assert -bigrams.log10_prob[0] * math.log(10) == pytest.approx(0.75)


def test_a_one_gram_grammar_scores_as_it_is(tmp_path):
    folder = tmp_path / "kaldi"
    folder.mkdir()
    (folder / "words.txt").write_text(
        "".join(f"{word} {number}\n" for number, word in enumerate(WORDS))
    )
    # The second is <s>.
    states = [
        (1.0, [(1, 1, 2.0, 0), (2, 2, 3.0, 0)]),
        (None, [(4, 0, 0.0, 0)]),
    ]
    (folder / "G.fst").write_bytes(openfst(1, states))
    model = import_kaldi(folder, tmp_path / "lm")
    assert model.sentence("a b a") == pytest.approx(-(2.0 + 3.0 + 2.0 + 1.0), abs=1e-5)
    assert model.sentence("") == pytest.approx(-1.0, abs=1e-5)


@pytest.mark.parametrize("seed", range(3))
def test_random_models_score_alike_through_the_binary_file(tmp_path, seed):
    folder = tmp_path / "kaldi"
    folder.mkdir()
    (folder / "words.txt").write_text(
        "".join(f"{word} {number}\n" for number, word in enumerate(WORDS))
    )
    model = random_model(seed, 3, 3)
    (folder / "G.fst").write_bytes(openfst(*graph(model, 3, 3)))
    imported = import_kaldi(folder, tmp_path / "lm")
    for sentence in itertools.product((1, 2, 3), repeat=4):
        found = imported.sentence(" ".join(WORDS[word] for word in sentence))
        assert found == pytest.approx(plain_score(model, 3, sentence), abs=1e-4)


def test_symbol_tables_in_the_file_are_passed_over(tmp_path):
    table = struct.pack("<i", 2125658996) + struct.pack("<i", 1) + b"w" + struct.pack("<qq", 3, 2)
    table += (
        struct.pack("<i", 1)
        + b"a"
        + struct.pack("<q", 1)
        + struct.pack("<i", 2)
        + b"bb"
        + struct.pack("<q", 2)
    )
    states = [(0.5, [(1, 1, 2.0, 0)])]
    (tmp_path / "G.fst").write_bytes(openfst(0, states, flags=3, symbols=table + table))
    fst = read_fst(tmp_path / "G.fst")
    assert (fst.final.tolist(), fst.weights.tolist(), fst.targets.tolist()) == ([0.5], [2.0], [0])


@settings(max_examples=100)
@given(st.data())
def test_files_damaged_anywhere_are_one_line_or_a_model(tmp_path_factory, data):
    path = tmp_path_factory.mktemp("fst") / "G.fst"
    content = bytearray((KALDI / "new" / "G.fst").read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(
        content[: data.draw(st.integers(0, len(content)))] if data.draw(st.booleans()) else content
    )
    message = None
    try:
        words, levels = read_ngrams(read_fst(path), read_words(KALDI / "new" / "words.txt"), path)
    except LanguageModelError as error:
        message = str(error)
    assert (
        "\n" not in message
        if message
        else all((level.words < len(words)).all() for level in levels)
    )


def test_the_command_converts(tmp_path, capsys):
    from cortext.cli import run

    assert run(["lm", "import", str(KALDI / "old"), "--out", str(tmp_path / "lm"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["imported"]["grammar"] == "G_no_prune.fst"
    quantised = ["lm", "import", str(KALDI / "new"), "--out", str(tmp_path / "lm")]
    assert run([*quantised, "--binary", "quantised"]) == 0
    assert "vocabulary" in capsys.readouterr().out
