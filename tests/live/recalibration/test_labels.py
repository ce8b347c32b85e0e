"""Which decoded sentences become labels."""

import numpy as np
import pytest

from cortext.data.conventions import RELEASE_CONVENTIONS
from cortext.decoding.nbest import Hypothesis, NBest, Word
from cortext.text.inventory import RELEASE
from cortext.text.lexicon import Lexicon
from cortext_live.recalibration.labels import confidence_of, pseudo_label
from cortext_live.recalibration.wildcard import ANY

LEXICON = Lexicon({"i": [("AY",)], "see": [("S", "IY")], "you": [("Y", "UW")]})


def decoded(text, *confidences):
    words = tuple(
        Word(word, 80 * n, 80 * n + 80, confidence=confidence)
        for n, (word, confidence) in enumerate(zip(text.split(), confidences, strict=True))
    )
    return NBest((Hypothesis(text, -1.0, -1.0, 0.0, words=words),))


def test_mean_confidence_of_the_words_decides():
    nbest = decoded("i see you", 0.9, 0.6, 0.3)
    assert confidence_of(nbest) == pytest.approx(0.6)
    label_U = pseudo_label(nbest, 0.59, RELEASE_CONVENTIONS, LEXICON)
    # A silence ends each word.
    expected = RELEASE.ids(["AY", "SIL", "S", "IY", "SIL", "Y", "UW", "SIL"])
    assert np.array_equal(label_U, expected)
    assert pseudo_label(nbest, 0.61, RELEASE_CONVENTIONS, LEXICON) is None
    assert confidence_of(decoded("")) == 0.0


def test_too_short_a_sentence_is_not_trusted_however_sure_it_is():
    nbest = decoded("i", 1.0)  # two tokens
    assert pseudo_label(nbest, 0.5, RELEASE_CONVENTIONS, LEXICON, fewest=2.0) is not None
    assert pseudo_label(nbest, 0.5, RELEASE_CONVENTIONS, LEXICON, fewest=2.1) is None


def of_words(text, *confidences, least):
    nbest = decoded(text, *confidences)
    return pseudo_label(nbest, 0.0, RELEASE_CONVENTIONS, LEXICON, least_word=least)


def test_anything_may_stand_in_the_place_of_words_that_are_not_trusted():
    i, see, you = (
        RELEASE.ids(each) for each in (["AY", "SIL"], ["S", "IY", "SIL"], ["Y", "UW", "SIL"])
    )
    label_U = of_words("i see see you", 0.9, 0.4, 0.6, 0.7, least=0.7)
    assert label_U.tolist() == [*i, ANY, *you]
    label_U = of_words("see i you", 0.1, 0.8, 0.9, least=0.7)
    assert label_U.tolist() == [ANY, *i, *you]
    label_U = of_words("i see", 0.7, 0.7, least=0.7)
    assert label_U.tolist() == [*i, *see]


def test_one_trusted_word_is_enough_only_where_there_are_no_others():
    assert of_words("i see you", 0.9, 0.4, 0.4, least=0.7) is None
    assert of_words("i", 0.9, least=0.7) is not None
    assert of_words("i", 0.6, least=0.7) is None
