"""Temporary files: their names, what killed processes left, and directories that stay."""

import errno
import itertools
import os
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from abandoned import abandoned

from cortext import files, renames, temporaries
from cortext.errors import DataError
from cortext.files import atomic_directory, atomic_stream, replace_directory
from cortext.renames import exchange, rename_new
from cortext.temporaries import clear, new_temporary, restore

WEEKS_AGO_S = time.time() - 15 * 86400


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def killed_after(calls: int, work: Callable[[], object]) -> bool:
    """Do `work` in a child that is killed just before so many calls of the disk; return whether."""
    child = os.fork()
    if child == 0:
        left = calls

        def counted(event: str, _: object) -> None:
            nonlocal left
            watched = ("open", "os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.scandir")
            if event in watched or event == "ctypes.call":
                left -= 1
                if left < 0:
                    os.kill(os.getpid(), signal.SIGKILL)

        try:
            renames._function()
            sys.addaudithook(counted)
            work()
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1] == signal.SIGKILL


@pytest.fixture(params=["swapped", "in two steps"])
def disk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A disk that can swap two names, and one that cannot (NFS)."""
    if request.param == "in two steps":
        monkeypatch.setattr(files, "exchange", lambda one, other: False)
        monkeypatch.setattr(renames, "_function", lambda: None)
    return str(request.param)


def write(path: Path, content: str) -> None:
    with atomic_directory(path) as folder:
        (folder / "file").write_text(content)


def test_a_kill_at_any_moment_leaves_the_old_directory_or_the_new_one(
    tmp_path: Path, disk: str
) -> None:
    out = tmp_path / "out"
    write(out, "old")
    found = []
    for calls in itertools.count():
        killed = killed_after(calls, lambda: write(out, "new"))
        if disk == "swapped":
            assert out.is_dir()
        restore(out)
        found.append((out / "file").read_text())
        write(out, "old")
        assert names(tmp_path) == ["out"]
        if not killed:
            break
    assert found == sorted(found, reverse=True)  # old, old ... new
    assert {"old", "new"} == set(found)
    assert calls > 8


def test_a_kill_at_any_moment_leaves_the_old_file_or_the_new_one(tmp_path: Path) -> None:
    path = tmp_path / "file"

    def write(content: bytes) -> None:
        with atomic_stream(path) as file:
            file.write(content)

    write(b"old")
    found = set()
    for calls in itertools.count():
        killed = killed_after(calls, lambda: write(b"new"))
        found.add(path.read_bytes())
        write(b"old")
        assert names(tmp_path) == ["file"]
        if not killed:
            break
    assert found == {b"old", b"new"}


@pytest.fixture
def living(tmp_path: Path) -> Iterator[Path]:
    """A file that another process is writing, older than any limit."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            temporary = new_temporary(tmp_path / "file").path
            os.utime(temporary, (WEEKS_AGO_S, WEEKS_AGO_S))
            os.write(writer, str(temporary).encode())
            time.sleep(60)
        finally:
            os._exit(0)
    yield Path(os.read(reader, 4096).decode())
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(reader)
    os.close(writer)


def test_what_a_living_process_writes_stays(tmp_path: Path, living: Path) -> None:
    clear(tmp_path)
    with atomic_stream(tmp_path / "file") as file:
        file.write(b"mine")
    assert names(tmp_path) == sorted([living.name, "file"])


def test_what_this_process_writes_stays(tmp_path: Path) -> None:
    with atomic_directory(tmp_path / "out"), atomic_stream(tmp_path / "file"):
        clear(tmp_path)
        assert len(names(tmp_path)) == 2
    assert names(tmp_path) == ["file", "out"]


def test_what_is_named_otherwise_is_nobodys_to_remove(tmp_path: Path) -> None:
    token = "00000000-0123456789abcdef"
    kept = [
        ".file.tmp",
        ".file.notes.tmp",
        ".file.0123-4567.tmp",
        ".file.12.tmp",
        ".file.12.tmp.old",
    ]
    kept.append(f"file.{token}.tmp")
    for name in kept:
        (tmp_path / name).write_text("mine")
    with atomic_stream(tmp_path / "file") as file:
        file.write(b"new")
    assert names(tmp_path) == sorted([*kept, "file"])


