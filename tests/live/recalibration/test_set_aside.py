"""Utterances that can never be learnt from: each is named once, and the work goes on."""

import errno
import threading
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
from recalibrating import DAYS, QUICK

from cortext.cli import run as cortext
from cortext.errors import CortextError, DataError, RunError
from cortext.models import AcousticModel
from cortext_live.recalibration.chain_entries import ChainContents
from cortext_live.recalibration.learner import Learner
from cortext_live.recalibration.watching import watch
from cortext_live.usage.kept_features import KeptFeatures
from cortext_live.usage.log import read_log

pytestmark = pytest.mark.usefixtures("drawn_by_number")


def say_with(world, count, number, features_TC):
    """Let sentences be uttered of which one has other features; return its file."""
    trials = world.trials[:count]
    trials[number] = replace(trials[number], features_TC=features_TC)
    world.say(trials, "i see you")
    return KeptFeatures(world.log).path(read_log(world.log).began, number)


def watched(service):
    news = []
    watch(service, threading.Event(), news.append, 0.0, once=True)
    return news


@pytest.mark.parametrize("way", [QUICK, DAYS], ids=["one by one", "a day together"])
def test_an_utterance_too_short_for_a_frame_is_named_once_and_the_others_are_learnt(world, way):
    service = world.start(**way)
    say_with(world, 8, 3, world.trials[3].features_TC[:2])
    news = [each for each in watched(service) if "set_aside" in each]
    assert news == [{"set_aside": [3], "reason": "2 bins are too few for one frame of the model"}]
    world.say(1, "i see you")
    watched(service)
    assert list(service.set_aside) == [3]
    # One by one, a model waits for five that were learnt; of a day, for five that were uttered.
    assert world.learnt("decoded") == [[1, 2, 4, 5, 6][: 5 if way is QUICK else 4]]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:40]), "is damaged"),
        (lambda path: (path.unlink(), path.mkdir()), "Is a directory"),
    ],
)
def test_a_file_that_cannot_be_read_is_set_aside(world, damage, reason):
    damage(say_with(world, 7, 1, world.trials[1].features_TC))
    service = world.start(**QUICK)
    world.work()
    assert list(service.set_aside) == [1]
    assert reason in service.set_aside[1]
    assert world.position.decoded or world.made


def test_features_of_another_number_are_set_aside_and_deleted_ones_are_not_missed(world):
    path = say_with(world, 4, 1, np.ones((50, 3), np.float32))
    path.with_name("other").write_bytes(b"")
    KeptFeatures(world.log).path(read_log(world.log).began, 2).unlink()
    service = world.start(**QUICK)
    world.work()
    n_features = world.trials[0].features_TC.shape[1]
    assert service.set_aside == {1: f"it has 3 features; the model reads {n_features}"}


def fails_on(monkeypatch, trial, error):
    """Let models fail on the features of a trial."""
    logits = AcousticModel.logits

    def failing(self, features_TC, *more):
        if np.array_equal(features_TC, trial.features_TC):
            raise error
        return logits(self, features_TC, *more)

    monkeypatch.setattr(AcousticModel, "logits", failing)


@pytest.mark.parametrize("way", [QUICK, DAYS], ids=["one by one", "a day together"])
def test_a_sentence_that_no_model_can_be_run_on_is_set_aside(world, monkeypatch, way):
    world.say(8)
    fails_on(monkeypatch, world.trials[3], DataError("it is odd"))
    service = world.start(**way)
    world.work()
    assert service.set_aside == {3: "it is odd"}
    assert world.learnt("decoded") == [[1, 2, 4, 5, 6][: 5 if way is QUICK else 4]]


def test_a_shortage_of_memory_is_waited_for_before_a_sentence_is_set_aside(world, monkeypatch):
    world.say(8)
    fails_on(monkeypatch, world.trials[3], MemoryError())
    service = world.start(**QUICK)
    for _ in range(2):
        with pytest.raises(CortextError, match="entry 3 of the log: MemoryError"):
            world.work()
    world.work()
    assert service.set_aside == {3: "MemoryError"}


@pytest.mark.parametrize("way", [QUICK, DAYS], ids=["one by one", "a day together"])
def test_too_many_open_files_lose_no_sentence(world, monkeypatch, way):
    world.say(8)
    service = world.start(**way)

    def refused(*_):
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(KeptFeatures, "load", refused)
        with pytest.raises(DataError, match="Too many open files"):
            world.work()
    world.work()
    assert service.set_aside == {}
    assert world.learnt("decoded") == [[1, 2, 3, 4, 5]]


def test_too_little_memory_to_learn_is_named_and_waited_for(world, monkeypatch):
    world.say(8)
    world.start(**QUICK)

    def short(*_, **__):
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory")

    with monkeypatch.context() as patched:
        patched.setattr(Learner, "_train", short)
        with pytest.raises(RunError, match="too little memory to learn"):
            world.work()
    world.work()
    assert world.learnt("decoded") == [[1, 2, 3, 4, 5]]


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


def test_an_utterance_that_was_set_aside_can_be_deleted(world, capsys):
    world.clock.now -= timedelta(hours=1)
    path = say_with(world, 8, 3, world.trials[3].features_TC[:2])
    options = ["--log", world.log, "--lm", world.participant.lm, "--out", world.chain, "--once"]
    assert cortext(["recalibrate", *map(str, (world.participant.run, *options))]) == 0
    (line,) = [each for each in capsys.readouterr().err.splitlines() if "set aside" in each]
    command = line.rpartition("To delete it: cortext ")[2].split()
    assert cortext([*command, "--yes"]) == 0
    assert not path.exists()
    assert 3 in read_log(world.log).deleted
