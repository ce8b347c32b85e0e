"""The service after rollbacks, kills, full disks and changed settings, and with odd clocks and logs."""

from dataclasses import replace
from datetime import timedelta
from functools import partial

import pytest
import torch
from drifted_day import KNOWN
from recalibrating import (
    FIVE,
    NOTHING_LEARNT,
    QUICK,
    QUIET,
    SETTINGS,
    TOGETHER,
    UNDECIDED,
    Clock,
    add_copy,
    candidates,
    damage,
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
from cortext.data import open_packed
from cortext.errors import RunError
from cortext_live.recalibration.bad_days import Understood
from cortext_live.recalibration.candidates import CandidateMaker
from cortext_live.recalibration.chain import Chain, model_folder, open_chain, read_chain
from cortext_live.recalibration.learner import Learner
from cortext_live.recalibration.promotion import PromotionOptions
from cortext_live.recalibration.settings import SERVICE_METHODS

DAYS = TOGETHER | {
    "overrides": [*TOGETHER["overrides"], "word_confidence=0", "steps_at_once=1", "rounds=2"],
    "settings": FIVE,
    "rule": UNDECIDED,
}
"""A step for a sentence while the day goes on, and as many in two rounds when it ends."""


pytestmark = pytest.mark.usefixtures("drawn_by_number")


def same(found, expected):
    return found.keys() == expected.keys() and all(
        torch.equal(found[name], expected[name]) for name in expected
    )


def learner_weights(running):
    return running._learning.learner.model.network.state_dict()


def texts(trials):
    return ["i see you"] * len(trials)


def test_a_rollback_of_a_provisional_model_reaches_the_learner(participant, tmp_path):
    trials, chain = recorded(participant), tmp_path / "chain"
    allowed = QUICK | {"settings": replace(FIVE, allow_provisional=True)}
    with service(participant, tmp_path, **allowed) as running:
        say(tmp_path / "log", trials[:8], texts(trials[:8]))
        work(running)
        assert running.chain.provisional is not None
        assert running.chain.parent == 0
        assert not same(learner_weights(running), weights(participant.run))
        assert cortext(["chain", "rollback", str(chain), "--why", "bad"]) == 0
        work(running)
        assert same(learner_weights(running), weights(participant.run))
        say(tmp_path / "log", trials[8:14], texts(trials[8:14]))
        work(running)
    learnt = candidates(chain)[-1].facts
    assert (learnt["parent"], learnt["after"]) == (0, 0)
    assert learnt["learnt"]["decoded"] == [8, 9, 11, 12, 13]
    assert read_chain(chain).learnt(candidates(chain)[-1].number) == {
        (learnt["learnt"]["log"], number) for number in (8, 9, 11, 12, 13)
    }


def test_a_model_from_before_a_rollback_is_not_gone_on_from(participant, tmp_path, monkeypatch):
    trials, clock = recorded(participant), Clock()
    with service(participant, tmp_path, clock=clock, **DAYS) as running:
        say(tmp_path / "log", trials[:8], texts(trials[:8]), session="day one")
        work(running)
        say(tmp_path / "log", trials[8:15], texts(trials[8:15]), session="day two")
        work(running)
        made = running.chain.models
        assert running._learning.position.before in made[1:]
        assert cortext(["chain", "rollback", str(tmp_path / "chain"), "0", "--why", "bad"]) == 0
        compared = []

        monkeypatch.setattr(
            running._decisions._days, "_understood", lambda *given: compared.append(given)
        )
        say(tmp_path / "log", trials[15:23], texts(trials[15:23]), session="day three")
        work(running)
        contents, sessions = running.chain, running._learning.learner.model.sessions
    assert not compared
    assert "rejected" not in kinds(tmp_path / "chain")
    assert contents.descent(contents.models[-1])[-1] == 0
    assert set(contents.descent(contents.models[-1])).isdisjoint(made[1:])
    assert sessions == (*KNOWN, "day three")


@pytest.mark.parametrize("to", ["latest", "base"])
def test_a_person_may_roll_back_while_days_are_compared(participant, tmp_path, monkeypatch, to):
    trials, clock, chosen = recorded(participant), Clock(), []

    def understood(model, *_):
        if not chosen:  # the latest is asked first
            chosen.append(model if to == "latest" else 0)
            asked = ["chain", "rollback", str(tmp_path / "chain"), str(chosen[0])]
            assert cortext(asked) == 0
            return Understood(0.5, 0.5)
        return Understood(0.8, 0.8)

    with service(participant, tmp_path, clock=clock, **DAYS) as running:
        for day, first in (("one", 0), ("two", 7)):
            said = trials[first : first + 7]
            say(tmp_path / "log", said, texts(said), session=day)
            work(running)
        monkeypatch.setattr(running._decisions._days, "_understood", understood)
        for first in (14, 22):
            said = trials[first : first + 8]
            say(tmp_path / "log", said, texts(said), session="three")
            work(running)
        contents, sessions = running.chain, running._learning.learner.model.sessions
    assert "rejected" not in kinds(tmp_path / "chain")
    assert contents.parent == chosen[0]
    last = contents.models[-1]
    assert contents.may_learn_from(last)
    assert chosen[0] in contents.descent(last)
    assert sessions == (*KNOWN, *(("one", "two") if to == "latest" else ()), "three")


@pytest.mark.parametrize("part", ["replayed", "decoded", "corrected"])
def test_what_a_model_before_it_has_learnt_from_judges_no_model(participant, tmp_path, part):
    """Of the reserved 0, 2, 4, 6 and 8, an ancestor that never spoke has learnt from two."""
    trials, clock = recorded(participant)[:10], Clock()
    with service(participant, tmp_path, **QUICK) as running:
        say(tmp_path / "log", trials, texts(trials), range(10), when=clock.now)
        running._sentences.refresh()
        began = running._sentences.began
        learnt = NOTHING_LEARNT | {"log": began, "replayed": [], part: [4, 6]}
        with open_chain(tmp_path / "chain") as chain:
            first = add_copy(chain, participant.run, learnt=learnt)
            second = add_copy(chain, participant.run, after=first)
        contents = read_chain(tmp_path / "chain")
        entry = contents.entries[second]
        judgement = running._decisions._decider.judge(
            contents, entry, None, running._learning.learner
        )
    assert judgement.labelled == 3


def test_only_new_labels_judge_a_model_again_whose_time_is_over(participant, tmp_path):
    """Six reserved sentences judged it; two more are more than a tenth."""
    trials, clock = recorded(participant), Clock()
    judged = partial(judgements, tmp_path / "chain")
    strict = PromotionOptions(fewest=5, provisional=0.02, promotion=0.01)
    later = {"clock": clock, "rule": strict, "settings": replace(SETTINGS, every=1000)}
    lenient = QUICK | {"rule": PromotionOptions(fewest=5, provisional=100.0, promotion=0.01)}
    with service(participant, tmp_path, clock=clock, **lenient) as running:
        say(tmp_path / "log", trials[:12], texts(trials[:12]), range(12), when=clock.now)
        clock.now += timedelta(minutes=1)
        work(running)
    assert kinds(tmp_path / "chain") == ["base", "candidate", "judged", "provisional"]
    assert judged()[0]["comparison"]["sentences"] == 6
    clock.now += timedelta(hours=30)
    for number in range(12, 15):
        with service(participant, tmp_path, **(QUICK | later)) as running:
            work(running)
            say(tmp_path / "log", [trials[number]], ["x"], when=clock.now)
            work(running)
        assert len(judged()) == 1
    with service(participant, tmp_path, **(QUICK | later)) as running:
        say(tmp_path / "log", trials[15:19], texts(trials[15:19]), (16, 18), when=clock.now)
        work(running)
    again = judged()[1:]
    assert [each["comparison"]["sentences"] for each in again] == [8]
    assert again[0]["comparison"]["level"] == 1 - 0.05 / (2 * 3)


@pytest.mark.parametrize("damaged", [False, True], ids=["killed", "damaged parent"])
def test_a_model_that_proved_worse_stops_whatever_happens_meanwhile(
    participant, tmp_path, monkeypatch, damaged
):
    trials, chain_dir = recorded(participant)[:20], tmp_path / "chain"
    with service(participant, tmp_path):
        pass
    with open_chain(chain_dir) as chain:
        good = add_copy(chain, participant.run)
        chain.add("promoted", model=good, upper=0.0)
        bad = spoil(chain, participant.run, parent=good)
    say(tmp_path / "log", trials, texts(trials), range(20))
    with monkeypatch.context() as patched:

        def fail(*_):
            raise KeyboardInterrupt

        patched.setattr(Chain, "roll_back", fail)
        with service(participant, tmp_path) as running, pytest.raises(KeyboardInterrupt):
            running.work()
    assert kinds(chain_dir)[-1] == "checked"
    assert read_chain(chain_dir).parent == bad
    if damaged:
        with (model_folder(chain_dir, good) / "config.yaml").open("a") as file:
            file.write("\n")
    with service(participant, tmp_path) as running:
        assert running.work()
    assert kinds(chain_dir).count("checked") == 1
    assert read_chain(chain_dir).entries[-1].facts["operator"] == "automatic"
    assert read_chain(chain_dir).parent == (0 if damaged else good)


ONE_STEP = replace(SERVICE_METHODS["one-step"], copies=1, confidence=0.0)


@pytest.mark.parametrize(
    ("change", "asked"),
    [
        (
            {"method": "together", "overrides": ["word_confidence=0"]},
            replace(SERVICE_METHODS["together"], word_confidence=0.0),
        ),
        ({"overrides": [*QUICK["overrides"], "lr=0.02"]}, replace(ONE_STEP, lr=0.02)),
        ({"seed": 7}, ONE_STEP),
        ({"old_data": True}, ONE_STEP),
    ],
    ids=["method", "setting", "seed", "old data"],
)
def test_with_other_settings_learning_begins_again_at_the_latest_model(
    participant, tmp_path, change, asked
):
    """What was not in a model yet is learnt anew, with the new settings."""
    trials = recorded(participant)
    if "old_data" in change:
        change = {"old_data": open_packed(participant.data)}
    with service(participant, tmp_path, **QUICK) as running:
        say(tmp_path / "log", trials[:9], texts(trials[:9]))
        work(running)
    (latest,) = (each.number for each in candidates(tmp_path / "chain"))
    with service(participant, tmp_path, **(QUICK | change)) as running:
        learner = running._learning.learner
        assert learner.settings == asked
        assert learner.seed == change.get("seed", 0)
        days = {each.session for each in learner.state().known}
        assert days == (set(KNOWN) if "old_data" in change else set())
        assert same(learner_weights(running), weights(model_folder(tmp_path / "chain", latest)))
        say(tmp_path / "log", trials[9:16], texts(trials[9:16]))
        work(running)
    made = candidates(tmp_path / "chain")[1].facts
    assert made["after"] == latest
    assert made["learnt"]["decoded"] == [6, 7, 8, 9, 11]


@pytest.mark.parametrize("change", [{}, {"seed": 7}], ids=["the same settings", "another seed"])
def test_what_was_learnt_since_the_latest_model_is_in_the_next_one(participant, tmp_path, change):
    """Three of the five sentences of the second model were learnt before the restart."""
    trials = recorded(participant)
    with service(participant, tmp_path, **QUICK) as running:
        say(tmp_path / "log", trials[:9], texts(trials[:9]))
        work(running)
        running._learning.save(running.chain)
    with service(participant, tmp_path, **(QUICK | change)) as running:
        say(tmp_path / "log", trials[9:12], texts(trials[9:12]))
        work(running)
    made = [each.facts["learnt"]["decoded"] for each in candidates(tmp_path / "chain")]
    assert made == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 11]]