def test_a_folder_is_cleared_of_what_killed_processes_wrote(tmp_path: Path) -> None:
    for name in ("c.tmp", ".hidden"):
        (tmp_path / name).touch()
    one, other = (abandoned(tmp_path / name) for name in ("a", "b.json"))
    abandoned(tmp_path / "packed", directory=True)
    clear(tmp_path, "b.json")
    assert one.exists()
    assert not other.exists()
    clear(tmp_path)
    assert names(tmp_path) == [".hidden", "c.tmp"]
    clear(tmp_path / "absent")


def test_what_another_machine_wrote_stays_for_a_week(tmp_path: Path) -> None:
    folder = tmp_path / ".out.00000000-0123456789abcdef.tmp"
    (folder / "inner").mkdir(parents=True)
    file = folder / "inner" / "file"
    file.touch()
    for path in (folder, folder / "inner"):
        os.utime(path, (WEEKS_AGO_S, WEEKS_AGO_S))
    write(tmp_path / "out", "new")
    assert file.exists()
    for path in (file, folder / "inner", folder):
        os.utime(path, (WEEKS_AGO_S, WEEKS_AGO_S))
    write(tmp_path / "out", "new")
    assert names(tmp_path) == ["out"]


def test_a_clock_that_is_ahead_removes_nothing_of_another_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / ".out.00000000-0123456789abcdef.tmp"
    file.touch()
    monkeypatch.setattr("cortext.temporaries.time.time", lambda: 4e9)  # in 2096
    write(tmp_path / "out", "new")
    assert file.exists()


def test_nothing_is_cleared_where_nothing_can_be_locked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))

    path = new_temporary(tmp_path / "file").path
    monkeypatch.setattr("fcntl.flock", refuse)
    clear(tmp_path)
    write(tmp_path / "out", "new")
    assert names(tmp_path) == sorted([path.name, "out"])


def test_a_link_in_a_shared_folder_is_never_written_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    planted = tmp_path / f".out.csv.{temporaries._machine()}-{'0' * 16}.tmp"
    planted.symlink_to(victim)
    monkeypatch.setattr("secrets.token_hex", lambda n: "0" * 2 * n)  # it was foreseen
    monkeypatch.setattr(temporaries, "clear", lambda *_, **__: None)
    with pytest.raises(FileExistsError):
        new_temporary(tmp_path / "out.csv")
    assert victim.read_text() == "mine"
    monkeypatch.undo()
    # Exchanged for a link while it is written: the content goes to the file that was opened.
    stream = atomic_stream(tmp_path / "out.csv")
    file = stream.__enter__()
    (made,) = (path for path in tmp_path.glob(".out.csv.*.tmp") if path != planted)
    made.unlink()
    made.symlink_to(victim)
    file.write(b"stolen")
    with pytest.raises(OSError, match="moved it away"):
        stream.__exit__(None, None, None)
    assert victim.read_text() == "mine"
    assert not (tmp_path / "out.csv").exists()


def test_two_writers_never_take_the_same_name(tmp_path: Path) -> None:
    made = [new_temporary(tmp_path / "file") for _ in range(20)]
    assert len({temporary.path.name for temporary in made}) == len(names(tmp_path)) == 20
    for temporary in made:
        temporary.discard()
    assert not names(tmp_path)


def test_only_the_owner_reads_what_is_being_written(tmp_path: Path) -> None:
    modes = []

    def note() -> None:
        modes.extend(stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir())

    before = os.umask(0o027)
    try:
        with atomic_stream(tmp_path / "a"):
            note()
        with atomic_stream(tmp_path / "a", private=True):
            pass
        note()
        (tmp_path / "a").unlink()
        with atomic_stream(tmp_path / "b"):
            pass
        note()
        (tmp_path / "b").unlink()
        with atomic_directory(tmp_path / "c"):
            note()
        note()
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)
    assert modes == [0o600, 0o600, 0o640, 0o700, 0o750]


def test_a_name_may_be_as_long_as_the_disk_lets_it(tmp_path: Path) -> None:
    name = "ä" * 125  # 250 of 255 bytes
    left = new_temporary(tmp_path / name)
    os.close(left.descriptor)
    write(tmp_path / name, "new")
    write(tmp_path / name, "newer")
    assert names(tmp_path) == [name]


