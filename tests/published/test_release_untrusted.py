"""A checkpoint from anywhere runs nothing, and no damage to it does more than an error of one
line.
"""

import functools
import io
import os
import pickle
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from cortext.errors import RunError
from cortext_published.release import untrusted
from cortext_published.release.untrusted import read_torch_file


class Call:
    """Pickles as the call of a function."""

    def __init__(self, function, *arguments):
        self.call = (function, arguments)

    def __reduce__(self):
        return self.call


class State:
    """Pickles as an object that is given a state."""

    def __init__(self, made, state):
        self.made, self.state = made, state

    def __reduce__(self):
        return (*self.made, self.state)


def nested(content) -> bytes:
    file = io.BytesIO()
    torch.save(content, file, _use_new_zipfile_serialization=False)
    return file.getvalue()


def attacks(marker: str) -> dict:
    """Objects whose loading makes the file `marker`, by the ways that are known.

    And some that would crash.
    """
    system = Call(os.system, f"touch {marker}")
    return {
        "os.system": system,
        "eval": Call(eval, f"open({marker!r}, 'w')"),
        "exec": Call(exec, f"open({marker!r}, 'w')"),
        "open": Call(open, marker, "w"),
        "getattr": Call(getattr, Call(__import__, "os"), "system"),
        "partial": Call(functools.partial(os.system, f"touch {marker}")),
        "torch.load": Call(torch.load, marker),
        "nested pickle": Call(torch.storage._load_from_bytes, nested(system)),
        "hub": Call(torch.hub.load, "someone/something", "anything"),
        "numpy array": np.zeros(3),
        "numpy object": Call(
            np.array([None], dtype=object).__reduce__()[0], np.ndarray, (0,), b"b"
        ),
        "pathlib": Path(marker),
        "hidden in a tensor's hooks": State((dict, ()), {"a": system}),
    }


@pytest.mark.parametrize("name", attacks("x"))
def test_nothing_in_a_checkpoint_is_run(tmp_path, name):
    marker = tmp_path / "ran"
    torch.save(
        {"model_state_dict": {"h0": torch.zeros(2)}, "x": attacks(str(marker))[name]},
        tmp_path / "file",
    )
    with pytest.raises(RunError) as error:
        read_torch_file(tmp_path / "file")
    assert not marker.exists()
    assert "\n" not in str(error.value)
    if name == "nested pickle":  # the attack is a real one: plain loading falls for it
        torch.load(tmp_path / "file", weights_only=False)
        assert marker.exists()


def test_what_is_asked_for_is_named(tmp_path):
    torch.save(Call(os.system, "true"), tmp_path / "file")
    with pytest.raises(
        RunError, match=r"refused at byte \d+: it asks for (posix|nt)\.system, which is not data"
    ):
        read_torch_file(tmp_path / "file")


@pytest.mark.parametrize(
    "number", [np.float64(1) / 3, np.float32(0.1), np.float16(0.5), np.int64(-7), np.bool_(True)]
)
@pytest.mark.parametrize("module", [b"numpy.core.multiarray", b"numpy._core.multiarray"])
def test_numbers_of_numpy_become_plain_ones(tmp_path, number, module):
    path = tmp_path / "file"
    torch.save({"val_loss": number}, path)
    with zipfile.ZipFile(path) as archive:
        entries = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in entries.items():
            archive.writestr(name, content.replace(b"numpy._core.multiarray", module))
    loaded = read_torch_file(path)["val_loss"]
    assert loaded == number.item()
    assert type(loaded) is type(number.item())


