"""Classes by name: the values of `kind` in a configuration.

A class brings a dataclass `Config` with a field `kind`.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from cortext.arguments import check_type
from cortext.config import from_mapping
from cortext.errors import ConfigError, nearest

T = TypeVar("T", bound=type)


class Registry(dict[str, Any]):
    """Registered classes by name.

    Args:
        noun: What they are, as messages say it.
        fields: What their `Config` must have beside `kind`.
    """

    def __init__(self, noun: str, fields: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.noun = noun
        self.fields = fields

    def register(self, name: str) -> Callable[[T], T]:
        """Register the decorated class by name.

        The same class may be registered again, as it is when a notebook's cell or a reloaded module
        runs twice.

        Raises:
            ConfigError: For a name that another class has, and for a class without a fitting
                `Config`.
        """

        def keep(cls: T) -> T:
            check_type(cls, type, self.noun, "a class")
            known = self.get(name)
            if known is not None and _name(known) != _name(cls):
                both = f"{_name(known)} and {_name(cls)}"
                raise ConfigError(
                    f"two {self.noun}s are called {name!r}: {both}",
                    fix="give one of them another name",
                )
            self._check(name, cls)
            self[name] = cls
            return cls

        return keep

    def _check(self, name: str, cls: type) -> None:
        config = getattr(cls, "Config", None)
        called = f"{self.noun} {cls.__qualname__}"
        if config is None:
            raise ConfigError(f"{called} has no Config; give it a dataclass with its settings")
        if not dataclasses.is_dataclass(config):
            what = f"the Config of {called} is no dataclass"
            raise ConfigError(what, fix="write @dataclass before its class")
        fields = {field.name: field for field in dataclasses.fields(config)}
        for needed in ("kind", *self.fields):
            if needed not in fields:
                raise ConfigError(f"the Config of {called} has no field {needed!r}; add it")
        if fields["kind"].default != name:
            found = f"the Config of {called} has another kind than {name!r}"
            raise ConfigError(found, fix=f'write kind: Literal["{name}"] = "{name}"')

    def config(
        self,
        mapping: Any,
        section: str,
        default: str | None = None,
        where: str | Path | None = None,
    ) -> Any:
        """Build the config dataclass that a mapping's `kind` names; return a dataclass unchanged.

        Args:
            mapping: The section of a configuration.
            section: The dotted path of the mapping, for messages.
            default: The kind where the mapping names none.
            where: The file, for messages.

        Raises:
            ConfigError: For an unknown kind, key or value.
        """
        if dataclasses.is_dataclass(mapping) and not isinstance(mapping, type):
            return mapping
        if not isinstance(mapping, Mapping):
            raise ConfigError(
                f"{section} is a {type(mapping).__name__}; a section of keys is needed", where=where
            )
        kind = mapping.get("kind", default)
        if kind is None:
            raise ConfigError(f"{section} has no kind; {nearest('', self)}", where=where)
        if not isinstance(kind, str) or kind not in self:
            hint = nearest(str(kind), self)
            end = " Or" if hint.endswith("?") else "; or"
            raise ConfigError(
                f"unknown {self.noun} {kind!r}; {hint}{end} give the file that registers it with"
                " --plugin",
                where=where,
            )
        return from_mapping(self[kind].Config, mapping, where=where, prefix=f"{section}.")


def _name(cls: type) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"
