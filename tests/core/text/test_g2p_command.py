"""A program of the user's own that pronounces words."""

import time
from pathlib import Path

import pytest

from cortext.errors import TextError
from cortext.text import Inventory, g2p_command
from cortext.text.g2p_command import run_g2p

LETTERS = Inventory("letters", ("BLANK", "SIL", "a", "b", "c"))


def test_lines_are_pronunciations_and_words_may_be_missing():
    command = (
        r"""sh -c 'while read w; do printf "$w\ta b SIL\n$w\tc\n"; break; done; echo "ca	"'"""
    )
    found = run_g2p(command, ["ab", "ca", "ab", "bb"], LETTERS)
    assert list(found) == ["ab"]
    assert found.pronunciations("ab") == (("a", "b"), ("c",))


def test_every_word_is_given_once_without_a_shell(tmp_path):
    given = tmp_path / "given"
    found = run_g2p(f"sed -n 's/.*/&\\ta/; w {given}\n p'", ["á", "b", "á", "$(c)"], LETTERS)
    assert list(found) == ["á", "b", "$(c)"]
    assert given.read_text() == "á\ta\nb\ta\n$(c)\ta\n"


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("false", "ended with status 1: no message"),
        ("sh -c 'echo one >&2; echo no model >&2; exit 3'", "ended with status 3: no model"),
        ("sh -c 'kill -9 $$'", "ended with status -9"),
        ("no-such-program", "cannot be started: No such file"),
        ("/", "cannot be started: "),
        ("", "is empty; name a program"),
        ("'", "cannot be split into arguments"),
        ("cat", r"writes 'ab' as line 1; a line is 'word<TAB>P1 P2 ...'"),
        (r"printf 'zz\ta\n'", "writes 'zz.*a' as line 1"),
        (r"printf '\nab\ta x\n'", "line 2, 'ab': unknown phoneme 'x'"),
        (r"printf 'ab\ta SIL a\n'", "line 1, 'ab': unknown phoneme 'SIL'"),
        (r"printf 'ab\t\377\n'", "writes no UTF-8"),
        ("yes", "writes more than 100,000 bytes"),
        ("sleep 60", "has not ended after 0 seconds"),
        ("sh -c 'sleep 60 & wait'", "has not ended after 0 seconds"),
    ],
)
def test_a_program_that_fails_is_one_line(monkeypatch, command, said):
    monkeypatch.setattr(g2p_command, "MOST_BYTES", 100_000)
    monkeypatch.setattr(g2p_command, "LEAST_S", 0.2 if "sleep" in command else 30)
    start_s = time.monotonic()
    with pytest.raises(TextError, match=said) as caught:
        run_g2p(command, ["ab"], LETTERS)
    assert "\n" not in str(caught.value)
    assert time.monotonic() - start_s < 30


def test_what_a_program_started_ends_with_it(monkeypatch, tmp_path):
    monkeypatch.setattr(g2p_command, "LEAST_S", 0.3)
    pid = tmp_path / "pid"
    with pytest.raises(TextError, match="has not ended"):
        run_g2p(f"sh -c 'sleep 60 & echo $! > {pid}; wait'", ["ab"], LETTERS)
    child = int(pid.read_text())
    deadline_s = time.monotonic() + 20
    while time.monotonic() < deadline_s and _lives(child):
        time.sleep(0.01)
    assert not _lives(child)


def _lives(pid):
    """Whether a process runs; one that nobody waits for is dead."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"
