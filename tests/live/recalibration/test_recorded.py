"""Features of a usage log as `recalibrate` reads them: their conventions, and raw ones."""

from dataclasses import replace

import numpy as np
import pytest

from cortext.data.conventions import RELEASE_CONVENTIONS
from cortext.errors import DataError, LiveError
from cortext_live.recalibration.recorded import LoggedSentences
from cortext_live.usage.kept_features import KeptFeatures
from cortext_live.usage.writer import UsageLog, UtteranceRecord

RAW = replace(RELEASE_CONVENTIONS, features="raw")
LONG_BINS = replace(RELEASE_CONVENTIONS, bin_ms=10.0)


def said(folder, conventions, n=3):
    """A log of utterances of 40 bins with means of 1, 2, 3 ... and unit variance."""
    rng = np.random.default_rng(0)
    x_NTC = [rng.normal(number + 1, 1, (40, 2)).astype(np.float32) for number in range(n)]
    with UsageLog(folder, conventions, kept_features=KeptFeatures(folder)) as log:
        for number, x_TC in enumerate(x_NTC):
            log.append(UtteranceRecord(number, "t15.2026.01.01", 0.8, "good morning"), x_TC)
            log.keep_features(x_TC)
    return x_NTC


def read(folder, conventions):
    found = LoggedSentences(folder, conventions, 2)
    found.refresh()
    return found


def test_raw_features_are_z_scored_by_those_before(tmp_path):
    """The second utterance by the mean and standard deviation of the first, bin by bin joined."""
    x_NTC = said(tmp_path, RAW)
    z_TC = read(tmp_path, RAW).sentence(1).features_TC
    before_TC = np.concatenate(x_NTC[:2]).astype(np.float64)
    mean_C, std_C = before_TC.mean(axis=0), before_TC.std(axis=0)
    # Live statistics grow with each bin; at the last one they are those of all bins so far.
    np.testing.assert_allclose(z_TC[-1], (x_NTC[1][-1] - mean_C) / std_C, rtol=0.05, atol=0.05)


def test_z_scores_stay_as_they_are_also_for_a_model_of_raw_features(tmp_path):
    x_NTC = said(tmp_path, RELEASE_CONVENTIONS)
    for conventions in (RELEASE_CONVENTIONS, RAW):
        found_TC = read(tmp_path, conventions).sentence(2).features_TC
        np.testing.assert_array_equal(found_TC, x_NTC[2])


@pytest.mark.parametrize(
    ("kept", "model", "what"),
    [
        (LONG_BINS, RELEASE_CONVENTIONS, "bins last 10 ms, not 20 ms"),
        (RAW, RELEASE_CONVENTIONS, "the features are raw, not z-scored"),
    ],
)
def test_features_that_the_run_does_not_read_are_refused(tmp_path, kept, model, what):
    said(tmp_path, kept)
    with pytest.raises(DataError, match=what) as refused:
        read(tmp_path, model)
    assert refused.value.where == tmp_path / "heard"


def test_a_log_takes_no_features_of_other_conventions(tmp_path):
    said(tmp_path, RAW)
    with pytest.raises(LiveError, match="the features are z-scored, not raw"):
        said(tmp_path, RELEASE_CONVENTIONS)
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "heard").iterdir()} == {0o600}


def test_a_log_without_features_is_read_by_a_run_of_other_bins(tmp_path):
    with UsageLog(tmp_path, LONG_BINS) as log:
        log.append(UtteranceRecord(0, "t15.2026.01.01", 0.8, "good morning"))
    found = read(tmp_path, LONG_BINS)
    assert [each.text for each in found.log.entries] == ["good morning"]
    assert found.sentence(0) is None