def test_long_names_that_begin_alike_are_distinguished(tmp_path: Path) -> None:
    one, other = (tmp_path / ("n" * 250 + end) for end in "ab")
    left = new_temporary(one, directory=True)
    os.close(left.descriptor)
    left.path.rename(left.path.with_name(left.path.name + temporaries.OLD))
    restore(other)
    assert not other.exists()
    restore(one)
    assert one.is_dir()


def test_a_path_without_a_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no name"):
        new_temporary(Path())


def test_where_a_disk_is_mounted_is_refused_before_the_work() -> None:
    for directory in (False, True):
        with pytest.raises(DataError, match="is where a disk is mounted, and cannot be replaced"):
            new_temporary(Path("/dev"), directory=directory)


def test_a_directory_gets_its_name_back(tmp_path: Path) -> None:
    old = tmp_path / ".out.00000000-0123456789abcdef.tmp.old"
    old.mkdir()
    (old / "file").write_text("old")
    restore(tmp_path / "out")
    assert (tmp_path / "out" / "file").read_text() == "old"
    assert names(tmp_path) == ["out"]


def test_a_file_is_not_replaced_by_a_directory(tmp_path: Path, disk: str) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(NotADirectoryError):
        write(tmp_path / "out", "new")
    assert (tmp_path / "out").read_text() == "mine"
    assert names(tmp_path) == ["out"]


def test_a_link_gives_way_to_the_directory_and_its_target_stays(tmp_path: Path, disk: str) -> None:
    write(tmp_path / "target", "old")
    (tmp_path / "out").symlink_to("target")
    write(tmp_path / "out", "new")
    assert names(tmp_path) == ["out", "target"]
    assert (tmp_path / "target" / "file").read_text() == "old"
    assert (tmp_path / "out" / "file").read_text() == "new"


@pytest.mark.parametrize("meanwhile", ["restored", "written"])
def test_a_directory_that_another_process_has_put_there_meanwhile_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    out, new = tmp_path / "out", tmp_path / "new"
    for folder in (out, new, tmp_path / "others"):
        write(folder, folder.name)
    monkeypatch.setattr(files, "exchange", lambda one, other: False)
    rename, done = Path.replace, []

    def replace(path: Path, target: Path) -> Path:
        if path == new and not done:
            source = tmp_path / "others" if meanwhile == "written" else next(tmp_path.glob("*.old"))
            done.append(rename(source, out))
        return rename(path, target)

    monkeypatch.setattr(Path, "replace", replace)
    replace_directory(new, out)
    assert done
    assert (out / "file").read_text() == "new"
    assert names(tmp_path) == (["out"] if meanwhile == "written" else ["others", "out"])


def test_a_name_that_another_process_clears_is_given_up_for_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened, calls = os.open, []

    def removed_first(path: Path, *arguments: int) -> int:
        if str(path).endswith(".tmp") and not calls:
            calls.append(path)
            path.rmdir()
        return opened(path, *arguments)

    monkeypatch.setattr(os, "open", removed_first)
    write(tmp_path / "out", "new")
    assert calls
    assert names(tmp_path) == ["out"]


@pytest.mark.parametrize("system", ["flags", "none"])
def test_a_new_name_is_never_taken_from_another_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str
) -> None:
    if system == "none":
        monkeypatch.setattr(renames, "_function", lambda: None)
    for name in ("old", "there"):
        (tmp_path / name).write_text(name)
    with pytest.raises(FileExistsError):
        rename_new(tmp_path / "old", tmp_path / "there")
    with pytest.raises(FileNotFoundError):
        rename_new(tmp_path / "absent", tmp_path / "new")
    rename_new(tmp_path / "old", tmp_path / "new")
    assert (tmp_path / "there").read_text() == "there"
    assert names(tmp_path) == ["new", "there"]


def test_two_names_are_swapped(tmp_path: Path) -> None:
    write(tmp_path / "a", "a")
    write(tmp_path / "b", "b")
    if not exchange(tmp_path / "a", tmp_path / "b"):
        pytest.skip("this disk cannot swap names")
    assert (tmp_path / "a" / "file").read_text() == "b"
    assert not exchange(tmp_path / "a", tmp_path / "absent")
