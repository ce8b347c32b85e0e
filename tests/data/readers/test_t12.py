"""Brain-to-Text '24: what is read of files that scipy.io.savemat wrote, and what is refused."""

import json
import re
import shutil

import numpy as np
import pytest
import scipy.io
from foreign_files import T12_DAYS, t12_trials, write_t12
from foreign_matlab import cells, column, save_v5, save_v73
from refusals import complaint

from cortext.cli import run
from cortext.data import open_dataset
from cortext.errors import ConfigError, DataError
from cortext.text import to_phonemes
from cortext.text.inventory import RELEASE
from cortext_data.readers.importing import import_source
from cortext_data.readers.t12 import t12

FIRST, SECOND = T12_DAYS
SAID = ("Hi there.", "It's me!", "Oh, no.", "We see you?", "Not yet.")
SPLITS = {"train": "train", "test": "val", "competitionHoldOut": "test"}


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    """A small copy of the release, only to be read, and what was written to it."""
    root = tmp_path_factory.mktemp("release")
    rng = np.random.default_rng(0)
    bins = (80, 100)
    material = {}
    for day in T12_DAYS:
        material["train", day] = t12_trials(rng, [3, 3, 3, 4, 4], SAID, bins)
        material["test", day] = t12_trials(rng, [9, 9], SAID, bins)
    material["competitionHoldOut", SECOND] = t12_trials(rng, [1, 1, 2], ["redacted"], bins)
    return root, write_t12(root, material)


@pytest.fixture
def own(release, tmp_path):
    """A copy of the release, to be damaged: the folder competitionData."""
    return shutil.copytree(release[0] / "competitionData", tmp_path / "competitionData")


@pytest.fixture
def first_day(release, tmp_path):
    """The training and test file of one day, to be damaged."""
    return shutil.copytree(
        release[0] / "competitionData",
        tmp_path / "competitionData",
        ignore=shutil.ignore_patterns(f"{SECOND}.mat"),
    )


def imported(source, out, skip_bad=False, normalise=None, **options):
    return import_source(t12(source, **options), out, skip_bad=skip_bad, normalise=normalise)


def published_features(path, columns=slice(0, 128), threshold="tx1"):
    """Return z-scored trials as the organisers' notebook makes them of a file."""
    content = scipy.io.loadmat(path)
    x = [
        np.concatenate([crossings[:, columns], power[:, columns]], axis=1).astype(np.float64)
        for crossings, power in zip(content[threshold][0], content["spikePow"][0], strict=True)
    ]
    blocks = content["blockIdx"].ravel()
    for block in np.unique(blocks):
        rows = np.flatnonzero(blocks == block)
        every = np.concatenate([x[i] for i in rows])
        for i in rows:
            x[i] = (x[i] - every.mean(axis=0)) / (every.std(axis=0) + 1e-8)
    return x


def trials_of(out, split, session):
    return list(open_dataset(out).trials(split, [session]))


def test_every_file_becomes_a_split_as_the_organisers_make_it(release, tmp_path):
    root, written = release
    done = imported(root / "competitionData", tmp_path / "out")
    assert (done.n_written, done.problems, done.notes) == (5, [], [])
    assert len(written) == 5
    for (folder, session), expected in written.items():
        found = trials_of(tmp_path / "out", SPLITS[folder], session)
        assert [trial.block for trial in found] == [trial.block for trial in expected]
        features = published_features(root / "competitionData" / folder / f"{session}.mat")
        for trial, x_TC in zip(found, features, strict=True):
            assert trial.features_TC.shape == x_TC.shape
            np.testing.assert_allclose(trial.features_TC, x_TC, atol=2e-6)
        for trial, one in zip(found, expected, strict=True):
            if folder == "competitionHoldOut":
                assert (trial.sentence, trial.phoneme_ids) == (None, None)
            else:
                assert trial.sentence == one.sentence
                assert RELEASE.names(trial.phoneme_ids) == to_phonemes(one.sentence)
    assert [trial.trial for trial in trials_of(tmp_path / "out", "train", FIRST)] == [0, 1, 2, 0, 1]


