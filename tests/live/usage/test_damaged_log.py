"""Damaged lines of a usage log cost themselves alone: no entry gets the features of another."""

from __future__ import annotations

import json
import random
import re
import shutil
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import datetime, timedelta, timezone
from itertools import product
from pathlib import Path
from tempfile import mkdtemp

import numpy as np
import pytest
from attack_process import check_all

from cortext.data import open_dataset
from cortext.errors import CortextError, DataError, LiveError
from cortext_live.usage import conversation
from cortext_live.usage.deletion import Selection, delete
from cortext_live.usage.kept_features import KeptFeatures
from cortext_live.usage.log import read_log
from cortext_live.usage.log_entries import Damaged, Deleted, PartnerTurn
from cortext_live.usage.log_lines import numbered
from cortext_live.usage.statistics import read_use
from cortext_live.usage.writer import UsageLog, UtteranceRecord

DAY = "t15.2026.11.20"
NOON = datetime(2026, 11, 20, 12, 0, 0, tzinfo=timezone(timedelta(hours=-8)))
BEGAN = int(NOON.timestamp())
LIVES = (("0", "1", "turn", "2"), ("0", "1", "deleted", "2"))
"""Ids of the utterances of two processes, which count from 0 again. Entries 2 and 6 are none."""
MEANT = {0: "i see", 1: "you see", 3: "we see", 4: "i saw", 5: "you saw", 7: "we saw"}
LINES = [
    *[("entry", 0), ("correction", 0), ("entry", 1), ("correction", 1), ("entry", 2)],
    *[("entry", 3), ("correction", 3), ("entry", 4), ("correction", 4), ("entry", 5)],
    *[("correction", 5), ("entry", 6), ("entry", 7), ("correction", 7)],
]
"""What each line of the log is, and the number of its entry."""


def features(number: int) -> np.ndarray:
    return np.full((150, 2), number, np.float32)


def write(folder: Path) -> Path:
    """A log in which entry n has the text `word n`, features of the value n, and its correction."""
    number = 0
    for ids in LIVES:
        with UsageLog(folder, kept_features=KeptFeatures(folder)) as log:
            for id_ in ids:
                when = NOON + timedelta(minutes=number)
                if id_ == "turn":
                    log.add_turn("yes", when)
                elif id_ != "deleted":  # its line is written before the next entry
                    record = UtteranceRecord(id_, DAY, 4.0, f"word {number}", when=when)
                    log.append(record, features(number), number)
                    log.keep_features(features(number))
                    log.correct(id_, MEANT[number])
                number += 1
    return folder


def without_numbers(folder: Path) -> Path:
    """Let a log be as another program writes it, without numbers in its lines."""
    path = folder / "utterances.jsonl"
    path.write_bytes(re.sub(rb', "entry": \d+, "log": \d+, "crc": \d+}', b"}", path.read_bytes()))
    assert b"crc" not in path.read_bytes()
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    return write(tmp_path_factory.mktemp("whole") / "log")


@pytest.fixture
def log(whole, tmp_path) -> Path:
    shutil.copytree(whole, tmp_path / "log")
    return tmp_path / "log"


def lines_of(folder: Path) -> list[bytes]:
    return (folder / "utterances.jsonl").read_bytes().splitlines(keepends=True)


def set_lines(folder: Path, lines: list[bytes]) -> None:
    (folder / "utterances.jsonl").write_bytes(b"".join(lines))


def read(folder: Path) -> dict[int, tuple[str, float, str | None]]:
    """Text, features and correction of each utterance."""
    log, heard = read_log(folder), KeptFeatures(folder)
    found = {}
    for number, each in log.utterances.items():
        features_TC = heard.read(log.began, number)
        found[number] = each.text, float(features_TC[0, 0]), each.correction
    return found


def left(*lost: int) -> dict[int, tuple[str, float, str | None]]:
    """What there is without some lines."""
    gone = [LINES[line] for line in lost]
    return {
        number: (f"word {number}", number, None if ("correction", number) in gone else meant)
        for number, meant in MEANT.items()
        if ("entry", number) not in gone
    }


def flipped(line: bytes, at: int) -> bytes:
    return line[:at] + bytes([line[at] ^ 1]) + line[at + 1 :]


Damage = Callable[[list[bytes], int], list[int]]


def flip(lines: list[bytes], n: int) -> list[int]:
    lines[n] = flipped(lines[n], 20)
    return [n]


def flip_first_byte(lines: list[bytes], n: int) -> list[int]:
    lines[n] = b"x" + lines[n][1:]
    return [n]


