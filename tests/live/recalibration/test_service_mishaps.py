"""The service with mistyped paths, restored backups, full disks and clocks that were wrong."""

import errno
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from recalibrating import (
    DAYS,
    QUICK,
    QUIET,
    Clock,
    add_copy,
    candidates,
    correct,
    judgements,
    kinds,
    recorded,
    say,
    service,
    spoil,
    work,
)

from cortext.cli import run as cortext
from cortext.errors import ConfigError, RunError
from cortext.models import load_model, save_model
from cortext_live.recalibration import chain as chain_module
from cortext_live.recalibration import followed_chain
from cortext_live.recalibration.chain import copy_run, open_chain, read_chain
from cortext_live.recalibration.promotion import PromotionOptions
from cortext_live.recalibration.settings import ServiceOptions, method_settings

pytestmark = pytest.mark.usefixtures("drawn_by_number")


def test_a_mistyped_run_begins_no_chain(participant, tmp_path):
    say(tmp_path / "log", recorded(participant)[:2], ["x"] * 2)
    (tmp_path / "wrong").mkdir()
    (tmp_path / "wrong" / "notes.txt").write_text("no run")
    for wrong in ("wrong", "missing"):
        with pytest.raises(RunError):
            service(replace(participant, run=tmp_path / wrong), tmp_path)
        assert not (tmp_path / "chain").exists()
    with service(participant, tmp_path):
        pass
    with pytest.raises(RunError):
        service(replace(participant, run=tmp_path / "missing"), tmp_path)


def test_a_chain_goes_on_with_the_run_that_it_began_with(participant, tmp_path):
    say(tmp_path / "log", recorded(participant)[:2], ["x"] * 2)
    with service(participant, tmp_path):
        pass
    other = tmp_path / "other"
    other.mkdir()
    copy_run(participant.run, other)
    with service(replace(participant, run=other), tmp_path):
        pass  # a copy is the same run
    model = load_model(other)
    next(model.network.parameters()).data += 1
    save_model(model, other)
    with pytest.raises(RunError, match=r"the chain began with another run than .*other"):
        service(replace(participant, run=other), tmp_path)


def learn_and_restore(running, participant, tmp_path):
    """Let a model be made, then put back the chain as it was before."""
    say(tmp_path / "log", recorded(participant)[:14], ["x"] * 14)
    work(running)
    path = tmp_path / "chain" / "chain.jsonl"
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])


def test_a_chain_that_was_restored_says_what_to_do(participant, tmp_path):
    """The learner has learnt on from a model that the backup does not have."""
    with service(participant, tmp_path, **QUICK) as running:
        learn_and_restore(running, participant, tmp_path)
    with pytest.raises(RunError, match=r"does not have.* remove the directory learner"):
        service(participant, tmp_path, **QUICK)
    for left in (tmp_path / "chain" / "learner").glob("*.safetensors"):
        left.unlink()
    with service(participant, tmp_path, **QUICK) as running:
        work(running)
    assert candidates(tmp_path / "chain")


def test_a_chain_that_is_exchanged_under_a_service_stops_it_with_a_line(participant, tmp_path):
    with service(participant, tmp_path, **QUICK) as running:
        learn_and_restore(running, participant, tmp_path)
        for _ in range(2):
            with pytest.raises(RunError, match=r"another than before.* start the service again"):
                running.work()


def test_sentences_from_before_the_chain_judge_too(participant, tmp_path):
    """The run that it begins with knows none of their days."""
    early = datetime.now(UTC) - timedelta(days=7)
    say(tmp_path / "log", recorded(participant), ["i see you"] * 60, range(60), when=early)
    with service(participant, tmp_path, overrides=["lr=0.01", "steps=3"]) as running:
        work(running)
        reserved = sum(running._trainer._labeller.is_reserved(number) for number in range(60))
    assert judgements(tmp_path / "chain")[0]["labelled"] == reserved
    assert "promoted" in kinds(tmp_path / "chain")


def test_sentences_that_the_run_may_have_been_trained_on_do_not_judge(participant, tmp_path):
    known = load_model(participant.run).sessions[-1]
    early = datetime.now(UTC) - timedelta(days=7)
    said = recorded(participant)[:20]
    say(tmp_path / "log", said, ["i see you"] * 20, range(20), session=known, when=early)
    with service(participant, tmp_path, **QUICK) as running:
        work(running)
    assert judgements(tmp_path / "chain")[-1]["labelled"] == 0


@pytest.fixture
def worse(participant, tmp_path):
    """A promoted model that decodes nothing, its parent, and 20 corrected sentences."""
    with service(participant, tmp_path), open_chain(tmp_path / "chain") as chain:
        good = add_copy(chain, participant.run)
        chain.add("promoted", model=good, upper=0.0)
        bad = spoil(chain, participant.run, parent=good)
    say(tmp_path / "log", recorded(participant)[:20], ["x"] * 20, range(20))
    return good, bad


