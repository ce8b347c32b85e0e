"""Every bad input gives one line with the file, the trial, the field, what was found and
expected, and what to do.
"""

from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from cortext.data import Problem, open_dataset, pack
from cortext.data.dataset import read_description
from cortext.errors import DataError

BAD = "trial_0002"


def damage(change: Callable[[h5py.Group], object]) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        with h5py.File(path, "r+") as file:
            change(file[BAD])

    return apply


def put(name: str, values: object) -> Callable[[Path], None]:
    def change(group: h5py.Group) -> None:
        del group[name]
        group[name] = values

    return damage(change)


def poke(value: float) -> Callable[[Path], None]:
    return damage(lambda group: group["input_features"].__setitem__((5, 3), value))


def attribute(name: str, value: object) -> Callable[[Path], None]:
    return damage(lambda group: group.attrs.__setitem__(name, value))


def labels(*tokens: int) -> Callable[[Path], None]:
    return put("seq_class_ids", np.pad(tokens, (0, 500 - len(tokens))))


def too_short(path: Path) -> None:
    """7 frames need 14 + 4 * 6 = 38 bins."""
    attribute("n_time_steps", 37)(path)


def another_value(path: Path) -> None:
    """A checksum in the file tells that the array is not what was written."""
    with h5py.File(path, "r+") as file:
        values = file[BAD]["input_features"][:]
        del file[BAD]["input_features"]
        dataset = file[BAD].create_dataset(
            "input_features", data=values, chunks=values.shape, fletcher32=True
        )
        offset = dataset.id.get_chunk_info(0).byte_offset
    content = bytearray(path.read_bytes())
    content[offset] ^= 1
    path.write_bytes(content)


def instead_of_the_group(value: object) -> Callable[[Path], None]:
    def apply(path: Path) -> None:
        with h5py.File(path, "r+") as file:
            del file[BAD]
            file[BAD] = value

    return apply


TRIAL_FAULTS = {
    "sentence not UTF-8": (
        attribute("sentence_label", np.bytes_(b"caf\xe9")),
        "sentence_label",
        "a text in UTF-8 expected",
    ),
    "fractional label": (
        put("seq_class_ids", np.pad([1.0, 5.5, 2.0], (0, 497))),
        "seq_class_ids",
        "5.5 found at position 1, a whole number expected",
    ),
    **{
        f"no {name}": (damage(lambda group, name=name: group.pop(name)), name, "dataset missing")
        for name in ("input_features", "seq_class_ids", "transcription")
    },
    **{
        f"no {name}": (
            damage(lambda group, name=name: group.attrs.pop(name)),
            name,
            "attribute missing",
        )
        for name in (
            "n_time_steps",
            "seq_len",
            "sentence_label",
            "session",
            "block_num",
            "trial_num",
        )
    },
    "label NaN": (
        put("seq_class_ids", np.full(500, np.nan)),
        "seq_class_ids",
        "nan found at position 0, a whole number expected",
    ),
    "features": (
        put("input_features", np.ones((120, 7), np.float32)),
        "input_features",
        "7 features found, 8 expected",
    ),
    "no features": (
        put("input_features", np.ones((120, 0), np.float32)),
        "input_features",
        "0 features found",
    ),
    "one-dimensional": (
        put("input_features", np.ones(60, np.float32)),
        "input_features",
        "2 dimension",
    ),
    "text": (put("input_features", [[b"a"]]), "input_features", "numbers in 2 dimension"),
    "NaN": (poke(np.nan), "input_features", "1 NaN or Inf found, the first at bin 5 of feature 3"),
    "Inf": (poke(-np.inf), "input_features", "1 NaN or Inf found, the first at bin 5 of feature 3"),
    "too large for float32": (
        put("input_features", np.full((120, 8), 1e300)),
        "input_features",
        "NaN or Inf found, the first at bin 0 of feature 0",
    ),
    "empty dataset": (
        put("input_features", h5py.Empty("f4")),
        "input_features",
        "numbers in 2 dimension",
    ),
    "endless": (
        attribute("n_time_steps", np.inf),
        "n_time_steps",
        "inf found, a whole number expected",
    ),
    "n_time_steps beyond T": (attribute("n_time_steps", 121), "n_time_steps", "121 found, 1 to "),
    "no bins": (attribute("n_time_steps", 0), "n_time_steps", "0 found, 1 to "),
    "less than a patch": (
        attribute("n_time_steps", 13),
        "input_features",
        "13 bins found, at least 14",
    ),
    "seq_len beyond 500": (attribute("seq_len", 501), "seq_len", "501 found, 1 to 500 expected"),
    "empty label": (attribute("seq_len", 0), "seq_len", "0 found, 1 to 500 expected"),
    "blank in the label": (
        attribute("seq_len", 7),
        "seq_class_ids",
        "token 0 found at position 6, 1 to 40 expected",
    ),
    "label beyond 40": (
        labels(8, 41, 3, 1, 1, 1),
        "seq_class_ids",
        "token 41 found at position 1, 1 to 40 expected",
    ),
    "label negative": (labels(-1, 4, 3, 1, 1, 1), "seq_class_ids", "token -1 found at position 0"),
    "too short": (
        too_short,
        "n_time_steps",
        "37 bins give 6 patches, the label of 6 phonemes needs at least 7",
    ),
    "same number": (
        attribute("trial_num", 1),
        "trial_num",
        "trial 1 found again, already in trial_0001",
    ),
    "another session": (
        attribute("session", "t15.2023.08.13"),
        "session",
        "'t15.2023.08.11' (the folder) expected",
    ),
    "no number": (
        attribute("block_num", "two"),
        "block_num",
        "'two' found, a whole number expected",
    ),
    "half a number": (
        attribute("block_num", 1.5),
        "block_num",
        "1.5 found, a whole number expected",
    ),
    "no text": (
        attribute("sentence_label", 3),
        "sentence_label",
        "3 found, a text in UTF-8 expected",
    ),
    "a damaged array": (another_value, None, "damaged HDF5 ("),
    "no group": (
        instead_of_the_group(np.ones((60, 8))),
        None,
        "a dataset found, a group expected",
    ),
    "a broken link": (instead_of_the_group(h5py.SoftLink("/nowhere")), None, "damaged HDF5"),
}


