"""A program that gets each final sentence, and what it cannot do to decoding."""

import os
import shlex
import sys
import time
from pathlib import Path

import pytest
from serving import make_session, serving, wait_until

from cortext.errors import ConfigError
from cortext_live.core.on_final import MOST_WAITING, FinalCommand

COPY = "import sys; open(sys.argv[1], 'ab').write(sys.stdin.buffer.read())"
FORK = """
import os, sys, time
if os.fork():
    open(sys.argv[1], "a").write(f"{os.getpid()}\\n")
else:
    open(sys.argv[1], "a").write(f"{os.getpid()}\\n")
time.sleep(60)
"""


def python(code, *arguments):
    return shlex.join([sys.executable, "-c", code, *map(str, arguments)])


@pytest.fixture
def command():
    made = []

    def make(*arguments, **settings):
        made.append(FinalCommand(*arguments, **settings))
        return made[-1]

    yield make
    for each in made:
        each.close()


def nothing_fails(problem):
    raise AssertionError(problem)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("""it's "so" $(touch pwned); `id` && \\n""", None),
        ("d\u00e9j\u00e0 vu", None),
        ("two\nlines", "two lines"),
        ("a" * 100_000, None),
    ],
)
def test_text_is_a_line_on_standard_input_and_nothing_else(command, tmp_path, text, line):
    out = tmp_path / "out"
    command(python(COPY, out)).put(text, nothing_fails)
    expected = f"{line or text}\n".encode()
    wait_until(lambda: out.exists() and out.read_bytes() == expected, "the text")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_sentences_come_in_order(command, tmp_path):
    out = tmp_path / "out"
    ours = command(python(COPY, out))
    for word in ("one", "two", "three"):
        ours.put(word, nothing_fails)
    wait_until(lambda: out.exists() and out.read_bytes().count(b"\n") == 3, "three lines")
    assert out.read_text() == "one\ntwo\nthree\n"


@pytest.mark.parametrize(
    "code",
    ["pass", "print('x' * 5_000_000)", "import sys; sys.stdin.close()"],
    ids=["reads nothing", "prints megabytes", "closes its input"],
)
def test_program_may_read_nothing_and_print_anything(command, tmp_path, code):
    problems = []
    ours = command(python(f"{code}\nopen({str(tmp_path / 'done')!r}, 'w')"))
    ours.put("x" * 1_000_000, problems.append)
    wait_until((tmp_path / "done").exists, "the program's end")
    ours.close()
    assert problems == []


def test_program_that_takes_too_long_is_killed_with_what_it_started(command, tmp_path):
    pids, problems = tmp_path / "pids", []
    command(python(FORK, pids), timeout_s=3.0).put("hello", problems.append)
    wait_until(lambda: bool(problems), "the timeout")
    assert problems == [f"--on-final: {sys.executable} took longer than 3 s"]
    started = list(map(int, pids.read_text().split()))
    assert len(started) == 2
    wait_until(lambda: not any(map(runs, started)), "the end of both processes")


def runs(pid):
    """Tell whether a process runs; one that has ended may wait for its parent."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_failure_is_a_line(command):
    problems = []
    command(python("raise SystemExit(3)")).put("hello", problems.append)
    wait_until(lambda: bool(problems), "the failure")
    assert problems == [f"--on-final: {sys.executable} ended with status 3"]


def test_oldest_sentences_are_dropped_where_the_program_is_too_slow(command, tmp_path):
    problems, begun = [], tmp_path / "begun"
    ours = command(python(f"import time; open({str(begun)!r}, 'w'); time.sleep(60)"))
    ours.put("first", problems.append)
    wait_until(begun.exists, "the program")
    for number in range(MOST_WAITING + 2):
        ours.put(str(number), lambda problem, number=number: problems.append((number, problem)))
    slow = f"--on-final: {sys.executable} is too slow: a sentence was not handed over"
    assert problems == [(0, slow), (1, slow)]
    began_s = time.monotonic()
    ours.close()
    assert time.monotonic() - began_s < 5


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "no program ''"),
        ("no-such-program --loud", "no program 'no-such-program'"),
        ("say 'hello", "close the quote"),
        (os.devnull, "that can be run"),
    ],
)
def test_command_that_cannot_run_is_refused_in_a_line(text, what):
    with pytest.raises(ConfigError, match=what) as caught:
        FinalCommand(text)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("timeout_s", [0, -1, float("inf"), float("nan")])
def test_time_must_be_limited(timeout_s):
    with pytest.raises(ConfigError, match="on-final-timeout"):
        FinalCommand(python("pass"), timeout_s)


def test_each_sentence_of_the_page_is_handed_over(page_root, command, tmp_path):
    out = tmp_path / "out"
    session = make_session(page_root, on_final=command(python(COPY, out)))
    with serving(session) as served, served.page() as page:
        served.post("start", {"trial": 0})
        text = page.next("utterance")["shown"]
        assert text == "I see you."
        wait_until(lambda: out.exists() and out.read_text() == f"{text}\n", "the sentence")


def test_program_that_sleeps_or_fails_holds_up_no_sentence(page_root, command):
    session = make_session(page_root, on_final=command(python("import time; time.sleep(60)")))
    with serving(session) as served, served.page() as page:
        for trial in (0, 1):
            served.post("start", {"trial": trial})
            assert page.next("utterance")["text"]
    session = make_session(page_root, on_final=command(python("raise SystemExit(1)")))
    with serving(session) as served, served.page() as page:
        served.post("start", {"trial": 0})
        assert page.next("utterance")["text"]
        assert page.next("error")["what"].endswith("ended with status 1")
