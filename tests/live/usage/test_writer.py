"""The log of use.

Nothing acknowledged is lost, nobody else reads or writes it, and `cortext adapt` learns from it.
"""

import json
import os
import shutil
import signal
import stat
import subprocess
import sys
from datetime import UTC, datetime, timedelta, timezone

import numpy as np
import pytest
import torch
from abandoned import abandoned

from cortext.cli import run as cortext
from cortext.data import open_dataset, read_trials, write_session
from cortext.data.trial import Trial
from cortext.errors import LiveError
from cortext.models import AcousticModel, build_model, load_model, model_config, save_model
from cortext.models.card import Smoothing
from cortext.text.inventory import RELEASE
from cortext_live.usage import kept_recordings
from cortext_live.usage.kept_recordings import HELD_UTTERANCES
from cortext_live.usage.log import read_log
from cortext_live.usage.writer import UsageLog, UtteranceRecord, session_of_today

DAY, NEW_DAY = "t15.2023.08.13", "t15.2023.08.20"
NOON = datetime(2023, 8, 13, 12, 0, 0, tzinfo=timezone(timedelta(hours=-7)))
IN_A_NAMESPACE = ["unshare", "--map-root-user", "--mount"]


def features(seed: int = 0, n_bins: int = 300) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n_bins, 8)).astype(np.float32)


def utterance(
    number: int = 0, text: str = "i see you", session: str = DAY, **more
) -> UtteranceRecord:
    return UtteranceRecord(number, session, 6.0, text, "feed", when=NOON, **more)


def lines(folder) -> list[dict]:
    return [json.loads(line) for line in (folder / "utterances.jsonl").read_text().splitlines()]


def recorded(folder, session: str = DAY) -> list[Trial]:
    path = folder / "recordings" / session / "data_train.hdf5"
    return list(read_trials(path, labels_required=True, session=session)) if path.exists() else []


def test_an_utterance_and_what_is_said_of_it_are_lines(tmp_path):
    with UsageLog(tmp_path / "log") as log:
        log.append(utterance(7, nbest=[{"text": "i see you", "score": -1.5}]))
        log.append(utterance(8, text=""))
        log.rate(7, "mostly right")
        log.correct(7, "I see Ewe!")
    first, empty, rating, correction = lines(tmp_path / "log")
    assert first == {
        "id": "7",
        "when": "2023-08-13T12:00:00.000-07:00",
        "session": DAY,
        "duration_s": 6.0,
        "n_words": 3,
        "words_per_minute": 30.0,  # 3 words in a tenth of a minute
        "text": "i see you",
        "source": "feed",
        "nbest": [{"text": "i see you", "score": -1.5}],
        "entry": 0,
        "log": int(NOON.timestamp()),
        "crc": first["crc"],
    }
    assert [line["entry"] for line in (empty, rating, correction)] == [1, 0, 0]
    assert (empty["n_words"], empty["words_per_minute"]) == (0, 0.0)
    assert (rating["id"], rating["rating"]) == ("7", "mostly right")
    assert (correction["id"], correction["correction"]) == ("7", "I see Ewe!")
    assert all(
        datetime.fromisoformat(line["when"]).utcoffset() is not None
        for line in (rating, correction)
    )


def test_an_id_that_is_used_again_after_a_restart_means_the_newer_utterance(tmp_path):
    for text in ("first words", "second words"):
        with UsageLog(tmp_path) as log:
            log.append(utterance(1, text))
            log.rate(1, "right" if text.startswith("first") else "wrong")
    found = [(entry.text, entry.rating) for entry in read_log(tmp_path).entries]
    assert found == [("first words", "right"), ("second words", "wrong")]


def test_what_cannot_be_meant_is_refused_and_not_logged(tmp_path):
    with UsageLog(tmp_path) as log:
        log.append(utterance(1))
        with pytest.raises(LiveError, match="no utterance '9'"):
            log.rate("9", "right")
        with pytest.raises(LiveError, match="no utterance 9"):
            log.correct(9, "words")
        unknown = "unknown rating 'good'; one of 'right', 'mostly right', 'wrong'"
        with pytest.raises(LiveError, match=unknown):
            log.rate(1, "good")
        wordless = "a correction needs at least one word; rate the utterance 'wrong'"
        with pytest.raises(LiveError, match=wordless):
            log.correct(1, " ?! ")
    assert len(lines(tmp_path)) == 1


