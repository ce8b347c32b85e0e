import itertools
import math

import numpy as np
import pytest
import torch

from cortext.data.packed import open_packed
from cortext.errors import ConfigError, DataError
from cortext.training import Trainer
from cortext.training.batches import TrainBatch
from cortext.training.loss import CTC, CTCConfig, check_labels_fit, ctc_loss, name_trials


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
