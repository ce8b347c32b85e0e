"""Daily use: every number here was worked out by hand."""

import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
from attack_process import check_all

from cortext.cli import run as cortext
from cortext_live.usage.log import read_log
from cortext_live.usage.log_entries import spoken
from cortext_live.usage.statistics import read_use

MORNING = "2026-11-20T10:{:02d}:{:02d}-08:00"


def said(id_: str, when: str, text: str, duration_s: float = 6.0, **more) -> dict:
    return {
        "id": id_,
        "when": when,
        "session": "s",
        "duration_s": duration_s,
        "text": text,
        "source": "feed",
    } | more


def about(id_: str, **what: str) -> dict:
    return {"id": id_, "when": "2026-11-20T12:00:00-08:00"} | what


def write(folder: Path, *lines: dict | str) -> Path:
    folder.mkdir(exist_ok=True)
    text = "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    (folder / "utterances.jsonl").write_text(text)
    return folder


@pytest.fixture
def two_days(tmp_path):
    """Two days: three utterances on the first, two on the second, of which one has no words."""
    return write(
        tmp_path / "log",
        said("a", MORNING.format(0, 6), "i see you"),  # 10:00:00 to 10:00:06, 30 words a minute
        about("a", rating="right"),
        said("b", MORNING.format(1, 0), "you see", 4.0),  # 10:00:56 to 10:01:00, 30 words a minute
        about("b", rating="wrong"),
        about("b", rating="mostly right"),  # she thought again
        about("b", correction="You see me!"),
        # 60 - 8 s after a pause of more than five minutes.
        said("c", MORNING.format(31, 0), "we see you two", 8.0),
        about("c", correction="We see ewe 2"),
        said("d", "2026-11-21T09:00:12-08:00", "me and you and me", 12.0),  # 25 words a minute
        about("d", rating="wrong"),
        said("e", "2026-11-21T09:00:20-08:00", "", 2.0),
        about("e", rating="right"),
    )


def test_numbers_of_two_days(two_days):
    use = read_use([two_days])
    first, second = use.days
    assert (first.date, second.date) == ("2026-11-20", "2026-11-21")

    assert (first.tally.utterances, first.tally.sentences, first.tally.words) == (3, 3, 9)
    assert first.tally.spoken_hours == pytest.approx((6 + 4 + 8) / 3600)
    # a, the pause to b, b, and c alone.
    assert first.tally.use_hours == pytest.approx((6 + 50 + 4 + 8) / 3600)
    assert first.tally.ratings == {"right": 1, "mostly right": 1, "wrong": 0}
    assert (first.tally.rated, first.tally.share("right"), first.tally.share("wrong")) == (
        2,
        0.5,
        0.0,
    )
    assert first.tally.words_per_minute == pytest.approx(9 / (18 / 60))
    assert first.tally.words_per_minute_quartiles == pytest.approx((30, 30, 30))
    assert first.tally.corrected == 2
    # `me` is missing; `you` for `ewe`; 2 is `two`.
    assert first.tally.wer == pytest.approx((1 + 1) / (3 + 4))
    assert first.tally.confirmed == 1
    assert first.tally.wer_with_confirmed == pytest.approx(2 / (3 + 4 + 3))

    assert (second.tally.utterances, second.tally.sentences, second.tally.words) == (2, 1, 5)
    assert second.tally.use_hours == pytest.approx((12 + 6 + 2) / 3600)
    assert second.tally.words_per_minute == pytest.approx(25)
    assert second.tally.ratings == {"right": 1, "mostly right": 0, "wrong": 1}
    assert (second.tally.wer, second.tally.wer_ci95, second.tally.wer_with_confirmed) == (
        None,
        None,
        None,
    )
    # Silence that was rated right has no words to be free of errors.
    assert second.tally.confirmed == 0

    assert second.use_hours_so_far == pytest.approx((68 + 20) / 3600)
    assert second.spoken_hours_so_far == pytest.approx((18 + 14) / 3600)
    assert (first.sentences_so_far, second.sentences_so_far) == (3, 4)
    assert use.overall.words_per_minute == pytest.approx(14 / (30 / 60))
    # Of 25, 30, 30, 30.
    assert use.overall.words_per_minute_quartiles == pytest.approx((28.75, 30, 30))
    assert use.overall.share("right") == pytest.approx(2 / 4)
    low, high = use.overall.wer_ci95
    assert low == pytest.approx(1 / 4)  # whichever of the two utterances are drawn: 1/4, 2/7 or 1/3
    assert high == pytest.approx(1 / 3)
    assert use.sources == {"feed": 5}