def test_with_other_settings_it_begins_though_its_model_is_damaged(participant, tmp_path):
    trials, chain = recorded(participant)[:9], tmp_path / "chain"
    with service(participant, tmp_path, **QUICK) as running:
        say(tmp_path / "log", trials, texts(trials))
        work(running)
    (latest,) = (each.number for each in candidates(chain))
    damage(model_folder(chain, latest))
    assert cortext(["chain", "rollback", str(chain), "0", "--why", "damaged"]) == 0
    with service(participant, tmp_path, seed=7, **QUICK) as running:
        assert running._learning.position.latest == 0
        assert same(learner_weights(running), weights(participant.run))


def test_a_damaged_learner_says_what_to_do(participant, tmp_path):
    trials, chain = recorded(participant)[:8], tmp_path / "chain"
    with service(participant, tmp_path, **QUICK) as running:
        say(tmp_path / "log", trials, texts(trials))
        work(running)
        running._learning.save(running.chain)
    sentence = min((chain / "learner" / "sentences").iterdir())
    sentence.write_bytes(sentence.read_bytes()[:-9])
    with pytest.raises(RunError, match="remove the directory learner of the chain"):
        service(participant, tmp_path, **QUICK)


def test_a_person_may_roll_back_while_a_model_is_judged(participant, tmp_path):
    trials, chain, statuses = recorded(participant)[:12], tmp_path / "chain", []

    def roll_back():
        if not statuses and kinds(chain)[-1] == "candidate":
            statuses.append(cortext(["chain", "rollback", str(chain), "0", "--why", "bad"]))

    rule = PromotionOptions(fewest=5, provisional=100.0, promotion=99.0, budget=1000.0)
    with service(participant, tmp_path, **(QUICK | {"rule": rule}), pause=roll_back) as running:
        say(tmp_path / "log", trials, texts(trials), range(12))
        work(running)
    assert statuses == [0]
    assert kinds(chain) == ["base", "candidate", "rolled_back"]
    assert read_chain(chain).parent == 0


