"""The compiled n-gram model against the pure-Python one, KenLM's own query, and numbers computed
by hand.
"""

import gzip
import math
import random
import threading
from pathlib import Path

import numpy as np
import pytest
from ngram_oracle import NGram as Oracle
from ngram_oracle import read_arpa

from cortext._native import NGram, write_binary
from cortext.decoding.ngram import TextScore
from cortext.errors import LanguageModelError

LN10 = math.log(10.0)
MADE_BY_LMPLZ = Path(__file__).parent.parent / "decoding" / "ngram" / "lmplz"
KINDS = {
    "probing": dict(type="probing"),
    "rest_probing": dict(type="rest_probing"),
    "trie": dict(prob_bits=0, backoff_bits=0, pointer_bits=0),
    "array_trie": dict(prob_bits=0, backoff_bits=0, pointer_bits=22),
    # more bits than the model has n-grams: every value has a bin of its own
    "quant_trie": dict(prob_bits=14, backoff_bits=14, pointer_bits=0),
    "quant_array_trie": dict(prob_bits=14, backoff_bits=14, pointer_bits=22),
}

BY_HAND = """\\data\\
ngram 1=5
ngram 2=3

\\1-grams:
-1.0\t<unk>
-99\t<s>\t-0.5
-0.7\t</s>
-0.4\ta\t-0.3
-0.6\tb\t-0.25

\\2-grams:
-0.2\t<s> a
-0.3\ta b
-0.1\tb </s>

\\end\\
"""


@pytest.fixture(scope="module")
def by_lmplz():
    return Oracle(read_arpa(MADE_BY_LMPLZ / "text.arpa.gz"))


@pytest.fixture(scope="module", params=["arpa", *KINDS])
def of_each_kind(request, tmp_path_factory):
    arpa = MADE_BY_LMPLZ / "text.arpa.gz"
    if request.param == "arpa":
        return NGram.open(arpa)
    path = str(tmp_path_factory.mktemp("lm") / "lm.bin")
    write_binary(arpa, path, **KINDS[request.param])
    ngram = NGram.open(path)
    assert ngram.kind == request.param
    return ngram


def random_text(rng, words):
    return " ".join(rng.choices(words, k=rng.randrange(12)))


def test_sentences_score_as_query_scores_them(of_each_kind):
    for line in (MADE_BY_LMPLZ / "scores.tsv").read_text().splitlines():
        total, unknown, sentence = line.split("\t")
        assert of_each_kind.sentence(sentence) / LN10 == pytest.approx(float(total), abs=1e-4)
        assert sum(word not in of_each_kind for word in sentence.split()) == int(unknown)


@pytest.fixture(scope="module")
def walks(by_lmplz):
    """100 walks of 15 words, each word with its score, and the score of an end before it."""
    rng = random.Random(0)
    words, walks = [*by_lmplz.vocabulary, "unheard", "<unk>", "</s>"], []
    for _ in range(100):
        state, walk = by_lmplz.begin(), []
        for _ in range(15):
            # mostly words that have followed, so that long n-grams are met
            word = rng.choice(words) if rng.random() < 0.3 else likely(by_lmplz, state, rng, words)
            end = by_lmplz.end(state)
            score, state = by_lmplz.score(state, word)
            walk.append((word, score, end))
        walks.append(walk)
    return walks


def test_every_word_after_any_words_scores_as_in_the_oracle(of_each_kind, walks):
    for walk in walks:
        state = of_each_kind.begin()
        for word, expected, expected_end in walk:
            assert of_each_kind.end(state) == pytest.approx(expected_end, abs=1e-4)
            score, state = of_each_kind.score(state, word)
            assert score == pytest.approx(expected, abs=1e-4)


def likely(oracle, state, rng, words):
    return max(rng.sample(words, 40), key=lambda word: oracle.score(state, word)[0])


def test_a_file_is_described(of_each_kind, by_lmplz):
    assert of_each_kind.order == by_lmplz.order == 4
    assert of_each_kind.counts == by_lmplz.counts
    assert of_each_kind.bytes == Path(of_each_kind.path).stat().st_size
    words = of_each_kind.words()
    assert words[0] == "<unk>"
    assert sorted(words) == sorted([*by_lmplz.vocabulary, "<unk>", "<s>", "</s>"])
    assert all(word in of_each_kind for word in by_lmplz.vocabulary)
    assert not any(word in of_each_kind for word in ["<unk>", "<s>", "</s>", "unheard", ""])


def test_unigrams_need_no_context(of_each_kind, by_lmplz):
    for word in ["the", "unheard", "</s>"]:
        assert of_each_kind.unigram(word) == pytest.approx(by_lmplz.unigram(word), abs=1e-4)
        assert of_each_kind.score(of_each_kind.empty(), word)[0] == of_each_kind.unigram(word)


