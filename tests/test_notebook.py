"""The notebook for Kaggle and Colab, run cell by cell up to the point where a TPU is needed, and
beyond it on a CPU.
"""

import json
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

from cortext.cli import run as cortext

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = json.loads((ROOT / "notebooks" / "tpu.ipynb").read_text())
SHELL = re.compile(r"^( *)!(.+)$", re.MULTILINE)


def cells() -> list[tuple[str, str, set[str]]]:
    """Name, text and tags of the code cells, in order."""
    found = [cell for cell in NOTEBOOK["cells"] if cell["cell_type"] == "code"]
    return [
        (cell["id"], "".join(cell["source"]), set(cell["metadata"].get("tags", [])))
        for cell in found
    ]


def execute(name: str, text: str, names: dict) -> None:
    """Run a cell as IPython does.

    Lines that begin with `!` are a shell's, with `{name}` filled in.
    """

    def shell(command: str) -> None:
        filled = command.format(**names)
        done = subprocess.run(filled, shell=True, capture_output=True, text=True)
        assert done.returncode == 0, f"{name}: {filled}\n{done.stdout}\n{done.stderr}"

    names["_shell"] = shell
    exec(
        compile(SHELL.sub(lambda line: f"{line[1]}_shell({line[2]!r})", text), name, "exec"), names
    )


@pytest.fixture
def shown(tmp_path, monkeypatch, commands) -> list[str]:
    """Enter an empty folder with the commands at hand; return the list of what cells display."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(commands), prepend=":")
    found: list[str] = []
    display = types.ModuleType("IPython.display")
    display.HTML, display.display = str, found.append  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", types.ModuleType("IPython"))
    monkeypatch.setitem(sys.modules, "IPython.display", display)
    return found


def test_it_runs_up_to_where_a_tpu_is_needed(shown, tmp_path):
    names: dict = {}
    ran = []
    for name, text, tags in cells():
        if not tags & {"install", "needs-tpu"}:
            execute(name, text, names)
            ran.append(name)
    assert ran == ["doctor", "data"]
    assert list((tmp_path / "packed").glob("*"))
    assert names["CORES"] == 8


@pytest.mark.slow
def test_the_rest_works_on_a_cpu(shown):
    names: dict = {}
    for name, text, tags in cells():
        if "install" not in tags and name != "doctor-run":
            execute(
                name, text.replace("--device tpu --require-cores {CORES}", "--device cpu"), names
            )
    (report,) = shown
    assert "&lt;html" in report


def test_what_needs_a_tpu_names_it_and_every_option_exists(capsys):
    names = {"DATA": "data", "CORES": 8, "CONFIG": "gru_tpu", "LM": "--lm lm"}
    commands = [
        match[2].format(**names).split() for _, text, _ in cells() for match in SHELL.finditer(text)
    ]
    called = {command[1] for command in commands}
    assert {"doctor", "simulate", "inspect", "pack", "train", "evaluate"} <= called
    for command in commands:
        assert command[0] == "cortext"
        name = command[1:3] if command[1] == "lm" else command[1:2]
        assert cortext([*name, "--help"]) == 0
        help_text = capsys.readouterr().out
        for word in command:
            assert not word.startswith("--") or word in help_text, command
    (train,) = [command for command in commands if command[1] == "train"]
    assert "--device tpu --require-cores 8" in " ".join(train)


def test_what_it_installs_is_what_was_tested():
    (text,) = [text for _, text, tags in cells() if "install" in tags]
    files = (ROOT / "constraints.txt", ROOT / "constraints-tpu.txt")
    tested = {line.strip().lower() for file in files for line in file.read_text().splitlines()}
    pins = {pin.lower() for pin in re.findall(r"[\w\[\]-]+==[\w.]+", text)}
    assert len(pins) == 4
    assert {pin.replace("[tpu]", "") for pin in pins} <= tested


def test_it_is_a_notebook_without_results():
    assert (NOTEBOOK["nbformat"], NOTEBOOK["nbformat_minor"]) == (4, 5)
    identities = [cell["id"] for cell in NOTEBOOK["cells"]]
    assert len(set(identities)) == len(identities)
    assert all(cell["cell_type"] == "markdown" or not cell["outputs"] for cell in NOTEBOOK["cells"])
    assert (ROOT / "docs/guides/tpu.ipynb").resolve() == ROOT / "notebooks" / "tpu.ipynb"
