"""Commands that other packages join to the command line."""

import os
import subprocess
import sys
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from cortext import entry_points
from cortext.cli.tree import COMMANDS, Group, all_commands
from cortext.errors import MissingLibrary

TREE = """
from cortext.cli.tree import Group

COMMANDS = {
    "Live": {"hum": "strange_lab.hum"},
    "Of a lab": {"whistle": "strange_lab.hum"},
    "Data": {"inspect": "strange_lab.hum", "train": "strange_lab.hum"},
    "Language models": {
        "lm": Group("Of others.", {"sing": "strange_lab.hum", "build": "strange_lab.hum"})
    },
}


def hum() -> None:
    '''Hum a tune.'''
    print("hmmm")
"""


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder for other people's packages, which has none yet."""
    return tmp_path / "packages"


def install(packages: Path, name: str, entries: str, code: str) -> None:
    """Write a package and what `pip install` writes beside it."""
    facts = packages / f"{name}-1.0.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(f"[cortext.commands]\n{entries}\n")
    (packages / f"{name}.py").write_text(code)


def cortext(packages: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `cortext` in a process that finds these packages, too."""
    return subprocess.run(
        [sys.executable, "-c", "from cortext.cli import main; main()", *arguments],
        env=os.environ | {"PYTHONPATH": str(packages)},
        capture_output=True,
        text=True,
    )


def test_a_package_joins_commands_and_adds_to_a_group(packages):
    install(packages, "strange_lab", "lab = strange_lab:COMMANDS", TREE)
    for command in (["hum"], ["whistle"], ["lm", "sing"]):
        done = cortext(packages, *command)
        assert (done.returncode, done.stdout, done.stderr) == (0, "hmmm\n", "")
    group = cortext(packages, "lm", "--help").stdout
    assert "Build, describe and use n-gram language models." in group
    assert "Hum a tune." in group
    root = cortext(packages, "--help").stdout
    assert root.count("Hum a tune.") == 2
    assert "Of a lab:\n  whistle" in root


def test_a_command_that_is_there_already_is_not_replaced(packages):
    install(packages, "strange_lab", "lab = strange_lab:COMMANDS", TREE)
    for command in (["inspect"], ["train"], ["lm", "build"]):
        done = cortext(packages, *command, "--help")
        assert f"Example: cortext {' '.join(command)}" in done.stdout
        assert done.stderr == ""


TAKES = """
from cortext.cli.tree import Group

COMMANDS = {
    "Live": {"serve": "taking_lab.hum", "report": "taking_lab.hum"},
    "Of a lab": {
        "replay": "taking_lab.hum",
        "lm": Group("Of others.", {"sing": "taking_lab.hum", "build": "taking_lab.hum"}),
        "fine": "taking_lab.hum",
    },
}


def hum() -> None:
    '''Hum a tune.'''
    print("hmmm")
"""


@pytest.mark.parametrize("name", ["aaa", "zzz"])  # before and after ours, in order
def test_no_package_takes_a_command_of_ours_away(packages, name):
    install(packages, "taking_lab", f"{name} = taking_lab:COMMANDS", TAKES)
    ours = ["serve"], ["report", "use"], ["report", "release"], ["replay"], ["lm", "build"]
    for command in ours:
        done = cortext(packages, *command, "--help")
        assert f"Usage: cortext {' '.join(command)}" in done.stdout
        assert "Hum" not in done.stdout
    assert cortext(packages, "fine").stdout == "hmmm\n"
    assert cortext(packages, "lm", "sing").stdout == "hmmm\n"


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ('"lab_of_gaps.nothing.run"', "ModuleNotFoundError: No module named 'lab_of_gaps.nothing'"),
        ("5", "AttributeError: 'int' object has no attribute 'rpartition'"),
    ],
)
def test_a_command_that_cannot_be_loaded_costs_itself(packages, target, reason):
    code = f"COMMANDS = {{'Mine': {{'mine': {target}}}}}"
    install(packages, "lab_of_gaps", "lab = lab_of_gaps:COMMANDS", code)
    done = cortext(packages, "--help")
    assert (done.returncode, done.stderr) == (0, "")
    shown = " ".join(done.stdout.split())
    assert f"mine (cannot be loaded: {reason}" in shown
    assert "serve Decode live" in shown


def test_without_its_metadata_a_line_says_what_to_do():
    """As after a pull from before there were packages, until it is installed anew."""
    code = (
        "import importlib.metadata as m; m.entry_points = lambda **_: [];"
        " from cortext.cli import run; run(['serve'])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    line = "cortext: no package joins its commands; install cortext-bci anew\n"
    assert done.stderr.startswith(line)


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import no_such_library", "ModuleNotFoundError: No module named 'no_such_library'"),
        ("", "AttributeError: module 'broken_lab' has no attribute 'COMMANDS'"),
        ("raise RuntimeError('one\\ntwo')", "RuntimeError: one"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("COMMANDS = {'Data': None}", "AttributeError: 'NoneType' object has no attribute 'items'"),
    ],
)
def test_a_package_that_cannot_be_loaded_costs_a_line_and_its_own_commands(packages, code, reason):
    install(packages, "broken_lab", "broken = broken_lab:COMMANDS", code)
    install(packages, "strange_lab", "lab = strange_lab:COMMANDS", TREE)
    done = cortext(packages, "hum")
    assert (done.returncode, done.stdout) == (0, "hmmm\n")
    told = "cortext: the commands of broken_lab:COMMANDS cannot be loaded"
    assert done.stderr == f"{told} ({reason})\n"
    done = cortext(packages, "--help")
    assert (done.returncode, done.stderr.count("\n")) == (0, 1)
    # The core's own commands ask nobody else.
    done = cortext(packages, "train", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert "Example: cortext train" in done.stdout


def test_the_core_alone_has_no_command_of_a_package():
    """Every entry names a module that its own package holds."""
    modules = {
        target.partition(".")[0]
        for commands in COMMANDS.values()
        for entry in commands.values()
        for target in (entry.commands.values() if isinstance(entry, Group) else [entry])
    }
    assert modules == {"cortext"}
    assert {name for under in COMMANDS.values() for name in under} < {
        name for under in all_commands().values() for name in under
    }


def test_a_package_that_is_half_there_costs_one_line(monkeypatch, tmp_path):
    """A library that it lacks is another matter: the caller knows how to install that."""
    (tmp_path / "lab_of_waves.py").write_text("import no_such_library\n")
    monkeypatch.syspath_prepend(tmp_path)
    gone, lacking = (
        EntryPoint(name, f"{module}:run", "cortext.checks")
        for name, module in (("gone", "lab_that_is_gone"), ("lacking", "lab_of_waves"))
    )
    monkeypatch.setattr(entry_points, "joined", lambda group: (gone, lacking))
    line = (
        r"lab_that_is_gone:run \(cortext.checks\) cannot be loaded:"
        r" No module named 'lab_that_is_gone'; install cortext-bci anew"
    )
    with pytest.raises(MissingLibrary, match=line):
        entry_points.load("cortext.checks", "gone")
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        entry_points.load("cortext.checks", "lacking")
