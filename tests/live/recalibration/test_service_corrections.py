"""The service when people correct late, correct again, or take back what they said."""

import shutil

import pytest
from recalibrating import (
    DAYS,
    QUICK,
    QUIET,
    Clock,
    candidates,
    correct,
    judgements,
    recorded,
    say,
    service,
    work,
)

from cortext.cli import run as cortext
from cortext_live.usage.kept_features import KeptFeatures
from cortext_live.usage.writer import UsageLog, UtteranceRecord

pytestmark = pytest.mark.usefixtures("drawn_by_number")


def rate(folder, number, rating):
    with UsageLog(folder) as log:
        log.rate(str(number), rating)


def replayed(running, number):
    """The labels with which an utterance is kept, and whether a person gave them."""
    state = running._learning.learner.state()
    kept = (*state.corrected, *state.decoded, *state.today)
    return [(each.labels_U.tolist(), each.corrected) for each in kept if each.entry[1] == number]


def told(trial):
    """A label that a person gave, as `replayed` has it."""
    return trial.phoneme_ids.tolist(), True


@pytest.fixture
def two_days(participant, tmp_path):
    """A service that has learnt the first day; sentence 3 was corrected, wrongly.

    The next day has begun.
    """
    trials, clock = recorded(participant), Clock()
    with service(participant, tmp_path, clock=clock, **DAYS) as running:
        say(tmp_path / "log", trials[:7], ["x"] * 7, session="one", when=clock.now)
        correct(tmp_path / "log", 3, trials, "now i know you")
        clock.now += 2 * QUIET
        work(running)
        say(tmp_path / "log", trials[7:10], ["x"] * 3, session="two", when=clock.now)
        work(running)
        running.end_of_day = lambda: setattr(clock, "now", clock.now + 2 * QUIET) or work(running)
        yield running


def test_a_correction_after_the_days_last_steps_is_learnt(participant, tmp_path):
    trials, clock = recorded(participant), Clock()
    with service(participant, tmp_path, clock=clock, **DAYS) as running:
        say(tmp_path / "log", trials[:7], ["x"] * 7, session="one", when=clock.now)
        clock.now += 2 * QUIET
        work(running)
        assert running._learning.position.rested
        correct(tmp_path / "log", 3, trials)
        work(running)
        state = running._learning.learner.state()
    learnt = [entry.facts["learnt"]["corrected"] for entry in candidates(tmp_path / "chain")]
    assert learnt[-1] == [3]
    assert [each.entry[1] for each in state.today if each.corrected] == [3]


def test_a_late_correction_of_an_earlier_day_is_replayed(participant, tmp_path):
    trials, clock = recorded(participant), Clock()
    with service(participant, tmp_path, clock=clock, **DAYS) as running:
        say(tmp_path / "log", trials[:7], ["x"] * 7, session="one", when=clock.now)
        say(tmp_path / "log", trials[7:10], ["x"] * 3, session="two", when=clock.now)
        work(running)
        correct(tmp_path / "log", 3, trials)
        work(running)
        assert not running._learning.position.rested, "the day goes on"
        state = running._learning.learner.state()
    assert [each.entry[1] for each in state.corrected] == [3]
    assert 3 not in [each.entry[1] for each in state.decoded]


def test_a_second_correction_takes_the_place_of_the_first(participant, tmp_path):
    trials, clock = recorded(participant), Clock()
    with service(participant, tmp_path, clock=clock, **DAYS) as running:
        say(tmp_path / "log", trials[:7], ["x"] * 7, session="one", when=clock.now)
        correct(tmp_path / "log", 3, trials, "now i know you")
        clock.now += 2 * QUIET
        work(running)
        ((wrong, _),) = replayed(running, 3)
        assert wrong != trials[3].phoneme_ids.tolist()
        correct(tmp_path / "log", 3, trials)
        work(running)
        assert replayed(running, 3) == [told(trials[3])]
    learnt = [each.facts["learnt"]["corrected"] for each in candidates(tmp_path / "chain")]
    assert learnt[-2:] == [[3], [3]]


