from dataclasses import replace

import numpy as np
import pytest
import torch
from small_models import SESSIONS, make_model, trial

from cortext.errors import ConfigError
from cortext.features import smooth
from cortext.models import GRUConfig, TransformerConfig
from cortext.models.inputs import InputNetworkConfig
from cortext.models.transformer import EmbeddingConfig
from cortext.training.config import DatasetConfig, TrainConfig
from cortext_live.recalibration.learner import Learner
from cortext_live.recalibration.replay import LabelledSentence
from cortext_live.recalibration.settings import METHODS, LearningOptions, method_settings

NEW_DAY = "t15.2023.08.20"
LABELS = np.array([3, 40, 7, 7, 40])
GRU = GRUConfig(
    n_units=8,
    n_layers=1,
    rnn_dropout=0.0,
    patch_size=4,
    patch_stride=2,
    input_network=InputNetworkConfig(input_layer_dropout=0.0),
)
NO_DAYS = TransformerConfig(
    n_units=8,
    n_layers=1,
    n_heads=1,
    head_units=8,
    dropout=0.0,
    input_network=EmbeddingConfig(day_layer="none", input_layer_dropout=0.0),
)
QUIET = {"white_noise_std": 0.0, "constant_offset_std": 0.0}


def learner_of(config=GRU, seed=0, random_cut=0, **changes):
    run = TrainConfig(model=config, dataset=DatasetConfig())
    run.dataset.data_transforms.random_cut = random_cut
    return Learner(make_model(config), run, LearningOptions(**changes), seed=seed)


def sentence(seed=0, session=NEW_DAY, n_bins=60):
    return LabelledSentence(trial(n_bins, seed), session, LABELS)


def weights(model):
    return {name: tensor.clone() for name, tensor in model.network.state_dict().items()}


def test_fewest_tokens_are_a_share_of_the_usual_rate():
    learner = learner_of(least_rate=0.5)
    assert learner.fewest_tokens(40) == 0.0  # nothing is known
    # Five labels in 100, 50 and 40 bins: the median rate is a tenth of a label in a bin.
    learner.remember([sentence(n_bins=100), sentence(n_bins=50), sentence(n_bins=40)])
    assert learner.fewest_tokens(40) == pytest.approx(2.0)
    assert learner_of(least_rate=0.0).fewest_tokens(40) == 0.0


def test_one_step_is_that_of_torchs_own_optimiser_and_loss():
    # One copy without noise: everything can be computed with torch's parts alone.
    spoken = sentence()
    learner = learner_of(copies=1, **QUIET)
    learner.learn(spoken)

    model = make_model(GRU)
    network = model.network.train()
    day = len(SESSIONS) - 1  # a copy of the last known day's layer
    weight = network.day_weight.detach()[day].clone().requires_grad_(True)
    bias = network.day_bias.detach()[day].clone().requires_grad_(True)
    transforms = TrainConfig().dataset.data_transforms
    x_TC = smooth(
        torch.from_numpy(spoken.features_TC)[None],
        transforms.smooth_kernel_std,
        transforms.smooth_kernel_size,
    )[0]
    daily = torch.nn.functional.softsign(x_TC @ weight + bias)
    patches = daily.unfold(0, 4, 2).transpose(1, 2).flatten(1)[None]
    found, _ = network.gru(patches, network.h0.expand(-1, 1, -1).contiguous())
    log_probs = network.out(found).log_softmax(-1)
    loss = torch.nn.functional.ctc_loss(
        log_probs.transpose(0, 1),
        torch.from_numpy(LABELS)[None],
        torch.tensor([log_probs.shape[1]]),
        torch.tensor([len(LABELS)]),
        reduction="none",
    ).mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_([weight, bias], 0.5)
    config = TrainConfig()
    betas = (config.beta0, config.beta1)
    adam = torch.optim.AdamW([weight, bias], lr=1e-3, betas=betas, eps=1e-8, weight_decay=1e-5)
    adam.step()

    now = learner.model.network
    assert learner.model.sessions == (*SESSIONS, NEW_DAY)
    torch.testing.assert_close(now.day_weight[-1], weight, atol=1e-6, rtol=0)
    torch.testing.assert_close(now.day_bias[-1], bias, atol=1e-6, rtol=0)
    assert not torch.equal(now.day_weight[-1], network.day_weight[day])


@pytest.mark.parametrize("method", list(METHODS))
def test_only_the_new_day_changes(method):
    model = make_model(GRU)
    before = weights(model)
    config = TrainConfig(model=GRU)
    learner = Learner(model, config, METHODS[method])
    learner.remember(sentence(number, SESSIONS[0]) for number in range(8))
    for number in range(3):
        learner.learn(sentence(number))
    after = weights(learner.model)
    for name, tensor in before.items():
        known = after[name][: len(SESSIONS)] if name.startswith("day_") else after[name]
        assert torch.equal(known, tensor), name
    assert not torch.equal(after["day_weight"][-1], before["day_weight"][-1])
    assert weights(model).keys() == before.keys()
    assert all(torch.equal(weights(model)[name], before[name]) for name in before)


