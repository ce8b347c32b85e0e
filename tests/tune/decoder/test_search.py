"""Searches for decoder options, on made-up logits of a dozen sentences."""

import csv
import json
import shutil
from dataclasses import replace

import jiwer
import numpy as np
import pytest
from engine_cases import NEUTRAL

from cortext.config import load_config
from cortext.decoding import Decoder, DecoderOptions
from cortext.decoding.log_probs import log_softmax
from cortext.decoding.options import LLMOptions
from cortext.errors import ConfigError, DataError, RunError
from cortext.evaluation.decoder_files import DecoderFiles
from cortext.evaluation.settings import LargeModelFiles
from cortext_tune import DecoderSearch, parse_space, tune_decoder
from cortext_tune.decoder import trial as decoder_trial
from cortext_tune.decoder.material import DevSet, describe, is_search_file, tuning_parts
from cortext_tune.study import begin_study
from cortext_tune.workers import InProcess

pytest.importorskip("optuna")
START = DecoderOptions(**NEUTRAL | dict(blank_penalty=1.0, beam=12.0))
SPACE = parse_space(["blank_penalty=1:100:log", "word_score=-4:1", "recombine=max,logadd"])


@pytest.fixture
def tune(evaluation, lm, tmp_path):
    """Searches on the evaluation."""

    def run(
        out="search",
        held_out=0.0,
        start=START,
        given=(),
        seed=0,
        retry_failed=False,
        report=lambda line: None,
        **settings,
    ):
        settings = {"space": SPACE, "n_trials": 1, "time_weight": 0.0, **settings}
        parts = tuning_parts(evaluation, held_out, seed)
        search = DecoderSearch(seed=seed, **settings)
        more = {"given": given, "retry_failed": retry_failed, "report": report}
        return tune_decoder(*parts, DecoderFiles(lm, start), tmp_path / out, search, **more)

    return run


def decoded(evaluation, lm, options) -> tuple[list[str], list[str]]:
    """References and sentences, by the decoder itself."""
    lines = [json.loads(line) for line in (evaluation / "nbest.jsonl").read_text().splitlines()]
    references = [line["reference"].lower().rstrip(".") for line in lines]
    files = sorted((evaluation / "logits").iterdir())
    log_probs = [log_softmax(np.load(file).astype(np.float32)) for file in files]
    return references, [
        nbest[0].text for nbest in Decoder.from_dir(lm, options).decode_batch(log_probs, "release")
    ]


def test_what_options_are_worth_is_what_decoding_with_them_gives(tune, evaluation, lm):
    tuned = tune(n_trials=3)
    for trial in tuned.trials:
        references, found = decoded(evaluation, lm, trial.options)
        assert tuned.wer(trial) == pytest.approx(jiwer.wer(references, found))
        assert trial.value == pytest.approx(100 * jiwer.wer(references, found))
        assert trial.metrics["ms_per_frame"] > 0
    assert len({tuned.wer(trial) for trial in tuned.trials}) > 1


def test_the_search_ends_with_a_file_of_options_that_make_fewer_errors(
    tune, evaluation, lm, tmp_path, pictures
):
    tuned = tune(n_trials=14)
    start, best = tuned.judged
    assert (start.name, best.name) == ("start", "best")
    assert best.wer < start.wer
    options = load_config(tmp_path / "search" / "options.yaml", DecoderOptions)
    assert options == tuned.options
    assert (options.beam, options.llm) == (START.beam, START.llm)
    assert best.wer == pytest.approx(jiwer.wer(*decoded(evaluation, lm, options)))
    rows = list(csv.DictReader((tmp_path / "search" / "trials.csv").read_text().splitlines()))
    assert len(rows) == 14
    assert [float(row["value"]) for row in rows] == sorted(float(row["value"]) for row in rows)
    assert (tmp_path / "search" / "trials.png").read_bytes().startswith(b"\x89PNG")


