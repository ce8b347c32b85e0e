"""The service and bad days: which one is left out, and which models are not promoted."""

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import torch
from drifted_day import KNOWN
from recalibrating import (
    DAYS,
    FIVE,
    QUIET,
    RULE,
    SETTINGS,
    TOGETHER,
    UNDECIDED,
    Clock,
    add_copy,
    candidates,
    damage,
    kinds,
    recorded,
    say,
    service,
    work,
)

from cortext.models import load_model
from cortext_live.recalibration.bad_days import Understood
from cortext_live.recalibration.chain import model_folder, open_chain, read_chain
from cortext_live.recalibration.promotion import Comparison, PromotionOptions
from cortext_live.usage.writer import UsageLog, UtteranceRecord

BETTER = Comparison(200, 1000, -9.0, -10.0, -8.0, 0.95)


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
    participant, tmp_path, monkeypatch, of_latest, of_before, left
):
    trials = recorded(participant)
    later = datetime.now(UTC) + 2 * QUIET
    # Nothing is decided by corrections.
    changes = TOGETHER | {"rule": PromotionOptions(fewest=1000), "clock": lambda: later}
    with service(participant, tmp_path, **changes) as running:
        say(tmp_path / "log", trials[:20], ["x"] * 20, range(20), "good day")
        work(running)
        before = running.chain.models[-1]
        say(tmp_path / "log", trials[20:40], ["x"] * 20, range(20, 40), "bad day")
        work(running)
        latest = running.chain.models[-1]
        compared = []

        def understood(model, numbers, learner):
            compared.append((model, numbers))
            return Understood(*(of_latest if model == latest else of_before))

        monkeypatch.setattr(running._decisions._days, "_understood", understood)
        say(tmp_path / "log", trials[40:], ["x"] * 20, session="next day")
        work(running)
        learner = running._learning.learner
        taught = [n for n in range(40, 60) if not running._trainer._labeller.is_watched(n)]
    assert compared == [(latest, taught[:10]), (before, taught[:10])]
    made = candidates(tmp_path / "chain")
    rejected = [each for each in read_chain(tmp_path / "chain").entries if each.kind == "rejected"]
    of_bad_day = [each.number for each in made if before < each.number <= latest]
    assert len(of_bad_day) == 2
    assert [each.model for each in rejected] == (of_bad_day[::-1] if left else [])
    days = ["good day", "next day"] if left else ["good day", "bad day", "next day"]
    assert list(learner.model.sessions[2:]) == days
    corrected = {each.session for each in learner.state().corrected}
    assert ("bad day" in corrected) == (not left)


def after_bad_day(participant, folder, garbage):
    """What has learnt a good day and the day after the bad one, and how many models were rejected.

    Args:
        garbage: The recordings of the bad day, which is left out; None where it has no features and
            learning begins anew after it.
    """
    trials, later = recorded(participant), datetime.now(UTC) + 2 * QUIET
    overrides = [*TOGETHER["overrides"], "replayed=4", "word_confidence=0"]
    changes = {"overrides": overrides, "rule": UNDECIDED, "clock": lambda: later}
    with service(participant, folder, **TOGETHER | changes) as running:
        say(folder / "log", trials[:20], ["x"] * 20, range(20), "good day")
        work(running)
        good = running.chain.models[-1]
        if garbage is None:
            with UsageLog(folder / "log") as log:
                for number in range(20, 40):
                    log.append(UtteranceRecord(number, "bad day", 2.0, "x"))
        else:
            say(folder / "log", garbage, ["x"] * 20, range(20, 40), "bad day")
        work(running)
        assert (running.chain.models[-1] == good) == (garbage is None)
        if garbage is None:
            running._learning.start_again(running.chain, good)

        def understood(model, *_):
            return Understood(0.8, 0.8) if model == good else Understood(0.5, 0.5)

        running._decisions._days._understood = understood
        say(folder / "log", trials[40:], ["x"] * 20, range(50, 60), "next day")
        work(running)
        return running._learning.learner.state(), kinds(folder / "chain").count("rejected")