def test_a_model_without_day_layers_learns_with_the_part_that_its_class_names():
    before = weights(make_model(NO_DAYS))
    learner = learner_of(NO_DAYS)
    learner.learn(sentence())
    changed = {
        name
        for name, tensor in weights(learner.model).items()
        if not torch.equal(tensor, before[name])
    }
    assert changed
    assert all(name.startswith(("patch_norm", "embedding")) for name in changed)


def test_the_whole_model_may_learn():
    before = weights(make_model(GRU))
    learner = learner_of(whole_model=True)
    learner.learn(sentence())
    after = weights(learner.model)
    assert not torch.equal(after["out.weight"], before["out.weight"])


def test_the_same_sentences_give_the_same_weights():
    def learnt(seed):
        torch.manual_seed(seed + 99)  # the program's own random numbers have no part in it
        learner = learner_of(seed=seed, replayed=4)
        for number in range(3):
            learner.learn(sentence(number))
        return learner.model.network.day_weight

    assert torch.equal(learnt(1), learnt(1))
    assert not torch.equal(learnt(1), learnt(2))


def test_steps_are_bounded_by_sentence_and_by_day():
    learner = learner_of(steps=3, steps_per_day=5)
    taken = [learner.learn(sentence(number)).steps for number in range(3)]
    assert taken == [3, 2, 0]
    assert learner.learn(sentence(3, "t15.2023.08.22")).steps == 3


def test_no_step_follows_a_low_loss():
    loss = learner_of(steps=4).learn(sentence()).loss
    learnt = learner_of(steps=4, stop_loss=10 * loss).learn(sentence())
    assert learnt.steps == 1


def test_a_sentence_that_was_learnt_has_a_lower_loss():
    learner = learner_of(whole_model=True, lr=0.01)
    losses = [learner.learn(sentence()).loss for _ in range(15)]
    assert losses[-1] < 0.7 * losses[0]


def test_each_new_day_begins_with_the_layer_of_the_day_before():
    learner = learner_of()
    learner.learn(sentence())
    latest = learner.model.network.day_weight[-1].clone()
    learner.begin_day("t15.2023.08.22")
    assert torch.equal(learner.model.network.day_weight[-1], latest)
    assert learner.model.sessions[-1] == "t15.2023.08.22"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("copies=0", "copies is 0; it must be at least 1"),
        ("confidence=1.5", "confidence is 1.5; it must be at least 0 and at most 1"),
        ("lr=0", "lr is 0.0; it must be above 0 and finite"),
        ("copys=3", "copies"),
    ],
)
def test_settings_that_cannot_be_are_refused(change, said):
    with pytest.raises(ConfigError, match=said):
        method_settings("one-step", [change])


def test_an_unknown_method_is_named():
    with pytest.raises(ConfigError, match="unknown method 'onestep'"):
        method_settings("onestep")


@pytest.mark.parametrize(
    "spoken",
    [
        # 60 bins, of which augmentation may cut 2, are 28 patches of 4 bins every 2 bins.
        LabelledSentence(trial(60), NEW_DAY, np.arange(29) + 1),
        LabelledSentence(trial(60), NEW_DAY, np.full(15, 7)),  # 14 blanks between equal tokens
        LabelledSentence(trial(5), NEW_DAY, LABELS[:1]),  # cut, it has no frame
        LabelledSentence(trial(60), NEW_DAY, LABELS[:0]),
        LabelledSentence(np.full_like(trial(60), np.nan), NEW_DAY, LABELS),
    ],
    ids=["too long", "too many equal tokens", "too few bins", "no label", "features not finite"],
)
def test_nothing_is_learnt_from_a_sentence_that_has_no_finite_loss(spoken):
    learner, other = (learner_of(copies=2, replayed=2, random_cut=3) for _ in range(2))
    for each in (learner, other):
        each.remember([sentence()])
    learner.remember([spoken])
    assert learner.learn(spoken).steps == 0
    # It is not replayed either: the next sentence is learnt as if it had not been.
    assert learner.learn(sentence(1)).steps == other.learn(sentence(1)).steps == 1
    assert learner.n_steps == 1
    for name, weight in weights(other.model).items():
        assert torch.equal(weights(learner.model)[name], weight), name


def test_a_label_that_just_fits_is_learnt():
    learner = learner_of(copies=2)
    spoken = LabelledSentence(trial(60), NEW_DAY, np.arange(29) + 1)  # uncut, there are 29 frames
    assert learner.learn(spoken).steps == 1
    assert np.isfinite(learner.learn(spoken).loss)


