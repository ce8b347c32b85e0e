"""The service on the log of a drifted day: what it learns, who judges it, and what it survives."""

import shutil
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import partial

import numpy as np
import pytest
import torch
from commands import Command
from drifted_day import DRIFTED, KNOWN
from recalibrating import (
    NOTHING_LEARNT,
    QUIET,
    RULE,
    SETTINGS,
    TOGETHER,
    judgements,
    kinds,
    recorded,
    say,
    service,
    spoil,
    weights,
    work,
)

from cortext.cli import run as cortext
from cortext.data import make_trial, open_packed
from cortext.decoding import Decoder
from cortext.errors import RunError
from cortext.models import load_model, save_model
from cortext.text.metrics import edit_counts
from cortext.training.config import read_run_config
from cortext_live.recalibration.chain import (
    copy_run,
    model_folder,
    open_chain,
    read_chain,
    verify_chain,
)
from cortext_live.recalibration.learner import Learner
from cortext_live.recalibration.promotion import PromotionOptions
from cortext_live.recalibration.replay import LabelledSentence
from cortext_live.recalibration.service import Recalibration
from cortext_live.recalibration.settings import METHODS
from cortext_live.usage.speaking import note_speaking
from cortext_live.usage.writer import UsageLog, UtteranceRecord


def test_it_learns_is_judged_and_promoted(participant, tmp_path):
    trials = recorded(participant)
    with service(participant, tmp_path, overrides=["lr=0.01", "steps=3"]) as running:
        say(tmp_path / "log", trials, ["i see you"] * 60, range(60))
        work(running)
        reserved = [
            number for number in range(60) if running._trainer._labeller.is_reserved(number)
        ]
    contents = verify_chain(tmp_path / "chain")
    judged = [entry for entry in contents.entries if entry.kind == "judged"]
    assert judged[0].facts["comparison"]["sentences"] == len(reserved)
    assert "promoted" in kinds(tmp_path / "chain")
    assert contents.parent == contents.speaking(judged[0].when) != 0
    for entry in contents.entries:
        if entry.kind == "candidate":
            learnt = entry.facts["learnt"]
            assert not set(reserved) & {*learnt["corrected"], *learnt["decoded"]}
            assert set(learnt["corrected"]) <= set(range(60))
    # What speaks is a run that all commands read, and decodes the day better than the first one.
    best = model_folder(tmp_path / "chain", contents.parent)
    assert DRIFTED in load_model(best).sessions
    held_out = list(open_packed(participant.data).trials("val", [DRIFTED]))
    assert phoneme_errors(best, held_out) < phoneme_errors(participant.run, held_out)


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
        folder = tmp_path / name
        folder.mkdir()
        with service(participant, folder, operator=name) as running:
            say(folder / "log", recorded(participant)[:1], ["x"])
            running._sentences.refresh()
            reserved = [n for n in range(120) if running._trainer._labeller.is_reserved(n)]
            watched = [n for n in range(120) if running._trainer._labeller.is_watched(n)]
        assert [n // 4 for n in reserved] == list(range(30))
        assert [n // 12 for n in watched] == list(range(10))
        assert set(watched) < set(reserved)
        drawn.append(reserved)
    assert drawn[0] != drawn[1]


def test_the_weights_are_those_of_a_learner_fed_by_hand(participant, tmp_path):
    trials = recorded(participant)[:12]
    with service(participant, tmp_path, settings=replace(SETTINGS, every=4)) as running:
        say(tmp_path / "log", trials, ["wrong"] * 12)
        work(running)
        watched = {n for n in range(12) if running._trainer._labeller.is_watched(n)}
    model = load_model(participant.run)
    decoder = Decoder.from_dir(participant.lm)
    learner = Learner(model, read_run_config(participant.run), METHODS["one-step"])
    expected = []
    for number, trial in enumerate(trials):
        if number in watched:
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
    contents = read_chain(tmp_path / "chain")
    candidates = [number for number in contents.models if number]
    assert candidates
    for place, number in enumerate(candidates, 1):
        found = weights(model_folder(tmp_path / "chain", number))
        for name, tensor in expected[4 * place - 1].items():
            assert torch.equal(found[name], tensor), name


def test_without_labels_nothing_speaks_unless_allowed(participant, tmp_path):
    trials = recorded(participant)[:24]
    with service(participant, tmp_path) as running:
        say(tmp_path / "log", trials, ["no label"] * 24)
        work(running)
    assert {"promoted", "provisional"}.isdisjoint(kinds(tmp_path / "chain"))
    reasons = [facts["reason"] for facts in judgements(tmp_path / "chain")]
    assert all("at least 5 labelled sentences" in reason for reason in reasons)
    assert reasons

    allowed = tmp_path / "allowed"
    allowed.mkdir()
    with service(
        participant, allowed, settings=replace(SETTINGS, allow_provisional=True)
    ) as running:
        say(allowed / "log", trials, ["no label"] * 24)
        work(running)
    assert "provisional" in kinds(allowed / "chain")
    assert "promoted" not in kinds(allowed / "chain")


@pytest.mark.usefixtures("drawn_by_number")
def test_it_names_the_sentences_that_would_judge_once_they_are_corrected(participant, tmp_path):
    trials = recorded(participant)[:36]
    with service(participant, tmp_path) as running:
        say(tmp_path / "log", trials[:24], ["no label"] * 24)
        work(running)
        asked = judgements(tmp_path / "chain")[-1]
        assert asked["labelled"] == 0
        missing = "at least 5 labelled sentences must judge it, and there are 0"
        assert asked["reason"] == f"{missing}; correct or confirm utterances 0, 10, 20"
        with UsageLog(tmp_path / "log") as log:
            for number in (0, 10, 20):
                log.correct(number, trials[number].sentence)
        say(tmp_path / "log", trials[24:], ["no label"] * 12)
        work(running)
    assert judgements(tmp_path / "chain")[-1]["labelled"] == 3


def test_a_model_that_was_allowed_to_speak_goes_on_after_its_day(participant, tmp_path):
    time_now = [datetime.now(UTC) + timedelta(minutes=10)]
    settings = replace(SETTINGS, allow_provisional=True)
    with service(participant, tmp_path, settings=settings, clock=lambda: time_now[0]) as running:
        say(tmp_path / "log", recorded(participant)[:24], ["no label"] * 24)
        work(running)
        first = running.chain
        model = first.speaking(time_now[0])
        assert model != 0
        time_now[0] += timedelta(hours=25)
        assert first.speaking(time_now[0]) == 0
        work(running)
        again = read_chain(tmp_path / "chain")
        assert again.speaking(time_now[0]) == model
        assert [each.kind for each in again.entries[len(first.entries) :]] == [
            "judged",
            "provisional",
        ]
    # Where nobody has allowed it any more, it waits, and is not judged twice for the same log.
    time_now[0] += timedelta(hours=25)
    with service(participant, tmp_path, clock=lambda: time_now[0]) as running:
        work(running)
        work(running)
        found = running.chain
    assert [each.kind for each in found.entries[len(again.entries) :]] == ["judged"]
    assert found.entries[-1].facts["action"] == "wait"
    assert found.speaking(time_now[0]) == 0


def test_known_sentences_are_replayed(participant, tmp_path):
    data = open_packed(participant.data)
    learnt = {}
    for name, old_data in (("alone", None), ("with old ones", data)):
        folder = tmp_path / name
        folder.mkdir()
        with service(participant, folder, method="replay", old_data=old_data) as running:
            say(folder / "log", recorded(participant)[:10], ["no label"] * 10, range(10))
            work(running)
            state = running._learning.learner.state()
        learnt[name] = state.model.network.state_dict()
        known = {each.session for each in state.known}
        assert known == (set() if old_data is None else set(KNOWN))
    alone, with_old = learnt.values()
    assert any(not torch.equal(alone[name], with_old[name]) for name in alone)


@pytest.mark.usefixtures("drawn_by_number")
def test_a_worse_model_is_rejected_and_forgotten(participant, tmp_path):
    """Wrong corrections poison the learner; true ones, which judge it, show that."""
    trials = recorded(participant)
    poison = [replace(trial, sentence="we need some more water") for trial in trials]
    strict = PromotionOptions(fewest=5)
    with service(
        participant, tmp_path, rule=strict, overrides=["lr=0.3", "steps=5", "whole_model=true"]
    ) as running:
        say(tmp_path / "log", poison, ["x"] * 60)
        with UsageLog(tmp_path / "log") as log:
            for number in range(60):
                trial = (trials if running._trainer._labeller.is_reserved(number) else poison)[
                    number
                ]
                log.correct(number, trial.sentence)
        while running.work() and kinds(tmp_path / "chain")[-1] != "rejected":
            pass
        state = running._learning.learner.state()
    contents = read_chain(tmp_path / "chain")
    assert contents.entries[-1].kind == "rejected"
    assert contents.parent == 0
    base, learner = weights(participant.run), state.model.network.state_dict()
    assert base.keys() == learner.keys()
    assert all(torch.equal(learner[name], base[name]) for name in base)
    assert not state.known
    assert not state.decoded, "what it learnt is not replayed either"
    assert not state.corrected


def test_after_a_rollback_it_learns_from_there(participant, tmp_path):
    trials = recorded(participant)
    with service(participant, tmp_path) as running:
        say(tmp_path / "log", trials, ["i see you"] * 60, range(60))
        work(running)
        promoted = running.chain.parent
        assert promoted != 0
        assert cortext(["chain", "rollback", str(tmp_path / "chain"), "0", "--why", "test"]) == 0
        say(tmp_path / "log", trials, ["i see you"] * 60, range(60, 120))
        work(running)
    entries = read_chain(tmp_path / "chain").entries
    back = next(entry.number for entry in entries if entry.kind == "rolled_back")
    later = [entry for entry in entries[back:] if entry.kind == "candidate"]
    assert later
    assert later[0].facts["parent"] == 0
    before = [entry for entry in entries[:back] if entry.kind == "candidate"]
    left = {number for entry in before for number in entry.facts["learnt"]["corrected"]}
    assert left
    assert left.isdisjoint(later[0].facts["learnt"]["corrected"])


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


def test_it_can_wait_before_each_piece_of_computation(participant, tmp_path):
    """Two for a sentence: decoding and a step."""
    calls = []
    trials = recorded(participant)
    with service(participant, tmp_path, pause=lambda: calls.append(1)) as running:
        say(tmp_path / "log", trials[:9], [trial.sentence for trial in trials[:9]])
        work(running)
        assert kinds(tmp_path / "chain") == ["base"], (
            "nine are too few for a model, which would be judged"
        )
        learnt = len(running._learning.position.decoded)
        # Each that may be learnt from is decoded for its label; too few others are left to watch a model.
        taught = sum(not running._trainer._labeller.is_watched(number) for number in range(9))
        assert taught > 5
        assert len(calls) == taught + learnt


@pytest.mark.slow
def test_the_command_waits_while_somebody_speaks(participant, tmp_path):
    trials = recorded(participant)[:12]
    say(tmp_path / "log", trials, ["i see you"] * 12, range(12))
    note_speaking(tmp_path / "log", True)
    parts = ["recalibrate", participant.run, "--log", tmp_path / "log", "--lm", participant.lm]
    parts += ["--out", tmp_path / "chain", "--every", "2", "--settle", "0", "--once"]
    command = Command(*parts)
    wait_for_chain(tmp_path / "chain")
    time.sleep(4)
    assert command.running()
    assert kinds(tmp_path / "chain") == ["base"]
    note_speaking(tmp_path / "log", False)
    assert command.wait().status == 0
    assert "candidate" in kinds(tmp_path / "chain")


def wait_for_chain(folder):
    until = time.monotonic() + 60
    while not (folder / "learner").is_dir():
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.slow
@pytest.mark.parametrize("left", [0, 12, 17, 22, 27])
def test_killed_it_goes_on(participant, tmp_path, left):
    trials = recorded(participant)

    def go(left):
        arguments = [participant.run, participant.lm, tmp_path, left]
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(KILLED), *map(str, arguments)],
            capture_output=True, text=True,
        )  # fmt: skip

    with service(participant, tmp_path):
        say(tmp_path / "log", trials, ["i see you"] * 60, range(60))
    first = go(left)
    assert first.returncode == -signal.SIGKILL, first.stderr
    verify_chain(tmp_path / "chain")
    again = go(-1)
    assert again.stdout == "60\n", again.stderr
    assert "promoted" in kinds(tmp_path / "chain")
    verify_chain(tmp_path / "chain")