def test_time_has_its_price(tune, monkeypatch):
    """Options that take longer, by a pretended clock, lose to options that make a few more
    errors.
    """
    slow = {"max": 4.0, "logadd": 1.0}

    def work(job):
        seconds = slow[job.decoder.options.recombine]
        return {"errors": [0] * len(job.indices), "ms_per_frame": seconds, "degraded": None}

    monkeypatch.setattr(decoder_trial.DecodeJob, "work", work)
    space = parse_space(["recombine=max,logadd"])
    tuned = tune(n_trials=2, space=space, time_weight=0.5, start=DecoderOptions(recombine="max"))
    assert [trial.value for trial in tuned.trials] == [2.0, 0.5]
    assert tuned.options.recombine == "logadd"


def test_the_search_continues_where_it_was_and_ends_as_one_that_was_not_stopped(tune, monkeypatch):
    whole = tune("whole", n_trials=11)
    tune("parts", n_trials=4)
    parts = tune("parts", n_trials=11)
    assert [trial.options for trial in parts.trials] == [trial.options for trial in whole.trials]
    assert [trial.value for trial in parts.trials] == [trial.value for trial in whole.trials]
    assert parts.options == whole.options
    monkeypatch.setattr(InProcess, "start", None)  # nothing is decoded again
    assert tune("parts", n_trials=11).options == whole.options


def test_sentences_that_are_held_out_are_not_tuned_on(tune, evaluation):
    part, rest = tuning_parts(evaluation, 0.3, 0)
    assert not set(part.references) & set(rest.references)
    assert sorted((*part.indices, *rest.indices)) == list(range(24))
    assert 7 <= len(rest.indices) <= 9
    assert tuning_parts(evaluation, 0.3, 1)[1] != rest
    tuned = tune(n_trials=4, held_out=0.3)
    for row in tuned.judged:
        assert (row.tuned.n_utterances, row.held_out.n_utterances) == (
            len(part.indices),
            len(rest.indices),
        )
        assert row.held_out.low <= row.held_out.wer <= row.held_out.high
    assert all(len(trial.metrics["errors"]) == len(part.indices) for trial in tuned.trials)


def test_another_evaluation_may_be_what_is_held_out(evaluation, write_evaluation, lm, tmp_path):
    other = write_evaluation(tmp_path / "other", 6, noise=0.5)
    parts = tuning_parts(evaluation, other, 0)
    search = DecoderSearch(SPACE, n_trials=1)
    (row,) = tune_decoder(
        *parts, DecoderFiles(lm, DecoderOptions()), tmp_path / "out", search
    ).judged
    assert (row.tuned.n_utterances, row.held_out.n_utterances) == (24, 6)
    assert row.held_out.wer == pytest.approx(jiwer.wer(*decoded(other, lm, DecoderOptions())))


def test_an_evaluation_that_was_made_anew_is_read_anew(write_evaluation, lm, tmp_path):
    def errors(out: str, noise: float) -> list[int]:
        if (tmp_path / "eval").exists():
            shutil.rmtree(tmp_path / "eval")
        parts = tuning_parts(write_evaluation(tmp_path / "eval", 6, noise), 0.0, 0)
        files = DecoderFiles(lm, DecoderOptions())
        return (
            tune_decoder(*parts, files, tmp_path / out, DecoderSearch(SPACE, 1))
            .trials[0]
            .metrics["errors"]
        )

    assert sum(errors("noisy", 8.0)) > 0
    assert sum(errors("clear", 0.1)) == 0


