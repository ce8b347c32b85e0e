"""Attacks on packed recordings, archives and lists of files to fetch. A row says what is done.

Each is read by the function of a command, which refuses it in one line.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import threading
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import run
from refusals import refused
from session_files import BINS, DAY, N_FEATURES, write_recordings

from cortext.data import pack
from cortext.data.inspect import inspect
from cortext_published.downloads.fetch import fetch


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two sessions of three trials, and beside them another person's files."""
    return write_recordings(tmp_path_factory.mktemp("good"))


@pytest.fixture
def place(good: Path, tmp_path: Path) -> Path:
    """A copy of all that."""
    shutil.copytree(good, tmp_path / "place")
    return tmp_path / "place"


@dataclass(frozen=True)
class IndexAttack:
    """An attack on the index of a packed directory, whose checksums are made right again.

    name:   what is done
    change: changes the index and its arrays in place
    """

    name: str
    change: Callable[[dict[str, Any], dict[str, np.ndarray]], object]


def put(key: str, value: object) -> Callable[[dict[str, Any], dict[str, np.ndarray]], None]:
    """Set a value by its dotted key."""

    def change(index: dict[str, Any], _: dict[str, np.ndarray]) -> None:
        *folders, last = key.split(".")
        for folder in folders:
            index = index[folder]
        index[last] = value

    return change


def put_array(name: str, value: object) -> Callable[[dict[str, Any], dict[str, np.ndarray]], None]:
    return lambda _, arrays: arrays.__setitem__(f"train/{name}", np.asarray(value))