def test_two_services_are_refused(participant, tmp_path):
    with service(participant, tmp_path):
        with pytest.raises(RunError, match="another service works on this chain"):
            service(participant, tmp_path)
        with open_chain(tmp_path / "chain"):
            pass  # a person may still roll back


@pytest.mark.parametrize("corrected", [True, False])
def test_a_promoted_model_that_is_worse_is_rolled_back(participant, tmp_path, corrected):
    """Its word errors show that; without corrections, its confidence does."""
    trials = recorded(participant)[:20]
    with service(participant, tmp_path) as running, open_chain(tmp_path / "chain") as chain:
        bad = spoil(chain, participant.run)
    with service(participant, tmp_path) as running:
        assert running.chain.parent == bad
        say(tmp_path / "log", trials, ["x"] * 20, range(20) if corrected else ())
        assert running.work()
    contents = verify_chain(tmp_path / "chain")
    checked, back = contents.entries[-2:]
    assert (checked.kind, back.kind) == ("checked", "rolled_back")
    assert checked.facts["said"] == 20
    sign = "corrected sentences" if corrected else "its confidence"
    assert sign in back.facts["why"]
    assert back.facts["operator"] == "automatic"
    assert contents.parent == contents.speaking(back.when) == 0


def test_a_provisional_model_that_people_call_wrong_stops(participant, tmp_path):
    """All five sentences of the first model are rated right, and twelve of the candidate's wrong.

    Both decode alike, so nothing else stops it. Fisher's test: 1 of 6,188 draws.
    """
    trials = recorded(participant)[:17]
    with service(participant, tmp_path):
        pass
    with UsageLog(tmp_path / "log") as log, open_chain(tmp_path / "chain") as chain:
        names = [chain.contents.entries[0].model_name]
        for number in range(17):
            if number == 5:
                write = partial(copy_run, participant.run)
                entry = chain.add_model("candidate", write, parent=0, learnt=NOTHING_LEARNT)
                until = (datetime.now(UTC) + timedelta(hours=1)).isoformat(timespec="seconds")
                chain.add("provisional", model=entry.number, until=until)
                names.append(entry.model_name)
            said = UtteranceRecord(number, DRIFTED, 2.0, "i see you", model=names[-1])
            log.append(said, trials[number].features_TC.astype(np.float32))
            log.rate(number, "right" if number < 5 else "wrong")
    with service(participant, tmp_path) as running:
        assert running.work()
    contents = read_chain(tmp_path / "chain")
    assert [each.kind for each in contents.entries[-2:]] == ["checked", "rejected"]
    assert "12 of its 12 rated sentences are wrong, and 0 of 5" in contents.entries[-1].facts["why"]
    assert contents.speaking(datetime.now(UTC)) == 0


