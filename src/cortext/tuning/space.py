"""What a search varies: for each setting a list of choices or a range of numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import yaml

from cortext.config import parse_yaml, to_mapping, with_overrides
from cortext.errors import ConfigError

C = TypeVar("C")


@dataclass(frozen=True)
class Choice:
    """One of these values."""

    values: tuple[Any, ...]


@dataclass(frozen=True)
class Range:
    """A number from `low` to `high`, both included; a whole number where both are.

    `log`: uniform in its logarithm.
    """

    low: float
    high: float
    log: bool = False

    @property
    def whole(self) -> bool:
        """Whether only whole numbers are drawn."""
        return isinstance(self.low, int) and isinstance(self.high, int)


Space = Mapping[str, Choice | Range]
"""By the dotted name of the setting, in the order in which it was given."""


def parse_space(texts: Iterable[str], ranges: bool = True) -> dict[str, Choice | Range]:
    """The space of texts `key=value,value,...` and, where `ranges`, `key=low:high` and
    `key=low:high:log`.

    Values are YAML, so a list or a section may stand for one value. Raises ConfigError.
    """
    space: dict[str, Choice | Range] = {}
    for text in texts:
        key, _, values = (part.strip() for part in text.partition("="))
        if not key or not values:
            form = (
                "key=low:high, key=low:high:log or key=value,value"
                if ranges
                else "key=value,value,..."
            )
            raise ConfigError(f"{text!r} is not a search; write {form}")
        if key in space:
            raise ConfigError(f"{key} is searched twice; give all its values at once")
        found = _range(key, values)
        if found and not ranges:
            raise ConfigError(f"{key}={values} is a range; a grid needs its values one by one")
        space[key] = found or Choice(_values(text, values))
    return space


def _range(key: str, text: str) -> Range | None:
    """The range that the text is, or None for a list of choices."""
    parts = [part.strip() for part in text.split(":")]
    if len(parts) not in (2, 3) or "," in text or "{" in text:
        return None
    if len(parts) == 3 and parts[2] != "log":
        raise ConfigError(
            f"{key}={text}: {parts[2]!r} after the range is unknown; write key=low:high:log"
        )
    low, high = (_number(key, part) for part in parts[:2])
    return Range(low, high, len(parts) == 3)


def _number(key: str, text: str) -> float:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    raise ConfigError(f"{key} has the bound {text!r}; a number is needed")


def _values(text: str, values: str) -> tuple[Any, ...]:
    try:
        found = parse_yaml(f"[{values}]")
    except ConfigError:
        found = None
    if not found or not isinstance(found, list):
        raise ConfigError(f"{text!r} is not a list of YAML values; write key=value,value,...")
    return tuple(found)


def space_to_json(space: Space) -> dict[str, Any]:
    """The space as plain lists and mappings."""
    return {
        key: list(values.values) if isinstance(values, Choice) else asdict(values)
        for key, values in space.items()
    }


def fit_space(space: Space, config: Any) -> dict[str, Choice | Range]:
    """The space with its values as the dataclass `config` understands them (`1e-3` is a number,
    0 may be 0.0).

    Raises:
        ConfigError: For an unknown setting (with the nearest one), a value of the wrong type or one
            that the configuration refuses, and for a range that is none.
    """
    fitted: dict[str, Choice | Range] = {}
    for key, values in space.items():
        if isinstance(values, Choice):
            found = [_understood(config, key, value) for value in values.values]
            fitted[key] = Choice(
                tuple(value for i, value in enumerate(found) if not _among(value, found[:i]))
            )
        else:
            fitted[key] = _fit_range(key, values, config)
    return fitted


def _fit_range(key: str, values: Range, config: Any) -> Range:
    low, high = (_understood(config, key, bound) for bound in (values.low, values.high))
    for bound in (low, high):
        if (
            isinstance(bound, bool)
            or not isinstance(bound, int | float)
            or not math.isfinite(bound)
        ):
            raise ConfigError(f"{key} has the bound {bound!r}; a range needs finite numbers")
    if not low < high:
        raise ConfigError(
            f"{key} is searched from {low} to {high}; the first bound must be the lower one"
        )
    if values.log and low <= 0:
        raise ConfigError(f"{key} is searched from {low}; a logarithmic range must begin above 0")
    return Range(low, high, values.log)


def _understood(config: Any, key: str, value: Any) -> Any:
    """The value as it stands in the configuration once it was set there."""
    return settings_of(with_settings(config, {key: value}), [key])[key]


def _among(value: Any, values: Iterable[Any]) -> bool:
    return any(type(other) is type(value) and other == value for other in values)


def with_settings(config: C, settings: Mapping[str, Any]) -> C:
    """The configuration with these settings, by dotted name; whole sections come first.

    Raises ConfigError.
    """
    keys = sorted(settings, key=lambda key: key.count("."))
    return with_overrides(config, [f"{key}={as_yaml(settings[key])}" for key in keys])


def settings_of(config: Any, keys: Iterable[str]) -> dict[str, Any]:
    """What a configuration has for each dotted key, as plain values."""
    found = {}
    for key in keys:
        section = to_mapping(config)
        for name in key.split("."):
            section = section[name]
        found[key] = section
    return found


def within(space: Space, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Those of the settings that the space holds."""
    found = {}
    for key, values in space.items():
        if key in settings:
            value = settings[key]
            if (
                _among(value, values.values)
                if isinstance(values, Choice)
                else values.low <= value <= values.high
            ):
                found[key] = value
    return found


def as_yaml(value: Any) -> str:
    """The value as one line of YAML."""
    return yaml.safe_dump(
        [value], default_flow_style=True, width=math.inf, allow_unicode=True
    ).strip()[1:-1]


def label(settings: Mapping[str, Any]) -> str:
    """`lr_max=0.001 n_units=64`: settings for people, numbers with four digits."""
    return " ".join(f"{key}={short(value)}" for key, value in settings.items())


def short(value: Any) -> str:
    """A value for people."""
    return f"{value:.4g}" if isinstance(value, float) else as_yaml(value)
