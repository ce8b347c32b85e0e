import csv
import json
import os
import shutil
from dataclasses import asdict

import h5py
import numpy as np
import pytest

from cortext.data import make_trial, write_session
from cortext.decoding import Decoder
from cortext.errors import CortextError, DataError
from cortext.evaluation import decode, error_rate, evaluate
from cortext.evaluation.recognise import recognise
from cortext.evaluation.settings import SearchSettings
from cortext.models import AcousticModel, build_model, load_model, model_config, save_model
from cortext.models.card import Smoothing
from cortext.text.inventory import RELEASE

pytestmark = pytest.mark.usefixtures("short_reports")

DAYS = ("t15.2023.08.11", "t15.2023.08.13")


@pytest.fixture(scope="module")
def evaluated(tiny, tmp_path_factory):
    out = tmp_path_factory.mktemp("evaluated") / "eval"
    steps = []
    metrics = evaluate(
        tiny.run,
        tiny.data,
        "val",
        tiny.lm,
        out,
        options={"nbest": 3},
        progress=lambda *step: steps.append(step),
    )
    return out, metrics, steps


@pytest.fixture(scope="module")
def described(tiny, tmp_path_factory):
    """An evaluation with a table of blocks, and without a training split."""
    folder = tmp_path_factory.mktemp("described")
    data = shutil.copytree(
        tiny.data, folder / "data", ignore=shutil.ignore_patterns("data_train*", ".packed")
    )
    table = folder / "description.csv"
    table.write_text(
        "Date,Post-implant day,Block number,Number of sentences,Corpus,Split\n"
        "2023-08-11,25,1,2,50-Word,Val\n2023-08-11,25,2,1,Switchboard,Val\n2023-08-13,27,1,2,50-Word,Val\n"
    )
    metrics = evaluate(tiny.run, data, "val", tiny.lm, folder / "eval", description=table)
    return folder / "eval", metrics


@pytest.fixture(scope="module")
def of_training(tiny, tmp_path_factory):
    """An evaluation of the training split, with options in a YAML file."""
    folder = tmp_path_factory.mktemp("of_training")
    options = folder / "options.yaml"
    out = folder / "eval"
    options.write_text("nbest: 1\n")
    return out, evaluate(tiny.run, tiny.data, "train", tiny.lm, out, options=options)


def rows(path):
    with path.open(newline="") as file:
        return list(csv.reader(file))


def nbest(out):
    return [json.loads(line) for line in (out / "nbest.jsonl").read_text().splitlines()]


def test_an_evaluation_directory_holds_what_its_format_promises(evaluated):
    out, _, _ = evaluated
    names = {path.name for path in out.iterdir()}
    assert names == {
        "metrics.json",
        "predictions.csv",
        "nbest.jsonl",
        "report.html",
        "confusion.csv",
        "logits",
    }
    assert [path.name for path in out.parent.iterdir()] == ["eval"]


def test_metrics_file_says_what_was_returned(evaluated):
    out, metrics, _ = evaluated
    written = json.loads((out / "metrics.json").read_text())
    assert written == json.loads(json.dumps(asdict(metrics)))
    promised = "per wer cer n_trials n_words wer_ci95 per_session wer_seen wer_unseen seconds"
    assert set(promised.split()) <= written.keys()
    assert (written["n_trials"], written["n_words"]) == (6, 18)
    assert written["provenance"]["config"] == {"seed": 7}
    assert written["provenance"]["options"]["nbest"] == 3
    assert written["provenance"]["versions"]["numpy"] == np.__version__
    assert {"load", "model", "search", "scoring", "report", "total"} == written["seconds"].keys()


def test_metrics_are_those_of_the_written_predictions(evaluated):
    out, metrics, _ = evaluated
    texts = [text for _, text in rows(out / "predictions.csv")[1:]]
    references = [line["reference"] for line in nbest(out)]
    assert metrics.wer == error_rate(references, texts).rate
    assert metrics.cer == error_rate(references, texts, "char").rate
    low, high = metrics.wer_ci95
    assert low <= metrics.wer <= high


