"""Each format that labs write, imported by the command: what is written is what was recorded."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from foreign_sources import FORMATS, Expected, Made
from refusals import complaint

from cortext.cli import run as cortext


@pytest.fixture(scope="module", params=FORMATS)
def made(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Made:
    return FORMATS[request.param](tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def imported(made: Made, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("imported") / "out"
    assert cortext(["import", *made.words, "--out", str(out)]) == 0
    return out


def content(out: Path) -> dict[str, bytes]:
    """All that an import wrote, by path."""
    paths = [path for path in out.rglob("*") if path.is_file()]
    return {str(path.relative_to(out)): path.read_bytes() for path in paths}


def rolling(trials: list[Expected]) -> list[np.ndarray]:
    """Return z-scores of each bin over the 20 trials before it and its own trial so far."""
    found = []
    for i, trial in enumerate(trials):
        before = [t.x_TC for t in trials[:i] if t.recording == trial.recording][-20:]
        z_TC = np.zeros_like(trial.x_TC)
        for t in range(len(z_TC)):
            seen = np.concatenate([*before, trial.x_TC[: t + 1]])
            mean, sd = seen.mean(axis=0), seen.std(axis=0)
            z_TC[t] = np.where(sd > 1e-6, (trial.x_TC[t] - mean) / np.maximum(sd, 1e-6), 0)
        found.append(z_TC)
    return found


def scaled(trials: list[Expected], how: str) -> list[np.ndarray]:
    """Return z-scores over each block of a recording, causal ones, or the release's own."""
    if how == "rolling":
        return rolling(trials)
    blocks: dict[tuple[str, int], list[np.ndarray]] = {}
    for trial in trials:
        blocks.setdefault((trial.recording, trial.block), []).append(trial.x_TC)
    found = []
    for trial in trials:
        whole = np.concatenate(blocks[trial.recording, trial.block])
        mean, sd = trial.scale or (whole.mean(axis=0), whole.std(axis=0))
        found.append(np.where(sd > 1e-6, (trial.x_TC - mean) / np.maximum(sd, 1e-6), 0))
    return found


def in_files(out: Path) -> dict[tuple[str, str, int, int], h5py.Group]:
    """Trials of all session files by session, split, block and number."""
    found = {}
    for path in sorted(out.glob("*/data_*.hdf5")):
        file = h5py.File(path)
        for name in sorted(file):
            group = file[name]
            split = path.stem.removeprefix("data_")
            key = (
                group.attrs["session"],
                split,
                int(group.attrs["block_num"]),
                int(group.attrs["trial_num"]),
            )
            assert path.parent.name == group.attrs["session"]
            assert key not in found
            found[key] = group
    return found


def test_session_files_have_what_was_recorded(made: Made, imported: Path) -> None:
    found = in_files(imported)
    expected = {(t.session, t.split, t.block, t.number): t for t in made.trials}
    assert list(found) == sorted(expected, key=list(found).index)
    for trial, z_TC in zip(made.trials, scaled(made.trials, made.scaled), strict=True):
        group = found[trial.session, trial.split, trial.block, trial.number]
        x_TC = group["input_features"][()]
        assert x_TC.dtype == np.float32
        np.testing.assert_allclose(x_TC, z_TC, atol=1e-5, rtol=1e-5)
        assert group.attrs["n_time_steps"] == len(z_TC)
        assert group.attrs.get("sentence_label") == trial.sentence


def test_trials_stand_in_the_order_of_recording(made: Made, imported: Path) -> None:
    order = list(in_files(imported))
    for session, split in dict.fromkeys((t.session, t.split) for t in made.trials):
        recorded = [
            (t.block, t.number) for t in made.trials if (t.session, t.split) == (session, split)
        ]
        assert [key[2:] for key in order if key[:2] == (session, split)] == recorded


