"""Every command of ours in the README and the guides exists, with every option."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from cortext.cli import run as cortext
from cortext.cli.tree import Group, all_commands
from cortext.decoding.options import DecoderOptions

ROOT = Path(__file__).resolve().parents[3]
GROUPS = {
    name
    for commands in all_commands().values()
    for name, entry in commands.items()
    if isinstance(entry, Group)
}
DOCUMENTS = [
    "README.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md")),
]
HELP: dict[tuple[str, ...], str] = {}


def commands(document: str) -> list[str]:
    """`cortext ...` in code spans and code blocks, without comments."""
    text = (ROOT / document).read_text().replace("\\\n", " ")
    spans = re.findall(r"(?<!`)`(cortext [a-z][^`]*)`(?!`)", text)
    blocks = re.findall(r"^```(\w*)[^\n]*\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    shell = "\n".join(block for language, block in blocks if language in ("", "bash", "sh"))
    lines = [line.split("  #")[0] for line in shell.splitlines() if line.startswith("cortext ")]
    return [command for command in dict.fromkeys(spans + lines) if "|" not in command]


def help_of(name: tuple[str, ...], capsys: pytest.CaptureFixture) -> str:
    """The help of a command; of one that does not exist, nothing."""
    if name not in HELP:
        exists = cortext([*name, "--help"]) == 0
        HELP[name] = capsys.readouterr().out if exists else ""
    return HELP[name]


def test_commands_and_their_options_exist(capsys):
    wrong = []
    for document in DOCUMENTS:
        for command in commands(document):
            words = shlex.split(command)[1:]
            name = tuple(words[: 1 + (words[0] in GROUPS and len(words) > 1)])
            known = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", help_of(name, capsys)))
            options = {word for word in words if re.fullmatch("--?[a-z][a-z-]*", word)}
            if not known:
                wrong.append(f"{document}: {command}: no such command")
            elif options - known:
                wrong.append(f"{document}: {command}: no option {options - known}")
    assert not wrong, "\n".join(wrong)


def test_the_published_settings_in_the_guide_are_options_of_the_search():
    (text,) = re.findall(
        r"^```yaml\n(.*?)^```",
        (ROOT / "docs/start/coming-from-the-release.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
    options = DecoderOptions().changed(yaml.safe_load(text))
    assert options.lattice_beam * options.acoustic_scale == pytest.approx(8, abs=0.01)


def test_the_documents_are_read_for_commands():
    assert len(commands("README.md")) >= 11
    names = "|".join(name for group in all_commands().values() for name in group)
    taught = re.compile(rf"^cortext ({names}) |`cortext ({names})`", re.MULTILINE)
    found = {page: len(commands(page)) for page in DOCUMENTS[1:]}
    assert sum(found.values()) >= 300
    teaching = {page for page in found if taught.search((ROOT / page).read_text())}
    assert len(teaching) >= 30
    assert all(found[page] for page in teaching)
