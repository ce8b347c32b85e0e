"""A user's own models, losses and augmentations: a Python file whose decorators register them.

A run directory never brings code of its own: whoever reads a run with a model of this kind names
the file again.
"""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
import traceback
import zlib
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType

from cortext.errors import ConfigError, CortextError


def load_plugin(path: str | Path) -> ModuleType:
    """Run a user's file as a module, once, and return it.

    Its name is the same in every process on a machine.

    Raises:
        ConfigError: With the file and line of what went wrong in it.
    """
    path = Path(path).resolve()
    name = f"cortext_plugin_{path.stem}_{zlib.crc32(str(path).encode()):08x}"
    if name in sys.modules:
        return sys.modules[name]
    if not path.is_file():
        raise ConfigError(
            "there is no such file", where=path, fix="give a Python file with --plugin"
        )
    loader = importlib.machinery.SourceFileLoader(name, str(path))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise _one_line(error, path) from None
    except BaseException:
        del sys.modules[name]
        raise
    return module


def load_plugins(paths: Iterable[str | Path]) -> None:
    """Load each file; see `load_plugin`."""
    for path in paths:
        load_plugin(path)


def _one_line(error: BaseException, path: Path) -> ConfigError:
    if isinstance(error, SyntaxError) and error.filename == str(path):
        return ConfigError(f"{type(error).__name__}: {error.msg}", where=f"{path}:{error.lineno}")
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == str(path)
    ]
    where = f"{path}:{lines[-1]}" if lines else str(path)
    if isinstance(error, CortextError):
        return ConfigError(error.what, where=where, fix=error.fix)
    return ConfigError(f"{type(error).__name__}: {error}", where=where)
