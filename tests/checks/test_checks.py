"""Checks of what is shipped and documented, and of one's own classes before a training."""

import json
import re
import time
from pathlib import Path

import pytest
import torch
from right_plugin import RIGHT

from cortext.cli import run
from cortext.errors import ConfigError
from cortext.features.augment import AUGMENTATIONS
from cortext.features.augmentations import ChannelDropoutConfig, TimeMaskConfig
from cortext.models import GRU, MODELS, AcousticModel, build_model
from cortext.models.card import Smoothing
from cortext.plugins import load_plugin
from cortext.text.inventory import RELEASE
from cortext.training import read_train_config, train
from cortext.training.loss import LOSSES
from cortext_checks import check_model, check_plugin, examine_first
from cortext_checks.augmentation import check_augmentation
from cortext_checks.loss import check_loss
from cortext_checks.made_up import SMALL

ROOT = Path(__file__).resolve().parents[2]
FILE = re.compile(r"^```(?:python|yaml)\n(# (\S+)\n.*?)^```\n", re.MULTILINE | re.DOTALL)
PLUGIN_PAGES = (
    "own-models.md",
    "own-losses.md",
    "own-augmentations.md",
    "auxiliary-heads.md",
    "own-tasks.md",
)
"""Guides with one plug-in each."""
STRONG = {
    "time_mask": TimeMaskConfig(n_masks=5, max_share=0.5),
    "channel_dropout": ChannelDropoutConfig(probability=0.5, features_per_electrode=2),
}


def shipped(registry):
    return [kind for kind, cls in registry.items() if cls.__module__.startswith("cortext.")]


@pytest.mark.slow
def test_the_graph_of_a_model_with_extras_passes(tmp_path, registries):
    pytest.importorskip("onnxruntime")
    (tmp_path / "mine.py").write_text(RIGHT)
    load_plugin(tmp_path / "mine.py")
    report = check_model("mine")
    assert {check.status for check in report.checks} == {"PASS"}, report


@pytest.mark.parametrize("kind", shipped(LOSSES))
def test_every_shipped_loss_passes(kind):
    model = getattr(LOSSES[kind], "models", ("gru",))[0]
    checks = check_loss(LOSSES[kind].Config(), SMALL[model])
    assert {check.status for check in checks} == {"PASS"}, checks


@pytest.mark.parametrize("kind", shipped(AUGMENTATIONS))
def test_every_shipped_augmentation_passes(kind):
    checks = check_augmentation(STRONG.get(kind, AUGMENTATIONS[kind].Config()))
    assert "FAIL" not in {check.status for check in checks}, checks
    assert "another seed, another result" in checks[2].found


def test_the_plugins_of_the_guide_pass_with_the_settings_of_the_guide(tmp_path, registries):
    for page in PLUGIN_PAGES:
        for content, name in FILE.findall((ROOT / "docs/guides" / page).read_text()):
            (tmp_path / name).write_text(content)
    plugins = sorted(path for path in tmp_path.glob("*.py"))
    assert len(plugins) == len(PLUGIN_PAGES)
    for path in plugins:
        with_settings = path.with_suffix(".yaml")
        report = check_plugin(path, with_settings if with_settings.is_file() else None, onnx=False)
        assert report.passed, report
        assert "PASS" in {check.status for check in report.checks}


def test_a_class_that_nothing_registers_has_a_line(tmp_path, registries):
    path = tmp_path / "mine.py"
    path.write_text(RIGHT.replace('@register_augmentation("my_noise")\n', ""))
    report = check_plugin(path, onnx=False)
    assert report.passed
    assert "not checked  class MyNoise: all: because nothing registers it; write @register_loss(...)" in str(report)  # fmt: skip