def test_each_model_names_what_it_has_learnt_from_since_the_one_before(participant, tmp_path):
    trials = recorded(participant)[:17]
    with service(participant, tmp_path, **QUICK) as running:
        say(tmp_path / "log", trials, texts(trials))
        work(running)
    made = candidates(tmp_path / "chain")
    assert [each.facts["learnt"]["decoded"] for each in made] == [
        [1, 2, 3, 4, 5],
        [6, 7, 8, 9, 11],
        [12, 13, 14, 15, 16],
    ]
    assert [each.facts["learnt"]["replayed"] for each in made] == [[], [], []]
    assert [each.facts["after"] for each in made] == [0, made[0].number, made[1].number]
    assert [each.facts["parent"] for each in made] == [0, 0, 0]


def test_what_failed_after_learning_is_not_learnt_again(participant, tmp_path, monkeypatch):
    """The disk is full when the model is written, twice, and the process ends."""
    trials, clock, made = recorded(participant)[:7], Clock(), {}
    for name in ("undisturbed", "full"):
        folder = tmp_path / name
        folder.mkdir()
        with service(participant, folder, clock=clock, **DAYS) as running:
            say(folder / "log", trials, texts(trials), when=clock.now)
            if name == "full":
                with monkeypatch.context() as patched:

                    def full(*_, **__):
                        raise RunError("no space left")

                    patched.setattr(Chain, "add_model", full)
                    for _ in range(2):
                        with pytest.raises(RunError):
                            work(running)
                        assert running._learning.learner.n_steps == 5
            else:
                work(running)
        with service(participant, folder, clock=clock, **DAYS) as running:
            work(running)
        (entry,) = candidates(folder / "chain")
        assert entry.facts["steps"] == 5
        assert entry.facts["learnt"]["decoded"] == [1, 2, 3, 4, 5]
        made[name] = weights(model_folder(folder / "chain", entry.number))
    assert same(made["full"], made["undisturbed"])


