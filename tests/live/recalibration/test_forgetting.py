"""What a chain keeps of utterances that were deleted from the log: nothing but the names of models."""

import json
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from disk_search import files_with, traces
from drifted_day import DRIFTED
from small_models import make_model, trial

from cortext.cli import run as cortext
from cortext.data import open_packed
from cortext.errors import RunError
from cortext.models import GRUConfig
from cortext.training.config import TrainConfig
from cortext_live.recalibration.chain import read_chain
from cortext_live.recalibration.chain_entries import ChainContents, ChainEntry
from cortext_live.recalibration.forgetting import (
    forget_in_chain,
    forget_in_store,
    models_that_learnt,
    numbers_in,
)
from cortext_live.recalibration.learner import Learner
from cortext_live.recalibration.promotion import PromotionOptions
from cortext_live.recalibration.replay import LabelledSentence
from cortext_live.recalibration.service import Recalibration
from cortext_live.recalibration.settings import ServiceOptions, method_settings
from cortext_live.recalibration.state import LearnerStore
from cortext_live.usage.deletion import Selection, delete
from cortext_live.usage.kept_features import KeptFeatures
from cortext_live.usage.log import read_log
from cortext_live.usage.writer import UsageLog, UtteranceRecord

GRU = GRUConfig(n_units=8, n_layers=1, patch_size=4, patch_stride=2)
LOG, OTHER = 1_795_000_000, 1_700_000_000
"""Seconds at which two logs began."""
DAY = "t15.2023.08.20"


def sentence(seed, entry, day=DAY):
    labels_U = np.random.default_rng(seed).integers(1, 40, 5)
    return LabelledSentence(trial(60 + seed % 7, seed), day, labels_U, entry=entry)


SAID = [
    sentence(0, (LOG, 0)),
    sentence(1, (LOG, 1)),
    sentence(2, (OTHER, 1)),  # the same number of another log
    sentence(3, (LOG, 3)),
]
KNOWN = [sentence(9, (LOG, 9)), sentence(10, (1, 1)), sentence(11, None)]


@pytest.fixture
def folder(tmp_path):
    """A saved learner that replays sentences of two logs and of recordings."""
    settings = method_settings("replay", ["steps=1"])
    learner = Learner(make_model(GRU), TrainConfig(model=GRU), settings, seed=3)
    learner.remember(KNOWN)
    for each in SAID:
        learner.learn(each)
    assert numbers_in(learner, LOG) == [0, 1, 3, 9]
    LearnerStore(tmp_path / "learner").save(learner, {"next": 4})
    return tmp_path / "learner"


def kept(folder):
    learner, note = LearnerStore(folder).load()
    assert note == {"next": 4}
    return learner


def on_disk(each, folder):
    return files_with(each.features_TC[0].astype("<f4").tobytes(), folder)


def test_a_deleted_utterance_leaves_the_saved_learner(folder):
    before = kept(folder)
    assert forget_in_store(folder, LOG, {1, 9, 77})
    found = kept(folder)
    assert numbers_in(found, LOG) == [0, 3]
    assert numbers_in(found, OTHER) == [1]
    for each in (SAID[1], KNOWN[0]):
        assert not on_disk(each, folder)
    for each in (SAID[0], SAID[2], SAID[3], *KNOWN[1:]):
        assert on_disk(each, folder)
    # The model that learnt from it is as it was.
    ours, theirs = (each.model.network.state_dict() for each in (found, before))
    assert all(np.array_equal(ours[name], theirs[name]) for name in theirs)
    assert found.n_steps == before.n_steps
    assert not forget_in_store(folder, LOG, {1})


def test_a_sentence_of_an_older_version_that_names_no_utterance_goes_too(tmp_path):
    settings = method_settings("replay", ["steps=1"])
    learner = Learner(make_model(GRU), TrainConfig(model=GRU), settings, seed=3)
    learner.remember(KNOWN)
    old = sentence(4, None)
    learner.learn(old)
    LearnerStore(tmp_path).save(learner, {"next": 4})
    assert forget_in_store(tmp_path, LOG, {77})
    assert not on_disk(old, tmp_path)
    assert all(on_disk(each, tmp_path) for each in KNOWN)


def test_what_a_kill_left_behind_is_removed(folder):
    left = folder / "sentences" / "00000099.safetensors"
    left.write_bytes(b"zebra")
    assert not forget_in_store(folder, LOG, {77})
    assert not left.exists()


