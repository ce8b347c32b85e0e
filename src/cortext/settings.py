"""Help and bounds of a setting, beside the field that holds it."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from functools import cache
from typing import Any, get_type_hints

from cortext.errors import ConfigError, CortextError


@dataclass(frozen=True, kw_only=True)
class Setting:
    """Metadata of a field: `threads: Annotated[int, Setting(help="Threads.", minimum=1)] = 1`.

    `cortext.cli.options.with_options` makes an option of the command line of it, and
    `cortext.config.check_fields` compares the value with the bounds. A field of a YAML file has its
    meaning in the text below it, and no `help`. Dataclasses of the library use it instead of
    Typer's classes, so that a Python program does not load Typer.

    Attributes:
        help: Sentence that `--help` shows.
        minimum: Smallest number that is accepted; None for no bound.
        maximum: Largest number that is accepted; None for no bound.
        above: Number that the value must be larger than; None for no bound.
        below: Number that the value must be smaller than; None for no bound.
        metavar: Name of the value in `--help`; None for the type's.
        argument: Taken by its position on the command line, without a name.
        kind: Type on the command line, where the field takes more types; None for the field's.
    """

    help: str = ""
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    below: float | None = None
    metavar: str | None = None
    argument: bool = False
    kind: Any = None

    @property
    def has_bounds(self) -> bool:
        """True if not every number is accepted."""
        bounds = (self.minimum, self.maximum, self.above, self.below)
        return any(bound is not None for bound in bounds)

    def accepts(self, value: float) -> bool:
        """Return whether a number lies within the bounds; NaN and infinity do in none."""
        if not self.has_bounds:
            return True
        # An integer may be too large for a float, and for `isfinite`.
        return (
            (isinstance(value, int) or math.isfinite(value))
            and (self.minimum is None or value >= self.minimum)
            and (self.maximum is None or value <= self.maximum)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def check(
        self, name: str, value: float | None, error: type[CortextError] = ConfigError
    ) -> None:
        """Raise an error for a number out of the bounds; None is within all."""
        if value is not None and not self.accepts(value):
            raise error(f"{name} is {value}; it must be {self.needed(value)}")

    def needed(self, value: float) -> str:
        """Return the bounds in words, for the message about a number outside them."""
        words = (
            ("at least", self.minimum),
            ("above", self.above),
            ("at most", self.maximum),
            ("below", self.below),
        )
        found = [f"{word} {_shown(bound)}" for word, bound in words if bound is not None]
        if self.maximum is self.below is None and isinstance(value, float):
            found.append("finite")
        return " and ".join(found)


def _shown(bound: float) -> str:
    # By the value, not the type: `typing` takes Annotated[int, Setting(minimum=1)] for the same as
    # Annotated[int, Setting(minimum=1.0)], and keeps the first of them.
    short = f"{bound:g}"
    return short if float(short) == bound else str(bound)


@cache
def settings_of(cls: type) -> dict[str, Setting]:
    """Return the `Setting` of each field of a dataclass that has one."""
    hints = get_type_hints(cls, include_extras=True)
    given = {field.name: getattr(hints[field.name], "__metadata__", ()) for field in fields(cls)}
    return {
        name: setting
        for name, metadata in given.items()
        for setting in metadata
        if isinstance(setting, Setting)
    }


# Bounds that many fields have: `n_days: Annotated[int, AT_LEAST_1] = 6`.
AT_LEAST_0 = Setting(minimum=0)
AT_LEAST_1 = Setting(minimum=1)
ABOVE_0 = Setting(above=0)
FROM_0_TO_1 = Setting(minimum=0, maximum=1)
FROM_0_BELOW_1 = Setting(minimum=0, below=1)
THREADS = Setting(minimum=1, maximum=1024)
SEED = Setting(minimum=0, maximum=(1 << 32) - 1)
