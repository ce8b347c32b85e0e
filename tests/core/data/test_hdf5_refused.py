"""HDF5 files of crashed writers and of busy ones, and the commands that repair what is read."""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from lab_nwb import SIMPLE, cue_rows, only_problem, read_nwb, write_simple

from cortext.data.checks import FaultError
from cortext.data.hdf5_input import open_file

WRITER = """
import sys, time, h5py
file = h5py.File(sys.argv[1], "r+", libver="latest")
file.swmr_mode = True
file.flush()
print("open", flush=True)
time.sleep(60)
"""


def refusal(path: Path) -> str:
    with pytest.raises(FaultError) as error:
        open_file(path)
    return error.value.message


def test_a_busy_file_names_its_writer_and_a_crashed_one_its_repair(tmp_path: Path) -> None:
    """A writer that streams to readers (SWMR), as acquisition programs do; then it is killed."""
    path = tmp_path / "a day.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file["x"] = np.arange(5)
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        name = Path(f"/proc/{writer.pid}/comm").read_text().strip()
        said = refusal(path)
        writer.kill()
    busy = f"is open for writing in {name} (process {writer.pid}); close it there, and try again"
    assert said == busy
    assert refusal(path) == (
        f"its writer ended without closing it; copy it, then run `h5clear -s '{path}'`, which marks"
        " it as closed"
    )
    if shutil.which("h5clear") is None:
        pytest.skip("no h5clear here: the repair was not run")
    (repair,) = re.findall("`([^`]*)`", refusal(path))
    subprocess.run(shlex.split(repair), check=True)
    with open_file(path) as file:
        assert file["x"][:].tolist() == [0, 1, 2, 3, 4]


def test_a_file_that_is_locked_names_the_process(tmp_path: Path) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["x"] = 1
    with path.open("r+b") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        said = refusal(path)
    assert f"(process {os.getpid()}); close it there, and try again" in said


def test_a_file_that_was_never_finished_is_distinguished_from_another_format(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        file["x"] = np.zeros(1000)
    with path.open("r+b") as raw:
        raw.seek(48)
        raw.write(bytes(200))
    assert refusal(path).startswith("a damaged HDF5 file, perhaps of a writer that ended without")
    path.write_bytes(b"words")
    assert refusal(path).startswith("not an HDF5 file, or a badly damaged one; copy or download")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "an empty file (0 bytes); copy or download the file again"),
        (b"version https://git-lfs.github.com/spec/v1", "a pointer of Git LFS; fetch the file"),
        (b"\x1f\x8b\x08\0", "a file compressed by gzip; unpack it"),
        (b"PK\3\4", "a zip file; unpack it"),
        (b"<!DOCTYPE html>", "a web page; download the file again"),
    ],
)
def test_a_file_of_another_format_says_which(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "a.h5"
    path.write_bytes(content)
    assert refusal(path).startswith(f"not an HDF5 file but {said}")


@pytest.mark.parametrize(
    ("name", "storage"),
    [
        ("timestamps", {"chunks": (1,)}),  # appended one by one
        ("data", {"chunks": (100, 8), "compression": "szip"}),
        ("data", {"chunks": (1, 1)}),
    ],
)
def test_the_command_that_a_message_gives_repairs_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, storage: dict[str, object]
) -> None:
    if shutil.which("h5repack") is None:
        pytest.skip("no h5repack here (Debian: hdf5-tools)")
    if storage.get("compression") == "szip" and not h5py.h5z.filter_avail(h5py.h5z.FILTER_SZIP):
        pytest.skip("this HDF5 has no szip")
    monkeypatch.setattr("cortext.data.hdf5_input._MOST_AT_ONCE", 100)
    path = tmp_path / "a.nwb"
    write_simple(path, cue_rows("one", "two"), timestamps=np.arange(500) * 0.02)
    expected = read_nwb(path, SIMPLE)[1]
    with h5py.File(path, "r+") as file:
        series = file["acquisition/tx"]
        values, attributes = series[name][()], dict(series[name].attrs)
        del series[name]
        series.create_dataset(name, data=values, **storage).attrs.update(attributes)
    said = only_problem(path) if name == "timestamps" else _trial_problem(path)
    assert f"/acquisition/tx/{name}:CHUNK=" in said
    (command,) = re.findall("`([^`]*)`", said)
    repaired = tmp_path / "in" / "b.nwb"
    repaired.parent.mkdir()
    subprocess.run([*shlex.split(command), path, repaired], check=True)
    np.testing.assert_array_equal(read_nwb(repaired, SIMPLE)[1], expected)


def _trial_problem(path: Path) -> str:
    with pytest.raises(FaultError) as error:
        read_nwb(path, SIMPLE)
    return error.value.message
