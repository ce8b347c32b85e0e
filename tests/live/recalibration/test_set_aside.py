"""Utterances that can never be learnt from: each is named once, and the work goes on."""

import errno
import threading
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from recalibrating import DAYS, QUICK, Clock, candidates, recorded, say, service, work

from cortext.cli import run as cortext
from cortext.errors import CortextError, DataError, RunError
from cortext.models import AcousticModel
from cortext_live.recalibration.chain_entries import ChainContents
from cortext_live.recalibration.learner import Learner
from cortext_live.recalibration.watching import watch
from cortext_live.usage.kept_features import KeptFeatures
from cortext_live.usage.log import read_log
from cortext_live.usage.writer import now

pytestmark = pytest.mark.usefixtures("drawn_by_number")


def say_with(folder, trials, number, features_TC, when):
    """Say sentences of which one has other features; return its file."""
    said = list(trials)
    said[number] = replace(said[number], features_TC=features_TC)
    say(folder, said, ["i see you"] * len(said), when=when)
    return KeptFeatures(folder).path(read_log(folder).began, number)


def watched(running):
    news = []
    watch(running, threading.Event(), news.append, 0.0, once=True)
    return news


@pytest.mark.parametrize("changes", [QUICK, DAYS], ids=["one by one", "a day together"])
def test_an_utterance_too_short_for_a_frame_is_named_once_and_the_others_are_learnt(
    participant, tmp_path, changes
):
    trials, clock = recorded(participant)[:8], Clock()
    with service(participant, tmp_path, clock=clock, **changes) as running:
        short_TC = trials[3].features_TC[:2]
        say_with(tmp_path / "log", trials, 3, short_TC, clock.now)
        news = [each for each in watched(running) if "set_aside" in each]
        assert news == [
            {"set_aside": [3], "reason": "2 bins are too few for one frame of the model"}
        ]
        say(tmp_path / "log", trials[:1], ["i see you"], when=clock.now)
        watched(running)
        assert list(running.set_aside) == [3]
    (made,) = candidates(tmp_path / "chain")
    # One by one, a model waits for five that were learnt; of a day, for five that were said.
    assert made.facts["learnt"]["decoded"] == [1, 2, 4, 5, 6][: 5 if changes is QUICK else 4]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:40]), "is damaged"),
        (lambda path: (path.unlink(), path.mkdir()), "Is a directory"),
    ],
)
def test_a_file_that_cannot_be_read_is_set_aside(participant, tmp_path, damage, reason):
    trials, clock = recorded(participant)[:7], Clock()
    path = say_with(tmp_path / "log", trials, 1, trials[1].features_TC, clock.now)
    damage(path)
    with service(participant, tmp_path, clock=clock, **QUICK) as running:
        work(running)
        assert list(running.set_aside) == [1]
        assert reason in running.set_aside[1]
        assert running._learning.position.decoded or candidates(tmp_path / "chain")


def test_features_of_another_number_are_set_aside_and_deleted_ones_are_not_missed(
    participant, tmp_path
):
    trials, clock = recorded(participant)[:4], Clock()
    wide_TC = np.ones((50, 3), np.float32)
    say_with(tmp_path / "log", trials, 1, wide_TC, clock.now).with_name("other").write_bytes(b"")
    KeptFeatures(tmp_path / "log").path(read_log(tmp_path / "log").began, 2).unlink()
    with service(participant, tmp_path, clock=clock, **QUICK) as running:
        work(running)
        n_features = trials[0].features_TC.shape[1]
        assert running.set_aside == {1: f"it has 3 features; the model reads {n_features}"}


def fails_on(monkeypatch, trial, error):
    """Let models fail on the features of a trial."""
    logits = AcousticModel.logits

    def failing(self, features_TC, *more):
        if np.array_equal(features_TC, trial.features_TC):
            raise error
        return logits(self, features_TC, *more)

    monkeypatch.setattr(AcousticModel, "logits", failing)


