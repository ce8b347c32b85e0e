from importlib.metadata import EntryPoint

import pytest

from cortext.cli import run as cli
from cortext.entry_points import joined
from cortext.errors import ConfigError, MissingLibrary, RunError
from cortext.models import GRU
from cortext.training import DeviceSpec, Trainer
from cortext.training.backend import backend_class
from cortext.training.torch_backend import TorchBackend


@pytest.mark.parametrize(
    ("spec", "name"),
    [
        (DeviceSpec(), "torch"),
        (DeviceSpec("cuda:1"), "torch"),
        (DeviceSpec("tpu"), "torchax"),
        (DeviceSpec(backend="tensorflow"), "tensorflow"),
        (DeviceSpec("tpu", backend="tensorflow"), "tensorflow"),
    ],
)
def test_the_device_says_which_backend(spec, name):
    assert spec.backend_name == name


def test_engines_are_imported_when_they_are_asked_for():
    assert backend_class("torch") is TorchBackend
    assert {entry.name for entry in joined("cortext.backends")} == {"torchax", "tensorflow"}


@pytest.mark.parametrize("options", [{"backend": "jax"}, {"tpu_engine": "torch_xla"}])
def test_unknown_backends_are_refused(options):
    (name,) = options.values()
    with pytest.raises(ConfigError, match=f"unknown .* {name!r}; use torch"):
        DeviceSpec(**options)


def test_an_engine_that_is_gone_says_what_to_use():
    with pytest.raises(ConfigError, match=r"torch_tpu is gone.*; use --tpu-engine torchax"):
        DeviceSpec("tpu", tpu_engine="torch_tpu")


def test_a_tpu_is_named_only_where_one_is_used():
    with pytest.raises(
        ConfigError, match="--tpu is 'my-tpu', and --device is 'cpu'; give --device tpu, too"
    ):
        DeviceSpec(tpu="my-tpu")
    for spec in (
        DeviceSpec("tpu", tpu="my-tpu"),
        DeviceSpec(backend="tensorflow", tpu="my-tpu"),
        DeviceSpec("cpu", tpu=""),
    ):
        assert spec.tpu is not None


def joining(monkeypatch, value: str) -> None:
    """Let every backend that a package joins be this one."""
    monkeypatch.setattr(
        "cortext.training.backend.load", lambda group, name: EntryPoint(name, value, group).load()
    )


def test_an_engine_whose_libraries_are_absent_says_what_brings_them(
    config, packed, tmp_path, monkeypatch
):
    joining(monkeypatch, "library_that_nobody_has.engine:Engine")
    with pytest.raises(
        MissingLibrary,
        match=r"library_that_nobody_has is not installed; in a checkout of cortext: pip install '\.\[tpu\]'",
    ):
        Trainer(config, packed, tmp_path / "run", device="tpu", progress=False)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("module", ["cortext.training.nothing", "cortext_tpu.nothing"])
def test_a_module_of_ours_that_is_absent_is_not_taken_for_a_library(module, monkeypatch):
    joining(monkeypatch, f"{module}:Engine")
    with pytest.raises(ModuleNotFoundError, match=f"No module named '{module}'"):
        backend_class("torchax")


def test_one_process_where_two_are_required_is_refused(config, packed, tmp_path):
    with pytest.raises(
        RunError,
        match=r"--require-cores: training would use 1 of 2 cores; start a process for each",
    ):
        Trainer(
            config, packed, tmp_path / "run", device=DeviceSpec(require_cores=2), progress=False
        )
    assert not (tmp_path / "run").exists()  # nothing was read, packed or written before


def test_the_network_has_its_place_before_trials_take_half_of_what_is_free(
    config, packed, tmp_path, monkeypatch
):
    events, move = [], GRU.to
    monkeypatch.setattr(
        GRU, "to", lambda *arguments: (events.append("network"), move(*arguments))[1]
    )
    monkeypatch.setattr(
        "cortext.training.torch_backend.resident_trials", lambda *_: events.append("trials")
    )
    with Trainer(config, packed, tmp_path / "run", progress=False):
        assert events == ["network", "trials"]


def test_the_command_line_says_the_same(packed, tmp_path, capsys):
    arguments = ["train", "--config", "tiny", "--data", str(packed), "--out", str(tmp_path / "run")]
    assert cli([*arguments, "--require-cores", "2"]) == 2
    assert "training would use 1 of 2 cores" in capsys.readouterr().err
    assert cli([*arguments, "--xla-dump", str(tmp_path / "dump")]) == 2
    assert (
        "--xla-dump is given, and XLA compiles nothing with --device cpu" in capsys.readouterr().err
    )
    assert cli([*arguments, "--backend", "theano"]) == 2
    assert "unknown backend 'theano'; use torch or tensorflow" in capsys.readouterr().err
    assert cli([*arguments, "--device", "tpu", "--tpu-engine", "torch_tpu"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("use --tpu-engine torchax, or leave the option out")
    assert not (tmp_path / "run").exists()
