"""The decoder for the FALCON challenge, driven bin by bin as its evaluator does."""

import inspect

import numpy as np
import pytest
import torch
from falcon_participant import write_challenge, writing_config
from foreign_nwb import write_falcon
from h5py import File
from untrained import untrained_run

from cortext import LanguageModel, train
from cortext.data import read_trials
from cortext.decoding import Decoder as WordSearch
from cortext.decoding import greedy
from cortext.decoding.log_probs import log_softmax
from cortext.errors import ConfigError, CortextError, DataError, RunError
from cortext.models import AcousticModel, build_model, load_model, model_config, save_model
from cortext.text import HANDWRITING
from cortext_data.readers.falcon import falcon_h2
from cortext_data.readers.importing import import_source
from cortext_published.falcon import FalconDecoder

HELD_IN, HELD_OUT = ("2022.05.18", "2022.05.23"), ("2023.04.17",)
TEXTS = [
    "we see it.", "is it so?", "let us eat, too.", "it's late.", "sit still.", "a test, a tale.",
    "tell us.", "so we set out.", "at least two.",
]  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("h2")
    write_challenge(root / "000950", root / "eval", HELD_IN, HELD_OUT, n_calib=22)
    import_source(falcon_h2(root / "000950"), root / "data")
    train(writing_config(40), root / "data", root / "run", progress=False)
    LanguageModel.build(TEXTS, 2, root / "words", inventory=HANDWRITING)
    LanguageModel.build(TEXTS, 4, root / "characters", inventory=HANDWRITING, unit="character")
    return root


def minival(root, day, split="minival"):
    """Return the path of a day's file and its trials, as the evaluator reads them."""
    name = f"sub-T5-held-in-{split}"
    path = root / f"000950/{name}/{name}_ses-{day.replace('.', '')}.nwb"
    with File(path) as file:
        x_TC = file["acquisition/binned_spikes/data"][()]
        times_T = file["acquisition/binned_spikes/timestamps"][()]
    ends = np.flatnonzero(np.concatenate([np.diff(times_T) > 0.021, [True]])) + 1
    return path, np.split(x_TC, ends[:-1])


def decoded(decoder, tag, trials):
    """Return the texts of trials, given bin by bin as the evaluator gives them."""
    decoder.reset(dataset_tags=[tag])
    texts = []
    for x_TC in trials:
        for t, x_C in enumerate(x_TC):
            decoder.predict(x_C[None])
            text = decoder.on_done(np.array([t == len(x_TC) - 1]))
            assert (text is None) == (t < len(x_TC) - 1)
        texts.append(text)
    return texts


@pytest.mark.parametrize("lm", [None, "words", "characters"])
def test_streaming_gives_the_text_of_the_imported_trial_decoded_offline(root, lm):
    model = load_model(root / "run")
    search = lm and WordSearch.from_dir(root / lm)
    decoder = FalconDecoder(root / "run", lm and root / lm, calibration=root / "000950")
    for day in HELD_IN:
        session = f"t5.{day}"
        offline = []
        for trial in read_trials(root / f"data/{session}/data_val.hdf5", labels_required=True):
            logits_PV = model.logits(trial.features_TC, session)
            if lm is None:
                text = "".join(model.inventory.names(greedy(logits_PV, model.inventory))).strip(">")
            else:
                best = search.decode(log_softmax(logits_PV), model.inventory)[0].text
                text = best.replace(" ", ">")
            offline.append(text)
        path, trials = minival(root, day)
        assert decoded(decoder, path, trials) == offline
        assert decoder.session == session
        assert all(len(text) > 3 for text in offline)
        # The tag may also be the file's name as on DANDI, or the date alone, as on the server.
        assert decoded(decoder, path.stem, trials) == decoded(decoder, day, trials) == offline


