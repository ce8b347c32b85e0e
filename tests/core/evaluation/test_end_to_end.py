import json

import pytest

from cortext.decoding.ngram import LanguageModel
from cortext.evaluation import evaluate
from cortext.training import train
from cortext_data.simulate import simulate


@pytest.mark.slow
def test_a_simulated_participant_is_trained_and_evaluated(tmp_path):
    simulate(tmp_path / "data", "tiny", seed=1)
    LanguageModel.build([tmp_path / "data" / "text" / "lm.txt"], 3, tmp_path / "lm")
    overrides = ["num_training_batches=10", "batches_per_val_step=5", "batches_per_train_log=5"]
    summary = train(
        "tiny",
        tmp_path / "data",
        tmp_path / "run",
        lm=tmp_path / "lm",
        overrides=overrides,
        progress=False,
    )
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "run" / "packed").iterdir()}
    metrics = evaluate(
        tmp_path / "run", tmp_path / "data", "val", tmp_path / "lm", tmp_path / "eval", threads=2
    )
    assert metrics.n_trials == summary.n_val_trials
    # No sentence of val occurs in train.
    assert (metrics.seen.n_trials, metrics.unseen.n_trials) == (
        0,
        12,
    )
    assert metrics.wer_seen is None
    assert 40 <= metrics.words_per_minute <= 80
    assert set(metrics.per_corpus) == {"grammar", "handwritten"}
    # training's packed copy is used as it is, and the reader finds the curves that training wrote
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert not (tmp_path / "data" / ".packed").exists()
    assert '<section id="training">' in (tmp_path / "eval" / "report.html").read_text()
    assert (
        json.loads((tmp_path / "eval" / "metrics.json").read_text())["provenance"]["config"]["seed"]
        == 10
    )