@pytest.mark.usefixtures("drawn_by_number")
def test_a_candidate_that_is_worse_than_what_spoke_last_is_rejected(participant, tmp_path):
    """The parent has forgotten everything, as the candidate has; the model that speaks has not."""
    blank = tmp_path / "blank"
    shutil.copytree(participant.run, blank)
    model = load_model(participant.run)
    with torch.no_grad():
        for parameter in model.network.parameters():
            parameter.zero_()
    save_model(model, blank)
    call = [blank, tmp_path / "log", participant.lm, tmp_path / "chain"]
    changes = {"settings": SETTINGS, "rule": RULE, "method": "one-step"}
    changes["overrides"] = ["lr=1e-6", "confidence=1"]
    with Recalibration(*call, **changes) as running:
        running._learning.save(running.chain)  # or it would begin with the model that speaks
    with open_chain(tmp_path / "chain") as chain:
        write = partial(copy_run, participant.run)
        spoke = chain.add_model("candidate", write, parent=0, learnt=NOTHING_LEARNT)
        until = (datetime.now(UTC) + timedelta(hours=1)).isoformat(timespec="seconds")
        chain.add("provisional", model=spoke.number, until=until)
    say(tmp_path / "log", recorded(participant)[:30], ["i see you"] * 30, range(30))
    with Recalibration(*call, **changes) as running:
        work(running)
        learner = running._learning.learner.model
    contents = read_chain(tmp_path / "chain")
    rejected = [each for each in contents.entries if each.kind == "rejected"]
    assert f"than model {spoke.number}, which spoke last" in rejected[0].facts["why"]
    assert contents.parent == 0
    assert contents.provisional == spoke.number
    # It learns on from the model that spoke; with so small a rate it is that model still.
    found = learner.network.state_dict()
    for name, tensor in weights(participant.run).items():
        if found[name].shape == tensor.shape:  # the day layers have another day
            torch.testing.assert_close(found[name], tensor, atol=1e-3, rtol=0)


