"""The search against the enumeration of all token paths."""

import itertools
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cortext.decoding.engine_reference import ReferenceEngine
from cortext.decoding.ngram import LanguageModel, NGram
from cortext.decoding.ngram.arpa import Arpa
from cortext.decoding.ngram.estimate import SPECIAL, estimate
from cortext.decoding.options import DecoderOptions
from cortext.decoding.reference import FLOOR
from cortext.text.lexicon import Lexicon
from cortext.text.phonemes import Inventory

TOY = Inventory("toy", ("BLANK", "AA", "B", "SIL"))
TOY_LM_ORDER = Inventory("toy-lm", ("BLANK", "SIL", "AA", "B"))
WIDE = dict(beam=1e9, lattice_beam=1e9, max_active=10**9, max_arcs=10**9, nbest=10**9)
TEXT = "a b", "a a b c", "b", "c a d", "d a b", "a c", "b b a", "c"


def ngram(order):
    """A small model of the words a, b, c and d."""
    words = [*SPECIAL, "a", "b", "c", "d"]
    sentences = [np.array([words.index(word) for word in sentence.split()]) for sentence in TEXT]
    levels, _ = estimate(sentences, len(words), order)
    probs, backoffs = {}, {}
    for level in levels:
        for row, prob, backoff in zip(level.ngrams.tolist(), level.log10_prob, level.log10_backoff, strict=True):
            probs[tuple(row)] = float(prob) * math.log(10)
            backoffs[tuple(row)] = float(backoff) * math.log(10)
    contexts = {ngram[:-1] for ngram in probs}
    kept = {each: value for each, value in backoffs.items() if each in contexts}
    return NGram(Arpa({word: number for number, word in enumerate(words)}, (len(words),) * order, probs, kept))


NGRAMS = [ngram(order) for order in (1, 2, 3)]


def engine(lexicon, model):
    return ReferenceEngine(LanguageModel(Path("toy"), model, lexicon, TOY.symbols))


def decode(lexicon, model, log_probs_PV, options, inventory=TOY):
    utterance = engine(lexicon, model).start(options, inventory)
    utterance.advance(log_probs_PV)
    return utterance.finish()


def lexicon_of(entries):
    lexicon = Lexicon()
    for word, pronunciation, weight in entries:
        lexicon.add(word, pronunciation.split(), weight)
    return lexicon


def readings(labels, lexicon):
    """All ways to read labels as words: (words, boundaries without SIL, log weights of the pronunciations)."""
    entries = [
        (word, list(pronunciation), math.log(weight))
        for word in lexicon
        for pronunciation, weight in zip(lexicon.pronunciations(word), lexicon.weights(word), strict=True)
    ]

    def read(rest, after_word):
        if not rest:
            yield (), 0, 0.0
            return
        if rest[0] == "SIL":
            yield from read(rest[1:], False)
        for word, pronunciation, log_weight in entries:
            if rest[: len(pronunciation)] == pronunciation:
                for words, boundaries, log_weights in read(rest[len(pronunciation) :], True):
                    yield (word, *words), boundaries + after_word, log_weight + log_weights

    yield from read(labels, False)


def enumerated(lexicon, model, log_probs_PV, options, inventory=TOY):
    """The score of every sentence, by enumeration of all sequences of one token per frame."""
    scores = {}
    log_probs_PV = np.maximum(log_probs_PV, FLOOR)
    for path in itertools.product(range(len(inventory)), repeat=len(log_probs_PV)):
        frames = list(enumerate(path))
        if options.blank_skip < 1 and any(
            token != inventory.blank and math.exp(log_probs_PV[frame, inventory.blank]) >= options.blank_skip
            for frame, token in frames
        ):
            continue
        acoustic = sum(log_probs_PV[frame, token] for frame, token in frames)
        acoustic -= path.count(inventory.blank) * math.log(options.blank_penalty)
        labels = [inventory.symbols[token] for token, _ in itertools.groupby(path) if token != inventory.blank]
        for words, boundaries, log_weight in readings(labels, lexicon):
            score = options.acoustic_scale * (acoustic + log_weight) - options.sil_cost * boundaries
            scores.setdefault(words, []).append(score)
    join = np.logaddexp.reduce if options.recombine == "logadd" else max
    return {
        " ".join(words): float(join(paths))
        + options.lm_weight * lm_score(model, words, options)
        + options.word_score * len(words)
        for words, paths in scores.items()
    }