def test_the_command_prints_a_line_for_each_check_and_fails_where_one_does(
    tmp_path, registries, capsys
):
    path = tmp_path / "mine.py"
    path.write_text(RIGHT)
    assert run(["check-plugin", str(path), "--no-onnx"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 26
    assert lines[1] == "PASS         model mine: shapes: logits float32 [3, 15, 41], frames [15, 9, 4], extras early"  # fmt: skip
    other = tmp_path / "other.py"
    other.write_text(
        RIGHT.replace('"mi', '"other_mi')
        .replace('"my_', '"other_my_')
        .replace("return x_BTC + noise_BTC", "return x_BTC[:1]")
    )
    assert run(["check-plugin", str(other), "--no-onnx", "--json"]) == 2
    printed = capsys.readouterr()
    assert printed.err == f"cortext: {other}: 1 of 26 checks failed; mend the lines with FAIL, first the first\n"  # fmt: skip
    failed = [check for check in json.loads(printed.out)["checks"] if check["status"] == "FAIL"]
    assert [(check["subject"], check["name"]) for check in failed] == [
        ("augmentation other_my_noise", "shape")
    ]


@pytest.fixture
def own_config(config, tmp_path, registries):
    """A short training of the right plug-in."""
    (tmp_path / "mine.py").write_text(RIGHT)
    load_plugin(tmp_path / "mine.py")
    config.model = MODELS["mine"].Config()
    config.loss = None
    config.dataset.augmentations = [AUGMENTATIONS["my_noise"].Config()]
    config.num_training_batches = config.batches_per_val_step = 4
    return config


def lines_of(folder):
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    timed = ("trials_per_s", "val_seconds", "seconds", "time")
    return [{key: value for key, value in line.items() if key not in timed} for line in lines]


def test_a_training_has_the_same_bits_with_and_without_the_checks(own_config, packed, tmp_path):
    torch.manual_seed(5)
    before = torch.get_rng_state()
    for name, check in (("with", True), ("without", False)):
        train(own_config, packed, tmp_path / name, check=check, progress=False)
    assert torch.equal(torch.get_rng_state(), before)
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("with", "without")]
    assert weights[0] == weights[1]
    assert lines_of(tmp_path / "with") == lines_of(tmp_path / "without")


def wrong(text, *changes):
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return text


AVERAGE = ("        return {", "        ctc_B = ctc_B.mean()\n        return {")
LATER = [
    # (change, the line of the first batch that meets it, where the checks do not)
    (("        output = network", "        if fraction > 0:\n            ctc_B = 1 / 0\n        output = network"),
     r"mine\.py:\d+: MyLoss.__call__ raises ZeroDivisionError: division by zero"),
    (("        noise_BTC = ", "        assert len(x_BTC) == 3, 'three'\n        noise_BTC = "),
     r"mine\.py:\d+: MyNoise.__call__ raises AssertionError: three"),
    (("def __init__(self, config, *, n_features,", "def __init__(self, config, *, n_inputs,"),
     r"mine\.py:\d+: Recurrent.__init__: TypeError: .*; write def __init__.self, config, [*], n_features, n_days"),
]  # fmt: skip


def train_with(text, config, packed, tmp_path, **settings):
    """Train two batches of a plug-in's text."""
    path = tmp_path / "mine.py"
    path.write_text(text)
    load_plugin(path)
    config.model = MODELS["mine"].Config()
    config.dataset.augmentations = [AUGMENTATIONS["my_noise"].Config()]
    return train(config, packed, tmp_path / "run", progress=False, **settings)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (AVERAGE, r"mine: gradients: .*mine\.py:\d+: MyLoss.__call__: the loss gives .* of shape \[\] for 3 trials"),
        (("self.gru(x_BPI, state)", "self.gru(x_BPI.flip(1), state)"), r"mine: padding: .*Recurrent.forward: a batch gives"),
        (("return x_BTC + noise_BTC", "return x_BTC.add_(noise_BTC)"), r"augmentation my_noise: input: .*MyNoise.__call__: the batch"),
    ],
    ids=["loss", "model", "augmentation"],
)  # fmt: skip
def test_a_mistake_stops_the_training_before_it_begins(
    short, packed, tmp_path, registries, change, expected
):
    with pytest.raises(ConfigError, match=expected + ".* or train with --no-check"):
        train_with(wrong(RIGHT, change), short, packed, tmp_path)
    assert not (tmp_path / "run" / "config.yaml").exists()


