"""Packed data in TFRecords.

What TensorFlow's own readers find in them, and what the rest of the package does.
"""

import json
import pickle
import shutil
from pathlib import Path

import h5py
import numpy as np
import pytest

from cortext.data import Trial, make_trial, open_data, open_packed, pack, write_session
from cortext.data.conventions import Conventions
from cortext.errors import DataError
from cortext.text.inventory import CHARACTERS
from cortext_live.page.sources import Replay

pytestmark = pytest.mark.tf
tf = pytest.importorskip("tensorflow", reason="run `make test-tf`")

from cortext_tpu import tfrecords

SPEC = {
    "features": tf.io.FixedLenFeature([], tf.string),
    "shape": tf.io.FixedLenFeature([2], tf.int64),
    "labels": tf.io.FixedLenSequenceFeature([], tf.int64, allow_missing=True),
    "session": tf.io.FixedLenFeature([], tf.string),
    "sentence": tf.io.FixedLenSequenceFeature([], tf.string, allow_missing=True),
    "corpus": tf.io.FixedLenSequenceFeature([], tf.string, allow_missing=True),
    **{name: tf.io.FixedLenFeature([], tf.int64) for name in ("day", "block", "trial")},
}


@pytest.fixture(scope="module")
def with_corpus(recordings, tmp_path_factory) -> Path:
    """The recordings, and a session with a corpus, a sentence in another script, and no test
    trials.
    """
    root = tmp_path_factory.mktemp("with_corpus") / "data"
    shutil.copytree(recordings, root)
    features_TC = np.linspace(-70_000, 3, 50 * 16, dtype=np.float32).reshape(50, 16).clip(-60_000)
    trials = [
        Trial(features_TC, "t15.2023.09.01", 7, 3, "Größe ελ", np.array([1, 40]), "Switchboard")
    ]
    write_session(root / "t15.2023.09.01" / "data_train.hdf5", trials)
    return root


@pytest.fixture(scope="module")
def packed_records(with_corpus, tmp_path_factory) -> Path:
    """In files of at most two trials or so."""
    out = tmp_path_factory.mktemp("records") / "packed"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tfrecords, "FILE_BYTES", 4_000)
        pack(with_corpus, out, format="tfrecord")
    return out


def test_tensorflow_s_own_readers_find_every_trial_of_the_session_files(
    with_corpus, packed_records
):
    for split, n_trials in (("train", 28), ("val", 9), ("test", 6)):
        files = sorted(str(path) for path in packed_records.glob(f"{split}-*.tfrecord"))
        assert len(files) > 1
        assert files[0].endswith(f"{split}-00000.tfrecord")
        found = list(
            tf.data.TFRecordDataset(files).map(
                lambda record: tf.io.parse_single_example(record, SPEC)
            )
        )
        assert len(found) == n_trials
        for example in found:
            session = example["session"].numpy().decode()
            with h5py.File(with_corpus / session / f"data_{split}.hdf5") as file:
                groups = {int(group.attrs["trial_num"]): group for group in file.values()}
                group = groups[int(example["trial"])]
                expected_TC = group["input_features"][:].astype(np.float16)
                attributes = dict(group.attrs)
                labels = (
                    group["seq_class_ids"][: attributes["seq_len"]].tolist()
                    if split != "test"
                    else []
                )
            features_TC = tf.reshape(
                tf.io.decode_raw(example["features"], tf.float16), example["shape"]
            ).numpy()
            assert np.array_equal(features_TC, expected_TC)
            assert example["labels"].numpy().tolist() == labels
            assert int(example["block"]) == attributes["block_num"]
            assert int(example["day"]) == sorted(path.name for path in with_corpus.iterdir()).index(
                session
            )
            sentences = [] if split == "test" else [attributes["sentence_label"].encode()]
            assert example["sentence"].numpy().tolist() == sentences
            assert example["corpus"].numpy().tolist() == (
                [b"Switchboard"] if session == "t15.2023.09.01" else []
            )


