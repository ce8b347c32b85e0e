"""Attacks on the log of daily use.

Files that `report use` and `serve --session-log` are given, whoever wrote them.
"""

from __future__ import annotations

import json
import os
import re
import time
import urllib.request
from datetime import date, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
from commands import NOT_PRINTABLE, Command, Ended, run
from page_process import DAYS, N_FEATURES, prepare
from untrained import untrained_run

from cortext.data import make_trial, write_session
from cortext_live.usage.log_lines import numbered

WHEN = "2026-11-20T10:00:06-08:00"
SAID = {
    "id": "a",
    "when": WHEN,
    "session": "t15.2026.11.20",
    "duration_s": 6.0,
    "text": "i see you",
    "source": "feed",
}
RATED = {"id": "a", "when": WHEN, "rating": "right"}


def said(**changes: object) -> bytes:
    """An utterance's line with other values."""
    return json.dumps(SAID | changes).encode()


def about(**what: object) -> bytes:
    """A line about that utterance."""
    return json.dumps({"id": "a", "when": WHEN} | what).encode()


def raw(field: str, value: bytes) -> bytes:
    """An utterance's line with bytes as a value."""
    return json.dumps(SAID | {field: "HERE"}).encode().replace(b'"HERE"', value)


def with_number(line: bytes) -> bytes:
    """A line that says that it is about the first entry."""
    return numbered(line, 0, int(datetime.fromisoformat(WHEN).timestamp())).rstrip(b"\n")


LINES = {
    "a duration of 400 digits": raw("duration_s", b"1" * 400),
    "a negative duration of 400 digits": raw("duration_s", b"-" + b"1" * 400),
    "a duration of 5,000 digits": raw("duration_s", b"1" * 5000),
    "a duration of 1e308": raw("duration_s", b"1e308"),
    "a duration of 1e400": raw("duration_s", b"1e400"),
    "a duration that is infinite": raw("duration_s", b"Infinity"),
    "a duration that is no number": raw("duration_s", b"NaN"),
    "a duration before the beginning": said(duration_s=-1e-9),
    "a duration of years": said(duration_s=1e9),
    "a duration that is a text": said(duration_s="6"),
    "a duration that is a list": said(duration_s=[6]),
    "a duration that is nested deeply": raw("duration_s", b"[" * 900 + b"]" * 900),
    "a text that is nested deeply": raw("text", b'{"a":' * 300 + b"0" + b"}" * 300),
    "a line that is nested 100,000 deep": raw("text", b"[" * 100_000 + b"]" * 100_000),
    "a text of half a character": said(text="i see \ud800"),
    "a text of half a character in raw bytes": raw("text", b'"\xed\xa0\x80"'),
    "a text of a million words": said(text="a " * 1_000_000),
    "a text that is a number": said(text=7),
    "a source of half a character": said(source="\udfff"),
    "a source that is a list": said(source=["feed"]),
    "an id of half a character": said(id="\ud800"),
    "an id that is a number": said(id=1),
    "a degradation that is a number": said(degraded=1),
    "a shown text that is a list": said(shown=["I see."]),
    "a session above the folder": said(session="../../../etc"),
    "a session elsewhere": said(session="/etc"),
    "a session that is hidden": said(session=".ssh"),
    "a session with escapes": said(session="\x1b[2J"),
    "a session with a NUL": said(session="a\0b"),
    "a session with a backslash": said(session="a\\b"),
    "a session of 5,000 letters": said(session="a" * 5000),
    "a time in words": said(when="now"),
    "a time without a zone": said(when="2026-11-20T10:00:06"),
    "a time before clocks": said(when="0001-01-01T00:00:00+23:59"),
    "a time after clocks": said(when="9999-12-31T23:59:59-23:59"),
    "a time that is a number": said(when=1e308),
    "a time with escapes": said(when="\x1b]0;owned\x07"),
    "a rating with escapes": about(rating="\x1b[2J"),
    "a rating that is nested deeply": about(rating="HERE").replace(b'"HERE"', b"[" * 900 + b"]" * 900),
    "a correction of half a character": about(correction="I see \ud800"),
    "a correction of a million words": about(correction="a " * 1_000_000),
    "a correction that is a list": about(correction=["I see"]),
    "a rating of nobody": json.dumps(RATED | {"id": "\x1b[31m" + "b" * 10_000}).encode(),
    "a deletion that is a number": about(deleted=1),
    "a deletion that is a text": about(deleted="true"),
    "a deletion that is none": about(deleted=False),
    "a deletion without a time": b'{"id": "a", "deleted": true}',
    "a deletion of a number": json.dumps({"id": 1, "when": WHEN, "deleted": True}).encode(),
    "a deletion of half a character": about(deleted=True).replace(b'"a"', b'"\\ud800"'),
    "a turn without words": about(partner=" \n"),
    "a turn that is a number": about(partner=7),
    "a turn of half a character": about(partner="\ud800"),
    "a turn of 100,001 characters": about(partner="a" * 100_001),
    "a turn without a zone": about(partner="yes").replace(b"-08:00", b""),
    "a list": b"[]",
    "a number": b"1e999",
    "UTF-16": json.dumps(SAID).encode("utf-16"),
    "bytes": bytes(range(256)).replace(b"\n", b""),
    "nothing but NULs": bytes(1_000_000),
}  # fmt: skip
"""Lines between an utterance and its rating: each is passed over, and counted."""


