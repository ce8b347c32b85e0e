from pathlib import Path

from cortext.data.disk import disk_error


def test_short_write_of_numpy_is_a_full_disk(tmp_path: Path) -> None:
    line = str(disk_error(OSError("2788 requested and 1984 written"), tmp_path))
    assert "No space left on device; free some space" in line
