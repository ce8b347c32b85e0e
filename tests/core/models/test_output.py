"""Models that return `Output` with extras are used wherever the pair of logits and state is."""

import numpy as np
import pytest
import torch

from cortext.errors import ConfigError
from cortext.models import (
    GRU,
    AcousticModel,
    GRUConfig,
    Output,
    build_model,
    read_output,
)
from cortext.models.card import Smoothing
from cortext.models.registry import check_output
from cortext.text.inventory import RELEASE
from cortext_live.steps.stepping import TorchStepper

N_FEATURES = 5


class WithExtras(GRU):
    """The GRU, which also returns its state's mean by trial."""

    def forward(self, x_BTC, day_B, state_LBD=None, *, n_patches_B=None):
        logits_BPV, state_LBD = super().forward(x_BTC, day_B, state_LBD, n_patches_B=n_patches_B)
        return Output(logits_BPV, state_LBD, {"mean": state_LBD.mean((0, 2))})


@pytest.fixture
def pair():
    """One model that returns a pair, and the same with extras."""
    torch.manual_seed(0)
    network = build_model(
        GRUConfig(n_units=12, n_layers=2), n_features=N_FEATURES, n_days=1, n_classes=41
    )
    other = WithExtras(network.config, n_features=N_FEATURES, n_days=1, n_classes=41)
    other.load_state_dict(network.state_dict())
    return [
        AcousticModel(
            each, sessions=["a"], n_features=N_FEATURES, inventory=RELEASE, smoothing=Smoothing()
        )
        for each in (network, other)
    ]


def test_both_forms_are_read():
    logits, state = torch.zeros(2, 3, 4), torch.zeros(1)
    for found in ((logits, state), Output(logits, state)):
        output = read_output(found)
        assert output.logits is logits
        assert output.state is state
        assert output.extras == {}
    assert Output(logits)[0] is logits


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (torch.zeros(1, 2, 3), r"forward returns a Tensor; return \(logits, state\) or Output"),
        ((1, 2, 3), "forward returns 3 values"),
        (None, "forward returns a NoneType"),
    ],
)
def test_another_result_says_what_to_return(found, expected):
    with pytest.raises(ConfigError, match=expected):
        read_output(found)


@pytest.mark.parametrize(
    ("logits", "expected"),
    [
        (torch.zeros(2, 5, 4), r"test_output\.py:\d+: WithExtras.forward: the logits are \[2, 5, 4\]; \[2, 7, 41\]"),
        (torch.zeros(2, 5, 41), r"the logits are \[2, 5, 41\]; n_patches promises 7 frames"),
        (torch.zeros(2, 7, 41).long(), "the logits are torch.int64; a float tensor is needed"),
        (None, "the logits are NoneType; a float tensor is needed"),
    ],
)  # fmt: skip
def test_wrong_logits_name_the_function(pair, logits, expected):
    with pytest.raises(ConfigError, match=expected):
        check_output(pair[1].network, (logits, None), (2, 7, 41), 6)


def test_frames_after_the_longest_trial_may_be_left_out(pair):
    for n_frames in (6, 7):
        check_output(pair[1].network, (torch.zeros(2, n_frames, 41), None), (2, 7, 41), 6)


def test_batches_and_steps_take_either(pair):
    x_BTC = np.random.default_rng(0).normal(size=(2, 60, N_FEATURES)).astype(np.float32)
    with_pair, with_extras = (
        model.logits_batch(x_BTC, ["a", "a"], np.array([60, 40]))[0] for model in pair
    )
    np.testing.assert_array_equal(with_pair, with_extras)
    steps = [TorchStepper(model).step(x_BTC[0, :14]) for model in pair]
    np.testing.assert_array_equal(*steps)
