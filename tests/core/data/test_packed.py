import json
import os
import pickle
import subprocess
import sys
import time
import tracemalloc
from pathlib import Path

import h5py
import numpy as np
import pytest

from cortext.data import Trial, open_data, open_packed, pack, write_session
from cortext.data.packed import PackedDataset
from cortext.data.packed_split import MAX_BUFFERS, BufferPool
from cortext.errors import ConfigError, DataError

LABELS = [8, 3, 40, 12, 12, 40]


@pytest.fixture
def packed(dataset_root: Path, tmp_path: Path) -> PackedDataset:
    return pack(dataset_root, tmp_path / "packed")


def rounded(root: Path, session: str, split: str, number: int) -> np.ndarray:
    with h5py.File(root / session / f"data_{split}.hdf5") as file:
        return file[f"trial_{number:04d}/input_features"][:].astype(np.float16)


def test_every_trial_is_the_session_file_s_in_half_precision(
    dataset_root: Path, packed: PackedDataset
) -> None:
    assert packed.splits == ("train", "val", "test")
    assert packed.sessions == ("t15.2023.08.11", "t15.2023.08.13")
    assert packed.n_features == 8
    split = packed.split("train")
    assert len(split) == 8
    assert split.day_N.tolist() == [0] * 4 + [1] * 4
    assert split.trial_N.tolist() == [0, 1, 2, 3] * 2
    assert split.block_N.tolist() == [1] * 8
    for i in range(8):
        expected = rounded(dataset_root, split.session(i), "train", i % 4)
        assert split.features(i).dtype == np.float16
        assert np.array_equal(split.features(i), expected)
        assert split.n_bins_N[i] == len(expected)
        assert split.labels(i).tolist() == LABELS
        assert split.labels(i).dtype == np.int64
        assert split.sentence(i) == f"sentence number {('zero', 'one', 'two', 'three')[i % 4]}"
    trial = split.trial(5)
    assert (trial.name, trial.sentence, trial.corpus) == (
        "t15.2023.08.13/block 1/trial 1",
        "sentence number one",
        None,
    )
    assert trial.features_TC.dtype == np.float32
    assert packed.split("test").labels(0) is None
    assert packed.split("test").sentence(0) is None
    with pytest.raises(DataError, match="did you mean 'train'"):
        packed.split("trian")


def test_features_are_a_view_of_the_map(packed: PackedDataset) -> None:
    features_TC = packed.split("train").features(3)
    assert not features_TC.flags.owndata
    assert not features_TC.flags.writeable


def test_batch_pads_with_zeros(packed: PackedDataset) -> None:
    split = packed.split("train")
    indices = [6, 1, 1]
    batch = split.batch(indices)
    longest = int(split.n_bins_N[indices].max())
    assert batch.features_BTC.shape == (3, longest, 8)
    assert batch.n_bins_B.tolist() == split.n_bins_N[indices].tolist()
    for features_TC, i in zip(batch.features_BTC, indices, strict=True):
        assert np.array_equal(features_TC[: split.n_bins_N[i]], split.features(i))
        assert not features_TC[split.n_bins_N[i] :].any()
    assert batch.labels_BU.tolist() == [LABELS] * 3
    assert batch.n_labels_B.tolist() == [6] * 3
    assert batch.day_B.tolist() == [1, 0, 0]
    assert split.batch(indices, pad_to=200).features_BTC.shape == (3, 200, 8)
    assert not split.batch(indices, pad_to=200).features_BTC[:, longest:].any()
    with pytest.raises(DataError, match="pad_to is 30"):
        split.batch(indices, pad_to=30)
    assert packed.split("test").batch([0]).labels_BU.shape == (1, 0)


def test_labels_of_different_length_are_padded_with_blanks(tmp_path: Path, some_trials) -> None:
    trials = some_trials("t15.2023.08.11", 1, 2)
    longer = Trial(
        trials[1].features_TC, trials[1].session, 1, 9, "ah ah", np.array([1, 40, 1, 40, 2, 3, 40])
    )
    write_session(tmp_path / "data" / "t15.2023.08.11" / "data_train.hdf5", [trials[0], longer])
    batch = pack(tmp_path / "data", tmp_path / "packed").split("train").batch([1, 0])
    assert batch.labels_BU.tolist() == [[1, 40, 1, 40, 2, 3, 40], [*LABELS, 0]]
    assert batch.labels_BU.dtype == np.int64


