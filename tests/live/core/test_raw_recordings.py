"""Raw recordings: packed as rolling z-scores, the same that live decoding computes of them."""

import json
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from cortext import evaluate, load_model, train
from cortext.data import open_data, open_dataset, pack, write_session
from cortext.data.conventions import RELEASE_CONVENTIONS, Conventions
from cortext.data.inspect import inspect
from cortext.data.rebin import rebin
from cortext.data.trial import make_trial
from cortext.errors import DataError
from cortext.models import GRUConfig
from cortext.models.card import Conventional, Smoothing
from cortext.text.inventory import RELEASE
from cortext.training import DatasetConfig, TrainConfig
from cortext_live.core.acoustic_stream import PipelineOptions, chosen_normalise
from cortext_live.core.pipeline import Pipeline
from cortext_live.page.settings import LiveSettings
from cortext_live.page.setup import pipeline_options
from cortext_live.page.utterance import PageUtterance
from cortext_live.usage.kept_features import KeptFeatures
from cortext_live.usage.writer import UsageLog, UtteranceRecord

RAW = Conventions(features="raw")
DAYS = ("lab.2026.03.02", "lab.2026.03.03", "lab.2026.03.09")
N_FEATURES = 5
LATEST, LEAST, PIECE, LIMIT = 20, 250, 64, 10.0
"""Utterances of the window, bins of a warm start, bins of a piece, limit: as documented."""


def recordings():
    """Return [split, Trial] in the order of recording: three days, two blocks, drifting features.

    A block has more trials than the window, val and test lie among the trials of train, one feature
    is constant, and another has a value far beyond the limit once.
    """
    rng = np.random.default_rng(5)
    found = []
    for day_number, day in enumerate(DAYS):
        gain_C = np.exp(rng.normal(0, 0.4, N_FEATURES))
        for block in (2, 7):
            offset_C = 40 * day_number + 5 * block + rng.normal(0, 3, N_FEATURES)
            for number in range(23):
                n_bins = int(rng.integers(30, 190))
                x_TC = offset_C + 0.1 * number + gain_C * rng.normal(size=(n_bins, N_FEATURES))
                x_TC[:, 3] = 7.25
                if (block, number) == (7, 4):
                    x_TC[5, 0] = 3e5  # beyond float16, and an outlier of its feature
                split = "val" if number % 5 == 1 else "test" if number == 8 else "train"
                sentence = None if split == "test" else "go"
                trial = make_trial(x_TC, day, block, number, sentence, conventions=RAW)
                found.append((split, trial))
    return found


def write(root, recorded):
    """Write session files whose trials do not lie in the order of recording."""
    rng = np.random.default_rng(1)
    for day in sorted({trial.session for _, trial in recorded}):
        for split in ("train", "val", "test"):
            trials = [one for name, one in recorded if (name, one.session) == (split, day)]
            order = rng.permutation(len(trials))
            write_session(root / day / f"data_{split}.hdf5", [trials[i] for i in order])
    return root


@pytest.fixture(scope="module")
def recorded():
    return recordings()


@pytest.fixture(scope="module")
def root(recorded, tmp_path_factory):
    return write(tmp_path_factory.mktemp("raw"), recorded)


@pytest.fixture(scope="module")
def packed(root, tmp_path_factory):
    return pack(root, tmp_path_factory.mktemp("packed") / "p")


def trials_by_name(packed):
    return {trial.name: trial for trial in packed}