def test_the_last_partly_filled_patch_of_a_transformer_is_read(root, tmp_path):
    trained = load_model(root / "run")
    config = model_config(
        {"kind": "transformer", "n_units": 8, "n_layers": 1, "n_heads": 1, "head_units": 4}
        | {"patch_size": 5, "patch_stride": 5}
    )
    torch.manual_seed(0)
    network = build_model(
        config,
        n_features=trained.n_features,
        n_days=len(trained.sessions),
        n_classes=len(trained.inventory),
    )
    model = AcousticModel(
        network,
        sessions=trained.sessions,
        n_features=trained.n_features,
        smoothing=trained.smoothing,
        conventions=trained.conventions,
    )
    save_model(model, tmp_path / "run")
    session = f"t5.{HELD_IN[0]}"

    def text(logits_PV):
        return "".join(model.inventory.names(greedy(logits_PV, model.inventory))).strip(">")

    offline, shorter = [], []
    for trial in read_trials(root / f"data/{session}/data_val.hdf5", labels_required=True):
        logits_PV = model.logits(trial.features_TC, session)
        assert len(logits_PV) == -(-(len(trial.features_TC) - 8) // 5)
        offline.append(text(logits_PV))
        shorter.append(text(logits_PV[: (len(trial.features_TC) - 8) // 5]))
    path, trials = minival(root, HELD_IN[0])
    decoder = FalconDecoder(tmp_path / "run", calibration=root / "000950")
    assert decoded(decoder, path, trials) == offline != shorter


def test_a_language_model_of_characters_writes_full_stops_and_one_of_words_does_not(root):
    path, trials = minival(root, HELD_IN[0])
    calibration = root / "000950"
    with_marks = decoded(
        FalconDecoder(root / "run", root / "characters", calibration=calibration), path, trials
    )
    without = decoded(
        FalconDecoder(root / "run", root / "words", calibration=calibration), path, trials
    )
    assert any(text.endswith(("~", "?")) for text in with_marks)
    assert not set("".join(without)) & set("~?,")


@pytest.mark.parametrize("calibration", ["000950", "000950/sub-T5-held-in-calib"])
def test_a_day_begins_with_the_last_trials_of_its_calibration(root, calibration):
    path, trials = minival(root, HELD_IN[0])
    decoder = FalconDecoder(root / "run", calibration=root / calibration)
    decoder.reset([path])
    found = decoder._scale.push(trials[0][:3])
    _, before = minival(root, HELD_IN[0], "calib")
    assert len(before) == 22  # of which the last 20 count, and all bins of the trial so far
    for t in range(3):
        seen_TC = np.concatenate([*before[2:], trials[0][: t + 1]]).astype(float)
        z_C = (trials[0][t] - seen_TC.mean(axis=0)) / seen_TC.std(axis=0)
        np.testing.assert_allclose(found[t], z_C, atol=1e-4)


def test_without_calibration_a_day_begins_with_the_trial_itself(root):
    decoder = FalconDecoder(root / "run")
    decoder.reset([HELD_IN[0]])
    first_1C = decoder._scale.push(np.ones((1, 192)))
    np.testing.assert_array_equal(first_1C, 0)


def test_an_unknown_day_is_decoded_with_the_last_layer(root):
    decoder = FalconDecoder(root / "run")
    assert decoder.session == "t5.2023.04.17"
    decoder.reset(["2022.05.23"])
    assert decoder.session == "t5.2022.05.23"
    decoder.reset(["2024.01.01"])
    assert decoder.session == "t5.2023.04.17"
    decoder.reset()
    assert decoder.session == "t5.2023.04.17"


def test_a_trial_without_bins_has_no_text(root):
    decoder = FalconDecoder(root / "run")
    assert decoder.on_done(np.array([True])) == ""
    assert decoder.predict(np.zeros((1, 192), np.uint8)).shape == (1, 0)
    decoder.observe(np.zeros((1, 192), np.uint8))
    assert decoder.on_done([False]) is None
    assert decoder.on_done([True]) == ""


def test_a_run_of_features_that_are_not_scaled_gets_the_counts(root, tmp_path):
    import_source(falcon_h2(root / "000950"), tmp_path / "data", normalise="none")
    train(writing_config(2), tmp_path / "data", tmp_path / "run", progress=False)
    model = load_model(tmp_path / "run")
    path, trials = minival(root, HELD_IN[0])
    offline = [
        "".join(
            model.inventory.names(
                greedy(model.logits(x_TC.astype(np.float32), "t5.2022.05.18"), model.inventory)
            )
        ).strip(">")
        for x_TC in trials
    ]
    assert decoded(FalconDecoder(tmp_path / "run"), path, trials) == offline


def test_a_run_of_raw_recordings_begins_a_day_with_its_calibration(root, tmp_path):
    import_source(falcon_h2(root / "000950"), tmp_path / "data", normalise="raw")
    train(writing_config(2), tmp_path / "data", tmp_path / "run", progress=False)
    decoder = FalconDecoder(tmp_path / "run", calibration=root / "000950")
    path, trials = minival(root, HELD_IN[0])
    decoder.reset([path])
    known_TC = np.concatenate(minival(root, HELD_IN[0], "calib")[1][2:]).astype(float)
    mean_C, std_C = decoder._pipeline.statistics
    np.testing.assert_allclose(mean_C, known_TC.mean(axis=0), rtol=1e-9)
    np.testing.assert_allclose(std_C, known_TC.std(axis=0), rtol=1e-9)
    assert len(decoded(decoder, path, trials)) == len(trials)


def test_it_has_the_methods_of_the_challenge():
    """As in `falcon_challenge.interface.BCIDecoder` of version 1.0.2."""
    expected = {
        "reset": ["self", "dataset_tags"],
        "predict": ["self", "neural_observations"],
        "observe": ["self", "neural_observations"],
        "on_done": ["self", "dones"],
        "set_batch_size": ["self", "batch_size"],
    }
    for name, parameters in expected.items():
        assert list(inspect.signature(getattr(FalconDecoder, name)).parameters) == parameters


ROW = np.zeros((1, 192), np.uint8)


@pytest.mark.parametrize(
    ("call", "error", "says"),
    [
        (lambda d: d.set_batch_size(2), ConfigError, "batch_size is 2; H2 has one trial at a time"),
        (lambda d: d.reset(["a", "b"]), ConfigError, "2 dataset_tags given; H2 has one trial"),
        (lambda d: d.reset("2022.05.18"), CortextError, "dataset_tags is of type str; a list of"),
        (lambda d: d.reset([None]), CortextError, r"dataset_tags\[0\] is None; a path is needed"),
        (lambda d: d.predict(ROW[0]), DataError, r"has shape \[192\] and type uint8; numbers \[1,"),
        (lambda d: d.predict(ROW[:, :96]), DataError, r"has shape \[1, 96\] and type uint8"),
        (lambda d: d.predict(ROW + np.nan), DataError, "has NaN or infinity; give counts"),
        (lambda d: d.predict(ROW + 1e300), DataError, "has numbers beyond float32; give counts"),
        (lambda d: d.predict([["a"] * 192]), DataError, "and type <U1; numbers"),
        (lambda d: d.on_done([True, False]), DataError, r"dones has shape \[2\]; \[1\] is needed"),
    ],
)  # fmt: skip
def test_a_wrong_call_is_one_line_and_changes_nothing(root, call, error, says):
    decoder = FalconDecoder(root / "run")
    decoder.predict(ROW)
    with pytest.raises(error, match=says) as caught:
        call(decoder)
    assert "\n" not in str(caught.value)
    assert decoder._pipeline.n_bins == 1


def test_runs_and_folders_that_do_not_fit_are_refused(root, tmp_path):
    speech = untrained_run(tmp_path / "t15", ["t15.2023.08.11"], 512)
    with pytest.raises(RunError, match="reads 512 features in bins of 20 ms; H2 has 192 in bins"):
        FalconDecoder(speech)
    phonemes = untrained_run(tmp_path / "phonemes", ["t15.2023.08.11"], 192)
    with pytest.raises(RunError, match="tokens are phonemes, which make no text alone; give a"):
        FalconDecoder(phonemes)
    with pytest.raises(RunError, match="model"):
        FalconDecoder(tmp_path)
    with pytest.raises(DataError, match="no such folder"):
        FalconDecoder(root / "run", calibration=tmp_path / "none")
    with pytest.raises(CortextError):
        FalconDecoder(root / "run", tmp_path)
    write_falcon(tmp_path / "h2", dandi=False)
    (damaged,) = tmp_path.rglob("T5_2022.05.18_held_in_calib.nwb")
    damaged.write_bytes(damaged.read_bytes()[:5000])
    decoder = FalconDecoder(root / "run", calibration=tmp_path / "h2")
    with pytest.raises(DataError, match=r"held_in_calib.nwb: truncated HDF5: 5000 bytes found"):
        decoder.reset(["2022.05.18"])
