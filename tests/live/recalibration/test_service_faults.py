"""The service after rollbacks, kills, full disks and changed settings, and with odd clocks and logs."""

from dataclasses import replace
from datetime import timedelta

import pytest
from drifted_day import KNOWN
from recalibrating import (
    ALL,
    DAYS,
    FIVE,
    NOTHING_LEARNT,
    QUICK,
    QUIET,
    SETTINGS,
    World,
    same,
    weights,
    write_blank,
)

from cortext.data import open_packed
from cortext.errors import RunError
from cortext_live.recalibration.bad_days import Understood
from cortext_live.recalibration.candidates import CandidateMaker
from cortext_live.recalibration.chain import Chain
from cortext_live.recalibration.learner import Learner
from cortext_live.recalibration.promotion import PromotionOptions
from cortext_live.recalibration.settings import SERVICE_METHODS

STEPS = DAYS | {"overrides": [*DAYS["overrides"], "steps_at_once=1"]}
"""A step for a sentence while the day continues, and as many in two rounds when it ends."""
TEXT = "i see you"

pytestmark = pytest.mark.usefixtures("drawn_by_number")


def failing(failure):
    def fail(*_, **__):
        raise failure

    return fail


def test_a_rollback_of_a_provisional_model_reaches_the_learner(world):
    world.start(**QUICK | {"settings": replace(FIVE, allow_provisional=True)})
    world.say(8, TEXT)
    world.work()
    assert world.contents.provisional is not None
    assert world.contents.parent == 0
    base = weights(world.participant.run)
    assert not same(world.learner_weights, base)
    world.roll_back()
    world.work()
    assert same(world.learner_weights, base)
    world.say(6, TEXT)
    world.work()
    last = world.made[-1]
    assert (last.facts["parent"], last.facts["after"]) == (0, 0)
    learnt = last.facts["learnt"]
    assert learnt["decoded"] == [8, 9, 11, 12, 13]
    assert world.contents.learnt(last.number) == {(learnt["log"], n) for n in learnt["decoded"]}


def test_nothing_is_learnt_on_from_a_model_before_a_rollback(world, monkeypatch):
    world.start(**STEPS)
    world.say(8, TEXT, session="day one")
    world.work()
    world.say(7, TEXT, session="day two")
    world.work()
    made = world.contents.models
    assert world.position.before in made[1:]
    world.roll_back(0)
    compared = []
    days = world.service._decisions._days
    monkeypatch.setattr(days, "_understood", lambda *given: compared.append(given))
    world.say(8, TEXT, session="day three")
    world.work()
    assert not compared
    assert "rejected" not in world.kinds
    descent = world.contents.descent(world.contents.models[-1])
    assert descent[-1] == 0
    assert set(descent).isdisjoint(made[1:])
    assert world.learner.model.sessions == (*KNOWN, "day three")


@pytest.mark.parametrize("to", ["latest", "base"])
def test_a_person_may_roll_back_while_days_are_compared(world, monkeypatch, to):
    chosen = []

    def understood(model, *_):
        if not chosen:  # the latest is asked first
            chosen.append(model if to == "latest" else 0)
            world.roll_back(chosen[0])
            return Understood(0.5, 0.5)
        return Understood(0.8, 0.8)

    world.start(**STEPS)
    for day in ("one", "two"):
        world.say(7, TEXT, session=day)
        world.work()
    monkeypatch.setattr(world.service._decisions._days, "_understood", understood)
    for _ in range(2):
        world.say(8, TEXT, session="three")
        world.work()
    contents = world.contents
    assert "rejected" not in world.kinds
    assert contents.parent == chosen[0]
    last = contents.models[-1]
    assert contents.may_learn_from(last)
    assert chosen[0] in contents.descent(last)
    before = ("one", "two") if to == "latest" else ()
    assert world.learner.model.sessions == (*KNOWN, *before, "three")


