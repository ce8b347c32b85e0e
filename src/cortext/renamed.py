"""Old names of the Python interface, kept for one release with a warning that says the new one."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

MODULES: dict[str, str] = {
    "cortext.data.hdf5": "cortext.data",
    "cortext.evaluation.use": "cortext.usage.statistics",
    "cortext.evaluation.use_figures": "cortext.usage.report",
    "cortext.evaluation.use_log": "cortext.usage.log",
    "cortext.evaluation.use_report": "cortext.usage.report",
    "cortext.live.acoustic_stream": "cortext.live.core.acoustic_stream",
    "cortext.live.endpoint": "cortext.live.core.acoustic_stream",
    "cortext.live.llm": "cortext.live.core.decoder",
    "cortext.live.pauses": "cortext.live.core.decoder",
    "cortext.live.pipeline": "cortext.live.core.pipeline",
    "cortext.live.session_log": "cortext.usage.writer",
    "cortext.speechllm.voices": "cortext.voices",
    "cortext.decoding.session": "cortext.decoding.decoder",
    "cortext.text.phonemes": "cortext.text.inventory",
    "cortext.tuning.decoder_material": "cortext.tuning.decoder.material",
}
"""Old module or package: new one. What lies in an old package is looked for in the new one."""


def renamed(
    package: str, names: Mapping[str, str], load: Callable[[str], Any] | None = None
) -> Callable[[str], Any]:
    """Return a module's `__getattr__` that still knows its objects by their old names.

    Args:
        package: The module's `__name__`.
        names: Old name: new name, as `module:name` where the object has moved to another module.
        load: The `__getattr__` that knows all other names, if the module has one.

    Returns:
        A function that warns with a DeprecationWarning and returns the object, and that raises
        AttributeError for a name that it does not know either.
    """

    def find(name: str) -> Any:
        if name in names:
            home, _, new = names[name].rpartition(":")
            home = home or package
            _warn(f"{package}.{name}", f"{home}.{new}")
            return getattr(import_module(home), new)
        if load is not None:
            return load(name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    return find


def install() -> None:
    """Let the import system find modules under the names in `MODULES`."""
    if not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        # Before the finders of files: an old package's path is that of the new one, where they
        # would load its modules a second time.
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder, Loader):
    """Import a module that has moved from where it is now."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        return None if _new_name(name) is None else ModuleSpec(name, self)

    def exec_module(self, module: ModuleType) -> None:
        new = _new_name(module.__name__)
        assert new is not None
        _warn(module.__name__, new)
        # The import system returns what stands here afterwards: one module, two names.
        sys.modules[module.__name__] = import_module(new)


def _new_name(name: str) -> str | None:
    package = name
    inner = ""
    while package:
        if package in MODULES:
            return MODULES[package] + inner
        package, _, last = package.rpartition(".")
        inner = f".{last}{inner}"
    return None


def _warn(old: str, new: str) -> None:
    message = f"{old} is now {new}; the old name goes away with the next release"
    # The caller's caller. Python leaves the import system's own frames out when it counts.
    warnings.warn(message, DeprecationWarning, stacklevel=3)
