"""The GRU kernel for CUDA, run on a CPU thread by thread, and compiled where NVRTC is installed."""

import ctypes
import re
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
from torch import nn

from cortext_cuda import gru_kernel, nvrtc, recurrence_paths
from cortext_cuda.gru_kernel import in_one_kernel

SOURCE = Path(gru_kernel.__file__).with_suffix(".cu")
FEW = {"forward": 2, "backward": 3}
"""Tiles in registers; the rest is in shared memory."""
NAMES = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")


@pytest.fixture(scope="module")
def emulated(tmp_path_factory):
    """Return a function that makes `gru_kernel` run on a CPU, for a number of units."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    folder = tmp_path_factory.mktemp("kernel")

    def use(monkeypatch, n_units, kept, groups=2):
        monkeypatch.setattr(gru_kernel, "KEPT", kept)
        built = folder / f"{n_units}.so"
        if not built.exists():
            subprocess.run(
                [
                    *(
                        compiler,
                        "-std=c++20",
                        "-O2",
                        "-w",
                        "-U_FORTIFY_SOURCE",
                        "-shared",
                        "-fPIC",
                        "-o",
                        built,
                    ),
                    *(f'-DKERNEL="{SOURCE}"', *gru_kernel.options(n_units)),
                    Path(__file__).with_name("gru_kernel_on_cpu.cpp"),
                ],
                check=True,
            )
        library = ctypes.CDLL(str(built))
        found = [on_cpu(getattr(library, f"run_{name}")) for name in ("forward", "backward")]
        monkeypatch.setattr(gru_kernel, "passes", lambda *_: gru_kernel.Passes(*found, groups))

    return use


def on_cpu(run):
    """Return a function that is called as a `Kernel` is."""
    run.restype = ctypes.c_bool

    def start(grid, block, arguments, shared_bytes, cooperative):
        assert (block, cooperative) == (256, True)
        assert run(grid, shared_bytes, *map(nvrtc._argument, arguments)), "beyond shared memory"

    return start


def made_up(n_units, n_layers, n_trials, n_patches, device="cpu"):
    torch.manual_seed(0)
    module = nn.GRU(12, n_units, n_layers, batch_first=True).to(device)
    x_BPI = torch.randn(n_trials, n_patches, 12, device=device, requires_grad=True)
    state_LBD = torch.randn(n_layers, n_trials, n_units, device=device, requires_grad=True)
    return module, x_BPI, state_LBD


def weights_of(module):
    return [
        [getattr(module, f"{name}_l{layer}") for name in NAMES]
        for layer in range(module.num_layers)
    ]


def sums(hidden, last):
    """A number that depends on all outputs, each with a weight of its own."""
    torch.manual_seed(1)
    values = torch.cat((hidden.flatten().double(), last.flatten().double()))
    return (values * torch.randn(len(values)).to(values.device)).sum()


def assert_near(found, expected, bound=2e-3):
    for a, b in zip(found, expected, strict=True):
        assert (a.double() - b).norm() <= bound * b.norm()


def run(module, x_BPI, state_LBD, p=0.0):
    """Run trials of the same length."""
    n_trials, n_patches, _ = x_BPI.shape
    starts_B = torch.arange(0, n_trials * n_patches + 1, n_patches).int().to(x_BPI.device)
    hidden_ND, state_LBD = in_one_kernel(
        x_BPI.flatten(0, 1), starts_B, n_patches, state_LBD, weights_of(module), p
    )
    return hidden_ND.view(n_trials, n_patches, -1), state_LBD


def assert_equals_torch(module, x_BPI, state_LBD, bound=2e-3):
    """Outputs and gradients are near those of torch's GRU in float64."""
    found = run(module, x_BPI, state_LBD)
    found += torch.autograd.grad(sums(*found), [x_BPI, state_LBD, *module.parameters()])
    module = module.double()
    x_BPI, state_LBD = (x.detach().double().requires_grad_() for x in (x_BPI, state_LBD))
    with torch.backends.cudnn.flags(enabled=False):
        expected = module(x_BPI, state_LBD)
        inputs = [x_BPI, state_LBD, *module.parameters()]
        expected += torch.autograd.grad(sums(*expected), inputs)
    assert_near(found, expected, bound)


