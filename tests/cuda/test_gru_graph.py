"""A GRU whose layers run side by side, and its CUDA graph."""

import pytest
import torch
from torch import nn

from cortext_cuda import gru_graph
from cortext_cuda.gru_graph import PIECE, graphed, layers_side_by_side

N_PATCHES = 2 * PIECE + 5


def cell(gates_BG, own_BG, state_BD, b_ih, b_hh):
    """Restates torch's fused kernel, which only CUDA has (Cho et al., EMNLP 2014)."""
    inputs = [x.detach().requires_grad_() for x in (gates_BG, own_BG, state_BD)]
    with torch.enable_grad():
        reset, update, new = (inputs[0] + b_ih).chunk(3, 1)
        own_reset, own_update, own_new = (inputs[1] + b_hh).chunk(3, 1)
        update = (update + own_update).sigmoid()
        new = (new + (reset + own_reset).sigmoid() * own_new).tanh()
        state_BD = new + update * (inputs[2] - new)
    return state_BD.detach(), (state_BD, inputs)


def cell_backward(d_BD, work, has_bias):
    assert not has_bias
    return *torch.autograd.grad(work[0], work[1], d_BD), None, None


@pytest.fixture
def on_cpu(monkeypatch):
    monkeypatch.setattr(torch.ops.aten, "_thnn_fused_gru_cell", cell)
    monkeypatch.setattr(torch.ops.aten, "_thnn_fused_gru_cell_backward", cell_backward)
    monkeypatch.setattr(gru_graph, "DTYPE", torch.float32)


def weights_of(module):
    names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
    return [
        [getattr(module, f"{name}_l{layer}") for name in names]
        for layer in range(module.num_layers)
    ]


def made_up(n_layers=3, device="cpu"):
    torch.manual_seed(0)
    module = nn.GRU(12, 16, n_layers, batch_first=True).to(device)
    x_BPI = torch.randn(4, N_PATCHES, 12, device=device, requires_grad=True)
    state_LBD = torch.randn(n_layers, 4, 16, device=device, requires_grad=True)
    return module, x_BPI, state_LBD


def with_gradients(run, module, x_BPI, state_LBD):
    """Hidden units, and the gradients of all inputs for a sum with made-up weights."""
    hidden_BPD = run(x_BPI, state_LBD)[0].float()
    scale = torch.linspace(-1, 1, hidden_BPD.numel(), device=hidden_BPD.device)
    inputs = [x_BPI, state_LBD, *module.parameters()]
    return hidden_BPD, *torch.autograd.grad((hidden_BPD.flatten() * scale).sum(), inputs)


def assert_near(found, expected, bound):
    for a, b in zip(found, expected, strict=True):
        assert (a - b).abs().max() <= bound * b.abs().max()


@pytest.mark.usefixtures("on_cpu")
def test_layers_side_by_side_give_the_output_and_gradients_of_torch():
    module, x_BPI, state_LBD = made_up()
    found = with_gradients(
        lambda x, state: layers_side_by_side(x, state, weights_of(module), 0.0),
        *(module, x_BPI, state_LBD),
    )
    assert_near(found, with_gradients(module, module, x_BPI, state_LBD), 1e-5)
    last_LBD = layers_side_by_side(x_BPI, state_LBD, weights_of(module), 0.0)[1]
    torch.testing.assert_close(last_LBD, module(x_BPI, state_LBD)[1])


@pytest.mark.usefixtures("on_cpu")
def test_layers_side_by_side_drop_between_layers_only():
    module, x_BPI, state_LBD = made_up(n_layers=1)
    kept = layers_side_by_side(x_BPI, state_LBD, weights_of(module), 0.5)[0]
    torch.testing.assert_close(kept, module(x_BPI, state_LBD)[0])
    module, x_BPI, state_LBD = made_up(n_layers=2)
    draws = [layers_side_by_side(x_BPI, state_LBD, weights_of(module), 0.5)[0] for _ in range(2)]
    assert not torch.equal(*draws)


@pytest.mark.usefixtures("on_cpu")
def test_within_a_larger_graph_none_of_its_own_is_recorded(monkeypatch):
    """However often a shape comes, and where no graph would be left."""
    monkeypatch.setattr(gru_graph, "MOST_GRAPHS", 0)
    module, x_BPI, state_LBD = made_up()
    with gru_graph.in_larger_graph():
        for _ in range(3):
            hidden_BPD, _ = graphed(module, x_BPI, state_LBD, weights_of(module), 0.0)
            torch.testing.assert_close(hidden_BPD, module(x_BPI, state_LBD)[0])


@pytest.mark.usefixtures("on_cpu")
def test_a_shape_runs_once_without_a_graph_and_not_again_where_none_is_left(monkeypatch):
    monkeypatch.setattr(gru_graph, "MOST_GRAPHS", 0)
    module, x_BPI, state_LBD = made_up()
    for n_patches in (N_PATCHES, 3):
        arguments = module, x_BPI[:, :n_patches], state_LBD, weights_of(module), 0.0
        hidden_BPD, _ = graphed(*arguments)
        torch.testing.assert_close(hidden_BPD, module(x_BPI[:, :n_patches], state_LBD)[0])
        assert graphed(*arguments) is None


@pytest.mark.gpu
def test_a_graph_gives_the_output_and_gradients_of_torch():
    """In float32, weights and all; the first run is no graph, the second records it."""
    module, x_BPI, state_LBD = made_up(device="cuda")
    expected = with_gradients(module, module, x_BPI, state_LBD)
    with torch.autocast("cuda", torch.bfloat16):
        for _ in range(4):
            found = with_gradients(
                lambda x, state: graphed(module, x, state, weights_of(module), 0.0),
                *(module, x_BPI, state_LBD),
            )
            assert_near(found, expected, 0.02)
            with torch.no_grad():  # the graph reads the weights anew
                for parameter in module.parameters():
                    parameter.mul_(0.9)
            with torch.autocast("cuda", enabled=False):
                expected = with_gradients(module, module, x_BPI, state_LBD)


@pytest.mark.gpu
def test_a_graph_draws_dropout_from_the_seed_of_the_step():
    module, x_BPI, state_LBD = made_up(device="cuda")
    draws = []
    for seed in (1, 1, 1, 2):
        torch.manual_seed(seed)
        with torch.autocast("cuda", torch.bfloat16):
            hidden_BPD, _ = graphed(module, x_BPI, state_LBD, weights_of(module), 0.4)
        hidden_BPD.sum().backward()
        draws.append(hidden_BPD.detach())
    assert torch.equal(draws[1], draws[2])
    assert not torch.equal(draws[2], draws[3])


@pytest.mark.gpu
def test_a_second_forward_pass_leaves_the_first_one_its_memory():
    module, x_BPI, state_LBD = made_up(device="cuda")

    def run(x):
        with torch.autocast("cuda", torch.bfloat16):
            return graphed(module, x, state_LBD, weights_of(module), 0.0)[0].float().square().sum()

    for _ in range(2):
        run(x_BPI).backward()
    (alone,) = torch.autograd.grad(run(x_BPI), x_BPI)
    first = run(x_BPI)
    run(x_BPI * 2)
    (found,) = torch.autograd.grad(first, x_BPI)
    assert_near([found], [alone], 0.01)
