"""Steps on padded batches in fixed memory, and which of them are replayed as CUDA graphs.

A graph needs a GPU. The step that it records runs on a CPU, too.
"""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from cortext.models import TransformerConfig
from cortext.models.gru import GRU, GRUConfig
from cortext.training import Trainer
from cortext.training.batches import TrainBatch
from cortext.training.distributed import Processes
from cortext.training.loss import CTC, CTCConfig
from cortext.training.torch_backend import StepRates
from cortext_cuda import cuda_graphs, packing
from cortext_cuda.cuda_graphs import Graphs
from cortext_cuda.graphed_step import (
    GraphedSteps,
    StaticBatch,
    padded_bins,
    why_not,
)
from cortext_cuda.step_graphs import StepGraphs

CPU = torch.device("cpu")
STILL = ["model.rnn_dropout=0", "model.input_network.input_layer_dropout=0"]


def overlapping(n_bins):
    """Patches of 14 bins, every 4."""
    return (n_bins - 14) // 4 + 1


def test_a_batch_is_padded_to_the_most_bins_of_its_patches():
    # 900 bins have 222 patches. 224 end at bin 223 * 4 + 14 = 906; three more bins make no patch.
    assert padded_bins(900, overlapping) == 909
    assert padded_bins(909, overlapping) == 909
    assert padded_bins(910, overlapping) == 909 + 16 * 4
    # Patches side by side, the last one filled with zeros: 900 bins have 225, 240 have 960 bins.
    assert padded_bins(900, lambda n_bins: -(-n_bins // 4)) == 960
    assert padded_bins(3, overlapping) == 15 * 4 + 14 + 3  # no patch at all


def batch_of(n_bins, labels, days, first=1.0):
    n_trials = len(labels)
    x_BTC = torch.arange(first, first + n_trials * n_bins * 2).reshape(n_trials, n_bins, 2)
    longest = max(map(len, labels))
    return TrainBatch(
        x_BTC,
        torch.tensor(days),
        torch.full((n_trials,), n_bins),
        torch.full((n_trials,), n_bins),
        torch.tensor([own + [0] * (longest - len(own)) for own in labels]),
        torch.tensor([len(own) for own in labels]),
        np.arange(n_trials),
        torch.unique(torch.tensor(days)),
    )


def memory(n_bins=32):
    return StaticBatch(
        CPU, n_trials=3, n_bins=n_bins, n_features=2, n_labels=9, n_days=4, n_patches=lambda n: n
    )


def test_a_batch_fills_its_memory_and_nothing_of_the_one_before_is_left():
    still = memory()
    still.fill(batch_of(30, [[7] * 9, [8] * 9, [9] * 9], [0, 1, 2]))
    batch = batch_of(20, [[1, 2], [3], [4]], [5, 1, 5], first=100.0)
    found = still.fill(batch)
    assert torch.equal(found.x_BTC[:, :20], batch.x_BTC)
    assert found.x_BTC.shape == (3, 32, 2)
    assert not found.x_BTC[:, 20:].any()
    assert found.labels_BU.tolist() == [[1, 2, *[0] * 14], [3, *[0] * 15], [4, *[0] * 15]]
    assert found.n_labels_B.tolist() == [2, 1, 1]
    assert found.n_patches_B.tolist() == found.n_bins_B.tolist() == [20, 20, 20]
    assert found.day_B.tolist() == [5, 1, 5]
    assert found.days.tolist() == [1, 5, 5, 5]


def test_batches_of_one_bucket_lie_in_the_same_memory_and_a_longer_one_takes_more():
    still = memory()
    first, second = (still.fill(batch_of(n_bins, [[1]] * 3, [0, 1, 2])) for n_bins in (20, 25))
    for name in ("x_BTC", "day_B", "labels_BU", "n_labels_B", "n_patches_B", "days"):
        assert getattr(first, name).data_ptr() == getattr(second, name).data_ptr()
    longer = batch_of(40, [[1]] * 3, [0, 1, 2])
    assert torch.equal(still.fill(longer).x_BTC[:, :40], longer.x_BTC)


@pytest.mark.parametrize("kind", ["gru", "transformer"])
def test_padded_steps_and_forward_passes_give_what_others_give(kind, config, packed, tmp_path):
    """Without dropout: it is drawn for the padding, too."""
    overrides = [*STILL, "dataset.days_per_batch=3", "precision=fp32", "epsilon=0.01"]
    if kind == "transformer":
        blocks = {"n_units": 16, "n_layers": 1, "n_heads": 2, "head_units": 8, "dropout": 0.0}
        config = replace(config, model=TransformerConfig(**blocks, train_context_frames=[9, 9]))
        overrides = ["model.input_network.input_layer_dropout=0", *overrides[2:]]
    results = []
    for padded in (False, True):
        out = tmp_path / str(padded)
        with Trainer(config, packed, out, overrides=overrides, progress=False) as trainer:
            if padded:
                trainer.backend.graphs = StepGraphs(trainer.backend)
            trainer.run(4)  # with a validation
            results.append((trainer.model.network.state_dict(), trainer.state.last))
    (weights, values), (found, found_values) = results
    for name, tensor in weights.items():
        torch.testing.assert_close(found[name], tensor, atol=2e-5, rtol=1e-4, msg=name)
    assert found_values["val_loss"] == pytest.approx(values["val_loss"], rel=1e-4)
    assert found_values["val_per"] == values["val_per"]


def test_batches_of_other_numbers_of_rows_are_packed_and_captured_apart():
    seen, keys, still = [], [], memory()

    class Keys(Graphs):
        def run(self, key, function):
            keys.append(key)
            return super().run(key, function)

    def take(batch, rates):
        seen.append(packing._n_rows)
        return {"loss": torch.zeros(3)}, torch.zeros(())

    steps = GraphedSteps(take, still, lambda: None, Keys(CPU, "steps"), packs=True)
    for n_patches in (20, 20, 170, 171):
        batch = batch_of(20, [[1]] * 3, [0, 1, 2])
        steps(replace(batch, n_patches_B=torch.full((3,), n_patches)), StepRates(0.1, 0.1, 0.0))
    # 3 x 170 = 510 rows fit into 512; 3 x 171 = 513 do not.
    assert seen == [512, 512, 512, 1024]
    assert keys[0] == keys[1] == keys[2] != keys[3]


class Recorded(Graphs):
    """Graphs that write down what would be captured and replayed; `change` spoils a replay."""

    def __init__(self, change=lambda result: result, held=list):
        super().__init__(torch.device("cuda"), "steps", held=held)
        self.device, self.change = CPU, change
        self.captured, self.replayed = [], []

    def _may_capture(self):
        self.device = torch.device("cuda")
        may = super()._may_capture()
        self.device = CPU
        return may

    def _captured(self, function):
        result = torch.zeros(1)

        def replay():
            result.copy_(self.change(function()))
            self.replayed.append(result.item())

        self.captured.append(function().item())
        return SimpleNamespace(replay=replay), result


def test_a_key_is_captured_when_it_comes_again_and_forgotten_when_memory_moves(monkeypatch):
    monkeypatch.setattr(cuda_graphs, "MOST_GRAPHS", 2)
    graphs = Recorded()
    for key in (1, 1, 2, 1, 2, 2, 3, 3, 3):
        graphs.forget_unless("here")
        assert graphs.run(key, lambda key=key: torch.tensor([float(key)])) == key
    assert graphs.captured == [1, 2]  # 3 would be one too many
    assert graphs.replayed == [1, 1, 2, 2]
    graphs.forget_unless("there")
    for _ in range(2):
        graphs.run(1, lambda: torch.tensor([9.0]))
    assert graphs.captured == [1, 2, 9]
    assert graphs.replayed[-1] == 9


def test_what_cannot_be_captured_any_more_is_said_once(capsys):
    graphs, reasons = Recorded(), []
    graphs.why_not = lambda: reasons[0] if reasons else None
    for key in (1, 1, 2, 2):
        if key == 2:
            reasons.append("the model has hooks")
        assert graphs.run(key, lambda key=key: torch.tensor([float(key)])) == key
    assert graphs.captured == [1]
    assert graphs.failed
    line = "note: steps are not replayed as CUDA graphs: the model has hooks"
    assert capsys.readouterr().err.splitlines() == [line]


@pytest.mark.parametrize("wrong", [0.0, 0.5, math.inf])
def test_a_graph_that_gives_other_results_than_the_call_is_not_taken(wrong, capsys):
    """Each call adds a random number to what is held, once, whatever the proof has called."""
    held = torch.zeros(1)
    graphs = Recorded(lambda result: result + wrong, lambda: [held])

    def step():
        held.add_(torch.rand(1))
        return held * 2

    graphs._captured = lambda function: (  # a capture runs nothing
        SimpleNamespace(replay=lambda: kept.copy_(graphs.change(function()))),
        kept,
    )
    kept, total = torch.zeros(1), 0.0
    for number in range(4):
        torch.manual_seed(number)
        total += torch.rand(1).item()
        torch.manual_seed(number)
        found = graphs.run("step", step)
        assert held.item() == pytest.approx(total, rel=1e-6)
        assert found.item() == pytest.approx(2 * total, rel=1e-6)
    assert graphs.failed == (wrong != 0)
    assert capsys.readouterr().err.count("gave other results") == graphs.failed


def test_where_memory_is_too_small_for_a_proof_nothing_is_replayed(capsys):
    def no_memory():
        raise torch.OutOfMemoryError("no memory")

    graphs = Recorded(held=lambda: [SimpleNamespace(detach=no_memory)])
    for _ in range(3):
        assert graphs.run("step", lambda: torch.ones(1)) == 1
    assert graphs.replayed == []
    assert capsys.readouterr().err.count("memory is too small") == 1


def test_losses_that_are_not_finite_agree_where_both_are_not():
    inf, nan = math.inf, math.nan
    agree = cuda_graphs._agree
    assert agree(torch.tensor([1.0, inf]), torch.tensor([1.001, inf]))
    assert agree(torch.tensor(nan), torch.tensor(nan))
    assert not agree(torch.tensor([1.0, 2.0]), torch.tensor([1.0, inf]))
    assert not agree(torch.tensor([1.0, 2.0]), torch.tensor([1.0, 2.05]))
    assert not agree(torch.tensor([1.0, nan]), torch.tensor([1.0, 2.0]))


def test_a_callback_that_freezes_or_moves_weights_or_changes_dropout_makes_new_graphs(
    short, packed, tmp_path
):
    with Trainer(short, packed, tmp_path / "run", progress=False) as trainer:
        network, facts = trainer.model.network, StepGraphs(trainer.backend)._facts
        trainer.run(1)
        found = [facts(), facts()]
        assert found[0] == found[1]
        network.out.weight.requires_grad_(False)
        found[1:] = [facts()]
        network.out.bias.data = network.out.bias.data.clone()
        found.append(facts())
        network.config.input_network.input_layer_dropout = 0.1
        found.append(facts())
        network.gru.dropout = 0.1
        found.append(facts())
        network.out.register_forward_pre_hook(lambda *_: None)
        found.append(facts())
        assert len(set(found)) == 6


def job(**changes):
    model = GRU(GRUConfig(n_units=4, n_layers=2), n_features=2, n_days=1, n_classes=4)
    settings = {
        "config": SimpleNamespace(gradient_accumulation_steps=1),
        "model": SimpleNamespace(network=model),
        "loss": CTC(CTCConfig()),
        "processes": Processes(),
    }
    return SimpleNamespace(**settings | changes)


class Own(nn.Linear):
    """A model of a user's own."""


class OwnLoss(CTC):
    """A loss of a user's own."""


def test_what_cannot_be_replayed_says_why():
    assert why_not(job(), bf16=True) is None
    hooked = job()
    hooked.model.network.out.register_forward_hook(lambda *_: None)
    for unfit, reason in (
        (job(processes=Processes(0, 2)), "several processes"),
        (job(config=SimpleNamespace(gradient_accumulation_steps=4)), "accumulation_steps is 4"),
        (job(model=SimpleNamespace(network=Own(2, 2))), "the model is of your own"),
        (job(loss=OwnLoss(CTCConfig())), "the loss is OwnLoss"),
        (hooked, "hooks"),
    ):
        assert reason in why_not(unfit, bf16=True)
    assert "in float32 cuDNN draws the dropout" in why_not(job(), bf16=False)


def graphed_run(config, packed, out, pieces, **changes):
    """Train on the GPU in pieces; return the losses, and how many graphs the last piece has."""
    config = replace(config, **changes)
    for number, end in enumerate(pieces):
        with Trainer(
            config, packed, out, device="cuda", progress=False, resume=number > 0
        ) as trainer:
            trainer.run(end)
            steps = trainer.backend.graphs.steps
            graphs = steps and steps.graphs
    found = [line for line in (out / "metrics.jsonl").read_text().splitlines() if "train" in line]
    return found, graphs


@pytest.mark.gpu
def test_replayed_steps_give_the_losses_of_others_and_a_resumed_run_is_the_same(
    config, packed, tmp_path, monkeypatch
):
    """With dropout: it is drawn from the seed of the step, replayed or not."""
    pieces = {"whole": (None,), "resumed": (7, None), "never": (None,)}
    losses = {}
    for name, ends in pieces.items():
        if name == "never":
            monkeypatch.setattr(cuda_graphs, "MOST_GRAPHS", 0)
        found, graphs = graphed_run(
            config, packed, tmp_path / name, ends, precision="bf16", batches_per_train_log=1
        )
        losses[name] = [float(line.split('"train_loss": ')[1].split(",")[0]) for line in found]
        assert any(graphs._graphs.values()) == (name != "never")
        assert not graphs.failed
    for name in ("resumed", "never"):
        assert losses[name] == pytest.approx(losses["whole"], rel=1e-3)


@pytest.mark.gpu
def test_a_capture_that_fails_is_said_once_and_steps_continue(capsys):
    device = torch.device("cuda")
    graphs, x = Graphs(device, "steps"), torch.ones(100, device=device)

    def waits():
        return nn.functional.dropout(x, 0.5) * x.sum().item()

    found = []
    for _ in range(4):
        torch.manual_seed(0)
        found.append(graphs.run("a", waits).tolist())
    assert found[0] == found[1] == found[2] == found[3]
    assert capsys.readouterr().err.count("steps are not replayed as CUDA graphs") == 1


def test_a_run_on_a_cpu_has_no_graphs(short, packed, tmp_path):
    with Trainer(short, packed, tmp_path / "run", progress=False) as trainer:
        assert trainer.backend.graphs is None
