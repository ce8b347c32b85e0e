"""Files in a source folder: all are read or named, but for those that macOS adds."""

import os

import pytest
from foreign_sources import FORMATS

from cortext.cli import run as cortext

OF_LABS = [
    ("nwb", "extra{}.nwb"),
    ("mat v5", "t98.2025.04.0{}.mat"),
    ("inner-speech v5", "Data/t16.2023.07.0{}_words_raw.mat"),
]


@pytest.mark.parametrize(("format", "name"), OF_LABS)
def test_what_is_no_file_is_named_and_the_others_are_imported(tmp_path, capsys, format, name):
    made = FORMATS[format](tmp_path)
    extra = [tmp_path / made.words[1] / name.format(day) for day in (1, 2, 3)]
    os.mkfifo(extra[0])
    extra[1].mkdir()
    extra[2].symlink_to("gone")
    out = tmp_path / "out"
    assert cortext(["import", *made.words, "--out", str(out), "--skip-bad"]) == 0
    printed = capsys.readouterr().out
    assert all(f"{path.name}: " in printed for path in extra)
    assert {path.name for path in out.iterdir() if path.is_dir()} == {
        trial.session for trial in made.trials
    }


@pytest.mark.parametrize(
    ("format", "suffix"), [("inner-speech v5", ".mat"), ("mat v5", ".mat"), ("nwb", ".nwb")]
)
def test_suffixes_may_be_upper_case_and_hidden_files_are_passed_over(
    tmp_path, capsys, format, suffix
):
    made = FORMATS[format](tmp_path)
    for path in list((tmp_path / made.words[1]).rglob(f"*{suffix}")):
        path.with_name(f"._{path.name}").write_bytes(b"Mac OS X")
        path.rename(path.with_suffix(suffix.upper()))
    assert cortext(["import", *made.words, "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr().out
    assert "._" not in said
    assert "not read" not in said


@pytest.mark.parametrize(
    ("format", "asked", "suffix"), [("nwb", "mat", ".mat"), ("mat v5", "nwb", ".nwb")]
)
@pytest.mark.parametrize("whole", [True, False])
def test_files_of_the_other_format_name_the_command_that_reads_them(
    tmp_path, capsys, format, asked, suffix, whole
):
    made = FORMATS[format](tmp_path)
    folder = tmp_path / made.words[1]
    source = folder if whole else next(path for path in folder.rglob("*") if path.is_file())
    assert cortext(["import", asked, str(source), "--inspect"]) == 2
    said = capsys.readouterr().err
    assert f"{suffix} file" in said
    assert said.strip().endswith(f"use cortext import {made.words[0]}")
