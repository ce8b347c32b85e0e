"""The service: what vetoes a model, what a promotion costs, what is learnt from, which files stay."""

import weakref
from dataclasses import dataclass, replace
from datetime import timedelta

import numpy as np
import pytest
import torch
from drifted_day import DRIFTED, KNOWN
from recalibrating import (
    SETTINGS,
    UNDECIDED,
    Clock,
    add_copy,
    candidates,
    damage,
    judgements,
    recorded,
    say,
    service,
    spoil,
    work,
)

from cortext.cli import run as cortext
from cortext.decoding import Decoder
from cortext.decoding.ngram.language_model import language_model_checksum
from cortext.models import load_model
from cortext.text.metrics import edit_counts
from cortext_live.recalibration import learner
from cortext_live.recalibration.chain import model_folder, open_chain, read_chain
from cortext_live.recalibration.labeller import RESERVED, WATCHED, Labeller
from cortext_live.recalibration.promotion import Comparison, PromotionOptions
from cortext_live.recalibration.recorded import LoggedSentence

QUICK = {"overrides": ["copies=1", "confidence=0"], "rule": UNDECIDED}


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


def test_confidence_is_measured_on_sentences_that_no_model_has_learnt_from(
    participant, tmp_path, monkeypatch
):
    """The even ones are never learnt from as they were decoded; 11 is not yet."""
    for name in ("is_reserved", "is_watched"):
        monkeypatch.setattr(Labeller, name, lambda self, number: number % 2 == 0)
    trials = recorded(participant)[:12]
    with service(participant, tmp_path, **QUICK, settings=replace(SETTINGS, every=5)) as running:
        say(tmp_path / "log", trials, ["x"] * 12)
        work(running)
    (entry,) = candidates(tmp_path / "chain")
    assert entry.facts["learnt"]["decoded"] == [1, 3, 5, 7, 9]
    (judged,) = judgements(tmp_path / "chain")
    unlearnt = [trials[number] for number in (0, 2, 4, 6, 8, 10, 11)]
    runs = participant.run, model_folder(tmp_path / "chain", entry.number)
    expected = [np.mean(mean_confidences(participant, run, unlearnt)) for run in runs]
    assert judged["confidence"] == pytest.approx(expected, abs=1e-6)


def test_some_reserved_utterances_are_watched_in_each_part_of_a_log(participant, tmp_path):
    with service(participant, tmp_path) as running:
        labeller = running._trainer._labeller
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
    with service(participant, tmp_path, rule=PromotionOptions()) as running:
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
        monkeypatch.setattr(running._decisions._decider._comparer, "comparison", lambda *_: found)
        entry = contents.entries[last]
        judgement = running._decisions._decider.judge(
            contents, entry, None, running._learning.learner
        )
    assert judgement.decision.action == action


def test_a_model_is_compared_with_its_nearest_ancestor_that_is_intact(participant, tmp_path):
    trials, chain_dir = recorded(participant)[:20], tmp_path / "chain"
    with service(participant, tmp_path), open_chain(chain_dir) as chain:
        intact = add_copy(chain, participant.run)
        chain.add("promoted", model=intact, upper=0.0)
        parent = add_copy(chain, participant.run, parent=intact)
        chain.add("promoted", model=parent, upper=0.0)
        worse = spoil(chain, participant.run, parent=parent)
    damage(model_folder(chain_dir, parent))
    say(tmp_path / "log", trials, ["x"] * 20, range(20))
    with service(participant, tmp_path) as running:
        assert running.work()
    *_, checked, rolled_back = read_chain(chain_dir).entries
    assert (rolled_back.kind, rolled_back.model) == ("rolled_back", intact)
    errors = []
    for run in (participant.run, model_folder(chain_dir, worse)):
        found = decoded(running._decoder.decoder, run, trials)
        counts = (
            edit_counts(trial.sentence.split(), nbest[0].text.split())
            for trial, nbest in zip(trials, found, strict=True)
        )
        errors.append(sum(each.errors for each in counts))
    words = sum(len(trial.sentence.split()) for trial in trials)
    comparison = checked.facts["comparison"]
    assert (comparison["sentences"], comparison["words"]) == (20, words)
    assert comparison["difference"] == pytest.approx(100 * (errors[1] - errors[0]) / words)


