"""The log of live decoding.

A JSON object a line, nobody's words, and no trouble from a full disk.
"""

import json
import os
from pathlib import Path
from types import SimpleNamespace

import pytest

from cortext.errors import LiveError
from cortext_live.core.log import event, open_log, repeated_event


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def test_each_event_is_one_line(tmp_path):
    path = tmp_path / "log"
    for _ in range(2):  # appended
        with open_log(path):
            event("one", number=1, path=tmp_path)
            event("two", "error", names=["a\nb"])
            event("hidden", "debug")
    found = lines(path)
    assert [(line["event"], line["level"]) for line in found] == [
        ("one", "info"),
        ("two", "error"),
    ] * 2
    assert (found[0]["number"], found[0]["path"], found[1]["names"]) == (1, str(tmp_path), ["a\nb"])
    assert found[0]["time"].endswith("+00:00")


def test_what_was_said_is_written_only_when_asked_for(tmp_path):
    for with_text in (False, True):
        path = tmp_path / str(with_text)
        with open_log(path, with_text):
            event("said", private={"text": "hello"}, n_words=1)
        assert ("text" in lines(path)[0], lines(path)[0]["n_words"]) == (with_text, 1)


def test_a_repeated_event_is_one_line_a_second_that_counts_the_others(tmp_path, monkeypatch):
    now_s = [100.0]
    monkeypatch.setattr("cortext_live.core.log.time", SimpleNamespace(monotonic=lambda: now_s[0]))
    with open_log(tmp_path / "log"):
        for number in range(500):
            repeated_event("refused", number=number)
        repeated_event("another")
        now_s[0] += 1.05
        repeated_event("refused", number=500)
    found = [
        (line["event"], line.get("number"), line.get("left_out"))
        for line in lines(tmp_path / "log")
    ]
    assert found == [("refused", 0, None), ("another", None, None), ("refused", 500, 499)]


def test_the_log_belongs_to_its_owner(tmp_path):
    with open_log(tmp_path / "log"):
        pass
    assert (tmp_path / "log").stat().st_mode & 0o077 == 0


def test_a_full_disk_loses_lines_and_says_so_when_it_can(tmp_path, monkeypatch):
    path, write, room = tmp_path / "log", os.write, [10_000]

    def on_a_disk(file, data):
        if room[0] <= 0:
            raise OSError(28, "No space left on device")
        part = data[: room[0]]
        room[0] -= len(part)
        return write(file, part)

    with open_log(path) as log:
        monkeypatch.setattr("cortext_live.core.log.os.write", on_a_disk)
        event("before")
        room[0] = 30  # the next line is torn
        event("torn")
        event("lost")
        assert log.lost == 2
        room[0] = 10_000
        event("after")
    written = path.read_text().splitlines()
    assert len(written[1]) == 30
    found = [json.loads(line) for number, line in enumerate(written) if number != 1]
    assert [line["event"] for line in found] == ["before", "log_lines_lost", "after"]
    assert found[1]["lines"] == 2


def test_a_device_that_is_full_ends_nothing():
    with open_log("/dev/full") as log:
        for _ in range(3):
            event("lost")
        assert log.lost == 3


def test_a_log_that_cannot_be_opened_is_an_error(tmp_path):
    with (
        pytest.raises(LiveError, match="the log cannot be written"),
        open_log(tmp_path / "no" / "log"),
    ):
        pass


def test_what_others_say_is_cut_and_escaped_and_nothing_ends_the_log(tmp_path):
    with open_log(tmp_path / "log"):
        event(
            "refused", who="\x1b[2J\u202e" + "a" * 1_000_000, kind=Path("b\x9b"), level_of="größer"
        )
        event("refused", number=10**5000)
        event("refused", of={(1, 2): 3})
        event("after")
    content = (tmp_path / "log").read_bytes()
    assert all(32 <= byte < 127 or byte == 10 for byte in content)
    first, digits, keys, after = map(json.loads, content.splitlines())
    assert first["who"].startswith("\\x1b[2J\\u202eaaa")
    assert len(first["who"]) == 1000
    assert (first["kind"], first["level_of"]) == ("b\\x9b", "größer")
    assert (digits["not_written"], keys["not_written"], after["event"]) == (
        "ValueError",
        "TypeError",
        "after",
    )
