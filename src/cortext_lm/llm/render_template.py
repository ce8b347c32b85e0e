"""Renders a chat template as transformers does: run as a program, which imports nothing of cortext.

It reads JSON from the standard input (`template`, `names`) and writes JSON (`text`, or `error`),
with bounds on its time, its memory and the text.
"""

from __future__ import annotations

import json
import resource
import sys
from datetime import datetime
from typing import Any

from jinja2 import nodes
from jinja2.exceptions import TemplateError
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

MOST_CPU_S = 5
MOST_BYTES = 512 << 20
MOST_CHARACTERS = 100_000
"""Longest text: that of a long chat is 10,000."""


class GenerationTag(Extension):
    """The tag `generation` around answers, which training uses; it changes nothing here."""

    tags = {"generation"}  # noqa: RUF012 # as the base class has it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the content of the tag."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def rendered(template: str, names: dict[str, Any]) -> str:
    """Return the text of a template; raises errors of all kinds."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[GenerationTag, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    pieces, length = [], 0
    for piece in environment.from_string(template).generate(names):
        pieces.append(piece)
        length += len(piece)
        if length > MOST_CHARACTERS:
            raise ValueError(f"its text has more than {MOST_CHARACTERS:,} characters")
    text = "".join(pieces)
    text.encode()  # half of a surrogate pair, which no tokenizer takes
    return text


def _to_json(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _raise(message: str) -> None:
    raise TemplateError(message)


def main() -> None:
    """Answer the request of the standard input."""
    resource.setrlimit(resource.RLIMIT_CPU, (MOST_CPU_S, MOST_CPU_S))
    resource.setrlimit(resource.RLIMIT_AS, (MOST_BYTES, MOST_BYTES))
    asked = json.load(sys.stdin)
    try:
        answer = {"text": rendered(**asked)}
    except MemoryError:
        answer = {"error": f"it takes more than {MOST_BYTES >> 20} MB"}
    except Exception as error:
        lines = str(error).splitlines() or [type(error).__name__]
        answer = {"error": lines[0][:200]}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