def test_columns_and_threshold_are_chosen(release, tmp_path):
    root, written = release
    imported(root, tmp_path / "out", columns="3-4, 200", threshold="tx3", normalise="none")
    for trial, one in zip(
        trials_of(tmp_path / "out", "train", FIRST), written["train", FIRST], strict=True
    ):
        chosen = [2, 3, 199]
        expected = [one.arrays["tx3"][:, chosen], one.arrays["spikePow"][:, chosen]]
        np.testing.assert_array_equal(trial.features_TC, np.concatenate(expected, axis=1))
    with pytest.raises(DataError, match="an import with other columns, threshold; choose"):
        imported(root, tmp_path / "out", normalise="none")


def test_bins_are_joined_by_sums_of_crossings_and_means_of_power(release, tmp_path):
    root, written = release
    source = t12(root, columns="1-2")
    import_source(source, tmp_path / "out", bin_ms=40, normalise="none")
    trial = trials_of(tmp_path / "out", "train", FIRST)[0]
    arrays = written["train", FIRST][0].arrays
    two = arrays["tx1"][:2, :2].astype(float), arrays["spikePow"][:2, :2].astype(float)
    expected = [*two[0].sum(axis=0), *two[1].mean(axis=0)]
    np.testing.assert_allclose(trial.features_TC[0], expected, rtol=1e-6)


@pytest.mark.parametrize("text", ["0-3", "4-3", "1-", "a", "", "1,,2", "1-99999", "1-4,3"])
def test_columns_that_are_none_are_refused(text, release):
    with pytest.raises(ConfigError, match=r"columns are '.*'; (ranges such as|each can be)"):
        t12(release[0], columns=text)


def test_a_threshold_that_is_none_is_refused(release):
    with pytest.raises(ConfigError, match="unknown threshold 'tx5'; did you mean 'tx4'"):
        t12(release[0], threshold="tx5")


@pytest.mark.parametrize("place", ["competitionData", "", "a/b/c/competitionData", "t12_data"])
def test_the_folder_is_found_where_unpacking_puts_it(place, own, tmp_path):
    parent = tmp_path / "given"
    (parent / place).parent.mkdir(parents=True, exist_ok=True)
    shutil.move(own, parent / place)
    (parent / place / "train" / f"._{FIRST}.mat").write_bytes(b"of macOS")
    assert [recording.session for recording in t12(parent).recordings] == [FIRST] * 2 + [SECOND] * 3


def test_the_sentences_of_the_holdout_are_never_read(own, tmp_path):
    path = own / "competitionHoldOut" / f"{SECOND}.mat"
    rewrite(path, lambda content: content.pop("sentenceText"))
    assert imported(own, tmp_path / "out").problems == []
    assert len(trials_of(tmp_path / "out", "test", SECOND)) == 3


def test_trials_keep_the_order_of_the_file_where_blocks_alternate(own, tmp_path):
    path = own / "competitionHoldOut" / f"{SECOND}.mat"
    rewrite(path, lambda content: content.update(blockIdx=column([2, 1, 2], "u1")))
    imported(own, tmp_path / "out")
    found = trials_of(tmp_path / "out", "test", SECOND)
    assert [(trial.block, trial.trial) for trial in found] == [(2, 0), (1, 0), (2, 1)]
    for trial, x_TC in zip(found, published_features(path), strict=True):
        np.testing.assert_allclose(trial.features_TC, x_TC, atol=2e-6)


def test_files_saved_again_as_version_7_3_give_the_same(own, release, tmp_path):
    for path in own.glob("*/*.mat"):
        content = {k: v for k, v in scipy.io.loadmat(path).items() if not k.startswith("__")}
        content["sentenceText"] = [str(text) for text in content["sentenceText"]]
        save_v73(path, content)
    imported(own, tmp_path / "new")
    imported(release[0], tmp_path / "old")
    for session in T12_DAYS:
        pairs = (trials_of(tmp_path / name, "train", session) for name in ("new", "old"))
        for new, old in zip(*pairs, strict=True):
            assert new.sentence == old.sentence
            np.testing.assert_array_equal(new.features_TC, old.features_TC)


