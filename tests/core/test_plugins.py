"""A user's own file: loaded once, its mistakes named in one line, its registrations known."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

import pytest

from cortext.cli import run
from cortext.errors import ConfigError, RunError
from cortext.features.augment import AUGMENTATIONS
from cortext.models import AcousticModel, GRUConfig, build_model, load_model, save_model
from cortext.models.card import Smoothing
from cortext.plugins import blaming, is_of_cortext, load_plugin, load_plugins
from cortext.registry import Registry
from cortext.text.inventory import RELEASE


def write(folder: Path, text: str, name: str = "mine.py") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(text)
    return folder / name


def test_a_file_is_run_once_however_it_is_named(tmp_path, monkeypatch):
    path = write(tmp_path, "from pathlib import Path\nwith Path(__file__).with_suffix('.log').open('a') as log:\n"
                 "    log.write('run ')\nvalue = 3\n")  # fmt: skip
    monkeypatch.chdir(tmp_path)
    module = load_plugin(path)
    load_plugins(["mine.py", path, "./mine.py"])
    assert (tmp_path / "mine.log").read_text() == "run "
    assert module.value == 3
    assert sys.modules[module.__name__] is module


def test_files_of_one_name_in_two_folders_are_two_modules(tmp_path):
    paths = [write(tmp_path / folder, f"value = {folder!r}\n") for folder in ("a", "b")]
    assert [load_plugin(path).value for path in paths] == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "import nothing_of_the_kind\n",
            r"mine\.py:1: ModuleNotFoundError: No module named 'nothing_of_the_kind'",
        ),
        ("x = 1\n\ndef f(:\n", r"mine\.py:3: SyntaxError: invalid syntax"),
        ("def f():\n    return 1 / 0\n\nf()\n", r"mine\.py:2: ZeroDivisionError: division by zero"),
        ("import sys\nsys.exit('bye')\n", r"mine\.py:2: SystemExit: bye"),
        (
            "from cortext.models import register\n\n@register('x')\nclass X:\n    pass\n",
            r"mine\.py:3: model X has no Config; give it a dataclass",
        ),
        ("raise ValueError('two\\nlines')\n", r"mine\.py:1: ValueError: two lines"),
    ],
)
def test_what_is_wrong_in_a_file_is_one_line_with_its_place(tmp_path, text, message):
    path = write(tmp_path, text)
    for _ in range(2):  # a file that failed is run again, for it may have been mended
        with pytest.raises(ConfigError, match=message) as error:
            load_plugin(path)
        assert "\n" not in str(error.value)
    path.write_text("value = 1\n")
    assert load_plugin(path).value == 1


def test_what_is_no_file_is_refused(tmp_path):
    for path in (tmp_path / "absent.py", tmp_path):
        with pytest.raises(
            ConfigError, match="there is no such file; give a Python file with --plugin"
        ):
            load_plugin(path)


def test_a_file_that_is_no_text_is_refused(tmp_path):
    path = tmp_path / "mine.py"
    path.write_bytes(b"\x00\xff\xfe")
    with pytest.raises(ConfigError, match=r"mine\.py"):
        load_plugin(path)


@pytest.mark.parametrize(
    ("module", "ours"),
    [
        ("cortext.models.gru", True),
        ("cortext_speechllm.network", True),
        ("cortext_tune", True),
        ("cortexts.models", False),
        ("mine", False),
    ],
)
def test_modules_of_all_our_packages_are_distinguished_from_others(module, ours):
    assert is_of_cortext(module) == ours


def test_a_plugin_is_none_of_our_modules(tmp_path):
    (tmp_path / "mine.py").write_text("")
    assert not is_of_cortext(load_plugin(tmp_path / "mine.py").__name__)


def test_two_files_that_claim_one_name_are_both_named(tmp_path):
    text = """
from dataclasses import dataclass
from typing import Literal
from cortext.features import register_augmentation

@dataclass
class Settings:
    kind: Literal["claimed"] = "claimed"

@register_augmentation("claimed")
class Claim:
    Config = Settings
"""
    load_plugin(write(tmp_path, text, "first.py"))
    message = (
        r"second\.py:10: two augmentations are called 'claimed': \S*first\S*\.Claim and"
        r" \S*second\S*\.Claim; give"
    )
    try:
        with pytest.raises(ConfigError, match=message):
            load_plugin(write(tmp_path, text, "second.py"))
    finally:
        del AUGMENTATIONS["claimed"]


@dataclass
class NoKind:
    size: int = 1


@dataclass
class OtherKind:
    kind: Literal["b"] = "b"


@dataclass
class Fitting:
    kind: Literal["a"] = "a"
    size: int = 1


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (None, "thing .*Thing has no Config; give it a dataclass"),
        (NoKind, "the Config of thing .*Thing has no field 'kind'; add it"),
        (OtherKind, """another kind than 'a'; write kind: Literal."a". = "a\""""),
    ],
)
def test_a_class_without_fitting_settings_cannot_be_registered(config, message):
    class Thing:
        Config: ClassVar = config

    with pytest.raises(ConfigError, match=message):
        Registry("thing").register("a")(Thing)