@pytest.mark.parametrize("part", ["replayed", "decoded", "corrected"])
def test_what_a_model_before_it_has_learnt_from_judges_no_model(world, part):
    """Of the reserved 0, 2, 4, 6 and 8, an ancestor that never spoke has learnt from two."""
    service = world.start(**QUICK)
    world.say(10, TEXT, ALL)
    service._sentences.refresh()
    learnt = {"log": service._sentences.began, "replayed": [], part: [4, 6]}
    first = world.add_model(learnt=NOTHING_LEARNT | learnt)
    second = world.add_model(after=first)
    contents = world.contents
    judgement = world.decider.judge(contents, contents.entries[second], None, world.learner)
    assert judgement.labelled == 3


def test_only_new_labels_judge_a_model_again_whose_time_is_over(world):
    """Six reserved sentences judged it; two more are more than a tenth."""
    world.start(**QUICK | {"rule": PromotionOptions(fewest=5, provisional=100.0, promotion=0.01)})
    world.say(12, TEXT, ALL)
    world.clock.now += timedelta(minutes=1)
    world.work()
    assert world.kinds == ["base", "candidate", "judged", "provisional"]
    assert world.judged[0]["comparison"]["sentences"] == 6
    world.clock.now += timedelta(hours=30)
    strict = PromotionOptions(fewest=5, provisional=0.02, promotion=0.01)
    later = QUICK | {"rule": strict, "settings": replace(SETTINGS, every=1000)}
    for _ in range(3):
        world.start(**later)
        world.work()
        world.say(1)
        world.work()
        assert len(world.judged) == 1
    world.start(**later)
    world.say(4, TEXT, (16, 18))
    world.work()
    (again,) = world.judged[1:]
    assert again["comparison"]["sentences"] == 8
    assert again["comparison"]["level"] == 1 - 0.05 / (2 * 3)


@pytest.mark.parametrize("damaged", [False, True], ids=["killed", "damaged parent"])
def test_a_model_that_proved_worse_stops_whatever_happens_meanwhile(world, monkeypatch, damaged):
    world.start()
    good = world.add_model(promoted=True)
    bad = world.add_model(good, write_blank, promoted=True)
    world.say(20, TEXT, ALL)
    world.start()
    with monkeypatch.context() as patched:
        patched.setattr(Chain, "roll_back", failing(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            world.service.work()
    assert world.kinds[-1] == "checked"
    assert world.contents.parent == bad
    if damaged:
        with (world.run(good) / "config.yaml").open("a") as file:
            file.write("\n")
    assert world.start().work()
    assert world.kinds.count("checked") == 1
    assert world.contents.entries[-1].facts["operator"] == "automatic"
    assert world.contents.parent == (0 if damaged else good)


def test_where_the_parent_is_damaged_too_the_one_before_speaks(world):
    """The model that speaks for a while decodes nothing; its parent's file has a changed bit."""
    few = {"settings": FIVE, "rule": PromotionOptions(fewest=5)}
    service = world.start(**few)
    parent = world.add_model(promoted=True)
    bad = world.add_model(parent, write_blank)
    world.let_speak(bad)
    world.damage(parent)
    world.say(20, corrected=ALL)
    assert world.contents.speaking(world.clock.now) == bad
    assert service.work()
    assert world.contents.speaking(world.clock.now) == 0
    assert world.start(**few).work(), "it starts again, and learns"


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
def test_with_other_settings_learning_begins_again_at_the_latest_model(world, change, asked):
    """What was not in a model yet is learnt anew, with the new settings."""
    if "old_data" in change:
        change = {"old_data": open_packed(world.participant.data)}
    world.start(**QUICK)
    world.say(9, TEXT)
    world.work()
    (latest,) = (each.number for each in world.made)
    world.start(**QUICK | change)
    assert world.learner.settings == asked
    assert world.learner.seed == change.get("seed", 0)
    days = {each.session for each in world.learner.state().known}
    assert days == (set(KNOWN) if "old_data" in change else set())
    assert same(world.learner_weights, weights(world.run(latest)))
    world.say(7, TEXT)
    world.work()
    assert world.facts("after")[1] == latest
    assert world.learnt("decoded")[1] == [6, 7, 8, 9, 11]


@pytest.mark.parametrize("change", [{}, {"seed": 7}], ids=["the same settings", "another seed"])
def test_what_was_learnt_since_the_latest_model_is_in_the_next_one(world, change):
    """Three of the five sentences of the second model were learnt before the restart."""
    world.start(**QUICK)
    world.say(9, TEXT)
    world.work()
    world.save()
    world.start(**QUICK | change)
    world.say(3, TEXT)
    world.work()
    assert world.learnt("decoded") == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 11]]