def test_everything_reads_them_as_it_reads_a_memory_map(with_corpus, packed_records, tmp_path):
    maps, found = pack(with_corpus, tmp_path / "f16"), open_data(packed_records)
    assert (found.sessions, found.n_features, found.splits) == (
        maps.sessions,
        maps.n_features,
        maps.splits,
    )
    # A run that was begun with one may continue with the other.
    assert found.checksums == maps.checksums
    for name in maps.splits:
        ours, theirs = found.split(name), maps.split(name)
        for field in ("n_bins_N", "day_N", "block_N", "trial_N", "n_labels_N"):
            assert np.array_equal(getattr(ours, field), getattr(theirs, field))
        assert (ours.sentences, ours.corpora) == (theirs.sentences, theirs.corpora)
        chosen, subset = np.array([len(ours) - 1, 0, 3, 3]), [5, 0, 9]
        for a, b in (
            (ours, theirs),
            (ours.select(feature_subset=subset), theirs.select(feature_subset=subset)),
        ):
            one, two = a.batch(chosen, 200), b.batch(chosen, 200)
            assert np.array_equal(one.features_BTC, two.features_BTC)
            assert np.array_equal(one.labels_BU, two.labels_BU)
            assert np.array_equal(a.features(2), b.features(2))
        bad = {ours.session(1): {int(ours.block_N[1]): [int(ours.trial_N[1])]}}
        assert np.array_equal(ours.select(bad_trials=bad).features(1), theirs.features(2))
    ours = found.split("train")
    assert ours.features(1).flags.aligned
    assert not ours.features(1).flags.writeable
    assert np.array_equal(pickle.loads(pickle.dumps(ours)).features(4), ours.features(4))


def test_live_decoding_replays_them(packed_records):
    """It reads files instead of mapping them."""
    split, replay = open_packed(packed_records).split("val"), Replay(packed_records, "val")
    for number in (0, 8):
        assert np.array_equal(
            replay.trial(number).features_TC, split.features(number).astype(np.float32)
        )


def test_damage_is_found(packed_records, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(packed_records, copy)
    calls = []
    open_packed(copy).verify(lambda *progress: calls.append(progress))
    assert calls[-1][0] == calls[-1][1] > 0
    index = json.loads((copy / "index.json").read_text())["index"]["splits"]["val"]
    path = copy / next(iter(index["records"]))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(
        DataError,
        match=r"val-00000\.tfrecord: checksum \w{8} found, \w{8} expected; pack the session",
    ):
        open_packed(copy).verify()
    path.write_bytes(content[:-1])
    with pytest.raises(
        DataError,
        match=rf"val-00000\.tfrecord: {len(content) - 1} bytes found, {len(content)} expect",
    ):
        open_packed(copy)
    path.unlink()
    with pytest.raises(
        DataError, match=rf"val-00000\.tfrecord: 0 bytes found, {len(content)} expected"
    ):
        open_packed(copy)


def test_files_without_their_index_are_refused(packed_records, tmp_path):
    for path in packed_records.glob("*.tfrecord"):
        shutil.copy(path, tmp_path)
    with pytest.raises(
        DataError, match=r"not a packed directory \(no index.json\); make one with cortext pack"
    ):
        open_packed(tmp_path)


def test_an_older_directory_of_either_format_is_replaced(with_corpus, tmp_path):
    for format in ("f16", "tfrecord", "f16"):
        pack(with_corpus, tmp_path / "packed", format=format)
        suffixes = {path.suffix for path in (tmp_path / "packed").iterdir()}
        assert suffixes == {".json", ".npz", f".{format}"}


def test_a_full_disk_leaves_nothing(with_corpus, tmp_path):
    resource = pytest.importorskip("resource")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (3000, hard))
    try:
        with pytest.raises(DataError, match=r"new: cannot be written: .*too large"):
            pack(with_corpus, tmp_path / "new", format="tfrecord")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(tmp_path.iterdir())


def test_records_of_characters_in_10_ms_bins_are_checked_against_their_inventory(tmp_path):
    conventions = Conventions(CHARACTERS, bin_ms=10)
    long = "ab" * 300  # 600 tokens: 2 is a, 3 is b
    trials = [
        make_trial(np.ones((1_202, 4)), "lab.2026.01.02", 1, 0, long, conventions=conventions),
        make_trial(np.ones((60, 4)), "lab.2026.01.02", 1, 1, "a z", conventions=conventions),
    ]
    write_session(tmp_path / "data" / "lab.2026.01.02" / "data_train.hdf5", trials)
    packed = pack(tmp_path / "data", tmp_path / "packed", format="tfrecord", bin_ms=20, sums=[0])
    split = packed.split("train")
    assert packed.conventions.bin_ms == split.conventions.bin_ms == 20
    assert packed.conventions.inventory == CHARACTERS
    assert split.labels(0).tolist() == [2, 3] * 300
    assert split.labels(1).tolist() == [2, 1, 27]
    assert split.features(1)[:2].tolist() == [[2, 1, 1, 1]] * 2
    packed.verify()
    (record, _) = tf.data.TFRecordDataset([str(split.path)]).map(
        lambda record: tf.io.parse_single_example(record, SPEC)
    )
    assert record["shape"].numpy().tolist() == [601, 4]
    assert record["labels"].numpy().tolist() == [2, 3] * 300
