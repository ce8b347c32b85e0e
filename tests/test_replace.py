from pathlib import Path

from cortext.files import disk_error, replace_directory


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