def test_seen_sentences_are_those_of_the_training_split(evaluated):
    _, metrics, _ = evaluated
    assert (metrics.seen.n_trials, metrics.unseen.n_trials) == (2, 4)  # "I see you!" on both days
    assert metrics.wer_seen == metrics.seen.wer
    assert metrics.wer_unseen == metrics.unseen.wer


def test_a_group_without_trials_has_null_rates(of_training):
    _, metrics = of_training
    assert metrics.wer_unseen is None
    assert metrics.wer_seen == metrics.wer


def test_without_a_training_split_seen_and_unseen_are_null(described):
    _, metrics = described
    found = (metrics.wer_seen, metrics.wer_unseen, metrics.seen, metrics.unseen)
    assert found == (None,) * 4


def test_words_outside_the_language_model_are_reported(evaluated):
    _, metrics, _ = evaluated
    assert metrics.oov == {"n": 2, "rate": 2 / 18, "words": {"and": 2}}


def test_predictions_are_numbered_over_sessions_in_order_and_trials_in_file_order(evaluated):
    out, _, _ = evaluated
    header, *predictions = rows(out / "predictions.csv")
    assert header == ["id", "text"]
    assert [int(number) for number, _ in predictions] == list(range(6))
    places = [(line["id"], line["session"], line["trial"]) for line in nbest(out)]
    assert places == [(3 * day + n, name, n) for day, name in enumerate(DAYS) for n in range(3)]


def test_nbest_lines_follow_the_schema(evaluated):
    out, _, _ = evaluated
    for line in nbest(out):
        assert list(line) == [
            "id",
            "session",
            "block",
            "trial",
            "reference",
            "hypotheses",
            "source",
            "degraded",
        ]
        assert (line["source"], line["degraded"]) == ("native", None)
        assert 1 <= len(line["hypotheses"]) <= 3
        scores = [hypothesis["score"] for hypothesis in line["hypotheses"]]
        assert scores == sorted(scores, reverse=True)
        for hypothesis in line["hypotheses"]:
            assert list(hypothesis) == ["text", "score", "acoustic", "ngram", "llm", "words"]
            assert [word["word"] for word in hypothesis["words"]] == hypothesis["text"].split()
            for word in hypothesis["words"]:
                assert list(word) == ["word", "start_ms", "end_ms", "confidence"]
                assert 0 <= word["confidence"] <= 1
                assert 0 <= word["start_ms"] < word["end_ms"]


def test_logits_are_float16_of_single_trials_in_the_models_order(evaluated, tiny):
    out, _, _ = evaluated
    files = sorted((out / "logits").iterdir())
    assert [path.name for path in files][:2] == [
        "00000_t15.2023.08.11_b01_t000.npy",
        "00001_t15.2023.08.11_b01_t001.npy",
    ]
    assert len(files) == 6
    model = load_model(tiny.run)
    with h5py.File(tiny.data / DAYS[1] / "data_val.hdf5") as file:
        features_TC = file["trial_0002"]["input_features"][:].astype(np.float16)
    logits_PV = np.load(files[5])
    assert logits_PV.dtype == np.float16
    np.testing.assert_allclose(logits_PV, model.logits(features_TC, DAYS[1]), atol=1e-3)


def test_sentences_are_what_the_decoder_says_of_the_models_log_probabilities(evaluated, tiny):
    out, _, _ = evaluated
    model = load_model(tiny.run)
    decoder = Decoder.from_dir(tiny.lm, {"nbest": 3})
    with h5py.File(tiny.data / DAYS[0] / "data_val.hdf5") as file:
        features_TC = file["trial_0001"]["input_features"][:].astype(np.float16)
    best = decoder.decode(model.log_probs(features_TC, DAYS[0]), model.inventory)[0]
    found = nbest(out)[1]["hypotheses"][0]
    assert found["text"] == best.text
    assert found["score"] == pytest.approx(best.score, abs=1e-3)