def test_a_day_that_was_left_out_leaves_no_trace(participant, tmp_path, drawn_by_number):
    """Learning goes on, to the bit, as where its features are missing and it begins anew."""
    random = np.random.default_rng(0)
    garbage = [
        replace(each, features_TC=random.normal(size=each.features_TC.shape).astype(np.float32))
        for each in recorded(participant)[20:40]
    ]
    left_out, n_rejected = after_bad_day(participant, tmp_path / "garbage", garbage)
    missing, none_rejected = after_bad_day(participant, tmp_path / "missing", None)
    assert n_rejected > none_rejected == 0
    assert left_out.n_steps == missing.n_steps > 0
    weights, expected = (each.model.network.state_dict() for each in (left_out, missing))
    assert weights.keys() == expected.keys()
    assert all(torch.equal(weights[name], expected[name]) for name in weights)
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
def test_no_model_is_promoted_on_a_day_of_garbage(
    participant, tmp_path, monkeypatch, share, action
):
    """The model from before the day tells garbage from speech, also by what was not learnt."""
    with service(participant, tmp_path, rule=PromotionOptions()) as running:
        say(tmp_path / "log", recorded(participant)[:8], ["x"] * 8)
        running._sentences.refresh()
        began, today = running._sentences.began, list(range(8))
        learnt = {"log": began, "decoded": today[3:], "corrected": today[:2]}
        with open_chain(tmp_path / "chain") as chain:
            last = add_copy(chain, participant.run, learnt=learnt)
            contents = chain.contents
        asked, decider, learner = [], running._decisions._decider, running._learning.learner
        monkeypatch.setattr(decider._comparer, "comparison", lambda *_: BETTER)
        found = None if share is None else Understood(0.4, share)
        monkeypatch.setattr(
            decider._days, "_understood", lambda *given: asked.append(given) or found
        )
        judgement = decider.judge(contents, contents.entries[last], before=0, learner=learner)
    assert judgement.decision.action == action
    assert asked == [(0, today, learner)]


def test_the_model_from_before_a_day_tells_whether_its_models_are_promoted(
    participant, tmp_path, monkeypatch
):
    """The base trusts the first day; the first day's model does not trust the second."""
    changes = TOGETHER | {"settings": replace(SETTINGS, every=5), "rule": RULE}
    trials, clock = recorded(participant), Clock()
    with service(participant, tmp_path, clock=clock, **changes) as running:
        decider = running._decisions._decider
        monkeypatch.setattr(
            decider._days, "_understood", lambda model, *_: Understood(0.4, 0.0 if model else 0.5)
        )
        monkeypatch.setattr(decider._comparer, "comparison", lambda *_: BETTER)
        actions = []
        for day in range(2):
            said = trials[10 * day : 10 * day + 10]
            say(tmp_path / "log", said, ["x"] * 10, range(60), f"day {day}", clock.now)
            work(running)
            made = candidates(tmp_path / "chain")[-1].number
            (judged,) = running.chain.of(made, "judged")
            actions.append(judged.facts["action"])
            clock.now += timedelta(days=1)
            work(running)
    assert actions == ["promote", "speak"]


def next_day(running, tmp_path, clock, participant, session, count=9, corrections=()):
    """Let further sentences be said, and nobody speak until the day ends."""
    first = len(running._sentences.log.entries)
    trials = recorded(participant)[first : first + count]
    say(tmp_path / "log", trials, ["x"] * count, corrections, session, clock.now)
    clock.now += 2 * QUIET
    work(running)


def surer(monkeypatch, running, model):
    """Let a model be surer of all sentences than others."""
    monkeypatch.setattr(
        running._decisions._days,
        "_understood",
        lambda number, *_: Understood(0.8 if number == model else 0.5, 0.5),
    )


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def way(clock, drawn_by_number):
    return DAYS | {"settings": replace(SETTINGS, every=20), "clock": clock}


