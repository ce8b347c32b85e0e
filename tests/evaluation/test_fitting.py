"""Options fitted to log-probabilities of known sentences."""

import numpy as np
import pytest

from cortext.errors import DataError
from cortext.evaluation.fitting import fit_options, halves


def test_halves_are_of_whole_blocks_and_about_as_many_words():
    sentences = [f"word {'x' * (1 + n)}" for n in range(40)]
    blocks = [n // 5 for n in range(40)]
    half_B = halves(sentences, blocks)
    for block in range(8):
        assert len(set(half_B[5 * block : 5 * block + 5])) == 1
    assert (half_B == 0).sum() == 20


def test_equal_sentences_are_in_one_half_whatever_their_blocks():
    generator = np.random.default_rng(0)
    sentences = [f"s{'x' * number}" for number in generator.integers(0, 30, 200)]
    blocks = [n // 20 for n in range(200)]
    half_B = halves(sentences, blocks)
    for sentence in set(sentences):
        assert len({half_B[n] for n in range(200) if sentences[n] == sentence}) == 1
    assert 80 <= (half_B == 0).sum() <= 120


def test_one_block_is_split_by_sentence():
    assert sorted(halves(["a", "b", "c", "d"], [0, 0, 0, 0])) == [0, 0, 1, 1]
    with pytest.raises(DataError, match="1 different sentences; at least two"):
        halves(["a", "a", ""], [0, 1, 2])


def test_unequal_numbers_of_trials_are_refused_in_one_line(tmp_path):
    with pytest.raises(DataError, match="1 trials, 2 references, 2 blocks"):
        fit_options([np.zeros((3, 41), np.float32)], ["a", "b"], [0, 0], tmp_path)
