"""The loss of labels of which parts are not known, beside a sum over all paths."""

import itertools
import math

import numpy as np
import pytest
import torch

from cortext.training.batches import TrainBatch
from cortext_live.recalibration.wildcard import ANY, WildcardCTC


def batch_of(labels, n_patches):
    n_labels_B = torch.tensor([len(each) for each in labels])
    labels_BU = torch.zeros(len(labels), int(n_labels_B.max()), dtype=torch.int64)
    for row, each in zip(labels_BU, labels, strict=True):
        row[: len(each)] = torch.tensor(each)
    count = len(labels)
    return TrainBatch(
        torch.zeros(count, 1, 1),
        torch.zeros(count, dtype=torch.int64),
        torch.ones(count, dtype=torch.int64),
        torch.tensor(n_patches),
        labels_BU,
        n_labels_B,
        np.arange(count),
        torch.tensor([0]),
    )


def loss_of(logits_BPV, labels, n_patches):
    batch = batch_of(labels, n_patches)
    return WildcardCTC()(lambda *_, **__: (logits_BPV, None), batch, 1.0)["loss"]


def by_all_paths(probs_PV, label):
    """The negative log of the sum over all paths of tokens, blanks and `ANY` that read as the label."""
    symbols = [*range(probs_PV.shape[1]), ANY]
    total = 0.0
    for path in itertools.product(symbols, repeat=len(probs_PV)):
        merged = [symbol for symbol, _ in itertools.groupby(path)]
        if [symbol for symbol in merged if symbol != 0] == label:
            total += math.prod(
                1.0 if symbol == ANY else float(probs_V[symbol])
                for symbol, probs_V in zip(path, probs_PV, strict=True)
            )
    return -math.log(total)


@pytest.mark.parametrize("label", [[1, ANY, 2], [ANY, 1], [2, 2, ANY], [ANY], [1, 2]])
def test_the_loss_is_the_sum_over_all_paths(label):
    logits_BPV = torch.randn(2, 5, 3, generator=torch.Generator().manual_seed(1))
    losses_B = loss_of(logits_BPV, [label, [1]], [5, 4])
    for loss, logits_PV, each, n in zip(losses_B, logits_BPV, [label, [1]], [5, 4], strict=True):
        probs_PV = logits_PV[:n].softmax(-1).numpy()
        assert float(loss) == pytest.approx(by_all_paths(probs_PV, each), rel=1e-4)


def test_other_tokens_in_the_place_of_unknown_words_are_left_as_they_are():
    """The first token is sure in frame 0, and another one in the frames of `ANY`."""
    logits_BPV = torch.zeros(1, 4, 3)
    logits_BPV[0, 0, 1] = logits_BPV[0, 1:, 2] = 30.0
    logits_BPV.requires_grad_(True)
    loss_of(logits_BPV, [[1, ANY]], [4]).sum().backward()
    assert float(logits_BPV.grad.norm()) < 1e-6
    # Without `ANY` these frames would have to become blanks.
    logits_BPV.grad = None
    loss_of(logits_BPV, [[1]], [4]).sum().backward()
    assert float(logits_BPV.grad[0, 1:].norm()) > 1.0