@pytest.mark.parametrize("killed", [False, True], ids=["full disk", "kill"])
def test_a_day_gets_its_last_steps_though_a_model_failed_before(
    participant, tmp_path, monkeypatch, killed
):
    """Five sentences get a step each, and when it is quiet, one more."""
    trials, clock = recorded(participant)[:6], Clock()
    failure = KeyboardInterrupt if killed else RunError

    def fail(*_, **__):
        raise failure("no space left")

    running = service(participant, tmp_path, clock=clock, **DAYS)
    say(tmp_path / "log", trials, texts(trials), when=clock.now)
    with monkeypatch.context() as patched:
        patched.setattr(Chain, "add_model", fail)
        with pytest.raises(failure):
            work(running)
    clock.now += 2 * QUIET
    if killed:
        running.__exit__()
        running = service(participant, tmp_path, clock=clock, **DAYS)
    with running:
        work(running)
        assert not running.work()
    made = [each.facts for each in candidates(tmp_path / "chain")]
    assert [each["steps"] for each in made] == [5, 10]
    assert [each["learnt"]["decoded"] for each in made] == [[1, 2, 3, 4, 5]] * 2


@pytest.mark.parametrize("settle_s", [0.0, 1.0], ids=["the same settings", "another"])
def test_a_kill_between_a_model_and_the_last_save_repeats_nothing(
    participant, tmp_path, monkeypatch, settle_s
):
    trials, clock = recorded(participant)[:7], Clock()
    with service(participant, tmp_path, clock=clock, **DAYS) as running:
        say(tmp_path / "log", trials, texts(trials), when=clock.now)
        with monkeypatch.context() as patched:

            def killed(*_):
                raise KeyboardInterrupt

            patched.setattr(CandidateMaker, "_remove_old", killed)
            with pytest.raises(KeyboardInterrupt):
                work(running)
    assert len(candidates(tmp_path / "chain")) == 1
    again = DAYS | {"settings": replace(FIVE, settle_s=settle_s)}
    with service(participant, tmp_path, clock=clock, **again) as running:
        work(running)
        assert running._learning.learner.n_steps == 5
        assert running._learning.position.latest == candidates(tmp_path / "chain")[0].number
    assert len(candidates(tmp_path / "chain")) == 1
    assert "judged" in kinds(tmp_path / "chain")