@pytest.mark.parametrize("name", TRIAL_FAULTS)
def test_a_bad_trial_is_named_or_left_out(dataset_root: Path, name: str) -> None:
    change, field, found = TRIAL_FAULTS[name]
    path = dataset_root / "t15.2023.08.11" / "data_train.hdf5"
    change(path)
    with pytest.raises(DataError) as caught:
        list(open_dataset(dataset_root).trials("train"))
    line = str(caught.value)
    assert line.startswith(f"{path}: {BAD}: {f'{field}: ' if field else found}")
    assert found in line
    assert line.endswith(", or leave it out with --skip-bad")
    assert "\n" not in line

    problems: list[Problem] = []
    good = list(open_dataset(dataset_root).trials("train", on_bad=problems.append))
    assert [t.trial for t in good] == [0, 1, 3, 0, 1, 2, 3]
    assert [(p.file, p.trial, p.field) for p in problems] == [(str(path), BAD, field)]
    assert str(problems[0]) == line
    assert len(list(open_dataset(dataset_root).trials("train", skip_bad=True))) == 7


def test_the_shortest_trial_that_ctc_can_align_is_good(dataset_root: Path) -> None:
    attribute("n_time_steps", 38)(dataset_root / "t15.2023.08.11" / "data_train.hdf5")
    assert len(list(open_dataset(dataset_root).trials("train"))) == 8


def test_labels_may_be_absent_in_test_only(dataset_root: Path) -> None:
    folder = dataset_root / "t15.2023.08.11"
    assert all(t.phoneme_ids is None for t in open_dataset(dataset_root).trials("test"))
    (folder / "data_test.hdf5").replace(folder / "data_val.hdf5")
    with pytest.raises(DataError, match="trial_0000: seq_len: attribute missing"):
        list(open_dataset(dataset_root).trials("val"))


def truncate(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])


def scribble(path: Path) -> None:
    """Overwrite the middle of the file's structure; the size stays."""
    content = bytearray(path.read_bytes())
    content[600:1200] = b"\xaa" * 600
    path.write_bytes(content)


