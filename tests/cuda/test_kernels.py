"""What the core asks `cortext_cuda` for, and where it asks: only for tensors on a GPU."""

import inspect
from types import SimpleNamespace

import pytest
import torch

from cortext.cuda import Kernels
from cortext.cuda import kernels as what_the_core_gets
from cortext.models import inputs, layers, transformer
from cortext.models.gru import GRU, GRUConfig
from cortext.models.transformer import Transformer, TransformerConfig
from cortext.training import loss
from cortext_cuda import kernels

CONFIGS = {
    "gru": (GRU, GRUConfig(n_units=8, n_layers=1, patch_size=4, patch_stride=4)),
    "transformer": (Transformer, TransformerConfig(n_units=8, n_layers=1, n_heads=1, head_units=8)),
}
HIDDEN = torch.arange(48.0).reshape(2, 3, 8) / 48


class SaidToBeOnGPU(torch.Tensor):
    """A tensor of the processor that says that it lies on a GPU."""

    device = property(lambda self: torch.device("cuda"))  # type: ignore[assignment]


def test_the_package_has_the_functions_that_the_core_asks_for():
    wanted = {
        name: value.__func__ for name, value in vars(Kernels).items() if name in kernels.__all__
    }
    assert what_the_core_gets() is kernels
    assert sorted(wanted) == sorted(kernels.__all__)
    assert {name for name in vars(Kernels) if not name.startswith("_")} == set(wanted)
    for name, function in wanted.items():
        own = inspect.signature(getattr(kernels, name)).parameters
        assert list(own) == list(inspect.signature(function).parameters), name


@pytest.fixture
def ask(monkeypatch):
    """Let the core get functions with these results; return the list of names that it asks for."""

    def ask(**results):
        asked: list[str] = []

        def function(name):
            return lambda *given: (asked.append(name), results.get(name))[1]

        names = ("softsign", "transformer", "gru", "ctc_loss")
        found = SimpleNamespace(**{name: function(name) for name in names})
        for module in (inputs, layers, transformer, loss):
            monkeypatch.setattr(module, "kernels", lambda: found)
        return asked

    return ask


def built(name):
    network, config = CONFIGS[name]
    torch.manual_seed(0)
    return network(config, n_features=4, n_days=1, n_classes=3).train()


def logits(network, x_BTC):
    n_patches_B, day_B = torch.tensor([3, 3]), torch.zeros(2, dtype=torch.int64)
    return network(x_BTC, day_B, n_patches_B=n_patches_B)[0]


def losses(logits_BPV):
    n_B = torch.ones(2, dtype=torch.int64)
    return loss.ctc_loss(logits_BPV, 3 * n_B, n_B[:, None], n_B)


def test_a_gru_takes_what_it_is_given_on_a_gpu(ask):
    asked = ask(gru=(HIDDEN, torch.zeros(1, 2, 8)), softsign=torch.zeros(2, 12, 4))
    network = built("gru")
    found = logits(network, torch.ones(2, 12, 4).as_subclass(SaidToBeOnGPU))
    assert asked == ["softsign"]  # whose zeros lie on the processor
    asked = ask(gru=(HIDDEN, torch.zeros(1, 2, 8)))
    found = logits(network, torch.ones(2, 12, 4).as_subclass(SaidToBeOnGPU))
    assert asked == ["softsign", "gru"]
    assert torch.equal(found, network.out(HIDDEN))


def test_a_gru_runs_itself_where_it_is_given_nothing(ask):
    asked, network = ask(), built("gru")
    assert logits(network, torch.ones(2, 12, 4).as_subclass(SaidToBeOnGPU)).isfinite().all()
    assert asked == ["softsign", "gru"]


def test_a_transformer_takes_what_it_is_given_on_a_gpu(ask):
    asked, network = ask(transformer=(HIDDEN, None)), built("transformer")
    found = logits(network, torch.ones(2, 12, 4).as_subclass(SaidToBeOnGPU))
    assert asked == ["transformer"]
    assert torch.equal(found, network.out(HIDDEN))


def test_the_loss_is_what_it_is_given_on_a_gpu_or_torchs_own(ask):
    logits_BPV = torch.zeros(2, 3, 4)
    ask(ctc_loss=torch.tensor([1.0, 2.0]))
    assert losses(logits_BPV.as_subclass(SaidToBeOnGPU)).tolist() == [1.0, 2.0]
    ask()
    # Six of the 4^3 paths are the label: 1 to 3 ones in a row, the others blank.
    expected = torch.tensor(64 / 6).log()
    torch.testing.assert_close(
        losses(logits_BPV.as_subclass(SaidToBeOnGPU)).as_subclass(torch.Tensor), expected.expand(2)
    )


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("training", [True, False])
def test_nothing_is_asked_on_a_processor(ask, name, training):
    asked = ask()
    losses(logits(built(name).train(training), torch.ones(2, 12, 4)))
    assert asked == []
