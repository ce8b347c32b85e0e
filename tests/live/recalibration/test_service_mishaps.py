"""The service with mistyped paths, restored backups, full disks and clocks that were wrong."""

import errno
from dataclasses import replace
from datetime import timedelta

import pytest
from recalibrating import ALL, DAYS, NOTHING_LEARNT, QUICK, write_blank

from cortext.errors import ConfigError, RunError
from cortext.models import load_model, save_model
from cortext_live.recalibration import chain as chain_module
from cortext_live.recalibration import followed_chain
from cortext_live.recalibration.chain import copy_run, open_chain
from cortext_live.recalibration.promotion import PromotionOptions
from cortext_live.recalibration.settings import ServiceOptions, method_settings

pytestmark = pytest.mark.usefixtures("drawn_by_number")


def test_a_mistyped_run_begins_no_chain(world):
    world.say(2)
    right = world.participant
    wrong, missing = world.folder / "wrong", world.folder / "missing"
    wrong.mkdir()
    (wrong / "notes.txt").write_text("no run")
    for run in (wrong, missing):
        world.participant = replace(right, run=run)
        with pytest.raises(RunError):
            world.start()
        assert not world.chain.exists()
    world.participant = right
    world.start()
    world.participant = replace(right, run=missing)
    with pytest.raises(RunError):
        world.start()


def test_a_chain_continues_with_the_run_that_it_began_with(world):
    world.say(2)
    world.start()
    other = world.folder / "other"
    other.mkdir()
    copy_run(world.participant.run, other)
    world.participant = replace(world.participant, run=other)
    world.start()  # a copy is the same run
    model = load_model(other)
    next(model.network.parameters()).data += 1
    save_model(model, other)
    with pytest.raises(RunError, match=r"the chain began with another run than .*other"):
        world.start()


@pytest.fixture
def restored(world):
    """A service that made models, whose chain was then put back as it was before."""
    world.start(**QUICK)
    world.say(14)
    world.work()
    path = world.chain / "chain.jsonl"
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    return world


def test_a_chain_that_was_restored_says_what_to_do(restored):
    """The learner has learnt on from a model that the backup does not have."""
    with pytest.raises(RunError, match=r"does not have.* remove the directory learner"):
        restored.start(**QUICK)
    for left in (restored.chain / "learner").glob("*.safetensors"):
        left.unlink()
    restored.start(**QUICK)
    restored.work()
    assert restored.made


def test_a_chain_that_is_exchanged_under_a_service_stops_it_with_a_line(restored):
    for _ in range(2):
        with pytest.raises(RunError, match=r"another than before.* start the service again"):
            restored.service.work()


def test_sentences_from_before_the_chain_judge_too(world):
    """The run that it begins with knows none of their days."""
    world.clock.now -= timedelta(days=7)
    world.say(60, "i see you", ALL)
    world.clock.now += timedelta(days=7)
    world.start(overrides=["lr=0.01", "steps=3"])
    world.work()
    assert world.judged[0]["labelled"] == len(world.reserved(60))
    assert "promoted" in world.kinds


def test_sentences_that_the_run_may_have_been_trained_on_do_not_judge(world):
    world.clock.now -= timedelta(days=7)
    known = load_model(world.participant.run).sessions[-1]
    world.say(20, "i see you", ALL, known)
    world.clock.now += timedelta(days=7)
    world.start(**QUICK)
    world.work()
    assert world.judged[-1]["labelled"] == 0


@pytest.fixture
def worse(world):
    """A promoted model that decodes nothing, its parent, and 20 corrected sentences."""
    world.start()
    good = world.add_model(promoted=True)
    bad = world.add_model(good, write_blank, promoted=True)
    world.say(20, corrected=ALL)
    return good, bad


def full(*_):
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_full_disk_does_not_keep_a_worse_model_speaking(world, worse, monkeypatch):
    """No entry fits until the reserve has made space, and no other reserve ever after."""
    good, bad = worse
    reserve, write = world.chain / "reserve", chain_module.os.write
    assert reserve.stat().st_size == 64 << 10

    def no_reserve(path, content):
        raise RunError("cannot write the file: No space left on device", where=path)

    assert world.contents.parent == bad
    world.start()
    monkeypatch.setattr(
        chain_module.os, "write", lambda *given: full() if reserve.exists() else write(*given)
    )
    monkeypatch.setattr(chain_module, "atomic_write", no_reserve)
    world.service.work()
    assert not reserve.exists()
    assert world.contents.parent == good
    assert world.kinds[-2:] == ["checked", "rolled_back"]


