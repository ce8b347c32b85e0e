"""Scoring with back-off.

The oracle (tests/support/ngram_oracle.py) that the compiled models are compared with.
"""

import itertools
import math

import numpy as np
import pytest
from ngram_oracle import NGram, read_arpa

from cortext.decoding.ngram import LanguageModel
from cortext.decoding.ngram.vocabulary import LN10

HAND = r"""
\data\
ngram 1=6
ngram 2=4
ngram 3=1

\1-grams:
-2.0	<unk>
0	<s>	-0.5
-0.7	</s>
-0.4	a	-0.3
-0.6	b	-0.2
-0.8	c

\2-grams:
-0.2	<s> a	-0.1
-0.3	a b	0
-0.1	b </s>
-0.9	a c	0.05

\3-grams:
-0.25	<s> a b

\end\
"""


@pytest.fixture
def hand(tmp_path):
    (tmp_path / "lm.arpa").write_text(HAND)
    return NGram(read_arpa(tmp_path / "lm.arpa"))


@pytest.mark.parametrize(
    ("sentence", "log10_prob"),
    [
        ("a b", -0.2 - 0.25 - 0.1),  # a | <s>, b | <s> a, </s> | b (a b is no context)
        ("b a", (-0.5 - 0.6) + (-0.2 - 0.4) + (-0.3 - 0.7)),  # back-off of <s>, of b, of a
        # Back-off of <s> a; a c has a back-off above 0, c none.
        (
            "a c",
            -0.2 + (-0.1 - 0.9) + (0.05 - 0.7),
        ),
        # Nothing is remembered after an unknown word.
        (
            "zebra a",
            (-0.5 - 2.0) - 0.4 + (-0.3 - 0.7),
        ),
        ("", -0.5 - 0.7),
    ],
)
def test_sentences_score_what_back_off_gives_by_hand(hand, sentence, log10_prob):
    assert hand.sentence(sentence) == pytest.approx(log10_prob * LN10)


def test_states_keep_only_what_can_matter(hand):
    _, after_a = hand.score(hand.begin(), "a")
    assert len(after_a) == 2  # <s> a is the context of a trigram
    _, after_b = hand.score(after_a, "b")
    # Neither "<s> a b" nor "a b" is the context of anything.
    assert after_b == hand.score((), "b")[1]
    assert hand.score(after_b, "c")[1] == ()  # c is no context and has no back-off
    assert hand.score((), "zebra")[1] == ()


@pytest.mark.parametrize("order", [1, 2, 3, 4])
def test_equal_states_score_all_continuations_alike(tmp_path, order):
    """Against the definition on the full history.

    The longest listed n-gram, with the back-offs of longer contexts.
    """
    rng = np.random.default_rng(order)
    sentences = [" ".join(rng.choice(list("abc"), size=n)) for n in rng.integers(1, 6, size=12)]
    LanguageModel.build(sentences, order, tmp_path / "lm", keep_arpa=True)
    arpa = read_arpa(tmp_path / "lm" / "lm.arpa")
    model = NGram(arpa)

    def defined(history, word):
        if (*history, word) in arpa.probs:
            return arpa.probs[*history, word]
        return arpa.backoffs.get(history, 0.0) + defined(history[1:], word)

    for sentence in itertools.chain.from_iterable(
        itertools.product("abcz", repeat=n) for n in range(5)
    ):
        numbers = [
            arpa.words["<s>"],
            *(arpa.words.get(word, arpa.words["<unk>"]) for word in sentence),
        ]
        state = model.begin()
        for position, word in enumerate(sentence, start=1):
            context = tuple(numbers[max(0, position - order + 1) : position]) if order > 1 else ()
            log_prob, state = model.score(state, word)
            assert log_prob == pytest.approx(defined(context, numbers[position]))


def test_perplexity_counts_sentence_ends_and_tells_unknown_words_apart(hand):
    result = hand.score_text(["a b", "zebra a"])
    known = (-0.2 - 0.25 - 0.1) - 0.4 + (-0.3 - 0.7)
    assert (result.sentences, result.words, result.unknown_words, result.oov_rate) == (
        2,
        4,
        1,
        0.25,
    )
    assert result.perplexity == pytest.approx(10 ** (-(known - 2.5) / 6))
    assert result.perplexity_known == pytest.approx(10 ** (-known / 5))
    assert math.isnan(hand.score_text([]).perplexity)


def test_a_unigram_needs_no_context(hand):
    assert hand.unigram("b") == pytest.approx(-0.6 * LN10)
