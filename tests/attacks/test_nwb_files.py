"""Attacks on NWB files. A row says what is done to a file of FALCON H2, and the line that is said.

What `import falcon-h2` does not read (conversions, units, ragged columns) is read directly.
"""

from __future__ import annotations

import os
import re
import shutil
import struct
import warnings
import zlib
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest
from commands import run
from foreign_nwb import write_falcon, write_nwb, written_cues
from refusals import harmless

from cortext.data.checks import FaultError
from cortext_data.readers.falcon import falcon_h2
from cortext_data.readers.files.nwb_file import open_nwb
from cortext_data.readers.importing import import_source

NAME = "sub-T5-held-out-calib/sub-T5-held-out-calib_ses-20230417.nwb"
SPIKES, MASK, TRIALS = "acquisition/binned_spikes", "acquisition/eval_mask", "intervals/trials"
SKIP = ", or leave it out with --skip-bad"
AGAIN = "download the file again"
COPY = "copy or download the file again"
EXPORT = "export the file again with pynwb or MatNWB"
INSIDE = "copy the values into the file itself"
N_BINS = 130
Change = Callable[[h5py.File, Path], object]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One held-out day of two trials, of 60 and 70 bins, and beside it another person's file."""
    root = tmp_path_factory.mktemp("good")
    rng = np.random.default_rng(0)
    trials = [written_cues(rng, [1], [cue], (n, n + 1))[0] for cue, n in
              (("hello>world~", 60), ("it's>me?", 70))]  # fmt: skip
    write_falcon(root / "in", {("held-out-calib", "2023.04.17"): trials})
    with h5py.File(root / "secret.nwb", "w") as file:
        file["spikes"] = np.zeros((N_BINS, 192), np.uint8)
    (root / "secret.raw").write_bytes(bytes(N_BINS * 192))
    return root


@pytest.fixture
def place(good: Path, tmp_path: Path) -> Path:
    shutil.copytree(good, tmp_path / "place")
    return tmp_path / "place"


def test_the_file_that_is_attacked_is_read(place: Path) -> None:
    result = import_source(falcon_h2(place / "in"), place / "out")
    assert not result.problems
    assert result.n_written == 1


def replaced(name: str, values: object, **how: object) -> Change:
    """Write other values under a name; attributes stay."""

    def change(file: h5py.File, folder: Path) -> None:
        attributes = dict(file[name].attrs)
        del file[name]
        file.create_dataset(name, data=values, **how).attrs.update(attributes)

    return change


def removed(name: str) -> Change:
    return lambda file, folder: file.__delitem__(name)


def edited(name: str, at: object, value: object) -> Change:
    return lambda file, folder: file[name].__setitem__(at, value)


def attribute(name: str, key: str, value: object) -> Change:
    return lambda file, folder: file[name].attrs.__setitem__(key, value)


def linked(name: str, link: Callable[[Path], object]) -> Change:
    def change(file: h5py.File, folder: Path) -> None:
        del file[name]
        file[name] = link(folder)

    return change


def declared(n_bins: int, **how: object) -> Change:
    """Declare series of so many bins, of which none is stored."""

    def change(file: h5py.File, folder: Path) -> None:
        for name, shape, dtype in (
            (f"{SPIKES}/data", (n_bins, 192), "u1"),
            (f"{SPIKES}/timestamps", (n_bins,), "f8"),
        ):
            attributes = dict(file[name].attrs)
            del file[name]
            file.create_dataset(name, shape, dtype, chunks=True, **how).attrs.update(attributes)

    return change


def virtual(file: h5py.File, folder: Path) -> None:
    del file[f"{SPIKES}/data"]
    layout = h5py.VirtualLayout((N_BINS, 192), "u1")
    layout[:] = h5py.VirtualSource(folder / "secret.nwb", "spikes", (N_BINS, 192))
    file.create_virtual_dataset(f"{SPIKES}/data", layout)


def external(file: h5py.File, folder: Path) -> None:
    del file[f"{SPIKES}/data"]
    file.create_dataset(
        f"{SPIKES}/data", (N_BINS, 192), "u1", external=[(folder / "secret.raw", 0, N_BINS * 192)]
    )