def test_the_reserve_is_for_decisions(world, monkeypatch):
    world.start()
    reserve = world.chain / "reserve"
    with open_chain(world.chain) as chain, monkeypatch.context() as patched:
        patched.setattr(chain_module.os, "write", full)
        with pytest.raises(Exception, match="No space left"):
            chain.add_model(
                "candidate",
                lambda folder: copy_run(world.participant.run, folder),
                parent=0,
                learnt=NOTHING_LEARNT,
            )
        assert reserve.exists()
        with pytest.raises(Exception, match="No space left"):
            chain.add("judged", model=0)
        assert not reserve.exists()
    with open_chain(world.chain):
        assert reserve.stat().st_size == 64 << 10


def test_what_a_person_has_just_decided_stands(world, worse, monkeypatch):
    """The person rolls back between the check and what would follow from it."""
    good, bad = worse
    opened = followed_chain.open_chain

    def meanwhile(*arguments, **options):
        if world.kinds[-1] == "checked":
            monkeypatch.setattr(followed_chain, "open_chain", opened)
            world.roll_back(0)
        return opened(*arguments, **options)

    world.start()
    monkeypatch.setattr(followed_chain, "open_chain", meanwhile)
    world.service.work()
    assert world.contents.of(bad, "checked")
    assert not world.contents.of(good, "rolled_back")
    assert world.contents.parent == 0


def test_a_clock_that_was_ahead_stops_no_judgement(world):
    """The parent was made a year from now; then the clock was set back."""
    world.start()
    later = world.clock.now + timedelta(days=365)
    world.add_model(promoted=True, when=lambda: later)
    for _ in range(2):
        world.clock.now += timedelta(minutes=1)
        world.say(20, corrected=ALL)
        world.clock.now += timedelta(minutes=1)
        world.work()
    last = world.judged[-1]
    assert last["labelled"] == 10, "the even ones after the first candidate"
    assert last["comparison"]["sentences"] == 10


def test_steps_of_the_day_before_are_not_taken_from_a_short_day(world):
    """The fourth and the fifth sentence that are learnt from end the first day, with ten steps in all."""
    world.start(**DAYS)
    for session, count in (("one", 10), ("two", 4)):
        world.say(count, corrected=ALL, session=session)
        world.rest()
        assert world.learner.steps_today == count


@pytest.mark.parametrize("rounds", [1, 5])
def test_a_short_day_and_a_late_correction_get_two_steps_a_sentence(world, rounds):
    world.start(**DAYS | {"overrides": [*DAYS["overrides"], f"rounds={rounds}"]})
    world.say(4, corrected=ALL)
    world.rest()
    assert world.learnt("corrected")[-1] == [1, 3]
    assert world.learner.steps_today == 4
    world.correct(1, "now i know you")
    world.work()
    assert world.learner.steps_today == 6


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: ServiceOptions(settle_s=1e11),
            "settle_s is 100000000000.0; it must be at least 0 and at most",
        ),
        (lambda: ServiceOptions(quiet_s=float("inf")), "quiet_s is inf"),
        (
            lambda: PromotionOptions(hours=float("inf")),
            "hours is inf; it must be above 0 and at most 8784",
        ),
        (lambda: method_settings("replay", ["rounds=3"]), "rounds is a setting of"),
        (
            lambda: method_settings("one-step", ["word_confidence=1"]),
            "word_confidence is a setting",
        ),
    ],
)
def test_settings_that_cannot_be_followed_are_refused(make, says):
    with pytest.raises(ConfigError, match=says):
        make()


def test_it_says_how_many_sentences_are_missing(world):
    """Two of those that judge have labels."""
    world.start()
    world.say(20, corrected=[0, 1, 2])
    world.work()
    reason = world.judged[-1]["reason"]
    assert reason.startswith("at least 5 labelled sentences must judge it, and there are 2")
