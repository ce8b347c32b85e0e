"""Help and bounds of a setting, beside the field that holds it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Metadata of a field: `threads: Annotated[int, Setting(help="Threads.", minimum=1)] = 1`.

    `cortext.cli.options.with_options` makes an option of the command line of it. Dataclasses of the
    library use it instead of Typer's classes, so that a Python program does not load Typer.

    Attributes:
        help: Sentence that `--help` shows.
        minimum: Smallest number that is accepted; None for no bound.
        maximum: Largest number that is accepted; None for no bound.
        metavar: Name of the value in `--help`; None for the type's.
        argument: Taken by its position on the command line, without a name.
        kind: Type on the command line, where the field takes more types; None for the field's.
    """

    help: str
    minimum: float | None = None
    maximum: float | None = None
    metavar: str | None = None
    argument: bool = False
    kind: Any = None