def oracle(recorded):
    """Z-score every bin with NumPy's mean and deviation of all bins that its statistics consist of.

    A warm start stands as 125 bins one deviation above the mean and 125 below it. Where enough is
    known, values count as at most 10 deviations from the mean, or as far as the third farthest of
    the utterances of the window. The latest three or more utterances stand alone where the
    deviations of all before are ten times theirs, in most features. (No bin of the cold start is an
    outlier, and five features are too few for a bin to be left out.)
    """
    warm, window, found, block = [], [], {}, None
    start_C, distances = np.zeros(N_FEATURES), []
    usual_C = start_C
    for _, trial in recorded:
        if block != (trial.session, trial.block) and block is not None:
            known_TC = np.concatenate([*warm, *window])
            mean_C, std_C = known_TC.mean(axis=0), known_TC.std(axis=0)
            warm = [np.repeat([mean_C - std_C, mean_C + std_C], LEAST // 2, axis=0)]
            window, start_C, distances = [], usual_C, []
        block = trial.session, trial.block
        x_TC = trial.features_TC.astype(np.float64)
        z_TC, own, t, distance_C = np.empty_like(x_TC), [], 0, np.zeros(N_FEATURES)
        while t < len(x_TC):
            is_cold = sum(map(len, [*warm, *window, *own])) < LEAST
            piece_TC = x_TC[t : t + (1 if is_cold else PIECE)]
            known_TC = np.concatenate([*warm, *window, *own, *([piece_TC] if is_cold else [])])
            mean_C, std_C = known_TC.mean(axis=0), known_TC.std(axis=0)
            unit_C = np.where(std_C > 1e-6 * np.abs(mean_C), std_C, np.inf)
            z_TC[t : t + PIECE] = np.clip((x_TC[t : t + PIECE] - mean_C) / unit_C, -LIMIT, LIMIT)
            if is_cold:
                own.append(piece_TC)
            else:
                limit_C = np.maximum(10 * std_C, usual_C)
                own.append(np.clip(piece_TC, mean_C - limit_C, mean_C + limit_C))
                distance_C = np.maximum(distance_C, np.abs(piece_TC - mean_C).max(axis=0))
            t += len(piece_TC)
        found[trial.name] = z_TC
        window = [*window, np.concatenate(own)][-LATEST:]
        distances = [*distances, distance_C][-LATEST:]
        if len(distances) >= 3:
            usual_C = np.maximum(start_C, np.sort(distances, axis=0)[-3])
        n_latest = min(3, len(window))
        while n_latest < len(window) and sum(map(len, window[-n_latest:])) < LEAST:
            n_latest += 1
        latest_TC, before = np.concatenate(window[-n_latest:]), [*warm, *window[:-n_latest]]
        if len(latest_TC) >= LEAST and before:
            std_C = latest_TC.std(axis=0)
            larger_C = (std_C > 0) & (np.concatenate(before).std(axis=0) > 10 * std_C)
            if larger_C.sum() > N_FEATURES / 2:
                warm, window, distances = [], window[-n_latest:], []
                start_C = usual_C = np.zeros(N_FEATURES)
    return found


class Keeper(Conventional):
    """A stepper of single bins that keeps them."""

    session, sessions, n_features = DAYS[0], DAYS, N_FEATURES
    patch_size = patch_stride = 1
    smoothing, conventions = Smoothing(smooth_data=False), RAW

    def start(self):
        self.bins = []

    def prepare(self, bins_KC):
        pass

    def step(self, bins_SC):
        self.bins.append(bins_SC[0].copy())
        return np.zeros(len(RELEASE), dtype=np.float32)


def lived(recorded):
    """Return the z-scores that live decoding gives a model, bin by bin, by trial."""
    stepper, block, found = Keeper(), None, {}
    pipeline = Pipeline(None, None, stepper=stepper)
    for _, trial in recorded:
        if block != (trial.session, trial.block):
            block = trial.session, trial.block
            pipeline.start_block()
        for x_C in trial.features_TC:
            pipeline.push(x_C[None])
        found[trial.name] = np.array(stepper.bins)
        pipeline.finish()
    return found


@pytest.fixture(scope="module")
def live(recorded):
    return lived(recorded)


def test_live_z_scores_are_those_of_their_definition_over_days_and_blocks(recorded, live):
    found, expected = live, oracle(recorded)
    assert len(found) == 138
    for name, z_TC in expected.items():
        np.testing.assert_allclose(found[name], z_TC, rtol=1e-5, atol=1e-5)


def test_packed_raw_recordings_are_the_live_z_scores_bit_for_bit(live, packed):
    """All splits together in the order of recording, in float16."""
    found, expected = trials_by_name(packed), live
    assert sorted(found) == sorted(expected)
    for name, z_TC in expected.items():
        assert np.array_equal(found[name].features_TC, z_TC.astype(np.float16).astype(np.float32))
    assert [packed.n_trials(split) for split in ("train", "val", "test")] == [102, 30, 6]


def test_packed_trials_of_a_split_lie_in_the_order_of_recording(recorded, packed):
    for name in packed.splits:
        expected = [trial.name for split, trial in recorded if split == name]
        assert [trial.name for trial in packed.trials(name)] == expected


def test_later_recordings_change_no_earlier_z_score(recorded, packed, tmp_path):
    early = [one for one in recorded if one[1].session != DAYS[2]]
    found = trials_by_name(pack(write(tmp_path / "raw", early), tmp_path / "p"))
    whole = trials_by_name(packed)
    assert len(found) == 92
    for name, trial in found.items():
        assert np.array_equal(trial.features_TC, whole[name].features_TC)


def test_packing_again_gives_the_same_bytes_and_a_cache_is_used_again(root, packed, tmp_path):
    again = open_data(root, tmp_path / "cache")
    for name in ("train.f16", "val.f16", "test.f16", "index.npz"):
        assert (again.path / name).read_bytes() == (packed.path / name).read_bytes()
    written = (again.path / "index.json").stat().st_mtime_ns
    assert open_data(root, tmp_path / "cache").conventions == packed.conventions
    assert (again.path / "index.json").stat().st_mtime_ns == written


def test_packed_data_name_their_normalisation_and_parameters(root, packed):
    assert open_dataset(root).conventions == RAW
    assert packed.conventions.features == "raw"
    assert packed.conventions.normalised == (
        "rolling z-scores over the last 20 trials and the trial so far, from 250 bins on every 64"
        " bins, at most 10; outliers count for less"
    )


def test_a_bad_trial_that_is_left_out_counts_for_nothing(recorded, tmp_path):
    first = [trial for split, trial in recorded if split == "train"][:6]
    file = tmp_path / "bad" / DAYS[0] / "data_train.hdf5"
    write_session(file, first)
    with h5py.File(file, "r+") as opened:
        opened["trial_0002/input_features"][3, 1] = np.nan
    write_session(tmp_path / "good" / DAYS[0] / "data_train.hdf5", first[:2] + first[3:])
    with pytest.raises(DataError, match="trial_0002"):
        pack(tmp_path / "bad", tmp_path / "refused")
    found = pack(tmp_path / "bad", tmp_path / "p", skip_bad=True)
    good = pack(tmp_path / "good", tmp_path / "q")
    assert len(found.bad_trials) == 1
    assert found.checksums == good.checksums


def test_inspect_takes_raw_values_beyond_float16(root):
    assert not inspect(root).problems


def test_bins_are_joined_before_they_are_z_scored(recorded, tmp_path):
    day = [one for one in recorded if one[1].session == DAYS[0] and one[1].block == 2]
    write_session(tmp_path / "raw" / DAYS[0] / "data_train.hdf5", [trial for _, trial in day])
    joined = [
        (split, replace(trial, features_TC=rebin(trial.features_TC, 20, 40)))
        for split, trial in day
    ]
    found = trials_by_name(pack(tmp_path / "raw", tmp_path / "p", bin_ms=40))
    for name, z_TC in oracle(joined).items():
        # Up to the largest value, float16 has steps of 2^-7.
        np.testing.assert_allclose(found[name].features_TC, z_TC, atol=0.005)


@pytest.fixture(scope="module")
def run(packed, tmp_path_factory):
    out = tmp_path_factory.mktemp("run") / "run"
    config = TrainConfig(
        model=GRUConfig(n_units=8, n_layers=1),
        dataset=DatasetConfig(batch_size=8, days_per_batch=2),
        num_training_batches=3,
        batches_per_train_log=3,
        batches_per_val_step=3,
        precision="fp32",
    )
    train(config, packed, out)
    return out


def test_a_model_remembers_the_normalisation_and_live_decoding_takes_it(run, packed, recorded):
    card = json.loads((run / "model.json").read_text())
    assert card["features"] == "raw"
    assert card["normalised"].startswith("rolling z-scores over the last 20 trials")
    model = load_model(run)
    live, z_scored = (
        Pipeline(model, None),
        Pipeline(model, None, options=PipelineOptions(normalise="none")),
    )
    packed_trials = trials_by_name(packed)
    for number, (_, trial) in enumerate(recorded[:12]):
        if not number:
            live.start_block()
        expected_PV = z_scored.push(packed_trials[trial.name].features_TC).logits_PV
        pieces = [live.push(trial.features_TC[t : t + 1]).logits_PV for t in range(trial.n_bins)]
        # The packed z-scores have three digits.
        np.testing.assert_allclose(np.concatenate(pieces), expected_PV, atol=0.02)
        z_scored.finish()
        live.finish()
    assert live.statistics is not None
    assert z_scored.statistics is None


def test_a_model_of_raw_recordings_does_not_go_with_z_scored_ones(run, recorded, tmp_path):
    conventions = RELEASE_CONVENTIONS
    first = [replace(trial, conventions=conventions) for _, trial in recorded[:4]]
    write_session(tmp_path / DAYS[0] / "data_train.hdf5", first)
    with pytest.raises(DataError, match="the features are z-scored, not raw"):
        evaluate(run, tmp_path, "train", None, tmp_path / "out")


@pytest.mark.parametrize(
    ("given", "trained", "chosen", "warns"),
    [
        ("auto", "rolling", "rolling", False),
        ("auto", "none", "none", False),
        ("rolling", "rolling", "rolling", False),
        ("none", "rolling", "none", True),
        ("rolling", "none", "rolling", True),
    ],
)
def test_another_normalisation_than_in_training_is_possible_with_a_warning(
    given, trained, chosen, warns, caplog
):
    with caplog.at_level("WARNING", logger="cortext.live"):
        assert chosen_normalise(given, trained) == chosen
    assert [record.message for record in caplog.records] == ["normalise_differs"] * warns


@pytest.mark.parametrize(
    ("source", "conventions", "normalise"),
    [
        ({"feed": True}, RAW, "rolling"),
        ({"simulate": "tiny"}, RAW, "rolling"),
        ({"data": Path("packed")}, RAW, "none"),  # packed recordings are z-scores already
        ({"feed": True}, RELEASE_CONVENTIONS, "none"),
        ({"feed": True, "normalise": "rolling"}, RELEASE_CONVENTIONS, "rolling"),
    ],
)
def test_the_page_normalises_what_its_source_has_not(source, conventions, normalise):
    settings = LiveSettings(Path("run"), Path("lm"), **source)
    assert pipeline_options(settings, conventions).normalise == normalise


@pytest.mark.parametrize(("conventions", "as_sent"), [(RAW, True), (RELEASE_CONVENTIONS, False)])
def test_a_usage_log_of_a_model_of_raw_recordings_keeps_raw_features(conventions, as_sent):
    utterance = PageUtterance(1, DAYS[0], None, None, keep=True, conventions=conventions)
    x_TC = np.arange(15, dtype=np.float32).reshape(3, N_FEATURES)
    utterance.step(x_TC, Pipeline(None, None, stepper=Keeper()).push(x_TC))
    kept_TC = utterance.features_TC((np.ones(N_FEATURES), np.full(N_FEATURES, 2.0)))
    assert np.array_equal(kept_TC, x_TC if as_sent else (x_TC - 1) / 2)


@pytest.mark.parametrize("conventions", [RAW, replace(RAW, features="z-scored")])
def test_a_restarted_program_goes_on_with_the_statistics_of_its_log(
    recorded, tmp_path, conventions
):
    *before, newest = [trial.features_TC.astype(np.float32) for _, trial in recorded[:23]]
    with UsageLog(tmp_path, conventions, kept_features=KeptFeatures(tmp_path)) as log:
        assert log.latest_features(LATEST) == []
        for number, x_TC in enumerate(before):
            log.append(UtteranceRecord(number, DAYS[0], 1.0, "go"), x_TC)
            log.keep_features(x_TC)
    with UsageLog(tmp_path, conventions, kept_features=KeptFeatures(tmp_path)) as log:
        kept = log.latest_features(LATEST)
    if conventions.features != "raw":
        assert kept == []  # what was normalised already says nothing of means and deviations
        return
    assert len(kept) == LATEST
    assert all(np.array_equal(*pair) for pair in zip(kept, before[-LATEST:], strict=True))
    went_on, restarted, cold = (Pipeline(None, None, stepper=Keeper()) for _ in range(3))
    for x_TC in before:
        went_on.push(x_TC)
        went_on.finish()
    restarted.remember([np.zeros((9, N_FEATURES + 1), np.float32), *kept])
    found = {}
    for name, pipeline in {"went on": went_on, "restarted": restarted, "cold": cold}.items():
        pipeline.stepper.bins.clear()
        pipeline.push(newest)
        found[name] = np.array(pipeline.stepper.bins)
    np.testing.assert_allclose(found["restarted"], found["went on"], atol=1e-5)
    assert np.abs(found["cold"] - found["went on"]).max() > 0.5