def test_a_text_scores_as_in_the_oracle(of_each_kind, by_lmplz):
    rng = random.Random(1)
    sentences = [random_text(rng, [*by_lmplz.vocabulary, "unheard"]) for _ in range(50)]
    ours, theirs = TextScore(*of_each_kind.score_text(sentences)), by_lmplz.score_text(sentences)
    assert (ours.sentences, ours.words, ours.unknown_words) == (
        50,
        theirs.words,
        theirs.unknown_words,
    )
    assert ours.log_prob == pytest.approx(theirs.log_prob, abs=1e-2)
    assert ours.log_prob_known == pytest.approx(theirs.log_prob_known, abs=1e-2)


def test_scores_are_those_computed_by_hand(tmp_path):
    (tmp_path / "lm.arpa").write_text(BY_HAND)
    ngram = NGram.open(tmp_path / "lm.arpa")
    # <s> a, a b, b </s>
    assert ngram.sentence("a b") == pytest.approx(-0.6 * LN10, abs=1e-6)
    # back-off of <s>, b; back-off of b, a; back-off of a, </s>
    assert ngram.sentence("b a") == pytest.approx(
        (-0.5 - 0.6 - 0.25 - 0.4 - 0.3 - 0.7) * LN10, abs=1e-6
    )
    # back-off of <s>, <unk>; </s>
    assert ngram.sentence("\tc ") == pytest.approx((-0.5 - 1.0 - 0.7) * LN10, abs=1e-6)
    assert ngram.sentence("") == pytest.approx((-0.5 - 0.7) * LN10, abs=1e-6)


def test_states_are_equal_when_what_follows_scores_alike(tmp_path):
    (tmp_path / "lm.arpa").write_text(BY_HAND)
    ngram = NGram.open(tmp_path / "lm.arpa")
    after_a = ngram.score(ngram.begin(), "a")[1]
    after_b_a = ngram.score(ngram.score(ngram.begin(), "b")[1], "a")[1]
    assert after_a == after_b_a
    assert hash(after_a) == hash(after_b_a)
    assert after_a != ngram.begin()
    assert after_a != "a"
    assert len({after_a, after_b_a, ngram.begin(), ngram.empty()}) == 3
    assert (ngram.empty().length, after_a.length) == (0, 1)


def random_arpa(order, rng):
    """An ARPA file with random numbers for the n-grams of random sentences."""
    sentences = [["<s>", *rng.choices("abcdef", k=rng.randrange(3, 12)), "</s>"] for _ in range(40)]
    levels = [
        sorted({tuple(words[i : i + n]) for words in sentences for i in range(len(words) - n + 1)})
        for n in range(1, order + 1)
    ]
    levels[0].append(("<unk>",))
    lines = [
        "\\data\\",
        *(f"ngram {n}={len(level)}" for n, level in enumerate(levels, start=1)),
        "",
    ]
    for n, level in enumerate(levels, start=1):
        lines.append(f"\\{n}-grams:")
        for words in level:
            backoff = f"\t{rng.uniform(-2, 0.2):.4f}" if n < order else ""
            lines.append(f"{rng.uniform(-3, 0):.4f}\t{' '.join(words)}{backoff}")
        lines.append("")
    return "\n".join([*lines, "\\end\\", ""])


@pytest.mark.parametrize("order", [1, 2, 3, 5, 6])
@pytest.mark.parametrize("kind", KINDS)
def test_models_of_every_order_score_as_in_the_oracle(tmp_path, order, kind):
    rng, arpa = random.Random(order), tmp_path / "lm.arpa"
    arpa.write_text(random_arpa(order, rng))
    write_binary(arpa, tmp_path / "lm.bin", **KINDS[kind])
    ours, theirs = NGram.open(tmp_path / "lm.bin"), Oracle(read_arpa(arpa))
    assert (ours.order, ours.counts) == (order, theirs.counts)
    for _ in range(200):
        text = random_text(rng, "abcdefg")
        assert ours.sentence(text) == pytest.approx(theirs.sentence(text), abs=1e-4)


def bin_widths(values, bits, reserved):
    """The widest of the equally filled bins that quantisation to `bits` makes of these values."""
    bins = np.array_split(np.sort(values), (1 << bits) - reserved)
    return max(float(np.ptp(each)) for each in bins if len(each))