@pytest.mark.parametrize(("change", "expected"), LATER, ids=["loss", "augmentation", "model"])
def test_what_fails_in_a_batch_names_the_plugins_line_and_function(
    short, packed, tmp_path, registries, change, expected
):
    with pytest.raises(ConfigError, match=expected) as caught:
        train_with(wrong(RIGHT, change), short, packed, tmp_path, check=False)
    assert caught.value.__cause__ is not None  # with the whole traceback, for who debugs


def test_what_only_the_loss_finds_wrong_names_the_model(short, packed, tmp_path, registries):
    """Logits with a frame too few, whose lengths the shipped CTC refuses."""
    text = wrong(RIGHT, ("Output(logits_BPV,", "Output(logits_BPV[:, 1:],"))
    text = wrong(text, (', {"early": self.early(x_BPI)})', ")")).replace(
        "default_loss", "other_loss"
    )
    with pytest.raises(ConfigError, match=r"mine\.py: Recurrent: n_patches has \d+; 0 to \d+ are"):
        train_with(text, short, packed, tmp_path, check=False)


def test_an_exception_of_a_plugins_task_is_one_line_of_the_command(
    packed, tmp_path, registries, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    for content, name in FILE.findall((ROOT / "docs/guides/own-tasks.md").read_text()):
        if name.startswith("acoustic"):
            (tmp_path / name).write_text(content)
    files = ["--config", "acoustic.yaml", "--data", str(packed), "--plugin", "acoustic.py"]
    assert run(["train", *files, "--out", "run"]) == 2
    note, line = capsys.readouterr().err.splitlines()
    assert note.startswith("note: labels of ")  # those of the fixture are made up
    said = r"acoustic\.py:\d+: SquaredError.__init__ raises FileNotFoundError: .*targets\.npz"
    assert re.search(said, line), line


def test_an_unused_parameter_is_a_warning(short, packed, tmp_path, registries, caplog):
    text = wrong(RIGHT, ("self.early = ", "self.spare = nn.Linear(3, 3)\n        self.early = "))
    train_with(text, short, packed, tmp_path)
    assert "no gradient reaches spare.weight, spare.bias" in caplog.text


def test_layers_in_a_list_are_a_warning(short, packed, tmp_path, registries, caplog):
    text = wrong(RIGHT, ("self.early = ", "self.more = [nn.Linear(3, 3)]\n        self.early = "))
    train_with(text, short, packed, tmp_path)
    assert "layers in more are no part of the model" in caplog.text


def full_size(recipe):
    """The model of a recipe with the published sizes, of a class that passes for a user's own."""
    config = read_train_config(recipe)
    sizes = {"n_features": 512, "n_classes": len(RELEASE)}
    network = build_model(config.model, n_days=45, **sizes)
    sessions = [f"day-{i}" for i in range(45)]
    model = AcousticModel(
        network, sessions=sessions, n_features=512, inventory=RELEASE, smoothing=Smoothing()
    )
    return config, model


@pytest.mark.slow
def test_the_checks_take_at_most_three_seconds_at_the_published_size():
    config, model = full_size("gru")
    assert examine_first(config, model) == []  # what is shipped is not checked
    network = model.network
    network.__class__ = type("Own", (GRU,), {"__module__": "mine"})
    weights = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    start_s = time.process_time()
    found = examine_first(config, model)
    assert time.process_time() - start_s < 3
    assert [check.name for check in found] == [
        "shapes",
        "repeats",
        "padding",
        "gradients",
        "unused parameters",
        "tensors",
    ]
    assert {check.status for check in found} == {"PASS"}
    assert all(torch.equal(tensor, weights[name]) for name, tensor in network.state_dict().items())
    assert all(parameter.grad is None for parameter in network.parameters())