def cut(lines: list[bytes], n: int) -> list[int]:
    lines[n] = lines[n][: len(lines[n]) // 2] + b"\n"
    return [n]


def lose_newline(lines: list[bytes], n: int) -> list[int]:
    lines[n] = lines[n][:-1]
    return [n, n + 1] if n + 1 < len(lines) else []


def join(lines: list[bytes], n: int) -> list[int]:
    """The end of a line and the beginning of the next one are lost."""
    if n + 1 == len(lines):
        return cut(lines, n)
    lines[n : n + 2] = [lines[n][:-9] + lines[n + 1][5:]]
    return [n, n + 1]


def zeros(lines: list[bytes], n: int) -> list[int]:
    lines[n] = bytes(len(lines[n]) - 1) + b"\n"
    return [n]


def lose(lines: list[bytes], n: int) -> list[int]:
    del lines[n]
    return [n]


DAMAGES: dict[str, Damage] = {
    each.__name__: each for each in (flip, flip_first_byte, cut, lose_newline, join, zeros, lose)
}


def test_the_log_is_as_the_tests_say(whole):
    assert read(whole) == left()
    found = read_log(whole)
    assert (found.began, found.deleted, found.damaged) == (BEGAN, {6}, 0)
    assert isinstance(found.entries[2], PartnerTurn)


def check_damages(
    log: Path, cases: Iterable[tuple[str, int]], check: Callable[[list[int]], None]
) -> None:
    """Damage a line of the log by each of the cases, and check what is left.

    Args:
        log: The log, of which only the lines may change.
        cases: Names of damages, and numbers of lines.
        check: Called with the numbers of the lines that are lost.
    """
    whole = lines_of(log)

    def check_case(case: tuple[str, int]) -> None:
        name, n = case
        lines = list(whole)
        lost = DAMAGES[name](lines, n)
        set_lines(log, lines)
        check(lost)

    check_all(list(cases), check_case)


def copy_of(log: Path) -> Path:
    return Path(shutil.copytree(log, Path(mkdtemp(dir=log.parent)) / "log"))


def test_the_others_keep_their_features_and_corrections(log):
    def check(lost):
        assert read(log) == left(*lost)
        found = read_log(log)
        assert found.began == BEGAN
        assert len(found.notes) == found.damaged <= 1
        assert len(found.entries) <= 8

    check_damages(log, product(DAMAGES, range(len(LINES))), check)


def test_any_flipped_byte_costs_its_line_alone(log):
    lines = lines_of(log)
    for n, line in enumerate(lines):
        for at in range(n % 19, len(line) - 1, 19):
            set_lines(log, [*lines[:n], flipped(line, at), *lines[n + 1 :]])
            found = read_log(log)
            texts = {k: (each.text, each.correction) for k, each in found.utterances.items()}
            assert texts == {k: (text, c) for k, (text, _, c) in left(n).items()}, (n, at)
            assert (found.began, found.damaged, len(found.entries)) == (BEGAN, 1, 8)


def test_a_writer_goes_on_with_a_number_of_its_own(log):
    def check(lost):
        copy = copy_of(log)
        with UsageLog(copy, kept_features=KeptFeatures(copy)) as opened:
            assert len(opened.notes) <= 1
            number = len(opened.entries)
            assert number in (8, 9)  # 9 where the end of the log may have been one entry more
            when = NOON + timedelta(hours=1)
            opened.append(UtteranceRecord("0", DAY, 4.0, f"word {number}", when=when))
            opened.keep_features(features(number))
            opened.correct("0", "they saw")
        assert read(copy) == left(*lost) | {number: (f"word {number}", number, "they saw")}
        assert read_log(copy).began == BEGAN

    check_damages(log, product(DAMAGES, (0, 5, 12, 13)), check)


def test_a_deletion_keeps_the_numbers_and_removes_damaged_lines(log):
    def check(lost):
        copy = copy_of(log)
        assert delete(copy, Selection(entries=(4,))) == [4]
        expected = left(*lost)
        del expected[4]
        assert read(copy) == expected
        found = read_log(copy)
        assert (found.began, found.damaged, found.deleted) == (BEGAN, 0, {4, 6})
        gone = [number for number in (0, 3, 7) if number not in expected]
        assert [type(found.entries[number]) for number in gone] == [Damaged] * len(gone)
        with UsageLog(copy) as opened:
            assert len(opened.entries) == 8
        content = (copy / "utterances.jsonl").read_text()
        for line in (*lost, 7):
            kind, number = LINES[line]
            assert (f"word {number}" if kind == "entry" else MEANT[number]) not in content

    check_damages(log, product(DAMAGES, (0, 5, 12)), check)


@pytest.mark.parametrize("selection", [Selection(entries=(3,)), Selection(everything=True)])
def test_a_damaged_entry_can_be_deleted_with_what_is_kept_of_it(log, selection):
    lines = lines_of(log)
    flip(lines, LINES.index(("entry", 3)))
    set_lines(log, lines)
    trials = {each.trial for each in open_dataset(log / "recordings").trials("train")}
    assert trials == set(MEANT)
    assert 3 in delete(log, selection)
    assert isinstance(read_log(log).entries[3], Deleted)
    assert KeptFeatures(log).read(BEGAN, 3) is None
    if selection.everything:
        assert not list(log.rglob("*.safetensors")) + list(log.rglob("*.hdf5"))
        assert len(read_log(log).entries) == 8
    else:
        trials = {each.trial for each in open_dataset(log / "recordings").trials("train")}
        assert trials == set(MEANT) - {3}
    assert "word 3" not in (log / "utterances.jsonl").read_text()
    with pytest.raises(DataError, match="there is no entry 3, or it was deleted"):
        delete(log, Selection(entries=(3,)))


def test_a_server_deletes_what_was_damaged_while_it_ran(log):
    with UsageLog(log, kept_features=KeptFeatures(log)) as opened:
        set_lines(log, [b"x\n" * len(LINES)])
        assert opened.delete(Selection(entries=(1, 7))) == [1, 7]
        opened.append(UtteranceRecord("9", DAY, 4.0, "word 8", when=NOON + timedelta(hours=1)))
        opened.keep_features(features(8))
    assert read(log) == {8: ("word 8", 8, None)}
    found = read_log(log)
    assert (found.began, found.deleted, found.damaged) == (BEGAN, {1, 7}, 0)
    kept = sorted(path.stem for path in (log / "heard").glob("*.safetensors"))
    assert kept == [f"{BEGAN}-{number}" for number in (0, 3, 4, 5, 8)]


def test_an_id_of_a_damaged_utterance_does_not_mean_an_older_one(log):
    lines = lines_of(log)
    flip_first_byte(lines, LINES.index(("entry", 5)))  # its id was 1, as that of entry 1
    set_lines(log, lines)
    with UsageLog(log) as opened, pytest.raises(LiveError, match="utterance '1' is damaged"):
        opened.correct("1", "they saw")
    assert read(log)[1] == ("word 1", 1, "you see")


def test_readers_pass_over_damaged_entries(log):
    lines = lines_of(log)
    flip(lines, 0)
    set_lines(log, lines)
    entries = read_log(log).entries
    shown = conversation.latest(entries, len(entries))
    assert [each.entry for each in shown] == [1, 2, 3, 4, 5, 7]
    use = read_use([log])
    assert (use.overall.utterances, use.overall.corrected, use.damaged) == (5, 5, 1)
    assert len(use.notes) == 1


# Logs without numbers


def test_a_damaged_utterance_of_a_log_without_numbers_is_counted(log):
    def check(lost):
        assert read(log) == left(*lost)

    damages = ("flip", "flip_first_byte", "cut", "lose_newline", "join")
    lines = [LINES.index(("entry", number)) for number in MEANT]
    check_damages(without_numbers(log), product(damages, lines), check)


def test_the_unfinished_line_of_a_killed_process_is_not_counted_in_a_log_without_numbers(log):
    lines = lines_of(without_numbers(log))
    half = lines[0].replace(b'"id": "0"', b'"id": "3"')[:150] + b"\n"  # of the first process
    second = LINES.index(("entry", 4))
    set_lines(log, [*lines[:second], half, *lines[second:]])
    assert read(log) == left()
    assert read_log(log).damaged == 1


def test_a_log_without_numbers_goes_on_with_them(log):
    lines = lines_of(without_numbers(log))
    with UsageLog(log, kept_features=KeptFeatures(log)) as opened:
        opened.append(UtteranceRecord("3", DAY, 4.0, "word 8", when=NOON + timedelta(hours=1)))
        opened.keep_features(features(8))
        opened.correct("3", "they saw")
        opened.correct("2", "all saw")
    more = {8: ("word 8", 8, "they saw"), 7: ("word 7", 7, "all saw")}
    assert read(log) == left() | more
    with (log / "utterances.jsonl").open("rb") as file:
        new = file.read().splitlines(keepends=True)[len(lines) :]
    assert [json.loads(line)["entry"] for line in new] == [8, 8, 7]
    # Then half of the old lines are lost: the new ones keep their number, and the first its time.
    set_lines(log, [*lines[7:], *new])
    assert read_log(log).began == BEGAN
    assert read_log(log).utterances[8].correction == "they saw"


# Lines that nobody wrote


def test_a_number_that_cannot_be_is_passed_over_and_named(log):
    line = json.dumps(
        {"id": "9", "when": NOON.isoformat(), "session": DAY, "duration_s": 1.0, "text": "word"}
    ).encode()
    wrong = {
        "entry is 1000000000000": numbered(line, 10**12, BEGAN),
        "entry 3 stands above it already": numbered(line, 3, BEGAN),
        "it is a line of another log": numbered(line, 8, BEGAN + 1),
        "it was changed since it was written": numbered(line, 8, BEGAN).replace(b"word", b"ward"),
    }
    lines = lines_of(log)
    for why, raw in wrong.items():
        set_lines(log, [*lines, raw])
        assert read(log) == left()
        (note,) = read_log(log).notes
        assert why in note


def test_no_damage_raises_another_error(log):
    content = (log / "utterances.jsonl").read_bytes()
    dice = random.Random(1)
    for _ in range(60):
        damaged = bytearray(content)
        for _ in range(dice.randrange(1, 6)):
            at = dice.randrange(len(damaged))
            damaged[at : at + dice.choice([0, 1, 40])] = dice.randbytes(dice.choice([0, 1, 40]))
        (log / "utterances.jsonl").write_bytes(damaged)
        with suppress(CortextError):
            for number, (text, value, correction) in read(log).items():
                assert (text, value) == (f"word {number}", number)
                assert correction in (None, MEANT[number])