def test_confusion_table_adds_up_to_the_reference_phonemes(evaluated):
    out, metrics, _ = evaluated
    header, *lines = rows(out / "confusion.csv")
    assert (header[0], header[-1], lines[-1][0]) == ("reference", "deleted", "inserted")
    assert sum(int(count) for line in lines[:-1] for count in line[1:]) == metrics.n_phonemes


def test_progress_counts_model_and_search_to_the_end(evaluated):
    _, _, steps = evaluated
    assert steps[-1] == (12, 12)
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)


def test_sentences_that_are_scored_otherwise_than_labelled_are_noted(tiny, tmp_path):
    features_TC = np.random.default_rng(0).normal(size=(150, 8))
    trial = make_trial(features_TC, DAYS[0], 1, 1, "we\u2019re here")
    write_session(tmp_path / "data" / DAYS[0] / "data_val.hdf5", [trial])
    metrics = evaluate(tiny.run, tmp_path / "data", "val", None, tmp_path / "eval")
    (note,) = metrics.notes
    assert note.startswith("1 sentence has marks that labels read and scoring drops")


def test_unlabelled_trials_are_predicted_and_not_measured(tiny, tmp_path):
    metrics = evaluate(tiny.run, tiny.data, "test", tiny.lm, tmp_path / "eval")
    assert (metrics.per, metrics.wer, metrics.cer, metrics.wer_ci95, metrics.wer_seen) == (
        None,
    ) * 5
    assert metrics.n_trials == 4
    assert len(rows(tmp_path / "eval" / "predictions.csv")) == 5
    assert not (tmp_path / "eval" / "confusion.csv").exists()
    assert "has no labels" in (tmp_path / "eval" / "report.html").read_text()


def test_an_earlier_evaluation_is_replaced_whole_here_without_a_language_model(
    evaluated, tiny, tmp_path
):
    """Without a language model only phonemes are measured."""
    out = shutil.copytree(evaluated[0], tmp_path / "eval")
    metrics = evaluate(tiny.run, tiny.data, "val", None, out)
    assert metrics.per is not None
    assert (metrics.wer, metrics.cer, metrics.oov, metrics.bleu) == (None,) * 4
    names = {path.name for path in out.iterdir()}
    assert names == {"metrics.json", "report.html", "confusion.csv", "logits"}
    assert [path.name for path in tmp_path.iterdir()] == ["eval"]


def test_the_description_table_gives_days_and_corpora(described):
    out, metrics = described
    assert metrics.post_implant_day == {DAYS[0]: 25, DAYS[1]: 27}
    assert {name: rates.n_trials for name, rates in metrics.per_corpus.items()} == {
        "50-Word": 4,
        "Switchboard": 1,
    }
    assert list(metrics.per_session_corpus[DAYS[0]]) == ["50-Word", "Switchboard"]
    assert "days after implantation" in (out / "report.html").read_text()


def test_an_unknown_session_is_named_with_the_trial_and_the_nearest_known_one(
    tiny, tmp_path, write_days
):
    data = write_days(tmp_path / "data", ("t15.2023.08.14",))
    with pytest.raises(
        DataError, match=r"t15\.2023\.08\.14/block 1/trial 0.*did you mean 't15\.2023\.08\.1[13]'"
    ) as error:
        evaluate(tiny.run, data, "val", tiny.lm, tmp_path / "eval")
    assert "\n" not in str(error.value)
    assert not (tmp_path / "eval").exists()


def test_an_unknown_split_is_refused(tiny, tmp_path):
    with pytest.raises(CortextError, match="val"):
        evaluate(tiny.run, tiny.data, "valid", tiny.lm, tmp_path / "eval")


def test_features_of_another_number_are_refused(tiny, tmp_path):
    trial = {"features": np.zeros((150, 4), dtype=np.float32)}
    from cortext.data import make_trial, write_session

    write_session(
        tmp_path / "data" / DAYS[0] / "data_val.hdf5",
        [make_trial(trial["features"], DAYS[0], 1, 0, "I see")],
    )
    with pytest.raises(DataError, match="4 features found, the model needs 8"):
        evaluate(tiny.run, tmp_path / "data", "val", None, tmp_path / "eval")


