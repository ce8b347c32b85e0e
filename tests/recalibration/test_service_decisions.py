"""The service: what vetoes a model, what a promotion costs, what teaches, which files are kept."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from drifted_day import DRIFTED, KNOWN
from recalibrating import (
    SETTINGS,
    Clock,
    add_copy,
    candidates,
    recorded,
    say,
    service,
    work,
)

from cortext.cli import run as cortext
from cortext.decoding import Decoder
from cortext.models import load_model
from cortext.recalibration import learner
from cortext.recalibration.chain import model_folder, open_chain, read_chain
from cortext.recalibration.labeller import RESERVED, WATCHED, Labeller
from cortext.recalibration.promotion import Comparison, PromotionRule

UNJUDGED = PromotionRule(fewest=1000)
"""Nothing is decided by corrections."""
QUICK = {"overrides": ["copies=1", "confidence=0"], "rule": UNJUDGED}


def mean_confidences(participant, run, trials):
    """Mean confidence of the words of each sentence, decoded by hand."""
    decoder, model = Decoder.from_dir(participant.lm), load_model(run)
    session = DRIFTED if DRIFTED in model.sessions else KNOWN[-1]
    means = []
    for trial in trials:
        logits_PV = model.logits(trial.features_TC.astype(np.float32), session)
        log_probs_PV = torch.from_numpy(logits_PV).log_softmax(-1).numpy()
        words = decoder.decode(log_probs_PV, model.inventory)[0].words
        means.append(np.mean([word.confidence for word in words]) if words else 0.0)
    return means


def test_confidence_is_measured_on_sentences_that_no_model_has_learnt_from(
    participant, tmp_path, monkeypatch
):
    """The even ones never teach as they were decoded; 11 has not taught yet."""
    for name in ("is_reserved", "is_watched"):
        monkeypatch.setattr(Labeller, name, lambda self, number: number % 2 == 0)
    trials = recorded(participant)[:12]
    with service(participant, tmp_path, **QUICK, settings=replace(SETTINGS, every=5)) as running:
        say(tmp_path / "log", trials, ["x"] * 12)
        work(running)
    (entry,) = candidates(tmp_path / "chain")
    assert entry.facts["learnt"]["decoded"] == [1, 3, 5, 7, 9]
    (judged,) = (each for each in read_chain(tmp_path / "chain").entries if each.kind == "judged")
    unlearnt = [trials[number] for number in (0, 2, 4, 6, 8, 10, 11)]
    runs = participant.run, model_folder(tmp_path / "chain", entry.number)
    expected = [np.mean(mean_confidences(participant, run, unlearnt)) for run in runs]
    assert judged.facts["confidence"] == pytest.approx(expected, abs=1e-6)


def test_some_reserved_utterances_are_watched_in_each_part_of_a_log(participant, tmp_path):
    with service(participant, tmp_path) as running:
        labeller = running._labeller
        reserved = [number for number in range(3000) if labeller.is_reserved(number)]
        watched = [number for number in range(3000) if labeller.is_watched(number)]
    assert [number // RESERVED for number in reserved] == list(range(3000 // RESERVED))
    part = RESERVED * WATCHED
    assert [number // part for number in watched] == list(range(3000 // part))
    assert set(watched) <= set(reserved)
    assert len({number % part for number in watched}) == part, "drawn, not counted"


@pytest.mark.parametrize(
    ("back_to", "action"),
    [("first", "speak"), ("base", "promote")],
    ids=["an improvement undone", "a cost undone"],
)
def test_the_budget_counts_no_promotion_that_a_rollback_has_undone(
    participant, tmp_path, monkeypatch, back_to, action
):
    """Of 6 points, one promotion spent 5.9, and another gave back 8. The next one needs 1.9."""
    with service(participant, tmp_path, rule=PromotionRule()) as running:
        say(tmp_path / "log", recorded(participant)[:1], ["x"])
        running._sentences.refresh()
        with open_chain(tmp_path / "chain") as chain:
            numbers = {"base": 0, "first": add_copy(chain, participant.run)}
            chain.add("promoted", model=numbers["first"], upper=5.9)
            if back_to != "base":
                second = add_copy(chain, participant.run, parent=numbers["first"])
                chain.add("promoted", model=second, upper=-8.0)
            chain.roll_back(numbers[back_to], "test", "a person")
            last = add_copy(chain, participant.run, parent=chain.contents.parent)
            contents = chain.contents
        found = Comparison(200, 1000, 0.5, -1.0, 1.9, 0.95)
        monkeypatch.setattr(running._decider._evidence, "comparison", lambda *_: found)
        judgement = running._decider.judge(contents, contents.entries[last])
    assert judgement.decision.action == action


def test_together_learns_only_from_sure_sentences_where_words_cannot_be_left_out(
    participant, tmp_path, monkeypatch
):
    """A loss that is not CTC has no wildcard; every other sentence is noise."""
    monkeypatch.setattr(learner, "loss_kind", lambda *_: "own")
    monkeypatch.setattr(Labeller, "is_watched", lambda self, number: False)
    noise = np.random.default_rng(3)
    trials = [
        replace(each, features_TC=noise.normal(size=each.features_TC.shape).astype(np.float32))
        if number % 2
        else each
        for number, each in enumerate(recorded(participant)[:12])
    ]
    with service(
        participant,
        tmp_path,
        method="together",
        settings=replace(SETTINGS, every=12),
        rule=UNJUDGED,
    ) as running:
        say(tmp_path / "log", trials, ["x"] * 12)
        work(running)
    confidences = mean_confidences(participant, participant.run, trials)
    expected = [number for number, found in enumerate(confidences) if found >= 0.7]
    assert 0 < len(expected) < 12
    (entry,) = candidates(tmp_path / "chain")
    assert entry.facts["learnt"]["decoded"] == expected


def test_removing_old_models_leaves_the_one_that_speaks(participant, tmp_path, drawn_by_number):
    trials, chain = recorded(participant), tmp_path / "chain"
    settings = replace(SETTINGS, every=2, kept=1)
    with service(participant, tmp_path, **QUICK, settings=settings) as running:
        say(tmp_path / "log", trials[:3], ["x"] * 3)
        work(running)
        (silent,) = (each.number for each in candidates(chain))
        assert cortext(["chain", "rollback", str(chain), str(silent)]) == 0
        say(tmp_path / "log", trials[3:14], ["x"] * 11)
        work(running)
    contents, made = read_chain(chain), candidates(chain)
    assert contents.parent == silent
    # Beside it, its parent, the latest one, and one more.
    assert contents.models == [0, silent, *(each.number for each in made[-2:])]
    assert len(made) == 1 + 5


def test_models_that_spoke_for_a_while_are_removed_too(participant, tmp_path, drawn_by_number):
    trials, chain = recorded(participant)[:14], tmp_path / "chain"
    settings = replace(SETTINGS, every=2, kept=1, allow_provisional=True)
    with service(participant, tmp_path, **QUICK, settings=settings, clock=Clock()) as running:
        say(tmp_path / "log", trials, ["x"] * 14)
        work(running)
    made = [each.number for each in candidates(chain)]
    assert len(made) == 6
    spoke = [each for each in read_chain(chain).entries if each.kind == "provisional"]
    assert [each.model for each in spoke] == made
    # The first one; when the last one was made, the one that spoke, and one more.
    assert read_chain(chain).models == [0, *made[-3:]]
    kept = sorted(int(path.name) for path in (chain / "models").iterdir())
    assert kept == [0, *made[-3:]]