def test_a_sample_is_decoded_by_all_trials_and_the_best_few_are_judged_by_all_utterances(
    tune, monkeypatch
):
    jobs = []
    original = decoder_trial.DecodeJob.work
    monkeypatch.setattr(
        decoder_trial.DecodeJob, "work", lambda job: jobs.append(job.indices) or original(job)
    )
    tuned = tune(n_trials=8, sample=6, finalists=3)
    assert {len(places) for places in jobs[:8]} == {6}
    assert len(set(jobs[:8])) == 1
    assert {len(places) for places in jobs[8:]} == {24}
    assert 3 <= len(jobs[8:]) <= 4  # the three best, and the start
    best = tuned.judged[-1]
    assert best.tuned.n_utterances == 24
    assert best.wer <= tuned.judged[0].wer


def test_a_trial_that_is_worse_than_most_on_the_way_is_given_up(tune):
    good = [
        replace(START, blank_penalty=30.0, word_score=score) for score in (0.0, -0.5, -1.0, -1.5)
    ]
    bad = replace(START, blank_penalty=30.0, word_score=-100.0)
    tuned = tune(
        n_trials=6,
        start=good[0],
        given=[*good[1:], bad, replace(START, word_score=-200.0)],
        prune=True,
    )
    assert [trial.state for trial in tuned.trials] == ["finished"] * 4 + ["pruned"] * 2
    assert 0 < len(tuned.trials[4].metrics["errors"]) < 24
    assert tuned.options in good


def test_given_options_are_tried_after_the_start_and_shown(tune):
    given = [
        DecoderOptions(recombine="max", nbest=3),
        DecoderOptions(word_score=0.0, blank_penalty=1000.0),
    ]
    tuned = tune(n_trials=4, given=given)
    assert [trial.options["blank_penalty"] for trial in tuned.trials[:3]] == [1.0, 32.0, 1000.0]
    assert {row.name.removesuffix(", the best") for row in tuned.judged} >= {"start", "given 1"}
    # A thousand is outside.
    assert tuned.trials[2].settings == {
        "word_score": 0.0,
        "recombine": "logadd",
    }
    later = DecoderOptions(word_score=-0.5)  # given in a later sitting
    more = tune(n_trials=5, given=[*given, later])
    assert more.trials[4].options["word_score"] == -0.5
    assert "given 3" in {row.name.removesuffix(", the best") for row in more.judged}


def test_another_search_in_the_same_directory_is_refused(tune, evaluation, lm, tmp_path):
    tune()
    with pytest.raises(RunError, match="begun with seed = 0, now it is 1"):
        tune(seed=1)
    with pytest.raises(RunError, match=r"begun with options.beam = 12.0, now it is 10.0"):
        tune(start=replace(START, beam=10.0))
    (lm / "README").write_text("a note beside it")
    try:
        tune()
    finally:
        (lm / "README").unlink()
    other = shutil.copytree(lm, tmp_path / "lm")
    content = bytearray((other / "lm.bin").read_bytes())
    content[-1] ^= 1  # of the same size
    (other / "lm.bin").write_bytes(content)
    search = DecoderSearch(SPACE, time_weight=0.0)
    with pytest.raises(RunError, match=r"begun with language_model.lm.bin = '\d+ bytes, "):
        begin_study(
            tmp_path / "search",
            describe(
                *tuning_parts(evaluation, 0.0, 0), DecoderFiles(other, START), "", SPACE, search
            ),
            is_search_file,
        )
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "thesis.tex").write_text("years")
    with pytest.raises(RunError, match=r"something else than a search: thesis\.tex"):
        tune("thesis")


def test_a_trial_that_fails_is_reported_with_its_reason_and_the_search_continues(tune, monkeypatch):
    original = decoder_trial.DecodeJob.work

    def work(job):
        if job.decoder.options.recombine == "max":
            raise MemoryError("no room")
        return original(job)

    monkeypatch.setattr(decoder_trial.DecodeJob, "work", work)
    tuned = tune(n_trials=8)
    failed = [trial for trial in tuned.trials if trial.state == "failed"]
    assert failed
    assert all(trial.settings["recombine"] == "max" for trial in failed)
    assert "MemoryError: no room" in failed[0].reason
    assert tuned.options.recombine == "logadd"
    assert tune(n_trials=8).trials == tuned.trials
    monkeypatch.undo()
    again = tune(n_trials=8, retry_failed=True)
    assert [trial.state for trial in again.trials] == ["finished"] * 8
    assert {str(trial.options) for trial in again.trials} == {
        str(trial.options) for trial in tuned.trials
    }


