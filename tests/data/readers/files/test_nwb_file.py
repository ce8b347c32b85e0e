"""NWB files written with pynwb and read with h5py alone."""

import datetime

import h5py
import numpy as np
import pytest
from dateutil.tz import gettz
from hdmf.backends.hdf5 import H5DataIO
from pynwb import NWBHDF5IO, NWBFile, TimeSeries
from pynwb.behavior import BehavioralTimeSeries
from pynwb.ecephys import ElectricalSeries
from pynwb.file import Subject

from cortext.data.checks import FaultError
from cortext_data.readers.files.nwb_file import open_nwb

RNG = np.random.default_rng(0)
COUNTS = RNG.poisson(1.0, (60, 12)).astype(np.uint8)
VOLTS = RNG.integers(-100, 100, (60, 4)).astype(np.int16)
TIMES = np.arange(60) * 0.02 + 3.5


def new_file(start="2026-05-04 23:30", zone="America/Chicago", **subject):
    start = datetime.datetime.fromisoformat(start).replace(tzinfo=gettz(zone))
    file = NWBFile(session_description="x", identifier="rig-7", session_start_time=start)
    if subject:
        file.subject = Subject(species="Homo sapiens", sex="F", age="P40Y", **subject)
    return file


def written(file, path):
    with NWBHDF5IO(path, "w") as io:
        io.write(file)
    return path


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Series of all kinds, trials, and units of which one has no spikes."""
    file = new_file(subject_id="T5")
    counts = TimeSeries(name="binned_spikes", timestamps=TIMES, data=COUNTS, unit="int")
    file.add_acquisition(counts)
    mask = np.arange(60) % 3 > 0
    file.add_acquisition(TimeSeries(name="mask", timestamps=counts, data=mask, unit="bool"))
    file.add_acquisition(
        TimeSeries(
            name="squeezed",
            data=H5DataIO(VOLTS, compression="gzip", shuffle=True, chunks=(7, 3)),
            rate=50.0, starting_time=1.0, unit="volts", conversion=0.5, offset=-2.0,
        )
    )  # fmt: skip
    module = file.create_processing_module(name="behavior", description="derived")
    module.add(
        BehavioralTimeSeries(
            time_series=TimeSeries(name="pos", data=VOLTS[:, 0], unit="m", rate=50.0)
        )
    )
    for name in ("cue", "block"):
        file.add_trial_column(name=name, description=name)
    file.add_trial_column(name="taps", description="a ragged one", index=True)
    file.add_trial(start_time=0.0, stop_time=1.5, cue="hello>world~", block=np.uint8(3), taps=[1])
    file.add_trial(start_time=2.0, stop_time=3.5, cue="frío ñ 中", block=np.uint8(4), taps=[1, 2])
    for spikes in ([0.1, 0.25, 7.0], [], [2.0]):
        file.add_unit(spike_times=spikes)
    return written(file, tmp_path_factory.mktemp("nwb") / "a.nwb")


def test_facts_of_the_file(path):
    with open_nwb(path) as file:
        assert (file.path, file.subject, file.identifier) == (path, "T5", "rig-7")
        # Where it was recorded; elsewhere it was the 5th.
        assert file.date == datetime.date(2026, 5, 4)


def test_a_file_without_participant_units_and_trials(tmp_path):
    with open_nwb(written(new_file(), tmp_path / "a.nwb")) as file:
        assert file.subject is None
        assert file.units() is None
        assert file.series() == {}
        assert file.tables() == ()
        with pytest.raises(FaultError) as error:
            file.table()
        assert error.value.message == "no such table; the file has none"
        with pytest.raises(FaultError) as error:
            file.one_series("acquisition/spikes")
        assert error.value.message == "no such time series; the file has none"


def test_series_have_their_places_shapes_and_units(path):
    with open_nwb(path) as file:
        found = {name: (s.shape, s.dtype, s.unit, s.rate) for name, s in file.series().items()}
    assert found == {
        "acquisition/binned_spikes": ((60, 12), np.uint8, "int", None),
        "acquisition/mask": ((60,), bool, "bool", None),
        "acquisition/squeezed": ((60, 4), np.int16, "volts", 50.0),
        "processing/behavior/BehavioralTimeSeries/pos": ((60,), np.int16, "m", 50.0),
    }


def test_numbers_are_those_that_pynwb_wrote(path):
    with open_nwb(path) as file:
        spikes = file.one_series("acquisition/binned_spikes")
        np.testing.assert_array_equal(spikes.read(), COUNTS)
        assert spikes.read().dtype == np.uint8
        np.testing.assert_array_equal(spikes.read(5, 9), COUNTS[5:9])
        np.testing.assert_array_equal(spikes.read(5, 9, slice(2, 4)), COUNTS[5:9, 2:4])
        np.testing.assert_array_equal(spikes.read(columns=[7, 1]), COUNTS[:, [7, 1]])
        assert spikes.read(4, 4).shape == (0, 12)
        np.testing.assert_array_equal(spikes.times(), TIMES)
        mask = file.one_series("acquisition/mask")
        np.testing.assert_array_equal(mask.read(), np.arange(60) % 3 > 0)
        np.testing.assert_array_equal(mask.times(), TIMES)  # it has a link to the other's


def test_conversion_offset_and_rate_give_units_and_seconds(path):
    with open_nwb(path) as file:
        series = file.one_series("acquisition/squeezed")
        np.testing.assert_allclose(series.read(), VOLTS * 0.5 - 2.0)
        np.testing.assert_allclose(series.read(6, 15, [3]), VOLTS[6:15, [3]] * 0.5 - 2.0)
        np.testing.assert_allclose(series.times(), 1.0 + np.arange(60) / 50)


def test_each_electrode_has_its_conversion(tmp_path):
    file = new_file()
    device = file.create_device(name="array")
    group = file.create_electrode_group(name="g", description="x", location="cortex", device=device)
    for _ in range(4):
        file.add_electrode(group=group, location="cortex")
    region = file.create_electrode_table_region(region=[0, 1, 2, 3], description="all")
    factors = [1.0, 2.0, 0.0, 0.25]
    series = ElectricalSeries(
        name="raw", data=VOLTS, electrodes=region, rate=50.0, conversion=1e-6,
        channel_conversion=factors,
    )  # fmt: skip
    file.add_acquisition(series)
    with open_nwb(written(file, tmp_path / "a.nwb")) as opened:
        raw = opened.one_series("acquisition/raw")
        np.testing.assert_allclose(raw.read(), VOLTS * np.array(factors) * 1e-6)
        np.testing.assert_allclose(raw.read(columns=[1, 3]), (VOLTS * factors)[:, [1, 3]] * 1e-6)


def test_columns_of_trials(path):
    with open_nwb(path) as file:
        assert file.tables() == ("intervals/trials", "units")
        table = file.table()
        assert table.columns == ("start_time", "stop_time", "cue", "block", "taps")
        assert table.column("cue") == ["hello>world~", "frío ñ 中"]
        assert table.column("block").tolist() == [3, 4]
        assert table.column("stop_time").tolist() == [1.5, 3.5]
        with pytest.raises(FaultError) as error:
            table.column("taps")
        assert (error.value.field, error.value.message) == (
            "intervals/trials/taps",
            "a ragged column found (several values in a row), one value expected; name another"
            " column",
        )
        with pytest.raises(FaultError, match="no such column; did you mean 'block'"):
            table.column("blocks")


def test_a_table_of_fixed_length_texts_and_compressed_ones(tmp_path):
    file = new_file()
    for start in (0.0, 1.0):
        file.add_trial(start_time=start, stop_time=start + 0.5)
    cues = H5DataIO(["hello", "yes"], compression="gzip", chunks=True)
    file.add_trial_column(name="cue", description="x", data=cues)
    path = written(file, tmp_path / "a.nwb")
    with h5py.File(path, "a") as raw:  # MatNWB and others write texts of one length
        trials = raw["intervals/trials"]
        trials["kind"] = np.array([b"ab", b"\xc3\xa9c\0"], "S4")
        trials.attrs["colnames"] = [*trials.attrs["colnames"], "kind"]
    with open_nwb(path) as opened:
        assert opened.table().column("cue") == ["hello", "yes"]
        assert opened.table().column("kind") == ["ab", "éc"]


def test_spike_times_by_unit(path):
    with open_nwb(path) as file:
        assert [times.tolist() for times in file.units()] == [[0.1, 0.25, 7.0], [], [2.0]]


def test_spike_times_are_sorted(tmp_path):
    file = new_file()
    file.add_unit(spike_times=[3.0, 1.0, 2.0])
    file.add_unit(spike_times=[0.5])
    with open_nwb(written(file, tmp_path / "a.nwb")) as opened:
        assert [times.tolist() for times in opened.units()] == [[1.0, 2.0, 3.0], [0.5]]


def test_a_wrong_name_suggests_the_right_one(path):
    with open_nwb(path) as file, pytest.raises(FaultError) as error:
        file.one_series("acquisition/binned_spike")
    assert error.value.message == ("no such time series; did you mean 'acquisition/binned_spikes'?")


def test_images_and_annotations_are_no_series_of_numbers(tmp_path):
    file = new_file()
    file.add_acquisition(
        TimeSeries(name="movie", data=np.zeros((5, 4, 3), np.uint8), unit="n/a", rate=5.0)
    )
    with open_nwb(written(file, tmp_path / "a.nwb")) as opened:
        assert opened.series() == {}
        with pytest.raises(FaultError, match=r"shape \(5, 4, 3\) found, \[samples\] or"):
            opened.one_series("acquisition/movie")
