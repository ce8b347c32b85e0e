"""Chat templates of others, each rendered in a process with little time and memory.

A template is a program in Jinja. A sandbox keeps it from files and from Python, but neither from
loops without end nor from texts that fill the memory.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from cortext_lm.llm import render_template
from cortext_lm.llm.render_template import MOST_CPU_S

MOST_TEMPLATE = 200_000
"""Longest template; those of models with tools have 10,000 characters."""
MOST_S = 60.0
"""Seconds that the process may wait for a processor, beside its own `MOST_CPU_S`."""


def render(template: Any, messages: Sequence[dict[str, Any]], tokenizer: Any, **names: Any) -> str:
    """Return the text of a conversation by a chat template, as transformers renders it.

    Args:
        template: The template, or templates by name, of which `default` is used.
        messages: The conversation.
        tokenizer: The transformers tokenizer, whose special tokens the template may name.
        names: Further names that the template may use, such as `add_generation_prompt`.

    Raises:
        ValueError: With one line, for a template that fails, or takes too much time or memory.
    """
    if isinstance(template, dict):
        template = template.get("default")
    if not isinstance(template, str) or len(template) > MOST_TEMPLATE:
        raise ValueError(f"it is no text of at most {MOST_TEMPLATE:,} characters")
    known = {"tools": None, "documents": None, **tokenizer.special_tokens_map, **names}
    asked = {"template": template, "names": {"messages": list(messages), **known}}
    return _rendered(json.dumps(asked, default=str))


@lru_cache(maxsize=64)
def _rendered(asked: str) -> str:
    command = [sys.executable, "-I", render_template.__file__]
    try:
        ended = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=MOST_S)
    except subprocess.TimeoutExpired:
        raise ValueError(f"it takes more than {MOST_S:g} s") from None
    try:
        answer = json.loads(ended.stdout)
    except ValueError:  # it was ended by the system, or the interpreter crashed
        raise ValueError(f"it takes more than {MOST_CPU_S} s, or ends its process") from None
    if "error" in answer:
        raise ValueError(answer["error"])
    text: str = answer["text"]
    return text
