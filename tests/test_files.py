"""Lines of JSON that are not trusted."""

from pathlib import Path

from cortext.files import json_lines


def test_the_end_of_a_line_that_is_too_long_is_no_line_of_its_own(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1}\n' + "x" * (4 << 20) + '{"step": 2}\n\n{"step": 3}\n{"step"')
    assert list(json_lines(path)) == [{"step": 1}, {"step": 3}]