def test_a_session_that_is_no_folder_name_is_refused():
    for session in ("", "..", "a/b", ".packed", "a\nb", "/etc"):
        with pytest.raises(LiveError, match="cannot name a folder"):
            utterance(session=session)


def test_a_time_that_cannot_be_is_refused():
    usual = {"id": 1, "session": DAY, "duration_s": 1.0, "text": "a"}
    for wrong in ({"duration_s": float("nan")}, {"duration_s": -1.0}):
        with pytest.raises(LiveError, match="number of seconds is needed"):
            UtteranceRecord(**usual | wrong)
    with pytest.raises(LiveError, match="a time without its offset"):
        UtteranceRecord(**usual, when=datetime(2023, 8, 13))


def test_only_the_owner_may_read(tmp_path):
    before = os.umask(0)
    try:
        with UsageLog(tmp_path / "log") as log:
            log.append(utterance(1), features())
            log.rate(1, "right")
    finally:
        os.umask(before)
    modes = {
        str(path.relative_to(tmp_path)): stat.S_IMODE(path.stat().st_mode)
        for path in (tmp_path / "log").rglob("*")
    }
    modes["log"] = stat.S_IMODE((tmp_path / "log").stat().st_mode)
    assert modes == {
        "log": 0o700,
        "log/utterances.jsonl": 0o600,
        "log/recordings": 0o700,
        f"log/recordings/{DAY}": 0o700,
        f"log/recordings/{DAY}/data_train.hdf5": 0o600,
    }


def test_recordings_are_kept_of_what_was_confirmed_or_corrected_and_of_nothing_else(tmp_path):
    texts = ("i see you", "you see me", "we see me", "me and you", "")
    with UsageLog(tmp_path) as log:
        for number, text in enumerate(texts):
            log.append(utterance(number, text), features(number))
        assert log.rate(0, "right") is True
        assert log.rate(1, "mostly right") is False
        assert log.correct(2, "We see you.") is True
        assert log.rate(3, "wrong") is False
        # Nothing was said, and nothing decoded: nothing to learn.
        assert log.rate(4, "right") is False
    first, second = recorded(tmp_path)
    assert (first.trial, first.sentence, second.trial, second.sentence) == (
        0,
        "i see you",
        2,
        "we see you",
    )
    assert RELEASE.names(first.phoneme_ids) == "AY SIL S IY SIL Y UW SIL".split()
    np.testing.assert_array_equal(first.features_TC, features(0))
    np.testing.assert_array_equal(second.features_TC, features(2))


def test_a_label_follows_what_is_said_later_also_in_another_process(tmp_path):
    with UsageLog(tmp_path) as log:
        log.append(utterance(0), features(0))
        log.append(utterance(1), features(1))
        log.rate(0, "right")
        log.rate(1, "right")
        log.correct(0, "I saw you")
        log.rate(0, "wrong")  # of the decoded text: the correction stays
        assert [trial.sentence for trial in recorded(tmp_path)] == ["i saw you", "i see you"]
    with UsageLog(tmp_path) as log:  # without features in memory
        assert log.correct(1, "I see two") is True
        assert log.correct(0, "I see three") is True
        assert [trial.sentence for trial in recorded(tmp_path)] == ["i see three", "i see two"]
        log.append(utterance(2), features(2))
        log.rate(2, "right")
        assert log.rate(2, "wrong") is False
        assert [trial.trial for trial in recorded(tmp_path)] == [0, 1]
    np.testing.assert_array_equal(recorded(tmp_path)[0].features_TC, features(0))


def test_the_last_recording_of_a_day_can_be_taken_back(tmp_path):
    with UsageLog(tmp_path) as log:
        log.append(utterance(0), features())
        log.rate(0, "right")
        log.rate(0, "wrong")
        assert recorded(tmp_path) == []
        log.rate(0, "right")
    assert len(recorded(tmp_path)) == 1