@pytest.mark.parametrize(
    "thing",
    [
        Call(np.float64(1).__reduce__()[0], np.dtype("f8"), b"short"),
        Call(np.float64(1).__reduce__()[0], np.dtype("O"), b"12345678"),
        Call(np.float64(1).__reduce__()[0], np.dtype("V8"), b"12345678"),
        Call(np.float64(1).__reduce__()[0], "f8", b"12345678"),
        (
            np.float64(1).newbyteorder(">")
            if hasattr(np.float64(1), "newbyteorder")
            else np.dtype(">f8")
        ),
        np.dtype("f8"),
        np.complex128(1),
        np.datetime64("2023-08-11"),
        State((np.dtype, ("f8", False, True)), (3, "<", None, None, None, -1, -1, 63)),
    ],
    # Addresses would differ between the processes of a parallel run.
    ids=lambda thing: type(thing).__name__,
)
def test_of_numpy_only_numbers_are_read(tmp_path, thing):
    torch.save({"val_loss": thing}, tmp_path / "file")
    with pytest.raises(RunError):
        read_torch_file(tmp_path / "file")


def test_the_list_of_what_may_be_loaded_is_as_before_afterwards(tmp_path):
    torch.save({"a": np.float64(1)}, tmp_path / "file")
    read_torch_file(tmp_path / "file")
    with pytest.raises(pickle.UnpicklingError):
        torch.load(tmp_path / "file", weights_only=True)


def bomb(path: Path) -> None:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a/data.pkl", b"\0" * 10**6)


def twice(path: Path) -> None:
    torch.save({"a": 1}, path)
    with zipfile.ZipFile(path, "a") as archive, pytest.warns(UserWarning, match="Duplicate"):
        archive.writestr(archive.namelist()[0], b"other")


def many(path: Path) -> None:
    shared = [0]
    for _ in range(64):
        shared = [shared, shared]
    torch.save({"model_state_dict": shared}, path)


def cycle(path: Path) -> None:
    mapping: dict = {}
    mapping["itself"] = mapping
    torch.save(mapping, path)