def test_one_correction_has_a_rate_and_no_interval(tmp_path):
    log = write(
        tmp_path / "log",
        said("a", MORNING.format(0, 0), "i saw you"),
        about("a", correction="I see you"),
    )
    overall = read_use([log]).overall
    assert overall.wer == pytest.approx(1 / 3)
    assert overall.wer_ci95 is None


def test_midnight_parts_the_days_of_the_place_wherever_the_report_is_made(tmp_path, monkeypatch):
    """Seconds apart, but on either side of midnight in California, which is 8:00 in Greenwich."""
    log = write(
        tmp_path / "log",
        said("a", "2026-11-20T23:59:58-08:00", "i see you", 3.0),
        said("b", "2026-11-21T00:00:04-08:00", "you see me", 4.0),  # begins at midnight
        said("c", "2026-11-21T08:00:20+00:00", "we see me", 4.0),  # written in UTC, 12 s later
    )
    for zone in ("UTC", "Asia/Tokyo"):
        with monkeypatch.context() as patch:
            patch.setenv("TZ", zone)
            time.tzset()
            days = read_use([log]).days
        time.tzset()
        assert [(day.date, day.tally.sentences) for day in days] == [
            ("2026-11-20", 1),
            ("2026-11-21", 2),
        ]
        # Pauses count for what they lead to.
        assert days[1].tally.use_hours == pytest.approx((2 + 4 + 12 + 4) / 3600)


def test_an_hour_that_comes_twice_in_autumn_is_not_negative_use(tmp_path):
    """1:59 in summer time, then 1:00 in winter time, 61 seconds later."""
    log = write(
        tmp_path / "log",
        said("b", "2026-11-01T01:00:00-08:00", "you see me", 6.0),
        said("a", "2026-11-01T01:58:59-07:00", "i see you", 6.0),
    )
    assert read_use([log]).overall.use_hours == pytest.approx((6 + 55 + 6) / 3600)


def test_utterances_that_overlap_count_for_what_they_last(tmp_path):
    """Recordings replayed faster than they were made: six seconds each, one second apart."""
    log = write(
        tmp_path / "log", *(said(str(i), MORNING.format(0, i), "i see you") for i in range(3))
    )
    assert read_use([log]).overall.use_hours == pytest.approx(18 / 3600)


def test_several_logs_are_added_and_one_given_twice_is_not(two_days, tmp_path):
    other = write(tmp_path / "other", said("a", "2026-11-19T10:00:00-08:00", "i see you"))
    use = read_use([two_days, other, tmp_path / "log" / ".." / "log"])
    assert [(day.date, day.sentences_so_far) for day in use.days] == [
        ("2026-11-19", 1),
        ("2026-11-20", 4),
        ("2026-11-21", 5),
    ]
    assert len(use.folders) == 2


