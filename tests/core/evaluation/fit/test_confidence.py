"""A calibration is used for the weights, language model and options of its fit, and no others."""

import re

import numpy as np
import pytest
import yaml
from made_fit import made_fit
from untrained import untrained_run

from cortext.decoding import DecoderOptions
from cortext.decoding.confidence import SENTENCE_SIGNALS, WORD_SIGNALS, Logistic, Signal
from cortext.decoding.ngram import LanguageModel
from cortext.evaluation.fit.calibration import calibration
from cortext.evaluation.fit.confidence import (
    RAW,
    FittedConfidence,
    choose_confidence,
    keep_confidence,
)
from cortext.evaluation.fit.regression import ConfidenceFit

FITTED = DecoderOptions(beam=11)


def regression(names):
    return Logistic(0.5, {name: Signal(0.0, 1.0, 0.25) for name in names})


@pytest.fixture(scope="module")
def lms(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lms")
    for name, text in (("own", "see you"), ("other", "hear me")):
        LanguageModel.build([text], 2, folder / name)
    return folder


@pytest.fixture
def run(lms, tmp_path):
    run = untrained_run(tmp_path, ["t15.2026.01.01"], 8)
    measured = calibration(np.array([0.25, 0.75]), [False, True], [0, 1])
    words, sentences = regression(WORD_SIGNALS), regression(SENTENCE_SIGNALS)
    fit = ConfidenceFit(words, sentences, measured, measured, measured, 2, 0.1)
    keep_confidence(run, fit, made_fit(lms / "own", FITTED), data="data", split="val")
    return run


def test_what_it_was_fitted_to_is_calibrated(lms, run):
    found = choose_confidence(run, lms / "own", FITTED)
    assert found.calibrator is not None
    assert found.calibrator.words == regression(WORD_SIGNALS)
    assert found.note == f"confidences: probabilities, calibrated on 2 val trials of {run}"


@pytest.mark.parametrize(
    ("lm", "options", "settings", "said"),
    [
        (
            "own",
            FITTED.changed({"beam": 12}),
            {},
            "other decoder options; `cortext evaluate --fit` with --options",
        ),
        ("other", FITTED, {}, "another language model; fit it anew with `cortext evaluate --fit`"),
        ("own", FITTED, {"has_llm": True}, "is for sentences that no large model ranks"),
    ],
)
def test_anything_else_has_posteriors_and_one_line_says_why(lms, run, lm, options, settings, said):
    found = choose_confidence(run, lms / lm, options, **settings)
    assert found.calibrator is None
    assert found.note.startswith(RAW)
    assert said in found.note
    assert "\n" not in found.note


def test_a_run_that_was_adapted_from_it_keeps_the_calibration(lms, run, tmp_path):
    new, newer = (
        untrained_run(tmp_path / name, ["t15.2026.01.01", "t15.2026.01.02"], 8)
        for name in ("new", "newer")
    )
    FittedConfidence.take_over(run, new)
    FittedConfidence.take_over(new, newer)
    for each in (new, newer):
        found = choose_confidence(each, lms / "own", FITTED)
        assert found.calibrator == choose_confidence(run, lms / "own", FITTED).calibrator
        assert found.note.endswith(f"trials of {run}, which it was adapted from")


@pytest.mark.parametrize("damage", ["other weights", "no calibration"])
def test_nothing_is_kept_of_a_calibration_for_other_weights_or_of_a_damaged_one(
    run, tmp_path, damage
):
    new = untrained_run(tmp_path / "new", ["t15.2026.01.01"], 8)
    path = run / "confidence.yaml"
    if damage == "other weights":
        path.write_text(re.sub("^weights: .*$", "weights: other", path.read_text(), flags=re.M))
        assert FittedConfidence.read(run).weights == "other"
    else:
        path.write_text("words: 1\n")
    assert FittedConfidence.take_over(run, new) is None
    assert not (new / "confidence.yaml").exists()


def test_the_file_keeps_its_first_line_and_the_order_of_its_keys(run):
    header, *lines = (run / "confidence.yaml").read_text().splitlines()
    assert header == (
        "# Calibration of confidences that cortext has fitted to this run; delete the file to go"
        " without it."
    )
    keys = (
        "format_version words sentences weights decoder_options language_model fitted_on seconds"
        " created version source"
    )
    assert list(yaml.safe_load("\n".join(lines))) == keys.split()


def test_other_weights_have_posteriors(lms, run):
    untrained_run(run, ["t15.2026.01.01", "t15.2026.01.02"], 8)
    found = choose_confidence(run, lms / "own", FITTED)
    assert found.calibrator is None
    assert "other weights; fit it anew with `cortext evaluate --fit`" in found.note


def test_nothing_fitted_or_nothing_searched_has_posteriors(lms, run):
    for where, lm in ((None, lms / "own"), (run, None), (lms, lms / "own")):
        assert choose_confidence(where, lm, FITTED).note == RAW