NEXT_DAY = "t15.2023.08.22"


def together(**changes):
    return learner_of(together=3, replayed=4, steps_per_day=10, whole_model=True, **changes)


def drawn(learner, monkeypatch):
    """Return the list that gets the sentences of each batch."""
    batches = []
    train = learner._train
    monkeypatch.setattr(
        learner, "_train", lambda each, share: batches.append(each) or train(each, share)
    )
    return batches


def test_sentences_that_learn_together_are_different_and_are_replayed_on_later_days(monkeypatch):
    learner = together()
    known = [sentence(50 + n, SESSIONS[0]) for n in range(5)]
    learner.remember(known)
    first = [sentence(n) for n in range(5)]
    batches = drawn(learner, monkeypatch)
    assert learner.learn_together(first, 4) == 4
    for batch in batches:
        assert len({id(each) for each in batch[:3]}) == 3
        assert all(any(each is one for one in first) for each in batch[:3])
        # Nothing is known of days between yet.
        assert len(batch) == 7
        assert all(any(each is one for one in known) for each in batch[3:])
    # With new labels, the same sentences take the place of the earlier ones.
    again = [*(sentence(n) for n in range(5)), sentence(5)]
    assert learner.learn_together(again, 20) == 6, "the day has ten steps"
    batches.clear()
    learner.learn_together([sentence(9, NEXT_DAY)], 3)
    for batch in batches:
        assert batch[0].session == NEXT_DAY
        replayed = batch[1:]
        assert sum(any(each is one for one in again) for each in replayed) == 2
        assert sum(any(each is one for one in known) for each in replayed) == 2


def test_corrected_sentences_are_drawn_more_often(monkeypatch):
    learner = learner_of(together=1, corrected_weight=3.0, **QUIET)
    batches = drawn(learner, monkeypatch)
    told = LabelledSentence(trial(60, 1), NEW_DAY, LABELS, corrected=True)
    learner.learn_together([sentence(), told], 400)
    share = np.mean([batch[0] is told for batch in batches])
    # 3 of 4; the standard deviation of the share is 0.022.
    assert share == pytest.approx(0.75, abs=0.07)


def test_the_learning_rate_falls_before_a_model_is_made(monkeypatch):
    learner = together(lr=0.01, lr_floor=0.1)
    rates = []
    learner.begin_day(NEW_DAY)
    step = learner._optimizer.step

    def noted(number, days):
        rates.append(learner._optimizer.config.lr_max)
        return step(number, days)

    monkeypatch.setattr(learner._optimizer, "step", noted)
    learner.learn_together([sentence()], 4)
    assert rates == pytest.approx([0.01, 0.007, 0.004, 0.001])


def test_a_day_that_learnt_together_is_replayed_once():
    learner = together()
    for _ in range(3):
        learner.learn_together([sentence(0), sentence(1)], 2)
    learner.learn_together([sentence(2, NEXT_DAY)], 1)
    assert [each.session for each in learner.state().decoded] == [NEW_DAY] * 2


def test_a_correction_takes_the_place_of_what_was_decoded():
    learner = together()
    decoded = [replace(sentence(n), entry=(1, n)) for n in range(3)]
    corrected = replace(sentence(5), entry=(1, 1), corrected=True)
    learner.learn_together(decoded, 1)
    learner.learn_together([sentence(2, NEXT_DAY)], 1)
    learner.learn_together([corrected], 1)
    learner.begin_day("t15.2023.08.24")
    state = learner.state()
    assert [each.entry for each in state.decoded] == [(1, 0), (1, 2), None]
    assert [each.entry for each in state.corrected] == [(1, 1)]


def test_a_sentence_that_is_decoded_again_is_not_replayed_as_it_was_before():
    learner = together()
    before = [replace(sentence(n), entry=(1, n)) for n in range(3)]
    for each in before:
        learner.keep(each)
    again = replace(sentence(4), entry=(1, 1))
    learner.learn_together([again], 1)
    learner.begin_day(NEXT_DAY)
    kept = learner.state().decoded
    assert [each.entry for each in kept] == [(1, 0), (1, 2), (1, 1)]
    assert kept[-1] is again


def test_a_learner_takes_over_what_its_model_had_learnt():
    other = together()
    for number, session in enumerate((NEW_DAY, NEXT_DAY, "t15.2023.08.24")):
        other.learn_together([replace(sentence(1, session), entry=(7, number))], 1)
    learner = Learner(other.model, TrainConfig(model=GRU), other.settings)
    learner.replay.take_over(other.replay, {(7, 0), (7, 2), (8, 1)})
    assert [each.entry for each in learner.state().decoded] == [(7, 0), (7, 2)]
