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
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

from cortext.arguments import as_path
from cortext.entry_points import own_packages
from cortext.errors import ConfigError, CortextError, first_line

_PREFIX = "cortext_plugin_"


def load_plugin(path: str | Path) -> ModuleType:
    """Run a user's file as a module, once, and return it.

    Its name is the same in every process on a machine.

    Raises:
        ConfigError: With the file and line of what went wrong in it.
    """
    path = as_path(path, "plugin").resolve()
    name = f"{_PREFIX}{path.stem}_{zlib.crc32(str(path).encode()):08x}"
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


def is_own(thing: Any) -> bool:
    """Tell whether a class, or the class of an object, is a user's own and not one of cortext."""
    module = _class(thing).__module__
    return not (is_of_cortext(module) or module.startswith("torch."))


def is_of_cortext(module: str) -> bool:
    """Tell whether a module is in cortext or in one of the packages that come with it."""
    package = module.partition(".")[0]
    return package == "cortext" or (package.startswith("cortext_") and package in own_packages())


def place(thing: Any, method: str = "__call__") -> str:
    """Return where a class, or the class of an object, has a method: `mine.py:12: Conv.forward`."""
    cls = _class(thing)
    code = getattr(getattr(cls, method, None), "__code__", None)
    if isinstance(code, CodeType):
        return f"{code.co_filename}:{code.co_firstlineno}: {_name(code)}"
    return f"{_file(cls)}: {cls.__qualname__}"


def fault(error: BaseException, *things: Any) -> ConfigError | None:
    """Return the line for an exception that a user's own code raised.

    Args:
        error: The exception.
        things: A user's own classes or objects, beside those of the loaded plug-ins.

    Returns:
        The file, line and function that raised it or called what did; None if no frame of it lies
        in a plug-in or in the file of one of `things`.
    """
    loaded = [module for name, module in sys.modules.items() if name.startswith(_PREFIX)]
    files = {_file(thing) for thing in things} | {str(module.__file__) for module in loaded}
    frames = [
        (frame.f_code, number)
        for frame, number in traceback.walk_tb(error.__traceback__)
        if frame.f_code.co_filename in files
    ]
    if not frames:
        return None
    code, number = frames[-1]
    what = f"{_name(code)} raises {type(error).__name__}: {first_line(error)}"
    return ConfigError(what, where=f"{code.co_filename}:{number}")


def build(cls: Any, *arguments: Any, **settings: Any) -> Any:
    """Return a new object of a registered class.

    Raises:
        ConfigError: For a user's own class that takes other arguments.
    """
    try:
        return cls(*arguments, **settings)
    except TypeError as error:
        if not is_own(cls) or fault(error, cls) is not None:
            raise
        needed = ", ".join(["self", "config", *(["*"] if settings else []), *settings])
        what = f"TypeError: {first_line(error)}"
        fix = f"write def __init__({needed})"
        raise ConfigError(what, where=place(cls, "__init__"), fix=fix) from error


@contextmanager
def blaming(*things: Any) -> Iterator[None]:
    """Turn an exception of a user's own code into one line that names the file and the function.

    An exception of torch or of cortext under these classes is their fault, too, because shipped
    classes are tested.

    Args:
        things: Models, losses and the like, or their classes; those of cortext are never blamed.

    Raises:
        ConfigError: In place of any other exception, if one of `things` is a user's own.
    """
    try:
        yield
    except MemoryError:
        raise
    except CortextError as error:
        line = located(error, *things)
        if line is error:
            raise
        raise line from error
    except Exception as error:
        own = [thing for thing in things if is_own(thing)]
        raised = fault(error, *own) if own else None
        if raised is not None:
            raise raised from error
        if not own or isinstance(error, OSError):
            raise
        names = _names(own)
        what = f"gives values that cannot be used: {type(error).__name__}: {first_line(error)}"
        raise ConfigError(what, where=names, fix="run cortext check-plugin on it") from error


def located(error: CortextError, *things: Any) -> CortextError:
    """Return an error with the place in a user's own code that caused it, if it has no place.

    Args:
        error: The error, which cortext raised for what it was given.
        things: Objects or classes; those of cortext are left out.
    """
    own = [thing for thing in things if is_own(thing)]
    if error.where is not None or not own:
        return error
    line = fault(error, *own)
    where = _names(own) if line is None else f"{line.where}: {line.what.partition(' raises ')[0]}"
    return type(error)(error.what, where=where, fix=error.fix)


def _names(things: Sequence[Any]) -> str:
    return " or ".join(f"{_file(thing)}: {_class(thing).__qualname__}" for thing in things)


def _class(thing: Any) -> type:
    return thing if isinstance(thing, type) else type(thing)


def _file(thing: Any) -> str:
    """Return the file of a class; the module's name where there is none, as in a notebook."""
    module = _class(thing).__module__
    return str(getattr(sys.modules.get(module), "__file__", None) or module)


def _name(code: CodeType) -> str:
    """Return a function's name as `Conv.forward`, without the functions that define it."""
    return code.co_qualname.rpartition("<locals>.")[2]


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