@pytest.mark.parametrize("pointer_bits", [0, 22])
def test_quantised_scores_are_off_by_no_more_than_their_bins(tmp_path, by_lmplz, pointer_bits):
    arpa, bits = MADE_BY_LMPLZ / "text.arpa.gz", 8
    write_binary(
        arpa, tmp_path / "lm.bin", prob_bits=bits, backoff_bits=bits, pointer_bits=pointer_bits
    )
    quantised, read = NGram.open(tmp_path / "lm.bin"), read_arpa(arpa)
    prob = max(
        bin_widths([p for n, p in read.probs.items() if len(n) == k], bits, 0) for k in (2, 3, 4)
    )
    backoff = sum(
        bin_widths([b for n, b in read.backoffs.items() if len(n) == k and b], bits, 2)
        for k in (2, 3)
    )
    rng, errors = random.Random(2), []
    for _ in range(250):
        ours, theirs = quantised.begin(), by_lmplz.begin()
        for _ in range(4):
            word = likely(by_lmplz, theirs, rng, by_lmplz.vocabulary)
            (ours_score, ours), (theirs_score, theirs) = (
                quantised.score(ours, word),
                by_lmplz.score(theirs, word),
            )
            errors.append(abs(ours_score - theirs_score))
    assert max(errors) <= prob + backoff
    assert 1e-5 < np.mean(errors) < 0.02
    # Never quantised.
    assert quantised.unigram("the") == pytest.approx(by_lmplz.unigram("the"), abs=1e-6)


def test_gzipped_and_plain_text_are_the_same_model(tmp_path, by_lmplz):
    plain = tmp_path / "lm.arpa"
    plain.write_bytes(gzip.decompress((MADE_BY_LMPLZ / "text.arpa.gz").read_bytes()))
    for sentence in ("could you lift my head", "the nurse is unheard of"):
        assert NGram.open(plain).sentence(sentence) == pytest.approx(
            by_lmplz.sentence(sentence), abs=1e-4
        )


@pytest.fixture(scope="module")
def scored_texts(by_lmplz):
    """Eight texts, and the log-probability of each."""
    rng = random.Random(3)
    texts = [[random_text(rng, by_lmplz.vocabulary) for _ in range(300)] for _ in range(8)]
    return texts, [by_lmplz.score_text(text).log_prob for text in texts]


def test_many_threads_share_a_model(of_each_kind, scored_texts):
    texts, expected = scored_texts
    found = [0.0] * len(texts)

    def score(number):
        for _ in range(5):
            found[number] = of_each_kind.score_text(texts[number])[3]

    threads = [threading.Thread(target=score, args=(number,)) for number in range(len(texts))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == pytest.approx(expected, abs=1e-2)


def test_an_existing_file_is_replaced_only_by_a_complete_one(tmp_path):
    out = tmp_path / "lm.bin"
    write_binary(MADE_BY_LMPLZ / "tiny.arpa.gz", out)
    before, opened = out.read_bytes(), NGram.open(out)
    score = opened.sentence("the cat sat")
    (tmp_path / "bad.arpa").write_text(BY_HAND.replace("-0.3\ta b", "0.3\ta b"))
    with pytest.raises(LanguageModelError, match="line 14"):
        write_binary(tmp_path / "bad.arpa", out)
    assert out.read_bytes() == before
    write_binary(MADE_BY_LMPLZ / "text.arpa.gz", out)
    assert out.read_bytes() != before
    # The old file lives as long as somebody reads it.
    assert opened.sentence("the cat sat") == score
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bad.arpa", "lm.bin"]


def test_a_state_of_another_model_does_no_harm(of_each_kind, tmp_path):
    write_binary(
        MADE_BY_LMPLZ / "tiny.arpa.gz",
        tmp_path / "lm.bin",
        prob_bits=0,
        backoff_bits=0,
        pointer_bits=0,
    )
    tiny = NGram.open(tmp_path / "lm.bin")
    state = of_each_kind.begin()
    for word in of_each_kind.words():
        state = of_each_kind.score(state, word)[1]
        assert math.isfinite(tiny.score(state, "cat")[0])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(type="trei"), "unknown type 'trei'; known: trie, probing, rest_probing"),
        (dict(prob_bits=26), "prob_bits is 26; 0 (off) to 25 is possible"),
        (dict(prob_bits=8, backoff_bits=0), "prob_bits is 8, backoff_bits 0; quantise both"),
        (dict(pointer_bits=-1), "pointer_bits is -1"),
    ],
)
def test_impossible_formats_are_named(tmp_path, options, message):
    with pytest.raises(LanguageModelError) as caught:
        write_binary(MADE_BY_LMPLZ / "tiny.arpa.gz", tmp_path / "lm.bin", **options)
    assert message in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    with pytest.raises(LanguageModelError, match="No such file or directory") as caught:
        write_binary(MADE_BY_LMPLZ / "tiny.arpa.gz", str(tmp_path / "absent" / "lm.bin"))
    assert str(tmp_path / "absent" / "lm.bin") in str(caught.value)


def test_a_binary_is_not_built_from_a_binary(tmp_path):
    write_binary(MADE_BY_LMPLZ / "tiny.arpa.gz", tmp_path / "lm.bin")
    with pytest.raises(LanguageModelError, match="already a KenLM binary; give an ARPA file"):
        write_binary(tmp_path / "lm.bin", tmp_path / "lm2.bin")
