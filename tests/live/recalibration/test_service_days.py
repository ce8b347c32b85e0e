"""The service and bad days: which one is left out, and which models are not promoted."""

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
import torch
from drifted_day import KNOWN
from recalibrating import (
    ALL,
    DAYS,
    FIVE,
    QUIET,
    RULE,
    SETTINGS,
    TOGETHER,
    UNDECIDED,
    World,
    drawn_by_number,
    same,
)

from cortext.models import load_model
from cortext_live.recalibration.bad_days import Understood
from cortext_live.recalibration.promotion import Comparison, PromotionOptions
from cortext_live.usage.writer import UsageLog, UtteranceRecord

BETTER = Comparison(200, 1000, -9.0, -10.0, -8.0, 0.95)
WAY = DAYS | {"settings": replace(SETTINGS, every=20)}


def let(world, monkeypatch, understood=None, comparison=None):
    """Let a function tell how well models understand sentences, or how they compare.

    Args:
        world: The world whose service asks.
        monkeypatch: Undoes it.
        understood: Gets the model, the utterances and the learner.
        comparison: Is called without arguments.
    """
    if understood:
        monkeypatch.setattr(world.service._decisions._days, "_understood", understood)
    if comparison:
        monkeypatch.setattr(world.decider._comparer, "comparison", lambda *_: comparison())


def surer(world, monkeypatch, model):
    """Let a model be surer of all sentences than others."""
    let(world, monkeypatch, lambda number, *_: Understood(0.8 if number == model else 0.5, 0.5))


def say_day(world, session, count=9, corrected=()):
    """Let further sentences be uttered, and nobody speak until the day ends."""
    world.say(count, corrected=corrected, session=session)
    world.rest()


@pytest.fixture(scope="module")
def two_days(participant, tmp_path_factory):
    """A world that has learnt a good day and a bad one; the models from the end of both."""
    world = World(participant, tmp_path_factory.mktemp("two-days"))
    start_later(world)
    last = []
    for session in ("good day", "bad day"):
        world.say(20, corrected=ALL, session=session)
        world.work()
        last.append(world.contents.models[-1])
    world.stop()
    return world, *last


def start_later(world):
    """Start the service long after the utterances; it decides nothing by corrections."""
    later = world.clock.now + 2 * QUIET
    return world.start(**TOGETHER | {"rule": UNDECIDED, "clock": lambda: later})


@pytest.mark.parametrize(
    ("of_latest", "of_before", "left"),
    [
        ((0.5, 0.5), (0.8, 0.8), True),
        ((0.5, 0.5), (0.52, 0.8), False),
        ((0.2, 0.0), (0.4, 0.08), False),
        ((0.2, 0.0), (0.3, 0.12), True),
    ],
    ids=["surer", "hardly surer", "garbage", "speech that is hardly understood"],
)
def test_a_day_is_left_out_when_the_next_one_is_clearer_without_it(
    two_days, tmp_path, monkeypatch, of_latest, of_before, left
):
    learnt, before, latest = two_days
    world = learnt.copied(tmp_path)
    compared = []

    def understood(model, numbers, learner):
        compared.append((model, numbers))
        return Understood(*(of_latest if model == latest else of_before))

    start_later(world)
    let(world, monkeypatch, understood)
    world.say(20, session="next day")
    world.work()
    taught = [number for number in range(40, 60) if number not in world.watched(60)]
    assert compared == [(latest, taught[:10]), (before, taught[:10])]
    rejected = [each.model for each in world.contents.entries if each.kind == "rejected"]
    of_bad_day = [each.number for each in world.made if before < each.number <= latest]
    assert len(of_bad_day) == 2
    assert rejected == (of_bad_day[::-1] if left else [])
    days = ["good day", "next day"] if left else ["good day", "bad day", "next day"]
    assert list(world.learner.model.sessions[2:]) == days
    corrected = {each.session for each in world.learner.state().corrected}
    world.stop()
    assert ("bad day" in corrected) == (not left)


def after_bad_day(world, garbage):
    """What has learnt a good day and the day after the bad one, and how many models were rejected.

    Args:
        world: The world of these days.
        garbage: The recordings of the bad day, which is left out; None where it has no features and
            learning begins anew after it.
    """
    later = world.clock.now + 2 * QUIET
    overrides = [*TOGETHER["overrides"], "replayed=4", "word_confidence=0"]
    changes = {"overrides": overrides, "rule": UNDECIDED, "clock": lambda: later}
    service = world.start(**TOGETHER | changes)
    world.say(20, corrected=ALL, session="good day")
    world.work()
    good = world.contents.models[-1]
    if garbage is None:
        with UsageLog(world.log) as log:
            for number in range(20, 40):
                log.append(UtteranceRecord(number, "bad day", 2.0, "x"))
    else:
        world.say(garbage, corrected=ALL, session="bad day")
    world.work()
    assert (world.contents.models[-1] == good) == (garbage is None)
    if garbage is None:
        service._learning.start_again(service.chain, good)

    def understood(model, *_):
        return Understood(0.8, 0.8) if model == good else Understood(0.5, 0.5)

    service._decisions._days._understood = understood
    world.say(world.trials[40:], corrected=range(50, 60), session="next day")
    world.work()
    state = world.learner.state()
    world.stop()
    return state, world.kinds.count("rejected")