def test_a_second_correction_of_an_earlier_day_takes_the_place_of_the_first(
    participant, tmp_path, two_days
):
    """Before the new day is learnt, and after."""
    trials = recorded(participant)
    assert replayed(two_days, 3) != [told(trials[3])]
    correct(tmp_path / "log", 3, trials)
    work(two_days)
    assert replayed(two_days, 3) == [told(trials[3])]
    two_days.end_of_day()
    assert replayed(two_days, 3) == [told(trials[3])]


@pytest.mark.parametrize("text", ["zxqv", "water " * 30], ids=["unknown word", "too long"])
def test_a_correction_that_cannot_be_learnt_ends_the_replay_of_the_first(
    participant, tmp_path, two_days, text
):
    correct(tmp_path / "log", 3, recorded(participant), text)
    work(two_days)
    assert replayed(two_days, 3) == []


def test_a_confirmation_that_is_taken_back_is_no_label(participant, tmp_path, two_days):
    trials = recorded(participant)
    rate(tmp_path / "log", 5, "right")  # "x" is no word of the lexicon
    work(two_days)
    assert replayed(two_days, 5) == []
    rate(tmp_path / "log", 5, "wrong")
    work(two_days)
    ((_, by_person),) = replayed(two_days, 5)
    assert not by_person
    correct(tmp_path / "log", 5, trials)
    work(two_days)
    assert replayed(two_days, 5) == [told(trials[5])]


def test_a_reserved_sentence_is_replayed_no_longer_once_it_has_a_label(
    participant, tmp_path, two_days
):
    trials = recorded(participant)
    assert len(replayed(two_days, 4)) == 1, "as it was decoded"
    correct(tmp_path / "log", 4, trials)
    work(two_days)
    assert replayed(two_days, 4) == []


def test_each_sentence_learns_again_with_its_second_correction(participant, tmp_path):
    trials = recorded(participant)
    with service(participant, tmp_path, **QUICK) as running:
        say(tmp_path / "log", trials[:4], ["x"] * 4, [1])
        work(running)
        steps = running._learning.learner.n_steps
        correct(tmp_path / "log", 1, trials, "now i know you")
        work(running)
        rate(tmp_path / "log", 1, "right")  # the correction stays
        work(running)
        assert running._learning.learner.n_steps == steps + 1
        ((label, _),) = replayed(running, 1)
    assert label != trials[1].phoneme_ids.tolist()


@pytest.mark.parametrize("first", [None, "now i know you"], ids=["decoded before", "corrected"])
def test_with_another_seed_a_correction_of_a_known_sentence_is_learnt_anew(
    participant, tmp_path, first
):
    """The latest model knows the sentence with the label that it had before."""
    trials, log = recorded(participant), tmp_path / "log"
    with service(participant, tmp_path, **QUICK) as running:
        say(log, trials[:8], ["x"] * 8)
        if first:
            correct(log, 1, trials, first)
        work(running)
        correct(log, 1, trials)
        work(running)
        running._learning.save(running.chain)
    with service(participant, tmp_path, seed=7, **QUICK) as running:
        say(log, trials[8:16], ["x"] * 8)
        work(running)
    earlier, later = (each.facts["learnt"] for each in candidates(tmp_path / "chain")[:2])
    assert (1 in earlier["decoded"], 1 in earlier["corrected"]) == (not first, bool(first))
    assert 1 in later["corrected"]


def test_a_sentence_of_today_is_deleted_and_another_corrected(participant, tmp_path):
    trials, clock, log = recorded(participant), Clock(), tmp_path / "log"
    with service(participant, tmp_path, clock=clock, **DAYS) as running:
        say(log, trials[:7], ["x"] * 7, session="one", when=clock.now)
        clock.now += 2 * QUIET
        work(running)
        say(log, trials[7:10], ["x"] * 3, session="two", when=clock.now)
        work(running)
        correct(log, 7, trials)
        assert cortext(["log", "delete", str(log), "--entry", "9", "--yes"]) == 0
        work(running)
        clock.now += 2 * QUIET
        work(running)
        assert replayed(running, 7) == [told(trials[7])]
        assert replayed(running, 9) == []


