"""Options fitted on known sentences."""

import numpy as np
import pytest

from cortext.errors import ConfigError, DataError, DecodingError
from cortext_lm.ensemble import Candidate, Candidates, EnsembleOptions
from cortext_lm.ensemble.fit import choose, count_errors, fit, tried_options


def test_the_first_options_stay_unless_others_lead_by_more_than_the_noise():
    # leads 1, 1, 1, 0: 3 in all; their deviation is sqrt(3) / 4, that of the sum sqrt(4) times as
    # much, 0.87
    assert choose(np.array([[1, 0], [1, 0], [1, 0], [0, 0]])) == 1
    # leads 1, 1, 0, 0: 2 in all, which is not more than 2 * sqrt(4) / 2
    assert choose(np.array([[1, 0], [1, 0], [0, 0], [0, 0]])) == 0
    # leads 1, -1, 1, 0: 1 in all
    assert choose(np.array([[1, 0], [0, 1], [1, 0], [0, 0]])) == 0
    assert choose(np.array([[1, 1], [2, 2]])) == 0
    assert choose(np.array([[2, 1, 0]] * 5)) == 2


def trial(number, reference, *texts):
    return Candidates.of(texts, id=number, reference=reference)


def test_errors_are_counted_by_trial_and_options():
    trials = [trial(0, "A b.", "a b", "a b", "c"), trial(1, "a", "", "a b", "a c")]
    tried = [EnsembleOptions(), EnsembleOptions(method="mbr"), EnsembleOptions(null_weight=3)]
    errors_NK, length_N = count_errors(trials, tried)
    # second trial: "a" and a tie of nothing, b and c, which nothing wins as it came first; mbr: "a
    # b" or "a c" null_weight 3: where a third says nothing, that is as much as all words; of "a b"
    # and "c" b is left
    assert errors_NK.tolist() == [[0, 0, 1], [0, 1, 1]]
    assert length_N.tolist() == [2, 1]


def test_fitting_finds_what_helps_and_says_how_much():
    # one of two systems always adds a word that was not said
    trials = [trial(number, "a b", "a b x", "a b") for number in range(9)]
    found = fit(trials, tried_options(EnsembleOptions(), ["rover", "mbr"], trials))
    assert (found.options.null_weight, found.wer, found.baseline, found.tried) == (1.5, 0.0, 0.5, 4)


def test_factors_of_scores_and_confidences_are_tried_where_there_are_some():
    base = EnsembleOptions(nbest=3)
    plain = [trial(0, "a", "a")]
    assert len(tried_options(base, ["rover"], plain)) == 3
    sure = [Candidates(((Candidate(("a",), -1.0, (0.5,)),),), reference="a")]
    assert len(tried_options(base, ["rover"], sure)) == 3 * 4 * 2
    assert len(tried_options(base, ["mbr"], sure)) == 4
    first = tried_options(base, ["rover", "mbr"], sure)[0]
    assert first == EnsembleOptions(nbest=3)


def test_fitting_needs_references():
    with pytest.raises(DataError, match="trial 5: has no reference"):
        fit([trial(5, None, "a")], [EnsembleOptions()])
    with pytest.raises(DataError, match="no words"):
        fit([trial(5, "?", "a")], [EnsembleOptions()])
    with pytest.raises(DataError, match="average"):
        tried_options(EnsembleOptions(), ["average"], [trial(0, "a", "a")])


def test_options_are_kept_in_a_file(tmp_path):
    options = EnsembleOptions(method="rover-lm", weights=(1, 2.5), null_weight=0.8, candidates=7)
    options.write(tmp_path / "kept.yaml")
    assert EnsembleOptions.read(tmp_path / "kept.yaml") == options
    (tmp_path / "kept.yaml").write_text("metod: mbr\n")
    with pytest.raises(
        ConfigError, match=r"kept\.yaml: unknown key metod; did you mean 'method'\?"
    ):
        EnsembleOptions.read(tmp_path / "kept.yaml")
    (tmp_path / "kept.yaml").write_text("alpha: 2\n")
    with pytest.raises(DecodingError, match=r"kept\.yaml: alpha is 2"):
        EnsembleOptions.read(tmp_path / "kept.yaml")


@pytest.mark.parametrize(
    ("field", "value", "expected"),
    [
        ("method", "rovr", r"did you mean 'rover'\?"),
        ("mean", "harmonic", "mean is 'harmonic'"),
        ("nbest", 1.5, "nbest is 1.5; a finite int is needed"),
        ("alpha", float("nan"), "alpha is nan"),
        ("null_weight", -1, "null_weight is -1"),
        ("lm_weight", True, "lm_weight is True"),
        ("weights", (0.0, 0.0), "all weights are 0"),
        ("weights", (1.0, -1.0), "numbers of at least 0"),
        ("weights", "equal", "weights is 'equal'"),
        ("free", 1, "free is 1"),
        ("alfa", 1, r"did you mean 'alpha'\?"),
    ],
)
def test_wrong_options_are_refused(field, value, expected):
    with pytest.raises(DecodingError, match=expected):
        EnsembleOptions().changed({field: value})
