"""FALCON H2: files as the preparation and DANDI have them, written with pynwb."""

import shutil
from dataclasses import replace

import h5py
import numpy as np
import pytest
from foreign_files import Written
from foreign_nwb import write_falcon, written_cues

from cortext.cli import run as cortext
from cortext.data import read_trials
from cortext.data.checks import FaultError
from cortext.errors import DataError
from cortext_data.readers.falcon import cue_of, falcon_h2, sentence_of, session_of
from cortext_data.readers.importing import import_source

DAY = "2022.05.18"
CALIB = f"held_in_calib/T5_{DAY}_held_in_calib.nwb"
SPIKES = "acquisition/binned_spikes"


def read(source, **options):
    """Return [(session, split, block, trial, sentence, counts)] of all trials, and all notes."""
    found, notes = [], []
    for recording in falcon_h2(source, **options).recordings:
        with recording.open() as contents:
            notes += contents.notes
            found += [
                (
                    recording.session,
                    block.split,
                    block.number,
                    trial.number,
                    trial.sentence,
                    trial.read(),
                )
                for block in contents.blocks
                for trial in block.trials
            ]
    return found, notes


@pytest.fixture(scope="module")
def both(tmp_path_factory):
    """The same trials under DANDI's names and under the preparation's."""
    root = tmp_path_factory.mktemp("h2")
    material = write_falcon(root / "000950")
    write_falcon(root / "h2", dandi=False)
    return root, material


@pytest.mark.parametrize("folder", ["000950", "h2"])
def test_days_splits_blocks_and_counts_are_those_that_were_written(both, folder):
    root, material = both
    found, notes = read(root / folder)
    first = material["held-in-calib", DAY]  # blocks 1 1 1 2 2
    mine = [entry for entry in found if entry[0] == "t5.2022.05.18"]
    # Minival is the first two trials; they are numbered as in the block that they belong to.
    assert [entry[1:4] for entry in mine] == [
        ("train", 1, 2), ("train", 2, 0), ("train", 2, 1), ("val", 1, 0), ("val", 1, 1),
    ]  # fmt: skip
    for entry, number in zip(mine, (2, 3, 4, 0, 1), strict=True):
        assert entry[4] == first[number].sentence.replace(">", " ").replace("~", ".")
        np.testing.assert_array_equal(entry[5], first[number].arrays["binned_spikes"])
    assert {entry[0]: entry[1] for entry in found} == {
        "t5.2022.05.18": "val", "t5.2022.05.23": "val", "t5.2023.04.17": "train",
    }  # fmt: skip
    line = "2 trials of held_in_calib that held_in_minival repeats are in val alone"
    assert notes == [line, line]


def test_held_out_days_can_be_left_out(both):
    root, _ = both
    found, _ = read(root / "000950", held_out=False)
    assert {entry[0] for entry in found} == {"t5.2022.05.18", "t5.2022.05.23"}


def test_withheld_files_become_test_and_continue_with_the_numbers(tmp_path):
    trials = written_cues(np.random.default_rng(1), [4, 4, 4])
    write_falcon(tmp_path, {("held-out-calib", "2023.04.17"): trials[:1]})
    _write_later(tmp_path, ("held-out-eval", "2023.04.17"), trials, skip=1)
    found, notes = read(tmp_path)
    assert [entry[1:4] for entry in found] == [("train", 4, 0), ("test", 4, 1), ("test", 4, 2)]
    assert not notes


def _write_later(root, key, trials, skip):
    """Write trials of a day that others precede: their times continue."""
    write_falcon(root, {key: trials})
    (path,) = root.rglob(f"*{key[0]}*.nwb")
    n_bins = [len(trial.arrays["binned_spikes"]) for trial in trials]
    first = sum(n_bins[:skip])
    with h5py.File(path, "a") as file:
        for name in ("binned_spikes", "eval_mask"):
            series = file[f"acquisition/{name}"]
            for part in ("data", "timestamps"):
                if isinstance(series.get(part, getlink=True), h5py.HardLink):
                    values, attributes = series[part][first:], dict(series[part].attrs)
                    del series[part]
                    series[part] = values
                    series[part].attrs.update(attributes)
        for name in ("start_time", "stop_time", "cue", "block_num", "id"):
            column = file[f"intervals/trials/{name}"]
            values, attributes = column[skip:], dict(column.attrs)
            del file[f"intervals/trials/{name}"]
            file[f"intervals/trials/{name}"] = values
            file[f"intervals/trials/{name}"].attrs.update(attributes)


def test_only_bins_that_count_are_read(tmp_path):
    material = write_falcon(tmp_path, dandi=False)
    x_TC = material["held-in-calib", DAY][2].arrays["binned_spikes"]
    start = sum(len(t.arrays["binned_spikes"]) for t in material["held-in-calib", DAY][:2])
    with h5py.File(tmp_path / CALIB, "a") as file:
        mask = file["acquisition/eval_mask/data"]
        keep_T = np.arange(len(x_TC)) % 4 > 0
        mask[start : start + len(x_TC)] = keep_T
        mask[start + len(x_TC) : start + len(x_TC) + 300] = False  # the next trials as a whole
    found, notes = read(tmp_path)
    np.testing.assert_array_equal(found[0][5], x_TC[keep_T])
    assert notes[1] == "left out: 2 trials none of whose bins counts (eval_mask)"


