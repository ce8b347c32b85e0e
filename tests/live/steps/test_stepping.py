"""Stepping a model patch by patch gives what it gives for the whole trial."""

import itertools
import time

import numpy as np
import pytest
import torch
from small_models import N_FEATURES, SESSIONS, make_model, trial
from torch import nn

from cortext.data.conventions import Conventions
from cortext.errors import DataError, RunError
from cortext.models import (
    GRU,
    AcousticModel,
    GRUConfig,
    TransformerConfig,
    TripleGRUConfig,
    build_model,
)
from cortext.models.card import Smoothing
from cortext.models.inputs import InputNetworkConfig
from cortext.models.transformer import EmbeddingConfig
from cortext.text.inventory import RELEASE, Inventory
from cortext_live.steps.single_step import choose_prefetch, for_single_steps
from cortext_live.steps.stepping import TorchStepper, open_stepper

CONFIGS = {
    "gru": GRUConfig(n_units=32, n_layers=3),
    "gru, single bins": GRUConfig(n_units=16, n_layers=1, patch_size=0),
    "gru, read-in": GRUConfig(n_units=16, n_layers=1, input_network=InputNetworkConfig(read_in=4)),
    "transformer, read-in": TransformerConfig(
        n_units=32,
        n_layers=1,
        n_heads=2,
        head_units=8,
        context_frames=6,
        input_network=EmbeddingConfig(day_layer="affine", read_in=9),
    ),
    "gru, odd units": GRUConfig(n_units=21, n_layers=2, patch_size=3, patch_stride=2),
    "transformer": TransformerConfig(
        n_units=32, n_layers=2, n_heads=2, head_units=8, context_frames=6
    ),
    "gru, diphones": GRUConfig(n_units=16, n_layers=2, diphones=True, intermediate_layer=1),
    "triple_gru": TripleGRUConfig(noise_units=16, clean_units=32, noisy_units=8),
}


def steps(stepper, x_TC):
    """Logits [P, V] of a whole trial, step by step."""
    first_bins = range(0, len(x_TC) - stepper.patch_size + 1, stepper.patch_stride)
    return np.stack(
        [stepper.step(x_TC[first : first + stepper.patch_size]) for first in first_bins]
    )


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("session", SESSIONS)
def test_steps_give_the_logits_of_the_whole_trial(name, session):
    model = make_model(CONFIGS[name])
    stepped_PV = steps(TorchStepper(model, session), trial())
    whole_PV = model.logits(trial(), session, smooth=False)
    assert stepped_PV.dtype == np.float32
    assert stepped_PV.shape == whole_PV.shape
    np.testing.assert_allclose(stepped_PV, whole_PV, atol=1e-5)


@pytest.mark.parametrize("n_tokens", [2, 3, 250])
@pytest.mark.parametrize("name", ["gru, odd units", "triple_gru"])
def test_steps_of_any_number_of_tokens_give_the_logits_of_the_whole_trial(name, n_tokens):
    inventory = Inventory("many", tuple(f"x{number}" for number in range(n_tokens)), "x0", None)
    model = make_model(CONFIGS[name], conventions=Conventions(inventory))
    whole_PV = model.logits(trial(), "latest", smooth=False)
    assert whole_PV.shape[1] == n_tokens
    np.testing.assert_allclose(steps(TorchStepper(model), trial()), whole_PV, atol=1e-5)
    for precision in ("bf16", "int8"):
        rounded_PV = steps(TorchStepper(model, precision=precision), trial())
        assert np.abs(rounded_PV - whole_PV).max() < 0.1 * np.abs(whole_PV).max()


@pytest.mark.slow
def test_steps_of_the_published_shape_give_the_logits_of_the_whole_trial():
    torch.manual_seed(0)
    network = build_model(GRUConfig(), n_features=512, n_days=len(SESSIONS), n_classes=len(RELEASE))
    model = AcousticModel(
        network, sessions=SESSIONS, n_features=512, inventory=RELEASE, smoothing=Smoothing()
    )
    x_TC = np.random.default_rng(0).normal(size=(300, 512)).astype(np.float32)
    whole_PV = model.logits(x_TC, "latest", smooth=False)
    np.testing.assert_allclose(steps(TorchStepper(model), x_TC), whole_PV, atol=1e-5)


