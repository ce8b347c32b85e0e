import itertools
import json
import math

import numpy as np
import pytest
import torch

from cortext.data.checks import frames_needed
from cortext.data.inspect import inspect
from cortext.data.packed import open_packed
from cortext.errors import ConfigError, DataError
from cortext.models import GRUConfig, Output
from cortext.text.inventory import Inventory
from cortext.training import Trainer
from cortext.training.batches import TrainBatch
from cortext.training.loss import (
    CTC,
    CTCConfig,
    check_labels_fit,
    ctc_loss,
    name_trials,
    trial_name,
)
from cortext.training.setup import fitting, lengths_for


def collapsed(path):
    return tuple(token for token, _ in itertools.groupby(path) if token != 0)


def batch_of(logits_BPV):
    """Three trials with the labels "1", "1 2" and none, and four frames each."""
    n_trials, n_frames, _ = logits_BPV.shape
    return TrainBatch(
        x_BTC=torch.zeros(n_trials, n_frames, 1),
        day_B=torch.zeros(n_trials, dtype=torch.int64),
        n_bins_B=torch.full((n_trials,), n_frames),
        n_patches_B=torch.full((n_trials,), n_frames),
        labels_BU=torch.tensor([[1, 0], [1, 2], [0, 0]]),
        n_labels_B=torch.tensor([1, 2, 0]),
        indices=np.arange(n_trials),
        days=torch.tensor([0]),
    )


@pytest.mark.parametrize("label", [(1,), (1, 2), (1, 1), (2, 1)])
def test_loss_is_minus_the_log_of_the_summed_paths(label):
    logits_PV = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
    probabilities = logits_PV.double().softmax(-1)
    total = sum(
        math.prod(float(probabilities[p, token]) for p, token in enumerate(path))
        for path in itertools.product(range(3), repeat=4)
        if collapsed(path) == label
    )
    loss_B = ctc_loss(
        logits_PV[None], torch.tensor([4]), torch.tensor([label]), torch.tensor([len(label)])
    )
    assert float(loss_B) == pytest.approx(-math.log(total), rel=1e-5)


def test_frames_and_labels_beyond_the_lengths_do_not_count():
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(2, 6, 5, generator=generator)
    labels = torch.tensor([[1, 2, 0], [3, 0, 0]])
    both = ctc_loss(logits, torch.tensor([6, 4]), labels, torch.tensor([2, 1]))
    logits[1, 4:] = 1e3
    alone = ctc_loss(logits[1:, :4], torch.tensor([4]), labels[1:, :1], torch.tensor([1]))
    assert float(both[1]) == pytest.approx(float(alone[0]), rel=1e-6)
    assert torch.equal(both, ctc_loss(logits, torch.tensor([6, 4]), labels, torch.tensor([2, 1])))


def test_half_precision_logits_are_normalised_in_float32():
    logits = torch.randn(1, 50, 41, generator=torch.Generator().manual_seed(0)).bfloat16()
    arguments = (torch.tensor([50]), torch.tensor([[1, 2, 3]]), torch.tensor([3]))
    assert torch.equal(ctc_loss(logits, *arguments), ctc_loss(logits.float(), *arguments))


def test_the_loss_per_label_is_that_of_the_trial_over_the_length_of_its_label():
    logits = torch.zeros(3, 4, 3)
    found = CTC(CTCConfig(per_label=True))(lambda *_, **__: (logits, None), batch_of(logits), 0.0)
    # All of the 81 paths of four frames over three tokens are equally likely.
    for label, n_labels, loss, whole in zip(
        ((1,), (1, 2), ()), (1, 2, 1), found["loss"], found["ctc"], strict=True
    ):
        n_paths = sum(collapsed(path) == label for path in itertools.product(range(3), repeat=4))
        assert float(whole) == pytest.approx(math.log(81 / n_paths), rel=1e-5)
        assert float(loss) == pytest.approx(math.log(81 / n_paths) / n_labels, rel=1e-5)


def log_likelihood(logits_PV, label):
    """Minus the logarithm of the summed probabilities of all paths that collapse to the label."""
    probabilities = logits_PV.double().softmax(-1).tolist()
    n_frames, n_tokens = logits_PV.shape
    paths = itertools.product(range(n_tokens), repeat=n_frames)
    given = [path for path in paths if collapsed(path) == label]
    return -math.log(
        sum(
            math.prod(p[token] for p, token in zip(probabilities, path, strict=True))
            for path in given
        )
    )