def records(
    file: str, size: int, place: int = 0
) -> Callable[[dict[str, Any], dict[str, np.ndarray]], None]:
    """Say that the bins lie in that file."""

    def change(index: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        index["splits"]["train"]["records"] = {file: size}
        arrays["train/file"] = np.zeros(6, np.int64)
        arrays["train/byte"] = np.full(6, place)

    return change


def of_records(
    n_features: int, n_bins: int
) -> Callable[[dict[str, Any], dict[str, np.ndarray]], None]:
    """Declare features whose size in bytes, with those bins, is beyond 64 bits or 0 in them."""

    def change(index: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
        records("train.f16", 6 * BINS * N_FEATURES * 2)(index, arrays)
        index["n_features"] = n_features
        arrays["train/n_bins"] = np.full(6, n_bins)

    return change


SECRET_BYTES = BINS * N_FEATURES * 4
INDEX_ATTACKS = (
    IndexAttack("sessions: a way out", put("sessions", [DAY, "../../../x"])),
    IndexAttack("sessions: escapes", put("sessions", [DAY, "\x1b]0;x\x07"])),
    IndexAttack("sessions: numbers", put("sessions", [1, 2])),
    IndexAttack("n_features: negative", put("n_features", -16)),
    IndexAttack("n_features: a text", put("n_features", "16")),
    IndexAttack("n_features: 2^62", put("n_features", 2**62)),
    IndexAttack("n_features: 2^24", put("n_features", 2**24)),
    IndexAttack("n_features: 2^62, of records", of_records(2**62, BINS)),
    IndexAttack("n_features: 2^60, of records of 8 bins", of_records(2**60, 8)),
    IndexAttack("n_features: 10^4000", put("n_features", 10**4000)),
    IndexAttack("source: NUL", put("source", "/\0")),
    IndexAttack("source: a number", put("source", 3)),
    IndexAttack("source_files: one number", put("source_files", {"a": [1]})),
    IndexAttack(
        "bad_trials: unknown fields",
        put("bad_trials", [{"file": "a", "trial": "b", "x": 1, "message": ""}]),
    ),
    IndexAttack("bad_trials: a number", put("bad_trials", 3)),
    IndexAttack("post_implant_day: a text", put("post_implant_day", {DAY: "x"})),
    IndexAttack("conventions: a mapping", put("conventions", {"bin_ms": 10})),
    IndexAttack("conventions: no JSON", put("conventions", "{")),
    IndexAttack("conventions: a list", put("conventions", "[]")),
    IndexAttack("conventions: levels", put("conventions", '{"a":' * 900)),
    IndexAttack("conventions: bins of NaN", put("conventions", '{"bin_ms": NaN}')),
    IndexAttack("conventions: bins of 4 ms", put("conventions", '{"bin_ms": 4}')),
    IndexAttack("conventions: an unknown inventory", put("conventions", '{"inventory": "x"}')),
    # The labels have token 40.
    IndexAttack("conventions: fewer tokens", put("conventions", '{"inventory": "handwriting"}')),
    IndexAttack("splits: a list", put("splits", [])),
    IndexAttack("splits: a way out", put("splits", {"../x": {}})),
    IndexAttack(
        "splits: nested deeply", lambda index, _: index.update(x=json.loads("[" * 900 + "]" * 900))
    ),
    IndexAttack("sentences: too few", put("splits.train.sentences", ["a"])),
    IndexAttack("sentences: numbers", put("splits.train.sentences", [1] * 6)),
    IndexAttack("n_bins: negative", put_array("n_bins", [-BINS, 3 * BINS, BINS, BINS, BINS, BINS])),
    IndexAttack("n_bins: overflow", put_array("n_bins", np.full(6, 2**62))),
    IndexAttack("n_bins: decimals", put_array("n_bins", np.full(6, 64.0))),
    IndexAttack("n_bins: two dimensions", put_array("n_bins", np.full((6, 1), 64))),
    IndexAttack("n_bins: nothing", put_array("n_bins", np.zeros(0, np.int64))),
    IndexAttack("day: no session", put_array("day", np.full(6, 7))),
    IndexAttack("day: negative", put_array("day", np.full(6, -1))),
    IndexAttack("n_labels: beyond the labels", put_array("n_labels", np.full(6, 400))),
    IndexAttack("n_labels: negative", put_array("n_labels", [-3, 9, 3, 3, 3, 3])),
    IndexAttack("labels: no phoneme", put_array("labels", np.full(18, 999, np.int16))),
    IndexAttack("labels: the blank", put_array("labels", np.zeros(18, np.int16))),
    IndexAttack("records: another file", records("../secret.raw", SECRET_BYTES)),
    IndexAttack("records: another file from the root", records("/etc/passwd", 1)),
    IndexAttack("records: before the file", records("train.f16", 6 * BINS * N_FEATURES * 2, -64)),
    IndexAttack("records: behind the file", records("train.f16", 6 * BINS * N_FEATURES * 2, 2**40)),
    IndexAttack("an array is missing", lambda _, arrays: arrays.pop("train/day")),
)


@pytest.fixture(scope="module")
def packed(good: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("out") / "packed"
    pack(good / "data", out)
    return out


def write_index(folder: Path, index: dict[str, Any], arrays: bytes) -> None:
    """Write both files with the checksums that the format asks for."""

    def checksum(content: bytes) -> str:
        return blake2b(content, digest_size=16).hexdigest()

    (folder / "index.npz").write_bytes(arrays)
    index |= {"arrays": checksum(arrays)}
    text = json.dumps(index, ensure_ascii=False, sort_keys=True)
    outer = {
        "format": "cortext-packed",
        "format_version": 1,
        "checksum": checksum(text.encode()),
        "index": index,
    }
    (folder / "index.json").write_text(json.dumps(outer, ensure_ascii=False))


def parts_of(packed: Path, place: Path) -> tuple[Path, dict[str, Any], dict[str, np.ndarray]]:
    """A copy beside `secret.raw`, with its index and arrays."""
    folder = place / "packed"
    shutil.copytree(packed, folder)
    index = json.loads((folder / "index.json").read_text())["index"]
    with np.load(folder / "index.npz") as arrays:
        return folder, index, dict(arrays)


@pytest.mark.parametrize("attack", INDEX_ATTACKS, ids=lambda attack: attack.name)
def test_an_index_that_was_changed_on_purpose_is_refused(
    attack: IndexAttack, packed: Path, place: Path
) -> None:
    folder, index, arrays = parts_of(packed, place)
    attack.change(index, arrays)
    content = io.BytesIO()
    np.savez(content, **arrays)
    write_index(folder, index, content.getvalue())
    with refused("the index is damaged"):
        inspect(folder)


def zipped(method: int, **members: bytes) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", method) as archive:
        for name, member in members.items():
            archive.writestr(name.replace("__", "/") + ".npy", member)
    return content.getvalue()


def header(text: str) -> bytes:
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


ARRAYS = {
    "a bomb": lambda: zipped(zipfile.ZIP_DEFLATED, train__n_bins=bytes(1 << 27)),
    "2^40 numbers declared": lambda: zipped(
        zipfile.ZIP_STORED,
        train__n_bins=header(
            "{'descr': '<i8', 'fortran_order': False, 'shape': (1099511627776,), }\n"
        ),
    ),
    "a pickle": lambda: zipped(
        zipfile.ZIP_STORED,
        train__n_bins=header("{'descr': '|O', 'fortran_order': False, 'shape': (1,), }\n")
        + b"cos\n",
    ),
    "a header of brackets": lambda: zipped(zipfile.ZIP_STORED, train__n_bins=header("[" * 9000)),
    "no archive": lambda: b"PK\x05\x06",
    "nothing": lambda: b"",
}


@pytest.mark.parametrize("name", ARRAYS)
def test_arrays_of_the_index_that_are_none_are_refused(
    name: str, packed: Path, place: Path
) -> None:
    folder, index, _ = parts_of(packed, place)
    write_index(folder, index, ARRAYS[name]())
    with refused("the index is damaged"):
        inspect(folder)


def test_an_index_nested_deeply_is_refused(packed: Path, place: Path) -> None:
    folder, _, _ = parts_of(packed, place)
    (folder / "index.json").write_text('{"format": ' + "[" * 200_000)
    with refused("the index is damaged"):
        inspect(folder)


def test_data_in_a_folder_whose_name_is_not_utf_8_is_packed_and_read(
    good: Path, tmp_path: Path
) -> None:
    folder = tmp_path / os.fsdecode(b"M\xfcnster")
    shutil.copytree(good / "data", folder)
    assert run("pack", folder, "--out", tmp_path / "packed").status == 0
    seen = run("inspect", tmp_path / "packed")
    seen.check_harmless()
    assert (seen.status, "problems: 1\n" in seen.stdout) == (0, True)
    assert "do not fit their sentences" in seen.stdout  # the labels are made up


def archive(
    *members: tuple[str, bytes], mode: int = 0, method: int = zipfile.ZIP_DEFLATED
) -> bytes:
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", method) as made:
        for name, member in members:
            info = zipfile.ZipInfo(name)
            info.external_attr = mode << 16
            info.compress_type = method
            made.writestr(info, member)
    return content.getvalue()


def declaring(size: int) -> bytes:
    """An archive whose one member is said to have that size when it is unpacked."""
    whole = bytearray(archive(("a", bytes(1 << 20))))
    at = whole.rindex(b"PK\x01\x02") + 24
    whole[at : at + 4] = size.to_bytes(4, "little")
    return bytes(whole)


def damaged(method: int) -> bytes:
    """An archive whose compressed bytes are changed."""
    whole = bytearray(archive(("a/b", os.urandom(10_000)), method=method))
    whole[60:2000] = b"\xff" * 1940
    return bytes(whole)


ARCHIVES = {
    "a way out": (lambda: archive(("../x", b"")), "outside the directory"),
    "from the root": (lambda: archive(("/tmp/x", b"")), "outside the directory"),
    "a link": (lambda: archive(("a", b"/etc/passwd"), mode=0o120777), "a link or a device"),
    "a bomb": (lambda: declaring(2 << 30), "more than 100 times"),
    "a thousand folders deep": (lambda: archive(("a/" * 900 + "b", b"")), "outside the directory"),
    "twice the same": (lambda: archive(("a", b"1"), ("a", b"2")), "are one name"),
    "damaged lzma": (lambda: damaged(zipfile.ZIP_LZMA), "archive|cannot be"),
    "damaged deflate": (lambda: damaged(zipfile.ZIP_DEFLATED), "damaged archive"),
    "an unknown method": (
        lambda: archive(("a", b"1" * 99)).replace(b"\x08\0", b"\x63\0"),
        "damaged archive",
    ),
    "escapes": (lambda: archive(("../\x1b]0;x\x07" + "y" * 5000, b"")), "outside the directory"),
}


@pytest.mark.filterwarnings("ignore:Duplicate name")
@pytest.mark.parametrize("name", ARCHIVES)
def test_an_archive_that_is_no_recording_is_refused(name: str, tmp_path: Path) -> None:
    make, says = ARCHIVES[name]
    (tmp_path / "by-hand").mkdir()
    (tmp_path / "by-hand" / "t15_copyTask_neuralData.zip").write_bytes(make())
    with refused(says):
        fetch(
            "t15",
            tmp_path / "out" / "t15",
            part="neural",
            from_dir=tmp_path / "by-hand",
            base_url="http://127.0.0.1:1",
        )
    assert list((tmp_path / "out" / "t15").iterdir()) == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["by-hand", "out"]


class Liar(BaseHTTPRequestHandler):
    """A mirror of the repository that answers every request with the text in its address."""

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        name = self.path.split("/")[1]
        content = LISTINGS[name].replace("NAME", name).encode()
        self.send_response(200)
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(content)


def listing(**entry: object) -> str:
    entry = {
        "path": "t15_copyTask.pkl",
        "size": 3,
        "_links": {"stash:download": {"href": "/x"}},
    } | entry
    pages = {
        "stash:files": [entry],
        "stash:versions": [{"_links": {"stash:files": {"href": "/NAME/files"}}}],
    }
    return json.dumps({"_embedded": pages, "_links": {}})


LISTINGS = {
    "deep": "[" * 200_000,
    "long": " " * (70 << 20),
    "endless": (
        listing(_links={"stash:download": {"href": "/x"}}).replace(
            '"_links": {}}', '"_links": {"next": {"href": "/NAME/x"}}}'
        )
    ),
    "numbers": "[" + "9" * 10_000 + "]",
    "up": listing(path=".."),
    "escapes": listing(path="\x1b]0;x\x07"),
    "digest": listing(digest="../../../x", digestType="sha-256"),
    "file": listing(_links={"stash:download": {"href": "file:///etc/passwd"}}),
}


@pytest.fixture(scope="module")
def mirror() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Liar) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("name", LISTINGS)
def test_a_mirror_that_lies_is_refused(name: str, mirror: str, tmp_path: Path) -> None:
    # The mirror is in this process, too, with its 70 MB.
    with refused("list of files|address of the web", most_mb=250):
        fetch("t15", tmp_path / "out", base_url=f"{mirror}/{name}")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