def test_one_time_in_the_future_stops_nothing(participant, tmp_path):
    trials, clock = recorded(participant), Clock()
    settings = replace(FIVE, settle_s=60.0)
    with service(participant, tmp_path, clock=clock, **(QUICK | {"settings": settings})) as running:
        for number in range(8):
            late = timedelta(days=300) if number == 1 else -timedelta(minutes=5)
            say(tmp_path / "log", [trials[number]], ["x"], when=clock.now + late)
        work(running)
        assert running._learning.position.next == 8
    (entry,) = candidates(tmp_path / "chain")
    assert entry.facts["learnt"]["decoded"] == [1, 2, 3, 4, 5]


def test_a_day_gets_its_last_steps_before_the_next_one_begins(participant, tmp_path, monkeypatch):
    """Ten sentences of the first day may be learnt from: 1 to 9 and 11.

    They get a step each in two models, then as many in two rounds.
    """
    trials, clock, calls = recorded(participant), Clock(), []
    learn_together = Learner.learn_together

    def noted(self, sentences, steps, *more):
        calls.append((len(sentences), steps, sentences[0].session))
        return learn_together(self, sentences, steps, *more)

    monkeypatch.setattr(Learner, "learn_together", noted)
    with service(participant, tmp_path, clock=clock, **DAYS) as running:
        say(tmp_path / "log", trials[:12], texts(trials[:12]), session="one", when=clock.now)
        say(tmp_path / "log", trials[12:17], texts(trials[12:17]), session="two", when=clock.now)
        work(running)
        kept = [each.entry[1] for each in running._learning.learner.state().decoded]
    assert calls == [(5, 5, "one"), (10, 5, "one"), (10, 5, "one"), (10, 5, "one"), (5, 5, "two")]
    made = candidates(tmp_path / "chain")
    assert [each.facts["steps"] for each in made] == [5, 10, 20, 25]
    assert made[3].facts["learnt"]["decoded"] == [12, 13, 14, 15, 16]
    assert sorted(kept) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 11], "each once"


def test_each_log_has_sentence_numbers_of_its_own(participant, tmp_path):
    trials, clock, log = recorded(participant), Clock(), tmp_path / "log"
    with service(participant, tmp_path, clock=clock, **QUICK) as running:
        say(log, trials[:6], texts(trials[:6]), when=clock.now)
        work(running)
        log.rename(tmp_path / "first")
        clock.now += timedelta(minutes=1)
        say(log, trials[6:12], texts(trials[6:12]), when=clock.now)
        work(running)
        log.rename(tmp_path / "second")
        (tmp_path / "first").rename(log)
        assert not running.work(), "all of the first log was learnt from before"
    first, second = (each.facts["learnt"] for each in candidates(tmp_path / "chain"))
    assert second["log"] == first["log"] + 60
    assert first["decoded"] == second["decoded"] == [1, 2, 3, 4, 5]
