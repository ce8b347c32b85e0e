"""The service: what vetoes a model, what a promotion costs, what is learnt from, which files stay."""

import weakref
from dataclasses import dataclass, replace
from datetime import timedelta

import numpy as np
import pytest
import torch
from drifted_day import DRIFTED, KNOWN
from recalibrating import ALL, FIVE, QUICK, SETTINGS, UNDECIDED, write_blank

from cortext.decoding import Decoder
from cortext.decoding.ngram.language_model import language_model_checksum
from cortext.models import load_model
from cortext.text.metrics import edit_counts
from cortext_live.recalibration import learner
from cortext_live.recalibration.labeller import RESERVED, WATCHED, Labeller
from cortext_live.recalibration.promotion import Comparison, PromotionOptions
from cortext_live.recalibration.recorded import LoggedSentence

FEWER = QUICK | {"settings": SETTINGS}


def decoded(decoder, run, trials):
    """What a run decodes, one sentence after another."""
    model = load_model(run)
    session = DRIFTED if DRIFTED in model.sessions else KNOWN[-1]
    found = []
    for trial in trials:
        logits_PV = model.logits(trial.features_TC.astype(np.float32), session)
        log_probs_PV = torch.from_numpy(logits_PV).log_softmax(-1).numpy()
        found.append(decoder.decode(log_probs_PV, model.inventory))
    return found


def mean_confidences(participant, run, trials):
    """Mean confidence of the words of each sentence, decoded by hand."""
    found = [nbest[0].words for nbest in decoded(Decoder.from_dir(participant.lm), run, trials)]
    return [np.mean([each.confidence for each in words]) if words else 0.0 for words in found]


def test_confidence_is_measured_on_sentences_that_no_model_has_learnt_from(world, monkeypatch):
    """The even ones are never learnt from as they were decoded; 11 is not yet."""
    for name in ("is_reserved", "is_watched"):
        monkeypatch.setattr(Labeller, name, lambda self, number: number % 2 == 0)
    world.start(**QUICK)
    world.say(12)
    world.work()
    assert world.learnt("decoded") == [[1, 3, 5, 7, 9]]
    unlearnt = [world.trials[number] for number in (0, 2, 4, 6, 8, 10, 11)]
    runs = world.participant.run, world.run(world.made[0].number)
    expected = [np.mean(mean_confidences(world.participant, run, unlearnt)) for run in runs]
    (judged,) = world.judged
    assert judged["confidence"] == pytest.approx(expected, abs=1e-6)


def test_some_reserved_utterances_are_watched_in_each_part_of_a_log(world):
    labeller = world.start()._trainer._labeller
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
    world, monkeypatch, back_to, action
):
    """Of 6 points, one promotion spent 5.9, and another gave back 8. The next one needs 1.9."""
    service = world.start(rule=PromotionOptions())
    world.say(1)
    service._sentences.refresh()
    first = world.add_model()
    world.add_entry("promoted", first, upper=5.9)
    if back_to == "first":
        world.add_entry("promoted", world.add_model(first), upper=-8.0)
    world.roll_back({"base": 0, "first": first}[back_to])
    last = world.add_model(world.contents.parent)
    found = Comparison(200, 1000, 0.5, -1.0, 1.9, 0.95)
    monkeypatch.setattr(world.decider._comparer, "comparison", lambda *_: found)
    contents = world.contents
    judgement = world.decider.judge(contents, contents.entries[last], None, world.learner)
    assert judgement.decision.action == action


def test_a_model_is_compared_with_its_nearest_ancestor_that_is_intact(world):
    world.start()
    intact = world.add_model(promoted=True)
    parent = world.add_model(intact, promoted=True)
    worse = world.add_model(parent, write_blank, promoted=True)
    world.damage(parent)
    world.say(20, corrected=ALL)
    service = world.start()
    assert service.work()
    *_, checked, rolled_back = world.contents.entries
    assert (rolled_back.kind, rolled_back.model) == ("rolled_back", intact)
    errors = []
    for run in (world.participant.run, world.run(worse)):
        found = decoded(service._decoder.decoder, run, world.trials[:20])
        counts = (
            edit_counts(trial.sentence.split(), nbest[0].text.split())
            for trial, nbest in zip(world.trials, found, strict=False)
        )
        errors.append(sum(each.errors for each in counts))
    words = sum(len(trial.sentence.split()) for trial in world.trials[:20])
    comparison = checked.facts["comparison"]
    assert (comparison["sentences"], comparison["words"]) == (20, words)
    assert comparison["difference"] == pytest.approx(100 * (errors[1] - errors[0]) / words)


@pytest.mark.parametrize(("earlier", "news"), [(0, False), (60, True)], ids=["this", "another"])
def test_what_was_counted_in_another_log_counts_no_longer(world, earlier, news):
    service = world.start(settings=FIVE)
    world.say(5)
    service._sentences.refresh()
    counted = {"comparison": None, "confidence": None, "said": 30}
    counted["log"] = service._sentences.began - earlier
    model = world.add_model()
    world.add_entry("judged", model, labelled=30, action="wait", reason="", **counted)
    world.add_entry("promoted", model, upper=0.0)
    world.add_entry("checked", model, ratings=[], reason="", **counted)
    contents = world.contents
    checked = world.decider.check(contents, contents.entries[model])
    assert (None if checked is None else checked["said"]) == (5 if news else None)
    assert world.decider.has_news(contents, contents.entries[model]) == news