@pytest.mark.gpu
@pytest.mark.parametrize("name", CONFIGS)
def test_steps_on_a_gpu_give_the_logits_of_the_whole_trial(name):
    model = make_model(CONFIGS[name])
    whole_PV = model.logits(trial(), "latest", smooth=False)
    model.network.to("cuda")
    np.testing.assert_allclose(steps(TorchStepper(model), trial()), whole_PV, atol=1e-4)
    half_PV = steps(TorchStepper(model, precision="bf16"), trial())
    assert np.abs(half_PV - whole_PV).max() < 0.05 * np.abs(whole_PV).max()


def test_a_subset_of_the_features_is_taken_by_the_stepper():
    model = make_model(CONFIGS["gru"], feature_subset=[4, 0, 5])
    stepped_PV = steps(TorchStepper(model), trial())
    np.testing.assert_allclose(
        stepped_PV, model.logits(trial(), SESSIONS[-1], smooth=False), atol=1e-5
    )


def test_the_second_utterance_does_not_know_the_first():
    stepper = TorchStepper(make_model(CONFIGS["gru"]))
    first_PV = steps(stepper, trial())
    other_PV = steps(stepper, trial())
    stepper.start()
    again_PV = steps(stepper, trial())
    assert np.abs(other_PV - first_PV).max() > 1e-3
    np.testing.assert_array_equal(again_PV, first_PV)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("precision", ["bf16", "int8"])
def test_rounded_weights_are_near_float32_and_not_the_same(name, precision):
    model = make_model(CONFIGS[name])
    exact_PV, rounded_PV = (
        steps(TorchStepper(model, precision=kept), trial()) for kept in ("fp32", precision)
    )
    assert rounded_PV.dtype == np.float32
    difference = np.abs(rounded_PV - exact_PV).max()
    assert 0 < difference < 0.05 * np.abs(exact_PV).max()


def test_an_unknown_precision_is_refused():
    with pytest.raises(RunError, match="no steps in fp16 on cpu; use fp32 or bf16"):
        TorchStepper(make_model(CONFIGS["gru"]), precision="fp16")


@pytest.mark.parametrize("name", CONFIGS)
def test_the_network_of_single_steps_still_does_what_it_did_for_batches(name):
    network = make_model(CONFIGS[name]).network
    fast = for_single_steps(network, precision="bf16")
    x_BTC, day_B = torch.randn(3, 40, N_FEATURES), torch.tensor([0, 1, 1])
    logits_BPV, state = network(x_BTC, day_B)
    assert torch.equal(fast(x_BTC, day_B)[0], logits_BPV)
    assert torch.equal(fast(x_BTC, day_B, state)[0], network(x_BTC, day_B, state)[0])


@pytest.mark.parametrize("name", CONFIGS)
def test_the_network_of_single_steps_shares_the_weights_and_leaves_the_other_alone(name):
    network = make_model(CONFIGS[name]).network
    fast = for_single_steps(network, precision="fp32")
    for ours, theirs in zip(fast.parameters(), network.parameters(), strict=True):
        assert ours is theirs
    assert not [module for module in network.modules() if "forward" in vars(module)]


def test_a_gru_that_computes_otherwise_is_left_as_it_is():
    class Doubled(nn.GRU):
        def forward(self, x_BPI, state_LBD):
            hidden_BPD, state_LBD = super().forward(x_BPI, state_LBD)
            return 2 * hidden_BPD, state_LBD

    for gru in (
        Doubled(4, 8, batch_first=True),
        nn.GRU(4, 8, batch_first=True, bidirectional=True),
    ):
        fast = for_single_steps(nn.ModuleList([gru]), precision="bf16")[0]
        x_BPI, state_LBD = torch.randn(1, 1, 4), torch.randn(1 + gru.bidirectional, 1, 8)
        with torch.no_grad():
            assert torch.equal(fast(x_BPI, state_LBD)[0], gru(x_BPI, state_LBD)[0])