def test_a_registry_may_ask_for_more_settings():
    class Thing:
        Config = Fitting

    Registry("thing", fields=("size",)).register("a")(Thing)
    with pytest.raises(ConfigError, match="has no field 'width'"):
        Registry("thing", fields=("width",)).register("a")(Thing)


def test_the_same_class_may_be_defined_again():
    """As when a notebook's cell is run twice."""
    things = Registry("thing")

    def define(number: int) -> type:
        @things.register("a")
        class Thing:
            Config = Fitting
            value = number

        return Thing

    define(1)
    assert define(2) is things["a"]


def test_settings_come_from_a_mapping_a_dataclass_or_a_default_kind():
    things = Registry("thing")

    @things.register("a")
    class Thing:
        Config = Fitting

    assert things.config({"kind": "a", "size": 3}, "thing") == Fitting(size=3)
    assert things.config({}, "thing", default="a") == Fitting()
    assert things.config(Fitting(size=4), "thing") == Fitting(size=4)
    with pytest.raises(ConfigError, match=r"unknown thing \['a'\]; known: a; or give the file"):
        things.config({"kind": ["a"]}, "thing")


@pytest.mark.parametrize("command", ["train", "evaluate", "decode", "export", "replay", "serve"])
def test_commands_load_it_before_anything_else(tmp_path, capsys, command):
    path = write(tmp_path, "value = 1 / 0\n")
    there = str(tmp_path)
    out = ["--out", str(tmp_path / "out")]
    arguments = {
        "train": ["--config", "tiny", *out],
        "evaluate": [there, *out],
        "decode": [there, "--lm", there, *out],
        "export": [there, "--format", "onnx", *out],
        "replay": ["--profile", "lm", "--run", there],
        "serve": [there, "--lm", there],
    }[command]
    status = run([command, *arguments, "--data", there, "--plugin", str(path)])
    assert status == 2
    assert capsys.readouterr().err.splitlines() == [
        f"cortext: {path}:1: ZeroDivisionError: division by zero"
    ]
    assert not (tmp_path / "out").exists()


def test_saved_logits_need_no_plugin(tmp_path, capsys):
    arguments = [
        "decode",
        "--logits",
        "a.npz",
        "--order",
        "release",
        "--lm",
        "lm",
        "--out",
        "a.csv",
    ]
    assert run([*arguments, "--plugin", "mine.py"]) == 2
    assert "--plugin does not go with --logits" in capsys.readouterr().err


def test_a_run_whose_model_is_not_known_asks_for_the_file(tmp_path):
    network = build_model(GRUConfig(n_units=4, n_layers=1), n_features=2, n_days=1, n_classes=41)
    model = AcousticModel(
        network, sessions=["a"], n_features=2, inventory=RELEASE, smoothing=Smoothing()
    )
    save_model(model, tmp_path)
    card = json.loads((tmp_path / "model.json").read_text())
    card["config"]["kind"] = card["kind"] = "gru_of_ours"
    (tmp_path / "model.json").write_text(json.dumps(card))
    with pytest.raises(
        RunError, match=r"model\.json: unknown model 'gru_of_ours'; .*give the file.*with --plugin"
    ):
        load_model(tmp_path)


class Elsewhere:
    """A class of a file that has no frame in what follows."""

    __module__ = "elsewhere"


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (RuntimeError("sizes\ndiffer"), "elsewhere: Elsewhere: gives values that cannot be used: RuntimeError: sizes"),
        (ConfigError("3 frames", fix="give 4"), "elsewhere: Elsewhere: 3 frames; give 4"),
        (ConfigError("3 frames", where="a.yaml"), "a.yaml: 3 frames"),
    ],
)  # fmt: skip
def test_an_error_under_an_own_class_names_it(error, expected):
    with pytest.raises(ConfigError) as caught, blaming(Elsewhere(), GRUConfig):
        raise error
    assert str(caught.value).startswith(expected)


def test_an_error_under_shipped_classes_stays_what_it_is():
    with pytest.raises(ZeroDivisionError), blaming(GRUConfig):
        raise ZeroDivisionError
