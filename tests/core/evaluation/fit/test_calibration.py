"""Measures of confidences: values computed by hand, and slow oracles over all pairs."""

from __future__ import annotations

import numpy as np
import pytest

from cortext.decoding.nbest import Word
from cortext.errors import DataError
from cortext.evaluation.fit.calibration import Calibration, auroc, calibration, words_right
from cortext.text.language import read_language


def words(text: str) -> list[Word]:
    return [Word(word, 0.0, 80.0) for word in text.split()]


def by_hand() -> Calibration:
    """Four words of two sentences: 0.95 right, 0.9 wrong; 0.5 right, 0.12 wrong."""
    return calibration([0.95, 0.9, 0.5, 0.12], [True, False, True, False], [0, 0, 1, 1])


def test_scores_are_those_computed_by_hand() -> None:
    found = by_hand()
    assert (found.n, found.right) == (4, 0.5)
    assert found.mean == pytest.approx(0.6175)
    # (0.05^2 + 0.9^2 + 0.5^2 + 0.12^2) / 4
    assert found.brier == pytest.approx((0.0025 + 0.81 + 0.25 + 0.0144) / 4)
    assert found.brier_skill == pytest.approx(1 - found.brier / 0.25)
    assert found.auroc == pytest.approx(3 / 4)  # 0.5 (right) is below 0.9 (wrong)


def test_calibration_error_weighs_the_distances_of_bins_by_words() -> None:
    found = by_hand()
    # bin 0.9 to 1: two words, mean 0.925, half right; 0.5: right; 0.12: wrong
    assert found.ece == pytest.approx((2 * 0.425 + 0.5 + 0.12) / 4)
    filled = [(each.low, each.n, each.confidence, each.right) for each in found.bins if each.n]
    assert filled == [
        pytest.approx((0.1, 1, 0.12, 0.0)),
        pytest.approx((0.5, 1, 0.5, 1.0)),
        pytest.approx((0.9, 2, 0.925, 0.5)),
    ]
    assert found.bins[0].confidence is None


def test_sure_words_begin_at_the_threshold() -> None:
    found = by_hand()
    assert (found.n_sure, found.sure_right) == (2, 0.5)
    none = calibration([0.89, 0.1], [True, False], [0, 1])
    assert (none.n_sure, none.sure_right, none.sure_right_ci95) == (0, None, None)


def test_bootstrap_resamples_whole_sentences() -> None:
    found = by_hand()
    # Of two sentences only three resamples exist: the first twice, both, the second twice.
    possible = (2 * 0.425 / 2, (2 * 0.425 + 0.62) / 4, 0.62 / 2)
    assert found.ece_ci95 == pytest.approx((min(possible), max(possible)))
    assert found.sure_right_ci95 == pytest.approx((0.5, 0.5))


def test_auroc_is_the_share_of_all_pairs_in_order() -> None:
    generator = np.random.default_rng(3)
    scores = generator.integers(0, 12, 200) / 12  # with many ties
    right = generator.random(200) < 0.2 + 0.6 * scores
    pairs = [
        1.0 if high > low else 0.5 if high == low else 0.0
        for high in scores[right]
        for low in scores[~right]
    ]
    assert auroc(scores, right) == pytest.approx(np.mean(pairs))


def test_perfect_confidences_have_full_skill_and_no_error() -> None:
    found = calibration([1.0, 0.0, 1.0], [True, False, True], [0, 1, 2])
    assert (found.brier_skill, found.auroc, found.ece) == (1.0, 1.0, 0.0)


def test_the_base_rate_for_every_word_has_no_skill() -> None:
    found = calibration([0.75] * 4, [True, True, False, True], [0, 1, 2, 3])
    assert (found.brier_skill, found.auroc, found.ece) == (0.0, 0.5, 0.0)


def test_skill_needs_right_and_wrong_words() -> None:
    found = calibration([0.7, 0.8], [True, True], [0, 0])
    assert (found.brier_skill, found.auroc) == (None, None)


@pytest.mark.parametrize(
    ("confidences", "right", "sentences"),
    [([], [], []), ([0.5], [True, False], [0, 0]), ([1.5], [True], [0]), ([np.nan], [True], [0])],
)
def test_what_cannot_be_measured_is_refused(
    confidences: list[float], right: list[bool], sentences: list[int]
) -> None:
    with pytest.raises(DataError):
        calibration(confidences, right, sentences)


def test_words_are_right_along_the_shortest_edits() -> None:
    assert words_right("we want water now", words("we want some water")) == [
        True,
        True,
        False,
        True,
    ]
    assert words_right("", words("yes")) == [False]
    assert words_right("yes", []) == []


def test_a_word_that_its_language_splits_is_right_where_all_parts_are() -> None:
    zh = read_language("zh")
    assert words_right(zh.normalize("你好吗"), words("你好 吗"), zh) == [True, True]
    assert words_right(zh.normalize("你好吗"), words("你们 吗"), zh) == [False, True]
