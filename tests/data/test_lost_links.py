"""Links that lead nowhere are named, folders behind links are read, and Zarr is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from refusals import complaint, refused

from cortext.cli import run
from cortext.data import make_trial, write_session
from cortext.data.dataset import DESCRIPTION, open_session_files
from cortext.data.inspect import inspect
from cortext_data.readers.falcon import falcon_h2
from cortext_data.readers.handwriting import handwriting
from cortext_data.readers.importing import import_source
from cortext_data.readers.source_files import files_in, files_of
from cortext_data.readers.t12 import t12

DAYS = ("t1.2024.01.01", "t1.2024.01.02", "t1.2024.01.03")
REMEDY = "which is not there; mount the disk that has it, or remove the link"


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """One whole day, one with a dead link to its file, and one that is a dead link itself."""
    root = tmp_path / "data"
    x_TC = np.random.default_rng(0).normal(size=(100, 8)).astype(np.float32)
    for day in DAYS[:2]:
        trial = make_trial(x_TC, day, 1, 1, "hello there")
        write_session(root / day / "data_train.hdf5", [trial])
    (root / DAYS[1] / "data_train.hdf5").unlink()
    (root / DAYS[1] / "data_train.hdf5").symlink_to(tmp_path / "disk" / "data_train.hdf5")
    (root / DAYS[2]).symlink_to(tmp_path / "disk" / DAYS[2])
    (root / "notes.txt").symlink_to(tmp_path / "disk" / "notes.txt")  # no session
    return root


def lines(root: Path) -> list[str]:
    disk = root.parent / "disk"
    return [
        f"{root / DAYS[1]}/data_train.hdf5: is a link to {disk}/data_train.hdf5, {REMEDY}",
        f"{root / DAYS[2]}/data_train.hdf5: its folder {root / DAYS[2]} is a link to"
        f" {disk / DAYS[2]}, {REMEDY}",
    ]


def test_inspect_names_days_behind_dead_links(root: Path) -> None:
    report = inspect(root)
    assert [str(problem) for problem in report.problems] == lines(root)
    assert [row.n_trials for row in report.rows] == [1, 0, 0]


def test_pack_refuses_dead_links_or_lists_what_it_leaves_out(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = complaint(capsys, "pack", root, "--out", root.parent / "p")
    assert lines(root)[0] in said
    assert run(["pack", str(root), "--out", str(root.parent / "p"), "--skip-bad"]) == 0
    printed = "".join(capsys.readouterr())
    assert all(line in printed for line in lines(root))


def test_recordings_behind_links_to_folders_are_found(tmp_path: Path) -> None:
    inside, disk = tmp_path / "in", tmp_path / "disk"
    for folder in (inside, disk / "day"):
        folder.mkdir(parents=True)
    (disk / "day" / "b.mat").write_bytes(b"")
    (inside / "a.mat").write_bytes(b"")
    (inside / "far").symlink_to(disk)
    (disk / "back").symlink_to(inside)  # in a circle
    (inside / "lost").symlink_to(tmp_path / "unmounted")
    (inside / "._a.mat").write_bytes(b"")
    found = [str(path.relative_to(inside)) for path in files_in(inside, ".mat")]
    assert found == ["a.mat", "far/day/b.mat", "lost"]


@pytest.mark.parametrize("name", ["a.nwb.zarr", "b.nwb"])
@pytest.mark.parametrize("inner", [".zgroup", "zarr.json"])
def test_zarr_is_named(tmp_path: Path, name: str, inner: str) -> None:
    folder = tmp_path / "in"
    (folder / name / "acquisition").mkdir(parents=True)
    (folder / name / inner).write_text("{}")
    remedy = "is a Zarr folder, which is not read; export it to HDF5"
    with refused(remedy):
        files_of(folder / name, ".nwb")
    assert [path.name for path in files_of(folder, ".nwb")] == [name]


def test_a_dead_link_to_the_table_of_blocks_is_named(root: Path) -> None:
    (root / DESCRIPTION).symlink_to(root.parent / "disk" / DESCRIPTION)
    with refused("cannot read the table of blocks: No such file or directory"):
        open_session_files(root)


def test_a_day_of_handwriting_behind_a_dead_link_is_a_problem(tmp_path: Path) -> None:
    root = tmp_path / "handwritingBCIData"
    (root / "RNNTrainingSteps").mkdir(parents=True)
    (root / "RNNTrainingSteps" / "trainTestPartitions_HeldOutBlocks.mat").write_bytes(b"")
    (root / "Datasets").mkdir()
    day = root / "Datasets" / "t5.2019.05.08"
    day.symlink_to(tmp_path / "disk")
    done = import_source(handwriting(root), tmp_path / "out")
    (problem,) = done.problems
    assert f"its folder {day} is a link to {tmp_path}/disk, {REMEDY}" in str(problem)


def test_a_split_of_t12_behind_a_dead_link_is_named(tmp_path: Path) -> None:
    for split in ("train", "test"):
        (tmp_path / split).mkdir()
        (tmp_path / split / "t12.2022.04.28.mat").write_bytes(b"")
    (tmp_path / "competitionHoldOut").symlink_to(tmp_path / "disk")
    with refused(f"competitionHoldOut: is a link to {tmp_path}/disk, {REMEDY}"):
        t12(tmp_path)


def test_a_folder_of_recordings_named_by_its_day_is_named_where_its_link_is_dead(tmp_path):
    (tmp_path / "a.nwb").write_bytes(b"")
    (tmp_path / "t1.2024.01.03").symlink_to(tmp_path / "disk")
    assert [path.name for path in files_in(tmp_path, ".nwb")] == ["a.nwb", "t1.2024.01.03"]


@pytest.mark.parametrize(
    ("name", "file", "is_found"),
    [
        ("b.zarr", ".zattrs", True),
        ("b.zarr", "zarr.json", True),
        ("b.nwb.zarr", None, True),
        ("voltages.zarr", "other", False),
    ],
)
def test_zarr_beside_nwb_files_is_not_passed_over(tmp_path, name, file, is_found):
    (tmp_path / "a.nwb").write_bytes(b"")
    (tmp_path / name).mkdir()
    if file is not None:
        (tmp_path / name / (file if is_found else ".zattrs")).write_text(
            '{"nwb_version": "2.7.0"}' if is_found else "{}"
        )
    found = [path.name for path in files_in(tmp_path, ".nwb")]
    assert found == (["a.nwb", name] if is_found else ["a.nwb"])
    (tmp_path / "c.nwb.zarr.zip").write_bytes(b"PK")
    assert "c.nwb.zarr.zip" in [path.name for path in files_in(tmp_path, ".nwb")]


def test_packed_data_behind_a_dead_link_name_it(tmp_path: Path) -> None:
    (tmp_path / "packed").symlink_to(tmp_path / "disk" / "packed")
    with refused(REMEDY):
        inspect(tmp_path / "packed")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "index.json").symlink_to(tmp_path / "disk" / "index.json")
    with refused(REMEDY):
        inspect(tmp_path / "files")


def test_a_dead_folder_in_a_source_of_falcon_is_named(tmp_path: Path) -> None:
    (tmp_path / "sub-T5").symlink_to(tmp_path / "disk" / "sub-T5")
    with refused(REMEDY):
        falcon_h2(tmp_path)