def no_trials(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_group("notes")


FILE_FAULTS = {
    "text": (lambda path: path.write_text("date,block\n"), "not an HDF5 file"),
    "empty": (lambda path: path.write_bytes(b""), "not an HDF5 file"),
    "truncated": (truncate, "truncated HDF5"),
    "no trials": (no_trials, "no group trial_0000 found"),
}


@pytest.mark.parametrize("name", FILE_FAULTS)
def test_a_bad_file_is_named_or_left_out(dataset_root: Path, name: str) -> None:
    change, found = FILE_FAULTS[name]
    path = dataset_root / "t15.2023.08.11" / "data_train.hdf5"
    change(path)
    with pytest.raises(DataError) as caught:
        list(open_dataset(dataset_root).trials("train"))
    assert str(caught.value).startswith(f"{path}: {found}")
    assert "; " in str(caught.value)
    problems: list[Problem] = []
    assert len(list(open_dataset(dataset_root).trials("train", on_bad=problems.append))) == 4
    assert [(p.file, p.trial) for p in problems] == [(str(path), None)]


def test_a_damaged_structure_is_no_traceback(dataset_root: Path) -> None:
    path = dataset_root / "t15.2023.08.11" / "data_train.hdf5"
    scribble(path)
    with pytest.raises(DataError, match="damaged"):
        list(open_dataset(dataset_root).trials("train"))
    problems: list[Problem] = []
    assert len(list(open_dataset(dataset_root).trials("train", on_bad=problems.append))) < 8
    assert problems


def test_an_odd_first_trial_does_not_condemn_the_others(dataset_root: Path) -> None:
    with h5py.File(dataset_root / "t15.2023.08.11" / "data_train.hdf5", "r+") as file:
        del file["trial_0000/input_features"]
        file["trial_0000/input_features"] = np.ones((60, 5), np.float32)
    problems: list[Problem] = []
    assert len(list(open_dataset(dataset_root).trials("train", on_bad=problems.append))) == 7
    assert [p.trial for p in problems] == ["trial_0000"]


def test_directories_without_session_files(tmp_path: Path, dataset_root: Path) -> None:
    (tmp_path / "empty").mkdir()
    cases = {
        tmp_path / "absent": "no such directory",
        tmp_path / "empty": "no session files found",
        tmp_path: f"give {dataset_root}",
        dataset_root / "t15.2023.08.11" / "data_train.hdf5": "is a file",
    }
    for path, message in cases.items():
        with pytest.raises(DataError) as caught:
            open_dataset(path)
        assert str(caught.value).startswith(f"{path}: ")
        assert message in str(caught.value)


@pytest.mark.parametrize("name", ["day.mat", "train/t12.2022.04.28.mat", "sub-T5/a.nwb"])
def test_recordings_of_another_format_name_the_command_that_reads_them(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).touch()
    with pytest.raises(DataError, match=r"no session files found; .*; write them .*cortext import"):
        open_dataset(tmp_path)


def test_packing_stops_or_reports(dataset_root: Path, tmp_path: Path) -> None:
    poke(70_000)(dataset_root / "t15.2023.08.11" / "data_train.hdf5")
    truncate(dataset_root / "t15.2023.08.13" / "data_train.hdf5")
    out = tmp_path / "packed"
    with pytest.raises(
        DataError, match=r"trial_0002: input_features: a magnitude of 70000 found, at most 65504"
    ):
        pack(dataset_root, out)
    assert not out.exists()
    packed = pack(dataset_root, out, skip_bad=True)
    assert [p.trial for p in packed.bad_trials] == [BAD, None]
    assert len(packed.split("train")) == 3
    assert packed.sessions == ("t15.2023.08.11", "t15.2023.08.13")
    for path in dataset_root.glob("*/*.hdf5"):
        path.write_bytes(b"")
    with pytest.raises(DataError, match="not an HDF5 file"):
        pack(dataset_root, out, skip_bad=True)
    assert len(pack_untouched(out)) == 3


def pack_untouched(out: Path) -> object:
    from cortext.data import open_packed

    return open_packed(out).split("train")


def test_missing_table_of_blocks_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match=r"nope\.csv: cannot read the table of blocks: No such file"
    ):
        read_description(tmp_path / "nope.csv")


def test_a_file_that_is_no_table_of_blocks_is_named(tmp_path: Path) -> None:
    for content in ("a,b\n1,2\n", 'a\n"' + "x" * 200_000):
        (tmp_path / "blocks.csv").write_text(content)
        with pytest.raises(DataError, match=r"blocks\.csv: not the table of blocks"):
            read_description(tmp_path / "blocks.csv")