@pytest.mark.usefixtures("drawn_by_number")
def test_the_sentences_of_a_day_learn_together(participant, tmp_path):
    trials = recorded(participant)
    with service(participant, tmp_path, **TOGETHER) as running:
        say(tmp_path / "log", trials, ["i see you"] * 60, range(60))
        work(running)
        steps = running._learning.learner.steps_today
    contents = verify_chain(tmp_path / "chain")
    assert steps == 9, "three for each ten of the thirty that are learnt from"
    for entry in contents.entries:
        if entry.kind == "candidate":
            learnt = entry.facts["learnt"]
            assert not learnt["decoded"]
            assert set(learnt["corrected"]) <= set(range(1, 60, 2))
    best = model_folder(tmp_path / "chain", contents.parent)
    held_out = list(open_packed(participant.data).trials("val", [DRIFTED]))
    assert phoneme_errors(best, held_out) < phoneme_errors(participant.run, held_out)


def test_when_it_is_quiet_fewer_sentences_make_a_model(participant, tmp_path):
    trials = recorded(participant)[:13]
    time_now = [datetime.now(UTC) + timedelta(seconds=60)]
    with service(participant, tmp_path, clock=lambda: time_now[0], **TOGETHER) as running:
        say(tmp_path / "log", trials, ["i see you"] * 13)
        work(running)
        assert kinds(tmp_path / "chain").count("candidate") == 1
        assert running._learning.learner.steps_today == 3
        time_now[0] += QUIET
        work(running)
        assert kinds(tmp_path / "chain").count("candidate") == 2
        # The day has two steps a sentence now; those of the first model are among them.
        taught = [n for n in range(13) if not running._trainer._labeller.is_watched(n)]
        assert running._learning.learner.steps_today == 2 * len(taught)
        assert not running.work()
