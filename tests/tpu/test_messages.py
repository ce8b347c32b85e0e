"""Headings of the pages on TPU messages are messages.

Each must be the beginning of one that the code prints.
"""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = "\n".join(
    (ROOT / f"docs/guides/{name}.md").read_text()
    for name in ("tpu-messages", "tpu-messages-training")
)
HEADINGS = re.findall(r"^#+ `(.+)`", PAGES, re.MULTILINE)

Message = list[str | None]
"""The parts of a text in the source; None is filled in when it is printed."""


def messages() -> list[Message]:
    found: list[Message] = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.JoinedStr):
                found.append(
                    [part.value if isinstance(part, ast.Constant) else None for part in node.values]
                )
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.append([node.value])
    return found


def begins(message: Message, heading: str) -> bool:
    """Whether the message can begin with the heading, two fifths of it its own words."""
    at, own, fixed = 0, 0, True
    for part in message:
        if part is None:
            fixed = False
            continue
        start = heading.find(part, at)
        if start == at or (start > at and not fixed):
            at, own, fixed = start + len(part), own + len(part), True
            continue
        # Cut within this part.
        most = min(len(part), len(heading) + 1)
        ends = [length for length in range(1, most) if heading.endswith(part[:length])]
        cut = max(ends, default=0)
        if fixed and cut != len(heading) - at:
            return False
        return own + cut >= 0.4 * len(heading) and (cut > 0 or at == len(heading))
    return own >= 0.4 * len(heading) and (at == len(heading) or not fixed)


def test_every_heading_is_a_message_of_the_code():
    # Docstrings and short texts are most of the literals, and none of them can be one.
    shortest = 0.4 * min(map(len, HEADINGS))
    candidates = [
        message
        for message in messages()
        if sum(len(part) for part in message if part) >= shortest and "\n" not in (message[0] or "")
    ]
    unknown = [
        heading
        for heading in HEADINGS
        if not any(begins(message, heading) for message in candidates)
    ]
    assert unknown == []


@pytest.mark.parametrize(
    ("message", "heading", "expected"),
    [
        (["no TPU found"], "no TPU found", True),
        (["no TPU found"], "no TPU was found", False),
        (["no TPU found"], "no TPU found here", False),
        ([None, " does not start: ", None], "jax does not start: why", True),
        ([None, " does not start: ", None], "jax starts", False),
        (
            ["tensorflow ", None, " has no TPUs; install another"],
            "tensorflow 2.21 has no TPUs",
            True,
        ),
        (["tensorflow ", None, " has no TPUs; install another"], "tensorflow 2.21 has TPUs", False),
        (["it is ", None], "it is a long story that nobody wrote", False),
    ],
)
def test_what_counts_as_the_beginning_of_a_message(message, heading, expected):
    assert begins(message, heading) is expected


def test_the_pages_have_the_messages_that_are_looked_for():
    text = "\n".join(HEADINGS)
    for phrase in (
        "resource exhausted",
        "no TPU found",
        "core instead of 8",
        "bf16[32,7168]",
        "hugepages",
    ):
        assert phrase in text
    assert "https://sites.research.google/trc/" in (ROOT / "docs/guides/tpu.md").read_text()