def write(folder: Path, *lines: bytes) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "utterances.jsonl").write_bytes(b"".join(line + b"\n" for line in lines))
    return folder


def test_damaged_lines_are_passed_over_and_named_and_what_stands_about_them_is_read(
    tmp_path: Path,
) -> None:
    """Each in a log of its own: an utterance, the line, and a rating of the utterance."""
    around = with_number(said()), with_number(about(rating="right"))
    logs = {
        name: write(tmp_path / str(n), around[0], content, around[1])
        for n, (name, content) in enumerate(LINES.items())
    }
    ended = run("report", "use", *logs.values(), "--json", "--out", tmp_path / "use.html")
    ended.check_harmless(most_s=30)
    assert ended.status == 0, ended.said[-2000:]
    found = json.loads(ended.stdout)
    notes = {
        name: [note for note in found["notes"] if f"{log}/" in note] for name, log in logs.items()
    }
    for name, of_line in notes.items():
        assert len(of_line) == 1, (name, of_line)
        assert "line 2 passed over: " in of_line[0], name
        assert len(of_line[0]) < 500, name
    assert found["overall"]["utterances"] == len(LINES)
    assert found["overall"]["ratings"]["right"] == len(LINES)
    assert found["damaged"] == len(LINES)
    page = (tmp_path / "use.html").read_text()
    assert page.count("line 2 passed over: ") == len(LINES)
    assert not NOT_PRINTABLE.search(page)


