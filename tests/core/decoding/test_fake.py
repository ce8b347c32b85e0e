"""Made-up log-probabilities of a sentence."""

import itertools
import math

import numpy as np
import pytest

from cortext.decoding import Decoder, greedy
from cortext.decoding.fake import fake_log_probs
from cortext.errors import DecodingError, TextError
from cortext.text.inventory import CHARACTERS, LM, RELEASE, Inventory
from cortext.text.lexicon import Lexicon
from cortext.text.pronunciation import to_phonemes

SENTENCE = "bob's bus stops here"  # equal phonemes meet at word boundaries


def test_without_noise_the_frames_say_the_sentence():
    log_probs = fake_log_probs(SENTENCE, noise=0.0)
    assert log_probs.dtype == np.float32
    assert RELEASE.names(greedy(log_probs, RELEASE)) == to_phonemes(SENTENCE)


def test_phonemes_last_two_to_four_frames_and_blanks_one_or_two():
    tokens = fake_log_probs(SENTENCE * 3, noise=0.0, seed=5).argmax(axis=1)
    runs = [(token, len(list(run))) for token, run in itertools.groupby(tokens.tolist())]
    assert {length for token, length in runs if token == RELEASE.blank} == {1, 2}
    assert {length for token, length in runs if token != RELEASE.blank} == {2, 3, 4}


def test_noise_is_that_of_the_logits():
    """A logit has 6 more where the frame says it.

    Differences within a frame are what the softmax leaves of logits.
    """
    log_probs = fake_log_probs("a long sentence about many different things", noise=0.5, seed=1)
    clear = fake_log_probs("a long sentence about many different things", noise=0.0, seed=1)
    differences = (log_probs - clear) - (log_probs - clear).mean(axis=1, keepdims=True)
    assert differences.std() == pytest.approx(0.5, rel=0.05)
    assert np.exp(clear.max(axis=1)) == pytest.approx(math.exp(6) / (math.exp(6) + 40))
    np.testing.assert_allclose(np.exp(log_probs).sum(axis=1), 1, atol=1e-5)


def test_a_seed_gives_the_same_noise_again_and_another_gives_other():
    one, same, other = (fake_log_probs(SENTENCE, 1.0, seed) for seed in (3, 3, 4))
    np.testing.assert_array_equal(one, same)
    assert one.shape != other.shape or (one != other).any()


def test_the_order_of_the_tokens_and_the_lexicon_are_obeyed():
    log_probs = fake_log_probs("zed", 0.0, inventory="lm", lexicon=Lexicon({"zed": [("W", "IY")]}))
    assert LM.names(greedy(log_probs, LM)) == ["W", "IY", "SIL"]


def test_any_inventory_and_language_can_be_said():
    characters = fake_log_probs("Go on", 0.0, inventory=CHARACTERS)
    assert CHARACTERS.names(greedy(characters, CHARACTERS)) == [*"go|on"]
    syllables = Inventory("syllables", ("_", "ni", "hao"), "_", None)
    lexicon = Lexicon({"\u4f60": [("ni",)], "\u597d": [("hao",)]}, syllables)
    frames = fake_log_probs(
        "\u4f60\u597d", 0.0, inventory=syllables, lexicon=lexicon, language="zh"
    )
    assert syllables.names(greedy(frames, syllables)) == ["ni", "hao"]
    with pytest.raises(TextError, match="no pronunciations are known for inventory 'syllables'"):
        fake_log_probs("\u597d", 0.0, inventory=syllables, language="zh")


def test_what_cannot_be_said_is_refused():
    with pytest.raises(TextError, match="no word"):
        fake_log_probs("1984")
    with pytest.raises(TextError, match="language 'en' would lose ß"):
        fake_log_probs("die Straße")
    for noise in (-1.0, math.nan, math.inf):
        with pytest.raises(DecodingError, match="noise"):
            fake_log_probs("hello", noise)


def test_the_decoder_finds_the_sentence(sentence_lm):
    decoder = Decoder.from_dir(sentence_lm)
    found = decoder.decode(fake_log_probs("we want to see you", noise=1.0), "release")
    assert found[0].text == "we want to see you"