@pytest.mark.parametrize(
    "normalised", [nn.utils.parametrizations.weight_norm, nn.utils.spectral_norm]
)
def test_weights_that_are_computed_from_others_are_those_of_the_step(normalised):
    model = make_model(CONFIGS["gru"])
    normalised(model.network.out)
    model.network.eval()
    with torch.no_grad():
        for parameter in model.network.out.parameters():
            parameter *= 1.5
    stepped_PV = steps(TorchStepper(model), trial())
    np.testing.assert_allclose(
        stepped_PV, model.logits(trial(), SESSIONS[-1], smooth=False), atol=1e-5
    )


def test_a_network_that_cannot_be_copied_is_refused_in_a_line():
    model = make_model(CONFIGS["gru"])
    model.network.scale = model.network.out.weight * 2
    with pytest.raises(
        RunError, match=r"this network cannot be copied: Only Tensors created explicitly"
    ):
        TorchStepper(model)


def test_a_model_without_a_state_is_refused():
    class Forgetful(GRU):
        def forward(self, *arguments, **options):
            return super().forward(*arguments, **options)[0], None

    model = make_model(CONFIGS["gru"])
    model.network.__class__ = Forgetful
    with pytest.raises(RunError, match="keeps no state"):
        TorchStepper(model)


def test_another_day_is_used_from_the_next_step_on():
    model = make_model(CONFIGS["gru"])
    stepper = TorchStepper(model, SESSIONS[0])
    stepper.use("latest")
    assert stepper.session == SESSIONS[-1]
    np.testing.assert_allclose(
        steps(stepper, trial()), model.logits(trial(), SESSIONS[-1], smooth=False), atol=1e-5
    )
    with pytest.raises(RunError, match="knows no session"):
        stepper.use("t15.2020.01.01")
    assert stepper.session == SESSIONS[-1]


def prepared_steps(stepper, x_TC, rng):
    """As `steps`; before each step some of its first bins are known, once or several times, or
    wrong ones, or none.
    """
    size, logits = stepper.patch_size, []
    for first in range(0, len(x_TC) - size + 1, stepper.patch_stride):
        for n_known in rng.integers(0, size, size=rng.integers(0, 4)):
            stepper.prepare(x_TC[first : first + n_known] + (rng.random() < 0.2))
        logits.append(stepper.step(x_TC[first : first + size]))
    return np.stack(logits)


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("precision", ["fp32", "bf16", "int8"])
def test_logits_have_the_same_bits_whatever_was_prepared(name, precision):
    stepper, rng = (
        TorchStepper(make_model(CONFIGS[name]), precision=precision),
        np.random.default_rng(0),
    )
    x_TC = trial(200)
    expected_PV = steps(stepper, x_TC)
    for _ in range(3):
        stepper.start()
        assert prepared_steps(stepper, x_TC, rng).tobytes() == expected_PV.tobytes()


def test_what_was_prepared_for_another_day_or_utterance_is_not_used():
    model, x_TC = make_model(CONFIGS["gru"]), trial()
    stepper, fresh = TorchStepper(model, SESSIONS[0]), TorchStepper(model, SESSIONS[1])
    stepper.step(x_TC[:14])
    stepper.prepare(x_TC[4:17])
    stepper.use(SESSIONS[1])
    stepper.start()
    first_V = fresh.step(x_TC[4:18])
    assert stepper.step(x_TC[4:18]).tobytes() == first_V.tobytes()
    stepper.prepare(x_TC[8:21])
    stepper.use(SESSIONS[0])
    fresh.use(SESSIONS[0])
    assert stepper.step(x_TC[8:22]).tobytes() == fresh.step(x_TC[8:22]).tobytes()
    stepper.prepare(x_TC[12:25])
    stepper.start()
    stepper.use(SESSIONS[1])
    assert stepper.step(x_TC[4:18]).tobytes() == first_V.tobytes()


