"""Tensors on disk: readable by the library of the format, and no changed byte goes unnoticed."""

import json
import os
import resource
from contextlib import suppress

import forked_training
import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from cortext.errors import RunError
from cortext.models.storage import read_tensors, write_tensors


def tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        "weight": torch.randn(7, 5),
        "transposed": torch.randn(4, 3).T,
        "half": torch.randn(3).bfloat16(),
        "count": torch.tensor(7),
        "flags": torch.tensor([True, False, True]),
        "none": torch.zeros(0, 4),
        "double": torch.randn(2, dtype=torch.float64),
    }


def equal(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> bool:
    return a.keys() == b.keys() and all(
        torch.equal(a[name], b[name]) and a[name].dtype == b[name].dtype for name in a
    )


def test_the_format_s_own_library_reads_what_is_written(tmp_path):
    path = tmp_path / "a.safetensors"
    checksum = write_tensors(path, tensors(), {"progress": '{"crc32": "00000000"}'})
    assert equal(load_file(path), tensors())
    with safe_open(path, framework="pt") as file:
        assert file.metadata() == {"crc32": checksum, "progress": '{"crc32": "00000000"}'}
    found, metadata, again = read_tensors(path)
    assert equal(found, tensors())
    assert (metadata, again) == ({"progress": '{"crc32": "00000000"}'}, checksum)


def test_files_of_the_format_s_own_library_are_read_without_a_checksum(tmp_path):
    save_file({"a": torch.arange(3)}, tmp_path / "a.safetensors")
    found, metadata, checksum = read_tensors(tmp_path / "a.safetensors")
    assert (found["a"].tolist(), metadata, checksum) == ([0, 1, 2], {}, None)


def test_every_changed_byte_is_noticed(tmp_path):
    """One in the word `crc32` leaves a file without a checksum, which states are refused for."""
    path, damaged = tmp_path / "a.safetensors", tmp_path / "b.safetensors"
    write_tensors(path, tensors(), {"progress": json.dumps({"step": 12})})
    content, checksums = path.read_bytes(), []
    for position in range(len(content)):
        for bit in (1, 32):  # 32 changes the case of a letter
            changed = bytearray(content)
            changed[position] ^= bit
            damaged.write_bytes(changed)
            with suppress(RunError):
                checksums.append(read_tensors(damaged)[2])
    assert set(checksums) <= {None}
    assert len(checksums) <= 2 * len("crc32")


@pytest.mark.parametrize("keep", [0, 4, 100, -1])
def test_a_truncated_file_is_refused(tmp_path, keep):
    path = tmp_path / "a.safetensors"
    write_tensors(path, tensors(), {})
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(
        RunError, match=r"a\.safetensors: the weights cannot be read: .*; copy the file again"
    ):
        read_tensors(path)


def test_a_new_file_replaces_the_old_one_which_is_kept_if_wanted(tmp_path):
    path, previous = tmp_path / "a.safetensors", tmp_path / "previous.safetensors"
    for number in range(3):
        write_tensors(path, {"a": torch.tensor(number)}, {}, keep=previous)
    assert (load_file(path)["a"], load_file(previous)["a"]) == (2, 1)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "a.safetensors",
        "previous.safetensors",
    ]


def test_others_may_read_what_the_umask_lets_them(tmp_path):
    before = os.umask(0o022)
    try:
        write_tensors(tmp_path / "a.safetensors", tensors(), {})
    finally:
        os.umask(before)
    assert (tmp_path / "a.safetensors").stat().st_mode & 0o777 == 0o644


def test_a_write_that_fails_leaves_both_files_as_they_were(tmp_path):
    path, previous = tmp_path / "a.safetensors", tmp_path / "previous.safetensors"
    for number in range(2):
        write_tensors(path, {"a": torch.full((10,), number)}, {}, keep=previous)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
        with pytest.raises(
            RunError, match="cannot write the file: File too large; free some space"
        ):
            write_tensors(path, {"a": torch.zeros(10_000)}, {}, keep=previous)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (load_file(path)["a"][0], load_file(previous)["a"][0]) == (1, 0)
    assert len(list(tmp_path.iterdir())) == 2


def test_writing_holds_no_second_copy_in_memory(tmp_path):
    started = forked_training.Started(
        tmp_path / "errors",
        {},
        forked_training.write_64_mib,
        tmp_path / "a.safetensors",
        tmp_path / "peak_mib",
    )
    assert started.wait(60) == ""
    assert (tmp_path / "a.safetensors").stat().st_size > 64 << 20
    assert float((tmp_path / "peak_mib").read_text()) < 16  # of 64


def test_numbers_are_aligned_for_readers_that_map_the_file(tmp_path):
    path = tmp_path / "a.safetensors"
    write_tensors(path, tensors(), {})
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    widths = {"F64": 8, "I64": 8, "F32": 4, "BF16": 2, "BOOL": 1}
    for name, entry in header.items():
        if name != "__metadata__":
            assert (8 + size + entry["data_offsets"][0]) % widths[entry["dtype"]] == 0
    begin = 8 + size + header["weight"]["data_offsets"][0]
    found = np.frombuffer(content, np.float32, 35, begin).reshape(7, 5)
    np.testing.assert_array_equal(found, tensors()["weight"].numpy())