@pytest.mark.parametrize(("earlier", "news"), [(0, False), (60, True)], ids=["this", "another"])
def test_what_was_counted_in_another_log_counts_no_longer(participant, tmp_path, earlier, news):
    clock, counted = Clock(), {"comparison": None, "confidence": None, "said": 30}
    with service(participant, tmp_path, settings=replace(SETTINGS, every=5)) as running:
        say(tmp_path / "log", recorded(participant)[:5], ["x"] * 5, when=clock.now)
        running._sentences.refresh()
        counted["log"] = running._sentences.began - earlier
        with open_chain(tmp_path / "chain") as chain:
            model = add_copy(chain, participant.run)
            chain.add("judged", model=model, labelled=30, action="wait", reason="", **counted)
            chain.add("promoted", model=model, upper=0.0)
            chain.add("checked", model=model, ratings=[], reason="", **counted)
            contents = chain.contents
        checked = running._decisions._decider.check(contents, contents.entries[model])
        assert (None if checked is None else checked["said"]) == (5 if news else None)
        assert running._decisions._decider.has_news(contents, contents.entries[model]) == news


def test_a_model_that_confidence_vetoes_is_judged_again_after_more_sentences(
    participant, tmp_path, monkeypatch, drawn_by_number
):
    """Its time is over after seven sentences; the twelfth is the fifth further one."""
    trials, clock = recorded(participant), Clock()
    settings = replace(SETTINGS, every=5, allow_provisional=True)
    with service(participant, tmp_path, **QUICK, settings=settings, clock=clock) as running:
        say(tmp_path / "log", trials[:7], ["x"] * 7, when=clock.now)
        work(running)
        (model,) = (each.number for each in candidates(tmp_path / "chain"))
        assert running.chain.provisional == model
        monkeypatch.setattr(
            running._decisions._decider._comparer, "confidences", lambda *_: (0.9, 0.5)
        )
        clock.now += timedelta(hours=25)
        actions = []
        for number in range(7, 13):
            work(running)
            judged = running.chain.of(model, "judged")
            actions.append([each.facts["action"] for each in judged])
            say(tmp_path / "log", [trials[number]], ["x"], when=clock.now)
    assert actions == [["speak", "wait"]] * 5 + [["speak", "wait", "wait"]]


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
        rule=UNDECIDED,
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


@pytest.mark.usefixtures("drawn_by_number")
def test_the_chain_says_with_which_options_a_model_was_made(participant, tmp_path):
    """Those of the search, too, by which labels are made and models are judged."""
    say(tmp_path / "log", recorded(participant)[:20], ["i see you"] * 20, range(20))
    options = {"seed": 3, "old_data": participant.data, "options": {"lm_weight": 1.25}}
    with service(participant, tmp_path, **QUICK, **options) as running:
        work(running)
    with service(participant, tmp_path, **QUICK) as running:
        say(tmp_path / "log", recorded(participant)[20:40], ["i see you"] * 20, range(20, 40))
        work(running)
    first, *_, last = [entry.facts["options"] for entry in candidates(tmp_path / "chain")]
    assert first["decoder"]["lm_weight"] == 1.25
    assert (first["seed"], first["old_data"]) == (3, str(participant.data))
    assert first["promotion"]["fewest"] == 1000
    assert first["service"]["every"] == 10
    assert first["language_model"] == language_model_checksum(participant.lm)
    assert last["decoder"]["lm_weight"] != 1.25
    assert (last["seed"], last["old_data"]) == (0, None)


def test_features_of_one_sentence_are_in_memory_at_a_time(participant, tmp_path, monkeypatch):
    """A day has as many sentences as fit into the record's quota."""
    say(tmp_path / "log", recorded(participant)[:12], ["i see you"] * 12)
    in_memory = []
    with service(participant, tmp_path, **QUICK) as running:
        running._sentences.refresh()
        kept = weakref.WeakSet()
        read = running._sentences.sentence

        def counted(number):
            sentence = Sentence(*vars(read(number)).values())
            kept.add(sentence)
            in_memory.append(len(kept))
            return sentence

        monkeypatch.setattr(running._sentences, "sentence", counted)
        running._decisions._days._understood(0, range(12), running._learning.learner)
    assert len(in_memory) == 12
    assert max(in_memory) <= 2, "the next one is read while the last one has its name yet"


@dataclass(frozen=True, eq=False)
class Sentence(LoggedSentence):
    """One that a weak set can hold."""