def test_numbers_and_typographic_marks_are_labelled_as_they_are_said(tmp_path):
    with UsageLog(tmp_path) as log:
        log.append(utterance(0), features())
        log.correct(0, "It’s 3 o’clock, café?")
    assert [trial.sentence for trial in recorded(tmp_path)] == ["it's three o'clock cafe"]
    assert lines(tmp_path)[1]["correction"] == "It’s 3 o’clock, café?"


def test_features_wait_in_memory_only_for_the_latest_utterances(tmp_path):
    with UsageLog(tmp_path) as log:
        for number in range(HELD_UTTERANCES + 1):
            log.append(utterance(number), features(number))
        assert log.rate(0, "right") is False
        assert log.rate(1, "right") is True
    assert [trial.trial for trial in recorded(tmp_path)] == [1]


def test_features_that_wait_take_a_bounded_amount_of_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_recordings, "HELD_BYTES", 3 * features().nbytes)
    with UsageLog(tmp_path) as log:
        for number in range(4):
            log.append(utterance(number), features(number))
        log.append(utterance(4), features(4, n_bins=1000))  # more than all that may wait
        assert log.rate(3, "right") is False
        assert log.rate(4, "right") is False
        log.append(utterance(5), features(5))
        assert log.rate(5, "right") is True


def test_scores_that_json_lacks_are_refused_and_the_log_goes_on(tmp_path):
    with UsageLog(tmp_path) as log:
        with pytest.raises(LiveError, match="cannot be written as JSON"):
            log.append(utterance(0, nbest=[{"text": "i see you", "score": float("-inf")}]))
        log.append(utterance(1))
    assert [line["id"] for line in lines(tmp_path)] == ["1"]


def test_a_recording_that_cannot_be_learnt_from_is_named_and_its_correction_stays(tmp_path):
    with UsageLog(tmp_path) as log:
        log.append(utterance(0), features(n_bins=40))  # 7 patches
        with pytest.raises(
            LiveError,
            match=r"it is logged, but its recording is not kept: .*40 bins give 7 patches",
        ):
            log.correct(0, "we see all of you")
        log.append(utterance(1), features())
        assert log.rate(1, "right") is True
    assert read_log(tmp_path).entries[0].correction == "we see all of you"


def test_a_damaged_session_file_stops_no_logging(tmp_path):
    path = tmp_path / "recordings" / DAY / "data_train.hdf5"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"nonsense")
    with UsageLog(tmp_path) as log:
        log.append(utterance(0), features())
        with pytest.raises(LiveError, match=r"its recording is not kept: .*data_train\.hdf5"):
            log.rate(0, "right")
        log.append(utterance(1))
    assert [line.get("rating") for line in lines(tmp_path)] == [None, "right", None]
    assert path.read_bytes() == b"nonsense"


def test_a_line_cut_at_any_byte_costs_itself_alone(tmp_path):
    with UsageLog(tmp_path / "whole") as log:
        log.append(utterance(0, "one"))
        log.append(utterance(1, "größer"))
    whole = (tmp_path / "whole" / "utterances.jsonl").read_bytes()
    start = whole.index(b"\n") + 1
    for cut in range(start + 1, len(whole)):
        folder = tmp_path / "cut"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        (folder / "utterances.jsonl").write_bytes(whole[:cut])
        complete = cut == len(whole) - 1  # only the end of the line is missing
        assert len(read_log(folder).notes) == (not complete)
        with UsageLog(folder) as log:
            assert len(log.notes) == (not complete)
            log.append(utterance(2, "three"))
            log.rate(2, "right")
        found = read_log(folder)
        # The number of the cut line stays free: it may have been whole, with features.
        texts = {0: "one", 2: "three"} | ({1: "größer"} if complete else {})
        assert {number: each.text for number, each in found.utterances.items()} == texts
        assert found.entries[-1].rating == "right"