def lm_score(model, words, options):
    return model.sentence(" ".join(words)) + sum(options.unk_score for word in words if word not in model)


def random_log_probs(generator, n_frames, spread, n_tokens=len(TOY)):
    x_PV = generator.normal(size=(n_frames, n_tokens)) * spread
    return x_PV - np.logaddexp.reduce(x_PV, axis=1, keepdims=True)


pronunciations = st.lists(st.sampled_from(["AA", "B"]), min_size=1, max_size=3).map(" ".join)
lexicons = st.lists(
    st.tuples(st.sampled_from("abcde"), pronunciations, st.sampled_from([1.0, 0.3])), min_size=1, max_size=7
).map(lexicon_of)
settings_of_the_search = st.builds(
    DecoderOptions,
    acoustic_scale=st.sampled_from([1.0, 0.4]),
    lm_weight=st.sampled_from([1.0, 0.0, 2.5]),
    word_score=st.sampled_from([0.0, 0.7, -1.0]),
    sil_cost=st.sampled_from([0.0, 1.3]),
    unk_score=st.sampled_from([-10.0, -1.0]),
    blank_penalty=st.sampled_from([1.0, 7.0]),
    blank_skip=st.sampled_from([1.0, 0.6]),
    recombine=st.sampled_from(["logadd", "max"]),
    **{name: st.just(value) for name, value in WIDE.items()},
)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    lexicon=lexicons,
    model=st.sampled_from(NGRAMS),
    options=settings_of_the_search,
    n_frames=st.integers(0, 5),
    seed=st.integers(0, 2**32),
    spread=st.sampled_from([0.5, 3.0]),
    impossible=st.booleans(),
)
def test_a_wide_search_finds_every_sentence_with_its_exact_score(
    lexicon, model, options, n_frames, seed, spread, impossible
):
    log_probs_PV = random_log_probs(np.random.default_rng(seed), n_frames, spread)
    if impossible and n_frames:
        log_probs_PV[0, 1] = -np.inf
        log_probs_PV -= np.logaddexp.reduce(log_probs_PV, axis=1, keepdims=True)
    expected = enumerated(lexicon, model, log_probs_PV, options)

    utterance = engine(lexicon, model).start(options, TOY)
    utterance.advance(log_probs_PV)
    found = {" ".join(history.words()): score for score, history in utterance._search.finish()}
    assert found == pytest.approx(expected, abs=1e-9)

    nbest = utterance.finish()
    assert {hypothesis.text: hypothesis.score for hypothesis in nbest} == pytest.approx(expected, abs=1e-9)
    assert len({hypothesis.text for hypothesis in nbest}) == len(nbest)
    assert [each.score for each in nbest] == sorted((each.score for each in nbest), reverse=True)
    for hypothesis in nbest:
        words = tuple(hypothesis.text.split())
        assert hypothesis.lm_score == pytest.approx(lm_score(model, words, options), abs=1e-9)
        assert hypothesis.score == pytest.approx(
            options.acoustic_scale * hypothesis.acoustic_score
            + options.lm_weight * hypothesis.lm_score
            + options.word_score * len(words)
            + hypothesis.sil_score,
            abs=1e-9,
        )
        assert [word.word for word in hypothesis.words] == list(words)
        times = [time for word in hypothesis.words for time in (word.start_ms, word.end_ms)]
        assert times == sorted(times)
