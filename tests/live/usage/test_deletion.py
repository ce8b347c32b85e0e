"""Deleting from a usage log: nothing of it is on the disk afterwards, and the rest is as before."""

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
import textwrap
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import numpy as np
import pytest
from attack_process import check_all
from damaged_folders import Damage, check_damages
from disk_search import files_with, traces

from cortext.cli import run as cortext
from cortext.data import open_dataset
from cortext.data.packed import open_data
from cortext.errors import DataError, LiveError
from cortext_live.usage import deletion
from cortext_live.usage.deletion import Selection, delete
from cortext_live.usage.drift.sources import read_source
from cortext_live.usage.kept_features import KeptFeatures
from cortext_live.usage.log import read_log
from cortext_live.usage.log_entries import Deleted, LoggedUtterance, PartnerTurn
from cortext_live.usage.log_lines import KEYS
from cortext_live.usage.statistics import read_use
from cortext_live.usage.writer import UsageLog, UtteranceRecord

DAY, NEXT_DAY = "t15.2026.11.20", "t15.2026.11.21"
NOON = datetime(2026, 11, 20, 12, 0, 0, tzinfo=timezone(timedelta(hours=-8)))
TEXTS = ("i see you", "zebra quilt", "thank you", "", "walrus dance", "good morning")
CORRECTED = {0: "i see you", 1: "zebras quilted", 4: "walrus danced"}
TURN_AFTER = 3
"""The partner says something after so many utterances, under that number."""
NUMBERS = (0, 1, 2, 4, 5, 6)
"""Numbers of the utterances: the turn has number 3."""


def features(n: int) -> np.ndarray:
    return np.random.default_rng(n).normal(size=(150, 6)).astype(np.float32)


