"""Atomic writes, locks between processes, and lines of JSON that are not trusted."""

import errno
import os
import signal
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from cortext.config import save_config
from cortext.errors import DataError, RunError
from cortext.files import (
    atomic_directory,
    atomic_file,
    atomic_stream,
    atomic_write,
    check_writable,
    disk_error,
    exclusive,
    json_lines,
    lock,
    refuse_foreign,
    replace_directory,
)

HOLD = """
import sys, time
from pathlib import Path
from cortext.errors import RunError
from cortext.files import exclusive
with exclusive(Path(sys.argv[1]), RunError("held")):
    print("held", flush=True)
    time.sleep(60)
"""


@dataclass
class Sampled:
    name: str


def save_directory(path: Path) -> None:
    with atomic_directory(path) as folder:
        (folder / "file").write_bytes(b"new")


@pytest.fixture
def holder(tmp_path):
    """A process that has locked `tmp_path`."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, tmp_path], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"held\n"
    yield process
    process.kill()
    process.communicate()


def test_the_end_of_a_line_that_is_too_long_is_no_line_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n' + "x" * (4 << 20) + '{"step": 2}\n\n{"step": 3}\n{"step"')
    assert list(json_lines(path)) == [{"step": 1}, {"step": 3}]


def test_short_write_of_numpy_is_a_full_disk(tmp_path: Path) -> None:
    line = str(disk_error(OSError("2788 requested and 1984 written"), tmp_path))
    assert "No space left on device; free some space" in line


def test_a_directory_is_replaced_however_it_is_named(tmp_path: Path) -> None:
    (tmp_path / "linked").mkdir()
    (tmp_path / "link").symlink_to("linked")
    (tmp_path / "out").mkdir()
    for out in (tmp_path / "out" / ".." / "out", tmp_path / "link"):
        new = tmp_path / "new"
        new.mkdir()
        (new / "file").touch()
        replace_directory(new, out)
        assert (out / "file").exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "linked", "out"]


@pytest.mark.parametrize("context", [atomic_stream, atomic_file, atomic_directory])
def test_what_fails_half_way_leaves_the_old_one_alone(tmp_path: Path, context) -> None:
    path = tmp_path / "folder" / "old"
    path.parent.mkdir()
    path.mkdir() if context is atomic_directory else path.write_text("old")
    with pytest.raises(KeyError), context(path):
        raise KeyError
    assert [found.name for found in path.parent.iterdir()] == ["old"]
    assert path.is_dir() or path.read_text() == "old"


def test_a_file_is_replaced_and_the_old_one_kept_under_another_name(tmp_path: Path) -> None:
    path = tmp_path / "state"
    kept = tmp_path / "previous"
    for content in (b"1", b"2"):
        with atomic_file(path, kept) as file:
            file.write(content)
            assert not path.exists() or path.read_bytes() == b"1"
    assert (path.read_bytes(), kept.read_bytes()) == (b"2", b"1")


def test_a_full_disk_is_one_line_and_nothing_is_left(tmp_path: Path, monkeypatch) -> None:
    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(RunError, match="cannot write the file: No space left on device"):
        atomic_write(tmp_path / "state", b"new")
    assert not list(tmp_path.iterdir())


def test_a_refusal_is_not_taken_for_a_full_disk(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    with pytest.raises(RunError, match="Is a directory; check the folder's permissions; the file"):
        atomic_write(tmp_path / "folder", b"new")


def test_what_cannot_be_written_is_known_before_the_work(tmp_path: Path) -> None:
    check_writable(tmp_path / "new" / "out.csv")
    assert not list((tmp_path / "new").iterdir())
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot be written"):
        check_writable(tmp_path / "file" / "out.csv")
    with pytest.raises(DataError, match="has no name"):
        check_writable(Path())


def test_a_stream_is_written_where_it_is_and_never_replaced(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    stream = Path(f"/dev/fd/{writing}")
    check_writable(stream)
    atomic_write(stream, b"in a pipe")
    assert os.read(reading, 100) == b"in a pipe"
    os.close(reading)
    os.close(writing)
    # As after `print` to a file: what was written before and after stays.
    with (tmp_path / "file").open("wb", buffering=0) as file:
        for stream in (Path(f"/dev/fd/{file.fileno()}"), Path(f"/proc/self/fd/{file.fileno()}")):
            file.write(b"before ")
            atomic_write(stream, b"result ")
        file.write(b"after")
    assert (tmp_path / "file").read_bytes() == b"before result before result after"
    check_writable(Path(os.devnull))
    atomic_write(Path(os.devnull), b"lost")
    assert stat.S_ISCHR(Path(os.devnull).stat().st_mode)


def test_a_pipe_is_no_place_for_a_file_or_directory(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for write in (check_writable, lambda path: atomic_write(path, b""), save_directory):
        with pytest.raises(DataError, match="is a pipe or a device, which would be lost"):
            write(pipe)
    with pytest.raises(NotADirectoryError):
        replace_directory(tmp_path, pipe)
    assert stat.S_ISFIFO(pipe.lstat().st_mode)
    with pytest.raises(DataError, match="is a pipe or a device"):
        save_directory(Path("/dev/stdout"))


def test_a_disk_that_keeps_no_modes_is_written_all_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr("os.fchmod", refuse)
    atomic_write(tmp_path / "file", b"new")
    save_directory(tmp_path / "folder")
    assert (tmp_path / "file").read_bytes() == b"new"
    assert (tmp_path / "folder").is_dir()


def test_a_configuration_is_not_written_through_a_link(tmp_path: Path) -> None:
    (tmp_path / "victim").write_text("mine")
    (tmp_path / "config.yaml").symlink_to(tmp_path / "victim")
    save_config(Sampled("é"), tmp_path / "config.yaml")
    assert (tmp_path / "victim").read_text() == "mine"
    assert (tmp_path / "config.yaml").read_bytes() == "name: é\n".encode()


def test_a_lock_keeps_others_out_until_its_process_is_killed(tmp_path: Path, holder) -> None:
    busy = RunError("another training is writing here", where=tmp_path, fix="give another --out")
    for _ in range(2):
        with pytest.raises(RunError, match="another training is writing here; give another --out"):
            exclusive(tmp_path, busy).__enter__()
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with exclusive(tmp_path, busy):
        assert not list(tmp_path.iterdir())


def test_a_file_system_without_locks_keeps_nobody_out(tmp_path: Path, holder, monkeypatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))  # what Linux says on NFS

    monkeypatch.setattr("fcntl.flock", refuse)
    descriptor = os.open(tmp_path, os.O_RDONLY)
    assert lock(descriptor)
    os.close(descriptor)


def test_writing_a_text_does_not_import_hdf5(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from cortext.files import atomic_write, exclusive;"
        "from cortext.errors import RunError; from cortext.tables import json_text;"
        "from cortext.text import Lexicon;"
        "atomic_write(Path(sys.argv[1]) / 'a.json', json_text({'a': 1}).encode());"
        "exclusive(Path(sys.argv[1]), RunError('held')).__enter__();"
        "sys.exit('h5py' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, tmp_path], check=False).returncode == 0
    assert (tmp_path / "a.json").read_text() == '{"a": 1}'


def test_what_would_be_lost_is_named_before_a_directory_is_replaced(tmp_path: Path) -> None:
    for name in ("index.json", "train.f16", ".DS_Store"):
        (tmp_path / name).touch()
    refuse_foreign(tmp_path, ("index.json", "*.f16"), "packed data")
    refuse_foreign(tmp_path / "absent", (), "packed data")
    (tmp_path / "notes.txt").touch()
    with pytest.raises(DataError, match=r"holds 'notes.txt', which is no part of packed data"):
        refuse_foreign(tmp_path, ("index.json", "*.f16"), "packed data")
