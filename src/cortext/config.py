"""Dataclasses from YAML, strictly: an unknown key or a value of the wrong type is an error.

The dataclasses themselves live beside what they configure; this module reads, checks, overrides and
writes them. OmegaConf and pydantic are not used: neither bounds what a YAML file from outside may
repeat through aliases, and neither names the key that a misspelt one is nearest to.
"""

from __future__ import annotations

import copy
import dataclasses
import types
import typing
from collections.abc import Iterable, Mapping
from numbers import Integral
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import yaml

from cortext.arguments import as_path, check_list, check_text
from cortext.errors import ConfigError, CortextError, nearest
from cortext.files import MOST_LEVELS, atomic_write, check_file
from cortext.settings import settings_of

C = TypeVar("C")
MOST_BYTES = 1 << 20
"""Longest YAML file that is read; PyYAML takes seconds for each megabyte."""
_MOST_VALUES = 100_000
"""Most values of a YAML file, those counted again that aliases repeat."""
_MOST_DIGITS = 100
_PREFIX = "tag:yaml.org,2002:"
_TAGS = {
    f"{_PREFIX}{name}" for name in ("map", "seq", "str", "int", "float", "bool", "null", "merge")
}


class _Loader(yaml.SafeLoader):
    """Reads plain values from YAML that is not trusted; a date is read as a text.

    The value built from nodes grows with what aliases and merge keys repeat, and a few lines can
    repeat a section without end. So the values of each node are counted with all repetitions as
    soon as it is read, before anything is built. A key that stands twice in a section is refused;
    YAML would silently take the last.
    """

    yaml_implicit_resolvers = {  # noqa: RUF012 - PyYAML's own
        first: [(tag, pattern) for tag, pattern in resolvers if tag in _TAGS]
        for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._level = self._n_nodes = 0
        self._counted: dict[int, tuple[int, int]] = {}  # values and levels of each node, by id

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event = self.peek_event()  # type: ignore[no-untyped-call]
        self._level += 1
        self._n_nodes += 1
        _check_count(self._n_nodes, self._level, event)
        node = super().compose_node(parent, index)
        self._level -= 1
        if node is None or (isinstance(event, yaml.AliasEvent) and id(node) in self._counted):
            return node
        if isinstance(event, yaml.AliasEvent):
            _refuse("a section holds itself", event)
        if node.tag not in _TAGS:
            _refuse(f"the tag {node.tag!r} is no plain value's", node)
        if node.tag in (f"{_PREFIX}int", f"{_PREFIX}float") and len(node.value) > _MOST_DIGITS:
            _refuse(
                f"a number has {len(node.value):,} characters; at most {_MOST_DIGITS} are read",
                node,
            )
        below: Iterable[yaml.Node] = ()
        if isinstance(node, yaml.MappingNode):
            below = (part for pair in node.value for part in pair)
        elif isinstance(node, yaml.SequenceNode):
            below = node.value
        n_values = 1
        n_levels = 0
        for child in below:
            values, levels = self._counted[id(child)]
            n_values += values
            n_levels = max(n_levels, levels)
        _check_count(n_values, n_levels + 1, node)
        self._counted[id(node)] = n_values, n_levels + 1
        return node

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        keys = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != f"{_PREFIX}merge":
                if key.value in keys:
                    _refuse(f"{key.value} is given twice", key)
                keys.add(key.value)
        return node


def _check_count(n_values: int, n_levels: int, place: yaml.Node | yaml.Event) -> None:
    if n_values > _MOST_VALUES:
        _refuse(f"more than {_MOST_VALUES:,} values, with those that aliases repeat", place)
    if n_levels > MOST_LEVELS:
        _refuse(f"more than {MOST_LEVELS} levels", place)


def _refuse(what: str, place: yaml.Node | yaml.Event) -> NoReturn:
    mark: Any = place.start_mark
    raise yaml.constructor.ConstructorError(None, None, what, mark)


def load_config(path: str | Path, cls: type[C], overrides: Iterable[str] = ()) -> C:
    """Read a YAML file into dataclass `cls`, then apply `key=value` overrides.

    Args:
        path: The file.
        cls: The dataclass.
        overrides: Dotted keys reach into sections.

    Raises:
        ConfigError: For a missing file, broken YAML, an unknown key (with the nearest one) or a
            wrong type.
    """
    return with_overrides(from_mapping(cls, read_mapping(path), where=path), overrides)


def read_mapping(path: str | Path) -> dict[Any, Any]:
    """Read the mapping in a YAML file, an empty one where the file is empty.

    Raises ConfigError naming the file and line.
    """
    path = as_path(path, "path")
    try:
        check_file(path, MOST_BYTES)
        text = path.read_text()
    except OSError as error:
        raise ConfigError(f"cannot read the configuration: {error.strerror}", where=path) from None
    except UnicodeDecodeError:
        raise ConfigError("not a text file; a YAML file is needed", where=path) from None
    except ValueError as error:  # also a NUL in the name
        raise ConfigError(f"{error}; a YAML file is needed", where=path) from None
    mapping = parse_yaml(text, path) or {}
    if not isinstance(mapping, dict):
        raise ConfigError(
            f"the file is a {type(mapping).__name__}; a section of keys is needed", where=path
        )
    return mapping


def parse_yaml(text: str, where: str | Path | None = None) -> Any:
    """Parse YAML that is not trusted: mappings, lists, texts, numbers, true, false and null.

    The time it takes grows with the text alone, whatever aliases and merge keys repeat. Raises
    ConfigError with the line.
    """
    try:
        return yaml.load(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" in line {mark.line + 1}" if mark else ""
        raise ConfigError(
            f"not valid YAML{line}: {getattr(error, 'problem', error)}", where=where
        ) from None
    except (ValueError, LookupError) as error:  # a number or truth value that cannot be
        raise ConfigError(f"cannot be read as YAML: {error}", where=where) from None


def from_mapping(
    cls: type[C], mapping: Any, where: str | Path | None = None, prefix: str = ""
) -> C:
    """Build dataclass `cls` from a mapping, checking every key and type.

    Args:
        cls: The dataclass.
        mapping: Values by field name.
        where: The file, for messages.
        prefix: The dotted path of the section.

    Raises:
        ConfigError: For an unknown or missing key and a value of the wrong type.
    """
    if not isinstance(mapping, Mapping):
        found = type(mapping).__name__
        raise ConfigError(
            f"{prefix.rstrip('.') or 'the file'} is a {found}; a section of keys is needed",
            where=where,
        )
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
    except CortextError as error:
        # The dataclass checks its values and does not know which file they came from.
        raise type(error)(error.what, where=error.where or where, fix=error.fix) from None


def check_fields(config: Any, prefix: str = "", error: type[CortextError] = ConfigError) -> None:
    """Check types and bounds of a dataclass that may have been made in Python.

    Types are those of a file: values of another type that mean the same, such as NumPy's integers,
    are replaced. Bounds are those of the fields' `Setting`. To be called first in `__post_init__`.

    Args:
        config: The dataclass.
        prefix: The dotted path of its section, for messages.
        error: The error for the first wrong type, or else for the first number out of bounds.
    """
    hints = typing.get_type_hints(type(config))
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        try:
            converted = _convert(value, hints[field.name], f"{prefix}{field.name}", None)
        except ConfigError as fault:
            if error is ConfigError:
                raise
            raise error(fault.what, fix=fault.fix) from None
        object.__setattr__(config, field.name, converted)  # the dataclass may be frozen
    check_bounds(config, prefix, error)


def check_bounds(config: object, prefix: str = "", error: type[CortextError] = ConfigError) -> None:
    """Raise an error for the first field out of the bounds of its `Setting`; None is in all.

    Args:
        config: The dataclass.
        prefix: The dotted path of its section, for messages.
        error: The error to raise.
    """
    cls: Any = type(config)
    for name, setting in settings_of(cls).items():
        setting.check(prefix + name, getattr(config, name), error)


def with_overrides(config: C, overrides: Iterable[str]) -> C:
    """Return the config with `key=value` texts applied.

    Values are YAML, keys are dotted (`dataset.batch_size=16`).
    """
    return from_mapping(type(config), overridden(to_mapping(config), overrides))


def overridden(mapping: Mapping[Any, Any], overrides: Iterable[str]) -> dict[Any, Any]:
    """Return a copy of the mapping with `key=value` texts applied; see `with_overrides`.

    A section that the mapping lacks is made, and one that is null where its `kind` is set.
    """
    changed = copy.deepcopy(dict(mapping))
    for override in check_list(overrides, "overrides", "a list of 'key=value' texts"):
        check_text(override, "an override")
        key, equals, text = override.partition("=")
        if not equals:
            raise ConfigError(f"--set {override!r} has no '='; write key=value")
        section = changed
        *parents, last = key.strip().split(".")
        for parent in parents:
            if parent not in section or (section[parent] is None and last == "kind"):
                section[parent] = {}
            if not isinstance(section[parent], dict):
                raise ConfigError(f"unknown key {key}; {nearest(parent, section)}")
            section = section[parent]
        try:
            section[last] = parse_yaml(text)
        except ConfigError as error:
            raise ConfigError(f"--set {override!r}: the value is {error.what}") from None
    return changed


def to_mapping(config: Any) -> dict[str, Any]:
    """Return the config as plain dicts, lists and scalars, ready for YAML or JSON."""
    plain: dict[str, Any] = _plain(dataclasses.asdict(config))
    return plain


def save_config(config: Any, path: str | Path) -> None:
    """Write the config as YAML."""
    text = yaml.safe_dump(to_mapping(config), sort_keys=False, allow_unicode=True)
    atomic_write(Path(path), text.encode())


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def _convert(value: Any, hint: Any, key: str, where: str | Path | None) -> Any:
    origin = typing.get_origin(hint)
    arguments = typing.get_args(hint)
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
        if isinstance(value, hint):
            return value
        return from_mapping(hint, value, where, prefix=f"{key}.")
    if origin is typing.Literal:
        # The type first: an array compares element by element.
        if isinstance(value, tuple(map(type, arguments))) and value in arguments:
            return value
        raise ConfigError(
            f"{key} is {value!r}; one of {', '.join(map(repr, arguments))} is needed", where=where
        )
    if origin in (list, tuple) and isinstance(value, list | tuple):
        if origin is tuple and Ellipsis not in arguments:
            if len(value) != len(arguments):
                raise ConfigError(
                    f"{key} has {len(value)} values; {len(arguments)} are needed", where=where
                )
            return tuple(
                _convert(item, kind, key, where)
                for item, kind in zip(value, arguments, strict=True)
            )
        return origin(_convert(item, arguments[0], key, where) for item in value)
    if origin is dict and isinstance(value, Mapping):
        return {
            _convert(k, arguments[0], key, where): _convert(v, arguments[1], key, where)
            for k, v in value.items()
        }
    return _scalar(value, origin or hint, key, where)


def _scalar(value: Any, hint: Any, key: str, where: str | Path | None) -> Any:
    if hint is Any:
        return value
    if hint is float and not isinstance(value, bool):
        try:  # YAML 1.1 reads 1e-3 as a text
            return float(value)
        except (TypeError, ValueError, OverflowError, RuntimeError):  # the last: empty tensors
            pass
    elif hint is int and isinstance(value, Integral) and not isinstance(value, bool):
        number = int(value)  # also one of NumPy's
        if not -(1 << 63) <= number < 1 << 64:
            raise ConfigError(f"{key} is an integer beyond 64 bits", where=where)
        return number
    elif hint is Path and isinstance(value, str | Path):
        return Path(value)
    elif (
        isinstance(hint, type)
        and isinstance(value, hint)
        and (hint is bool or not isinstance(value, bool))
    ):
        return value
    found = f"{value!r} ({type(value).__name__})"
    raise ConfigError(f"{key} is {found}; {getattr(hint, '__name__', hint)} is needed", where=where)


def first_difference(before: Any, now: Any, prefix: str = "") -> tuple[str, Any, Any] | None:
    """Return the first difference between two nested mappings; None where they are equal.

    Args:
        before: Mapping, or a value of one.
        now: The same, to compare.
        prefix: Dotted key of both.

    Returns:
        Dotted key, old value and new value; None stands for a missing key.
    """
    if isinstance(before, dict) and isinstance(now, dict):
        for key in before | now:
            if found := first_difference(
                before.get(key), now.get(key), f"{prefix}.{key}" if prefix else str(key)
            ):
                return found
        return None
    return None if before == now else (prefix, before, now)