def test_with_other_settings_it_begins_though_its_model_is_damaged(world):
    world.start(**QUICK)
    world.say(9, TEXT)
    world.work()
    (latest,) = (each.number for each in world.made)
    world.damage(latest)
    world.roll_back(0)
    world.start(seed=7, **QUICK)
    assert world.position.latest == 0
    assert same(world.learner_weights, weights(world.participant.run))


@pytest.mark.parametrize("way", [QUICK, DAYS], ids=["one-step", "together"])
def test_another_seed_learns_nothing_twice(world, way):
    world.start(**way)
    for day in ("one", "two"):
        world.say(6, session=day)
        world.rest()
    world.correct(1)
    world.work()
    world.save()
    before = len(world.made)
    world.start(seed=7, **way)
    assert world.position.next >= 6
    world.say(8, session="two")
    world.rest()
    state = world.learner.state()
    kept = [each.entry for each in (*state.decoded, *state.corrected, *state.today)]
    assert len(kept) == len(set(kept))
    later = world.learnt("decoded")[before:]
    assert later
    assert all(set(decoded) <= set(range(6, 20)) for decoded in later)


def test_a_damaged_learner_says_what_to_do(world):
    world.start(**QUICK)
    world.say(8, TEXT)
    world.work()
    world.save()
    sentence = min((world.chain / "learner" / "sentences").iterdir())
    sentence.write_bytes(sentence.read_bytes()[:-9])
    with pytest.raises(RunError, match="remove the directory learner of the chain"):
        world.start(**QUICK)


def test_a_person_may_roll_back_while_a_model_is_judged(world):
    done = []

    def roll_back():
        if not done and world.kinds[-1] == "candidate":
            done.append(world.roll_back(0))

    rule = PromotionOptions(fewest=5, provisional=100.0, promotion=99.0, budget=1000.0)
    world.start(**QUICK | {"rule": rule}, pause=roll_back)
    world.say(12, TEXT, ALL)
    world.work()
    assert done
    assert world.kinds == ["base", "candidate", "rolled_back"]
    assert world.contents.parent == 0


def test_a_candidate_has_the_parent_that_a_person_has_just_chosen(world, monkeypatch):
    world.start(**DAYS)
    world.say(7)
    world.work()
    latest = world.position.latest
    world.say(7)
    learn_together = Learner.learn_together

    def meanwhile(self, *arguments):
        monkeypatch.setattr(Learner, "learn_together", learn_together)
        world.roll_back(latest)
        return learn_together(self, *arguments)

    monkeypatch.setattr(Learner, "learn_together", meanwhile)
    world.work()
    assert latest != 0
    assert world.facts("parent")[-1] == latest


def test_each_model_names_what_it_has_learnt_from_since_the_one_before(world):
    world.start(**QUICK)
    world.say(17, TEXT)
    world.work()
    assert world.learnt("decoded") == [[1, 2, 3, 4, 5], [6, 7, 8, 9, 11], [12, 13, 14, 15, 16]]
    assert world.learnt("replayed") == [[], [], []]
    first, second, _ = (each.number for each in world.made)
    assert world.facts("after") == [0, first, second]
    assert world.facts("parent") == [0, 0, 0]


def test_what_failed_after_learning_is_not_learnt_again(participant, tmp_path, monkeypatch):
    """The disk is full when the model is written, twice, and the process ends."""
    made = {}
    for name in ("undisturbed", "full"):
        world = World(participant, tmp_path / name)
        world.start(**STEPS)
        world.say(7, TEXT)
        if name == "full":
            with monkeypatch.context() as patched:
                patched.setattr(Chain, "add_model", failing(RunError("no space left")))
                for _ in range(2):
                    with pytest.raises(RunError):
                        world.work()
                    assert world.learner.n_steps == 5
        else:
            world.work()
        world.start(**STEPS)
        world.work()
        (entry,) = world.made
        assert entry.facts["steps"] == 5
        assert entry.facts["learnt"]["decoded"] == [1, 2, 3, 4, 5]
        made[name] = weights(world.run(entry.number))
        world.stop()
    assert same(made["full"], made["undisturbed"])


