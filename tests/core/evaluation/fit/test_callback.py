"""Decoder options fitted at the end of a training and of an adaptation."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from made_fit import made_fit

from cortext.cli import run as cortext
from cortext.config import save_config
from cortext.data import make_trial, write_session
from cortext.decoding import DecoderOptions
from cortext.decoding.log_probs import log_softmax
from cortext.decoding.ngram import LanguageModel
from cortext.errors import Interrupted
from cortext.evaluation import evaluate
from cortext.evaluation.fit import callback
from cortext.evaluation.fit.callback import FitDecoder
from cortext.evaluation.fit.fitted_file import weights_checksum
from cortext.evaluation.fit.options import FittedOptions, Half, WordErrors
from cortext.evaluation.recognise import recognise
from cortext.models.gru import GRUConfig, InputNetworkConfig
from cortext.processes import threads
from cortext.training import DatasetConfig, TrainConfig, train

pytestmark = pytest.mark.usefixtures("short_reports")

CONFIG = TrainConfig(
    model=GRUConfig(n_units=8, n_layers=1, rnn_dropout=0, input_network=InputNetworkConfig()),
    # Fewer than there are, so that the model and the fit have to make the same choice.
    dataset=DatasetConfig(batch_size=4, days_per_batch=2, feature_subset=[0, 2, 3, 5, 6, 7]),
    num_training_batches=2,
    batches_per_val_step=2,
    lr_decay_steps=2,
    lr_decay_steps_day=2,
    lr_warmup_steps=0,
    lr_warmup_steps_day=0,
)


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Small matrices are fastest with one thread."""
    with threads(1):
        yield


@pytest.fixture(scope="module")
def trained(tiny, tmp_path_factory):
    """A run with fitted options; only to be read."""
    out = tmp_path_factory.mktemp("trained") / "run"
    fit = FitDecoder(tiny.lm, tiny.data, threads=1)
    train(CONFIG, tiny.data, out, lm=tiny.lm, progress=False, callbacks=[fit])
    assert fit.fitted == FittedOptions.read(out)
    return out


@pytest.fixture
def unfinished(trained, tmp_path):
    """A copy of the run as a fit that was interrupted leaves it."""
    run = shutil.copytree(trained, tmp_path / "run")
    (run / "summary.json").unlink()
    return run


def resumed(run, tiny, lm=None):
    fit = FitDecoder(lm or tiny.lm, tiny.data, threads=1)
    train(CONFIG, tiny.data, run, lm=tiny.lm, progress=False, callbacks=[fit], resume=True)
    return fit.fitted


def test_training_fits_to_its_validation_trials_with_its_best_weights(tiny, trained, tmp_path):
    fitted = FittedOptions.read(trained)
    on = fitted.fitted_on
    assert (on.data, on.split, on.trials, on.words) == (str(tiny.data), "val", 6, 18)
    assert fitted.weights == weights_checksum(trained) is not None
    metrics = evaluate(trained, tiny.data, "val", tiny.lm, tmp_path / "eval")
    errors = metrics.edits["word"]
    found = sum(errors[name] for name in ("substitutions", "insertions", "deletions"))
    assert found == fitted.word_errors.cross_fitted
    assert metrics.n_cross_fitted == 6
    assert "cross-fitted" in metrics.caveats[0]
    assert metrics.caveats[1].startswith(
        "training kept the weights with the best PER on these trials"
    )
    assert (
        "Training kept the weights with the best PER"
        in (tmp_path / "eval" / "report.html").read_text()
    )
    other = evaluate(trained, tiny.data, "train", None, tmp_path / "eval")
    assert other.caveats == []


def test_the_fit_sees_the_logits_of_an_evaluation(tiny, unfinished, monkeypatch):
    seen = {}

    def look(run, log_probs, trials, *rest, **settings):
        seen.update(zip(trials, log_probs, strict=True))
        raise KeyboardInterrupt

    (unfinished / "decoder.yaml").unlink()
    monkeypatch.setattr(callback, "fit_to_run", look)
    with pytest.raises(Interrupted):
        resumed(unfinished, tiny)
    found = recognise(unfinished, tiny.data, "val").trials
    assert len(seen) == len(found) == 6
    for trial, (name, log_probs_PV) in zip(found, seen.items(), strict=True):
        assert (trial.session, trial.block, trial.trial, trial.reference) == (
            name.session,
            name.block,
            name.trial,
            name.reference,
        )
        np.testing.assert_allclose(log_probs_PV, log_softmax(trial.logits_PV), atol=1e-5)


