"""The service on the log of a drifted day: what it learns, which models it promotes, and kills."""

import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from datetime import timedelta
from itertools import chain

import numpy as np
import pytest
import torch
from commands import Command
from drifted_day import DRIFTED, KNOWN
from recalibrating import ALL, QUIET, SETTINGS, TOGETHER, World, same, weights, write_blank

from cortext.data import make_trial, open_packed
from cortext.decoding import Decoder
from cortext.errors import RunError
from cortext.models import load_model
from cortext.text.metrics import edit_counts
from cortext.training.config import read_run_config
from cortext_live.recalibration.chain import copy_run, open_chain, verify_chain
from cortext_live.recalibration.learner import Learner
from cortext_live.recalibration.promotion import PromotionOptions
from cortext_live.recalibration.replay import LabelledSentence
from cortext_live.recalibration.settings import METHODS
from cortext_live.usage.speaking import note_speaking
from cortext_live.usage.writer import UsageLog, UtteranceRecord

TEXT = "i see you"


def test_it_learns_is_judged_and_promoted(world):
    world.start(overrides=["lr=0.01", "steps=3"])
    world.say(60, TEXT, ALL)
    world.work()
    contents = verify_chain(world.chain)
    judged = next(entry for entry in contents.entries if entry.kind == "judged")
    assert judged.facts["comparison"]["sentences"] == len(world.reserved(60))
    assert "promoted" in world.kinds
    assert contents.parent == contents.speaking(judged.when) != 0
    for learnt in world.facts("learnt"):
        assert not set(world.reserved(60)) & {*learnt["corrected"], *learnt["decoded"]}
        assert set(learnt["corrected"]) <= set(range(60))
    # A promoted model is a run that all commands read, and decodes the day better than the first.
    assert DRIFTED in load_model(world.run(contents.parent)).sessions
    check_fewer_errors(world)


def check_fewer_errors(world):
    """Check that the promoted model decodes the rest of the day better than the first one."""
    held_out = list(open_packed(world.participant.data).trials("val", [DRIFTED]))
    best = phoneme_errors(world.run(world.contents.parent), held_out)
    assert best < phoneme_errors(world.participant.run, held_out)


def phoneme_errors(run, trials):
    """Greedy phoneme errors, by the best path without repeats and blanks."""
    model = load_model(run)
    session = DRIFTED if DRIFTED in model.sessions else KNOWN[-1]
    total = 0
    for trial in trials:
        best_P = model.logits(trial.features_TC, session).argmax(-1)
        kept = best_P[np.diff(best_P, prepend=-1) != 0]
        total += edit_counts(trial.phoneme_ids.tolist(), kept[kept != 0].tolist()).errors
    return total


