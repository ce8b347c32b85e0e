"""A checkpoint from anywhere runs nothing, and no damage to it does more than an error of one
line.
"""

import functools
import io
import os
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from cortext.errors import RunError
from cortext.training.release.untrusted import read_torch_file


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
        RunError, match=r"refused: it asks for (posix|nt)\.system, which is not data"
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