@pytest.fixture
def with_bad_trial(tiny, tmp_path):
    """The data with NaN in the first test trial of the first day, and in the first of the
    validation trials.
    """
    data = shutil.copytree(tiny.data, tmp_path / "data", ignore=shutil.ignore_patterns(".packed"))
    for split in ("val", "test"):
        with h5py.File(data / DAYS[0] / f"data_{split}.hdf5", "r+") as file:
            file["trial_0000"]["input_features"][3, 3] = np.nan
    return data


def test_bad_trials_and_unknown_sessions_are_left_out_on_request_and_reported(
    tiny, tmp_path, with_bad_trial, write_days
):
    with pytest.raises(DataError, match="NaN"):
        evaluate(tiny.run, with_bad_trial, "val", tiny.lm, tmp_path / "eval")
    write_days(with_bad_trial, ["t15.2023.09.01"])
    metrics = evaluate(tiny.run, with_bad_trial, "val", tiny.lm, tmp_path / "eval", skip_bad=True)
    assert (metrics.n_trials, metrics.n_skipped) == (5, 4)
    bad, *unknown = metrics.skipped
    assert (bad["id"], bad["trial"], bad["field"]) == (0, "trial_0000", "input_features")
    assert "NaN" in bad["message"]
    assert "NaN" in (tmp_path / "eval" / "report.html").read_text()
    assert {trial["field"] for trial in unknown} == {"session"}
    assert {trial["trial"].split("/")[0] for trial in unknown} == {"t15.2023.09.01"}


def test_a_bad_trial_keeps_its_row_in_the_predictions(tiny, tmp_path, with_bad_trial):
    texts = decode(tiny.run, with_bad_trial, "test", tiny.lm, tmp_path / "out.csv", skip_bad=True)
    whole = decode(tiny.run, tiny.data, "test", tiny.lm, tmp_path / "whole.csv")
    assert texts == ["", *whole[1:]]
    assert [(problem.trial, problem.field) for problem in texts.skipped] == [
        ("trial_0000", "input_features")
    ]


def test_a_trial_too_short_for_the_model_is_named(tiny, tmp_path):
    from cortext.data import make_trial, write_session

    features_TC = np.zeros((150, 8), dtype=np.float32)
    trials = [make_trial(features_TC, DAYS[0], 1, 0), make_trial(features_TC[:16], DAYS[0], 1, 1)]
    write_session(tmp_path / "data" / DAYS[0] / "data_test.hdf5", trials)
    with pytest.raises(DataError, match=r"t15\.2023\.08\.11/block 1/trial 1.*16 bins"):
        decode(tiny.run, tmp_path / "data", "test", tiny.lm, tmp_path / "out.csv")
    assert not (tmp_path / "out.csv").exists()
    assert (
        len(
            decode(
                tiny.run, tmp_path / "data", "test", tiny.lm, tmp_path / "out.csv", skip_bad=True
            )
        )
        == 2
    )


def test_a_directory_that_holds_something_else_is_never_replaced(tiny, tmp_path):
    (tmp_path / "thesis.tex").write_text("years of work")
    with pytest.raises(DataError, match="not an evaluation directory"):
        evaluate(tiny.run, tiny.data, "val", tiny.lm, tmp_path)
    assert (tmp_path / "thesis.tex").read_text() == "years of work"