def write(folder: Path) -> None:
    """A log of six utterances, ten minutes apart, the last two of the next day, and a turn."""
    with UsageLog(folder, kept_features=KeptFeatures(folder)) as log:
        for n, text in enumerate(TEXTS):
            if n == TURN_AFTER:
                log.add_turn("do you like giraffes", NOON + timedelta(minutes=25))
            when = NOON + timedelta(days=n // 4, minutes=10 * n)
            record = UtteranceRecord(
                n,
                NEXT_DAY if n >= 4 else DAY,
                4.0,
                text,
                "feed",
                nbest=[{"text": text}, {"text": text.replace("zebra", "sombrero")}],
                when=when,
            )
            log.append(record, features(n))
            log.keep_features(features(n))
            if n in CORRECTED:
                assert log.correct(n, CORRECTED[n])
        log.rate(2, "wrong")


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    folder = tmp_path_factory.mktemp("written") / "log"
    write(folder)
    return folder


@pytest.fixture
def log(written, tmp_path):
    return Path(shutil.copytree(written, tmp_path / "log"))


def test_nothing_of_a_deleted_utterance_is_on_the_disk(log):
    open_data(log / "recordings")  # as `adapt` packs them, beside them
    for word in ("zebra", "zebras", "quilted", "sombrero"):
        assert traces(word, features(1), log)
    assert delete(log, Selection(entries=(1,))) == [1]
    for word in ("zebra", "zebras", "quilt", "quilted", "sombrero"):
        assert not traces(word, features(1), log)
    for n in (0, 4):
        assert traces(CORRECTED[n], features(n), log)
    modes = {stat.S_IMODE(path.stat().st_mode) for path in log.rglob("*") if path.is_file()}
    assert modes == {0o600}


def test_the_others_keep_their_numbers_features_and_labels(log):
    before = read_log(log)
    delete(log, Selection(entries=(0, TURN_AFTER)))
    after = read_log(log)
    assert not after.damaged
    assert isinstance(before.entries[3], PartnerTurn)
    assert [type(entry) for entry in after.entries] == [
        *(Deleted, LoggedUtterance, LoggedUtterance, Deleted),
        *[LoggedUtterance] * 3,
    ]
    assert after.began == before.began  # by the line that is left of the first utterance
    assert [entry.when for entry in after.entries] == [entry.when for entry in before.entries]
    kept = {n: entry for n, entry in before.utterances.items() if n != 0}
    assert after.utterances == kept
    heard = KeptFeatures(log)
    assert heard.read(after.began, 0) is None
    for n, number in enumerate(NUMBERS[1:], 1):
        np.testing.assert_array_equal(heard.read(after.began, number), features(n))
    trials = list(open_dataset(log / "recordings").trials("train"))
    assert [(trial.trial, trial.sentence) for trial in trials] == [
        (1, CORRECTED[1]),
        (5, CORRECTED[4]),
    ]
    np.testing.assert_array_equal(trials[0].features_TC, features(1))


def test_a_log_goes_on_after_a_deletion(log):
    with UsageLog(log, kept_features=KeptFeatures(log)) as opened:
        assert opened.delete(Selection(entries=(1,))) == [1]
        with pytest.raises(LiveError, match="utterance 1 was deleted"):
            opened.correct(1, "zebras again")
        opened.correct(2, "thank you all")
        record = UtteranceRecord(7, NEXT_DAY, 4.0, "hello there", "feed", when=NOON)
        opened.append(record, features(7))
        assert opened.delete(Selection(entries=(0,))) == [0]
        assert opened.rate(7, "right")  # with its features, which are still in memory
        with pytest.raises(LiveError, match="another process"):
            UsageLog(log)
    found = read_log(log)
    assert not found.damaged
    assert found.entries[7].rating == "right"
    assert found.entries[2].correction == "thank you all"


def test_an_id_of_a_deleted_utterance_does_not_mean_an_older_one(tmp_path):
    for text in ("first words", "second words"):
        with UsageLog(tmp_path) as opened:
            opened.append(UtteranceRecord(1, DAY, 4.0, text, when=NOON))
    delete(tmp_path, Selection(entries=(1,)))
    with UsageLog(tmp_path) as opened, pytest.raises(LiveError, match="was deleted"):
        opened.rate(1, "wrong")
    assert read_log(tmp_path).entries[0].rating is None


SELECTIONS = [
    (Selection(everything=True), [0, 1, 2, 3, 4, 5, 6]),
    (Selection(since=NOON, until=NOON + timedelta(minutes=10)), [0, 1]),
    (Selection(until=NOON + timedelta(minutes=24)), [0, 1, 2]),
    (Selection(since=NOON + timedelta(hours=1)), [5, 6]),
    (Selection(since=NOON.astimezone(UTC), until=NOON), [0]),
    (Selection(entries=(4, 2, 2)), [2, 4]),
]


def test_entries_are_selected_by_number_time_or_all(written, tmp_path):
    for n, (selection, expected) in enumerate(SELECTIONS):
        log = Path(shutil.copytree(written, tmp_path / str(n)))
        assert delete(log, selection) == expected
        assert read_log(log).deleted == set(expected)


def test_deleting_all_leaves_times_alone(log):
    with (log / "utterances.jsonl").open("ab") as file:
        file.write(b'{"id": "9", "text": "half a walrus')  # a killed process's last line
    delete(log, Selection(everything=True))
    lines = [json.loads(line) for line in (log / "utterances.jsonl").read_text().splitlines()]
    assert [line["entry"] for line in lines] == [*range(7), 7]  # the last one may have been whole
    assert [line["entry"] for line in lines if "id" not in line] == [TURN_AFTER]
    assert {key for line in lines for key in line} == {"id", "when", "deleted", *KEYS}
    left = {path.relative_to(log).name for path in log.rglob("*") if path.is_file()}
    assert left == {"utterances.jsonl"}


def test_a_selection_that_says_nothing_or_two_things_is_refused():
    for given in (
        {},
        {"entries": (1,), "everything": True},
        {"entries": (1,), "since": NOON},
        {"since": NOON.replace(tzinfo=None)},
        {"until": datetime(1, 1, 1, tzinfo=UTC)},
    ):
        with pytest.raises(DataError):
            Selection(**given)


def test_a_number_without_an_entry_deletes_nothing(log):
    before = (log / "utterances.jsonl").read_bytes()
    for numbers in ((99,), (1, 99), (-1,)):
        with pytest.raises(DataError, match="there is no entry"):
            delete(log, Selection(entries=numbers))
        assert (log / "utterances.jsonl").read_bytes() == before
    delete(log, Selection(entries=(1,)))
    with pytest.raises(DataError, match="there is no entry 1, or it was deleted"):
        delete(log, Selection(entries=(1,)))


def test_statistics_and_drift_count_a_deleted_utterance_nowhere(tmp_path):
    write(tmp_path / "log")
    delete(tmp_path / "log", Selection(entries=(1, 5)))
    use = read_use([tmp_path / "log"])
    # Left: "i see you", "thank you", "", "good morning": 7 words in 3 sentences of 4 s.
    assert (use.overall.utterances, use.overall.sentences, use.overall.words) == (4, 3, 7)
    assert (use.overall.corrected, use.overall.ratings["wrong"]) == (1, 1)
    assert (use.damaged, use.overall.spoken_hours) == (0, pytest.approx(16 / 3600))
    source = read_source(tmp_path / "log")
    assert {name: day.utterances for name, day in source.use.items()} == {DAY: 3, NEXT_DAY: 1}
    assert not any(day.without_features for day in source.use.values())


def test_entries_that_could_not_be_written_take_their_numbers(tmp_path):
    with UsageLog(tmp_path) as opened:
        opened.append(UtteranceRecord(1, DAY, 4.0, "one", when=NOON), number=0)
        opened.append(UtteranceRecord(4, DAY, 4.0, "four", when=NOON), number=3)
        opened.add_turn("five", NOON, number=4)
    found = read_log(tmp_path)
    assert found.deleted == {1, 2}
    assert found.entries[3].text == "four"
    assert found.entries[4] == PartnerTurn(NOON, "five")


def test_a_turn_is_no_utterance(log):
    assert "giraffes" not in {entry.text for entry in read_log(log).utterances.values()}
    assert read_use([log]).overall.utterances == 6
    with UsageLog(log) as opened, pytest.raises(LiveError, match="partner"):
        opened.add_turn("  ", NOON)


# What is interrupted


STEPS = ("begin", "_rewrite", "_delete_features", "_delete_recordings", "unlink", "sync")


class Killed(BaseException):
    """Stands for a kill: no handler of errors sees it."""


@pytest.mark.parametrize("step", STEPS)
def test_an_interrupted_deletion_is_finished_at_the_next_start(log, monkeypatch, step):
    whole = (log / "utterances.jsonl").read_bytes()

    def stop(*_: object, **__: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        target = Path if step == "unlink" else deletion
        patch.setattr(target, step, stop)
        with pytest.raises(Killed):
            delete(log, Selection(entries=(1,)))
    between = read_log(log)
    assert (log / "utterances.jsonl").read_bytes() == whole or between.deleted == {1}
    with UsageLog(log, kept_features=KeptFeatures(log)) as opened:
        assert not opened.notes
        assert len(opened.entries) == 7
    if step == "begin":
        assert (log / "utterances.jsonl").read_bytes() == whole
        return
    assert read_log(log).deleted == {1}
    assert not traces("zebra zebras sombrero", features(1), log)
    assert not (log / "deleting.json").exists()


def test_a_full_disk_leaves_the_log_and_is_made_good_later(log, monkeypatch):
    whole = (log / "utterances.jsonl").read_bytes()

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    with UsageLog(log, kept_features=KeptFeatures(log)) as opened:
        with monkeypatch.context() as patch:
            patch.setattr(deletion, "_rewrite", full)
            with pytest.raises(LiveError, match="not everything is deleted yet: No space left"):
                opened.delete(Selection(entries=(1,)))
        assert (log / "utterances.jsonl").read_bytes() == whole
        assert opened.delete(Selection(entries=(2,))) == [2]  # with what is left to do
        assert isinstance(opened.entries[1], Deleted)
    assert read_log(log).deleted == {1, 2}
    assert not traces("zebra sombrero", features(1), log)
    assert not traces("thank", features(2), log)


def test_nothing_to_delete_changes_nothing(log):
    with (log / "utterances.jsonl").open("ab") as file:
        file.write(b"damaged\n")
    whole = (log / "utterances.jsonl").read_bytes()
    with UsageLog(log) as opened:
        assert opened.delete(Selection(since=NOON + timedelta(days=9))) == []
    assert (log / "utterances.jsonl").read_bytes() == whole


def test_damaged_recordings_are_named_and_the_log_still_opens(log):
    file = log / "recordings" / DAY / "data_train.hdf5"
    file.write_bytes(b"no HDF5")
    with pytest.raises(LiveError, match="deleted from the log, but its recordings cannot"):
        delete(log, Selection(entries=(1,)))
    assert read_log(log).deleted == {1}
    with UsageLog(log) as opened:
        assert str(file) in opened.notes[0]
    file.unlink()
    with UsageLog(log) as opened:
        assert not opened.notes
    assert not (log / "deleting.json").exists()


def test_damaged_recordings_of_one_day_do_not_keep_those_of_another(log):
    (log / "recordings" / DAY / "data_train.hdf5").write_bytes(b"no HDF5")
    assert traces("walrus danced", features(4), log)
    with pytest.raises(LiveError, match="its recordings cannot"):
        delete(log, Selection(entries=(1, 5)))
    assert not traces("walrus danced", features(4), log)


JOURNALS = [
    b"",
    b"[]",
    b'{"began": 1, "entries": [0]}',
    b'{"began": 1, "entries": [-1], "sessions": []}',
    b'{"began": 1, "entries": [NaN], "sessions": []}',
    b'{"began": 1, "entries": [true], "sessions": []}',
    b'{"began": 1, "entries": [0], "sessions": ["../../etc"]}',
    b'{"began": 1, "entries": [1, 0], "sessions": []}',
    b'{"began": "x", "entries": [0], "sessions": []}',
]


def test_a_damaged_journal_deletes_nothing(log):
    whole = (log / "utterances.jsonl").read_bytes()

    def check(journal):
        (log / "deleting.json").write_bytes(journal)
        with UsageLog(log) as opened:
            assert "its file is damaged" in opened.notes[0]
            with pytest.raises(LiveError, match="its file is damaged"):
                opened.delete(Selection(entries=(1,)))
        assert (log / "utterances.jsonl").read_bytes() == whole

    check_all(JOURNALS, check)


def test_the_journal_of_another_log_deletes_nothing(log):
    whole = (log / "utterances.jsonl").read_bytes()
    (log / "deleting.json").write_text('{"began": 1, "entries": [0], "sessions": []}')
    with UsageLog(log):
        pass
    assert (log / "utterances.jsonl").read_bytes() == whole
    assert not (log / "deleting.json").exists()


KILLED = """
import os, signal, sys
from pathlib import Path
from cortext import files
from cortext_live.usage import deletion
from cortext_live.usage.deletion import Selection, delete
left = int(sys.argv[2])

def counted(function):
    def call(*arguments, **more):
        global left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return function(*arguments, **more)
    return call

for name in ("replace", "unlink", "chmod", "touch"):
    setattr(Path, name, counted(getattr(Path, name)))
for name in ("fsync", "open"):
    setattr(os, name, counted(getattr(os, name)))
delete(Path(sys.argv[1]), Selection(entries=(1, 3)))
print("whole")
"""
"""Deletes, and is killed at the nth call that touches the disk."""


@pytest.mark.slow
def test_a_kill_at_any_moment_leaves_the_log_whole_or_deleted(tmp_path):
    program = tmp_path / "killed.py"
    program.write_text(textwrap.dedent(KILLED))
    outcomes = set()
    for n in range(0, 60, 4):
        log = tmp_path / str(n)
        write(log)
        whole = (log / "utterances.jsonl").read_bytes()
        ended = subprocess.run(
            [sys.executable, program, log, str(n)], capture_output=True, text=True, check=False
        )
        if ended.returncode == 0:
            break
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        between = read_log(log)
        changed = (log / "utterances.jsonl").read_bytes() != whole
        assert between.deleted == ({1, 3} if changed else set())
        begun = changed or (log / "deleting.json").exists()
        with UsageLog(log, kept_features=KeptFeatures(log)) as opened:
            assert not opened.notes
        outcomes.add((begun, changed))
        assert read_log(log).deleted == ({1, 3} if begun else set())
        if begun:
            assert not traces("zebra zebras sombrero giraffes", features(1), log)
            assert not files_with(b"deleting", log)
        assert not list(log.rglob(".*.tmp"))
    assert (ended.returncode, ended.stdout) == (0, "whole\n")
    assert outcomes == {(False, False), (True, False), (True, True)}


# The commands


def test_the_command_deletes_and_asks_first(log, capsys):
    assert cortext(["log", "delete", str(log), "--entry", "1"]) == 2
    assert "nobody can be asked here; give --yes" in capsys.readouterr().err
    assert cortext(["log", "delete", str(log), "--entry", "1", "--entry", "2", "--yes"]) == 0
    assert "deleted: 2 entries" in capsys.readouterr().out
    assert read_log(log).deleted == {1, 2}
    times = ["--since", "2026-11-20T12:00-08:00", "--until", "2026-11-20T12:29-08:00"]
    assert cortext(["log", "delete", str(log), *times, "--yes", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"deleted": [0, 3], "models": [], "notes": []}


DELETE = "log delete FOLDER --yes"
REFUSED = [
    Damage("nothing", lambda log: None, "what is to be deleted is not said", DELETE),
    Damage("two things", lambda log: None, "said twice", f"{DELETE} --all --entry 1"),
    Damage("no entry", lambda log: None, "there is no entry 99", f"{DELETE} --entry 99"),
    Damage("-1", lambda log: None, "should be greater than or equal to 0", f"{DELETE} --entry -1"),
    Damage("nan", lambda log: None, "should be a valid integer", f"{DELETE} --entry nan"),
    Damage("no time", lambda log: None, "--since is 'yesterday'; give a time", f"{DELETE} --since yesterday"),
    Damage("1", lambda log: None, "--since is '0001-01-01'", f"{DELETE} --since 0001-01-01"),
]  # fmt: skip


def test_the_command_refuses_in_one_line(written, tmp_path):
    check_damages(written, REFUSED, DELETE, tmp_path)


def test_the_command_refuses_while_a_server_writes(log, capsys):
    with UsageLog(log):
        assert cortext(["log", "delete", str(log), "--all", "--yes"]) == 2
    said = capsys.readouterr().err
    assert "delete on the page, or stop the server" in said
    assert not read_log(log).deleted


def test_a_log_that_is_replaced_while_it_is_opened_is_not_written(log):
    stale = os.open(log / "utterances.jsonl", os.O_RDWR)
    delete(log, Selection(entries=(1,)))
    assert not deletion.is_current(stale, log / "utterances.jsonl")
    os.close(stale)