def test_a_trial_in_which_something_was_missing_says_so(tune, monkeypatch, tmp_path):
    """Its error rate is not that of a search with a large model, and people must be able to see
    that.
    """
    lines, lacking = [], "the large model: out of memory"
    monkeypatch.setattr(
        decoder_trial.DecodeJob,
        "work",
        lambda job: {"errors": [0] * len(job.indices), "ms_per_frame": 1.0, "degraded": lacking},
    )
    tuned = tune(n_trials=1, report=lines.append)
    assert lines == [
        "trial 0 of 1, blank_penalty=1 word_score=0 recombine=logadd: WER 0.00 %, 1.000 ms a"
        f" frame; {lacking}"
    ]
    (row,) = csv.DictReader((tmp_path / "search" / "trials.csv").read_text().splitlines())
    assert (row["state"], row["reason"]) == ("finished", lacking)
    assert tuned.to_json()["trials"][0]["reason"] == lacking


def test_where_every_trial_fails_the_first_reason_is_the_error_and_they_can_be_tried_again(
    tune, monkeypatch
):
    def work(job):
        raise MemoryError

    monkeypatch.setattr(decoder_trial.DecodeJob, "work", work)
    with pytest.raises(
        RunError, match=r"every trial failed; the first: MemoryError \(see .*--retry-failed"
    ):
        tune(n_trials=2)
    monkeypatch.undo()
    assert [trial.state for trial in tune(n_trials=2, retry_failed=True).trials] == ["finished"] * 2


def test_nothing_that_can_be_searched_or_tuned_on_is_said_in_one_line(
    evaluation, write_evaluation, tmp_path
):
    llm = LLMOptions(mode="fusion")
    spaces = DecoderSearch(parse_space(["llm.weight=0:1", "beam=8:20"])).spaces
    with pytest.raises(ConfigError, match=r"llm.weight is searched, and no large model is given"):
        spaces(START, False)
    with pytest.raises(ConfigError, match=r"llm.mode cannot be swept after decoding"):
        DecoderSearch(parse_space(["llm.mode=fusion,rescore"])).spaces(START, True)
    with pytest.raises(ConfigError, match=r"unknown key beem; did you mean 'beam'"):
        DecoderSearch(parse_space(["beem=1:2"])).spaces(START, False)
    assert [list(space) for space in spaces(START, True)] == [["beam"], ["llm.weight"]]
    assert [list(space) for space in spaces(replace(START, llm=llm), True)] == [
        ["llm.weight", "beam"],
        [],
    ]
    with pytest.raises(ConfigError, match=r"of 24 utterances 0\.01 cannot be held out"):
        tuning_parts(evaluation, 0.01, 0)
    with pytest.raises(ConfigError, match="held_out is 1; at least 0"):
        tuning_parts(evaluation, 1, 0)
    with pytest.raises(ConfigError, match="both tuned on and held out"):
        tuning_parts(evaluation, evaluation, 0)
    with pytest.raises(DataError, match=r"no nbest.jsonl"):
        DevSet.read(tmp_path)
    folder = write_evaluation(tmp_path / "eval", 2)
    (folder / "logits" / "00001_day_b01_t001.npy").unlink()
    with pytest.raises(DataError, match="no logits of trial 1"):
        DevSet.read(folder)
    lines = [
        json.loads(line) | {"reference": None}
        for line in (folder / "nbest.jsonl").read_text().splitlines()
    ]
    (folder / "nbest.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(DataError, match="no trial has a reference"):
        DevSet.read(folder)
    assert LargeModelFiles("a/b").resolved().model == "a/b"
