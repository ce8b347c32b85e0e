"""What is said of a large model on the command line is never passed over."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from refusals import complaint

from cortext.cli import run
from cortext_live.brand.parameters import NodeConfig

COMMANDS = {
    "decode": ["decode", "--fake-text", "how are you", "--lm", "nowhere"],
    "evaluate": [
        "evaluate",
        "nowhere",
        "--data",
        "nowhere",
        "--lm",
        "nowhere",
        "--out",
        "nowhere/out",
    ],
    "lm-server": ["lm-server", "--lm", "nowhere"],
    "serve": ["serve", "nowhere", "--lm", "nowhere", "--feed"],
    "brand-node": ["brand-node", "-n", "speech"],
    "tune decoder": ["tune", "decoder", "nowhere", "--lm", "nowhere", "--out", "nowhere/out"],
}
FLAGS = {
    "--llm-lora": ["--llm-lora", "adapter"],
    "--llm-device": ["--llm-device", "cpu"],
    "--context": ["--context", "what was said"],
}


def test_the_commands_that_can_fuse_take_a_model_and_options(capsys: pytest.CaptureFixture):
    """As the page of fusion has them; the node's options are parameters."""
    page = " ".join(
        (Path(__file__).parents[3] / "docs/guides/large-models-in-the-search.md")
        .read_text()
        .split()
    )
    (named,) = re.findall(r"The commands (.*?) take `--llm MODEL` and `--options FILE`", page)
    commands = re.findall(r"`([^`]+)`", named)
    assert set(commands) == COMMANDS.keys() - {"brand-node"}
    for command in commands:
        assert run([*command.split(), "--help"]) == 0
        shown = capsys.readouterr().out
        assert "--llm " in shown
        assert "--options " in shown
    assert isinstance(NodeConfig("run").options, dict)


def test_an_ensemble_refuses_them_too(tmp_path: Path, capsys: pytest.CaptureFixture):
    (tmp_path / "lists.jsonl").write_text('{"all": ["a b", "a c"]}\n')
    given = ["ensemble", "--lists", str(tmp_path / "lists.jsonl"), "--field", "all"]
    for flag in ("--llm-lora", "--llm-device"):
        assert complaint(capsys, *given, *FLAGS[flag]).startswith(
            f"cortext: {flag} is given without --llm; "
        )


@pytest.mark.parametrize("flag", FLAGS)
@pytest.mark.parametrize("command", COMMANDS)
def test_what_needs_a_large_model_is_refused_without_one(
    command: str, flag: str, capsys: pytest.CaptureFixture
):
    if command in ("serve", "brand-node"):
        pytest.importorskip("fastapi" if command == "serve" else "redis")
    assert complaint(capsys, *COMMANDS[command], *FLAGS[flag]).startswith(
        f"cortext: {flag} is given without --llm; "
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--llm", ""], "--llm is empty; name a directory, or a model of Hugging Face"),
        (
            ["--llm", "any", "--context", "say \udcff"],
            "--context is no UTF-8 text from character 4 on; write it anew",
        ),
    ],
)
def test_no_name_and_no_text_are_refused(
    given: list[str], said: str, capsys: pytest.CaptureFixture
):
    assert complaint(capsys, *COMMANDS["decode"], *given) == f"cortext: {said}\n"