@pytest.mark.parametrize(("fraction", "weight"), [(0.0, 0.25), (0.49, 0.25), (0.5, 0.75)])
def test_diphones_and_the_intermediate_layer_are_weighed(fraction, weight):
    generator = torch.Generator().manual_seed(1)
    # Two tokens, the second being the silence: pair (i, j) is 1 + 2 (i - 1) + (j - 1).
    pairs, middle = torch.randn(2, 3, 4, 5, generator=generator)
    tokens = torch.cat((pairs[..., :1], pairs[..., 1:3].logaddexp(pairs[..., 3:])), -1)
    middle_tokens = torch.cat((middle[..., :1], middle[..., 1:3].logaddexp(middle[..., 3:])), -1)
    output = Output(tokens, None, {"diphones": pairs, "intermediate": middle})
    loss = CTC(CTCConfig(phone_weights=[0.25, 0.75], intermediate_weight=0.4))
    loss.inventory = Inventory("two", ("BLANK", "A", "SIL"), silence="SIL")
    found = loss(lambda *_, **__: output, batch_of(tokens), fraction)
    for trial, (label, of_pairs) in enumerate([((1,), (3,)), ((1, 2), (3, 2)), ((), ())]):
        a, b = log_likelihood(tokens[trial], label), log_likelihood(pairs[trial], of_pairs)
        c = log_likelihood(middle_tokens[trial], label)
        d = log_likelihood(middle[trial], of_pairs)
        last, lower = weight * a + (1 - weight) * b, weight * c + (1 - weight) * d
        assert float(found["ctc"][trial]) == pytest.approx(a, rel=1e-5)
        assert float(found["diphones"][trial]) == pytest.approx(b, rel=1e-5)
        assert float(found["intermediate"][trial]) == pytest.approx(lower, rel=1e-5)
        assert float(found["loss"][trial]) == pytest.approx(0.6 * last + 0.4 * lower, rel=1e-5)


@pytest.mark.parametrize(
    ("epoch", "weight"), [(0, 0), (9, 0), (10, 0.1), (19, 0.1), (35, 0.3), (60, 0.6), (69, 0.6)]
)
def test_the_tokens_weight_rises_every_ten_epochs_of_seventy(epoch, weight):
    config = CTCConfig()
    assert config.phone_weight(epoch / 70) == pytest.approx(weight)
    assert float(config.phone_weight(torch.tensor(epoch / 70))) == pytest.approx(weight)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"phone_weights": []}, r"loss.phone_weights is \[\]; give one weight or more"),
        ({"phone_weights": [0.5, 1.5]}, r"loss.phone_weights is \[0.5, 1.5\]; give one"),
        (
            {"intermediate_weight": -1.0},
            r"loss.intermediate_weight is -1.0; it must be at least 0 and at",
        ),
    ],
)
def test_weights_out_of_range_are_refused(settings, what):
    with pytest.raises(ConfigError, match=what):
        CTCConfig(**settings)


@pytest.mark.parametrize(
    ("settings", "what"),
    [
        ({"phone_weights": [0.5]}, "loss.phone_weights is set, and model.diphones is not"),
        (
            {"intermediate_weight": 0.5},
            "loss.intermediate_weight is set, and model.intermediate_layer is not",
        ),
    ],
)
def test_a_weight_of_what_the_model_lacks_is_refused(config, packed, tmp_path, settings, what):
    config.loss = CTCConfig(**settings)
    with (
        pytest.raises(ConfigError, match=what),
        Trainer(config, packed, tmp_path / "run", progress=False),
    ):
        pass
    assert not (tmp_path / "run").exists()


def test_the_log_names_the_losses_and_a_resumed_run_is_the_same(config, packed, tmp_path):
    config.model = GRUConfig(n_units=8, n_layers=2, diphones=True, intermediate_layer=1)
    config.loss = CTCConfig(phone_weights=[0.2, 0.4], per_label=True)
    config.num_training_batches = config.batches_per_train_log = 4
    config.batches_per_val_step = 4
    with Trainer(config, packed, tmp_path / "whole", progress=False) as trainer:
        trainer.run()
    for resume, batches in ((False, 3), (True, None)):
        with Trainer(config, packed, tmp_path / "parts", resume=resume, progress=False) as trainer:
            trainer.run(batches)
    logs = [
        [json.loads(line) for line in (tmp_path / run / "metrics.jsonl").read_text().splitlines()]
        for run in ("whole", "parts")
    ]
    train = [line for line in logs[0] if "train_loss" in line]
    assert {"train_ctc", "train_diphones", "train_intermediate"} <= set(train[-1])
    weights = [(tmp_path / run / "model.safetensors").read_bytes() for run in ("whole", "parts")]
    assert weights[0] == weights[1]