@pytest.fixture(scope="module")
def materials(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Recordings, a language model, and a model that has learnt nothing."""
    root = tmp_path_factory.mktemp("materials")
    prepare(root)
    untrained_run(root / "run", DAYS, N_FEATURES)
    return root


def served(root: Path, log: Path) -> Ended:
    """Start a server that writes the log, ask for its page, and end it."""
    folders = ["--lm", root / "lm", "--data", root / "data", "--session-log", log]
    server = Command("serve", root / "run", *folders, "--port", "0")
    try:
        deadline_s = time.monotonic() + 60
        while not (url := re.search("http://[^/]*/", server.stdout)) and server.running():
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        assert url, server.stderr[-2000:]
        with urllib.request.urlopen(url[0], timeout=30) as answer:
            assert answer.status == 200
        return server.interrupt()
    finally:
        server.kill()


def test_a_server_continues_after_damaged_lines_and_names_them(
    materials: Path, tmp_path: Path
) -> None:
    log = write(tmp_path / "log", said(), *LINES.values(), about(rating="wrong"))
    ended = served(materials, log)
    ended.check_harmless()
    assert ended.status == 0
    notes = [
        json.loads(line)["note"]
        for line in ended.stderr.splitlines()
        if "session_log_damaged" in line
    ]
    assert len(notes) == 21  # twenty are named
    assert notes[-1].endswith(f"{len(LINES) - 20} more lines passed over")


def test_a_session_above_the_folder_costs_no_recording_there(
    materials: Path, tmp_path: Path
) -> None:
    recording = tmp_path / "outside" / "data_train.hdf5"
    # The log's own name for its first utterance.
    block = int(datetime.fromisoformat(WHEN).timestamp())
    features_TC = np.zeros((100, N_FEATURES), dtype=np.float32)
    write_session(recording, [make_trial(features_TC, "outside", block, 0, "i see you")])
    content = recording.read_bytes()
    log = write(tmp_path / "log", said(session="../../outside"), about(rating="wrong"))
    (log / "recordings").mkdir()
    ended = served(materials, log)
    ended.check_harmless()
    assert recording.read_bytes() == content


TURNS = (
    "=HYPERLINK(1)",
    "\x1b]0;owned\x07\x1b[2J",
    "\u202ereversed",
    "two\nlines",
    "a" * 100_000,
    "(.*)[",
)


@pytest.mark.parametrize("form", ["text", "csv", "jsonl"])
def test_a_hostile_conversation_is_exported_as_plain_text(tmp_path: Path, form: str) -> None:
    log = write(
        tmp_path / "log",
        *[json.dumps({"when": WHEN, "partner": text}).encode() for text in TURNS],
        *[line for line in LINES.values() if len(line) < 100_000],
    )
    ended = run("log", "export", log, "--format", form)
    ended.check_harmless(most_s=30)
    assert ended.status == 0
    if form == "jsonl":
        found = [json.loads(line)["text"] for line in ended.stdout.splitlines()]
        assert found[: len(TURNS)] == list(TURNS)
    else:
        assert len(ended.stdout.splitlines()) == len(TURNS) + (form == "csv")
        assert not NOT_PRINTABLE.search(ended.stdout)
    searched = run("log", "export", log, "--search", "(.*)[")
    searched.check_harmless(most_s=30)
    assert len(searched.stdout.splitlines()) == 1


def test_a_deletion_removes_damaged_lines_and_leaves_the_others(tmp_path: Path) -> None:
    damaged = [line for line in LINES.values() if len(line) < 100_000]
    log = write(tmp_path / "log", said(), *damaged, said(id="b", text="we see"))
    ended = run("log", "delete", log, "--entry", "0", "--yes")
    ended.check_harmless(most_s=30)
    assert ended.status == 0
    written = [json.loads(line) for line in (log / "utterances.jsonl").read_bytes().splitlines()]
    gone = {"id": "a", "when": "2026-11-20T10:00:06.000-08:00", "deleted": True}
    assert gone.items() <= written[0].items()
    assert (SAID | {"id": "b", "text": "we see"}).items() <= written[-1].items()
    for line in written[1:-1]:  # damaged entries keep their numbers
        assert line.keys() <= {"id", "when", "damaged", "entry", "log", "crc"}
    assert [line["entry"] for line in written] == list(range(len(written)))


def test_all_damaged_lines_together_are_counted_and_few_are_named(tmp_path: Path) -> None:
    many = [*LINES.values()] * 20
    log = write(
        tmp_path / "log",
        said(),
        *[line for line in many if len(line) < 100_000],
        with_number(json.dumps(RATED).encode()),
    )
    n_damaged = len((log / "utterances.jsonl").read_bytes().split(b"\n")) - 3
    ended = run("report", "use", log)
    ended.check_harmless(most_s=60)
    assert ended.status == 0
    assert len(ended.stdout.splitlines()) < 60
    assert f"{n_damaged - 20} more lines passed over" in ended.stdout


def _line_of_40_mb(path: Path) -> None:
    path.write_bytes(
        said()
        + b"\n"
        + raw("text", b'"' + b"a" * 40_000_000 + b'"')
        + b"\n"
        + json.dumps(RATED).encode()
    )


def _lists_of_40_mb(path: Path) -> None:
    path.write_bytes(said() + b"\n" + raw("nbest", b"[" + b"[]," * 13_000_000 + b"0]") + b"\n")


def _endless_line(path: Path) -> None:
    with path.open("wb") as file:
        file.write(said() + b"\n")
        file.truncate(50_000_000)


def _bytes(path: Path) -> None:
    path.write_bytes(said() + b"\n" + os.urandom(1_000_000))


def _ids(path: Path) -> None:
    path.write_bytes(b"".join(said(id=str(number)) + b"\n" for number in range(5_000)))


def _days(path: Path) -> None:
    first = date(1970, 1, 1)
    days = (f"{first + timedelta(days=number)}T10:00:00+00:00" for number in range(2_000))
    path.write_bytes(b"".join(said(when=day) + b"\n" for day in days))


NO_LOG = "no log of use: "
NO_LOGS = {
    "a pipe that nobody writes to": (os.mkfifo, f"{NO_LOG}.*give a directory"),
    "a device without an end": (lambda path: path.symlink_to("/dev/zero"), f"{NO_LOG}.*give a dir"),
    "a directory": (Path.mkdir, f"{NO_LOG}Is a directory; give a directory"),
    "a link to itself": (lambda path: path.symlink_to(path), f"{NO_LOG}Too many levels"),
}
LARGE_LOGS = {
    "a line of 40 MB": (_line_of_40_mb, r"line 2 passed over: it has more than \d+ MiB"),
    "lists of 40 MB": (_lists_of_40_mb, r"line 2 passed over: it has more than \d+ MiB"),
    "50 MB of NULs without an end": (_endless_line, "line 2 passed over: unfinished"),
    "1 MB of bytes": (_bytes, r"\d+ more lines passed over"),
    "5,000 utterances": (_ids, ""),
    "5 years of days": (_days, ""),
}


def test_what_is_no_log_is_refused_in_a_line(tmp_path: Path) -> None:
    for name, (make, says) in NO_LOGS.items():
        (tmp_path / name).mkdir()
        make(tmp_path / name / "utterances.jsonl")
        run("report", "use", tmp_path / name, patience_s=60).check_refused(says, most_s=60)


def test_logs_of_any_size_are_read_within_bounds(tmp_path: Path) -> None:
    for name, (make, _) in LARGE_LOGS.items():
        (tmp_path / name).mkdir()
        make(tmp_path / name / "utterances.jsonl")
    logs = {name: tmp_path / name for name in LARGE_LOGS}
    ended = run("report", "use", *logs.values(), "--json", patience_s=60)
    ended.check_harmless(most_mb=600, most_s=60)
    found = json.loads(ended.stdout)
    for name, (_, says) in LARGE_LOGS.items():
        notes = "".join(note for note in found["notes"] if f"{logs[name]}/" in note)
        assert re.search(says, notes), (name, notes)
    assert len(found["notes"]) < 40
    assert found["overall"]["utterances"] == 3 + 1 + 5_000 + 2_000