def test_a_batch_that_is_held_is_not_overwritten(packed: PackedDataset) -> None:
    split = packed.split("train")
    held = [split.batch([i, 0]) for i in range(2 * MAX_BUFFERS)]
    for i, batch in enumerate(held):
        assert np.array_equal(batch.features_BTC[0, : split.n_bins_N[i % 8]], split.features(i % 8))


def test_memory_of_a_dropped_array_is_used_again_and_a_view_keeps_it() -> None:
    pool = BufferPool(np.float16)
    first = pool.array((4, 100))
    address = first.ctypes.data
    del first
    second = pool.array((3, 50))
    assert second.ctypes.data == address
    row = second[1, 10:]
    del second
    assert pool.array((4, 100)).ctypes.data != address
    del row
    assert pool.array((4, 100)).ctypes.data == address
    assert pool.array((40, 1000)).shape == (40, 1000)


def test_selection_of_trials_and_features(packed: PackedDataset) -> None:
    split = packed.split("train")
    bad = {"t15.2023.08.13": {"1": [0, 2], 7: [1]}, "t15.1999.01.01": {1: [0]}}
    some = split.select(bad_trials=bad, feature_subset=[6, 1, 2])
    assert some.trial_N.tolist() == [0, 1, 2, 3, 1, 3]
    assert some.day_N.tolist() == [0, 0, 0, 0, 1, 1]
    assert some.n_features == 3
    assert np.array_equal(some.features(4), split.features(5)[:, [6, 1, 2]])
    assert np.array_equal(some.batch([4]).features_BTC[0], split.features(5)[:, [6, 1, 2]])
    assert some.sentence(4) == split.sentence(5)
    assert np.array_equal(
        some.select(feature_subset=[2, 0]).features(0), split.features(0)[:, [2, 6]]
    )
    contiguous = split.select(feature_subset=[3, 4, 5])
    assert not contiguous.features(0).flags.owndata
    assert np.array_equal(contiguous.features(0), split.features(0)[:, 3:6])
    only = split.select(sessions=["t15.2023.08.13"])
    assert only.day_N.tolist() == [1] * 4
    both = packed.select(feature_subset=range(4), bad_trials=bad)
    assert (both.n_features, both.split("val").n_features, len(both.split("train"))) == (4, 4, 6)
    with pytest.raises(DataError, match="unknown session"):
        split.select(sessions=["t15"])
    for subset, message in (
        ([8], "feature 8; the data has 0 to 7"),
        ([], "empty"),
        ([1, 1], "twice"),
    ):
        with pytest.raises(ConfigError, match=message):
            split.select(feature_subset=subset)


def test_worker_processes_map_the_file_themselves(packed: PackedDataset) -> None:
    split = packed.split("train")
    split.batch([0])
    again = pickle.loads(pickle.dumps(split))
    assert np.array_equal(again.features(2), split.features(2))
    assert len(pickle.dumps(split)) < split.path.stat().st_size


def test_session_files_are_packed_once_and_again_when_they_change(
    dataset_root: Path, some_trials
) -> None:
    first = open_data(dataset_root)
    assert first.path == dataset_root / ".packed"
    made = (first.path / "index.json").stat().st_mtime_ns
    assert (open_data(dataset_root).path / "index.json").stat().st_mtime_ns == made

    changed = dataset_root / "t15.2023.08.11" / "data_train.hdf5"
    write_session(changed, some_trials("t15.2023.08.11", 5, n_trials=3))
    assert len(open_data(dataset_root).split("train")) == 7
    (dataset_root / "t15.2023.08.11" / "data_val.hdf5").unlink()
    assert open_data(dataset_root).splits == ("train", "test")
    made = (first.path / "index.json").stat().st_mtime_ns
    os.utime(changed, ns=(time.time_ns(), time.time_ns() + 10))
    assert (open_data(dataset_root).path / "index.json").stat().st_mtime_ns > made


