"""The chain of models: what it says, what it survives, and what it notices."""

import shutil
import signal
import subprocess
import sys
import textwrap
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

import pytest

from cortext.cli import run as cortext
from cortext.errors import RunError
from cortext_live.recalibration.chain import (
    digest_of,
    model_folder,
    open_chain,
    read_chain,
    verify_chain,
)

START = datetime(2026, 3, 1, 9, tzinfo=UTC)


class Clock:
    """A clock that is set by hand."""

    def __init__(self):
        self.now = START

    def __call__(self):
        return self.now


def write_model(content):
    def write(folder):
        (folder / "model.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(content)

    return write


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    write_model(b"base")(folder)
    (folder / "checkpoints").mkdir()
    (folder / "checkpoints" / "large").write_bytes(b"not needed")
    return folder


@pytest.fixture
def made(run, tmp_path):
    """A chain with two candidates: the first promoted, the second speaking for a day."""
    clock = Clock()
    folder = tmp_path / "chain"
    with open_chain(folder, run, operator="me", now=clock) as chain:
        chain.add_model("candidate", write_model(b"one"), parent=0, learnt={"decoded": [0, 1]})
        chain.add("judged", model=1, upper=1.5)
        chain.add("promoted", model=1, upper=1.5)
        chain.add_model("candidate", write_model(b"two"), parent=1)
        chain.add("provisional", model=4, until=(START + timedelta(days=1)).isoformat())
    return folder


def test_what_speaks(made):
    contents = read_chain(made)
    assert [each.kind for each in contents.entries] == [
        "base", "candidate", "judged", "promoted", "candidate", "provisional",
    ]  # fmt: skip
    assert contents.parent == 1
    assert contents.speaking(START) == 4
    assert contents.speaking(START + timedelta(hours=23, minutes=59)) == 4
    assert contents.speaking(START + timedelta(days=1)) == 1
    assert contents.models == [0, 1, 4]
    assert contents.lineage(4) == [4, 1, 0]
    assert contents.of(1, "judged")[0].facts["upper"] == 1.5


def test_a_rejected_model_is_silent_at_once(made):
    with open_chain(made) as chain:
        chain.add("rejected", model=4, why="worse")
    assert read_chain(made).speaking(START) == 1


def test_a_rollback_gives_back_the_same_bits(made, run):
    with open_chain(made) as chain:
        chain.roll_back(0, "complaints", "me")
    contents = read_chain(made)
    assert (contents.speaking(START), contents.parent) == (0, 0)
    assert contents.entries[-1].facts == {
        "model": 0, "from": 1, "why": "complaints", "operator": "me",
    }  # fmt: skip
    folder = model_folder(made, 0)
    assert {each.name: each.read_bytes() for each in folder.iterdir()} == {
        "model.json": b"{}", "model.safetensors": b"base",
    }  # fmt: skip
    with open_chain(made) as chain:  # and forward again
        chain.roll_back(4, "it was better", "me")
    assert read_chain(made).speaking(START) == 4


def test_digest_by_hand(run):
    """SHA-256 of length of the name, size, name and content of each file, sorted by name."""
    shutil.rmtree(run / "checkpoints")
    text = "10 2 model.json{}" + "17 4 model.safetensorsbase"
    found = subprocess.run(["sha256sum"], input=text.encode(), capture_output=True, check=True)
    assert digest_of(run) == found.stdout.split()[0].decode()


def test_every_changed_byte_of_the_file_is_noticed(made):
    """A dash becomes a carriage return, which ends no line here."""
    path = made / "chain.jsonl"
    content = path.read_bytes()
    dashes = {place for place, byte in enumerate(content) if byte == ord("-")}
    for place in sorted({*range(0, len(content), 3), *dashes}):
        changed = bytes([content[place] ^ (0x20 if place in dashes else 0x01)])
        path.write_bytes(content[:place] + changed + content[place + 1 :])
        line = content[:place].count(b"\n") + 1
        with pytest.raises(RunError, match=f"line ({line}|{line + 1}) of the chain is damaged"):
            read_chain(made)


def test_removed_and_exchanged_lines_are_noticed(made):
    path = made / "chain.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    for wrong in (lines[1:], lines[:2] + lines[3:], [lines[0], lines[2], lines[1], *lines[3:]]):
        path.write_bytes(b"".join(wrong))
        with pytest.raises(RunError, match="damaged"):
            read_chain(made)


def test_an_entry_that_was_written_in_part_is_none(made):
    """Cut anywhere within its last line, the chain is that before it, and goes on."""
    path = made / "chain.jsonl"
    content = path.read_bytes()
    start = content[:-1].rindex(b"\n") + 1
    for cut in range(start, len(content)):
        path.write_bytes(content[:cut])
        assert len(read_chain(made).entries) == 5
    with open_chain(made) as chain:
        chain.add("rejected", model=4, why="worse")
    assert [each.kind for each in verify_chain(made).entries[-2:]] == ["candidate", "rejected"]


def test_a_damaged_or_missing_model_is_noticed(made):
    verify_chain(made)
    path = model_folder(made, 1) / "model.safetensors"
    path.write_bytes(b"onf")
    with pytest.raises(RunError, match="model 1 of the chain is damaged"):
        verify_chain(made)
    shutil.rmtree(model_folder(made, 1))
    with pytest.raises(RunError, match="model 1 of the chain is damaged or missing"):
        verify_chain(made)


def test_without_its_entries_no_model_is_removed(made, run):
    path = made / "chain.jsonl"
    for lose in (lambda: path.write_bytes(b""), path.unlink):
        lose()
        refused = pytest.raises(RunError, match=r"has models, but no entry.* restore it")
        with refused, open_chain(made, run):
            pass
        assert {each.name for each in (made / "models").iterdir()} == {"0", "1", "4"}


def test_a_second_writer_is_refused(made):
    refused = pytest.raises(RunError, match="another process writes this chain")
    with open_chain(made):
        assert read_chain(made).parent == 1  # readers are not
        with refused, open_chain(made):
            pass


def test_a_second_writer_may_wait(made):
    with ThreadPoolExecutor(1) as pool:
        with open_chain(made) as chain:
            rollback = pool.submit(cortext, ["chain", "rollback", str(made), "0"])
            time.sleep(0.3)
            chain.add("rejected", model=4, why="worse")
        assert rollback.result() == 0
    assert [each.kind for each in read_chain(made).entries[-2:]] == ["rejected", "rolled_back"]


def test_a_clock_that_was_ahead_lets_no_model_speak_for_a_year(run, tmp_path):
    clock, folder, year = Clock(), tmp_path / "chain", timedelta(days=365)
    with open_chain(folder, run, now=clock) as chain:
        clock.now += year
        chain.add_model("candidate", write_model(b"one"), parent=0)
        until = clock.now + timedelta(days=1)
        chain.add("provisional", model=1, until=until.isoformat())
        assert chain.contents.speaking(clock.now - timedelta(minutes=9)) == 1
        clock.now -= year
        assert chain.contents.speaking(clock.now) == 0
        assert chain.contents.lapsed(clock.now) == 1, "it is judged anew"
        clock.now += timedelta(hours=1)
        chain.add("judged", model=1)
    contents = read_chain(folder)
    assert contents.speaking(START + year + timedelta(hours=1)) == 0, "nor when that time comes"
    assert contents.provisional == contents.lapsed(START + year) == 1


def test_a_model_was_added_when_its_entry_says_unless_that_is_yet_to_come(run, tmp_path):
    clock, hour = Clock(), timedelta(hours=1)
    with open_chain(tmp_path / "chain", run, now=clock) as chain:
        clock.now = START + 2 * hour
        chain.add_model("candidate", write_model(b"one"), parent=0)
        assert chain.contents.added_at(1) == START + 2 * hour
        clock.now = datetime(1970, 1, 1, tzinfo=UTC)  # for one entry, as without a battery
        chain.add("judged", model=1)
        clock.now = START + 3 * hour
        chain.add("judged", model=1)
        assert chain.contents.added_at(0) == START
        assert chain.contents.added_at(1) == START + 2 * hour
        clock.now = START + 9 * hour
        chain.add_model("candidate", write_model(b"two"), parent=0)
        for hours in (4, 5):  # the clock was ahead
            clock.now = START + hours * hour
            chain.add("judged", model=4)
        assert chain.contents.added_at(4) == START + 4 * hour


@pytest.mark.parametrize(
    ("kind", "facts", "what"),
    [
        ("promoted", {"model": 9}, "model 9, which the chain does not have"),
        ("candidate", {"parent": 0}, "no digest"),
        ("base", {"digest": "ab"}, "has one"),
        ("praised", {"model": 1}, "unknown"),
        ("provisional", {"model": 1, "until": "tomorrow"}, "Invalid isoformat"),
        ("removed", {"model": 1}, "cannot be removed"),
        ("removed", {"model": 4}, "cannot be removed"),
    ],
)
def test_entries_that_cannot_follow(made, kind, facts, what):
    before = (made / "chain.jsonl").read_bytes()
    with open_chain(made, now=Clock()) as chain, pytest.raises(RunError, match=what):
        chain.add(kind, **facts)
    assert (made / "chain.jsonl").read_bytes() == before


def test_a_model_that_nobody_needs_is_removed(made):
    with open_chain(made) as chain:
        chain.remove(0)
        with pytest.raises(RunError, match="the chain has no model 0; give one of 1, 4"):
            chain.roll_back(0, "", "me")
    assert not model_folder(made, 0).exists()
    assert verify_chain(made).models == [1, 4]


def test_no_chain(tmp_path, run):
    for folder in (tmp_path / "missing", run):
        with pytest.raises(RunError, match="no chain of use"):
            read_chain(folder)
        with pytest.raises(RunError, match="no chain of use"), open_chain(folder):
            pass
    with (
        pytest.raises(RunError, match="no run directory"),
        open_chain(tmp_path / "new", tmp_path / "x"),
    ):
        pass
    with open_chain(tmp_path / "new", run) as chain:  # what failed is no obstacle
        assert chain.contents.parent == 0


def test_a_full_disk_leaves_the_chain_as_it_was(made):
    """A limit on the size of files stands for the disk."""
    before = (made / "chain.jsonl").read_bytes()
    script = """
        import resource, signal, sys
        from cortext.errors import CortextError
        from cortext_live.recalibration.chain import open_chain

        def write(folder):
            (folder / "model.safetensors").write_bytes(bytes(100_000))

        with open_chain(sys.argv[1]) as chain:
            (chain.folder / "reserve").unlink()  # with it a decision could be written
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            size = int(sys.argv[2])
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))
            for work in (
                lambda: chain.add("rejected", model=4, why="x" * 1000),
                lambda: chain.add_model("candidate", write, parent=1),
            ):
                try:
                    work()
                except CortextError as error:
                    print(error)
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY,) * 2)
            chain.add("judged", model=4)
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), made, str(len(before) + 100)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.count("\n") == 2, done.stdout + done.stderr
    contents = verify_chain(made)
    assert (made / "chain.jsonl").read_bytes().startswith(before)
    assert [each.kind for each in contents.entries[6:]] == ["judged"]


KILLED = """
    import os, signal, sys
    from cortext_live.recalibration.chain import open_chain

    left = int(sys.argv[2])

    def count(event, arguments):
        global left
        if event in ("open", "os.rename", "os.mkdir", "os.truncate", "shutil.copyfile"):
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    def write(folder):
        (folder / "model.json").write_text("{}")
        (folder / "model.safetensors").write_bytes(b"three")

    sys.addaudithook(count)
    with open_chain(sys.argv[1]) as chain:
        entry = chain.add_model("candidate", write, parent=1)
        chain.add("promoted", model=entry.number, upper=0.5)
    print("done")
"""


def test_killed_at_any_call_of_the_system(made, tmp_path):
    """Whatever is left is the chain before, with the candidate, or with both entries."""
    found = set()
    for left in range(200):
        copy = tmp_path / "copy"
        shutil.copytree(made, copy)
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(KILLED), copy, str(left)], capture_output=True
        )
        assert done.returncode in (0, -signal.SIGKILL), done.stderr
        with open_chain(copy) as chain:
            found.add(len(chain.contents.entries))
            names = {each.name for each in (copy / "models").iterdir()}
            assert names == set(map(str, chain.contents.models))
            chain.add("rejected", model=4, why="worse")
        verify_chain(copy)
        shutil.rmtree(copy)
        if done.returncode == 0:
            break
    assert found == {6, 7, 8}


def test_only_the_owner_may_read_it(made):
    for path in (made, made / "chain.jsonl"):
        assert path.stat().st_mode & 0o077 == 0