def test_a_day_that_was_left_out_leaves_no_trace(participant, tmp_path, drawn_by_number):
    """Learning continues, to the bit, as where its features are missing and it begins anew."""
    worlds = [World(participant, tmp_path / name) for name in ("garbage", "missing")]
    random = np.random.default_rng(0)
    garbage = [
        replace(each, features_TC=random.normal(size=each.features_TC.shape).astype(np.float32))
        for each in worlds[0].trials[20:40]
    ]
    left_out, n_rejected = after_bad_day(worlds[0], garbage)
    missing, none_rejected = after_bad_day(worlds[1], None)
    assert n_rejected > none_rejected == 0
    assert left_out.n_steps == missing.n_steps > 0
    assert same(*(each.model.network.state_dict() for each in (left_out, missing)))
    for part in ("known", "decoded", "corrected", "today"):
        own, other = (
            [(each.session, each.labels_U.tolist()) for each in getattr(found, part)]
            for found in (left_out, missing)
        )
        assert own == other
        assert "bad day" not in dict(own)
    assert left_out.corrected
    assert left_out.today


@pytest.mark.parametrize(
    ("share", "action"),
    [(0.05, "speak"), (0.15, "promote"), (None, "promote")],
    ids=["garbage", "speech", "too few sentences"],
)
def test_no_model_is_promoted_on_a_day_of_garbage(world, monkeypatch, share, action):
    """The model from before the day tells garbage from speech, also by what was not learnt."""
    service = world.start(rule=PromotionOptions())
    world.say(8)
    service._sentences.refresh()
    today = list(range(8))
    learnt = {"log": service._sentences.began, "decoded": today[3:], "corrected": today[:2]}
    last = world.add_model(learnt=learnt)
    asked, contents = [], world.contents
    found = None if share is None else Understood(0.4, share)
    let(world, monkeypatch, lambda *given: asked.append(given) or found, lambda: BETTER)
    judgement = world.decider.judge(contents, contents.entries[last], 0, world.learner)
    assert judgement.decision.action == action
    assert asked == [(0, today, world.learner)]


def test_the_model_from_before_a_day_tells_whether_its_models_are_promoted(world, monkeypatch):
    """The base trusts the first day; the first day's model does not trust the second."""
    world.start(**TOGETHER | {"settings": FIVE, "rule": RULE})

    def understood(model, *_):
        return Understood(0.4, 0.0 if model else 0.5)

    let(world, monkeypatch, understood, lambda: BETTER)
    actions = []
    for day in range(2):
        world.say(10, corrected=ALL, session=f"day {day}")
        world.work()
        (judged,) = world.contents.of(world.made[-1].number, "judged")
        actions.append(judged.facts["action"])
        world.clock.now += timedelta(days=1)
        world.work()
    assert actions == ["promote", "speak"]


@pytest.fixture(scope="module")
def good_and_bad(participant, tmp_path_factory):
    """A world that has learnt a good day and a bad one."""
    world = World(participant, tmp_path_factory.mktemp("good-and-bad"))
    with drawn_by_number():
        world.start(**WAY)
        for session in ("good", "bad"):
            say_day(world, session)
        world.save()
        world.stop()
    return world


@pytest.fixture
def after_bad(good_and_bad, tmp_path, monkeypatch, drawn_by_number):
    """The world on the next day; the model of the good one is surer."""
    world = good_and_bad.copied(tmp_path)
    world.start(**WAY)
    surer(world, monkeypatch, world.made[0].number)
    yield world
    world.stop()


def test_corrections_of_the_day_after_a_bad_one_are_learnt_once(after_bad):
    world = after_bad
    good, bad = (each.number for each in world.made)
    say_day(world, "next", 14, range(32))
    assert [each.model for each in world.contents.entries if each.kind == "rejected"] == [bad]
    assert world.facts("after")[2:] == [good]
    assert world.learnt("corrected")[2] == [19, 21, 23, 25, 27, 29, 31]


def test_sentences_of_a_bad_day_judge_no_model(after_bad):
    """Those of garbage, which no model has learnt from any more, would outnumber all others."""
    say_day(after_bad, "next", 14)
    unlearnt = after_bad.decider._held_out.unlearnt(after_bad.contents, after_bad.made[-1])
    # Of the first and the last day every tenth, which is not learnt from.
    assert unlearnt == [0, 20, 30]