def test_a_label_that_was_taken_back_does_not_turn_the_log_back(participant, tmp_path):
    trials, log = recorded(participant), tmp_path / "log"
    with service(participant, tmp_path, **QUICK) as running:
        say(log, trials[:8], ["you see me"] * 8)
        rate(log, 2, "right")  # it judges
        work(running)
        rate(log, 2, "wrong")
        work(running)
        running._learning.save(running.chain)
        after = running._learning.position.next
    with service(participant, tmp_path, seed=7, **QUICK) as running:
        assert running._learning.position.next >= after - 3


def test_many_late_corrections_make_one_model(participant, tmp_path):
    trials, clock = recorded(participant), Clock()
    with service(participant, tmp_path, clock=clock, **DAYS) as running:
        say(tmp_path / "log", trials[:12], ["x"] * 12, session="one", when=clock.now)
        clock.now += 2 * QUIET
        work(running)
        before = len(candidates(tmp_path / "chain"))
        for number in (1, 3, 5, 7, 9, 11):
            correct(tmp_path / "log", number, trials)
        work(running)
    made = candidates(tmp_path / "chain")[before:]
    assert [each.facts["learnt"]["corrected"] for each in made] == [[1, 3, 5, 7, 9, 11]]


def test_after_a_rollback_a_correction_of_the_day_is_learnt(participant, tmp_path):
    trials, clock, chain = recorded(participant), Clock(), tmp_path / "chain"
    with service(participant, tmp_path, clock=clock, **DAYS) as running:
        say(tmp_path / "log", trials[:7], ["x"] * 7, session="one", when=clock.now)
        work(running)
        assert candidates(chain)
        assert cortext(["chain", "rollback", str(chain), "0", "--why", "worse"]) == 0
        correct(tmp_path / "log", 3, trials)
        work(running)
        say(tmp_path / "log", trials[7:10], ["x"] * 3, session="one", when=clock.now)
        clock.now += 2 * QUIET
        work(running)
        assert replayed(running, 3) == [told(trials[3])]
    assert 3 in candidates(chain)[-1].facts["learnt"]["corrected"]


@pytest.mark.parametrize("way", [DAYS, QUICK], ids=["together", "one by one"])
def test_a_correction_in_no_model_yet_outlives_a_rollback(participant, tmp_path, way):
    trials, clock, chain = recorded(participant), Clock(), tmp_path / "chain"
    with service(participant, tmp_path, clock=clock, **way) as running:
        say(tmp_path / "log", trials[:7], ["x"] * 7, session="one", when=clock.now)
        work(running)
        said = len(candidates(chain))
        say(tmp_path / "log", trials[7:9], ["x"] * 2, [7], session="one", when=clock.now)
        work(running)
        assert len(candidates(chain)) == said, "7 is in no model"
        assert cortext(["chain", "rollback", str(chain), "0", "--why", "worse"]) == 0
        work(running)
        say(tmp_path / "log", trials[9:15], ["x"] * 6, session="one", when=clock.now)
        clock.now += 2 * QUIET
        work(running)
        assert replayed(running, 7) == [told(trials[7])]
    corrected = [each.facts["learnt"]["corrected"] for each in candidates(chain)]
    assert 7 in corrected[said]


def test_a_correction_in_the_middle_of_a_day_outlives_a_rollback(participant, tmp_path):
    """A model has learnt the sentence as it was decoded."""
    trials, clock, chain = recorded(participant), Clock(), tmp_path / "chain"
    with service(participant, tmp_path, clock=clock, **DAYS) as running:
        say(tmp_path / "log", trials[:7], ["x"] * 7, session="one", when=clock.now)
        work(running)
        assert 1 in candidates(chain)[-1].facts["learnt"]["decoded"]
        correct(tmp_path / "log", 1, trials)
        work(running)
        assert cortext(["chain", "rollback", str(chain), "0", "--why", "worse"]) == 0
        say(tmp_path / "log", trials[7:14], ["x"] * 7, session="one", when=clock.now)
        clock.now += 2 * QUIET
        work(running)
        assert replayed(running, 1) == [told(trials[1])]


