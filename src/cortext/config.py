"""Dataclasses from YAML, strictly: an unknown key or a value of the wrong type is an error that names the key.

The dataclasses themselves live beside what they configure; this module reads, checks, overrides and writes them.
"""

from __future__ import annotations

import dataclasses
import types
import typing
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml

from cortext.errors import ConfigError, CortextError, nearest

C = TypeVar("C")
_MOST_VALUES = 1_000_000


class _UniqueKeys(yaml.SafeLoader):
    """Refuses a key that stands twice in a section; YAML would silently take the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys = set()
        for key_node, _ in node.value:
            key = key_node.value
            if isinstance(key, str) and key_node.tag != "tag:yaml.org,2002:merge":
                if key in keys:
                    raise yaml.constructor.ConstructorError(None, None, f"{key} is given twice", key_node.start_mark)
                keys.add(key)
        return super().construct_mapping(node, deep)


def load_config(path: str | Path, cls: type[C], overrides: Iterable[str] = ()) -> C:
    """Read a YAML file into dataclass `cls`, then apply `key=value` overrides (dotted keys reach into sections).

    Raises ConfigError for a missing file, broken YAML, an unknown key (with the nearest one) or a wrong type.
    """
    return with_overrides(from_mapping(cls, read_mapping(path), where=path), overrides)


def read_mapping(path: str | Path) -> Any:
    """What a YAML file holds, an empty mapping where it is empty. Raises ConfigError naming the file and line."""
    path = Path(path)
    try:
        text = path.read_text()
    except OSError as error:
        raise ConfigError(f"cannot read the configuration: {error.strerror}", where=path) from None
    except UnicodeDecodeError:
        raise ConfigError("not a text file; a YAML file is needed", where=path) from None
    try:
        mapping = yaml.load(text, Loader=_UniqueKeys)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark else ""
        raise ConfigError(f"not valid YAML{line}: {getattr(error, 'problem', error)}", where=path) from None
    except (
        ValueError,
        RecursionError,
    ) as error:  # a date or number that cannot be, sections within sections without end
        raise ConfigError(f"cannot be read as YAML: {error}", where=path) from None
    _check_size(mapping, path)
    return mapping or {}


def _check_size(mapping: Any, path: Path) -> None:
    """Raise ConfigError where aliases make a section repeat without end: everything after this copies sections."""
    left, n_values = [mapping], 0
    while left:
        item = left.pop()
        n_values += 1
        if isinstance(item, Mapping | list):
            left += item.values() if isinstance(item, Mapping) else item
        if n_values + len(left) > _MOST_VALUES:
            raise ConfigError(f"has more than {_MOST_VALUES:,} values", where=path, fix="repeat less with aliases")


def from_mapping(cls: type[C], mapping: Any, where: str | Path | None = None, prefix: str = "") -> C:
    """Build dataclass `cls` from a mapping, checking every key and type. `prefix` is the dotted path of the section."""
    if not isinstance(mapping, Mapping):
        found = type(mapping).__name__
        raise ConfigError(f"{prefix.rstrip('.') or 'the file'} is a {found}; a section of keys is needed", where=where)
    hints = typing.get_type_hints(cls)
    known = {field.name for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    values = {}
    for key, value in mapping.items():
        if key not in known:
            raise ConfigError(f"unknown key {prefix}{key}; {nearest(str(key), known)}", where=where)
        values[key] = _convert(value, hints[key], f"{prefix}{key}", where)
    required = [
        field.name
        for field in dataclasses.fields(cls)  # type: ignore[arg-type]
        if field.default is dataclasses.MISSING
        and field.default_factory is dataclasses.MISSING
        and field.name not in values
    ]
    if required:
        raise ConfigError(f"missing key {prefix}{required[0]}", where=where)
    try:
        return cls(**values)
    except CortextError as error:  # of the dataclass itself, which does not know where its values came from
        raise type(error)(error.what, where=error.where or where, fix=error.fix) from None


def with_overrides(config: C, overrides: Iterable[str]) -> C:
    """The config with `key=value` texts applied; values are YAML, keys are dotted (`dataset.batch_size=16`)."""
    mapping = to_mapping(config)
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            raise ConfigError(f"--set {override!r} has no '='; write key=value")
        section = mapping
        *parents, last = key.strip().split(".")
        for parent in parents:
            if not isinstance(section.get(parent), dict):
                raise ConfigError(f"unknown key {key}; {nearest(parent, section)}")
            section = section[parent]
        try:
            section[last] = yaml.safe_load(text)
        except yaml.YAMLError:
            raise ConfigError(f"--set {override!r}: the value is not valid YAML") from None
    return from_mapping(type(config), mapping)


def to_mapping(config: Any) -> dict[str, Any]:
    """The config as plain dicts, lists and scalars, ready for YAML or JSON."""
    plain: dict[str, Any] = _plain(dataclasses.asdict(config))
    return plain


def save_config(config: Any, path: str | Path) -> None:
    """Write the config as YAML."""
    Path(path).write_text(yaml.safe_dump(to_mapping(config), sort_keys=False, allow_unicode=True))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _convert(value: Any, hint: Any, key: str, where: str | Path | None) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        if value is None and type(None) in arguments:
            return None
        choices = [argument for argument in arguments if argument is not type(None)]
        for choice in choices[:-1]:
            try:
                return _convert(value, choice, key, where)
            except ConfigError:
                continue
        return _convert(value, choices[-1], key, where)
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return from_mapping(hint, value, where, prefix=f"{key}.")
    if origin is typing.Literal:
        if value in arguments:
            return value
        raise ConfigError(f"{key} is {value!r}; one of {', '.join(map(repr, arguments))} is needed", where=where)
    if origin in (list, tuple) and isinstance(value, list | tuple):
        if origin is tuple and Ellipsis not in arguments:
            if len(value) != len(arguments):
                raise ConfigError(f"{key} has {len(value)} values; {len(arguments)} are needed", where=where)
            return tuple(_convert(item, kind, key, where) for item, kind in zip(value, arguments, strict=True))
        return origin(_convert(item, arguments[0], key, where) for item in value)
    if origin is dict and isinstance(value, Mapping):
        return {_convert(k, arguments[0], key, where): _convert(v, arguments[1], key, where) for k, v in value.items()}
    return _scalar(value, origin or hint, key, where)


def _scalar(value: Any, hint: Any, key: str, where: str | Path | None) -> Any:
    if hint is Any:
        return value
    if hint is float and not isinstance(value, bool):
        try:  # YAML 1.1 reads 1e-3 as a text
            return float(value)
        except (TypeError, ValueError):
            pass
    elif hint is Path and isinstance(value, str | Path):
        return Path(value)
    elif isinstance(hint, type) and isinstance(value, hint) and (hint is bool or not isinstance(value, bool)):
        return value
    found = f"{value!r} ({type(value).__name__})"
    raise ConfigError(f"{key} is {found}; {getattr(hint, '__name__', hint)} is needed", where=where)


def first_difference(before: Any, now: Any, prefix: str = "") -> tuple[str, Any, Any] | None:
    """Dotted key, old and new value of the first difference between two nested mappings."""
    if isinstance(before, dict) and isinstance(now, dict):
        for key in before | now:
            if found := first_difference(before.get(key), now.get(key), f"{prefix}.{key}" if prefix else str(key)):
                return found
        return None
    return None if before == now else (prefix, before, now)