def test_a_full_disk_does_not_keep_a_worse_model_speaking(
    participant, tmp_path, worse, monkeypatch
):
    """No entry fits until the reserve has made space, and no other reserve ever after."""
    good, bad = worse
    chain = tmp_path / "chain"
    write = chain_module.os.write
    assert (chain / "reserve").stat().st_size == 64 << 10

    def full(descriptor, content):
        if (chain / "reserve").exists():
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, content)

    def no_reserve(path, content):
        raise RunError("cannot write the file: No space left on device", where=path)

    assert read_chain(chain).parent == bad
    with service(participant, tmp_path) as running:
        monkeypatch.setattr(chain_module.os, "write", full)
        monkeypatch.setattr(chain_module, "atomic_write", no_reserve)
        running.work()
        assert not (chain / "reserve").exists()
    assert read_chain(chain).parent == good
    assert kinds(chain)[-2:] == ["checked", "rolled_back"]


def test_the_reserve_is_for_decisions(participant, tmp_path, monkeypatch):
    with service(participant, tmp_path), open_chain(tmp_path / "chain") as chain:

        def full(descriptor, content):
            raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(chain_module.os, "write", full)
            with pytest.raises(Exception, match="No space left"):
                add_copy(chain, participant.run)
            assert (tmp_path / "chain" / "reserve").exists()
            with pytest.raises(Exception, match="No space left"):
                chain.add("judged", model=0)
            assert not (tmp_path / "chain" / "reserve").exists()
    with open_chain(tmp_path / "chain"):
        assert (tmp_path / "chain" / "reserve").stat().st_size == 64 << 10


def test_what_a_person_has_just_decided_stands(participant, tmp_path, worse, monkeypatch):
    """The person rolls back between the check and what would follow from it."""
    good, bad = worse
    opened = followed_chain.open_chain

    def meanwhile(*arguments, **options):
        if kinds(tmp_path / "chain")[-1] == "checked":
            monkeypatch.setattr(followed_chain, "open_chain", opened)
            assert cortext(["chain", "rollback", str(tmp_path / "chain"), "0"]) == 0
        return opened(*arguments, **options)

    with service(participant, tmp_path) as running:
        monkeypatch.setattr(followed_chain, "open_chain", meanwhile)
        running.work()
    contents = read_chain(tmp_path / "chain")
    assert contents.of(bad, "checked")
    assert not contents.of(good, "rolled_back")
    assert contents.parent == 0


def test_a_clock_that_was_ahead_stops_no_judgement(participant, tmp_path):
    """The parent was made a year from now; then the clock was set back."""
    clock, trials = Clock(), recorded(participant)
    with service(participant, tmp_path, clock=clock) as running:
        with open_chain(tmp_path / "chain", now=lambda: clock.now + timedelta(days=365)) as chain:
            parent = add_copy(chain, participant.run)
            chain.add("promoted", model=parent, upper=0.0)
        for first in (0, 20):
            numbers = range(first, first + 20)
            clock.now += timedelta(minutes=1)
            say(tmp_path / "log", trials[first : first + 20], ["x"] * 20, numbers, when=clock.now)
            clock.now += timedelta(minutes=1)
            work(running)
    last = judgements(tmp_path / "chain")[-1]
    assert last["labelled"] == 10, "the even ones after the first candidate"
    assert last["comparison"]["sentences"] == 10


def test_steps_of_the_day_before_are_not_taken_from_a_short_day(participant, tmp_path):
    """The fourth and the fifth sentence that are learnt from end the first day, with ten steps in all."""
    trials, clock = recorded(participant), Clock()
    with service(participant, tmp_path, clock=clock, **DAYS) as running:
        for session, numbers in (("one", range(10)), ("two", range(10, 14))):
            said = [trials[number] for number in numbers]
            say(tmp_path / "log", said, ["x"] * len(said), numbers, session, clock.now)
            clock.now += 2 * QUIET
            work(running)
            assert running._learning.learner.steps_today == len(said)


@pytest.mark.parametrize("rounds", [1, 5])
def test_a_short_day_and_a_late_correction_get_two_steps_a_sentence(participant, tmp_path, rounds):
    trials, clock = recorded(participant), Clock()
    changes = DAYS | {"overrides": [*DAYS["overrides"], f"rounds={rounds}"]}
    with service(participant, tmp_path, clock=clock, **changes) as running:
        say(tmp_path / "log", trials[:4], ["x"] * 4, range(4), when=clock.now)
        clock.now += 2 * QUIET
        work(running)
        assert candidates(tmp_path / "chain")[-1].facts["learnt"]["corrected"] == [1, 3]
        assert running._learning.learner.steps_today == 4
        correct(tmp_path / "log", 1, trials, "now i know you")
        work(running)
        assert running._learning.learner.steps_today == 6


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


def test_it_says_how_many_sentences_are_missing(participant, tmp_path):
    """Two of those that judge have labels."""
    with service(participant, tmp_path) as running:
        say(tmp_path / "log", recorded(participant)[:20], ["x"] * 20, [0, 1, 2])
        work(running)
    said = judgements(tmp_path / "chain")[-1]["reason"]
    assert said.startswith("at least 5 labelled sentences must judge it, and there are 2")
