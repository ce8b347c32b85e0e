"""Notes on features: another range, outliers, features that stand still."""

from dataclasses import replace

import h5py
import numpy as np
import pytest

from cortext.data import pack, write_session
from cortext.data.checks import FaultError, check_features
from cortext.data.conventions import Conventions, FeatureRange
from cortext.data.feature_survey import FeatureSurvey
from cortext.data.inspect import inspect
from cortext.data.trial import make_trial
from cortext.training.participants.recordings import open_for

RAW = Conventions(features="raw")
DAYS = ("lab.2026.03.02", "lab.2026.03.03", "lab.2026.03.09")


def trials(conventions, spoil=lambda day, number, x_TC: x_TC):
    """Return five trials of each day: counts of raw recordings, or z-scores."""
    rng = np.random.default_rng(2)
    found = []
    for day in DAYS:
        for number in range(5):
            counts_TC = rng.poisson(2, (80, 16)).astype(np.float32)
            x_TC = counts_TC if conventions.features == "raw" else (counts_TC - 2) / np.sqrt(2)
            x_TC = spoil(day, number, x_TC.copy())
            found.append(make_trial(x_TC, day, 1, number, "go", conventions=conventions))
    return found


def notes(conventions, spoil=lambda day, number, x_TC: x_TC):
    survey = FeatureSurvey()
    for trial in trials(conventions, spoil):
        survey.add(trial)
    return survey.notes(conventions.features)


def one_bin(day, number, x_TC):
    if (day, number) == (DAYS[1], 3):
        x_TC[7] = 1e6
        x_TC[9, 4] = 1e6
    return x_TC


def flat(day, number, x_TC):
    x_TC[:, 5] = 3.5
    return x_TC


@pytest.mark.parametrize("conventions", [RAW, Conventions()])
def test_usual_features_have_no_notes(conventions):
    assert notes(conventions) == []


@pytest.mark.parametrize("conventions", [RAW, Conventions()])
def test_an_outlier_is_counted_and_named_with_its_place(conventions):
    (note,) = notes(conventions, one_bin)
    assert note.startswith(
        "1 bin with many features far out, 1 value far out in feature 4, the first at"
    )
    assert f"{DAYS[1]}" in note
    assert "bin 7" in note


@pytest.mark.parametrize("conventions", [RAW, Conventions()])
def test_a_feature_that_stands_still_is_named_with_the_keys_that_leave_it_out(conventions):
    (note,) = notes(conventions, flat)
    assert note.startswith("feature 5: one value throughout, in 3 of 3 sessions")
    assert "dataset.feature_subset" in note
    assert "columns:" in note


@pytest.mark.parametrize(
    ("conventions", "spoil", "words"),
    [
        (RAW, lambda day, n, x: x * 1000 if day == DAYS[2] else x, "features of another range"),
        (Conventions(), lambda day, n, x: x * 1000, "features are no z-scores in 3 of 3"),
        (Conventions(), lambda day, n, x: x * 5e-4, "features are no z-scores in 3 of 3"),
        (Conventions(), lambda day, n, x: x * 1.4 + 2, "no value is below 0"),
        (RAW, lambda day, n, x: (x - 2) / np.sqrt(2), "raw features look like z-scores"),
    ],
    ids=["a day x1000", "x1000", "flattened", "counts", "z-scores"],
)
def test_features_of_another_range_are_named_with_both_ranges(conventions, spoil, words):
    (note,) = notes(conventions, spoil)
    assert words in note
    assert note.count("deviation") >= 1


def test_pack_and_inspect_show_the_notes_and_the_index_keeps_them(tmp_path):
    recorded = trials(RAW, one_bin)
    for day in DAYS:
        own = [trial for trial in recorded if trial.session == day]
        write_session(tmp_path / "raw" / day / "data_train.hdf5", own)
    packed = pack(tmp_path / "raw", tmp_path / "packed")
    (note,) = packed.notes
    assert note.startswith("1 bin with many features far out")
    assert f"note: {note}" in str(inspect(tmp_path / "raw"))
    assert f"note: {note}" in str(inspect(tmp_path / "packed"))
    found = packed.conventions.feature_range
    assert (found.mean, found.sd) == (pytest.approx(2, rel=0.05), pytest.approx(1.41, rel=0.05))
    assert found.lowest == 0


def test_a_command_that_packs_by_itself_prints_the_notes_of_packing(tmp_path, capsys):
    recorded = [trial for trial in trials(RAW, one_bin) if trial.session == DAYS[1]]
    write_session(tmp_path / DAYS[1] / "data_train.hdf5", recorded)
    opened = open_for(None, tmp_path, tmp_path / "packed")
    assert capsys.readouterr().err == f"note: {opened.notes[0]}\n"
    open_for(None, tmp_path / "packed")  # packed by another command, which has printed them
    assert capsys.readouterr().err == ""


def test_a_channel_without_any_value_is_named_with_the_key_that_leaves_it_out():
    x_TC = np.ones((30, 16), np.float32)
    x_TC[:, 5] = np.nan
    with pytest.raises(FaultError) as error:
        check_features(x_TC)
    assert "feature 5 without any value: set to 0, or leave out of an import with columns:" in (
        error.value.message
    )


def test_conventions_and_cards_keep_a_range_and_do_without_one():
    known = replace(RAW, feature_range=FeatureRange(0.8, 0.9, 2.0, 0.0))
    assert Conventions.from_json(known.to_json()) == known
    assert known.difference(RAW) is None
    assert Conventions.from_json(RAW.to_json()).feature_range is None


@pytest.mark.parametrize("conventions", [RAW, Conventions()])
def test_a_channel_of_nan_in_session_files_is_packed_as_zero_with_one_line(tmp_path, conventions):
    recorded = trials(conventions)
    for day in DAYS:
        own = [trial for trial in recorded if trial.session == day]
        write_session(tmp_path / "data" / day / "data_train.hdf5", own)
    alive = pack(tmp_path / "data", tmp_path / "alive").split("train").trial(7).features_TC
    with h5py.File(tmp_path / "data" / DAYS[1] / "data_train.hdf5", "r+") as file:
        for group in file.values():
            group["input_features"][:, 5] = np.nan
    packed = pack(tmp_path / "data", tmp_path / "packed")
    line = "feature 5: NaN throughout 5 of 15 trials, left out (0); leave out for good with"
    assert packed.notes[0].startswith(line)
    report = inspect(tmp_path / "data")
    assert report.problems == []
    assert line in str(report)
    found = packed.split("train").trial(7).features_TC
    others = [feature for feature in range(16) if feature != 5]
    np.testing.assert_array_equal(found[:, others], alive[:, others])
    if conventions.features != "raw":
        assert not found[:, 5].any()


def test_a_range_is_left_to_whoever_has_named_it():
    survey = FeatureSurvey()
    for trial in trials(Conventions(), lambda day, number, x_TC: 100 * x_TC):
        survey.add(trial)
    assert len(survey.notes("z-scored")) == 1
    assert survey.notes("z-scored", with_range=False) == []