def zipped(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("hello.txt", "hello")


@pytest.mark.parametrize(
    ("write", "message"),
    [
        (lambda path: path.write_bytes(b""), "is empty"),
        (lambda path: path.write_text("hello"), "is not a file of torch.save, or not all of it"),
        (lambda path: path.write_bytes(nested({"a": 1})), "is not a file of torch.save"),
        (lambda path: path.mkdir(), "cannot be read: Is a directory"),
        (lambda path: None, "cannot be read: No such file"),
        (zipped, "but not one of torch.save"),
        (bomb, "not as torch.save writes it"),
        (twice, "not as torch.save writes it"),
        (many, "claims to hold far more than its length"),
        (cycle, "claims to hold far more than its length"),
        (
            lambda path: torch.save({"a": torch.zeros(1).expand(10**9)}, path),
            "claims to hold far more",
        ),
        (lambda path: torch.save({"a": {1, 2}}, path), "holds a set|refused"),
    ],
)
def test_a_file_of_another_kind_is_named(tmp_path, write, message):
    write(tmp_path / "file")
    with pytest.raises(RunError, match=message) as error:
        read_torch_file(tmp_path / "file")
    assert str(tmp_path / "file") in str(error.value)


def archive(path: Path, program: bytes, **entries: bytes) -> None:
    """Write a file as torch.save does, with a program of ours and eight bytes of numbers."""
    numbers = struct.pack("<2f", 1.5, -2)
    known = {"version": b"3\n", "byteorder": b"little", "data/0": numbers} | entries
    with zipfile.ZipFile(path, "w") as file:
        for name, content in ({"data.pkl": b"\x80\x02" + program + b"."} | known).items():
            entry = zipfile.ZipInfo(f"a/{name}")
            padding = -(file.start_dir + 34 + len(entry.filename)) % 4  # torch aligns to 64
            entry.extra = struct.pack("<HH", 0x4246, padding) + bytes(padding)
            file.writestr(entry, content)


def arguments(
    length: int = 2, size: bytes = b"K\x02\x85", stride: bytes = b"K\x01\x85", more: bytes = b""
) -> bytes:
    """Arguments of `TENSOR` for the numbers in `data/0`, float32."""
    named = b"(U\x07storagectorch\nFloatStorage\nU\x010U\x03cpu\x8a\x08" + struct.pack("<Q", length)
    return b"(" + named + b"tQK\x00" + size + stride + b"\x89}" + more + b"t"


TENSOR = b"ctorch._utils\n_rebuild_tensor_v2\n"
LONG_TEXT = b"X" + struct.pack("<I", 1 << 20) + b"a" * (1 << 20)
AXES = b"(" + b"K\x01" * 1000 + b"t"
TUPLES = b")" + b"".join(b"q%ch%c\x86" % (n, n) for n in range(60))
PROGRAMS = {
    "4 GB of zeros": (b"cbuiltins\nbytearray\nJ\xff\xff\xff\x7f\x85R", "builtins.bytearray"),
    "copies of a text": (
        LONG_TEXT + b"q\x000c_codecs\nencode\nq\x010]" + b"h\x01h\x00\x85Ra" * 1000,
        "again and again",
    ),
    "more numbers than there are": (TENSOR + arguments(1 << 40) + b"R", "for 8 bytes"),
    "a larger tensor": (TENSOR + arguments(size=b"K\x03\x85") + b"R", "far more than"),
    "a tensor that repeats a number": (
        TENSOR + arguments(size=b"K\x09\x85", stride=b"K\x00\x85") + b"R",
        "far more than",
    ),
    "no numbers in 2 ** 63 rows": (
        TENSOR
        + arguments(size=b"\x8a\x09" + bytes(7) + b"\x80\x00K\x00\x86", stride=b"K\x00K\x00\x86")
        + b"R",
        "far more than",
    ),
    "a stride below 0": (
        TENSOR + arguments(stride=b"J\xff\xff\xff\xff\x85") + b"R",
        "no plain array",
    ),
    "a tensor of 1,000 axes": (
        TENSOR + arguments(size=AXES, stride=AXES) + b"R",
        "without a shape",
    ),
    "negated numbers": (TENSOR + arguments(more=b"}U\x03neg\x88s") + b"R", "no plain array"),
    "a tensor of a text": (TENSOR + b"(U\x01xK\x00))tR", "no numbers"),
    "a parameter of a text": (b"ctorch._utils\n_rebuild_parameter\nU\x01x\x85R", "no tensor"),
    "numbers of a part that is not there": (
        (TENSOR + arguments() + b"R").replace(b"U\x010", b"U\x017"),
        "the file lacks",
    ),
    "numbers by a number": (b"K\x01Q", "names no numbers"),
    "numbers without a tensor": (arguments().split(b"Q")[0][1:] + b"Q", "holds a _Storage"),
    "a function that is not called": (TENSOR, "holds a _Name"),
    "a key that is a tuple of tuples": (b"}" + TUPLES + b"K\x01s", "a key that is a tuple"),
    "a name that is a tuple of tuples": (TUPLES + b"\x8c\x01x\x93", "no short text"),
    "20,000 levels": (b"]" * 20_000 + b"a" * 19_999, "64 levels"),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_a_small_file_takes_no_more_memory_than_it_has(tmp_path, name):
    program, message = PROGRAMS[name]
    archive(tmp_path / "file", program)
    tracemalloc.start()
    try:
        with pytest.raises(RunError, match=message) as error:
            read_torch_file(tmp_path / "file")
        assert tracemalloc.get_traced_memory()[1] < 64 << 20
    finally:
        tracemalloc.stop()
    assert "\n" not in str(error.value)


def test_a_tensor_is_made_of_its_part_of_the_file(tmp_path):
    archive(tmp_path / "file", TENSOR + arguments() + b"R")
    assert read_torch_file(tmp_path / "file").tolist() == [1.5, -2]


def test_tensors_may_share_their_numbers(tmp_path):
    # Tied weights, views and other strides.
    weights = torch.arange(1000.0)
    content = {
        "embedding": weights,
        "head": weights,
        "view": weights.view(10, 100).t(),
        "part": weights[3:50:2],
        "empty": torch.zeros(3, 0),
        "number": torch.tensor(5),
        "flags": torch.tensor([True, False]),
        "half": torch.tensor([1.5], dtype=torch.bfloat16),
    }
    for protocol in (2, 3, 4, 5):
        torch.save(content, tmp_path / "file", pickle_protocol=protocol)
        found = read_torch_file(tmp_path / "file")
        assert list(found) == list(content)
        for name, tensor in content.items():
            assert found[name].dtype == tensor.dtype
            assert found[name].tolist() == tensor.tolist()


@pytest.mark.parametrize(
    "program",
    [
        TENSOR + arguments() + b"Rq\x010" + TENSOR + arguments(more=b"h\x01") + b"R",
        b"cnumpy.core.multiarray\n_reconstruct\n)R(K\x01K\x01\x85cnumpy\ndtype\nU\x02u1\x85R"
        + TENSOR
        + arguments()
        + b"RC\x01xtb",
    ],
    ids=["as metadata", "as a flag"],
)
def test_a_tensor_in_the_place_of_a_truth_value_is_refused(tmp_path, program):
    archive(tmp_path / "file", program)
    with pytest.raises(RunError) as error:
        read_torch_file(tmp_path / "file")
    assert "\n" not in str(error.value)


def test_many_tensors_of_the_same_numbers_are_refused(tmp_path, monkeypatch):
    # Each takes far more memory than the five bytes that ask for it.
    monkeypatch.setattr(untrusted, "_MOST_TENSORS", 10)
    start = TENSOR + b"q\x000" + arguments() + b"q\x010]"
    archive(tmp_path / "file", start + b"h\x00h\x01Ra" * 10)
    assert len(read_torch_file(tmp_path / "file")) == 10
    archive(tmp_path / "file", start + b"h\x00h\x01Ra" * 11)
    with pytest.raises(RunError, match="more tensors than a checkpoint has"):
        read_torch_file(tmp_path / "file")


def test_an_archive_of_a_million_entries_is_refused_before_it_is_listed(tmp_path, monkeypatch):
    monkeypatch.setattr(untrusted, "_LARGEST_DIRECTORY", 1000)
    archive(tmp_path / "file", b"]", **{f"data/{number}": b"" for number in range(20)})
    with pytest.raises(RunError, match="is not a file of torch"):
        read_torch_file(tmp_path / "file")


def test_numbers_of_another_byte_order_are_refused(tmp_path):
    archive(tmp_path / "file", b"]", byteorder=b"big")
    with pytest.raises(RunError, match="not little-endian"):
        read_torch_file(tmp_path / "file")


def test_a_truncated_file_is_refused(tmp_path):
    torch.save({"a": torch.zeros(1000)}, tmp_path / "whole")
    content = (tmp_path / "whole").read_bytes()
    for length in range(1, len(content), 331):
        (tmp_path / "part").write_bytes(content[:length])
        with pytest.raises(RunError):
            read_torch_file(tmp_path / "part")


def test_changed_bytes_give_other_numbers_or_an_error_of_one_line(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "file"
    torch.save(
        {
            "model_state_dict": {"h0": torch.zeros(3)},
            "val_loss": np.float64(1),
            "list": [1, (2.5, None)],
        },
        path,
    )
    with zipfile.ZipFile(path) as archive:
        entries = {entry.filename: archive.read(entry) for entry in archive.infolist()}
    refused = []
    for _ in range(150):
        with zipfile.ZipFile(path, "w") as archive:
            for name, content in entries.items():
                changed = bytearray(content)
                if name.endswith("data.pkl"):
                    for place in rng.integers(len(changed), size=rng.integers(1, 4)):
                        changed[place] = rng.integers(256)
                archive.writestr(name, bytes(changed))
        try:
            read_torch_file(path)
        except RunError as error:
            refused.append(str(error))
    assert len(refused) > 50
    assert not any("\n" in line for line in refused)