def test_the_import_writes_handwriting_with_causal_z_scores(both, tmp_path, capsys):
    root, material = both
    assert cortext(["import", "falcon-h2", str(root / "000950"), "--out", str(tmp_path / "a")]) == 0
    printed = capsys.readouterr()
    assert "inventory: handwriting: 31 characters and the blank" in printed.out
    assert "note: t5.2022.05.18: 2 trials of held_in_calib" in printed.err
    trials = [
        trial
        for split in ("train", "val")
        for trial in read_trials(
            tmp_path / "a" / "t5.2022.05.18" / f"data_{split}.hdf5", labels_required=True
        )
    ]
    counts = [
        material["held-in-calib", DAY][number].arrays["binned_spikes"].astype(float)
        for number in (2, 3, 4, 0, 1)  # minival is decoded after the calibration
    ]
    for number, trial in enumerate(trials):
        before = counts[:number]
        for t in (0, 17, trial.n_bins - 1):
            seen_TC = np.concatenate([*before, counts[number][: t + 1]])
            sd_C = seen_TC.std(axis=0)
            z_C = (counts[number][t] - seen_TC.mean(axis=0)) / np.where(sd_C > 1e-6, sd_C, np.inf)
            np.testing.assert_allclose(trial.features_TC[t], z_C, atol=1e-4)
    assert trials[0].conventions.normalised.startswith("z-scored causally")
    symbols = trials[0].conventions.inventory.names(trials[0].phoneme_ids)
    assert "".join(symbols) == material["held-in-calib", DAY][2].sentence


def test_cues_and_sentences():
    assert sentence_of("it's>me,>no?") == "it's me, no?"
    assert sentence_of("oh,>no~") == "oh, no."
    assert cue_of("oh, no.") == "oh,>no~"
    assert cue_of(" hello  world~ ") == "hello>world~"


@pytest.mark.parametrize(
    ("tag", "session"),
    [
        ("2022.05.18", "t5.2022.05.18"),
        ("/data/h2/eval/T5_2022.05.18_held_in_eval.nwb", "t5.2022.05.18"),
        ("sub-T5-held-in-minival_ses-20220518.nwb", "t5.2022.05.18"),
        ("/2022.05.18/T5.nwb", None),
        ("", None),
    ],
)
def test_a_tag_says_the_session(tag, session):
    assert session_of(tag) == session


def test_a_cue_whose_label_would_lose_something_is_left_out(tmp_path):
    trials = written_cues(np.random.default_rng(0), [1, 1])
    trials[1] = replace(trials[1], sentence="frío~")
    write_falcon(tmp_path / "in", {("held-out-calib", "2023.04.17"): trials})
    result = import_source(falcon_h2(tmp_path / "in"), tmp_path / "out", skip_bad=True)
    (problem,) = result.problems
    assert problem.trial == "block 1 trial 1"
    assert problem.field == "intervals/trials/cue"
    path = tmp_path / "out" / "t5.2023.04.17" / "data_train.hdf5"
    assert len(list(read_trials(path, labels_required=True))) == 1


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda root: None, "no such folder; give the folder of DANDI 000950"),
        (lambda root: root.write_text(""), "is no folder; give the folder of DANDI 000950"),
        (lambda root: root.mkdir(), "holds no NWB files of FALCON H2; give the folder of DANDI"),
        (
            lambda root: (root.mkdir(), (root / "sub-MonkeyL_ses-20120924.nwb").write_text("")),
            r"sub-MonkeyL_ses-20120924.nwb: no name of FALCON H2, such as sub-T5-held-in-calib_ses-",
        ),
        (
            lambda root: (root.mkdir(), (root / "T5_2022.13.99_held_in_calib.nwb").write_text("")),
            "T5_2022.13.99_held_in_calib.nwb: no name of FALCON H2",
        ),
    ],
)
def test_a_folder_that_is_not_h2_is_refused(tmp_path, make, says):
    make(tmp_path / "in")
    with pytest.raises(DataError, match=says):
        falcon_h2(tmp_path / "in")


def test_two_files_of_one_day_and_split_are_refused(tmp_path):
    write_falcon(tmp_path / "in", dandi=False)
    (tmp_path / "in" / "copy").mkdir()
    shutil.copy(tmp_path / "in" / CALIB, tmp_path / "in" / "copy")
    with pytest.raises(DataError, match=r"copy/T5_2022.+ are both held_in_calib of t5.2022.05.18"):
        falcon_h2(tmp_path / "in")


def test_a_day_that_is_not_the_one_of_the_name_is_refused(tmp_path):
    write_falcon(tmp_path, dandi=False)
    path = tmp_path / CALIB
    path.rename(path.with_name("T5_2022.06.01_held_in_calib.nwb"))
    with pytest.raises(FaultError) as error:
        read(tmp_path)
    assert error.value.field == "session_start_time"
    assert error.value.message == (
        "2022-05-18 found, the day of t5.2022.06.01 expected; give the file its own name"
    )


def test_a_withheld_trial_that_is_also_for_training_is_refused(tmp_path):
    trials: list[Written] = written_cues(np.random.default_rng(0), [1, 1])
    write_falcon(tmp_path, {("held-in-calib", DAY): trials, ("held-in-eval", DAY): trials[:1]})
    with pytest.raises(FaultError, match="begins before the one at 0 s has ended"):
        read(tmp_path)