def test_corrections_of_the_day_after_a_bad_one_are_learnt_once(
    participant, tmp_path, monkeypatch, clock, way
):
    with service(participant, tmp_path, **way) as running:
        for session in ("good", "bad"):
            next_day(running, tmp_path, clock, participant, session)
        good, bad = (each.number for each in candidates(tmp_path / "chain"))
        surer(monkeypatch, running, good)
        next_day(running, tmp_path, clock, participant, "next", 14, range(32))
    assert [each.model for each in running.chain.entries if each.kind == "rejected"] == [bad]
    _, _, *later = candidates(tmp_path / "chain")
    assert [each.facts["after"] for each in later] == [good]
    assert later[0].facts["learnt"]["corrected"] == [19, 21, 23, 25, 27, 29, 31]


def test_sentences_of_a_bad_day_judge_no_model(participant, tmp_path, monkeypatch, clock, way):
    """Those of garbage, which no model has learnt from any more, would outnumber all others."""
    with service(participant, tmp_path, **way) as running:
        for session in ("good", "bad"):
            next_day(running, tmp_path, clock, participant, session)
        surer(monkeypatch, running, candidates(tmp_path / "chain")[0].number)
        next_day(running, tmp_path, clock, participant, "next", 14)
        *_, latest = candidates(tmp_path / "chain")
        unlearnt = running._decisions._decider._held_out.unlearnt(running.chain, latest)
    # Of the first and the last day every tenth, which is not learnt from.
    assert unlearnt == [0, 20, 30]


def test_a_kill_after_a_bad_day_was_rejected_keeps_the_days_before(
    participant, tmp_path, monkeypatch, clock, way
):
    with service(participant, tmp_path, **way) as running:
        for session in ("good", "bad"):
            next_day(running, tmp_path, clock, participant, session)
        surer(monkeypatch, running, candidates(tmp_path / "chain")[0].number)

        def kill(*_):
            raise KeyboardInterrupt

        monkeypatch.setattr(running._learning, "start_again", kill)
        with pytest.raises(KeyboardInterrupt):
            next_day(running, tmp_path, clock, participant, "next", 14, range(32))
    assert kinds(tmp_path / "chain")[-1] == "rejected"
    with service(participant, tmp_path, **way) as running:
        work(running)
        assert list(running._learning.learner.model.sessions[2:]) == ["good", "next"]
    assert 19 in candidates(tmp_path / "chain")[-1].facts["learnt"]["corrected"]


def test_a_damaged_model_before_the_day_stops_nothing(
    participant, tmp_path, monkeypatch, clock, way
):
    """Neither is the day compared with it, nor does it tell garbage from speech."""
    with service(participant, tmp_path, **way | {"rule": RULE}) as running:
        next_day(running, tmp_path, clock, participant, "one")
        monkeypatch.setattr(running._decisions._decider._comparer, "comparison", lambda *_: BETTER)
        for session in ("two", "three"):
            damage(model_folder(tmp_path / "chain", running._learning.position.before))
            next_day(running, tmp_path, clock, participant, session)
    assert list(running._learning.learner.model.sessions[2:]) == ["one", "two", "three"]
    assert kinds(tmp_path / "chain")[-1] == "promoted"


def test_the_last_model_of_a_garbage_day_is_not_promoted_when_the_next_day_waits(
    participant, tmp_path, monkeypatch, clock, way
):
    """The service is behind: it ends the day when it reads of the next one."""
    trials = recorded(participant)
    with service(participant, tmp_path, **way | {"rule": RULE}) as running:
        next_day(running, tmp_path, clock, participant, "good")
        good = candidates(tmp_path / "chain")[-1].number
        monkeypatch.setattr(running._decisions._decider._comparer, "comparison", lambda *_: BETTER)
        monkeypatch.setattr(
            running._decisions._days, "_understood", lambda *_: Understood(0.4, 0.05)
        )
        say(tmp_path / "log", trials[9:16], ["x"] * 7, session="garbage", when=clock.now)
        say(tmp_path / "log", trials[16:18], ["x"] * 2, session="next", when=clock.now)
        work(running)
        (last,) = (each for each in candidates(tmp_path / "chain") if each.number > good)
    assert max(last.facts["learnt"]["decoded"]) < 16
    (judged,) = running.chain.of(last.number, "judged")
    assert judged.facts["action"] == "speak"
    assert "promoted" not in kinds(tmp_path / "chain")