def test_a_kill_after_a_bad_day_was_rejected_keeps_the_days_before(after_bad, monkeypatch):
    world = after_bad

    def kill(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(world.service._learning, "start_again", kill)
    with pytest.raises(KeyboardInterrupt):
        say_day(world, "next", 14, range(32))
    assert world.kinds[-1] == "rejected"
    world.start(**WAY)
    world.work()
    assert list(world.learner.model.sessions[2:]) == ["good", "next"]
    assert 19 in world.learnt("corrected")[-1]


@pytest.mark.usefixtures("drawn_by_number")
def test_a_damaged_model_before_the_day_stops_nothing(world, monkeypatch):
    """Neither is the day compared with it, nor does it tell garbage from speech."""
    world.start(**WAY | {"rule": RULE})
    say_day(world, "one")
    let(world, monkeypatch, comparison=lambda: BETTER)
    for session in ("two", "three"):
        world.damage(world.position.before)
        say_day(world, session)
    assert list(world.learner.model.sessions[2:]) == ["one", "two", "three"]
    assert world.kinds[-1] == "promoted"


@pytest.mark.usefixtures("drawn_by_number")
def test_the_last_model_of_a_garbage_day_is_not_promoted_when_the_next_day_waits(
    world, monkeypatch
):
    """The service is behind: it ends the day when it reads of the next one."""
    world.start(**WAY | {"rule": RULE})
    say_day(world, "good")
    good = world.made[-1].number
    let(world, monkeypatch, lambda *_: Understood(0.4, 0.05), lambda: BETTER)
    world.say(7, session="garbage")
    world.say(2, session="next")
    world.work()
    (last,) = (each for each in world.made if each.number > good)
    assert max(last.facts["learnt"]["decoded"]) < 16
    (judged,) = world.contents.of(last.number, "judged")
    assert judged.facts["action"] == "speak"
    assert "promoted" not in world.kinds


@pytest.mark.parametrize("n_models", [1, 2], ids=["its last model", "an earlier model"])
@pytest.mark.usefixtures("drawn_by_number")
def test_a_garbage_model_whose_time_is_over_is_not_promoted(world, monkeypatch, n_models):
    """Eight good sentences of the next day wait."""
    settings = replace(FIVE, every=9 if n_models == 1 else 5)
    world.start(**WAY | {"rule": RULE, "settings": settings})
    say_day(world, "good")
    found = [BETTER]
    let(
        world,
        monkeypatch,
        lambda _, numbers, __: Understood(0.4, 0.0 if min(numbers) < 18 else 0.8),
        lambda: found[0],
    )
    world.say(6, session="garbage")
    world.work()
    if n_models == 2:
        found[0] = Comparison(200, 1000, 0.0, -60.0, 60.0, 0.95)  # the next one waits
    say_day(world, "garbage", 3)
    spoke = world.contents.provisional
    assert (spoke == world.position.latest) == (n_models == 1)
    found[0] = BETTER
    monkeypatch.setattr(world.decider, "has_news", lambda *_: True)
    world.clock.now += timedelta(days=1)
    world.say(8, session="next")
    world.work()
    actions = [each.facts["action"] for each in world.contents.of(spoke, "judged")]
    assert set(actions) == {"speak"}
    assert len(actions) > 1


@pytest.mark.parametrize("rank", [0, 4, 8])
def test_sentences_are_trusted_as_they_would_be_learnt(world, rank):
    """Of nine, those with at least the confidence of one of them."""
    decoder = world.start()._decoder.decoder
    model = load_model(world.participant.run)
    found = []
    for trial in world.trials[:9]:
        logits_PV = model.logits(trial.features_TC.astype(np.float32), KNOWN[-1])
        log_probs_PV = torch.from_numpy(logits_PV).log_softmax(-1).numpy()
        words = decoder.decode(log_probs_PV, model.inventory)[0].words
        found.append(np.mean([word.confidence for word in words]))
    least = sorted(found)[rank] - 1e-6
    changes = {"overrides": [f"confidence={least}"], "settings": replace(SETTINGS, settle_s=60.0)}
    service = world.start(**changes)
    world.say(9)
    service._sentences.refresh()
    understood = service._decisions._days._understood(0, range(9), world.learner)
    assert service._decisions._days._understood(0, range(4), world.learner) is None
    assert understood.trusted == pytest.approx((9 - rank) / 9)
    assert understood.confidence == pytest.approx(np.mean(found), abs=1e-6)


@pytest.mark.usefixtures("drawn_by_number")
def test_a_parent_is_not_checked_while_its_child_speaks(world, monkeypatch):
    """The child's time is over; it is judged anew, and speaks on."""
    settings = replace(FIVE, every=9, allow_provisional=True)
    world.start(**WAY | {"rule": RULE, "settings": settings})
    let(world, monkeypatch, comparison=lambda: BETTER)
    say_day(world, "one")
    parent = world.contents.parent
    assert parent != 0
    monkeypatch.setattr(world.decider._comparer, "comparison", lambda *_: None)
    say_day(world, "two")
    child = world.contents.provisional
    assert child not in (None, parent)
    monkeypatch.setattr(
        world.decider._comparer,
        "confidences",
        lambda entry, *_: (0.9, 0.5 if entry.number == parent else 0.9),
    )
    world.clock.now += timedelta(days=2)
    say_day(world, "three")
    assert "rolled_back" not in world.kinds
    assert child in world.contents.descent(world.contents.models[-1])