def rewrite(path, change):
    """Save a file again with changed variables."""
    content = {k: v for k, v in scipy.io.loadmat(path).items() if not k.startswith("__")}
    change(content)
    save_v5(path, content)


def cell(name, number, change):
    """Return a change of one cell of a variable."""

    def changed(content):
        content[name][0, number] = change(content[name][0, number])

    return changed


def texts(*sentences):
    width = max(map(len, sentences))
    return lambda content: content.update(
        sentenceText=np.array([s.ljust(width) for s in sentences])
    )


def with_nan(x_TC):
    x_TC[7, 3] = np.nan
    return x_TC


OF_A_FILE = {
    "a variable is missing": (
        lambda content: content.pop("spikePow"),
        "spikePow: .*missing",
    ),
    "fewer cells": (
        lambda content: content.update(tx1=content["tx1"][:, :4]),
        "tx1: 4 trials found, 5 expected as in blockIdx; take the file of the release",
    ),
    "fewer cells of power": (
        lambda content: content.update(spikePow=content["spikePow"][:, :4]),
        "spikePow: 4 trials found, 5 expected as in blockIdx; take",
    ),
    "fewer sentences": (
        texts(*SAID[:4]),
        "sentenceText: 4 trials found, 5 expected as in blockIdx; take",
    ),
    "fewer block numbers": (
        lambda content: content.update(blockIdx=column([3, 3], "u1")),
        "tx1: 5 trials found, 2 expected as in blockIdx; take",
    ),
    "no trials": (
        lambda content: content.update(blockIdx=np.zeros((0, 1))),
        "blockIdx: no trials found, the number of a block expected; take",
    ),
    "half a block": (
        lambda content: content.update(blockIdx=column([3, 3, 3.5, 4, 4])),
        "blockIdx: 3.5 found, the number of a block expected; take",
    ),
    "a block that is NaN": (
        lambda content: content.update(blockIdx=column([3, 3, np.nan, 4, 4])),
        "blockIdx: nan found, the number of a block",
    ),
    "a negative block": (
        lambda content: content.update(blockIdx=column([3, 3, -1, 4, 4])),
        "blockIdx: -1 found, the number of a block",
    ),
    "numbers for sentences": (
        lambda content: content.update(sentenceText=np.zeros((5, 9))),
        "sentenceText: numbers found, texts expected",
    ),
    "one array for cells": (
        lambda content: content.update(tx1=np.zeros((50, 256), np.uint8)),
        "tx1: numbers found, a cell array expected",
    ),
    "a struct for cells": (
        lambda content: content.update(tx1={"x": content["tx1"]}),
        "tx1: a struct found, a cell array expected",
    ),
    "columns that are not there": (
        lambda content: content.update(
            {name: cells([x[:, :64] for x in content[name][0]]) for name in ("tx1", "spikePow")}
        ),
        "tx1: 64 columns found, 128 asked for; choose others with --columns",
    ),
}
OF_A_TRIAL = {
    "arrays of other lengths": (
        cell("spikePow", 1, lambda x_TC: x_TC[:-2]),
        r"spikePow: \[\d+, 256\] found, \[\d+, 256\] expected; take the file of the release",
    ),
    "one array transposed": (
        cell("spikePow", 1, np.transpose),
        r"spikePow: \[256, \d+\] found, \[\d+, 256\] expected; take",
    ),
    "both arrays transposed": (
        lambda content: [cell(name, 1, np.transpose)(content) for name in ("tx1", "spikePow")],
        r"tx1: \[256, \d+\] found, \[bins, 256\] expected as in other trials; take",
    ),
    "three dimensions": (
        cell("tx1", 1, lambda x_TC: x_TC[:, :, None].repeat(2, axis=2)),
        r"tx1: \[\d+, 256, 2\] found, \[bins, 256\] expected as in other trials; take",
    ),
    "no bins": (
        cell("tx1", 1, lambda x_TC: x_TC[:0]),
        r"spikePow: \[\d+, 256\] found, \[0, 256\] expected; take",
    ),
    "NaN": (
        cell("spikePow", 1, with_nan),
        "input_features: 1 NaN or Inf found, the first at bin 7 of feature 131; finite values",
    ),
    "crossings that were scaled": (
        cell("tx1", 1, lambda x_TC: x_TC - 0.5),
        "tx1: -?0.5 found, counts of threshold crossings expected; take",
    ),
    "a sentence that is blank": (
        texts(SAID[0], " ", *SAID[2:]),
        "sentenceText: no sentence found, one expected; take",
    ),
    "letters that would get lost": (
        texts(SAID[0], "a café", *SAID[2:]),
        "sentence_label: language 'en' would lose é in 'a café'; choose",
    ),
    "a number in the sentence": (
        texts(SAID[0], "2 of us", *SAID[2:]),
        "sentence_label: language 'en' would lose 2 in '2 of us'; choose",
    ),
    "a sentence too long for its trial": (
        texts(SAID[0], "an extraordinarily complicated consideration", *SAID[2:]),
        r"n_time_steps: \d+ bins give \d+ patches, the label of \d+ phonemes needs at least",
    ),
    "too short a trial": (
        lambda content: [cell(name, 1, lambda x: x[:9])(content) for name in ("tx1", "spikePow")],
        "input_features: 9 bins found, at least 14",
    ),
}