@pytest.mark.parametrize("n_models", [1, 2], ids=["its last model", "an earlier model"])
def test_a_garbage_model_whose_time_is_over_is_not_promoted(
    participant, tmp_path, monkeypatch, clock, way, n_models
):
    """Eight good sentences of the next day wait."""
    trials = recorded(participant)
    settings = replace(FIVE, every=9 if n_models == 1 else 5)
    with service(participant, tmp_path, **way | {"rule": RULE, "settings": settings}) as running:
        next_day(running, tmp_path, clock, participant, "good")
        decider, found = running._decisions._decider, [BETTER]
        monkeypatch.setattr(decider._comparer, "comparison", lambda *_: found[0])
        monkeypatch.setattr(
            decider._days,
            "_understood",
            lambda _, numbers, __: Understood(0.4, 0.0 if min(numbers) < 18 else 0.8),
        )
        say(tmp_path / "log", trials[9:15], ["x"] * 6, session="garbage", when=clock.now)
        work(running)
        if n_models == 2:
            found[0] = Comparison(200, 1000, 0.0, -60.0, 60.0, 0.95)  # the next one waits
        next_day(running, tmp_path, clock, participant, "garbage", 3)
        spoke = running.chain.provisional
        assert (spoke == running._learning.position.latest) == (n_models == 1)
        found[0] = BETTER
        monkeypatch.setattr(running._decisions._decider, "has_news", lambda *_: True)
        clock.now += timedelta(days=1)
        say(tmp_path / "log", trials[18:26], ["x"] * 8, session="next", when=clock.now)
        work(running)
    actions = [each.facts["action"] for each in running.chain.of(spoke, "judged")]
    assert actions[0] == "speak"
    assert set(actions) == {"speak"}
    assert len(actions) > 1


@pytest.mark.parametrize("rank", [0, 4, 8])
def test_sentences_are_trusted_as_they_would_be_learnt(participant, tmp_path, rank):
    """Of nine, those with at least the confidence of one of them."""
    trials = recorded(participant)[:9]
    with service(participant, tmp_path) as running:
        decoder = running._decoder.decoder
    model = load_model(participant.run)
    found = []
    for trial in trials:
        logits_PV = model.logits(trial.features_TC.astype(np.float32), KNOWN[-1])
        log_probs_PV = torch.from_numpy(logits_PV).log_softmax(-1).numpy()
        words = decoder.decode(log_probs_PV, model.inventory)[0].words
        found.append(np.mean([word.confidence for word in words]))
    least = sorted(found)[rank] - 1e-6
    changes = {"overrides": [f"confidence={least}"], "settings": replace(SETTINGS, settle_s=60.0)}
    with service(participant, tmp_path, **changes) as running:
        say(tmp_path / "log", trials, ["x"] * 9)
        running._sentences.refresh()
        understood = running._decisions._days._understood(0, range(9), running._learning.learner)
        assert running._decisions._days._understood(0, range(4), running._learning.learner) is None
    assert understood.trusted == pytest.approx((9 - rank) / 9)
    assert understood.confidence == pytest.approx(np.mean(found), abs=1e-6)


def test_a_parent_is_not_checked_while_its_child_speaks(
    participant, tmp_path, monkeypatch, clock, way
):
    """The child's time is over; it is judged anew, and speaks on."""
    changes = way | {"rule": RULE, "settings": replace(FIVE, every=9, allow_provisional=True)}
    with service(participant, tmp_path, **changes) as running:
        comparer = running._decisions._decider._comparer
        monkeypatch.setattr(comparer, "comparison", lambda *_: BETTER)
        next_day(running, tmp_path, clock, participant, "one")
        parent = running.chain.parent
        assert parent != 0
        monkeypatch.setattr(comparer, "comparison", lambda *_: None)
        next_day(running, tmp_path, clock, participant, "two")
        child = running.chain.provisional
        assert child not in (None, parent)
        monkeypatch.setattr(
            comparer, "confidences", lambda entry, *_: (0.9, 0.5 if entry.number == parent else 0.9)
        )
        clock.now += timedelta(days=2)
        next_day(running, tmp_path, clock, participant, "three")
    assert "rolled_back" not in kinds(tmp_path / "chain")
    assert child in running.chain.descent(running.chain.models[-1])
