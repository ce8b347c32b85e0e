"""The service when rollbacks and other settings come late."""

import pytest
import torch
from recalibrating import (
    DAYS,
    FIVE,
    NOTHING_LEARNT,
    QUICK,
    QUIET,
    Clock,
    add_copy,
    candidates,
    correct,
    recorded,
    say,
    service,
    work,
)

from cortext.cli import run as cortext
from cortext.models import load_model, save_model
from cortext_live.recalibration.chain import copy_run, model_folder, open_chain, read_chain
from cortext_live.recalibration.learner import Learner
from cortext_live.recalibration.promotion import PromotionOptions

pytestmark = pytest.mark.usefixtures("drawn_by_number")


def test_a_candidate_has_the_parent_that_a_person_has_just_chosen(
    participant, tmp_path, monkeypatch
):
    trials, clock = recorded(participant), Clock()
    with service(participant, tmp_path, clock=clock, **DAYS) as running:
        say(tmp_path / "log", trials[:7], ["x"] * 7, when=clock.now)
        work(running)
        latest = running._learning.position.latest
        say(tmp_path / "log", trials[7:14], ["x"] * 7, when=clock.now)
        learn_together = Learner.learn_together

        def meanwhile(self, *arguments):
            monkeypatch.setattr(Learner, "learn_together", learn_together)
            call = ["chain", "rollback", str(tmp_path / "chain"), str(latest)]
            assert cortext(call) == 0
            return learn_together(self, *arguments)

        monkeypatch.setattr(Learner, "learn_together", meanwhile)
        work(running)
    assert latest != 0
    assert candidates(tmp_path / "chain")[-1].facts["parent"] == latest


def test_where_the_parent_is_damaged_too_the_one_before_speaks(participant, tmp_path):
    """The model that speaks decodes nothing; its parent's file has a changed bit."""
    trials, clock = recorded(participant), Clock()
    chain = tmp_path / "chain"

    def blank(folder):
        copy_run(participant.run, folder)
        model = load_model(participant.run)
        with torch.no_grad():
            for each in model.network.parameters():
                each.zero_()
        save_model(model, folder)

    few = PromotionOptions(fewest=5)
    with service(participant, tmp_path, clock=clock, settings=FIVE, rule=few) as running:
        with open_chain(chain, now=clock) as opened:
            parent = add_copy(opened, participant.run)
            opened.add("promoted", model=parent, upper=0.0)
            bad = opened.add_model("candidate", blank, parent=parent, learnt=NOTHING_LEARNT).number
            until = (clock.now + 48 * QUIET).isoformat(timespec="seconds")
            opened.add("provisional", model=bad, until=until)
        weights = model_folder(chain, parent) / "model.safetensors"
        content = bytearray(weights.read_bytes())
        content[-9] ^= 1
        weights.write_bytes(content)
        say(tmp_path / "log", trials[:20], ["x"] * 20, range(20), when=clock.now)
        assert read_chain(chain).speaking(clock.now) == bad
        assert running.work()
    assert read_chain(chain).speaking(clock.now) == 0
    with service(participant, tmp_path, clock=clock, settings=FIVE, rule=few) as running:
        assert running.work(), "it starts again, and learns"


@pytest.mark.parametrize("way", [QUICK, DAYS], ids=["one-step", "together"])
def test_another_seed_learns_nothing_twice(participant, tmp_path, way):
    trials, clock = recorded(participant), Clock()
    with service(participant, tmp_path, clock=clock, **way) as running:
        for day, numbers in (("one", range(6)), ("two", range(6, 12))):
            said = [trials[number] for number in numbers]
            say(tmp_path / "log", said, ["x"] * 6, session=day, when=clock.now)
            clock.now += 2 * QUIET
            work(running)
        correct(tmp_path / "log", 1, trials)
        work(running)
        running._learning.save(running.chain)
        before = len(candidates(tmp_path / "chain"))
    with service(participant, tmp_path, clock=clock, seed=7, **way) as running:
        assert running._learning.position.next >= 6
        say(tmp_path / "log", trials[12:20], ["x"] * 8, session="two", when=clock.now)
        clock.now += 2 * QUIET
        work(running)
        state = running._learning.learner.state()
    kept = [
        each.entry for part in ("decoded", "corrected", "today") for each in getattr(state, part)
    ]
    assert len(kept) == len(set(kept))
    later = candidates(tmp_path / "chain")[before:]
    assert later
    for entry in later:
        assert set(entry.facts["learnt"]["decoded"]) <= set(range(6, 20))