@pytest.mark.parametrize("name", OF_A_FILE)
def test_a_damaged_file_is_refused_in_one_line_and_the_others_are_written(
    name, first_day, tmp_path
):
    change, says = OF_A_FILE[name]
    path = first_day / "train" / f"{FIRST}.mat"
    rewrite(path, change)
    done = imported(first_day, tmp_path / "out")
    (problem,) = done.problems
    assert str(problem).startswith(f"{path}: ")
    assert problem.trial is None
    matches(says, problem)
    assert (done.n_written, done.n_refused) == (1, 1)


@pytest.mark.parametrize("name", OF_A_TRIAL)
def test_a_bad_trial_is_named_and_left_out_where_that_is_asked_for(name, first_day, tmp_path):
    change, says = OF_A_TRIAL[name]
    rewrite(first_day / "train" / f"{FIRST}.mat", change)
    done = imported(first_day, tmp_path / "out")
    (problem,) = done.problems
    assert problem.trial == "block 3 trial 1"
    matches(says, problem)
    assert (done.n_written, done.n_refused) == (1, 1)
    assert imported(first_day, tmp_path / "out", skip_bad=True).n_written == 1
    found = trials_of(tmp_path / "out", "train", FIRST)
    assert [(trial.block, trial.trial) for trial in found] == [(3, 0), (3, 2), (4, 0), (4, 1)]


def matches(says, problem):
    text = str(problem).removeprefix(f"{problem.file}: ").removeprefix(f"{problem.trial}: ")
    assert re.match(says, text), text
    assert text.isprintable()


@pytest.mark.parametrize("n_bytes", [0, 100, 128, 5000, -1])
def test_a_truncated_file_is_refused(n_bytes, first_day, tmp_path):
    path = first_day / "train" / f"{FIRST}.mat"
    path.write_bytes(path.read_bytes()[:n_bytes])
    done = imported(first_day, tmp_path / "out")
    (problem,) = done.problems
    assert (problem.file, problem.trial, done.n_refused) == (str(path), None, 1)


def test_a_bad_trial_of_the_holdout_is_never_left_out(own, tmp_path, capsys):
    path = own / "competitionHoldOut" / f"{SECOND}.mat"
    rewrite(path, cell("spikePow", 1, with_nan))
    given = ["import", "t12", str(own), "--out", str(tmp_path / "out"), "--skip-bad"]
    assert run(given) == 2
    printed = capsys.readouterr()
    named, error = printed.err.splitlines()[-2:]
    assert named.startswith(f"{path}: block 1 trial 1: input_features: 1 NaN or Inf found")
    assert "--skip-bad" not in named
    assert "problems: 1; recordings not written: 1; repair those whose trials" in error
    assert not (tmp_path / "out" / SECOND / "data_test.hdf5").exists()
    assert (tmp_path / "out" / SECOND / "data_val.hdf5").exists()