def test_a_label_that_a_killed_process_was_changing_is_changed_by_the_next(tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    def killed(*_):
        raise Killed

    with UsageLog(tmp_path) as log:
        log.append(utterance(0), features())
        log.rate(0, "right")
        with monkeypatch.context() as patch:
            patch.setattr(kept_recordings, "write_session", killed)
            with pytest.raises(Killed):
                log.correct(0, "I saw you")
    half = abandoned(tmp_path / "recordings" / DAY / "data_train.hdf5")
    assert recorded(tmp_path)[0].sentence == "i see you"
    UsageLog(tmp_path).close()
    assert recorded(tmp_path)[0].sentence == "i saw you"
    assert not half.exists()


def test_a_log_has_one_writer(tmp_path):
    with (
        UsageLog(tmp_path),
        pytest.raises(LiveError, match="another process is writing this log; give another"),
    ):
        UsageLog(tmp_path)
    UsageLog(tmp_path).close()


def test_a_log_that_was_closed_or_removed_is_named(tmp_path):
    log = UsageLog(tmp_path / "log")
    log.append(utterance(0))
    shutil.rmtree(tmp_path / "log")
    with pytest.raises(LiveError, match="the log was closed or removed"):
        log.append(utterance(1))
    log.close()
    with pytest.raises(LiveError, match="the log was closed or removed"):
        log.append(utterance(2))


@pytest.mark.parametrize("inside", [".", "utterances.jsonl/."])
def test_a_place_that_is_no_folder_is_refused_in_a_line(tmp_path, inside):
    if inside == ".":
        (tmp_path / "log").write_text("")
    else:
        (tmp_path / "log" / "utterances.jsonl").mkdir(parents=True)
    with pytest.raises(LiveError, match=r"the log cannot be written: .*; free some space or check"):
        UsageLog(tmp_path / "log")


def test_the_day_of_a_live_feed_is_named_like_the_days_of_the_model():
    when = datetime(2026, 11, 21, 23, 59, tzinfo=UTC)
    assert session_of_today("t15.2023.08.18", when) == "t15.2026.11.21"
    assert session_of_today("rig.b.2023.08.18", when) == "rig.b.2026.11.21"
    assert session_of_today("demo", when) == "demo.2026.11.21"


ENDLESS = """
import sys
import numpy as np
from cortext_live.usage.writer import UsageLog, UtteranceRecord
log = UsageLog(sys.argv[1])
features_TC = np.zeros((300, 64), dtype=np.float32)
print("open", flush=True)
number = 0
while True:
    log.append(UtteranceRecord(f"{sys.argv[2]}-{number}", "day.2023.08.13", 2.0, "i see you"), features_TC)
    log.correct(f"{sys.argv[2]}-{number}", "You see me") if number % 2 else log.rate(f"{sys.argv[2]}-{number}", "right")
    print(f"{sys.argv[2]}-{number}", flush=True)
    number += 1
"""


@pytest.mark.slow
def test_sigkill_loses_nothing_that_was_acknowledged(tmp_path):
    acknowledged = []
    for life in range(4):
        program = [sys.executable, "-c", ENDLESS, str(tmp_path), str(life)]
        with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout.readline() == "open\n"
            with pytest.raises(LiveError, match="another process is writing this log"):
                UsageLog(tmp_path)
            acknowledged += [process.stdout.readline().strip() for _ in range(5 + 3 * life)]
            process.send_signal(signal.SIGKILL)
            acknowledged += process.stdout.read().split()
    found = read_log(tmp_path)
    numbers = {entry.id: number for number, entry in enumerate(found.entries)}
    assert set(acknowledged) <= set(numbers)
    # Each killed process may have had one under way.
    assert len(found.entries) <= len(acknowledged) + 4
    kept = {trial.trial: trial.sentence for trial in recorded(tmp_path, "day.2023.08.13")}
    for id_ in acknowledged:
        assert kept[numbers[id_]] == ("you see me" if int(id_.split("-")[1]) % 2 else "i see you")


ON_A_SMALL_DISK = """
import sys
from pathlib import Path
import numpy as np
from cortext.errors import LiveError
from cortext_live.usage.writer import UsageLog, UtteranceRecord
disk = Path(sys.argv[1])
features_TC = np.zeros((400, 128), dtype=np.float32)  # 205 kB
log = UsageLog(disk / "log")
log.append(UtteranceRecord("a", "day", 2.0, "i see you"), features_TC)
log.append(UtteranceRecord("b", "day", 2.0, "i see you"), features_TC)
log.rate("a", "right")
ballast = disk / "ballast"
with ballast.open("wb", buffering=0) as file:
    try:
        while file.write(bytes(4096)):
            pass
    except OSError:
        pass
ballast.write_bytes(bytes(ballast.stat().st_size - 16384))  # some lines still fit, no recording
try:
    log.rate("b", "right")
except LiveError as error:
    print(error)
n_logged = 2
try:
    while True:
        log.append(UtteranceRecord(f"c{n_logged}", "day", 2.0, "i see you " * 40))
        n_logged += 1
except LiveError as error:
    print(error)
try:
    log.correct("a", "you see me " * 60)
except LiveError as error:
    print(error)
ballast.unlink()
log.append(UtteranceRecord("d", "day", 2.0, "there is room"))
print(log.rate("b", "right"), n_logged + 1)
log.close()
import shutil
shutil.copytree(disk / "log", sys.argv[2])
"""


def test_a_full_disk_is_an_error_of_a_line_and_the_log_goes_on_when_there_is_room(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=768k", "none", str(disk)]
    if (
        shutil.which("unshare") is None
        or subprocess.run([*IN_A_NAMESPACE, *mount], capture_output=True).returncode
    ):
        pytest.skip("no file system can be mounted here")
    program = [sys.executable, "-c", ON_A_SMALL_DISK, str(disk), str(tmp_path / "log")]
    shell = ["sh", "-c", f'{" ".join(mount)} && exec "$@"', "sh"]
    done = subprocess.run([*IN_A_NAMESPACE, *shell, *program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    recording, full, correction, last = done.stdout.splitlines()
    assert recording.startswith("it is logged, but its recording is not kept: ")
    assert "No space left on device" in recording
    for line in (full, correction):
        assert line.startswith(
            f"{disk}/log/utterances.jsonl: the log cannot be written: No space left on device; free"
        )
    kept, n_logged = last.split()
    assert kept == "True"
    found = read_log(tmp_path / "log")
    assert found.notes == []
    assert len(found.entries) == int(n_logged)
    assert found.entries[-1].text == "there is room"
    assert found.entries[0].correction is None
    assert [(trial.trial, trial.sentence) for trial in recorded(tmp_path / "log", "day")] == [
        (0, "i see you"),
        (1, "i see you"),
    ]


@pytest.fixture
def model(tmp_path):
    """An untrained run that knows one day."""
    torch.manual_seed(0)
    config = model_config({"kind": "gru", "n_units": 8, "n_layers": 1})
    network = build_model(config, n_features=8, n_days=1, n_classes=len(RELEASE))
    reads = {
        "n_features": 8,
        "inventory": RELEASE,
        "smoothing": Smoothing(),
        "feature_subset": None,
    }
    save_model(AcousticModel(network, sessions=(DAY,), **reads), tmp_path / "run")
    return tmp_path / "run"


@pytest.mark.parametrize("day", [DAY, NEW_DAY])
def test_adapt_learns_from_what_was_corrected(model, tmp_path, capsys, day):
    said = ["I see you", "you see me", "Zorkify the blicket", "we see 2 of you"]
    with UsageLog(tmp_path / "log") as log:
        for number, sentence in enumerate(said):
            log.append(utterance(number, "i see you", session=day), features(number))
            assert log.correct(number, sentence) is True
    recordings = tmp_path / "log" / "recordings"
    trials = list(open_dataset(recordings).trials("train"))
    learnt = ["i see you", "you see me", "zorkify the blicket", "we see two of you"]
    assert [trial.sentence for trial in trials] == learnt
    assert RELEASE.names(trials[3].phoneme_ids)[:9] == "W IY SIL S IY SIL T UW SIL".split()
    unknown = RELEASE.names(trials[2].phoneme_ids)
    assert unknown.count("SIL") == 3
    assert unknown[:3] == ["Z", "AO", "R"]
    command = ["adapt", str(model), "--data", str(recordings), "--out", str(tmp_path / "out")]
    assert cortext([*command, "--batches", "2", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["session"], summary["n_trials"], summary["n_val_trials"]) == (day, 3, 1)
    assert load_model(tmp_path / "out").sessions == ((DAY,) if day == DAY else (DAY, NEW_DAY))


def test_of_several_days_in_the_log_one_is_named(model, tmp_path, capsys):
    with UsageLog(tmp_path / "log") as log:
        for number, day in enumerate([DAY, DAY, NEW_DAY, NEW_DAY]):
            log.append(utterance(number, session=day), features(number))
            log.rate(number, "right")
    command = [
        "adapt",
        str(model),
        "--data",
        str(tmp_path / "log" / "recordings"),
        "--batches",
        "1",
        "--json",
    ]
    assert cortext([*command, "--out", str(tmp_path / "new")]) == 0
    assert json.loads(capsys.readouterr().out)["session"] == NEW_DAY
    assert cortext([*command, "--session", DAY, "--out", str(tmp_path / "known")]) == 0
    assert json.loads(capsys.readouterr().out)["session"] == DAY


def test_what_is_learnt_from_next_time_includes_what_was_corrected_since(model, tmp_path, capsys):
    command = [
        "adapt",
        str(model),
        "--data",
        str(tmp_path / "log" / "recordings"),
        "--batches",
        "1",
        "--json",
        "--out",
    ]
    with UsageLog(tmp_path / "log") as log:
        for number in range(4):
            log.append(utterance(number, session=NEW_DAY), features(number))
        for number in range(4):
            log.rate(number, "right")
            if number:
                assert cortext([*command, str(tmp_path / str(number))]) == 0
                summary = json.loads(capsys.readouterr().out)
                assert summary["n_trials"] + summary["n_val_trials"] == number + 1


def test_a_session_file_written_by_hand_is_added_to(tmp_path):
    path = tmp_path / "recordings" / DAY / "data_train.hdf5"
    by_hand = Trial(features(5), DAY, 3, 0, "a cat", np.array([3, 40]))
    write_session(path, [by_hand])
    with UsageLog(tmp_path) as log:
        log.append(utterance(0), features(0))
        log.rate(0, "right")
        kept = [(trial.block, trial.trial, trial.sentence) for trial in recorded(tmp_path)]
        assert kept == [(3, 0, "a cat"), (NOON.timestamp(), 0, "i see you")]
        log.rate(0, "wrong")
    (left,) = recorded(tmp_path)
    assert left.sentence == "a cat"
    np.testing.assert_array_equal(left.features_TC, by_hand.features_TC)


def test_recordings_stay_those_of_their_own_log_when_a_new_one_is_begun(tmp_path):
    """Who sets the texts aside (an archive, privacy) and keeps the recordings gets no wrong
    labels.
    """
    said = {}
    for life, text in enumerate(["i see you", "you see me"]):
        with UsageLog(tmp_path) as log:
            when = NOON + timedelta(days=life)
            log.append(UtteranceRecord(0, DAY, 6.0, text, when=when), features(life))
            assert log.rate(0, "right") is True
        UsageLog(tmp_path).close()
        (tmp_path / "utterances.jsonl").rename(tmp_path / f"archive-{life}.jsonl")
        said[text] = features(life)
    kept = {trial.sentence: trial.features_TC for trial in recorded(tmp_path)}
    assert kept.keys() == said.keys()
    for text, features_TC in said.items():
        np.testing.assert_array_equal(kept[text], features_TC)


def test_a_clock_that_was_never_set_stops_no_logging_and_an_impossible_one_is_named(tmp_path):
    never_set = datetime(1969, 12, 31, 17, 0, 9, tzinfo=timezone(timedelta(hours=-7)))
    with UsageLog(tmp_path) as log:
        log.append(UtteranceRecord(0, DAY, 6.0, "i see you", when=never_set))
        assert log.rate(0, "right") is False  # without features
        with pytest.raises(LiveError, match="which no clock shows"):
            log.append(UtteranceRecord(1, DAY, 6.0, "i see you", when=NOON.replace(year=1066)))
    assert [entry.when for entry in read_log(tmp_path).entries] == [never_set]


def test_confidence_of_a_sentence_is_kept(tmp_path):
    with UsageLog(tmp_path) as log:
        log.append(utterance(0, "good morning", confidence=0.75))
        log.append(utterance(1, "good morning"))
    assert [entry.confidence for entry in read_log(tmp_path).entries] == [0.75, None]
