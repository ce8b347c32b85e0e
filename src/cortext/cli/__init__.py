"""The command line: thin commands that parse, call one function and print.

Every command returns 0 on success and 2 on a user's error, which is one line on stderr without a
traceback.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib import import_module
from typing import Any

import typer
import typer.main
from typer.core import TyperGroup

from cortext.cli.console import print_lines
from cortext.cli.tree import COMMANDS, Entry, Group, Headings, all_commands
from cortext.errors import CortextError, first_line, shown


class _Commands(Mapping[str, Any]):
    """Commands by name, each imported and built when it is asked for.

    Typer takes 0.1 s to build all of them, which every start of `cortext` would wait for.
    """

    def __init__(self, entries: Mapping[str, Entry | Group], headings: Mapping[str, str]) -> None:
        self._entries = entries
        self._headings = headings

    def __getitem__(self, name: str) -> Any:
        entry = self._entries[name]
        heading = self._headings.get(name)
        if isinstance(entry, Group):
            commands: Any = _Commands(entry.commands, {})
            return _CommandList(name, commands, help=entry.help, rich_help_panel=heading)
        return _command(name, entry, heading)

    def __contains__(self, name: object) -> bool:
        return name in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def _command(name: str, entry: Entry, heading: str | None) -> Any:
    from cortext.cli.options import command_settings, with_options

    module, _, attribute = entry.rpartition(".")
    function = getattr(import_module(module), attribute)
    settings = {"rich_help_panel": heading, **command_settings(function)}
    alone = typer.Typer(add_completion=False, rich_markup_mode=None)
    alone.command(name, **settings)(with_options(function))
    return typer.main.get_command(alone)


class _CommandList(TyperGroup):
    """Commands, whose help is plain text under headings, each with its whole first sentence."""

    def __init__(self, name: str | None, commands: Any, **settings: Any) -> None:
        # Without Rich's markup help is plain text, which pipes and screen readers take as it is.
        super().__init__(name=name, commands=commands, **settings | {"rich_markup_mode": None})

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.commands)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        # `dict.get` would take a KeyError of a command's own module for an unknown command.
        if cmd_name not in self.commands:
            return None
        return self.commands[cmd_name]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for name in self.commands:
            heading, text = self._about(name)
            rows = sections.setdefault(heading or "Commands", [])
            rows.append((name, re.split(r"(?<=[a-z]\.) ", " ".join(text.split()))[0]))
        for heading in dict.fromkeys((*COMMANDS, *sections)):
            if heading in sections:
                with formatter.section(heading):
                    formatter.write_dl(sections[heading])

    def _about(self, name: str) -> tuple[str | None, str]:
        """Return the heading of a command and the first paragraph of its help."""
        try:
            command = self.commands[name]
        # One command of another package must not cost the help of all.
        except (Exception, SystemExit) as error:
            return None, f"(cannot be loaded: {type(error).__name__}: {first_line(error)})"
        return getattr(command, "rich_help_panel", None), (command.help or "").split("\n\n")[0]


def _under_headings(tree: Headings) -> _Commands:
    entries = {name: entry for under in tree.values() for name, entry in under.items()}
    headings = {name: heading for heading, under in tree.items() for name in under}
    return _Commands(entries, headings)


class _AllCommands(Mapping[str, Any]):
    """The commands of the core and of all packages.

    Packages are asked for theirs when a command is none of the core's: finding out which
    are installed takes 40 ms, which every start of `cortext` would wait for.
    """

    def __init__(self) -> None:
        # Packages may add to groups, which are therefore not the core's alone.
        self._core = _under_headings(
            {
                heading: {name: entry for name, entry in under.items() if isinstance(entry, str)}
                for heading, under in COMMANDS.items()
            }
        )

    @cached_property
    def _all(self) -> _Commands:
        return _under_headings(all_commands())

    def __getitem__(self, name: str) -> Any:
        return (self._core if name in self._core else self._all)[name]

    def __contains__(self, name: object) -> bool:
        return name in self._core or name in self._all

    def __iter__(self) -> Iterator[str]:
        return iter(self._all)

    def __len__(self) -> int:
        return len(self._all)


class _Root(_CommandList):
    """All commands."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings | {"commands": _AllCommands()})


app = typer.Typer(
    name="cortext",
    help="Intracortical recordings of attempted speech, decoded into text.",
    cls=_Root,
    rich_markup_mode=None,
)

# Typer carries click inside; of its exceptions only BadParameter is public, and what a user can
# cause shares its base.
_ClickError: type[Exception] = typer.BadParameter.__mro__[2]  # type: ignore[assignment]


def _print_version(wanted: bool) -> None:
    if wanted:
        from cortext import __version__

        print_lines(f"cortext {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    pass


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its status."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: list[str]) -> int:
    """Run one command and return its status."""
    try:
        status = app(arguments or ["--help"], prog_name="cortext", standalone_mode=False)
        if status == 130:  # Typer ends quietly on Ctrl-C
            return _complain("interrupted", 130)
        return status if isinstance(status, int) else 0
    except CortextError as error:
        return _complain(str(error), 2)
    except _ClickError as error:
        context = getattr(error, "ctx", None)
        command = context.command_path if context else "cortext"
        return _complain(f"{error.format_message().rstrip('.')}; see `{command} --help`", 2)  # type: ignore[attr-defined]
    except (KeyboardInterrupt, typer.Abort):
        return _complain("interrupted", 130)
    except MemoryError:
        return _complain(
            "there is not enough memory for this; give less at once, or end other programs", 2
        )
    except ImportError as error:
        if not _is_native(error):
            raise
        problem = f"the compiled part of cortext cannot be loaded ({error})"
        return _complain(f"{problem}; in a checkout of cortext: pip install .", 2)
    except BrokenPipeError:  # the reader of a pipe (head, less) has left; there is nobody to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        if error.errno not in (
            errno.ENOSPC,
            errno.EACCES,
            errno.EROFS,
            errno.EDQUOT,
            errno.EFBIG,
            errno.EPERM,
            errno.ENAMETOOLONG,
        ):
            return _complain_of_plugin(error)
        return _complain(
            f"{error.filename or 'writing'}: {error.strerror}; choose another place", 2
        )
    except Exception as error:
        if _is_of_a_full_gpu(error):
            problem = str(error).split(" GPU ")[0].rstrip(". ")
            fix = "in training, --set gradient_accumulation_steps=4 takes the same batch in pieces"
            return _complain(f"{problem}; give less at once ({fix}), or end other programs", 2)
        return _complain_of_plugin(error)


def _is_of_a_full_gpu(error: Exception) -> bool:
    """Tell whether torch raised it for want of a GPU's memory, without importing torch."""
    return type(error).__name__ == "OutOfMemoryError" and type(error).__module__ == "torch"


def _complain_of_plugin(error: Exception) -> int:
    """Complain about what a plug-in's own code raised; raise anything else again."""
    from cortext.plugins import fault

    line = fault(error)
    if line is None:
        raise error
    return _complain(str(line), 2)


def _is_native(error: ImportError) -> bool:
    """Return whether the compiled module is missing, or cannot be loaded here."""
    missing = error.name == "cortext" and "'_native'" in str(error)
    return missing or error.name == "cortext._native"


def _complain(line: str, status: int) -> int:
    print_lines(shown(f"cortext: {line}"), err=True)
    return status
