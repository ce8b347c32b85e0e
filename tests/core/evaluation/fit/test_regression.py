"""Confidences fitted to decoded sentences, against scikit-learn and made-up words."""

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import brier_score_loss, roc_auc_score

from cortext.decoding.confidence import WORD_SIGNALS, log_odds
from cortext.errors import DataError
from cortext.evaluation.fit.calibration import calibration
from cortext.evaluation.fit.drifted import DriftedDay, statistics
from cortext.evaluation.fit.regression import BestSentence, fit_logistic, fit_sentences

WEIGHTS_K = np.array([1.0, 0.4, 0.0, -0.3, -1.2])


def made_up(n_sentences, generator, offset=0.0):
    """Sentences of five words that are right as often as a known regression says."""
    found = []
    for number in range(n_sentences):
        x_NK = generator.normal(size=(5, len(WORD_SIGNALS)))
        x_NK[:, -1] = x_NK[0, -1]
        p_N = 1 / (1 + np.exp(-(0.3 + offset + x_NK @ WEIGHTS_K)))
        right = (generator.random(5) < p_N).tolist()
        posteriors = (1 / (1 + np.exp(-2 - x_NK[:, 0]))).tolist()  # too high
        score_H = np.array([0.0, -1.0 - generator.random()])
        found.append(BestSentence(x_NK, posteriors, right, all(right), score_H, number % 2, number))
    return found


def test_newtons_method_finds_the_regression_that_scikit_learn_finds():
    generator = np.random.default_rng(1)
    x_NK = generator.normal(size=(300, 3)) * [1.0, 5.0, 0.1] + [0.0, 2.0, -1.0]
    right_N = generator.random(300) < 1 / (1 + np.exp(-x_NK[:, 0] - 0.2 * x_NK[:, 1]))
    found = fit_logistic(x_NK, right_N, ("a", "b", "c"), ridge=2.0)
    z_NK = (x_NK - x_NK.mean(axis=0)) / x_NK.std(axis=0)
    peer = LogisticRegression(C=0.5, tol=1e-10, max_iter=1000).fit(z_NK, right_N)
    assert [each.weight for each in found.signals.values()] == pytest.approx(
        peer.coef_[0].tolist(), abs=1e-4
    )
    assert found(x_NK) == pytest.approx(peer.predict_proba(z_NK)[:, 1], abs=1e-4)


def test_separable_words_and_constant_signals_give_finite_weights():
    x_NK = np.array([[0.0, 3.0], [1.0, 3.0], [2.0, 3.0], [3.0, 3.0]])
    found = fit_logistic(x_NK, np.array([False, False, True, True]), ("a", "b"))
    p_N = found(x_NK)
    assert found.signals["b"].weight == 0.0
    assert (np.diff(p_N) > 0).all()
    all_right = fit_logistic(x_NK, np.ones(4, dtype=bool), ("a", "b"))
    assert (all_right(x_NK) > 0.99).all()


def test_made_up_words_get_the_probabilities_that_they_were_drawn_with():
    generator = np.random.default_rng(2)
    fit = fit_sentences(made_up(1500, generator), 1500)
    slopes = [each.weight / each.scale for each in fit.words.signals.values()]
    assert slopes == pytest.approx(WEIGHTS_K, abs=0.15)
    others = made_up(500, generator)
    p_N = np.concatenate([fit.words(each.signals_NK) for each in others])
    right_N = np.concatenate([each.right for each in others])
    number_N = [each.trial for each in others for _ in each.right]
    found = calibration(p_N, right_N, number_N)
    assert found.ece < 0.06
    assert found.brier == pytest.approx(brier_score_loss(right_N, p_N))
    assert found.auroc == pytest.approx(roc_auc_score(right_N, p_N))
    assert fit.posteriors.brier_skill < 0 < fit.cross_fitted.brier_skill
    assert fit.cross_fitted_sentences.n == 1500


def test_measures_of_a_fit_come_from_the_other_half():
    generator = np.random.default_rng(3)
    # The two halves follow opposite rules: a fit to all words averages them, a cross-fit is wrong.
    sentences = made_up(200, generator)
    turned = [
        BestSentence(
            -each.signals_NK if each.half else each.signals_NK,
            each.posteriors,
            each.right,
            each.is_right,
            each.score_H,
            each.half,
            each.trial,
        )
        for each in sentences
    ]
    assert fit_sentences(turned, 200).cross_fitted.auroc < 0.5


def test_too_few_wrong_words_are_refused():
    generator = np.random.default_rng(4)
    with pytest.raises(DataError, match="wrong words"):
        fit_sentences(made_up(60, generator, offset=30.0), 60)


def test_a_day_without_drift_leaves_features_as_they_are():
    generator = np.random.default_rng(5)
    x_TC = generator.normal(size=(50, 6)).astype(np.float32)
    day = DriftedDay.draw(0.0, np.ones(6), np.full(6, 3.0), generator)
    assert day.changed(x_TC, generator) == pytest.approx(x_TC, abs=1e-6)


def test_a_drifted_day_does_what_its_fields_say():
    x_TC = np.array([[1.0, 10.0, 4.0]], dtype=np.float32)
    day = DriftedDay(
        source_C=np.array([1, 0, 2]),
        gain_C=np.array([2.0, 1.0, 1.0]),
        offset_C=np.array([0.0, 0.5, 9.0]),
        alive_C=np.array([True, True, False]),
        noise=0.0,
        mean_C=np.array([0.0, 8.0, 5.0]),
        scale_C=np.array([1.0, 4.0, 1.0]),
    )
    # z-scores are 1, 0.5, -1; the first two trade places, the third is lost and keeps its mean
    expected = [[0.5 * 2, 8 + 4 * (1 + 0.5), 5.0]]
    assert day.changed(x_TC, np.random.default_rng(0)) == pytest.approx(np.array(expected))


def test_statistics_are_those_of_all_bins():
    trials = [np.array([[0.0, 2.0]]), np.array([[3.0, 2.0], [6.0, 2.0]])]
    mean_C, scale_C = statistics(trials)
    assert mean_C == pytest.approx([3.0, 2.0])
    assert scale_C == pytest.approx([np.sqrt(6.0), 0.0])


def test_log_odds_stay_finite():
    assert np.isfinite(log_odds(np.array([0.0, 0.5, 1.0]))).all()
    assert log_odds(np.array([0.5, 0.75])) == pytest.approx([0.0, np.log(3)])
