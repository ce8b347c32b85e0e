import json
import re

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from small_models import make_model

from cortext.errors import ConfigError, DataError, RunError
from cortext.features import smooth
from cortext.models import (
    AcousticModel,
    GRUConfig,
    TransformerConfig,
    build_model,
    load_model,
    model_config,
    save_model,
)
from cortext.models.card import Smoothing, read_card
from cortext.text.inventory import RELEASE

SESSIONS = ("t15.2023.08.11", "t15.2023.08.13")


def acoustic(n_features=6, feature_subset=None, smoothing=None):
    torch.manual_seed(0)
    n_used = n_features if feature_subset is None else len(feature_subset)
    network = build_model(
        GRUConfig(n_units=8, n_layers=1), n_features=n_used, n_days=2, n_classes=41
    )
    return AcousticModel(
        network,
        sessions=SESSIONS,
        n_features=n_features,
        inventory=RELEASE,
        smoothing=smoothing or Smoothing(),
        feature_subset=feature_subset,
    )


@pytest.fixture
def run(tmp_path):
    save_model(acoustic(), tmp_path)
    return tmp_path


def features(n_bins=40, n_features=6):
    return np.random.default_rng(0).normal(size=(n_bins, n_features)).astype(np.float32)


def test_a_trial_is_smoothed_with_valid_padding():
    model, x_TC = acoustic(), features()
    smoothed = smooth(torch.from_numpy(x_TC)[None], padding="valid")[0].numpy()
    assert len(smoothed) == 32
    np.testing.assert_array_equal(
        model.logits(x_TC, SESSIONS[0]), model.logits(smoothed, SESSIONS[0], smooth=False)
    )


def test_a_model_trained_without_smoothing_smooths_nothing():
    model = acoustic(smoothing=Smoothing(smooth_data=False))
    both = [model.logits(features(), SESSIONS[0], smooth=smooth) for smooth in (True, False)]
    np.testing.assert_array_equal(*both)


def test_a_feature_subset_is_taken_from_the_whole_recording():
    model, x_TC = acoustic(feature_subset=[4, 1, 2]), features()
    changed = x_TC.copy()
    changed[:, [0, 3, 5]] = 9
    np.testing.assert_array_equal(
        model.logits(x_TC, SESSIONS[0]), model.logits(changed, SESSIONS[0])
    )
    changed[:, 4] = 9
    assert (model.logits(x_TC, SESSIONS[0]) != model.logits(changed, SESSIONS[0])).any()


def test_half_precision_features_are_accepted():
    x_TC = features().astype(np.float16)
    logits_PV = acoustic().logits(x_TC, SESSIONS[0])
    assert logits_PV.dtype == np.float32
    np.testing.assert_array_equal(
        logits_PV, acoustic().logits(x_TC.astype(np.float32), SESSIONS[0])
    )


def test_an_unknown_session_names_the_nearest_known_one():
    with pytest.raises(RunError, match=r"'t15.2023.08.31'; did you mean 't15.2023.08.1[13]'"):
        acoustic().logits(features(), "t15.2023.08.31")


def test_wrong_features_say_what_is_needed():
    with pytest.raises(DataError, match=r"\[40, 5\]; \[bins, 6\] are needed"):
        acoustic().logits(features(n_features=5), SESSIONS[0])
    with pytest.raises(DataError, match="21 bins; too few"):  # smoothing takes 8, a patch has 14
        acoustic().logits(features(n_bins=21), SESSIONS[0])
    assert acoustic().logits(features(n_bins=22), SESSIONS[0]).shape == (1, 41)


def test_a_batch_that_does_not_fit_together_says_why():
    model, x_BTC = acoustic(), np.stack([features(), features()])
    with pytest.raises(DataError, match="2 trials, 1 sessions and 2 lengths"):
        model.logits_batch(x_BTC, SESSIONS[:1], np.array([40, 40]))
    with pytest.raises(DataError, match="said to have 41 bins; 40 were given"):
        model.logits_batch(x_BTC, SESSIONS, np.array([40, 41]))
    x_BTC[1, 30, 2] = np.nan
    with pytest.raises(DataError, match="not finite"):
        model.logits_batch(x_BTC, SESSIONS, np.array([40, 40]))
    # What lies beyond a trial's bins is never read.
    model.logits_batch(x_BTC, SESSIONS, np.array([40, 30]))


def test_an_unknown_model_names_the_nearest_known_one():
    with pytest.raises(ConfigError, match="unknown model 'gur'; did you mean 'gru'"):
        model_config({"kind": "gur"})


def refused(run, match):
    with pytest.raises(RunError) as caught:
        load_model(run)
    assert "\n" not in str(caught.value)
    assert re.search(match, str(caught.value)), caught.value


def change_card(run, **changes):
    card = json.loads((run / "model.json").read_text())
    (run / "model.json").write_text(json.dumps(card | changes))


def test_a_directory_without_a_model_is_refused(tmp_path):
    refused(tmp_path / "nowhere", "nowhere/model.json: no model here")


def test_missing_weights_are_refused(run):
    (run / "model.safetensors").unlink()
    refused(run, r"model.safetensors: the run has no model weights")


@pytest.mark.parametrize("keep", [0, 5, 300, -1])
def test_truncated_weights_are_refused(run, keep):
    path = run / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    refused(run, "model.safetensors: the weights cannot be read")


def test_a_later_format_is_refused(run):
    change_card(run, format_version=2)
    refused(run, "format_version is 2; this version of cortext reads 1")


def test_a_file_that_is_no_model_description_is_refused(run):
    (run / "model.json").write_text("[1, 2]")
    refused(run, "not a model description")


