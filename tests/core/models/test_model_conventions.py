"""Models carry the tokens, the language and the length of a bin that they were trained on."""

import json

import pytest
import torch

from cortext.data.conventions import RELEASE_CONVENTIONS, Conventions
from cortext.errors import ConfigError, RunError
from cortext.models import AcousticModel, GRUConfig, build_model, load_model, save_model
from cortext.models.card import Smoothing
from cortext.text.inventory import HANDWRITING, RELEASE, Inventory
from cortext.text.language import LANGUAGES, Language
from cortext_live.steps.stepping import TorchStepper

SYMBOLS = ("_", "ka", "ki", "ku")
SYLLABLES = Inventory("syllables", SYMBOLS, "_", None, None, "phoneme", (("back", ("ka", "ku")),))
PLATT = Language("platt", "a-z äöü", "beside")
OWN = Conventions(SYLLABLES, PLATT, 12.5, "z-scored by day")
CARD_KEYS = [
    "kind",
    "sessions",
    "n_features",
    "feature_subset",
    "patch",
    "smoothing",
    "inventory",
    "config",
    "backend",
    "format_version",
]
"""Keys of the model.json of a model like the release's."""


def acoustic(conventions=RELEASE_CONVENTIONS, patch_size=14, **more):
    torch.manual_seed(0)
    config = GRUConfig(n_units=4, n_layers=1, patch_size=patch_size)
    network = build_model(
        config, n_features=2, n_days=1, n_classes=len(more.get("inventory", conventions.inventory))
    )
    return AcousticModel(
        network,
        sessions=("d",),
        n_features=2,
        smoothing=Smoothing(),
        conventions=conventions,
        **more,
    )


def test_a_model_like_the_releases_writes_no_other_keys(tmp_path):
    save_model(acoustic(), tmp_path)
    card = json.loads((tmp_path / "model.json").read_text())
    assert list(card) == CARD_KEYS
    assert list(card["inventory"]) == ["name", "symbols"]
    assert load_model(tmp_path).conventions == RELEASE_CONVENTIONS


def test_tokens_language_and_bins_come_back_with_the_model(tmp_path):
    save_model(acoustic(OWN), tmp_path)
    card = json.loads((tmp_path / "model.json").read_text())
    assert card["inventory"] == {
        "name": "syllables",
        "symbols": list(SYMBOLS),
        "roles": {"blank": "_"},
        "groups": {"back": ["ka", "ku"]},
    }
    assert (card["language"]["letters"], card["bin_ms"]) == ("a-z äöü", 12.5)
    loaded = load_model(tmp_path)
    assert loaded.conventions == OWN
    assert (loaded.inventory, loaded.language, loaded.bin_ms) == (SYLLABLES, PLATT, 12.5)
    assert (tmp_path / "model.json").read_bytes() == loaded.card().to_json()


def test_a_model_of_raw_features_says_so(tmp_path):
    raw = Conventions(features="raw")
    save_model(acoustic(raw), tmp_path)
    assert json.loads((tmp_path / "model.json").read_text())["features"] == "raw"
    assert load_model(tmp_path).conventions == raw
    assert raw.difference(RELEASE_CONVENTIONS) == "the features are raw, not z-scored"
    assert raw.facts() == {"recorded features": "raw"}


def test_a_frame_lasts_as_long_as_the_bins_between_two_patches():
    own = Conventions(HANDWRITING, LANGUAGES["es"], 10)
    assert acoustic().frame_ms == 80  # 4 bins of 20 ms
    assert acoustic(own).frame_ms == 40
    assert acoustic(OWN).frame_ms == 50
    assert acoustic(own, patch_size=0).frame_ms == 10  # patch_size 0: every bin is a frame
    assert repr(acoustic().frame_ms) == "80"


def test_a_stepper_has_the_conventions_of_its_model():
    stepper = TorchStepper(acoustic(OWN))
    assert stepper.conventions == OWN
    assert (stepper.inventory, stepper.language) == (SYLLABLES, PLATT)
    assert (stepper.bin_ms, stepper.frame_ms) == (12.5, 50)


def test_a_network_without_a_config_is_no_acoustic_model():
    with pytest.raises(ConfigError, match="the network has no config with its patches; see build"):
        AcousticModel(torch.nn.Linear(2, 3), sessions=("d",), n_features=2, smoothing=Smoothing())


def test_outputs_that_are_no_tokens_stay_as_they_are(tmp_path):
    values = Inventory("values", ("height", "width"))
    model = acoustic(OWN, inventory=values, task="regression")
    save_model(model, tmp_path)
    loaded = load_model(tmp_path, task="regression")
    assert loaded.inventory == values
    assert (loaded.language, loaded.bin_ms) == (PLATT, 12.5)
    assert "roles" not in json.loads((tmp_path / "model.json").read_text())["inventory"]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"bin_ms": 4}, "bin_ms is 4.*; 5 to 50 ms are possible"),
        ({"bin_ms": "ten"}, "bin_ms is 'ten'"),
        ({"features": "block"}, "features is 'block'; use 'z-scored' or 'raw'"),
        ({"bin_ms": float("nan")}, "bin_ms"),
        ({"language": "xx"}, "unknown language 'xx'"),
        ({"language": {"name": "es", "letters": "a"}}, "'es' is built in"),
        ({"language": 3}, "language is 3"),
        ({"normalised": "z" * 501}, "normalised is 'zzz.* at most 500 characters is needed"),
        ({"inventory": {"name": "x", "symbols": ["BLANK", "a"]}}, "'x': the silence 'SIL' is none"),
        ({"inventory": {"name": "x", "symbols": ["a"] * 2}}, "one of them twice"),
        (
            {"inventory": {"name": "x", "symbols": list(map(str, range(251))), "roles": {}}},
            "'x': it has 251 tokens; 2 to 250 are possible",
        ),
        (
            {"inventory": {"name": "x", "symbols": ["a", "_"], "roles": {"blank": "_"}}},
            "the blank '_' is token 1",
        ),
        (
            {"inventory": {"name": "x", "symbols": ["_", "a"], "roles": {"blnak": "_"}}},
            "unknown role 'blnak'",
        ),
        ({"inventory": {"name": "release", "symbols": list(RELEASE.symbols), "x": 1}}, "key 'x'"),
    ],
)
def test_conventions_that_cannot_be_are_refused_in_one_line(tmp_path, change, found):
    save_model(acoustic(), tmp_path)
    path = tmp_path / "model.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(RunError, match=found) as error:
        load_model(tmp_path)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)