class Plain(nn.Module):
    """A model of somebody's own, without day layers.

    `strict`: one that refuses what is not a number.
    """

    strict = False

    def __init__(self, config):
        super().__init__()
        self.config, self.gru = config, nn.GRU(14 * N_FEATURES, 16, 2, batch_first=True)
        self.out, self.n_runs = nn.Linear(16, len(RELEASE)), 0

    def n_patches(self, n_bins):
        return (n_bins - 14) // 4 + 1

    def forward(self, x_BTC, day_B, state_LBD=None, *, n_patches_B=None):
        self.n_runs += 1
        assert not self.strict or torch.isfinite(x_BTC).all()
        x_BPI = x_BTC.unfold(1, 14, 4).transpose(2, 3).flatten(2)
        state_LBD = torch.zeros(2, 1, 16) if state_LBD is None else state_LBD
        hidden_BPD, state_LBD = self.gru(x_BPI, state_LBD)
        return self.out(hidden_BPD), state_LBD


@pytest.mark.parametrize("strict", [False, True])
def test_a_model_of_ones_own_is_prepared_or_else_left_alone(strict):
    model = make_model(CONFIGS["gru"])
    torch.manual_seed(0)
    model.network = Plain(model.network.config)
    model.network.strict = strict
    stepper = TorchStepper(model)
    expected_PV = steps(stepper, trial(200))
    stepper.start()
    prepared_PV = prepared_steps(stepper, trial(200), np.random.default_rng(0))
    assert prepared_PV.tobytes() == expected_PV.tobytes()
    np.testing.assert_allclose(
        expected_PV, model.logits(trial(200), "latest", smooth=False), atol=1e-5
    )


def own_stepper(network_of):
    """A stepper of somebody's own network, and that network as it steps."""
    model = make_model(CONFIGS["gru"])
    torch.manual_seed(0)
    model.network = network_of(model.network.config)
    stepper = TorchStepper(model)
    return stepper, stepper._network


def test_a_network_that_is_not_the_same_after_a_run_is_never_given_what_is_not_a_number():
    class Averaging(Plain):
        """It takes off what bins have been on average until now, which is no state of its."""

        def __init__(self, config):
            super().__init__(config)
            self.register_buffer("mean_C", torch.zeros(N_FEATURES))

        def forward(self, x_BTC, day_B, state_LBD=None, *, n_patches_B=None):
            self.mean_C.lerp_(x_BTC.mean((0, 1)), 0.1)
            return super().forward(x_BTC - self.mean_C, day_B, state_LBD)

    stepper, network = own_stepper(Averaging)
    stepper.prepare(trial()[:10])
    assert torch.isfinite(network.mean_C).all()
    assert np.isfinite(stepper.step(trial()[:14])).all()


def test_a_network_that_fails_as_a_step_is_prepared_steps_all_the_same():
    class Choosy(Plain):
        def forward(self, x_BTC, day_B, state_LBD=None, *, n_patches_B=None):
            assert int(torch.isfinite(x_BTC).all(-1).sum()) != 10
            return super().forward(x_BTC, day_B, state_LBD)

    stepper, _ = own_stepper(Choosy)
    expected_V = own_stepper(Plain)[0].step(trial()[:14])
    stepper.prepare(trial()[:10])
    np.testing.assert_array_equal(stepper.step(trial()[:14]), expected_V)


def test_a_network_whose_gru_is_its_smaller_part_is_not_run_four_times_a_step():
    class Attentive(Plain):
        def __init__(self, config):
            super().__init__(config)
            self.attention = nn.MultiheadAttention(256, 4)

    for network_of, n_runs in ((Plain, 1), (Attentive, 0)):
        stepper, network = own_stepper(network_of)
        before = network.n_runs
        stepper.prepare(trial()[:10])
        assert network.n_runs - before == n_runs