# With weights of all kinds: all in registers, in both memories; the published size as it is used.
@pytest.mark.parametrize(
    ("n_units", "kept", "n_trials", "n_patches"), [(256, FEW, 9, 6), (768, gru_kernel.KEPT, 1, 2)]
)
def test_the_kernel_gives_the_output_and_gradients_of_torch(
    emulated, monkeypatch, n_units, kept, n_trials, n_patches
):
    emulated(monkeypatch, n_units, kept)
    assert_equals_torch(*made_up(n_units, 1, n_trials, n_patches))


def test_trials_of_different_lengths_lie_one_after_the_other(emulated, monkeypatch):
    """Each gives what torch gives for it alone; one has no frame at all."""
    emulated(monkeypatch, 256, FEW, groups=1)  # two launches
    module, _, _ = made_up(256, 1, 1, 1)
    lengths = [3, 1, 0, 4, 2, 4, 1, 2, 1]
    x_NI = torch.randn(sum(lengths), 12, requires_grad=True)
    first_BD = torch.randn(len(lengths), 256, requires_grad=True)
    starts_B = torch.tensor([0, *lengths]).cumsum(0).int()
    found = in_one_kernel(x_NI, starts_B, 5, first_BD[None], weights_of(module), 0.0)
    found += torch.autograd.grad(sums(*found), [x_NI, first_BD, *module.parameters()])
    module = module.double()
    first, whole = (x.detach().double().requires_grad_() for x in (first_BD, x_NI))
    hidden, last = [], []
    for trial, rows in enumerate(torch.split(whole, lengths)):
        h_PD, h_LD = rows.new_zeros(0, 256), first[trial : trial + 1]
        if len(rows):
            h_PD, h_LD = module(rows, h_LD)
        hidden.append(h_PD)
        last.append(h_LD)
    expected = (torch.cat(hidden), torch.cat(last))
    expected += torch.autograd.grad(sums(*expected), [whole, first, *module.parameters()])
    assert_near(found, expected)


def test_the_check_passes_a_kernel_that_is_right(emulated, monkeypatch):
    emulated(monkeypatch, 256, FEW, groups=1)
    assert gru_kernel.check_kernel(torch.device("cpu"), 256, 2) is None


@pytest.mark.parametrize(
    ("n_forward", "n_backward", "answer"),
    [
        (0, 4, "hidden units differ from torch's by nan"),
        (2, 4, "hidden units differ from run to run"),  # both launches of the first run
        (4, 0, "gradients of the input differ from torch's by 1"),
    ],
)
def test_the_check_finds_a_kernel_that_is_wrong(
    emulated, monkeypatch, n_forward, n_backward, answer
):
    """After so many launches kernels leave their output as it is."""
    emulated(monkeypatch, 256, FEW, groups=1)
    right = gru_kernel.passes()

    def some(one, left):
        def start(*arguments, cooperative):
            nonlocal left
            left -= 1
            if left >= 0:
                one(*arguments, cooperative=cooperative)

        return start

    found = gru_kernel.Passes(some(right.forward, n_forward), some(right.backward, n_backward), 1)
    monkeypatch.setattr(gru_kernel, "passes", lambda *_: found)
    monkeypatch.setattr(torch, "empty_like", torch.zeros_like)
    assert gru_kernel.check_kernel(torch.device("cpu"), 256, 1) == answer


def test_layers_drop_between_them_only(emulated, monkeypatch):
    emulated(monkeypatch, 256, FEW)
    module, x_BPI, state_LBD = made_up(256, 2, 1, 1)
    both = [run(module, x_BPI, state_LBD, p)[0] for p in (0.0, 0.5)]
    assert not torch.equal(*both)
    module, x_BPI, state_LBD = made_up(256, 1, 1, 1)
    one = [run(module, x_BPI, state_LBD, p)[0] for p in (0.0, 0.5)]
    assert torch.equal(*one)