def test_trials_that_lie_in_two_folders_are_refused(own, tmp_path):
    for folder, other in (("test", "train"), ("competitionHoldOut", "test")):
        wrong = shutil.copytree(own, tmp_path / folder / "competitionData")
        path = wrong / folder / f"{SECOND}.mat"
        shutil.copy(wrong / other / f"{SECOND}.mat", path)
        (problem,) = imported(wrong, tmp_path / folder / "out").problems
        says = f"{path}: holds the trials of {other}/{SECOND}.mat; take the file of the release"
        assert str(problem) == says


def test_equal_numbers_of_blocks_alone_are_no_fault(own, tmp_path):
    """Blocks may be counted in each file; z-scores are those of a file, as published."""
    paths = [own / folder / f"{FIRST}.mat" for folder in ("train", "test")]
    rewrite(paths[1], lambda content: content.update(blockIdx=column([3, 3], "u1")))
    assert imported(own, tmp_path / "out").problems == []
    found = trials_of(tmp_path / "out", "val", FIRST)
    for trial, x_TC in zip(found, published_features(paths[1]), strict=True):
        np.testing.assert_allclose(trial.features_TC, x_TC, atol=2e-6)


def test_what_is_no_copy_of_the_release_is_refused_in_one_line(own, tmp_path, capsys):
    def refusal(source):
        return complaint(capsys, "import", "t12", source, "--out", tmp_path / "out")

    (tmp_path / "empty").mkdir()
    (tmp_path / "competitionData.tar.gz").write_bytes(b"")
    assert "holds no folders train and test with files such as" in refusal(tmp_path / "empty")
    assert "holds no folders train and test with files such as" in refusal(own / "train")
    assert "nowhere: no such directory; give the folder that" in refusal(tmp_path / "nowhere")
    assert "tar.gz: is a file; unpack it, then give the folder" in refusal(
        tmp_path / "competitionData.tar.gz"
    )
    for name in ("t15.2023.08.11.mat", "t12.2022.13.41.mat", "t12.2022.04.28_raw.mat"):
        other = own / "test" / name
        shutil.copy(own / "test" / f"{FIRST}.mat", other)
        assert f"{other}: is no session of T12: a name such as t12.2022.04.28.mat" in refusal(own)
        other.unlink()
    shutil.copytree(own, tmp_path / "again" / "competitionData")
    assert "holds the recordings twice, in again/competitionData and competitionData; give" in (
        refusal(tmp_path)
    )
    assert not (tmp_path / "out").exists()


def test_an_import_continues_where_it_was(own, tmp_path, capsys):
    path = own / "test" / f"{SECOND}.mat"
    whole = path.read_bytes()
    path.write_bytes(whole[:1000])
    given = ["import", "t12", str(own), "--out", str(tmp_path / "out")]
    assert run(given) == 2
    path.write_bytes(whole)
    capsys.readouterr()
    assert run([*given, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["written"], found["kept"], found["refused"]) == (1, 4, 0)
    assert [row["n_trials"] for row in found["data"]["totals"]] == [10, 4, 3]


def test_labels_agree_with_the_published_phonemes_as_far_as_the_dictionary_does(real_data):
    """The organisers' labels are of g2p_en; words with two pronunciations differ."""
    lines = (real_data / "phonemes" / "t12_val_even.jsonl").read_text().splitlines()
    trials = [json.loads(line) for line in lines]
    same = 0
    for trial in trials:
        ours = ["|" if symbol == "SIL" else symbol for symbol in to_phonemes(trial["reference"])]
        same += ours == trial["true_phonemes"]
    assert (same, len(trials)) == (418, 440)