def test_one_of_four_judges_and_one_of_twelve_is_never_learnt_from_as_decoded(
    participant, tmp_path
):
    drawn = []
    for name in ("one chain", "another"):
        world = World(participant, tmp_path / name)
        service = world.start(operator=name)
        world.say(1)
        service._sentences.refresh()
        reserved, watched = world.reserved(120), world.watched(120)
        assert [number // 4 for number in reserved] == list(range(30))
        assert [number // 12 for number in watched] == list(range(10))
        assert set(watched) < set(reserved)
        drawn.append(reserved)
        world.stop()
    assert drawn[0] != drawn[1]


def test_the_weights_are_those_of_a_learner_fed_by_hand(world):
    world.start(settings=replace(SETTINGS, every=4))
    world.say(12, "wrong")
    world.work()
    run, expected = world.participant.run, []
    model, decoder = load_model(run), Decoder.from_dir(world.participant.lm)
    learner = Learner(model, read_run_config(run), METHODS["one-step"])
    for number, trial in enumerate(world.trials[:12]):
        if number in world.watched(12):
            continue
        known = DRIFTED in learner.model.sessions
        logits_PV = learner.model.logits(trial.features_TC, DRIFTED if known else KNOWN[-1])
        log_probs_PV = torch.from_numpy(logits_PV).log_softmax(-1).numpy()
        best = decoder.decode(log_probs_PV, model.inventory)[0]
        confidences = [word.confidence for word in best.words]
        if not confidences or np.mean(confidences) < 0.5:
            continue
        # The published pronunciations, as they are in the labels of recordings.
        labels_U = make_trial(np.zeros((1, 1)), DRIFTED, 0, 0, best.text).phoneme_ids
        learner.learn(LabelledSentence(trial.features_TC.astype(np.float32), DRIFTED, labels_U))
        expected.append(
            {name: each.clone() for name, each in learner.model.network.state_dict().items()}
        )
    made = [number for number in world.contents.models if number]
    assert made
    for place, number in enumerate(made, 1):
        assert same(weights(world.run(number)), expected[4 * place - 1])


def test_without_labels_nothing_speaks(world):
    world.start()
    world.say(24, "no label")
    world.work()
    assert {"promoted", "provisional"}.isdisjoint(world.kinds)
    assert world.judged
    for facts in world.judged:
        assert "at least 5 labelled sentences" in facts["reason"]


@pytest.mark.usefixtures("drawn_by_number")
def test_it_names_the_sentences_that_would_judge_once_they_are_corrected(world):
    world.start()
    world.say(24, "no label")
    world.work()
    asked = world.judged[-1]
    assert asked["labelled"] == 0
    missing = "at least 5 labelled sentences must judge it, and there are 0"
    assert asked["reason"] == f"{missing}; correct or confirm utterances 0, 10, 20"
    for number in (0, 10, 20):
        world.correct(number)
    world.say(12, "no label")
    world.work()
    assert world.judged[-1]["labelled"] == 3


def test_a_model_that_is_allowed_to_speak_continues_after_its_day(world):
    """It speaks without labels, and is not promoted."""
    world.start(settings=replace(SETTINGS, allow_provisional=True))
    world.say(24, "no label")
    world.work()
    assert "provisional" in world.kinds
    assert "promoted" not in world.kinds
    first = world.contents
    model = first.speaking(world.clock.now)
    assert model != 0
    world.clock.now += timedelta(hours=25)
    assert first.speaking(world.clock.now) == 0
    world.work()
    again = world.contents
    assert again.speaking(world.clock.now) == model
    assert world.kinds[len(first.entries) :] == ["judged", "provisional"]
    # Where nobody has allowed it any more, it waits, and is not judged twice for the same log.
    world.clock.now += timedelta(hours=25)
    world.start()
    world.work()
    world.work()
    assert world.kinds[len(again.entries) :] == ["judged"]
    assert world.judged[-1]["action"] == "wait"
    assert world.contents.speaking(world.clock.now) == 0


def test_known_sentences_are_replayed(participant, tmp_path):
    learnt = []
    for name, old_data in (("alone", None), ("with old ones", open_packed(participant.data))):
        world = World(participant, tmp_path / name)
        world.start(method="replay", old_data=old_data)
        world.say(10, corrected=ALL)
        world.work()
        known = {each.session for each in world.learner.state().known}
        assert known == (set() if old_data is None else set(KNOWN))
        learnt.append(world.learner_weights)
        world.stop()
    alone, with_old = learnt
    assert any(not torch.equal(alone[name], with_old[name]) for name in alone)


@pytest.mark.usefixtures("drawn_by_number")
def test_a_worse_model_is_rejected_and_forgotten(world):
    """Wrong corrections poison the learner; true ones, which judge it, show that."""
    world.start(
        rule=PromotionOptions(fewest=5), overrides=["lr=0.3", "steps=5", "whole_model=true"]
    )
    world.say(60)
    with UsageLog(world.log) as log:
        for number, trial in enumerate(world.trials):
            log.correct(number, "we need some more water" if number % 2 else trial.sentence)
    while world.service.work() and world.kinds[-1] != "rejected":
        pass
    assert world.kinds[-1] == "rejected"
    assert world.contents.parent == 0
    assert same(world.learner_weights, weights(world.participant.run))
    state = world.learner.state()
    assert not state.known
    assert not state.decoded, "what it learnt is not replayed either"
    assert not state.corrected


def test_after_a_rollback_it_learns_from_there(world):
    world.start()
    world.say(60, TEXT, ALL)
    world.work()
    assert world.contents.parent != 0
    before = len(world.made)
    world.roll_back(0)
    world.say(60, TEXT, ALL)
    world.work()
    assert world.facts("parent")[before] == 0
    corrected = world.learnt("corrected")
    left = set(chain.from_iterable(corrected[:before]))
    assert left
    assert left.isdisjoint(corrected[before])


KILLED = """
    import os, signal, sys
    from pathlib import Path
    from cortext_live.recalibration.promotion import PromotionOptions
    from cortext_live.recalibration.service import Recalibration
    from cortext_live.recalibration.settings import ServiceOptions

    run, lm, folder, left = *map(Path, sys.argv[1:4]), int(sys.argv[4])

    def count(event, arguments):
        global left
        if event in ("os.rename", "os.truncate"):
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    rule = PromotionOptions(fewest=5, provisional=60.0, promotion=50.0, budget=100.0)
    settings = ServiceOptions(every=10, settle_s=0.0)
    with Recalibration(
        run, folder / "log", lm, folder / "chain", method="one-step", settings=settings, rule=rule
    ) as running:
        if left >= 0:
            sys.addaudithook(count)
        while running.work():
            pass
    print(running._learning.position.next)
"""


def test_it_can_wait_before_each_piece_of_computation(world):
    """Two for a sentence: decoding and a step."""
    calls = []
    world.start(pause=lambda: calls.append(1))
    for trial in world.trials[:9]:
        world.say([trial], trial.sentence)
    world.work()
    assert world.kinds == ["base"], "nine are too few for a model, which would be judged"
    # Each that may be learnt from is decoded for its label; too few others are left to watch a model.
    taught = 9 - len(world.watched(9))
    assert taught > 5
    assert len(calls) == taught + len(world.position.decoded)


@pytest.mark.slow
def test_the_command_waits_while_somebody_speaks(world):
    world.clock.now -= timedelta(minutes=1)  # the command has the computer's
    world.say(12, TEXT, ALL)
    note_speaking(world.log, True)
    parts = ["recalibrate", world.participant.run, "--log", world.log]
    parts += ["--lm", world.participant.lm, "--out", world.chain]
    command = Command(*parts, "--every", "2", "--settle", "0", "--once")
    until = time.monotonic() + 60
    while not (world.chain / "learner").is_dir():
        assert time.monotonic() < until
        time.sleep(0.05)
    time.sleep(4)
    assert command.running()
    assert world.kinds == ["base"]
    note_speaking(world.log, False)
    assert command.wait().status == 0
    assert "candidate" in world.kinds


@pytest.mark.slow
@pytest.mark.parametrize("left", [0, 12, 17, 22, 27])
def test_killed_it_learns_the_rest(world, left):
    def run(left):
        arguments = [world.participant.run, world.participant.lm, world.folder, left]
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(KILLED), *map(str, arguments)],
            capture_output=True, text=True,
        )  # fmt: skip

    world.clock.now -= timedelta(minutes=1)  # the process has the computer's
    world.start()
    world.say(60, TEXT, ALL)
    world.stop()
    first = run(left)
    assert first.returncode == -signal.SIGKILL, first.stderr
    verify_chain(world.chain)
    again = run(-1)
    assert again.stdout == "60\n", again.stderr
    assert "promoted" in world.kinds
    verify_chain(world.chain)


