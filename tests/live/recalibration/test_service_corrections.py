"""The service when people correct late, correct again, or take back their labels."""

import shutil
from dataclasses import replace
from itertools import chain

import pytest
from recalibrating import DAYS, QUICK, SETTINGS, World, drawn_by_number

from cortext.cli import run as cortext
from cortext_live.usage.kept_features import KeptFeatures
from cortext_live.usage.writer import UsageLog, UtteranceRecord

pytestmark = pytest.mark.usefixtures("drawn_by_number")


@pytest.fixture
def day(world):
    """A service that has learnt a day of seven sentences, which has ended."""
    world.start(**DAYS)
    world.say(7, session="one")
    world.rest()
    return world


@pytest.fixture(scope="module")
def learnt_days(participant, tmp_path_factory):
    """A first day that was learnt, whose sentence 3 was corrected, wrongly; the next has begun."""
    world = World(participant, tmp_path_factory.mktemp("days"))
    with drawn_by_number():
        world.start(**DAYS)
        world.say(7, session="one")
        world.correct(3, "now i know you")
        world.rest()
        world.say(3, session="two")
        world.work()
        world.save()
        world.stop()
    return world


@pytest.fixture
def two_days(learnt_days, tmp_path):
    world = learnt_days.copied(tmp_path)
    world.start(**DAYS)
    yield world
    world.stop()


def test_a_correction_after_the_days_last_steps_is_learnt(day):
    assert day.position.rested
    day.correct(3)
    day.work()
    assert day.learnt("corrected")[-1] == [3]
    assert [each.entry[1] for each in day.learner.state().today if each.corrected] == [3]


def test_a_late_correction_of_an_earlier_day_is_replayed(world):
    world.start(**DAYS)
    world.say(7, session="one")
    world.say(3, session="two")
    world.work()
    world.correct(3)
    world.work()
    assert not world.position.rested, "the day continues"
    state = world.learner.state()
    assert [each.entry[1] for each in state.corrected] == [3]
    assert 3 not in [each.entry[1] for each in state.decoded]


def test_a_second_correction_takes_the_place_of_the_first(world):
    world.start(**DAYS)
    world.say(7, session="one")
    world.correct(3, "now i know you")
    world.rest()
    (wrong,) = world.replayed(3)
    assert [wrong] != world.as_meant(3)
    world.correct(3)
    world.work()
    assert world.replayed(3) == world.as_meant(3)
    assert world.learnt("corrected")[-2:] == [[3], [3]]


def test_a_second_correction_of_an_earlier_day_takes_the_place_of_the_first(two_days):
    """Before the new day is learnt, and after."""
    assert two_days.replayed(3) != two_days.as_meant(3)
    two_days.correct(3)
    two_days.work()
    assert two_days.replayed(3) == two_days.as_meant(3)
    two_days.rest()
    assert two_days.replayed(3) == two_days.as_meant(3)


@pytest.mark.parametrize("text", ["zxqv", "water " * 30], ids=["unknown word", "too long"])
def test_a_correction_that_cannot_be_learnt_ends_the_replay_of_the_first(two_days, text):
    two_days.correct(3, text)
    two_days.work()
    assert two_days.replayed(3) == []


def test_a_confirmation_that_is_taken_back_is_no_label(two_days):
    two_days.rate(5, "right")  # "x" is no word of the lexicon
    two_days.work()
    assert two_days.replayed(5) == []
    two_days.rate(5, "wrong")
    two_days.work()
    ((_, by_person),) = two_days.replayed(5)
    assert not by_person
    two_days.correct(5)
    two_days.work()
    assert two_days.replayed(5) == two_days.as_meant(5)


def test_a_reserved_sentence_is_replayed_no_longer_once_it_has_a_label(two_days):
    assert len(two_days.replayed(4)) == 1, "as it was decoded"
    two_days.correct(4)
    two_days.work()
    assert two_days.replayed(4) == []


def test_each_sentence_learns_again_with_its_second_correction(world):
    world.start(**QUICK)
    world.say(4, corrected=[1])
    world.work()
    steps = world.learner.n_steps
    world.correct(1, "now i know you")
    world.work()
    world.rate(1, "right")  # the correction stays
    world.work()
    assert world.learner.n_steps == steps + 1
    ((label, _),) = world.replayed(1)
    assert label != world.trials[1].phoneme_ids.tolist()


@pytest.mark.parametrize("first", [None, "now i know you"], ids=["decoded before", "corrected"])
def test_with_another_seed_a_correction_of_a_known_sentence_is_learnt_anew(world, first):
    """The latest model knows the sentence with the label that it had before."""
    world.start(**QUICK)
    world.say(8)
    if first:
        world.correct(1, first)
    world.work()
    world.correct(1)
    world.work()
    world.save()
    world.start(seed=7, **QUICK)
    world.say(8)
    world.work()
    earlier, later = world.facts("learnt")[:2]
    assert (1 in earlier["decoded"], 1 in earlier["corrected"]) == (not first, bool(first))
    assert 1 in later["corrected"]


