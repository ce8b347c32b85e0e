import itertools
import subprocess
import sys

import numpy as np
import pytest

from cortext.errors import TextError
from cortext.text import ARPABET, Lexicon, g2p

FAMILIES = [
    "walk walks walked walking walker walkers walker's",
    "happy happier happiest happily happiness unhappy unhappiness",
    "run runs running runner run's",
    "make makes making maker",
    "bus buses bus's",
    "city cities city's",
    "tie ties tied tying",
    "study studies studied studying",
    "nation nations national nationally nationality international",
    "care cared caring careful carefully careless carelessness",
    "compose composed composer composers",
    "push pushed push-ups",
    "cue cues miscue miscues",
    "read reads reading reread",
    "electric electrical electricity",
]


@pytest.fixture(scope="module")
def held_out(train_g2p):
    return train_g2p.held_out(Lexicon.cmu())


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("wozzle", "W AA Z AH L"),
        ("shrope", "SH R OW P"),
        ("stellings", "S T EH L IH NG Z"),
        ("thrandle", "TH R AE N D AH L"),
    ],
)
def test_words_that_do_not_exist_are_pronounced_as_they_are_spelt(word, expected):
    assert word not in Lexicon.cmu()
    assert " ".join(g2p.predict(word)) == expected


def test_word_with_other_characters_is_an_error():
    with pytest.raises(TextError, match="cannot pronounce 'naïve': 'ï' is not one of"):
        g2p.predict("naïve")


def test_model_is_small_and_needs_neither_torch_nor_the_dictionary():
    assert g2p.MODEL.stat().st_size < 5_000_000
    code = """if True:
        import sys
        from cortext.text import Lexicon, g2p
        g2p.predict("zork")
        print("torch" in sys.modules, Lexicon.cmu.cache_info().currsize)"""
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "False 0\n"


@pytest.mark.slow
def test_phoneme_error_on_a_thousand_held_out_lemmas_is_below_ten_percent(train_g2p, held_out):
    tested, _ = held_out
    assert len(tested) == len(set(tested)) == 1000
    assert train_g2p.phoneme_error_rate(g2p.GraphoneModel.load(), tested, Lexicon.cmu()) <= 0.10


@pytest.mark.slow
def test_shipped_model_is_what_training_without_the_held_out_lemmas_gives(
    train_g2p, held_out, tmp_path
):
    tested, excluded = held_out
    lexicon, path = Lexicon.cmu(), tmp_path / "g2p.npz"
    words = [word for word in lexicon if word not in excluded]
    train_g2p.train(words, lexicon, train_g2p.ORDER, train_g2p.N_NODES, path)
    again = g2p.GraphoneModel.load(path)
    assert np.mean([again.predict(word) == g2p.predict(word) for word in tested]) > 0.99


@pytest.mark.parametrize("family", FAMILIES)
def test_inflections_derivations_and_possessives_share_a_stem(train_g2p, family):
    base, *others = map(train_g2p.stems, family.split())
    assert all(base & other for other in others)


def test_unrelated_words_have_different_stems(train_g2p):
    words = "walk talk happy house window recording brain signal neuron letter".split()
    for one, other in itertools.combinations(words, 2):
        assert not train_g2p.stems(one) & train_g2p.stems(other)


@pytest.mark.slow
def test_no_word_with_a_tested_stem_is_trained_on(train_g2p, held_out):
    tested, excluded = held_out
    stems = {stem for word in tested for stem in train_g2p.stems(word)}
    trained = [word for word in Lexicon.cmu() if word not in excluded]
    assert set(tested) <= excluded
    assert not any(stems & train_g2p.stems(word) for word in trained)
    assert len(trained) > 100_000


# --- Training
# ---------------------------------------------------------------------------------------------------------


def all_alignments(train_g2p, word, phonemes):
    """Every way to give each letter zero, one or two of the phonemes, as graphone numbers."""
    numbers = [ARPABET.index(phoneme) for phoneme in phonemes]
    for sizes in itertools.product(range(3), repeat=len(word)):
        if sum(sizes) == len(numbers):
            rest, path = list(numbers), []
            for letter, size in zip(word, sizes, strict=True):
                taken, rest = rest[:size], rest[size:]
                chunk = 0
                if size == 1:
                    chunk = 1 + taken[0]
                elif size == 2:
                    chunk = 1 + len(ARPABET) + taken[0] * len(ARPABET) + taken[1]
                path.append(g2p.LETTERS.index(letter) * train_g2p.N_CHUNKS + chunk)
            yield path