def wrong_chunk(content: Callable[[], bytes]) -> Change:
    """Store something else as the only compressed chunk of the counts."""

    def change(file: h5py.File, folder: Path) -> None:
        del file[f"{SPIKES}/data"]
        data = file.create_dataset(
            f"{SPIKES}/data", (N_BINS, 192), "u1", chunks=(N_BINS, 192), compression="gzip"
        )
        data.id.write_direct_chunk((0, 0), content())

    return change


def cues(*texts: bytes) -> Change:
    """Write cues of any bytes as texts of variable length."""

    def change(file: h5py.File, folder: Path) -> None:
        name = f"{TRIALS}/cue"
        del file[name]
        file.create_dataset(name, data=list(texts), dtype=h5py.string_dtype("ascii"))

    return change


ATTACKS: list[tuple[str, Change, str]] = [
    ("no version", lambda f, _: f.attrs.__delitem__("nwb_version"),
     f"nwb_version: none found, version 2 of NWB expected; {EXPORT}"),
    ("NWB 1", attribute("/", "nwb_version", "NWB-1.0.6"),
     f"nwb_version: 'NWB-1.0.6' found, version 2 of NWB expected; {EXPORT}"),
    ("a version that is a number", attribute("/", "nwb_version", 2.5),
     f"nwb_version: 2.5 found, version 2 of NWB expected; {EXPORT}"),
    ("many versions", attribute("/", "nwb_version", ["2.0", "2.1"]),
     f"nwb_version: a value of another type found, one number or text expected; {EXPORT}"),
    ("no date", removed("session_start_time"),
     f"session_start_time: none found, a date and time expected; {EXPORT}"),
    ("two dates", replaced("session_start_time", ["2023-04-17", "2023-04-18"]),
     f"session_start_time: object of shape (2,) found, a text expected; {EXPORT}"),
    ("a date in words", replaced("session_start_time", "yesterday"),
     f"session_start_time: 'yesterday' found, a date and time expected; {EXPORT}"),
    ("a date of other bytes", replaced("session_start_time", np.bytes_(b"2023\xff")),
     f"session_start_time: b'2023\\xff' found, a text in UTF-8 expected; {COPY}"),
    ("no counts", removed(SPIKES),
     f"{SPIKES}: no such time series; did you mean 'acquisition/eval_mask'?"),
    ("counts without times", removed(f"{SPIKES}/timestamps"),
     f"{SPIKES}: no such time series; did you mean 'acquisition/eval_mask'?"),
    ("a dataset where the group was", replaced(f"{SPIKES}", np.zeros(3)),
     f"{SPIKES}: no such time series; did you mean 'acquisition/eval_mask'?"),
    ("swapped axes", replaced(f"{SPIKES}/data", np.zeros((192, N_BINS), "u1")),
     f"{SPIKES}: shape (192, 130) found for 130 times, [samples, channels] expected; it is probably"
     " transposed: write it the other way round"),
    ("96 channels", replaced(f"{SPIKES}/data", np.zeros((N_BINS, 96), "u1")),
     f"{SPIKES}: shape (130, 96) found, [bins, 192] expected; {AGAIN}"),
    ("one channel", replaced(f"{SPIKES}/data", np.zeros(N_BINS, "u1")),
     f"{SPIKES}: shape (130,) found, [bins, 192] expected; {AGAIN}"),
    ("three axes", replaced(f"{SPIKES}/data", np.zeros((N_BINS, 2, 96), "u1")),
     f"{SPIKES}: shape (130, 2, 96) found, [samples] or [samples, channels] expected; name another series,"
     " or write its parts as series of their own"),
    ("a number alone", replaced(f"{SPIKES}/data", 5),
     f"{SPIKES}: shape () found, [samples] or [samples, channels] expected; name another series"),
    ("no bins", lambda f, p: (replaced(f"{SPIKES}/data", np.zeros((0, 192), "u1"))(f, p), replaced(f"{SPIKES}/timestamps", np.zeros(0))(f, p)),
     f"{SPIKES}: shape (0, 192) found, [bins, 192] expected; {AGAIN}"),
    ("texts for counts", replaced(f"{SPIKES}/data", np.full((N_BINS, 192), b"a")),
     f"{SPIKES}: |S1 found, numbers expected; name another series"),
    ("complex counts", replaced(f"{SPIKES}/data", np.zeros((N_BINS, 192), "c8")),
     f"{SPIKES}: complex64 found, numbers expected; name another series"),
    ("references for counts", replaced(f"{SPIKES}/data", np.full((N_BINS, 192), h5py.Reference()), dtype=h5py.ref_dtype),
     f"{SPIKES}: object found, numbers expected; name another series"),
    ("negative counts", replaced(f"{SPIKES}/data", np.full((N_BINS, 192), -1, "i2")),
     f"block 1 trial 0: {SPIKES}: -1 found, counts expected; {AGAIN}{SKIP}"),
    ("NaN", replaced(f"{SPIKES}/data", np.full((N_BINS, 192), np.nan, "f4")),
     "block 1 trial 0: input_features: 11520 NaN or Inf found, the first at bin 0 of feature 0; finite values expected; replace them before writing the file" + SKIP),
    ("a conversion that is NaN", attribute(f"{SPIKES}/data", "conversion", np.nan),
     f"{SPIKES}: conversion: nan found, a number expected; {EXPORT}"),
    ("an offset in words", attribute(f"{SPIKES}/data", "offset", "none"),
     f"{SPIKES}: offset: 'none' found, a number expected; {EXPORT}"),
    ("a unit of a megabyte", lambda f, _: (f[f"{SPIKES}/data"].attrs.__delitem__("unit"), f[f"{SPIKES}/data"].attrs.create("unit", np.bytes_(b"a" * 60_000))),
     f"{SPIKES}: unit: 60000 characters found, at most 10000 expected; {EXPORT}"),
    ("10^13 bins that were never written", declared(10**13),
     f"{MASK}: shape (130,) found, (10000000000000,) expected as in {SPIKES}; {AGAIN}"),
    ("a link into another file", linked(SPIKES, lambda p: h5py.ExternalLink(p / "secret.nwb", "/")),
     f"{SPIKES}: an external link found, which reads another file; {INSIDE}"),
    ("counts in another file", linked(f"{SPIKES}/data", lambda p: h5py.ExternalLink(p / "secret.nwb", "spikes")),
     f"{SPIKES}: an external link found, which reads another file; {INSIDE}"),
    ("a soft link to one", lambda f, p: (f.__setitem__("out", h5py.ExternalLink(p / "secret.nwb", "/")), linked(f"{SPIKES}/data", lambda p: h5py.SoftLink("/out/spikes"))(f, p)),
     f"{SPIKES}: an external link found, which reads another file; {INSIDE}"),
    ("a soft link to itself", linked(f"{SPIKES}/data", lambda p: h5py.SoftLink(f"/{SPIKES}/data")),
     f"{SPIKES}: damaged HDF5 (soft links in a circle); {COPY}"),
    ("a soft link that leads nowhere", linked(f"{TRIALS}/cue", lambda p: h5py.SoftLink("/nothing")),
     f"{TRIALS}/cue: damaged HDF5 (a soft link leads nowhere); {COPY}"),
    ("a virtual dataset", virtual,
     f"{SPIKES}: a virtual dataset found, which reads other files; {INSIDE}"),
    ("external storage", external,
     f"{SPIKES}: external storage found, which reads other files; {INSIDE}"),
    ("a chunk that is too short", wrong_chunk(lambda: zlib.compress(b"a")),
     f"block 1 trial 0: {SPIKES}: damaged HDF5 (a chunk does not hold 24960 bytes); {COPY}{SKIP}"),
    ("a chunk that is too long", wrong_chunk(lambda: zlib.compress(bytes(10**8))),
     f"block 1 trial 0: {SPIKES}: damaged HDF5 (a chunk does not hold 24960 bytes); {COPY}{SKIP}"),
    ("a chunk that is not gzip", wrong_chunk(lambda: b"not gzip"),
     f"block 1 trial 0: {SPIKES}: damaged HDF5 (a chunk does not hold 24960 bytes); {COPY}{SKIP}"),
    ("a time that is NaN", edited(f"{SPIKES}/timestamps", 7, np.nan),
     f"{SPIKES}/timestamps: NaN or Inf found, seconds expected; {EXPORT}"),
    ("times that go back", edited(f"{SPIKES}/timestamps", 7, 0.0),
     f"{SPIKES}/timestamps: bin 7 is not later than bin 6; {AGAIN}"),
    ("bins of 10 ms", replaced(f"{SPIKES}/timestamps", np.arange(N_BINS) * 0.01),
     f"{SPIKES}/timestamps: bins of 10 ms found, 20 ms expected; {AGAIN}"),
    ("times that are texts", replaced(f"{SPIKES}/timestamps", np.full(N_BINS, b"1.5")),
     f"{SPIKES}/timestamps: |S3 of shape (130,) found, numbers in one dimension expected; {EXPORT}"),
    ("a rate of 0", lambda f, p: (removed(f"{SPIKES}/timestamps")(f, p), f[SPIKES].create_dataset("starting_time", data=0.0).attrs.__setitem__("rate", 0.0)),
     f"{SPIKES}/starting_time: 0 s and 0 samples a second found; {EXPORT}"),
    ("a start that is a text", lambda f, p: (removed(f"{SPIKES}/timestamps")(f, p), f[SPIKES].create_dataset("starting_time", data="0").attrs.__setitem__("rate", 50.0)),
     f"{SPIKES}/starting_time: a value of another type found, a number expected; {EXPORT}"),
    ("a time too few", replaced(f"{SPIKES}/timestamps", np.arange(N_BINS - 1) * 0.02),
     f"{SPIKES}/timestamps: 129 times found for 130 samples; {EXPORT}"),
    ("factors of other channels", lambda f, _: f[SPIKES].create_dataset("channel_conversion", data=np.ones(3)),
     f"{SPIKES}/channel_conversion: 3 factors found for 192 channels; {EXPORT}"),
    ("no mask", removed(MASK),
     f"{MASK}: no such time series; did you mean 'acquisition/binned_spikes'?"),
    ("a mask of two axes", replaced(f"{MASK}/data", np.ones((N_BINS, 192), bool)),
     f"{MASK}: shape (130, 192) found, (130,) expected as in {SPIKES}; {AGAIN}"),
    ("no trials", removed(TRIALS),
     f"{TRIALS}: no such table; the file has none"),
    ("a table without names", lambda f, _: f[TRIALS].attrs.__delitem__("colnames"),
     f"{TRIALS}: no such table; the file has none"),
    ("names that are numbers", attribute(TRIALS, "colnames", [1, 2]),
     f"{TRIALS}: colnames: 1 found, a text expected; {EXPORT}"),
    ("a missing column", lambda f, _: f[TRIALS].attrs.__setitem__("colnames", ["start_time", "stop_time", "block_num"]),
     f"{TRIALS}/cue: no such column; known: block_num, start_time, stop_time; name one"),
    ("a column that is only named", removed(f"{TRIALS}/cue"),
     f"{TRIALS}/cue: dataset missing; {EXPORT}"),
    ("one cue for two trials", replaced(f"{TRIALS}/cue", ["hello~"]),
     f"{TRIALS}/cue: 1 rows found, 2 expected as in other columns; {EXPORT}"),
    ("three trials for two", lambda f, p: [replaced(f"{TRIALS}/{n}", v)(f, p) for n, v in (("cue", ["a", "b", "c"]), ("start_time", np.zeros(3)), ("stop_time", np.zeros(3)), ("block_num", np.ones(3, "u1")))],
     f"{TRIALS}: 3 trials found, 2 expected as the times of {SPIKES} have; {AGAIN}"),
    ("the same trial twice", lambda f, p: [edited(f"{TRIALS}/{n}", 1, f[f"{TRIALS}/{n}"][0])(f, p) for n in ("start_time", "stop_time", "cue")],
     f"{TRIALS}/start_time: 0 s found for trial 2, 11.2 s expected as its bins have it; {AGAIN}"),
    ("a trial that ends late", edited(f"{TRIALS}/stop_time", 0, 2.0),
     f"{TRIALS}/stop_time: 2 s found for trial 1, 1.18 s expected as its bins have it; {AGAIN}"),
    ("a start that is NaN", edited(f"{TRIALS}/start_time", 0, np.nan),
     f"{TRIALS}/start_time: nan s found for trial 1, 0 s expected as its bins have it; {AGAIN}"),
    ("starts that are texts", replaced(f"{TRIALS}/start_time", ["0", "1"]),
     f"{TRIALS}/start_time: texts found, numbers expected; {AGAIN}"),
    ("cues that are numbers", replaced(f"{TRIALS}/cue", [1, 2]),
     f"{TRIALS}/cue: numbers found, texts expected; {AGAIN}"),
    ("cues in two columns", replaced(f"{TRIALS}/cue", [[b"a", b"b"], [b"c", b"d"]]),
     f"{TRIALS}/cue: object of shape (2, 2) found, one number or text a row expected; name another column"),
    ("cues that are not UTF-8", cues(b"hello~", b"caf\xe9~"),
     f"{TRIALS}/cue: b'caf\\xe9~' found, a text in UTF-8 expected; {COPY}"),
    ("a cue of 20,000 letters", cues(b"hello~", b"a" * 20_000),
     f"{TRIALS}/cue: 20000 characters found, at most 10000 expected; {EXPORT}"),
    ("a cue of 50,000 bytes", cues(b"hello~", b"a" * 50_000),
     f"{TRIALS}/cue: texts of up to 50000 bytes found, at most 40000 expected; {COPY}"),
    ("a cue with escapes", cues(b"hello~", b"\x1b[31m\x07red~"),
     f"block 1 trial 1: {TRIALS}/cue: '\\x1b[31m\\x07red~' has \\x1b [ 3 1 \\x07, which inventory 'handwriting' lacks; correct the cue{SKIP}"),
    *((f"a cue that the label would change: {cue}", cues(b"hello~", cue.encode()), f"block 1 trial 1: {TRIALS}/cue: {says}; correct the cue{SKIP}")
      for cue, says in (
        ("no>way!", "'no>way!' has !, which inventory 'handwriting' lacks"),
        ("room>12~", "'room>12~' has 1 2, which inventory 'handwriting' lacks"),
        ("frío~", "'frío~' has í, which inventory 'handwriting' lacks"),
        ("yes>,no", "'yes>,no' found, of which only 'yes>no' would be the label"),
        ("so??", "'so??' found, of which only 'so?' would be the label"),
    )),
    ("a cue without letters", cues(b"hello~", b"~"),
     "block 1 trial 1: sentence_label: no word in the sentence '.'; it needs at least one letter" + SKIP),
    ("a label that its trial is too short for", cues(b"hello~", b"ab" * 60),
     "block 1 trial 1: n_time_steps: 70 bins give 70 patches, the label of 120 characters needs at least 120; the trial is too short for its label (CTC cannot align it): fix either" + SKIP),
    ("cues of 10^9 bytes each", lambda f, _: (f.__delitem__(f"{TRIALS}/cue"), f.create_dataset(f"{TRIALS}/cue", (2,), "S1000000000", chunks=(1,))),
     f"{TRIALS}/cue: 2 texts of 1000000000 bytes declared, at most 67108864 in all expected; {COPY}"),
    ("cues that were never written", lambda f, _: (f.__delitem__(f"{TRIALS}/cue"), f.create_dataset(f"{TRIALS}/cue", (2,), h5py.string_dtype())),
     f"{TRIALS}/cue: only declared, no values were ever written; {COPY}"),
    ("a million rows and more", lambda f, _: [(f.__delitem__(f"{TRIALS}/{n}"), f.create_dataset(f"{TRIALS}/{n}", (10**12,), "f8", chunks=True)) for n in ("start_time", "stop_time", "block_num")],
     f"{TRIALS}/start_time: 1000000000000 rows declared, at most 100000 expected; {EXPORT}"),
    ("a block that is no number", replaced(f"{TRIALS}/block_num", [1.5, 2.0]),
     f"{TRIALS}/block_num: 1.5 found, the number of a block expected; {AGAIN}"),
    ("a negative block", replaced(f"{TRIALS}/block_num", [1, -3]),
     f"{TRIALS}/block_num: -3 found, the number of a block expected; {AGAIN}"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("change", "line"), [row[1:] for row in ATTACKS], ids=[row[0] for row in ATTACKS]
)
def test_a_damaged_file_is_one_line(place: Path, change: Change, line: str) -> None:
    path = place / "in" / NAME
    with h5py.File(path, "a") as file:
        change(file, place)
    with harmless():
        result = import_source(falcon_h2(place / "in"), place / "out")
    assert str(result.problems[0]) == f"{path}: {line}"
    assert result.n_written == 0
    assert not list((place / "out").glob("t5*"))


def content(make: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(make(path.read_bytes()))


def pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def letters_elsewhere(form: str, skip: int, value: int) -> Callable[[Path], None]:
    """Change where the file says that the second cue's letters lie."""

    def change(path: Path) -> None:
        with h5py.File(path, "a") as file:
            replaced(f"{TRIALS}/cue", ["hello>world~", "it's>me?"])(file, path.parent)
        with h5py.File(path) as file:
            at = int(file[f"{TRIALS}/cue"].id.get_offset()) + 16
        changed = bytearray(path.read_bytes())
        struct.pack_into(form, changed, at + skip, value)
        path.write_bytes(changed)

    return change


ELSEWHERE = r"(.+: )?(damaged HDF5 \(.+\)|texts of up to 4294967295 bytes found, .+); copy or"
BYTES = {
    "truncated": (content(lambda c: c[:40_000]), f"truncated HDF5: 40000 bytes found, more expected; {COPY}$"),
    "empty": (content(lambda _: b""), rf"not an HDF5 file but an empty file \(0 bytes\); {COPY}$"),
    "foreign": (content(lambda _: b"no HDF5" * 1000), f"not an HDF5 file, or a badly damaged one; {COPY}$"),
    "a pipe": (pipe, "is not a file but a folder, pipe or device; check the path$"),
    "a cue of 4 GiB": (letters_elsewhere("<I", 0, 2**32 - 1), ELSEWHERE),
    "a cue longer than it is": (letters_elsewhere("<I", 0, 9_000), ELSEWHERE),
    "a cue beyond the file": (letters_elsewhere("<Q", 4, 2**62), ELSEWHERE),
    "a cue inside the header": (letters_elsewhere("<Q", 4, 1), ELSEWHERE),
    "a cue of no such number": (letters_elsewhere("<I", 12, 60_000), ELSEWHERE),
}  # fmt: skip


@pytest.mark.parametrize("name", BYTES)
def test_damaged_bytes_are_one_line(place: Path, name: str) -> None:
    change, says = BYTES[name]
    path = place / "in" / NAME
    change(path)
    with harmless(most_s=20):
        (problem,) = import_source(falcon_h2(place / "in"), place / "out").problems
    assert problem.trial is None
    assert re.match(says, str(problem).removeprefix(f"{path}: "))


def test_the_command_says_the_line_and_writes_nothing(place: Path) -> None:
    path = place / "in" / NAME
    with h5py.File(path, "a") as file:
        removed(TRIALS)(file, place)
    ended = run("import", "falcon-h2", place / "in", "--out", place / "out")
    assert ended.status == 2
    assert f"{path}: {TRIALS}: no such table; the file has none" in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not list((place / "out").glob("t5*"))


@pytest.fixture(scope="module")
def made_rig(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with three units."""
    path = tmp_path_factory.mktemp("rig") / "rig.nwb"
    write_nwb(path, n_units=3)
    return path


@pytest.fixture
def rig(made_rig: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copy(made_rig, tmp_path))


TIMES, INDEX = "units/spike_times", "units/spike_times_index"
OBSERVED = "units/obs_intervals"


def observed(periods: list[list[float]], ends: list[int]) -> Change:
    """Add the periods in which units were observed."""

    def change(file: h5py.File, _: Path) -> None:
        file[OBSERVED], file[f"{OBSERVED}_index"] = np.array(periods, "f8"), np.array(ends)

    return change


@pytest.mark.parametrize(
    ("change", "field", "message"),
    [
        (edited(TIMES, 0, np.inf), TIMES, f"NaN or Inf found, seconds expected; {EXPORT}"),
        (edited(INDEX, 1, 0), INDEX, "it does not divide {n} spikes among 3 units; " + EXPORT),
        (edited(INDEX, 2, 1), INDEX, "it does not divide {n} spikes among 3 units; " + EXPORT),
        (removed(INDEX), INDEX, f"dataset missing; {EXPORT}"),
        (replaced(INDEX, [[1, 2], [2, 3]]), INDEX, f"int64 of shape (2, 2) found, numbers in one dimension expected; {EXPORT}"),
        (lambda f, _: (f.__delitem__(TIMES), f.create_dataset(TIMES, (10**12,), "f8", chunks=True)), TIMES,
         f"1000000000000 numbers declared, at most 4000000000 expected; {EXPORT}"),
        (lambda f, _: (f.__delitem__(TIMES), f.create_dataset(TIMES, (10**9,), "f8", chunks=(1000,)).__setitem__(0, 1.0)), TIMES,
         f"1,000,000,000 numbers declared, which 8,256,000 bytes cannot hold; {EXPORT}"),
        (lambda f, _: (f.__delitem__(TIMES), f.create_dataset(TIMES, (10**7,), "f8", chunks=(1,))), TIMES,
         f"only declared, no values were ever written; {COPY}"),
        (observed([[0, 1, 2]] * 3, [1, 2, 3]), OBSERVED,
         f"shape (3, 3) found for 3 of 3 units, [periods, 2] expected; {EXPORT}"),
        (observed([[0, 1]] * 3, [1, 2]), OBSERVED,
         f"shape (3, 2) found for 2 of 3 units, [periods, 2] expected; {EXPORT}"),
        (observed([[0, 1]] * 3, [1, 9, 3]), f"{OBSERVED}_index", f"it does not divide 3 periods among 3 units; {EXPORT}"),
        (linked(TIMES, lambda p: h5py.ExternalLink(p / "secret.nwb", "spikes")), TIMES,
         f"an external link found, which reads another file; {INSIDE}"),
    ],
)  # fmt: skip
def test_damaged_units_are_one_line(rig: Path, change: Change, field: str, message: str) -> None:
    with h5py.File(rig, "a") as file:
        n = len(file[TIMES])
        change(file, rig.parent)
    with harmless(), open_nwb(rig) as opened, pytest.raises(FaultError) as error:
        opened.units()
    assert (error.value.field, error.value.message) == (field, message.format(n=n))


def test_series_larger_than_memory_are_only_listed(rig: Path) -> None:
    with h5py.File(rig, "a") as file:
        group = file.create_group("acquisition/raw")
        group.create_dataset("data", (10**12, 256), "i2", chunks=(1000, 256))[:1000] = 1
        group.create_dataset("starting_time", data=0.0).attrs["rate"] = 30_000.0
    with harmless(), open_nwb(rig) as opened:
        raw = opened.series()["acquisition/raw"]
        assert raw.shape == (10**12, 256)
        assert raw.read(10, 12, [3]).tolist() == [[1], [1]]
        with pytest.raises(FaultError, match="4882812 MiB asked for at once, at most 512 possible"):
            raw.read(0, 10**10)
        with pytest.raises(FaultError, match="1000000000000 samples found, at most 20000000"):
            raw.times()


def test_groups_that_many_links_lead_to_are_listed_once(rig: Path) -> None:
    with open_nwb(rig) as opened:
        before = list(opened.series())
    with h5py.File(rig, "a") as file:
        for number in range(20):
            file[f"acquisition/zz{number}"] = file["acquisition"]
    with harmless(most_s=5), open_nwb(rig) as opened:
        assert list(opened.series()) == before


@pytest.mark.parametrize("value", [np.nan, 1.5, 1e300])
def test_an_index_that_is_no_whole_number_is_one_line(rig: Path, value: float) -> None:
    with h5py.File(rig, "a") as file:
        ends = file["units/spike_times_index"][()].astype(float)
        ends[0] = value
        del file["units/spike_times_index"]
        file["units/spike_times_index"] = ends
    with warnings.catch_warnings(), open_nwb(rig) as opened:
        warnings.simplefilter("error")
        with pytest.raises(FaultError):
            opened.units()


def test_folders_within_themselves_end(rig: Path) -> None:
    with h5py.File(rig, "a") as file:
        file["acquisition/again"] = file["acquisition"]
        file["acquisition/soft"] = h5py.SoftLink("/acquisition")
    with harmless(most_s=20), open_nwb(rig) as opened:
        assert "acquisition/threshold_crossings" in opened.series()
