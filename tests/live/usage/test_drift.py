"""The drift report: its numbers, its rule for changes, its sentences, its alerts."""

import contextlib
import http.server
import io
import json
import threading
from datetime import date, datetime
from pathlib import Path

import h5py
import numpy as np
import pytest
from drift_log import session, write_log
from refusals import complaint

from cortext.cli import run
from cortext.data import make_trial, write_session
from cortext.data.conventions import Conventions
from cortext.errors import ConfigError
from cortext_data.simulate import simulate
from cortext_live.recalibration.chain import open_chain
from cortext_live.usage.drift.alerts import check_hook
from cortext_live.usage.drift.changes import find_changes, find_gaps
from cortext_live.usage.drift.report import drift_report
from cortext_live.usage.drift.sources import read_source
from cortext_live.usage.drift.statistics import Layout, Reference, collect

COUNTS = np.array([[1, 3, 0, 2], [3, 3, 0, 4]], dtype=np.float32)
"""Two bins of 4 electrodes with one feature each: means 2, 3, 0, 3."""


def days_of(*given):
    named = ((f"t15.2026.01.{n:02d}", "1", x_TC) for n, x_TC in enumerate(given, 1))
    return list(collect(named, 20))


def test_electrodes_belong_to_arrays_in_order_and_kinds_follow_each_other():
    layout = Layout.of("left, right", 8)
    assert (layout.names, layout.n_kinds, layout.n_electrodes) == (("left", "right"), 2, 4)
    assert [layout.electrodes(n) for n in (0, 1)] == [slice(0, 2), slice(2, 4)]
    assert Layout.of(None, 16).names == ("array 1", "array 2", "array 3", "array 4")
    assert Layout.of(None, 7) == Layout(("array 1",), 7, 1)


@pytest.mark.parametrize(("arrays", "kinds"), [("3", 2), ("a,a", 2), ("a,", 1), ("0", 1), ("2", 3)])
def test_impossible_arrays_are_refused(arrays, kinds):
    with pytest.raises(ConfigError, match=r"--arrays|arrays of equal size"):
        Layout.of(arrays, 8, kinds)


def test_constant_and_silent_electrodes_are_dead():
    """Electrode 1 is constant, 2 too; 0 has 2 crossings in 20 ms, which is 100 a second."""
    (day,) = days_of(COUNTS)
    layout = Layout.of("2", 4, 1)
    assert day.dead_E(layout).tolist() == [False, True, True, False]
    # 100 and 150 crossings a second.
    assert day.dead_E(layout, dead_hz=120).tolist() == [True, True, True, False]
    # Not counts, so that no rate is theirs.
    (day,) = days_of(COUNTS + 0.5)
    assert day.dead_E(layout, dead_hz=120).tolist() == [False, True, True, False]


def test_levels_are_in_deviations_of_the_reference():
    """Electrode 0: mean 2, deviation 1; 3: mean 3, deviation 1. Later 2.5 +- 2 and 4 +- 1."""
    later = np.array([[0.5, 3, 0, 3], [4.5, 3, 0, 5]])
    first, second = days_of(COUNTS, later)
    layout = Layout.of("2", 4, 1)
    found = Reference([first], layout).levels(second.moments, second.dead_E(layout))
    assert found.shift_A == pytest.approx([0.5, 1.0])
    assert found.moved_A == pytest.approx([0.5, 1.0])
    assert found.spread_A == pytest.approx([1.0, 0.0])


def test_artefact_of_one_electrode_is_no_change_of_its_array():
    """Of 3 electrodes two move by 0 and 0.5 of a deviation of 1, and one by far more."""
    first = np.array([[1.0, 1, 1], [3, 3, 3]])
    later = np.array([[1.0, 1.5, 1], [3, 3.5, 1e20]])
    days = days_of(first + 0.25, later + 0.25)
    layout = Layout.of("1", 3, 1)
    levels = Reference(days[:1], layout).levels(days[1].moments, days[1].dead_E(layout))
    assert levels.shift_A == pytest.approx([0.5])
    assert levels.moved_A == pytest.approx([0.5])
    assert levels.spread_A == pytest.approx([0.0])


