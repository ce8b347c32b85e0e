"""Every command of ours in the guides for rigs and for those who come from the release exists, with every option."""

import re
import shlex
from pathlib import Path

import pytest
import yaml

from cortext.cli import run as cortext
from cortext.decoding.options import DecoderOptions

ROOT = Path(__file__).resolve().parents[2]
GROUPS = {"lm", "bench", "tune", "report"}
HELP: dict[tuple[str, ...], str] = {}


def commands(document: str) -> list[str]:
    """`cortext ...` in code spans and code blocks, without comments."""
    text = (ROOT / document).read_text().replace("\\\n", " ")
    spans = re.findall(r"(?<!`)`(cortext [a-z][^`]*)`(?!`)", text)
    blocks = re.findall(r"^```(?:bash)?\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    lines = [line.split("  #")[0] for block in blocks for line in block.splitlines() if line.startswith("cortext ")]
    return [command for command in dict.fromkeys(spans + lines) if "|" not in command]


def help_of(verb: tuple[str, ...], capsys: pytest.CaptureFixture) -> str:
    if verb not in HELP:
        assert cortext([*verb, "--help"]) == 0, verb
        HELP[verb] = capsys.readouterr().out
    return HELP[verb]


@pytest.mark.parametrize(
    "document",
    [
        "README.md",
        "docs/migrating.md",
        "docs/use.md",
        "docs/brand.md",
        "docs/page.md",
        "docs/latency.md",
        "docs/redis.md",
        "docs/adapt.md",
        "docs/ensemble.md",
        "docs/tpu-compile.md",
        "docs/cloud.md",
        "docs/tpu.md",
        "docs/troubleshooting.md",
        "docs/torch-xla.md",
        "docs/neural-lm.md",
        "docs/finetune-llm.md",
        "docs/llm.md",
    ],
)
def test_commands_and_their_options_exist(document, capsys):
    found = commands(document)
    assert len(found) >= 2
    for command in found:
        words = shlex.split(command)[1:]
        verb = tuple(words[: 1 + (words[0] in GROUPS and len(words) > 1)])
        known = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", help_of(verb, capsys)))
        wrong = [word for word in words if re.fullmatch("--?[a-z][a-z-]*", word) and word not in known]
        assert not wrong, f"{document}: {command}: {wrong}"


def test_the_published_settings_in_the_guide_are_options_of_the_search():
    (text,) = re.findall(r"^```yaml\n(.*?)^```", (ROOT / "docs/migrating.md").read_text(), re.MULTILINE | re.DOTALL)
    options = DecoderOptions().changed(yaml.safe_load(text))
    assert options.lattice_beam * options.acoustic_scale == pytest.approx(8, abs=0.01)