def test_an_interrupted_fit_loses_nothing_and_is_done_again(tiny, unfinished, monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    (unfinished / "decoder.yaml").unlink()
    weights = (unfinished / "model.safetensors").read_bytes()
    with monkeypatch.context() as patch:
        patch.setattr(callback, "fit_to_run", stopped)
        with pytest.raises(Interrupted, match="the model is complete; continue with --resume"):
            resumed(unfinished, tiny)
    assert not (unfinished / "decoder.yaml").exists()
    assert not (unfinished / "summary.json").exists()
    fitted = resumed(unfinished, tiny)
    assert fitted == FittedOptions.read(unfinished)
    assert (unfinished / "summary.json").is_file()
    assert (unfinished / "model.safetensors").read_bytes() == weights


def test_a_fit_is_done_again_only_where_it_is_not_that_of_the_run(tiny, unfinished, tmp_path):
    before = FittedOptions.read(unfinished)
    assert resumed(unfinished, tiny).created == before.created
    (unfinished / "summary.json").unlink()
    other = shutil.copytree(tiny.lm, tmp_path / "lm")
    with (other / "lexicon.txt").open("a") as lexicon:
        lexicon.write("seen S IY N SIL\n")
    with_other = resumed(unfinished, tiny, other)
    assert with_other.language_model.path == str(other)
    (unfinished / "summary.json").unlink()
    (unfinished / "decoder.yaml").write_text("damaged")
    assert resumed(unfinished, tiny).language_model == before.language_model


def test_a_run_whose_validation_says_one_sentence_is_trained_without_a_fit(tiny, tmp_path, capsys):
    for split in ("train", "val"):
        trials = [
            make_trial(np.ones((150, 8), dtype=np.float32), "t15.2023.08.11", 1, n, "I see you")
            for n in range(4)
        ]
        write_session(tmp_path / "data" / "t15.2023.08.11" / f"data_{split}.hdf5", trials)
    fit = FitDecoder(tiny.lm)
    train(
        CONFIG,
        tmp_path / "data",
        tmp_path / "run",
        lm=tiny.lm,
        overrides=["dataset.days_per_batch=1"],
        callbacks=[fit],
    )
    assert fit.fitted is None
    said = " ".join(capsys.readouterr().err.split())
    assert "no decoder options were fitted: " in said
    assert "at least two are needed" in said
    assert (tmp_path / "run" / "summary.json").is_file()
    assert not (tmp_path / "run" / "decoder.yaml").exists()


@pytest.mark.slow
def test_the_command_fits_unless_asked_not_to(tiny, tmp_path, capsys):
    save_config(CONFIG, tmp_path / "config.yaml")
    files = ["--config", tmp_path / "config.yaml", "--data", tiny.data, "--lm", tiny.lm]
    assert cortext([str(part) for part in ("train", *files, "--out", tmp_path / "run")]) == 0
    assert "decoder options: fitted on 6 val trials, WER" in capsys.readouterr().out
    assert FittedOptions.read(tmp_path / "run").fitted_on.data == str(tiny.data)
    out = ["--out", tmp_path / "none", "--no-fit", "--json"]
    assert cortext([str(part) for part in ("train", *files, *out)]) == 0
    assert json.loads(capsys.readouterr().out)["decoder_word_errors"] is None
    assert FittedOptions.read(tmp_path / "none") is None


def adapted(run, tiny, out, *options):
    day = ["--session", "t15.2023.08.13", "--batches", "1"]
    parts = ("adapt", run, "--data", tiny.data, "--out", out, *day, *options)
    assert cortext([str(part) for part in parts]) == 0
    return FittedOptions.read(out)


def test_an_adapted_run_takes_over_its_sources_options(tiny, trained, tmp_path, capsys):
    before = FittedOptions.read(trained)
    taken = adapted(trained, tiny, tmp_path / "without")
    assert taken.options == before.options
    assert taken.source == str(trained)
    assert f"taken over from {trained}" in capsys.readouterr().out
    # Nine words are too few to fit on.
    few = adapted(trained, tiny, tmp_path / "few", "--lm", tiny.lm)
    assert (few.options, few.source) == (before.options, str(trained))


@pytest.mark.parametrize(("cross_fitted", "is_better"), [(7, True), (8, False)])
def test_fitted_options_replace_the_sources_where_they_make_fewer_errors(
    tiny, trained, tmp_path, monkeypatch, cross_fitted, is_better
):
    """The fit begins with the source's options, which make eight errors."""
    before = FittedOptions.read(trained)
    found = made_fit(
        tiny.lm, DecoderOptions(nbest=2), word_errors=WordErrors(9, 8, 6, cross_fitted)
    )

    def fit_to_run(run, log_probs, trials, inventory, decoder, **_):
        assert decoder.options == before.options
        found.write(run)
        return found

    monkeypatch.setattr(callback, "FEWEST_WORDS", 9)
    monkeypatch.setattr(callback, "fit_to_run", fit_to_run)
    kept = adapted(trained, tiny, tmp_path / "adapted", "--lm", tiny.lm)
    assert kept.options == (found.options if is_better else before.options)
    assert kept.source == (None if is_better else str(trained))


@pytest.mark.slow
def test_an_adapted_run_without_fitted_options_before_is_fitted_to_its_day(
    tiny, trained, tmp_path, monkeypatch
):
    monkeypatch.setattr(callback, "FEWEST_WORDS", 9)
    run = shutil.copytree(trained, tmp_path / "run")
    (run / "decoder.yaml").unlink()
    fitted = adapted(run, tiny, tmp_path / "adapted", "--lm", tiny.lm)
    assert fitted.source is None
    assert (fitted.fitted_on.trials, fitted.fitted_on.words) == (3, 9)
    assert adapted(run, tiny, tmp_path / "none") is None


@pytest.mark.slow
def test_an_interrupted_fit_leaves_the_adapted_run(tiny, trained, tmp_path, capsys, monkeypatch):
    def stopped(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(callback, "FEWEST_WORDS", 9)
    monkeypatch.setattr(callback, "fit_to_run", stopped)
    out = tmp_path / "adapted"
    parts = ["adapt", trained, "--data", tiny.data, "--out", out, "--lm", tiny.lm]
    parts += ["--session", "t15.2023.08.13", "--batches", "1"]
    assert cortext([str(part) for part in parts]) == 2
    said = capsys.readouterr().err
    assert "the model is complete; fit with cortext evaluate --fit" in said
    assert (out / "adaptation.json").is_file()
    assert FittedOptions.read(out).source == str(trained)


@pytest.mark.slow
def test_options_of_the_search_reach_a_combination_of_runs(tiny, trained, tmp_path, capsys):
    """Two runs with options of their own: the first one's are used, cross-fitted."""
    for number, nbest in enumerate((2, 3)):
        run = shutil.copytree(trained, tmp_path / f"run{number}")
        fitted = FittedOptions.read(run)
        halves = [
            Half(DecoderOptions(nbest=nbest + side + 1), half.trials)
            for side, half in enumerate(fitted.halves)
        ]
        options = DecoderOptions(nbest=nbest)
        replace(fitted, options=options, halves=halves).write(run)
        evaluate(run, tiny.data, "val", tiny.lm, tmp_path / f"eval{number}")
    evaluations = [tmp_path / "eval0", tmp_path / "eval1"]
    parts = ["ensemble", *evaluations, "--method", "average", "--lm", tiny.lm]
    capsys.readouterr()
    assert cortext([str(part) for part in (*parts, "--out", tmp_path / "both")]) == 0
    printed = capsys.readouterr()
    assert "average, cross-fitted" in printed.out
    assert f"decoder options: those of {evaluations[0]}, fitted to its run" in printed.err
    lines = (tmp_path / "both" / "nbest.jsonl").read_text().splitlines()
    assert {len(json.loads(line)["hypotheses"]) for line in lines} == {3, 4}
    other = tmp_path / "other"
    (tmp_path / "more.txt").write_text("i see you\nyou see me\nwe see you\nyou see you\n")
    LanguageModel.build([tmp_path / "more.txt"], 2, other)
    parts[parts.index(tiny.lm)] = other
    assert cortext([str(part) for part in (*parts, "--out", tmp_path / "other-both")]) == 0
    assert "were fitted with another language model" in capsys.readouterr().err
