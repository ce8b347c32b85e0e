"""`--inspect` lists everything that an NWB file holds, with the reason where it cannot be read."""

from __future__ import annotations

import datetime
from pathlib import Path

import h5py
import numpy as np
import pytest
from lab_nwb import SIMPLE, cue_rows, only_problem, read_nwb, write_simple

from cortext_data.readers.files.nwb_file import open_nwb
from cortext_data.readers.mapped.inspect_nwb import inspect_nwb


@pytest.fixture
def path(tmp_path: Path) -> Path:
    write_simple(tmp_path / "a.nwb", cue_rows("one", "two"), timestamps=np.arange(500) * 0.02)
    return tmp_path / "a.nwb"


def parts(path: Path) -> dict[str, tuple[str, str]]:
    return {item.name: (item.kind, item.about) for item in inspect_nwb(path)[0]}


def reshaped(path: Path, name: str, values: object) -> None:
    with h5py.File(path, "r+") as file:
        attributes = dict(file[name].attrs)
        del file[name]
        file.create_dataset(name, data=values).attrs.update(attributes)


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        (
            (8, 500),
            "shape (8, 500) found for 500 times, [samples, channels] expected; it is probably"
            " transposed: write it the other way round",
        ),
        (
            (500, 8, 2),
            "shape (500, 8, 2) found, [samples] or [samples, channels] expected; name another"
            " series, or write its parts as series of their own",
        ),
    ],
)
def test_a_series_of_another_form_is_listed(path: Path, shape: tuple, reason: str) -> None:
    reshaped(path, "acquisition/tx/data", np.zeros(shape))
    assert parts(path)["acquisition/tx"] == ("series", reason)


def test_units_without_spikes_and_series_without_times_are_listed(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["acquisition/tx/timestamps"][7] = np.nan
        file["units/quality"] = ["good", "poor"]
        file["units"].attrs["colnames"] = ["quality"]
        file["general/extracellular_ephys/electrodes/group_name"] = ["6v", "44"]
        file["general/extracellular_ephys/electrodes"].attrs["colnames"] = ["group_name"]
    found = parts(path)
    assert "NaN or Inf found, seconds expected" in found["acquisition/tx"][1]
    assert found["units/quality"] == ("column", "'good', 'poor'")
    assert "no spike times found" in [item.about for item in inspect_nwb(path)[0]]
    assert found["general/extracellular_ephys/electrodes/group_name"] == ("column", "'6v', '44'")


def test_links_tables_units_and_data_elsewhere_are_listed(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file["acquisition/gone"] = h5py.SoftLink("/acquisition/never")
        file["acquisition/far"] = h5py.ExternalLink("day2.nwb", "/acquisition/tx")
        file["scratch/w"] = np.zeros((3, 4))
        file["processing/ecephys/sorted/spike_times"] = np.zeros(5)
        file["processing/ecephys/sorted"].attrs["colnames"] = ["spike_times"]
        file.copy("intervals/trials", "processing/ecephys/speech")
    found = parts(path)
    assert found["acquisition/gone"][1].startswith("damaged HDF5 (a soft link leads nowhere)")
    assert found["acquisition/far"] == (
        "link",
        "an external link found, which reads another file; copy the values into the file itself",
    )
    assert found["scratch/w"] == (
        "dataset",
        "shape [3, 4]; only time series and columns of tables are read",
    )
    assert found["processing/ecephys/sorted"] == (
        "spikes",
        "only spikes of the table `units` are read; write them there",
    )
    assert found["processing/ecephys/speech/cue"] == ("column", "'one', 'two'")
    units = SIMPLE.replace("acquisition/tx,", "units,")
    assert only_problem(path, units) == (
        "units: no spike times found; write the spikes of processing/ecephys/sorted there"
    )
    text = SIMPLE + "trials: {table: processing/ecephys/speech}\n"
    assert len(read_nwb(path, text)[1]) == 2


def test_a_table_elsewhere_is_proposed_where_there_is_no_other(path: Path) -> None:
    with h5py.File(path, "r+") as file:
        file.move("intervals/trials", "processing/speech")
    assert "table: processing/speech" in inspect_nwb(path)[1]


@pytest.mark.parametrize("shape", [(1, -1), (-1, 1)])
def test_rows_and_columns_of_matlab_are_vectors(path: Path, shape: tuple[int, int]) -> None:
    expected = read_nwb(path, SIMPLE)[1]
    for name in (
        "intervals/trials/start_time",
        "intervals/trials/cue",
        "acquisition/tx/timestamps",
    ):
        with h5py.File(path) as file:
            values = file[name][()].reshape(shape)
        with h5py.File(path, "r+") as file:
            dtype, attributes = file[name].dtype, dict(file[name].attrs)
            del file[name]
            file.create_dataset(name, data=values, dtype=dtype).attrs.update(attributes)
    contents, found = read_nwb(path, SIMPLE)
    assert [t.sentence for block in contents.blocks for t in block.trials] == ["one", "two"]
    np.testing.assert_array_equal(found, expected)


def test_blanks_behind_names_and_texts_are_none_of_theirs(path: Path) -> None:
    """A char matrix of MATLAB pads its rows."""
    with h5py.File(path, "r+") as file:
        table = file["intervals/trials"]
        del table["cue"]
        table["cue"] = np.array([b"one  ", b"two  "], "S5")
        names = [str(name) for name in table.attrs["colnames"]]
        table.attrs["colnames"] = np.array([name.ljust(20).encode() for name in names])
        del file["general/subject/subject_id"]
        file["general/subject/subject_id"] = np.bytes_("T99   ")
    with open_nwb(path) as file:
        assert file.table().columns == ("start_time", "stop_time", "cue")
        assert file.table().column("cue") == ["one", "two"]
        assert file.subject == "T99"


@pytest.mark.parametrize(
    ("text", "day"),
    [
        ("2025-03-14T22:30:00-05:00", 14),  # the 15th in UTC
        ("2025-03-14T00:30:00+09:00", 14),  # the 13th in UTC
        ("2025-03-14T22:30:00Z", 14),
        ("2025-03-14T22:30:00.123456", 14),
    ],
)
def test_the_day_is_the_one_that_the_lab_wrote(path: Path, text: str, day: int) -> None:
    with h5py.File(path, "r+") as file:
        del file["session_start_time"]
        file["session_start_time"] = text
    with open_nwb(path) as opened:
        assert opened.date == datetime.date(2025, 3, day)