def test_two_services_are_refused(world, participant):
    world.start()
    with pytest.raises(RunError, match="another service works on this chain"):
        World(participant, world.folder).start()
    with open_chain(world.chain):
        pass  # a person may still roll back


@pytest.mark.parametrize("corrected", [True, False])
def test_a_promoted_model_that_is_worse_is_rolled_back(world, corrected):
    """Its word errors show that; without corrections, its confidence does."""
    world.start()
    bad = world.add_model(write=write_blank, promoted=True)
    world.start()
    assert world.service.chain.parent == bad
    world.say(20, corrected=ALL if corrected else ())
    assert world.service.work()
    contents = verify_chain(world.chain)
    checked, back = contents.entries[-2:]
    assert (checked.kind, back.kind) == ("checked", "rolled_back")
    assert checked.facts["said"] == 20
    sign = "corrected sentences" if corrected else "its confidence"
    assert sign in back.facts["why"]
    assert back.facts["operator"] == "automatic"
    assert contents.parent == contents.speaking(back.when) == 0


def test_a_provisional_model_that_people_call_wrong_stops(world):
    """All five sentences of the first model are rated right, and twelve of the candidate's wrong.

    Both decode alike, so nothing else stops it. Fisher's test: 1 of 6,188 draws.
    """
    world.start()
    candidate = world.add_model()
    names = [entry.model_name for entry in world.contents.entries]
    world.let_speak(candidate)
    with UsageLog(world.log) as log:
        for number, trial in enumerate(world.trials[:17]):
            model = 0 if number < 5 else candidate
            record = UtteranceRecord(number, DRIFTED, 2.0, TEXT, model=names[model])
            log.append(record, trial.features_TC.astype(np.float32))
            log.rate(number, "wrong" if model else "right")
    assert world.start().work()
    assert world.kinds[-2:] == ["checked", "rejected"]
    why = world.contents.entries[-1].facts["why"]
    assert "12 of its 12 rated sentences are wrong, and 0 of 5" in why
    assert world.contents.speaking(world.clock.now) == 0