def test_after_a_rollback_corrections_of_two_days_are_learnt(participant, tmp_path, two_days):
    """Back to the model from the end of the first day."""
    trials, chain = recorded(participant), tmp_path / "chain"
    first = candidates(chain)[-1].number
    two_days.end_of_day()
    assert candidates(chain)[-1].number > first
    assert cortext(["chain", "rollback", str(chain), str(first), "--why", "worse"]) == 0
    correct(tmp_path / "log", 5, trials)
    correct(tmp_path / "log", 7, trials)
    work(two_days)
    two_days.end_of_day()
    assert [replayed(two_days, number) for number in (5, 7)] == [
        [told(trials[5])],
        [told(trials[7])],
    ]


def test_a_correction_of_yesterday_leaves_the_others_of_that_day_in_replay(participant, tmp_path):
    """Nothing is learnt from the first utterance of the new day, which is watched."""
    trials, clock = recorded(participant), Clock()
    with service(participant, tmp_path, clock=clock, **DAYS) as running:
        say(tmp_path / "log", trials[:10], ["x"] * 10, session="one", when=clock.now)
        clock.now += 2 * QUIET
        work(running)
        say(tmp_path / "log", trials[10:11], ["x"], session="two", when=clock.now)
        work(running)
        correct(tmp_path / "log", 3, trials)
        clock.now += 2 * QUIET
        work(running)
        assert replayed(running, 3) == [told(trials[3])]
        assert [len(replayed(running, number)) for number in range(1, 10)] == [1] * 9


def test_a_label_taken_back_before_it_was_learnt_is_no_news_without_the_learner(
    participant, tmp_path
):
    trials, chain = recorded(participant), tmp_path / "chain"
    say(tmp_path / "log", trials[:14], ["x"] * 14)
    rate(tmp_path / "log", 5, "right")
    rate(tmp_path / "log", 5, "wrong")
    with service(participant, tmp_path, **QUICK) as running:
        work(running)
    shutil.rmtree(chain / "learner")
    say(tmp_path / "log", trials[14:22], ["x"] * 8)
    with service(participant, tmp_path, **QUICK) as running:
        work(running)
    learnt = [n for each in candidates(chain) for n in each.facts["learnt"]["decoded"]]
    assert learnt.count(5) == 1


def test_without_its_learner_a_chain_goes_on_from_its_latest_model(participant, tmp_path):
    """Its models wait for labels; a sentence that one knows was corrected meanwhile."""
    trials, chain = recorded(participant)[:22], tmp_path / "chain"
    with service(participant, tmp_path, **QUICK) as running:
        say(tmp_path / "log", trials[:14], ["x"] * 14, [3])
        work(running)
        running._learning.save(running.chain)
    shutil.rmtree(chain / "learner")
    correct(tmp_path / "log", 5, trials)
    with service(participant, tmp_path, **QUICK) as running:
        say(tmp_path / "log", trials[14:], ["x"] * 8)
        work(running)
    made = candidates(chain)
    assert [each.facts["after"] for each in made] == [0, *(each.number for each in made[:-1])]
    parts = [(each.facts["learnt"]["decoded"], each.facts["learnt"]["corrected"]) for each in made]
    assert parts[:2] == [([1, 2, 4, 5], [3]), ([6, 7, 8, 9, 11], [])]
    assert parts[2][1] == [5]
    assert parts[2][0] == [12, 13, 14, 15]


def test_it_asks_for_the_latest_sentences_that_could_judge(participant, tmp_path):
    """The features of 30 were never kept; nothing was decoded of 40."""
    trials = recorded(participant)
    log = UsageLog(tmp_path / "log", kept_features=KeptFeatures(tmp_path / "log"))
    with log, service(participant, tmp_path, **QUICK) as running:
        for number in range(90):
            text = "" if number == 40 else "x"
            log.append(UtteranceRecord(f"u{number}", "one", 2.0, text))
            if number != 30:
                log.keep_features(trials[number % 60].features_TC.astype("float32"))
        work(running)
    asked = judgements(tmp_path / "chain")[-1]["reason"]
    assert asked.endswith("; correct or confirm utterances u20, u50, u60, u70, u80")