def test_a_sentence_of_today_is_deleted_and_another_corrected(day):
    day.say(3, session="two")
    day.work()
    day.correct(7)
    assert cortext(["log", "delete", str(day.log), "--entry", "9", "--yes"]) == 0
    day.work()
    day.rest()
    assert day.replayed(7) == day.as_meant(7)
    assert day.replayed(9) == []


def test_a_label_that_was_taken_back_does_not_turn_the_log_back(world):
    world.start(**QUICK)
    world.say(8, "you see me")
    world.rate(2, "right")  # it judges
    world.work()
    world.rate(2, "wrong")
    world.work()
    world.save()
    after = world.position.next
    world.start(seed=7, **QUICK)
    assert world.position.next >= after - 3


def test_many_late_corrections_make_one_model(world):
    world.start(**DAYS)
    world.say(12, session="one")
    world.rest()
    before = len(world.made)
    for number in (1, 3, 5, 7, 9, 11):
        world.correct(number)
    world.work()
    assert world.learnt("corrected")[before:] == [[1, 3, 5, 7, 9, 11]]


def test_after_a_rollback_a_correction_of_the_day_is_learnt(world):
    world.start(**DAYS)
    world.say(7, session="one")
    world.work()
    assert world.made
    world.roll_back(0)
    world.correct(3)
    world.work()
    world.say(3, session="one")
    world.rest()
    assert world.replayed(3) == world.as_meant(3)
    assert 3 in world.learnt("corrected")[-1]


@pytest.mark.parametrize("way", [DAYS, QUICK], ids=["together", "one by one"])
def test_a_correction_in_no_model_yet_outlives_a_rollback(world, way):
    world.start(**way)
    world.say(7, session="one")
    world.work()
    made = len(world.made)
    world.say(2, corrected=[7], session="one")
    world.work()
    assert len(world.made) == made, "7 is in no model"
    world.roll_back(0)
    world.work()
    world.say(6, session="one")
    world.rest()
    assert world.replayed(7) == world.as_meant(7)
    assert 7 in world.learnt("corrected")[made]


def test_a_correction_in_the_middle_of_a_day_outlives_a_rollback(world):
    """A model has learnt the sentence as it was decoded."""
    world.start(**DAYS)
    world.say(7, session="one")
    world.work()
    assert 1 in world.learnt("decoded")[-1]
    world.correct(1)
    world.work()
    world.roll_back(0)
    world.say(7, session="one")
    world.rest()
    assert world.replayed(1) == world.as_meant(1)


def test_after_a_rollback_corrections_of_two_days_are_learnt(two_days):
    """Back to the model from the end of the first day."""
    first = two_days.made[-1].number
    two_days.rest()
    assert two_days.made[-1].number > first
    two_days.roll_back(first)
    two_days.correct(5)
    two_days.correct(7)
    two_days.work()
    two_days.rest()
    assert two_days.replayed(5) == two_days.as_meant(5)
    assert two_days.replayed(7) == two_days.as_meant(7)


def test_a_correction_of_yesterday_leaves_the_others_of_that_day_in_replay(world):
    """Nothing is learnt from the first utterance of the new day, which is watched."""
    world.start(**DAYS)
    world.say(10, session="one")
    world.rest()
    world.say(1, session="two")
    world.work()
    world.correct(3)
    world.rest()
    assert world.replayed(3) == world.as_meant(3)
    assert [len(world.replayed(number)) for number in range(1, 10)] == [1] * 9


def test_a_label_taken_back_before_it_was_learnt_is_no_news_without_the_learner(world):
    world.say(14)
    world.rate(5, "right")
    world.rate(5, "wrong")
    world.start(**QUICK)
    world.work()
    world.stop()
    shutil.rmtree(world.chain / "learner")
    world.say(8)
    world.start(**QUICK)
    world.work()
    assert list(chain.from_iterable(world.learnt("decoded"))).count(5) == 1


def test_without_its_learner_a_chain_continues_from_its_latest_model(world):
    """Its models wait for labels; a sentence that one knows was corrected meanwhile."""
    world.start(**QUICK)
    world.say(14, corrected=[3])
    world.work()
    world.save()
    world.stop()
    shutil.rmtree(world.chain / "learner")
    world.correct(5)
    world.start(**QUICK)
    world.say(8)
    world.work()
    assert world.facts("after") == [0, *(each.number for each in world.made[:-1])]
    assert world.learnt("decoded")[:3] == [[1, 2, 4, 5], [6, 7, 8, 9, 11], [12, 13, 14, 15]]
    assert world.learnt("corrected")[:3] == [[3], [], [5]]


def test_it_asks_for_the_latest_sentences_that_could_judge(world):
    """The features of 30 were never kept; nothing was decoded of 40."""
    with UsageLog(world.log, kept_features=KeptFeatures(world.log)) as log:
        for number in range(90):
            text = "" if number == 40 else "x"
            log.append(UtteranceRecord(f"u{number}", "one", 2.0, text))
            if number != 30:
                log.keep_features(world.trials[number % 60].features_TC.astype("float32"))
    world.start(**QUICK | {"settings": replace(SETTINGS, every=70)})
    world.work()
    asked = world.judged[-1]["reason"]
    assert asked.endswith("; correct or confirm utterances u20, u50, u60, u70, u80")