@pytest.mark.usefixtures("drawn_by_number")
def test_a_candidate_that_is_worse_than_what_spoke_last_is_rejected(world):
    """The parent has forgotten everything, as the candidate has; the model that speaks has not."""
    intact = world.participant.run
    blank = world.folder / "blank"
    blank.mkdir()
    write_blank(intact, blank)
    world.participant = replace(world.participant, run=blank)
    changes = {"overrides": ["lr=1e-6", "confidence=1"]}
    world.start(**changes)
    world.save()  # or it would begin with the model that speaks
    world.stop()
    spoke = world.add_model(write=lambda _, folder: copy_run(intact, folder))
    world.let_speak(spoke)
    world.say(30, TEXT, ALL)
    world.start(**changes)
    world.work()
    rejected = next(each for each in world.contents.entries if each.kind == "rejected")
    assert f"than model {spoke}, which spoke last" in rejected.facts["why"]
    assert world.contents.parent == 0
    assert world.contents.provisional == spoke
    # It learns on from the model that spoke; with so small a rate it is that model still.
    found = world.learner_weights
    for name, tensor in weights(intact).items():
        if found[name].shape == tensor.shape:  # the day layers have another day
            torch.testing.assert_close(found[name], tensor, atol=1e-3, rtol=0)


@pytest.mark.usefixtures("drawn_by_number")
def test_the_sentences_of_a_day_learn_together(world):
    world.start(**TOGETHER)
    world.say(60, TEXT, ALL)
    world.work()
    assert world.learner.steps_today == 9, "three for each ten of the thirty that are learnt from"
    verify_chain(world.chain)
    for learnt in world.facts("learnt"):
        assert not learnt["decoded"]
        assert set(learnt["corrected"]) <= set(range(1, 60, 2))
    check_fewer_errors(world)


def test_when_it_is_quiet_fewer_sentences_make_a_model(world):
    world.start(**TOGETHER)
    world.say(13)
    world.work()
    assert len(world.made) == 1
    assert world.learner.steps_today == 3
    world.clock.now += QUIET
    world.work()
    assert len(world.made) == 2
    # The day has two steps a sentence now; those of the first model are among them.
    taught = 13 - len(world.watched(13))
    assert world.learner.steps_today == 2 * taught
    assert not world.service.work()