def test_an_empty_log_is_a_page_without_numbers(tmp_path, capsys):
    log = write(tmp_path / "log")
    assert cortext(["report", "use", str(log), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["days"], found["overall"]["words_per_minute"], found["overall"]["use_hours"]) == (
        [],
        None,
        0,
    )
    assert "No utterance has been logged yet." in (log / "use.html").read_text()


def test_utterances_in_which_the_large_model_failed_are_counted(tmp_path, capsys):
    lines = [said(str(n), MORNING.format(0, n), "i see you") for n in range(3)]
    log = write(
        tmp_path / "log",
        lines[0] | {"degraded": "no memory"},
        lines[1],
        lines[2] | {"degraded": None},
    )
    assert cortext(["report", "use", str(log), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["overall"]["degraded"] == 1
    page = " ".join((log / "use.html").read_text().split())
    assert "1 utterance: the large language model failed" in page
    assert "no memory" not in page


def test_utterances_with_bad_features_are_counted(tmp_path, capsys):
    lines = [said(str(n), MORNING.format(0, n), "i see you") for n in range(3)]
    log = write(
        tmp_path / "log",
        lines[0] | {"features_notes": ["channel 7 is flat"]},
        lines[1] | {"features_notes": []},
        lines[2],
    )
    assert cortext(["report", "use", str(log), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["overall"]["bad_features"] == 1
    page = " ".join((log / "use.html").read_text().split())
    assert "1 utterance: a channel was bad, or values were far out." in page


@pytest.mark.parametrize("text", ["i see you", ""])
def test_one_utterance_that_nobody_rated_is_a_page(tmp_path, text):
    log = write(tmp_path / "log", said("a", MORNING.format(0, 0), text))
    assert cortext(["report", "use", str(log)]) == 0
    page = (log / "use.html").read_text()
    assert "No utterance has been rated." in page
    assert "no corrections" in page
    assert "NaN" not in page


def test_an_utterance_of_no_length_has_no_speed(tmp_path):
    log = write(tmp_path / "log", said("a", MORNING.format(0, 0), "i see you", 0))
    overall = read_use([log]).overall
    assert (overall.sentences, overall.words, overall.words_per_minute) == (1, 3, None)


DAMAGED = [
    ("\0\0\0", "it is no JSON"),
    ('{"id": "x", "when"', "it is no JSON"),
    ("[" * 100_000, "it has more than 64 levels"),
    ("7", "it is no JSON object"),
    (said("x", "2026-11-20T10:00:00", "a"), "a time without its offset from UTC"),
    (said("x", "0001-01-01T00:00:00+00:00", "a"), "which no clock shows"),
    (said("x", "yesterday", "a"), "when is 'yesterday' and not a time"),
    (said("x", MORNING.format(0, 0), "a", -1), "duration_s is -1"),
    (said("x", MORNING.format(0, 0), "a", float("nan")), "duration_s is nan"),
    (said("x", MORNING.format(0, 0), "a", True), "duration_s is True"),
    (said("x", MORNING.format(0, 0), 3), "text is 3 and not a text"),
    (about("x", rating="right"), "nothing above it has the id 'x'"),
    (about("a", rating="good"), "rating is 'good'"),
    (about("a", rating=["right"]), "rating is"),
    (about("a", correction="?!"), "the correction has no words"),
    (
        about("a", correction="5<6"),
        "the correction cannot be read: English does not read the sign <",
    ),
]


def test_a_damaged_line_is_passed_over_with_a_note(tmp_path):
    before, after = said("a", MORNING.format(0, 0), "i see you"), about("a", rating="right")

    def check(row):
        line, why = row
        log = write(tmp_path / "log", before, line, after)
        found = read_log(log)
        assert [(each.id, each.rating) for each in found.utterances.values()] == [("a", "right")]
        (note,) = found.notes
        assert note.startswith(f"{log}/utterances.jsonl: line 2 passed over: ")
        assert why in note

    check_all(DAMAGED, check)


def test_bytes_that_are_no_text_are_passed_over(tmp_path):
    log = write(tmp_path / "log", said("a", MORNING.format(0, 0), "i see you"))
    with (log / "utterances.jsonl").open("ab") as file:
        file.write(b"\xff\xfe{}\n")
        file.write(b'{"id": "b", "wh')  # a line that is being written
    found = read_log(log)
    assert len(found.entries) == 1
    whys = [note.split("line ")[1] for note in found.notes]
    assert whys == ["2 passed over: it is no JSON", "3 passed over: unfinished"]


def test_what_is_said_of_an_id_holds_for_the_last_utterance_above_that_has_it(tmp_path):
    log = write(
        tmp_path / "log",
        said("1", MORNING.format(0, 0), "one"),
        about("1", rating="right"),
        said("1", MORNING.format(5, 0), "two"),
        about("1", rating="wrong"),
    )
    assert [(entry.text, entry.rating) for entry in read_log(log).entries] == [
        ("one", "right"),
        ("two", "wrong"),
    ]


def test_typed_text_is_compared_as_it_is_spoken():
    assert spoken("It’s 5 past 3, Dr. O’Neill!") == "it's five past three doctor o'neill"
    assert spoken("One sentence. And another?") == "one sentence and another"


@pytest.mark.parametrize("where", ["nowhere", "."])
def test_a_place_without_a_log_is_refused_in_a_line(tmp_path, capsys, where):
    assert cortext(["report", "use", str(tmp_path / where)]) == 2
    error = capsys.readouterr().err
    assert (
        "utterances.jsonl: no log of use: No such file or directory; give a directory that a"
        " decoder wrote" in error
    )
    assert error.count("\n") == 1


def test_the_page_has_the_numbers_and_no_sentence(two_days, tmp_path, capsys):
    assert cortext(["report", "use", str(two_days), "--out", str(tmp_path / "page.html")]) == 0
    assert "2026-11-21" in capsys.readouterr().out
    page = (tmp_path / "page.html").read_text()
    assert not (two_days / "use.html").exists()
    for text in ("28.6", "25.0–33.3", "50.0 %", "1.5 min", "feed 5"):  # 88 s of use
        assert text in page, text
    for text in ("see you", "me and", "ewe"):
        assert text not in page.lower(), text
    assert not re.search(r"(src|href)=\"(?!#)|https?://|@import|<script|url\((?!#)", page)
    assert page.count("<svg") == 2
    assert not re.search(r"stroke: #0|fill: #0", page)  # every colour follows the reader's scheme
    assert "Simulated" not in page


def test_the_page_says_what_is_simulated(two_days, tmp_path):
    made_up = write(tmp_path / "other", said("a", MORNING.format(0, 0), "a b", source="simulated"))
    assert cortext(["report", "use", str(made_up), "--out", str(tmp_path / "all.html")]) == 0
    assert "Nobody said any of this" in (tmp_path / "all.html").read_text()
    assert (
        cortext(
            ["report", "use", str(made_up), str(two_days), "--out", str(tmp_path / "some.html")]
        )
        == 0
    )
    assert "1 of the 6 utterances come from a simulation" in (tmp_path / "some.html").read_text()


def test_what_a_decoder_is_called_cannot_change_the_page(tmp_path):
    log = write(
        tmp_path / "log", said("a", MORNING.format(0, 0), "a", source="<script>alert(1)</script>")
    )
    assert cortext(["report", "use", str(log)]) == 0
    assert "<script" not in (log / "use.html").read_text()


@pytest.mark.slow
def test_the_picture_in_the_docs_comes_from_a_log_that_can_be_made_again(tmp_path):
    tool = Path(__file__).resolve().parents[3] / "tools" / "simulate_use.py"
    for name in ("a", "b"):
        subprocess.run([sys.executable, tool, tmp_path / name], check=True, capture_output=True)
    assert (tmp_path / "a/utterances.jsonl").read_bytes() == (
        tmp_path / "b/utterances.jsonl"
    ).read_bytes()
    use = read_use([tmp_path / "a"])
    assert use.notes == ()
    assert use.sources == {"simulated": use.overall.utterances}


@pytest.mark.slow
def test_the_guide_works_as_written(tmp_path):
    guide = (Path(__file__).resolve().parents[3] / "docs/reference/usage-log.md").read_text()
    environment = os.environ | {
        "PATH": os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    }
    ran = {}
    for language, code in re.findall(
        r"^```(python|bash)\n(.*?)^```", guide, re.MULTILINE | re.DOTALL
    ):
        command = (
            [sys.executable, "-c", code]
            if language == "python"
            else ["bash", "-euo", "pipefail", "-c", code]
        )
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stderr
        ran[language] = done.stdout
    assert ran["python"] == "True 2 42.0 0.2\n"  # 7 words in 10 s; 1 of 5 words wrong
    assert "problems: none" in ran["bash"]
    assert (tmp_path / "use.html").is_file()