@pytest.mark.parametrize("changes", [QUICK, DAYS], ids=["one by one", "a day together"])
def test_a_sentence_that_no_model_can_be_run_on_is_set_aside(
    participant, tmp_path, monkeypatch, changes
):
    trials, clock = recorded(participant)[:8], Clock()
    say(tmp_path / "log", trials, ["x"] * 8, when=clock.now)
    fails_on(monkeypatch, trials[3], DataError("it is odd"))
    with service(participant, tmp_path, clock=clock, **changes) as running:
        work(running)
        assert running.set_aside == {3: "it is odd"}
    (made,) = candidates(tmp_path / "chain")
    assert made.facts["learnt"]["decoded"] == [1, 2, 4, 5, 6][: 5 if changes is QUICK else 4]


def test_a_shortage_of_memory_is_waited_for_before_a_sentence_is_set_aside(
    participant, tmp_path, monkeypatch
):
    trials, clock = recorded(participant)[:8], Clock()
    say(tmp_path / "log", trials, ["x"] * 8, when=clock.now)
    fails_on(monkeypatch, trials[3], MemoryError())
    with service(participant, tmp_path, clock=clock, **QUICK) as running:
        for _ in range(2):
            with pytest.raises(CortextError, match="entry 3 of the log: MemoryError"):
                work(running)
        work(running)
        assert running.set_aside == {3: "MemoryError"}


@pytest.mark.parametrize("changes", [QUICK, DAYS], ids=["one by one", "a day together"])
def test_too_many_open_files_lose_no_sentence(participant, tmp_path, monkeypatch, changes):
    trials, clock = recorded(participant)[:8], Clock()
    say(tmp_path / "log", trials, ["x"] * 8, when=clock.now)
    with service(participant, tmp_path, clock=clock, **changes) as running:

        def refused(*_):
            raise OSError(errno.EMFILE, "Too many open files")

        with monkeypatch.context() as patched:
            patched.setattr(KeptFeatures, "load", refused)
            with pytest.raises(DataError, match="Too many open files"):
                work(running)
        work(running)
        assert running.set_aside == {}
    (made,) = candidates(tmp_path / "chain")
    assert made.facts["learnt"]["decoded"] == [1, 2, 3, 4, 5]


def test_too_little_memory_to_learn_is_named_and_waited_for(participant, tmp_path, monkeypatch):
    trials, clock = recorded(participant)[:8], Clock()
    say(tmp_path / "log", trials, ["x"] * 8, when=clock.now)
    with service(participant, tmp_path, clock=clock, **QUICK) as running:

        def short(*_, **__):
            raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")

        with monkeypatch.context() as patched:
            patched.setattr(Learner, "_train", short)
            with pytest.raises(RunError, match="too little memory to learn"):
                work(running)
        work(running)
    (made,) = candidates(tmp_path / "chain")
    assert made.facts["learnt"]["decoded"] == [1, 2, 3, 4, 5]


class Failing:
    """A service whose work fails so many times, on a chain without entries."""

    def __init__(self, n_times):
        self.left, self.set_aside = n_times, {}
        self.chain = ChainContents()

    def work(self):
        self.left -= 1
        if self.left >= 0:
            raise RunError("the chain is damaged")
        return False


def test_while_a_problem_lasts_it_is_said_once_and_tried_less_and_less_often():
    class Stop(threading.Event):
        waits = ()

        def wait(self, seconds):
            self.waits = (*self.waits, seconds)
            if len(self.waits) == 8:
                self.set()

    stop, news = Stop(), []
    watch(Failing(7), stop, news.append, 2.0)
    assert stop.waits == (4.0, 8.0, 16.0, 32.0, 60.0, 60.0, 60.0, 2.0)
    assert news == [{"error": "the chain is damaged"}]


def test_an_utterance_that_was_set_aside_can_be_deleted(participant, tmp_path, capsys):
    trials, log = recorded(participant)[:8], tmp_path / "log"
    path = say_with(log, trials, 3, trials[3].features_TC[:2], now() - timedelta(hours=1))
    options = ["--log", log, "--lm", participant.lm, "--out", tmp_path / "chain", "--once"]
    assert cortext(["recalibrate", *map(str, (participant.run, *options))]) == 0
    (line,) = [each for each in capsys.readouterr().err.splitlines() if "set aside" in each]
    command = line.rpartition("To delete it: cortext ")[2].split()
    assert cortext([*command, "--yes"]) == 0
    assert not path.exists()
    assert 3 in read_log(log).deleted