def test_weights_of_another_number_of_features_are_refused(run):
    change_card(run, n_features=7)
    refused(run, r"day_bias is \[2, 6\]; model.json needs \[2, 7\]")


@pytest.mark.parametrize(
    ("changes", "found"),
    [
        (
            {"sessions": SESSIONS[::-1]},
            r"sessions\[0\] was 't15.2023.08.11' and is 't15.2023.08.13'",
        ),
        (
            {"smoothing": {"smooth_data": True, "smooth_kernel_std": 3.0}},
            "smoothing.smooth_kernel_std was 2.0 and is 3.0",
        ),
        ({"bin_ms": 10}, "bin_ms was None and is 10"),
        ({"feature_subset": [5, 4, 3, 2, 1, 0]}, r"feature_subset was None and is \[5, 4, 3"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_description_that_was_changed_in_place_is_refused(run, changes, found):
    """All tensors have the right shapes; the model would give wrong text."""
    change_card(run, **changes)
    refused(run, f"model.json was changed after its weights were written: {found}.*; undo")


def test_a_later_setting_of_the_same_shape_is_refused(tmp_path):
    """`context_frames` limits the frames that attention reads, and has no tensor."""
    sizes = {"n_units": 8, "n_layers": 1, "n_heads": 1, "head_units": 4, "attention": "causal"}
    save_model(make_model(TransformerConfig(**sizes)), tmp_path)
    card = json.loads((tmp_path / "model.json").read_text())
    before = card["config"]["context_frames"]
    change_card(tmp_path, config=card["config"] | {"context_frames": before + 7})
    refused(tmp_path, f"config.context_frames was {before} and is {before + 7}; undo")


def test_a_description_may_be_laid_out_anew(run):
    card = json.loads((run / "model.json").read_text())
    (run / "model.json").write_text(json.dumps(dict(reversed(card.items())), indent=1))
    assert load_model(run).sessions == SESSIONS


def test_weights_without_their_description_are_refused(run):
    save_file(load_file(run / "model.safetensors"), run / "model.safetensors", {"format": "pt"})
    refused(run, "the content that its weights were written with cannot be read: there is none")


def test_a_session_is_renamed_by_saving_the_model_again(run, tmp_path):
    before = load_model(run)
    before.sessions = ("monday", "tuesday")
    save_model(before, tmp_path / "renamed")
    renamed = load_model(tmp_path / "renamed")
    assert renamed.sessions == ("monday", "tuesday")
    np.testing.assert_array_equal(
        renamed.logits(features(), "tuesday"), acoustic().logits(features(), SESSIONS[1])
    )


@pytest.mark.parametrize("written", ["[", "[1]", "", '{"a": 1, "a": 2}', '{"a":' * 5000])
def test_a_description_in_the_weights_that_cannot_be_read_is_refused(run, written):
    tensors = load_file(run / "model.safetensors")
    save_file(tensors, run / "model.safetensors", {"model.json": written})
    refused(run, "the content that its weights were written with cannot be read")


def test_an_unknown_key_or_model_in_the_description_is_refused(run):
    change_card(run, colour="red")
    refused(run, "unknown key colour")
    change_card(run, config={"kind": "gur"})
    refused(run, "gur|colour")


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (
            {"inventory": {"name": "release", "symbols": 41}},
            "inventory.symbols is 41; a list of texts is needed",
        ),
        ({"inventory": {"name": "release", "symbols": [1, 2]}}, "a list of texts is needed"),
        ({"inventory": {"symbols": []}}, "inventory has no 'name'"),
        ({"sessions": []}, "it names no session"),
    ],
)
def test_a_description_without_tokens_or_days_is_refused(run, change, found):
    change_card(run, **change)
    refused(run, re.escape(found))


def test_a_device_that_is_not_there_is_refused(run):
    with pytest.raises(RunError, match="cannot be put on"):
        load_model(run, device="cuda:99")


@pytest.mark.parametrize(
    ("changes", "look_ahead_ms", "said"),
    [
        ({}, 80.0, "80 ms"),  # smoothing: the later 4 of 9 taps, bins of 20 ms
        ({"attention": "chunked", "chunk_frames": 5}, 400.0, "400 ms"),  # and 4 frames of 80 ms
        ({"attention": "bidirectional"}, None, "the whole trial"),
    ],
    ids=["causal", "chunked", "bidirectional"],
)
def test_the_look_ahead_counts_smoothing_and_later_frames(changes, look_ahead_ms, said):
    sizes = {"n_units": 8, "n_layers": 1, "n_heads": 1, "head_units": 4}
    model = make_model(TransformerConfig(**sizes | changes))
    assert model.look_ahead_ms == look_ahead_ms
    assert f"look-ahead: {said}" in repr(model)
    model.smoothing.smooth_data = False
    assert model.look_ahead_ms == (None if look_ahead_ms is None else look_ahead_ms - 80)


def test_the_card_of_a_model_that_fills_its_last_patch_says_so(tmp_path):
    sizes = {"n_units": 8, "n_layers": 1, "n_heads": 1, "head_units": 4}
    save_model(make_model(TransformerConfig(**sizes)), tmp_path)
    card = json.loads((tmp_path / "model.json").read_text())
    assert card["patch"] == {"size": 4, "stride": 4, "pads": 1}
    assert read_card(tmp_path / "model.json").pads_last_patch
    card["patch"]["stride"] = 2
    (tmp_path / "model.json").write_text(json.dumps(card))
    with pytest.raises(RunError, match="pads is 1 only where size is stride"):
        load_model(tmp_path)
    save_model(make_model(GRUConfig(n_units=8, n_layers=1)), tmp_path)
    assert json.loads((tmp_path / "model.json").read_text())["patch"] == {"size": 14, "stride": 4}
    assert not read_card(tmp_path / "model.json").pads_last_patch
