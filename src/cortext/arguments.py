"""Checks of arguments that a caller gave: a wrong one is one line that names the argument."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any, TypeVar

from cortext.errors import ConfigError, wrong_type

T = TypeVar("T")


def as_path(value: str | os.PathLike[str], name: str) -> Path:
    """Return a path that a caller gave.

    Args:
        value: A text or a path.
        name: Name of the argument, for messages.

    Raises:
        WrongType: For anything else, such as None or an opened file.
        ConfigError: For a path with a NUL character, which no system takes.
    """
    if not isinstance(value, str | os.PathLike):
        raise wrong_type(name, value, "a path")
    path = Path(value)
    if "\0" in str(path):
        raise ConfigError(f"{name} is a path with a NUL character", fix="check the path")
    return path


def as_count(value: Any, name: str, low: int = 0) -> int:
    """Return a whole number that a caller gave, also one of NumPy's.

    Args:
        value: The number.
        name: Name of the argument, for messages.
        low: Lowest value allowed.

    Raises:
        WrongType: For anything but a whole number.
        ConfigError: For a number below `low`.
    """
    if not isinstance(value, Integral) or isinstance(value, bool):
        raise wrong_type(name, value, "a whole number")
    if value < low:  # type: ignore[operator]  # Integral declares no order
        raise ConfigError(f"{name} is {value}; at least {low} is needed")
    return int(value)


def as_number(value: Any, name: str, low: float = -math.inf) -> float:
    """Return a finite number that a caller gave, also one of NumPy's.

    Args:
        value: The number.
        name: Name of the argument, for messages.
        low: Lowest value allowed.

    Raises:
        WrongType: For anything but a number.
        ConfigError: For a number below `low`, NaN and infinity.
    """
    if not isinstance(value, Real) or isinstance(value, bool):
        raise wrong_type(name, value, "a number")
    try:
        number = float(value)
    except OverflowError:  # an integer that no float can hold
        number = math.inf
    if not math.isfinite(number) or number < low:
        least = "" if low == -math.inf else f" of at least {low:g}"
        raise ConfigError(f"{name} is {value}; a finite number{least} is needed")
    return number


def check_type(value: Any, kinds: type | tuple[type, ...], name: str, needed: str) -> None:
    """Raise WrongType unless a value is of one of some types.

    Args:
        value: The argument.
        kinds: Type, or types, that are allowed.
        name: Name of the argument.
        needed: The types, as the message says them.
    """
    if not isinstance(value, kinds):
        raise wrong_type(name, value, needed)


def check_text(value: Any, name: str) -> None:
    """Raise WrongType unless a value is a text."""
    check_type(value, str, name, "a text")


def check_function(value: Callable[..., Any] | None, name: str) -> None:
    """Raise WrongType unless a value can be called, or is None."""
    if value is not None and not callable(value):
        raise wrong_type(name, value, "a function")


def check_list(values: Iterable[T], name: str, needed: str) -> Iterable[T]:
    """Return values that are to be taken one by one.

    Args:
        values: Any iterable but a text or a mapping, whose parts are not meant.
        name: Name of the argument.
        needed: Content of the list, as the message says it.

    Raises:
        WrongType: For anything else.
    """
    if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
        raise wrong_type(name, values, needed)
    return values