def test_a_failure_while_writing_leaves_what_was_there(evaluated, tiny, tmp_path, monkeypatch):
    out = shutil.copytree(evaluated[0], tmp_path / "eval")
    before = (out / "metrics.json").read_text()

    def full(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("cortext.evaluation.report.write_report", full)
    with pytest.raises(DataError, match="No space left"):
        evaluate(tiny.run, tiny.data, "val", None, out)
    assert (out / "metrics.json").read_text() == before
    assert [path.name for path in tmp_path.iterdir()] == ["eval"]


def test_an_output_that_cannot_be_written_fails_before_the_work(tiny, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"file/eval: cannot be written"):
        evaluate(tiny.run, tmp_path / "no data", "val", None, tmp_path / "file" / "eval")
    with pytest.raises(DataError, match=r"file/out\.csv: cannot be written"):
        decode(tiny.run, tmp_path / "no data", "test", tiny.lm, tmp_path / "file" / "out.csv")
    with pytest.raises(DataError, match=r"is a directory; the name of a CSV file"):
        decode(tiny.run, tmp_path / "no data", "test", tiny.lm, tmp_path)
    with pytest.raises(DataError, match=r"no data: no such directory"):
        decode(tiny.run, tmp_path / "no data", "test", tiny.lm, tmp_path / "out.csv")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_decode_writes_the_sentences_that_evaluate_predicts(tiny, tmp_path, evaluated):
    out, _, _ = evaluated
    decode(
        tiny.run,
        tiny.data,
        "val",
        tiny.lm,
        tmp_path / "new" / "predictions.csv",
        options={"nbest": 3},
    )
    assert (tmp_path / "new" / "predictions.csv").read_bytes() == (
        out / "predictions.csv"
    ).read_bytes()


def test_decoding_without_a_language_model_is_refused(tiny, tmp_path):
    with pytest.raises(CortextError, match="language-model"):
        decode(tiny.run, tiny.data, "val", None, tmp_path / "out.csv")


def test_options_may_be_a_yaml_file(of_training, tiny, tmp_path):
    out, _ = of_training
    assert {len(line["hypotheses"]) for line in nbest(out)} == {1}
    options = tmp_path / "options.yaml"
    for text, complaint in (("nbset: 1\n", "did you mean 'nbest'"), ("nbest: 0\n", "nbest is 0")):
        options.write_text(text)
        with pytest.raises(CortextError, match=rf"options\.yaml: .*{complaint}"):
            decode(tiny.run, tiny.data, "val", tiny.lm, tmp_path / "out.csv", options=options)


def test_perfect_logits_give_no_errors(tiny, tmp_path, monkeypatch):
    def perfect(model, split, chosen, progress):
        """Every label for one frame, then a blank."""
        logits = []
        for i in chosen:
            best_P = np.stack([split.labels(i), np.zeros_like(split.labels(i))], axis=1).ravel()
            logits.append(20 * np.eye(len(model.inventory), dtype=np.float32)[best_P])
        return logits

    monkeypatch.setattr("cortext.evaluation.recognise.logits_of", perfect)
    metrics = evaluate(tiny.run, tiny.data, "train", tiny.lm, tmp_path / "eval")
    assert (metrics.per, metrics.wer, metrics.cer) == (0, 0, 0)
    lines = rows(tmp_path / "eval" / "confusion.csv")[1:]
    counts_RH = np.array([line[1:] for line in lines], dtype=int)
    assert np.array_equal(counts_RH, np.diag(np.diag(counts_RH)))


def test_session_files_in_a_folder_that_cannot_be_written_are_to_be_packed_elsewhere(
    tiny, tmp_path, monkeypatch
):
    data = tmp_path / "data"
    shutil.copytree(tiny.data, data, ignore=shutil.ignore_patterns(".packed"))
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(DataError, match=f"run cortext pack {data} --out PACKED"):
        evaluate(tiny.run, data, "val", None, tmp_path / "eval")


def test_words_of_a_model_of_single_bins_lie_within_their_trial(tiny, tmp_path):
    config = model_config({"kind": "gru", "n_units": 8, "n_layers": 1, "patch_size": 0})
    network = build_model(config, n_features=8, n_days=len(DAYS), n_classes=len(RELEASE))
    reads = {
        "n_features": 8,
        "inventory": RELEASE,
        "smoothing": Smoothing(),
        "feature_subset": None,
    }
    save_model(AcousticModel(network, sessions=DAYS, **reads), tmp_path / "run")
    trials = recognise(tmp_path / "run", tiny.data, "val", SearchSettings(lm=tiny.lm)).trials
    words = [(word, trial.n_bins) for trial in trials for word in trial.nbest[0].words]
    assert words
    for word, n_bins in words:
        assert 0 <= word.start_ms < word.end_ms <= 20 * n_bins
