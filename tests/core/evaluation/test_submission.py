import dataclasses
import json
import math
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from cortext.data import Problem
from cortext.data.dataset import Description
from cortext.decoding.log_probs import log_softmax
from cortext.decoding.nbest import Hypothesis, NBest, Word
from cortext.errors import DataError
from cortext.evaluation import decode, evaluate
from cortext.evaluation.recognise import number_trials
from cortext.evaluation.scores import TrialResult, bleu
from cortext.evaluation.settings import LargeModelFiles, SearchKeywords, SearchSettings
from cortext.evaluation.submission import write_nbest, write_predictions


def test_a_python_program_gives_every_setting_of_a_search_by_keyword():
    settings = {field.name for field in dataclasses.fields(SearchSettings)}
    assert set(SearchKeywords.__annotations__) == settings - {"lm"}
    # A Python program searches in one thread, a command on all cores.
    assert SearchSettings.of("lm", {}) == SearchSettings(lm="lm", threads=1)
    assert SearchSettings.of("lm", {"threads": None}).threads is None
    given = SearchSettings.of("lm", {"llm": Path("models/small"), "context": "yes"})
    assert (given.llm, given.context) == (LargeModelFiles("models/small"), "yes")


@pytest.mark.parametrize("function", [evaluate, decode])
def test_an_unknown_keyword_is_refused_before_the_work(function, tmp_path):
    with pytest.raises(TypeError, match="'thread'"):
        function(tmp_path / "run", tmp_path / "data", "val", "lm", tmp_path / "out.csv", thread=2)


def test_predictions_are_normalised_and_numbered(tmp_path, result):
    trials = [result(0, text="Hello, World!"), result(2, text="it's well-known")]
    problem = Problem("data_test.hdf5", "trial_0001", "input_features", "NaN")
    found = SimpleNamespace(
        trials=trials, skipped={1: problem, -1: problem}, notes=["a note"], options=None
    )
    texts = write_predictions(tmp_path / "p.csv", found)
    assert (texts.skipped, texts.notes) == ((problem, problem), ("a note",))
    assert texts == ["hello world", "", "it's well-known"]
    assert (tmp_path / "p.csv").read_bytes() == b"id,text\n0,hello world\n1,\n2,it's well-known\n"


def test_a_text_file_has_one_sentence_a_line_and_an_empty_one_for_a_trial_left_out(
    tmp_path, result
):
    problem = Problem("data_test.hdf5", "trial_0001", "input_features", "NaN")
    found = SimpleNamespace(
        trials=[result(0, text="Hello, World!"), result(2, text="'cause it's well-known")],
        skipped={1: problem},
        notes=[],
        options=None,
    )
    write_predictions(tmp_path / "submission.TXT", found)
    expected = b"hello world\n\n'cause it's well-known\n"
    assert (tmp_path / "submission.TXT").read_bytes() == expected


def test_a_text_file_is_refused_where_a_whole_file_has_no_lines_in_it(tmp_path, result):
    problem = Problem("data/day/data_test.hdf5", None, None, "not HDF5")
    found = SimpleNamespace(trials=[result(0, text="yes")], skipped={-1: problem})
    says = "data/day/data_test.hdf5: cannot be read, and each of its trials needs a line of the"
    with pytest.raises(DataError, match=says):
        write_predictions(tmp_path / "submission.txt", found)
    assert not (tmp_path / "submission.txt").exists()


def test_nbest_lines_are_exactly_as_documented(tmp_path):
    words = (Word("yes", 160.0, 400.0, 0.9),)
    nbest = NBest(
        (Hypothesis("yes", -3.5, -3.0, -0.5, words), Hypothesis("", -math.inf, -9.0, 0.0))
    )
    trial = TrialResult(4, "day", 2, 7, 90, None, "Yes.", None, (), np.zeros((1, 41)), nbest)
    write_nbest(tmp_path / "n.jsonl", [trial], "reference")
    assert json.loads((tmp_path / "n.jsonl").read_text()) == {
        "id": 4,
        "session": "day",
        "block": 2,
        "trial": 7,
        "reference": "Yes.",
        "hypotheses": [
            {
                "text": "yes",
                "score": -3.5,
                "acoustic": -3.0,
                "ngram": -0.5,
                "llm": None,
                "words": [{"word": "yes", "start_ms": 160.0, "end_ms": 400.0, "confidence": 0.9}],
            },
            {"text": "", "score": None, "acoustic": -9.0, "ngram": 0.0, "llm": None, "words": []},
        ],
        "source": "reference",
        "degraded": None,
    }


class Split:
    """A packed split, as far as numbering uses it."""

    name = "test"
    sessions = ("a", "b", "c")
    day_N = np.array([0, 0, 1, 2])

    def __len__(self):
        return 4


def test_trials_left_out_keep_their_numbers():
    # files: a has trials 0, (1), 2; b has (0), 1; c has 0
    problems = [
        Problem("data/a/data_test.hdf5", "trial_0001", "input_features", "NaN"),
        Problem("data/b/data_test.hdf5", "trial_0000", "input_features", "NaN"),
        Problem("data/a/data_val.hdf5", "trial_0000", "input_features", "NaN"),
        Problem("data/d/data_test.hdf5", None, None, "not HDF5"),
    ]
    ids, skipped = number_trials(Split(), problems)
    assert ids == [0, 2, 4, 5]
    assert skipped == {1: problems[0], 3: problems[1], -1: problems[3]}


def test_log_softmax_is_normalised_and_does_not_overflow():
    log_probs_PV = log_softmax(np.array([[1e4, 1e4], [0.0, math.log(3)]], dtype=np.float32))
    assert log_probs_PV.dtype == np.float32
    np.testing.assert_allclose(np.exp(log_probs_PV), [[0.5, 0.5], [0.25, 0.75]], rtol=1e-5)


def test_bleu_is_that_of_sacrebleu():
    sacrebleu = pytest.importorskip("sacrebleu")
    references = ["the cat sat on the mat today", "it's the thought that counts"]
    hypotheses = ["the cat sat on a mat today", "it's the thought that counts"]
    expected = sacrebleu.corpus_bleu(hypotheses, [references], tokenize="none").score
    assert bleu(references, hypotheses) == pytest.approx(expected)
    assert bleu(references, references) == pytest.approx(100)
    assert bleu([], []) is None


def test_bleu_is_none_with_a_hint_where_sacrebleu_is_missing(monkeypatch):
    monkeypatch.setattr("cortext.evaluation.scores.bleu_available", lambda: False)
    assert bleu(["yes"], ["yes"]) is None


def test_the_releases_table_tells_days_and_corpora(real_data):
    description = Description.read(real_data / "t15" / "t15_copyTaskData_description.csv")
    assert description.post_implant_day("t15.2023.08.11") == 25
    assert description.corpus("t15.2023.08.11", 2) == "50-Word"
    assert description.corpus("t15.2023.08.11", 99) is None
    assert description.post_implant_day("someone else's day") is None
