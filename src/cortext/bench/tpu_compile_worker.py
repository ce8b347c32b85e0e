"""Compiles one training step for a TPU, in a process of its own.

Libtpu is loaded once, with the environment it needs.

python -m cortext.bench.tpu_compile_worker TARGET        (a cortext.tpu.compile.Target as JSON)
"""

from __future__ import annotations

import json
import sys
from typing import Any

from cortext.bench.workers import Missing, own_stdout, serve
from cortext.errors import CortextError
from cortext.tpu.compile import Target, compile_step


def main() -> None:
    """Answer with what was found."""
    answers = own_stdout()

    def begin() -> tuple[None, dict[str, Any]]:
        try:
            return None, compile_step(Target(**json.loads(sys.argv[1])))
        except CortextError as error:
            raise Missing(str(error)) from None

    serve(begin, sys.stdin, answers)


if __name__ == "__main__":
    main()