@pytest.mark.parametrize("n_units", gru_kernel.UNITS)
def test_the_kernel_keeps_its_weights_in_registers(n_units):
    """Compiled for compute capability 9 as on a card; spilled registers would be read each frame."""
    try:
        _, said = nvrtc.compile_source(
            SOURCE.read_text(),
            "sm_90",
            (*gru_kernel.options(n_units), "--ptxas-options=-v"),
        )
    except nvrtc.KernelError as error:
        if "not installed" not in str(error):
            raise
        pytest.skip(str(error))
    assert re.findall(r"(\d+) bytes spill", said) == ["0"] * 4
    used = [int(number) for number in re.findall(r"Used (\d+) registers", said)]
    assert len(used) == 2
    # 65,536 registers of a multiprocessor, 232,448 bytes that a block may have of its memory.
    assert max(used) * 32 * gru_kernel.WARPS <= 65536
    assert max(gru_kernel.shared_bytes(n_units, name) for name in gru_kernel.KEPT) <= 232448


def test_a_path_and_its_reason(monkeypatch, caplog):
    card = torch.device("cuda", 0)
    assert recurrence_paths.path_of(torch.device("cpu"), 768)[0] == recurrence_paths.CPU
    assert recurrence_paths.path_of(card, 700) == (
        recurrence_paths.GRAPH,
        "one kernel takes 256, 512 or 768 units, not 700",
    )
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (8, 9))
    assert recurrence_paths.path_of(card, 768) == (
        recurrence_paths.GRAPH,
        "one kernel needs compute capability 9.0, this card has 8.9",
    )
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(recurrence_paths, "why_not", lambda *_: None)
    for groups, path in ((8, recurrence_paths.KERNEL), (3, recurrence_paths.GRAPH)):
        found = gru_kernel.Passes(None, None, groups)
        monkeypatch.setattr(gru_kernel, "passes", lambda *_, found=found: found)
        assert recurrence_paths.path_of(card, 768)[0] == path
    asked = []

    def differs(*check):
        asked.append(check)
        return "hidden units differ from torch's by 0.5"

    monkeypatch.setattr(recurrence_paths, "why_not", differs)
    monkeypatch.setattr(gru_kernel, "passes", lambda *_: gru_kernel.Passes(None, None, 8))
    assert recurrence_paths.path_of(card, 768) == (
        recurrence_paths.GRAPH,
        "one kernel: hidden units differ from torch's by 0.5",
    )
    assert asked == [("cortext_cuda.gru_kernel:check_kernel", card, 768)]

    def fails(*_):
        raise nvrtc.KernelError("nvrtc: error: invalid value for --gpu-architecture\nand more")

    monkeypatch.setattr(gru_kernel, "passes", fails)
    recurrence_paths.path_taken.cache_clear()
    for _ in range(2):
        assert recurrence_paths.path_taken(card, 768) == recurrence_paths.GRAPH
    recurrence_paths.path_taken.cache_clear()
    assert [record.getMessage() for record in caplog.records] == [
        "the GRU is trained with a CUDA graph: nvrtc: error: invalid value for --gpu-architecture"
    ]


@pytest.mark.gpu
@pytest.mark.parametrize("n_units", gru_kernel.UNITS)
def test_the_kernel_on_a_card_gives_the_output_and_gradients_of_torch(n_units):
    path, why = recurrence_paths.path_of(torch.device("cuda", 0), n_units)
    if path != recurrence_paths.KERNEL:
        pytest.skip(why)
    assert_equals_torch(*made_up(n_units, 2, 70, 40, "cuda"), bound=5e-3)


@pytest.mark.gpu
def test_a_graph_records_the_kernel():
    path, why = recurrence_paths.path_of(torch.device("cuda", 0), 256)
    if path != recurrence_paths.KERNEL:
        pytest.skip(why)
    module, x_BPI, state_LBD = made_up(256, 2, 8, 20, "cuda")
    module.requires_grad_(False)

    def step():
        hidden_BPD, _ = run(module, x_BPI, state_LBD)
        return hidden_BPD, *torch.autograd.grad(hidden_BPD.float().square().sum(), x_BPI)

    expected = step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = step()
    graph.replay()
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