def test_days_are_joined_of_their_blocks():
    x = [("d.2026.01.01", "1", COUNTS[:1]), ("d.2026.01.01", "2", COUNTS[1:])]
    (day,) = collect(iter(x), 20)
    assert [block.name for block in day.blocks] == ["1", "2"]
    assert day.moments.mean_C == pytest.approx([2, 3, 0, 3])
    assert day.moments.std_C == pytest.approx([1, 0, 0, 1])


def found(values, floor=0.2):
    return [(c.day, c.last, c.before, c.value) for c in find_changes(values, "shift", floor)]


def test_change_that_lasts_is_told_once():
    assert found([0, 0, 0, 0, 1, 1, 1.1, 1, 1]) == [(4, None, 0, 1)]


def test_change_of_one_day_is_told_as_such_and_forgotten():
    assert found([0, 0, 0, 1, 0, 0.1, 0]) == [(3, 3, 0, 1)]


def test_last_day_is_found_without_a_later_one():
    assert found([0, 0, 0, 0, -1]) == [(4, None, 0, -1)]


def test_days_without_a_value_are_passed_over():
    assert found([0, 0, np.nan, 0, np.nan, 1, np.nan, 1]) == [(5, None, 0, 1)]


def test_change_must_exceed_the_floor_and_four_times_the_usual():
    assert found([0, 0, 0, 0.19]) == []
    # All medians are 0 and all distances 0.15: four times the usual is 4 * 1.4826 * 0.15 = 0.89.
    restless = [0, 0, 0, 0.15, -0.15, 0.15, -0.15]
    assert found([*restless, 0.85]) == []
    assert found([*restless, 0.95]) == [(7, None, 0, 0.95)]


def test_three_days_come_first():
    assert found([0, 5, 0]) == []


def test_silence_is_a_gap_of_twice_the_usual():
    days = [date(2026, 1, n) for n in (1, 3, 5, 7, 15, 30)]
    # Gaps of 1, 1, 1, 7 and 14 days.
    assert [(gap.day, gap.value) for gap in find_gaps(days)] == [(4, 7), (5, 14)]
    assert find_gaps(days[:4]) == []
    assert find_gaps([None, None]) == []


def write_days(root: Path, n_days: int = 7, change=lambda day, x_TC: x_TC) -> Path:
    """Days of 2 arrays with 4 electrodes of two features each, raw; `change` edits a day."""
    raw = Conventions(features="raw")
    raw.write(root)
    for day in range(n_days):
        rng = np.random.default_rng(day)
        counts = rng.poisson(2.0, (1000, 8))
        x_TC = np.concatenate([counts, rng.normal(5.0, 1.0, (1000, 8))], axis=1)
        x_TC = change(day, x_TC)
        trials = [make_trial(x_TC, session(day), 1, 0, "good morning", conventions=raw)]
        write_session(root / session(day) / "data_train.hdf5", trials)
    return root


def lose_second_array(day, x_TC):
    if day == 5:
        x_TC[:, 4:8] = 0
        x_TC[:, 12:] = 1.5
    return x_TC


def raise_first_array(day, x_TC):
    if day >= 5:
        x_TC[:, 8:12] += 1.0  # power of deviation 1; crossings stay: 0.5 on average
    return x_TC


def told(root, *options):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert run(["report", "drift", str(root), "--arrays", "2", "--json", *options]) == 0
    return json.loads(out.getvalue())


def test_lost_array_is_named_with_its_day(tmp_path):
    result = told(write_days(tmp_path, change=lose_second_array))
    assert result["changes"] == [
        "On 2026-01-06 (recording day 6) alone, 4 of 4 electrodes of array 2 are dead, after 0."
    ]
    assert result["alerts"] == []
    assert result["days"][5]["arrays"]["array 2"]["died"] == [4, 5, 6, 7]
    assert result["days"][6]["arrays"]["array 2"]["new"] == [4, 5, 6, 7]
    assert result["days"][5]["arrays"]["array 2"]["shift"] is None
    assert result["reference"] == [session(n) for n in range(5)]