def test_a_model_without_a_gru_is_not_run_for_nothing():
    class Counting(Plain):
        def forward(self, x_BTC, day_B, state=None, *, n_patches_B=None):
            self.n_runs += 1
            return self.out(x_BTC[:, :1, :1].expand(1, 1, 16)), torch.zeros(1)

    model = make_model(CONFIGS["gru"])
    model.network = Counting(model.network.config)
    del model.network.gru
    stepper = TorchStepper(model)
    before = stepper._network.n_runs
    stepper.prepare(trial()[:10])
    assert stepper._network.n_runs == before


@pytest.mark.slow
def test_a_step_that_was_prepared_takes_much_less_time():
    torch.manual_seed(0)
    config = GRUConfig(n_units=256, n_layers=2)
    network = build_model(config, n_features=512, n_days=1, n_classes=len(RELEASE))
    model = AcousticModel(
        network, sessions=SESSIONS[:1], n_features=512, inventory=RELEASE, smoothing=Smoothing()
    )
    stepper, seconds = TorchStepper(model), {False: [], True: []}
    x_SC = np.random.default_rng(0).normal(size=(14, 512)).astype(np.float32)
    for turn in range(200):
        is_prepared = bool(turn % 2)
        x_SC[0] += 1
        if is_prepared:
            stepper.prepare(x_SC[:13])
        began_s = time.perf_counter()
        stepper.step(x_SC)
        seconds[is_prepared].append(time.perf_counter() - began_s)
    assert np.median(seconds[True]) < 0.6 * np.median(seconds[False])


def test_the_latest_session_is_the_models_last_and_unknown_ones_are_refused():
    model = make_model(CONFIGS["gru"])
    assert TorchStepper(model, "latest").session == SESSIONS[-1]
    with pytest.raises(RunError, match=r"did you mean 't15\.2023\.08\.18'"):
        TorchStepper(model, "t15.2023.08.14")


def test_a_patch_of_another_shape_is_refused_and_changes_nothing():
    stepper = TorchStepper(make_model(CONFIGS["gru"]))
    expected_PV = steps(stepper, trial())
    stepper.start()
    for shape in ((13, N_FEATURES), (14, N_FEATURES + 1), (14 * N_FEATURES,)):
        stepper.prepare(trial(seed=1)[:13])
        with pytest.raises(DataError, match="patch of shape"):
            stepper.step(np.zeros(shape, np.float32))
    np.testing.assert_array_equal(steps(stepper, trial()), expected_PV)


def test_bins_that_nobody_may_write_to_are_read_without_a_word(recwarn):
    stepper, patch_SC = TorchStepper(make_model(CONFIGS["gru"])), trial()[:14]
    expected_V = stepper.step(patch_SC)
    stepper.start()
    received_SC = np.frombuffer(patch_SC.tobytes(), np.float32).reshape(patch_SC.shape)
    np.testing.assert_array_equal(stepper.step(received_SC), expected_V)
    assert not recwarn.list


def test_an_unknown_backend_is_refused(tmp_path):
    with pytest.raises(RunError, match="unknown backend 'tensorflow'; use torch or onnx"):
        open_stepper(tmp_path, backend="tensorflow")


class SpinningStep:
    """A step whose products take 4 ms of processor time, or 1 ms in the fast way."""

    def __init__(self, fast_by_hints):
        self.native = self
        self.fast_by_hints = fast_by_hints
        self.numbers = []

    def set_prefetch(self, by_hints):
        self.by_hints = by_hints

    def read_all(self, number):
        self.numbers.append(number)
        end_s = time.thread_time() + (1e-3 if self.by_hints == self.fast_by_hints else 4e-3)
        while time.thread_time() < end_s:
            pass


@pytest.mark.parametrize("fast_by_hints", [True, False])
def test_weights_are_fetched_in_the_way_that_takes_less_time(fast_by_hints):
    step = SpinningStep(fast_by_hints)
    choose_prefetch([step])
    assert step.by_hints is fast_by_hints
    # A sum that is kept from the step before would take no time.
    assert all(a != b for a, b in itertools.pairwise(step.numbers))
