"""All commands by heading: those of the core, and those that other packages join.

A package joins its own with an entry point of the group `cortext.commands`, whose object has the
form of `COMMANDS`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cortext.cli.console import print_lines
from cortext.entry_points import DISTRIBUTION, is_ours, joined
from cortext.errors import first_line, shown

Entry = str
"""A command: its module and function, as `cortext.cli.lm.build`."""


@dataclass(frozen=True)
class Group:
    """Commands under a common name, such as `cortext lm build`.

    Attributes:
        help: What they do; empty where a package adds to the group of another.
        commands: The commands by name.
    """

    help: str
    commands: Mapping[str, Entry]


Headings = dict[str, dict[str, Entry | Group]]
COMMANDS: Headings = {
    "Data": {
        "inspect": "cortext.cli.data.inspect",
        "pack": "cortext.cli.data.pack",
    },
    "Training": {
        "train": "cortext.cli.train.train",
        "pretrain": "cortext.cli.train.pretrain",
    },
    "Language models": {
        "lm": Group(
            "Build, describe and use n-gram language models.",
            {
                "build": "cortext.cli.lm.build",
                "info": "cortext.cli.lm.info",
                "score": "cortext.cli.lm.score",
            },
        ),
    },
    "Decoding": {
        "evaluate": "cortext.cli.evaluate.evaluate",
        "decode": "cortext.cli.decode.decode",
    },
    "Live": {},
    "Speech LLM": {},
    "Benchmarks and tools": {},
}
"""The core's commands. The headings are in the order in which `cortext --help` shows them."""


def all_commands() -> Headings:
    """Return the commands of the core and of all packages that join theirs.

    A package that cannot be loaded costs its own commands alone, and a line on stderr: others may
    be needed to speak.
    """
    tree = COMMANDS
    entries = joined("cortext.commands")
    if not any(map(is_ours, entries)):
        _warn(f"no package joins its commands; install {DISTRIBUTION} anew")
    for entry in entries:
        try:
            tree = _joined(tree, entry.load())
        except (Exception, SystemExit) as error:
            reason = f"{type(error).__name__}: {first_line(error)}"
            _warn(f"the commands of {entry.value} cannot be loaded ({reason})")
    return tree


def _warn(line: str) -> None:
    print_lines(shown(f"cortext: {line}"), err=True)


def _joined(tree: Headings, added: Headings) -> Headings:
    merged = {heading: dict(commands) for heading, commands in tree.items()}
    homes = {name: heading for heading, commands in tree.items() for name in commands}
    for heading, commands in added.items():
        for name, command in commands.items():
            # A command that is there already has its heading, whatever heading is asked for.
            under = merged.setdefault(homes.get(name, heading), {})
            under[name] = _together(under.get(name), command)
    return merged


def _together(known: Entry | Group | None, added: Entry | Group) -> Entry | Group:
    """Add the commands of a group to those that it has; a command that is there stays."""
    if isinstance(known, Group) and isinstance(added, Group):
        new = {
            name: command for name, command in added.commands.items() if name not in known.commands
        }
        return Group(known.help or added.help, {**known.commands, **new})
    return known or added