def test_a_label_longer_than_its_frames_is_found_before_training(packed):
    split = open_packed(packed).split("train")
    check_labels_fit(split, lambda n_bins: (n_bins - 14) // 4 + 1)
    with pytest.raises(
        DataError, match=r"t15.2023.08.11/block 0/trial 0: 2 frames .* needs [3-6]; name it in"
    ):
        check_labels_fit(split, lambda n_bins: 2)
    longest = int(split.n_bins_N.max())
    with pytest.raises(DataError, match="0 frames are left"):
        check_labels_fit(split, lambda n_bins: max(0, (n_bins - 14) // 4 + 1), longest_cut=longest)


def test_trials_too_short_for_their_labels_are_all_named_and_can_be_left_out(packed):
    split = open_packed(packed).split("train")
    needed = [frames_needed(split.labels(i)) for i in range(len(split))]
    short = [i for i, n in enumerate(needed) if n > min(needed)]
    assert 1 < len(short) < len(split)
    names = name_trials(split, np.array(short))
    with pytest.raises(DataError, match=rf"\(too few in {len(short)} trials: {names}\)"):
        check_labels_fit(split, lambda n_bins: min(needed))
    left_out = []
    kept = fitting(split, lambda n_bins: min(needed), 0, left_out)
    check_labels_fit(kept, lambda n_bins: min(needed))
    assert [problem.trial for problem in left_out] == [trial_name(split, i) for i in short]
    assert [trial_name(kept, i) for i in range(len(kept))] == [
        trial_name(split, i) for i in range(len(split)) if i not in short
    ]
    with pytest.raises(DataError, match="every trial of the train split is too short"):
        fitting(split, lambda n_bins: 0, 0, [])


def test_skip_bad_leaves_out_trials_that_random_cut_makes_too_short(config, packed, tmp_path):
    data = open_packed(packed)
    train = data.split("train")
    needed = np.array([frames_needed(train.labels(i)) for i in range(len(train))])
    spare = train.n_bins_N - (14 + 4 * (needed - 1))  # bins more than the label needs
    cut = int(np.sort(spare)[2]) + 1
    n_short = int((spare < cut).sum())
    assert 1 < n_short < len(train)
    config.dataset.data_transforms.random_cut = cut + 1
    with pytest.raises(DataError, match=f"too few in {n_short} trials"):
        Trainer(config, packed, tmp_path / "strict", progress=False)
    with Trainer(config, packed, tmp_path / "run", progress=False, skip_bad=True) as trainer:
        assert len(trainer.skipped) == n_short
    listed = inspect(packed, too_short=lengths_for(config, data), check_sentences=False)
    short = [train.trial(i).name for i in np.flatnonzero(spare < cut)]
    assert sorted(problem.trial for problem in listed.problems) == sorted(short)


def test_trials_are_named_once_and_not_too_many(packed):
    split = open_packed(packed).split("train")
    assert name_trials(split, np.array([1, 1])) == "t15.2023.08.11/block 0/trial 1"
    assert name_trials(split, np.arange(10)).endswith("trial 7 and 2 more")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (
            lambda losses: {"loss": losses["loss"].mean()},
            r"'loss' of shape \[\] for 6 trials; give a value for each",
        ),
        (
            lambda losses: losses | {"penalty": losses["loss"][:1]},
            r"'penalty' of shape \[1\] for 6 trials",
        ),
        (
            lambda losses: {"ctc": losses["loss"]},
            "the loss gives ctc; call what is minimised 'loss'",
        ),
    ],
)
def test_a_loss_that_gives_no_value_for_each_trial_is_refused(
    config, packed, tmp_path, monkeypatch, change, what
):
    given = CTC.__call__
    monkeypatch.setattr(CTC, "__call__", lambda *arguments: change(given(*arguments)))
    with (
        Trainer(config, packed, tmp_path / "run", progress=False) as trainer,
        pytest.raises(ConfigError, match=what),
    ):
        trainer.run(1)