@pytest.mark.parametrize(
    ("word", "phonemes"),
    [
        ("tax", "T AE K S"),
        ("ought", "AO T"),
        ("a", "EY"),
        ("bb", "B"),
        ("w", "Y UW"),
        ("see", "S IY"),
    ],
)
def test_alignment_agrees_with_enumerating_all_of_them(train_g2p, word, phonemes):
    phonemes = tuple(phonemes.split())
    table = np.random.default_rng(0).random(train_g2p.N_LETTERS * train_g2p.N_CHUNKS)
    (batch,) = train_g2p.make_batches([(word, phonemes)])
    paths = list(all_alignments(train_g2p, word, phonemes))
    weights = np.array([table[path].prod() for path in paths])

    expected = np.zeros_like(table)
    for path, weight in zip(paths, weights / weights.sum(), strict=True):
        np.add.at(expected, path, weight)
    counts = np.zeros_like(table)
    train_g2p.expected_counts(batch, table, counts)
    np.testing.assert_allclose(counts, expected, atol=1e-12)
    best = train_g2p.best_alignments(batch, table)[0].tolist()
    assert best in paths
    assert table[best].prod() == pytest.approx(weights.max())


def test_words_with_more_than_two_phonemes_a_letter_are_not_aligned(train_g2p):
    assert train_g2p.make_batches([("w", ("D", "AH", "B", "AH", "L", "Y", "UW"))]) == []


@pytest.fixture(scope="module")
def small(train_g2p, tmp_path_factory):
    """A model of order 5 trained on every 40th word, pruned hard, and the words."""
    path = tmp_path_factory.mktemp("g2p") / "small.npz"
    words = list(Lexicon.cmu())[::40]
    train_g2p.train(words, Lexicon.cmu(), 5, 12_000, path)
    return g2p.GraphoneModel.load(path), words


def ngrams_of(model):
    """Every node's n-gram, spelt out."""
    grams = {0: ()}
    for node in range(len(model.token_N)):
        for child in range(model.first_child_N1[node], model.first_child_N1[node + 1]):
            grams[child] = (*grams[node], int(model.token_N[child]))
    return grams


def test_pruned_model_keeps_every_context_and_suffix_and_its_budget(small):
    model, _ = small
    grams = ngrams_of(model)
    assert 10_000 < len(grams) <= 12_001
    assert max(map(len, grams.values())) == 5
    for node, gram in grams.items():
        assert grams[int(model.suffix_N[node])] == gram[1:]


def test_probabilities_after_any_history_follow_the_back_off_recursion_and_sum_to_one(small):
    model, _ = small
    grams = ngrams_of(model)
    nodes = {gram: node for node, gram in grams.items()}

    def log_p(history, token):
        node = nodes.get((*history, token))
        if node is not None:
            return model.log_p_N[node]
        return model.log_backoff_N[nodes[history]] + log_p(history[1:], token)

    for node in np.random.default_rng(0).choice(len(grams), 60, replace=False):
        ours, following = model.successors(int(node))
        expected = [log_p(grams[node], token) for token in range(len(ours))]
        np.testing.assert_allclose(ours, expected, rtol=1e-5)
        # Scores are stored in a byte each.
        assert np.exp(ours).sum() == pytest.approx(1.0, abs=0.05)
        for token in range(0, len(ours), 17):
            longest = next(
                g for n in range(len(grams[node]) + 1) if (g := (*grams[node][n:], token)) in nodes
            )
            assert grams[int(following[token])] == longest


def test_unpruned_probabilities_sum_to_one_exactly(train_g2p):
    words = list(Lexicon.cmu())[::400]
    paths = train_g2p.align([(word, Lexicon.cmu().pronunciations(word)[0]) for word in words])
    graphones = np.unique(np.concatenate([path.ravel() for path in paths]))
    tokens = [2 + np.searchsorted(graphones, path) for path in paths]
    levels = train_g2p.count_ngrams(tokens, 2 + len(graphones), 4)
    train_g2p.smooth(levels)
    train_g2p.set_backoffs(levels)
    assert levels[0].p.sum() == pytest.approx(1.0)
    for lower, level in itertools.pairwise(levels):
        for context in range(0, len(lower.count), 97):
            mine = level.context == context
            if mine.any() and lower.p[level.suffix[mine]].sum() < 0.99:
                unseen = 1 - lower.p[level.suffix[mine]].sum()
                assert level.p[mine].sum() + lower.backoff[context] * unseen == pytest.approx(1.0)


def test_small_model_spells_back_words_it_was_trained_on(train_g2p, small):
    model, words = small
    assert train_g2p.phoneme_error_rate(model, words[::10], Lexicon.cmu()) < 0.15


def test_best_pronunciation_is_that_of_an_exhaustive_search(small):
    model, _ = small
    for word in ("at", "ask", "the"):
        wide = model.nbest(word, beam=10**6)
        assert g2p.GraphoneModel.predict(model, word) == tuple(
            ARPABET[n] for n in max(wide, key=wide.get)
        )
        assert np.logaddexp.reduce(list(wide.values())) < 0