def test_a_model_that_confidence_vetoes_is_judged_again_after_more_sentences(
    world, monkeypatch, drawn_by_number
):
    """Its time is over after seven sentences; the twelfth is the fifth further one."""
    world.start(**QUICK | {"settings": replace(FIVE, allow_provisional=True)})
    world.say(7)
    world.work()
    (model,) = (each.number for each in world.made)
    assert world.contents.provisional == model
    monkeypatch.setattr(world.decider._comparer, "confidences", lambda *_: (0.9, 0.5))
    world.clock.now += timedelta(hours=25)
    actions = []
    for _ in range(7, 13):
        world.work()
        judged = world.contents.of(model, "judged")
        actions.append([each.facts["action"] for each in judged])
        world.say(1)
    assert actions == [["speak", "wait"]] * 5 + [["speak", "wait", "wait"]]


def test_together_learns_only_from_sure_sentences_where_words_cannot_be_left_out(
    world, monkeypatch
):
    """A loss that is not CTC has no wildcard; every other sentence is noise."""
    monkeypatch.setattr(learner, "loss_kind", lambda *_: "own")
    monkeypatch.setattr(Labeller, "is_watched", lambda self, number: False)
    noise = np.random.default_rng(3)
    trials = [
        replace(each, features_TC=noise.normal(size=each.features_TC.shape).astype(np.float32))
        if number % 2
        else each
        for number, each in enumerate(world.trials[:12])
    ]
    world.start(method="together", settings=replace(SETTINGS, every=12), rule=UNDECIDED)
    world.say(trials)
    world.work()
    confidences = mean_confidences(world.participant, world.participant.run, trials)
    expected = [number for number, found in enumerate(confidences) if found >= 0.7]
    assert 0 < len(expected) < 12
    assert world.learnt("decoded") == [expected]


def test_removing_old_models_leaves_the_one_that_speaks(world, drawn_by_number):
    world.start(**QUICK | {"settings": replace(SETTINGS, every=2, kept=1)})
    world.say(3)
    world.work()
    (silent,) = (each.number for each in world.made)
    world.roll_back(silent)
    world.say(11)
    world.work()
    assert world.contents.parent == silent
    # Beside it, its parent, the latest one, and one more.
    assert world.contents.models == [0, silent, *(each.number for each in world.made[-2:])]
    assert len(world.made) == 1 + 5


def test_models_that_spoke_for_a_while_are_removed_too(world, drawn_by_number):
    world.start(**QUICK | {"settings": replace(SETTINGS, every=2, kept=1, allow_provisional=True)})
    world.say(14)
    world.work()
    made = [each.number for each in world.made]
    assert len(made) == 6
    assert [each.model for each in world.contents.entries if each.kind == "provisional"] == made
    # The first one; when the last one was made, the one that spoke, and one more.
    assert world.contents.models == [0, *made[-3:]]
    kept = sorted(int(path.name) for path in (world.chain / "models").iterdir())
    assert kept == [0, *made[-3:]]


@pytest.mark.usefixtures("drawn_by_number")
def test_the_chain_says_with_which_options_a_model_was_made(world):
    """Those of the search, too, by which labels are made and models are judged."""
    data = world.participant.data
    world.say(20, corrected=ALL)
    world.start(**FEWER, seed=3, old_data=data, options={"lm_weight": 1.25})
    world.work()
    world.start(**FEWER)
    world.say(20, corrected=ALL)
    world.work()
    first, *_, last = world.facts("options")
    assert first["decoder"]["lm_weight"] == 1.25
    assert (first["seed"], first["old_data"]) == (3, str(data))
    assert first["promotion"]["fewest"] == 1000
    assert first["service"]["every"] == 10
    assert first["language_model"] == language_model_checksum(world.participant.lm)
    assert last["decoder"]["lm_weight"] != 1.25
    assert (last["seed"], last["old_data"]) == (0, None)


def test_features_of_one_sentence_are_in_memory_at_a_time(world, monkeypatch):
    """A day has as many sentences as fit into the record's quota."""
    world.say(12, corrected=ALL)
    in_memory = []
    service = world.start(**QUICK)
    service._sentences.refresh()
    kept = weakref.WeakSet()
    read = service._sentences.sentence

    def counted(number):
        sentence = Sentence(*vars(read(number)).values())
        kept.add(sentence)
        in_memory.append(len(kept))
        return sentence

    monkeypatch.setattr(service._sentences, "sentence", counted)
    service._decisions._days._understood(0, range(12), world.learner)
    assert len(in_memory) == 12
    assert max(in_memory) <= 2, "the next one is read while the last one has its name yet"


@dataclass(frozen=True, eq=False)
class Sentence(LoggedSentence):
    """One that a weak set can hold."""