def test_a_damaged_cache_is_made_again(dataset_root: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    open_data(dataset_root, cache)
    (cache / "train.f16").write_bytes(b"")
    assert len(open_data(dataset_root, cache).split("train")) == 8


def test_a_packed_directory_is_data_while_its_source_stays_as_it_was(
    dataset_root: Path, tmp_path: Path, some_trials
) -> None:
    pack(dataset_root, tmp_path / "packed")
    assert open_data(tmp_path / "packed").n_features == 8
    write_session(
        dataset_root / "t15.2023.08.11" / "data_train.hdf5", some_trials("t15.2023.08.11", 5)
    )
    with pytest.raises(
        DataError, match=f"have changed since it was packed; run cortext pack {dataset_root} --out"
    ):
        open_data(tmp_path / "packed")
    for path in dataset_root.glob("*/*.hdf5"):
        path.unlink()
    assert not open_data(tmp_path / "packed").stale()
    dataset_root.rename(tmp_path / "moved")
    assert not open_data(tmp_path / "packed").stale()


def test_a_cache_made_with_bad_trials_left_out_is_refused_without(dataset_root: Path) -> None:
    with h5py.File(dataset_root / "t15.2023.08.11" / "data_train.hdf5", "r+") as file:
        file["trial_0001"].attrs["n_time_steps"] = 1000
    assert len(open_data(dataset_root, skip_bad=True).split("train")) == 7
    assert len(open_data(dataset_root, skip_bad=True).bad_trials) == 1
    with pytest.raises(DataError, match="trial_0001: n_time_steps: 1000 found"):
        open_data(dataset_root)


def test_damage_is_found(packed: PackedDataset, tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    packed.verify(lambda *progress: calls.append(progress))
    assert calls[-1][0] == calls[-1][1] > 0
    path = packed.path / "val.f16"
    content = bytearray(path.read_bytes())
    content[100] ^= 1
    path.write_bytes(content)
    with pytest.raises(
        DataError,
        match=r"val\.f16: checksum \w{8} found, \w{8} expected; pack the session files again",
    ):
        open_packed(packed.path).verify()
    path.write_bytes(content[:-1])
    with pytest.raises(
        DataError, match=rf"{len(content) - 1} bytes found, {len(content)} expected"
    ):
        open_packed(packed.path)


@pytest.mark.parametrize("name", ["index.json", "index.npz"])
def test_a_damaged_index_is_found(packed: PackedDataset, name: str) -> None:
    path = packed.path / name
    content = path.read_bytes()
    for damaged in (content[:50], content.replace(b"8", b"9"), b"", b"[]"):
        path.write_bytes(damaged)
        with pytest.raises(DataError, match=r"damaged|format"):
            open_packed(packed.path)


def test_other_directories_and_versions_are_refused(packed: PackedDataset, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no such directory"):
        open_packed(tmp_path / "absent")
    with pytest.raises(DataError, match=r"not a packed directory \(no index.json\)"):
        open_packed(tmp_path)
    outer = json.loads((packed.path / "index.json").read_text())
    (packed.path / "index.json").write_text(json.dumps(outer | {"format_version": 2}))
    with pytest.raises(DataError, match="version 2 found, 'cortext-packed' version 1 expected"):
        open_packed(packed.path)


def test_only_a_packed_directory_is_replaced(
    dataset_root: Path, packed: PackedDataset, tmp_path: Path, some_trials
) -> None:
    write_session(
        dataset_root / "t15.2023.08.11" / "data_train.hdf5",
        some_trials("t15.2023.08.11", 5, n_trials=1),
    )
    assert len(pack(dataset_root, packed.path).split("train")) == 5
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("x")
    with pytest.raises(DataError, match="exists and is not a packed directory"):
        pack(dataset_root, tmp_path / "mine")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "mine", "packed"]


def test_another_format_is_refused_before_anything_is_written(
    dataset_root: Path, tmp_path: Path
) -> None:
    with pytest.raises(
        ConfigError, match="unknown format 'zip' of packed data; use f16 or tfrecord"
    ):
        pack(dataset_root, tmp_path / "new", format="zip")
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_a_directory_without_a_name_of_its_own_is_refused(
    dataset_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    with pytest.raises(DataError, match=r"^\.: has no name"):
        pack(dataset_root, ".")


def test_full_disk_leaves_nothing_and_the_old_directory_untouched(
    dataset_root: Path, packed: PackedDataset, tmp_path: Path, full_disk
) -> None:
    for out in (tmp_path / "new", packed.path):
        with (
            full_disk(2000),
            pytest.raises(DataError, match=r"cannot be written: .*free some space"),
        ):
            pack(dataset_root, out)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data", "packed"]
    open_packed(packed.path).verify()


def test_progress_ends_at_the_number_of_trials(dataset_root: Path, tmp_path: Path) -> None:
    calls: list[tuple[int, int]] = []
    pack(dataset_root, tmp_path / "packed", progress=lambda *progress: calls.append(progress))
    assert calls == [(done, 20) for done in range(1, 21)]


def test_packed_data_are_not_packed_again(dataset_root: Path, tmp_path: Path) -> None:
    packed = pack(dataset_root, tmp_path / "packed")
    says = "is packed already, and every command takes it as it is; to pack the session files again"
    for data in (packed, packed.path, str(packed.path)):
        with pytest.raises(DataError, match=f"{says}, give {dataset_root}$"):
            pack(data, tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_packing_holds_a_few_trials_in_memory(tmp_path: Path) -> None:
    features_TC = np.ones((1000, 200), np.float32)  # 0.8 MB
    trials = (Trial(features_TC, "s", 1, number, "ah", np.array([1, 40])) for number in range(60))
    write_session(tmp_path / "data" / "s" / "data_train.hdf5", trials)
    tracemalloc.start()
    try:
        pack(tmp_path / "data", tmp_path / "packed")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 6 * features_TC.nbytes


@pytest.mark.slow
def test_reading_batches_is_many_times_faster_than_the_release_s_way(tmp_path: Path) -> None:
    """The benchmark, small; its figure differs from processor to processor (12 to 26 times)."""
    script = Path(__file__).parents[3] / "benchmarks" / "data_loading.py"
    out = tmp_path / "numbers.json"
    shape = ["--sessions", "4", "--trials", "20", "--batches", "8", "--json", str(out)]
    run = subprocess.run(
        [sys.executable, str(script), *shape], capture_output=True, text=True, check=True
    )
    numbers = json.loads(out.read_text())
    assert numbers["ratio"] >= 5
    # New memory takes 44 large pages, or 20,000 small ones.
    assert numbers["packed"]["fresh_pages_median"] < 20
    assert "ratio of trials/s" in run.stdout


def test_packing_again_loses_no_file_of_the_user(dataset_root: Path, packed: PackedDataset) -> None:
    (packed.path / "notes.txt").write_text("mine")
    with pytest.raises(DataError, match=r"holds 'notes.txt', which is no part of packed data"):
        pack(dataset_root, packed.path)
    assert (packed.path / "notes.txt").read_text() == "mine"
    (packed.path / "notes.txt").unlink()
    pack(dataset_root, packed.path)


def test_packed_data_that_a_kill_left_without_a_name_are_opened(packed: PackedDataset) -> None:
    left = packed.path.with_name(f".{packed.path.name}.0123abcd-0123456789abcdef.tmp.old")
    packed.path.rename(left)
    assert open_packed(packed.path).path == packed.path
    assert not left.exists()


@pytest.mark.parametrize(
    ("chosen", "says"),
    [
        ([0, 99], "there is no trial 99; split 'train' has 8"),
        ([[0, 1]], r"indices have shape \[1, 2\]"),
        ([0.5], "indices have shape .* type float64; whole numbers"),
    ],
)
def test_trials_that_there_are_not_are_refused(dataset_root: Path, tmp_path, chosen, says) -> None:
    split = pack(dataset_root, tmp_path / "packed").split("train")
    with pytest.raises(DataError, match=says):
        split.batch(chosen)