@pytest.mark.parametrize("killed", [False, True], ids=["full disk", "kill"])
def test_a_day_gets_its_last_steps_though_a_model_failed_before(world, monkeypatch, killed):
    """Five sentences get a step each, and when it is quiet, one more."""
    failure = KeyboardInterrupt if killed else RunError
    world.start(**STEPS)
    world.say(6, TEXT)
    with monkeypatch.context() as patched:
        patched.setattr(Chain, "add_model", failing(failure("no space left")))
        with pytest.raises(failure):
            world.work()
    world.clock.now += 2 * QUIET
    if killed:
        world.start(**STEPS)
    world.work()
    assert not world.service.work()
    assert world.facts("steps") == [5, 10]
    assert world.learnt("decoded") == [[1, 2, 3, 4, 5]] * 2


@pytest.mark.parametrize("settle_s", [0.0, 1.0], ids=["the same settings", "another"])
def test_a_kill_between_a_model_and_the_last_save_repeats_nothing(world, monkeypatch, settle_s):
    world.start(**STEPS)
    world.say(7, TEXT)
    with monkeypatch.context() as patched:
        patched.setattr(CandidateMaker, "_remove_old", failing(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            world.work()
    (made,) = world.made
    world.start(**STEPS | {"settings": replace(FIVE, settle_s=settle_s)})
    world.work()
    assert world.learner.n_steps == 5
    assert world.position.latest == made.number
    assert len(world.made) == 1
    assert "judged" in world.kinds


def test_one_time_in_the_future_stops_nothing(world):
    now = world.clock.now
    world.start(**QUICK | {"settings": replace(FIVE, settle_s=60.0)})
    for number in range(8):
        world.clock.now = now + (timedelta(days=300) if number == 1 else -timedelta(minutes=5))
        world.say(1)
    world.clock.now = now
    world.work()
    assert world.position.next == 8
    assert world.learnt("decoded") == [[1, 2, 3, 4, 5]]


def test_a_day_gets_its_last_steps_before_the_next_one_begins(world, monkeypatch):
    """Ten sentences of the first day may be learnt from: 1 to 9 and 11.

    They get a step each in two models, then as many in two rounds.
    """
    calls = []
    learn_together = Learner.learn_together

    def noted(self, sentences, steps, *more):
        calls.append((len(sentences), steps, sentences[0].session))
        return learn_together(self, sentences, steps, *more)

    monkeypatch.setattr(Learner, "learn_together", noted)
    world.start(**STEPS)
    world.say(12, TEXT, session="one")
    world.say(5, TEXT, session="two")
    world.work()
    assert calls == [(5, 5, "one"), (10, 5, "one"), (10, 5, "one"), (10, 5, "one"), (5, 5, "two")]
    assert world.facts("steps") == [5, 10, 20, 25]
    assert world.learnt("decoded")[3] == [12, 13, 14, 15, 16]
    kept = [each.entry[1] for each in world.learner.state().decoded]
    assert sorted(kept) == [1, 2, 3, 4, 5, 6, 7, 8, 9, 11], "each once"


def test_each_log_has_sentence_numbers_of_its_own(world):
    world.start(**QUICK)
    world.say(6, TEXT)
    world.work()
    first, second = world.folder / "first", world.folder / "second"
    world.log.rename(first)
    world.clock.now += timedelta(minutes=1)
    world.say(world.trials[6:12], TEXT)
    world.work()
    world.log.rename(second)
    first.rename(world.log)
    assert not world.service.work(), "all of the first log was learnt from before"
    assert world.learnt("log")[1] == world.learnt("log")[0] + 60
    assert world.learnt("decoded") == [[1, 2, 3, 4, 5]] * 2
