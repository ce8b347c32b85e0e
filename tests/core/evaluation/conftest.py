"""Fixtures that the tests of evaluation share."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_evaluation import DAYS, tiny, write_session_files

from cortext.decoding.nbest import Hypothesis, NBest
from cortext.evaluation.scores import TrialResult
from cortext.text.inventory import RELEASE

__all__ = ["tiny"]


@pytest.fixture(scope="session")
def write_days():
    """Writes session files of given days below a directory."""
    return write_session_files


@pytest.fixture(scope="module")
def short_reports():
    """One figure of a trial in a report instead of six; test_report looks at them all."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("cortext.evaluation.report.N_PICTURES", 1)
        yield


@pytest.fixture
def result():
    """Makes a TrialResult from what a test cares about."""

    def make(
        number=0,
        sentence=None,
        text=None,
        phonemes=None,
        greedy=(),
        session=DAYS[0],
        corpus=None,
        n_bins=100,
    ):
        nbest = None if text is None else NBest((Hypothesis(text, -3.0, -2.0, -1.0),))
        phonemes = None if phonemes is None else tuple(phonemes.split())
        greedy = tuple(greedy.split()) if isinstance(greedy, str) else greedy
        logits_PV = np.zeros((4, len(RELEASE)), dtype=np.float32)
        return TrialResult(
            number, session, 1, number, n_bins, corpus, sentence, phonemes, greedy, logits_PV, nbest
        )

    return make