def test_a_damaged_learner_is_named(folder):
    (folder / "learner.safetensors").write_bytes(b"damaged")
    with pytest.raises(RunError, match="the saved learner cannot be read"):
        forget_in_store(folder, LOG, {1})


def chain_of(*candidates):
    """A chain of a first model and of candidates: parent, log, and what each learnt from."""
    contents = ChainContents()
    now = datetime(2026, 11, 21, 12, tzinfo=UTC)

    def add(kind, **facts):
        number = len(contents.entries)
        contents.add(
            ChainEntry.made(number, now, kind, {"digest": "d" * 64} | facts, contents.head)
        )

    add("base")
    for parent, log, decoded, corrected, replayed in candidates:
        learnt = {"log": log, "decoded": decoded, "corrected": corrected, "replayed": replayed}
        add("candidate", parent=parent, learnt=learnt)
    return contents


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ({7}, [1, 3]),  # 3 comes from 1
        ({8}, [2]),
        ({9}, [3]),
        ({5}, [3]),  # only replayed
        ({4}, []),
        (set(), []),
    ],
)
def test_models_are_named_that_learnt_themselves_or_by_their_parents(numbers, expected):
    contents = chain_of(
        (0, LOG, [7], [], []),
        (0, LOG, [], [8], []),
        (1, LOG, [9], [], [5]),
        (0, OTHER, [7, 8, 9, 4, 5], [], []),
    )
    found = models_that_learnt(contents, LOG, numbers)
    assert [entry.number for entry in found] == expected


def say(folder, trials, first=0):
    with UsageLog(folder, kept_features=KeptFeatures(folder)) as log:
        for number, each in enumerate(trials, first):
            features_TC = each.features_TC.astype(np.float32)
            log.append(UtteranceRecord(number, DRIFTED, 2.0, "i see you"), features_TC)
            log.keep_features(features_TC)
            log.correct(number, each.sentence)


@pytest.mark.slow
def test_the_service_drops_what_is_deleted_while_it_runs(participant, tmp_path, capsys):
    log, chain = tmp_path / "log", tmp_path / "chain"
    trials = sorted(
        open_packed(participant.data).trials("train", [DRIFTED]), key=lambda it: it.trial
    )
    say(log, trials[:12])
    settings = ServiceOptions(every=4, settle_s=0.0)
    rule = PromotionOptions(fewest=5, provisional=60.0, promotion=50.0, budget=100.0)
    options = {"settings": settings, "rule": rule, "method": "replay", "overrides": ["steps=1"]}
    later = datetime.now(UTC) + timedelta(minutes=30)
    with Recalibration(
        participant.run, log, participant.lm, chain, clock=lambda: later, **options
    ) as running:
        while running.work():
            pass
        learnt = [n for n in range(12) if not running._trainer._labeller.is_reserved(n)]
        gone, stays = learnt[0], learnt[1]
        assert traces("", trials[gone].features_TC.astype(np.float32), chain)
        delete(log, Selection(entries=(gone,)))
        # The command says so, and leaves the rest to the service.
        models, notes = forget_in_chain(chain, log, [gone])
        assert models
        assert "deletes it by itself" in notes[0]
        running.work()
        assert not traces("", trials[gone].features_TC.astype(np.float32), chain, log)
        assert traces("", trials[stays].features_TC.astype(np.float32), chain)
        say(log, trials[12:16], first=12)
        while running.work():
            pass
    # It is not running any more: the command does it.
    delete(log, Selection(entries=(stays,)))
    assert traces("", trials[stays].features_TC.astype(np.float32), chain)
    assert cortext(["log", "delete", str(log), "--chain", str(chain), "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert not traces("", trials[stays].features_TC.astype(np.float32), chain, log)
    named = {
        entry.model_name
        for entry in models_that_learnt(read_chain(chain), read_log(log).began, learnt)
    }
    assert set(answer["models"]) == named
    assert answer["deleted"] == []
    assert cortext(["log", "delete", str(log), "--all", "--yes", "--chain", str(chain)]) == 0
    assert "models that learnt from them: " in capsys.readouterr().out
    for each in trials[:16]:
        assert not traces("", each.features_TC.astype(np.float32), log, chain)
        assert not files_with(each.sentence.encode(), log)
