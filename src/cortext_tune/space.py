"""The search space: for each setting a list of values or a range of numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

import yaml

from cortext.arguments import check_list, check_text
from cortext.config import parse_yaml, to_mapping, with_overrides
from cortext.errors import ConfigError

C = TypeVar("C")


@dataclass(frozen=True)
class Choice:
    """A list of values to choose from."""

    values: tuple[Any, ...]


@dataclass(frozen=True)
class Range:
    """A range of numbers, both bounds included; of integers where both bounds are integers.

    Attributes:
        log: Draw uniformly in the logarithm.
    """

    low: float
    high: float
    log: bool = False

    @property
    def is_integer(self) -> bool:
        """True if only integers are drawn."""
        return isinstance(self.low, int) and isinstance(self.high, int)


Space = Mapping[str, Choice | Range]
"""Choices and ranges by the dotted name of the setting, in the given order."""


def parse_space(texts: Iterable[str], ranges: bool = True) -> dict[str, Choice | Range]:
    """Parse `key=value,value,...` and, with `ranges`, `key=low:high` and `key=low:high:log`.

    Values are YAML, so a list or a section may be one value. Raises ConfigError.
    """
    space: dict[str, Choice | Range] = {}
    for text in check_list(texts, "texts", "a list of 'key=value,value' texts"):
        check_text(text, "a text")
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
        numbers = _range(key, values)
        if numbers and not ranges:
            raise ConfigError(f"{key}={values} is a range; a grid needs its values one by one")
        space[key] = numbers or Choice(_values(text, values))
    return space


def _range(key: str, text: str) -> Range | None:
    """Return the range in a text, or None for a list of values."""
    # YAML 1.1 would read 1:30 as the sexagesimal number 90, so ranges are recognised before it.
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
        listed = parse_yaml(f"[{values}]")
    except ConfigError:
        listed = None
    if not listed or not isinstance(listed, list):
        raise ConfigError(f"{text!r} is not a list of YAML values; write key=value,value,...")
    return tuple(listed)


def space_to_json(space: Space) -> dict[str, Any]:
    """Return the space as plain lists and mappings."""
    return {
        key: list(values.values) if isinstance(values, Choice) else asdict(values)
        for key, values in space.items()
    }


def fit_space(space: Space, config: Any) -> dict[str, Choice | Range]:
    """Convert the values of a space to the types of a configuration.

    YAML 1.1 reads `1e-3` as a text, and 0 is an integer where the setting may be a float.

    Raises:
        ConfigError: For an unknown setting, a value that the configuration refuses, and a range
            whose bounds are not finite or not in order.
    """
    fitted: dict[str, Choice | Range] = {}
    for key, values in space.items():
        if isinstance(values, Choice):
            configured = [_configured(config, key, value) for value in values.values]
            fitted[key] = Choice(
                tuple(
                    value
                    for i, value in enumerate(configured)
                    if not _contains(value, configured[:i])
                )
            )
        else:
            fitted[key] = _fit_range(key, values, config)
    return fitted


def _fit_range(key: str, values: Range, config: Any) -> Range:
    low, high = (_configured(config, key, bound) for bound in (values.low, values.high))
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


def _configured(config: Any, key: str, value: Any) -> Any:
    """Set the value in the configuration and read it back."""
    return settings_of(with_settings(config, {key: value}), [key])[key]


def _contains(value: Any, values: Iterable[Any]) -> bool:
    # By type, too: True == 1, and both may be values of one setting.
    return any(type(other) is type(value) and other == value for other in values)


def with_settings(config: C, settings: Mapping[str, Any]) -> C:
    """Return the configuration with these settings, by dotted name. Raises ConfigError."""
    # Sections first: setting one later would undo the settings inside it.
    keys = sorted(settings, key=lambda key: key.count("."))
    return with_overrides(config, [f"{key}={as_yaml(settings[key])}" for key in keys])


def settings_of(config: Any, keys: Iterable[str]) -> dict[str, Any]:
    """Return the plain values that a configuration has for dotted keys."""
    settings = {}
    for key in keys:
        section = to_mapping(config)
        for name in key.split("."):
            section = section[name]
        settings[key] = section
    return settings


def within_space(space: Space, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings whose values lie in the space."""
    within = {}
    for key, values in space.items():
        if key in settings:
            value = settings[key]
            if isinstance(values, Choice):
                inside = _contains(value, values.values)
            else:
                inside = values.low <= value <= values.high
            if inside:
                within[key] = value
    return within


def as_yaml(value: Any) -> str:
    """Return the value as one line of YAML."""
    return yaml.safe_dump(
        [value], default_flow_style=True, width=math.inf, allow_unicode=True
    ).strip()[1:-1]


def label(settings: Mapping[str, Any]) -> str:
    """Format settings for people, such as `lr_max=0.001 n_units=64`."""
    return " ".join(f"{key}={short(value)}" for key, value in settings.items())


def short(value: Any) -> str:
    """Format a value for people, floats with four digits."""
    return f"{value:.4g}" if isinstance(value, float) else as_yaml(value)