def test_inspect_finds_nothing_wrong(made: Made, imported: Path, capsys) -> None:
    capsys.readouterr()
    assert cortext(["inspect", str(imported), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert not report["problems"]


def test_a_second_call_does_nothing(made: Made, imported: Path, capsys) -> None:
    before = {path: path.stat().st_mtime_ns for path in imported.rglob("*")}
    files = content(imported)
    assert cortext(["import", *made.words, "--out", str(imported)]) == 0
    n_recordings = len({trial.recording for trial in made.trials})
    assert f"{n_recordings} recordings were there already" in capsys.readouterr().out
    assert content(imported) == files
    assert {path: path.stat().st_mtime_ns for path in imported.rglob("*")} == before


def test_another_option_in_the_same_directory_is_refused(
    made: Made, imported: Path, capsys
) -> None:
    files = content(imported)
    command = ["import", *made.words, "--out", imported, "--normalise", "none"]
    assert "holds an import with another normalise" in complaint(capsys, *command)
    assert content(imported) == files
    command = ["import", *made.words, "--out", imported, "--bin-ms", "40"]
    assert "holds an import with another bin_ms" in complaint(capsys, *command)


def killed(words: list[str], out: Path, at: int) -> None:
    """Import in a process that SIGKILL ends before the file of this number gets its name."""
    child = os.fork()
    if not child:
        n_renamed = 0

        def count(event: str, arguments: tuple[object, ...]) -> None:
            nonlocal n_renamed
            if event == "os.rename":
                n_renamed += 1
                if n_renamed == at:
                    os.kill(os.getpid(), signal.SIGKILL)

        try:
            sys.addaudithook(count)
            cortext(["import", *words, "--out", str(out)])
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL


@pytest.mark.parametrize("at", [1, 2, 3, 4])
def test_an_import_that_was_killed_continues_to_the_same_bytes(
    made: Made, imported: Path, tmp_path: Path, at: int
) -> None:
    out = tmp_path / "out"
    killed(made.words, out, at)
    assert content(out) != content(imported)
    assert cortext(["import", *made.words, "--out", str(out)]) == 0
    assert content(out).keys() == content(imported).keys()
    assert content(out) == content(imported)


def test_causal_z_scores_equal_a_loop_over_bins(made: Made, tmp_path: Path) -> None:
    out = tmp_path / "out"
    assert cortext(["import", *made.words, "--out", str(out), "--normalise", "rolling"]) == 0
    found = in_files(out)
    expected = rolling(made.trials)
    # A value that is far out counts for less (tests/core/data/test_outliers.py): its feature is left out.
    near_C = np.abs(np.concatenate(expected)).max(axis=0) < 8
    assert near_C.mean() > 0.95
    for trial, z_TC in zip(made.trials, expected, strict=True):
        x_TC = found[trial.session, trial.split, trial.block, trial.number]["input_features"][()]
        np.testing.assert_allclose(x_TC[:, near_C], z_TC[:, near_C], atol=1e-5, rtol=1e-5)


CONFIG = """
model: {kind: gru, n_units: 8, n_layers: 1, patch_size: 14, patch_stride: 4}
num_training_batches: 3
batches_per_val_step: 3
dataset: {batch_size: 2, days_per_batch: 1}
"""


def test_a_model_trains_on_an_import(tmp_path: Path) -> None:
    words = FORMATS["falcon-h2"](tmp_path).words
    data, out = str(tmp_path / "data"), str(tmp_path / "run")
    assert cortext(["import", *words, "--out", data]) == 0
    (tmp_path / "config.yaml").write_text(CONFIG)
    command = ["train", "--config", str(tmp_path / "config.yaml"), "--data", data, "--out", out]
    assert cortext(command) == 0
    card = json.loads((tmp_path / "run" / "model.json").read_text())
    assert "handwriting" in json.dumps(card)


def test_an_import_of_which_nothing_is_left_fails_with_skip_bad_too(tmp_path, capsys) -> None:
    made = FORMATS["nwb"](tmp_path)
    mapping = Path(made.words[-1])
    mapping.write_text(mapping.read_text().replace("name: prompt", "name: sentence"))
    out = tmp_path / "out"
    assert cortext(["import", *made.words, "--out", str(out), "--skip-bad"]) == 2
    said = capsys.readouterr().err
    assert said.count("intervals/trials/sentence: no such column") == 2
    assert said.strip().endswith(
        "nothing was written; correct the options or the mapping, or repair the files"
    )


def test_sentences_that_need_a_lexicon_are_one_line_before_anything_is_read(
    tmp_path, capsys
) -> None:
    made = FORMATS["nwb"](tmp_path)
    mapping = Path(made.words[-1])
    mapping.write_text(mapping.read_text() + "language: es\n")
    out = tmp_path / "out"
    said = complaint(capsys, "import", *made.words, "--out", out)
    assert len(said.strip().splitlines()) == 1
    assert "in language 'es'; name a file of pronunciations as lexicon" in said
    assert not out.exists()


def test_a_file_in_the_place_of_the_directory_is_named(tmp_path, capsys) -> None:
    made = FORMATS["nwb"](tmp_path)
    (tmp_path / "out").write_text("")
    said = complaint(capsys, "import", *made.words, "--out", tmp_path / "out")
    assert "out: is no directory; name a new directory" in said


@pytest.mark.parametrize("format", ["nwb", "mat v5", "t12"])
def test_bins_that_are_divided_are_noted(tmp_path, capsys, format) -> None:
    made = FORMATS[format](tmp_path)
    words = made.words
    if format == "t12":
        words = [*words, "--bin-ms", "10"]
    else:
        mapping = Path(words[-1])
        mapping.write_text(mapping.read_text().replace("bin_ms: 20", "bin_ms: 10"))
        if format == "mat v5":
            mapping.write_text(
                mapping.read_text()
                .replace("kind: counts", "kind: counts, bin_ms: 20")
                .replace("kind: power", "kind: power, bin_ms: 20")
            )
    assert cortext(["import", *words, "--out", str(tmp_path / "out")]) == 0
    note = "of 20 ms are divided into bins of 10 ms, which say nothing new"
    assert note in capsys.readouterr().err