def test_table_counts_electrodes_that_are_dead_and_that_are_back(tmp_path, capsys):
    root = write_days(tmp_path, change=lose_second_array)
    assert run(["report", "drift", str(root), "--arrays", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    found = [line.split("│")[4:6] for line in lines if line.startswith("│")]
    assert [[int(cell) for cell in row] for row in found] == [[0, 0]] * 5 + [[4, 0], [0, 4]]


def test_higher_mean_is_told_since_its_day_and_written_beside_a_picture(tmp_path, capsys):
    root = write_days(tmp_path / "data", change=raise_first_array)
    options = ["--arrays", "2", "--out", str(tmp_path / "out")]
    assert run(["report", "drift", str(root), *options]) == 0
    line = (
        "Since 2026-01-06 (recording day 6), the means of array 1 lie 0.5 standard deviations"
        " higher than on the days before."
    )
    assert line in capsys.readouterr().out
    assert json.loads((tmp_path / "out/drift.json").read_text())["changes"] == [line]
    assert (tmp_path / "out/drift.png").read_bytes().startswith(b"\x89PNG")


def test_z_scored_recordings_are_said_to_hide_drift(tmp_path):
    rng = np.random.default_rng(0)
    for day in range(3):
        x_TC = rng.normal(size=(4000, 16))
        write_session(
            tmp_path / session(day) / "data_train.hdf5",
            [make_trial(x_TC, session(day), 1, 0, "good morning")],
        )
    result = told(tmp_path)
    assert result["changes"] == []
    assert any("z-scores" in note for note in result["notes"])


def test_newest_day_fails_where_asked_and_only_then(tmp_path, capsys):
    root = write_days(tmp_path, 6, lose_second_array)
    arguments = ["report", "drift", str(root), "--arrays", "2"]
    assert run(arguments) == 0
    assert run([*arguments, "--fail"]) == 3
    # A share cannot change by more than 1.
    assert run([*arguments, "--fail", "--min-dead", "1"]) == 0
    write_days(tmp_path, 7, lose_second_array)
    assert run([*arguments, "--fail"]) == 0


class Hook(http.server.BaseHTTPRequestHandler):
    """Keeps what is posted and answers with the server's status."""

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.got.append((self.path, json.loads(body)))
        self.send_response(self.server.status)
        self.send_header("Location", "/elsewhere")
        self.end_headers()

    do_GET = do_POST

    def log_message(self, *_):
        pass


@pytest.fixture
def hook():
    server = http.server.HTTPServer(("127.0.0.1", 0), Hook)
    server.got, server.status = [], 204
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("status", [204, 302, 500])
def test_alert_is_posted_once_and_a_failing_hook_is_one_line(
    tmp_path, hook, status, capsys, caplog
):
    hook.status = status
    root = write_days(tmp_path, 6, lose_second_array)
    url = f"http://127.0.0.1:{hook.server_port}/alert"
    assert run(["report", "drift", str(root), "--arrays", "2", "--hook", url]) == 0
    line = "Since 2026-01-06 (recording day 6), 4 of 4 electrodes of array 2 are dead, after 0."
    assert hook.got == [("/alert", {"source": str(root), "alerts": [line]})]
    assert [record.getMessage() for record in caplog.records] == [f"{root}: {line}"]
    notes = [text for text in capsys.readouterr().err.splitlines() if "web hook" in text]
    expected = f"note: the web hook answered {status}; the alert was not taken"
    assert notes == ([] if status == 204 else [expected])


def test_hook_that_nobody_serves_is_one_line(tmp_path, capsys):
    root = write_days(tmp_path, 6, lose_second_array)
    hook = "http://127.0.0.1:9/"
    assert run(["report", "drift", str(root), "--arrays", "2", "--hook", hook]) == 0
    assert "note: the web hook cannot be reached" in capsys.readouterr().err


@pytest.mark.parametrize(
    "url",
    [
        "http://10.0.0.1:80/",
        "http://localhost:80/",
        "https://127.0.0.1:80/",
        "http://127.0.0.1/",
        "http://a@127.0.0.1:80/",
        "http://127.0.0.1.example:80/",
        "http://[::1:80/",
        "file:///etc/passwd",
        "",
    ],
)
def test_hooks_elsewhere_are_refused(url):
    with pytest.raises(ConfigError, match="--hook"):
        check_hook(url)


def test_log_gives_corrections_confidence_models_and_features(tmp_path):
    result = told(write_log(tmp_path, confidence=0.8, model="7-abcd"))
    assert [day["use"]["corrected"] for day in result["days"]] == [0, 0, 0, 0, 1]
    assert result["days"][0]["use"]["confidence"] == pytest.approx(0.8)
    assert result["days"][0]["use"]["models"] == {"7-abcd": 10}
    assert result["days"][0]["arrays"]["array 1"]["electrodes"] == 4
    # One stretch of use: pauses of 58 seconds.
    (block,) = result["days"][0]["blocks"]
    assert (block["block"], block["bins"]) == ("2026-01-01T10:00:00+00:00", 1000)
    line = (
        "Since 2026-01-05 (recording day 5), the share of corrected sentences is 100 %, after 0 %."
    )
    assert result["changes"] == result["alerts"] == [line]


def test_log_without_features_says_how_to_keep_them(tmp_path):
    result = told(write_log(tmp_path, features=False))
    assert result["arrays"] == []
    assert len(result["changes"]) == 1
    notes = " ".join(result["notes"])
    for part in ("--record-all", "no confidence", "--chain"):
        assert part in notes


def test_damaged_features_are_named_or_left_out(tmp_path, capsys):
    root = write_log(tmp_path)
    (path,) = root.glob("heard/*-12.safetensors")
    path.write_bytes(b"\xff" * 50)
    line = complaint(capsys, "report", "drift", str(root))
    assert str(path) in line
    assert "--skip-bad" in line
    result = told(root, "--skip-bad")
    assert [day["use"]["damaged"] for day in result["days"]] == [0, 1, 0, 0, 0]
    assert "left out: damaged features of 1 utterances" in result["notes"]


def test_damaged_day_is_named_or_left_out(tmp_path, capsys):
    root = write_days(tmp_path)
    path = root / session(3) / "data_train.hdf5"
    path.write_bytes(b"no HDF5")
    assert str(path) in complaint(capsys, "report", "drift", str(root))
    result = told(root, "--skip-bad")
    assert [day["session"] for day in result["days"]] == [session(n) for n in (0, 1, 2, 4, 5, 6)]
    assert any(str(path) in note for note in result["notes"])


@pytest.mark.parametrize("name", ["none", "empty"])
def test_folder_without_recordings_is_one_line(tmp_path, capsys, name):
    (tmp_path / "empty").mkdir()
    line = complaint(capsys, "report", "drift", str(tmp_path / name))
    assert str(tmp_path / name) in line
    assert "usage log" in line


def test_model_that_spoke_comes_from_the_chain(tmp_path):
    """Model 1 speaks from 3 January 12:00 on, so on days 4 and 5; the log names no model."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "model.json").write_text("{}")
    times = iter(f"2026-01-{day}T12:00:00+00:00" for day in ("01", "02", "03"))
    chain = tmp_path / "chain"

    def now():
        return datetime.fromisoformat(next(times))

    with open_chain(chain, tmp_path / "run", now=now) as opened:
        write = (tmp_path / "run" / "model.json").read_bytes()
        opened.add_model("candidate", lambda made: (made / "a").write_bytes(write), parent=0)
        opened.add("promoted", model=1)
    result = told(write_log(tmp_path / "log", features=False), "--chain", str(chain))
    spoke = [{name.split("-")[0] for name in day["use"]["models"]} for day in result["days"]]
    assert spoke == [{"before it"}, {"0"}, {"0"}, {"1"}, {"1"}]


def test_chain_needs_a_log(tmp_path, capsys):
    root = write_days(tmp_path / "data")
    assert "chain" in complaint(capsys, "report", "drift", str(root), "--chain", str(tmp_path))


@pytest.mark.slow
def test_events_of_simulated_months_are_found_on_their_days(tmp_path):
    root = tmp_path / "months"
    simulate(root, "months", seed=3, truth=True, overrides=["train_per_day=40", "val_per_day=4"])
    report = drift_report(read_source(root), arrays="ventral 6v,area 4,55b,dorsal 6v")
    before, expected = set(), set()
    for day, each in enumerate(report.days):
        with h5py.File(root / each.session / "truth.hdf5") as file:
            names = {str(name) for name in file.attrs["events"]}
            alive_E = file["electrodes/alive_E"][:]
        expected |= {day for _ in names - before}
        before = {name for name in names if name.startswith("other")}
        for number, array in enumerate(each.arrays.values()):
            assert array["dead"] == (~alive_E[16 * number : 16 * number + 16]).sum()
    assert {change.day for change in report.changes if change.kind != "gap"} == expected
    assert len(expected) == 3
    assert sum(change.kind == "gap" for change in report.changes) == 1
