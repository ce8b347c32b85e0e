"""The command of a reader: a function of a made-up format, and one row of `READERS`."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Annotated

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from cortext.cli.options import with_options
from cortext.data import open_dataset
from cortext.settings import Setting
from cortext_data.commands import importing
from cortext_data.readers.recording import Contents, RecordedTrial, Recording, Source, in_blocks


def tables(
    source: Annotated[Path, Setting(help="Folder of tables.", argument=True)],
    *,
    gain: Annotated[int, Setting(help="Factor of all numbers.", minimum=1, metavar="N")] = 2,
    quiet: Annotated[bool, Setting(help="Also read the second trial.")] = True,
) -> Source:
    """Read tables of numbers as session files.

    Example: cortext import tables FOLDER --out data/tables

    Raises:
        DataError: Never.
    """

    @contextmanager
    def opened(path: Path) -> Iterator[Contents]:
        x_TC = np.loadtxt(path)
        trials = [
            (7, "train", RecordedTrial(number, len(x_TC), partial(np.multiply, x_TC, gain), "Hi."))
            for number in range(1 + quiet)
        ]
        yield Contents(in_blocks(trials))

    recordings = [
        Recording(path.stem, (path,), partial(opened, path)) for path in sorted(source.iterdir())
    ]
    return Source("tables", recordings, settings={"gain": gain, "quiet": quiet})


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch):
    """The command of `tables`, given its arguments."""
    monkeypatch.setitem(importing.READERS, "tables", f"{__name__}.tables")
    command = typer.Typer(rich_markup_mode=None)
    command.command()(with_options(importing.tables))
    return partial(CliRunner().invoke, command)


def test_the_command_has_the_options_and_the_help_of_the_reader(run) -> None:
    shown = " ".join(run(["--help"]).output.split())
    assert "Write tables of numbers as session files." in shown
    assert "Example: cortext import tables FOLDER --out data/tables" in shown
    assert "DataError" not in shown
    assert "Folder of tables. [required]" in shown
    assert "--gain N" in shown
    assert "Factor of all numbers. [default: 2; x>=1]" in shown
    assert "--quiet / --no-quiet" in shown
    assert shown.index("--out") < shown.index("--gain") < shown.index("--normalise")


def test_the_options_arrive_at_the_reader(run, tmp_path: Path) -> None:
    x_TC = np.random.default_rng(0).normal(size=(40, 3)).astype(np.float32)
    (tmp_path / "lab").mkdir()
    np.savetxt(tmp_path / "lab" / "t1.2026.01.02.txt", x_TC)
    words = [str(tmp_path / "lab"), "--normalise", "none", "--out"]
    assert run([*words, str(tmp_path / "all")]).exit_code == 0
    found = list(open_dataset(tmp_path / "all").trials("train", ["t1.2026.01.02"]))
    assert [(trial.block, trial.trial) for trial in found] == [(7, 0), (7, 1)]
    np.testing.assert_array_equal(found[0].features_TC, 2 * x_TC)
    assert run([*words, str(tmp_path / "one"), "--no-quiet", "--gain", "4"]).exit_code == 0
    (only,) = open_dataset(tmp_path / "one").trials("train", ["t1.2026.01.02"])
    np.testing.assert_array_equal(only.features_TC, 4 * x_TC)


def test_a_name_without_a_reader_is_none_of_the_module() -> None:
    assert not hasattr(importing, "tables")
