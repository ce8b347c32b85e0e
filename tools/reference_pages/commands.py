"""The command line's reference, from the commands themselves."""

import re
import types
import typing
from collections import Counter
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any

import typer.main

from cortext.cli import app
from cortext.cli.tree import all_commands
from reference_pages.markdown import code, front, plain, table

INDEX = "reference/commands.md"
ROOT_COMMAND: Any = typer.main.get_command(app)
DOCS = Path("docs")
KINDS = {str: "TEXT", Path: "PATH", int: "NUMBER", float: "NUMBER"}
MOST_GUIDES = 4


def pages() -> dict[str, str]:
    """Return the reference's pages, Markdown by address."""
    names = [name for names in all_commands().values() for name in names]
    return {INDEX: _index(), **pages_of(names)}


def pages_of(names: Iterable[str]) -> dict[str, str]:
    """Return the pages of some commands or groups; a group of commands has one page."""
    guides = _guides()
    written = {}
    for name in names:
        command = ROOT_COMMAND.get_command(None, name)
        text = front(name) + f"# cortext {name}\n\n"
        if hasattr(command, "commands"):
            text += f"{command.help}\n\n"
            text += table(("Command", "Purpose"), _group_rows(name, command.commands))
            for below in command.commands:
                full = f"{name} {below}"
                text += f"## {full} {{#{below}}}\n\n"
                text += _described(command.commands[below], full, "###", guides)
        else:
            text += _described(command, name, "##", guides)
        written[page_of(name)] = text
    return written


def _group_rows(name: str, commands: Any, page: str = "") -> Iterator[tuple[str, str]]:
    for below in commands:
        yield f"[`cortext {name} {below}`]({page}#{below})", _purpose(commands[below])


def nav() -> list[Any]:
    """Return the pages as mkdocs' navigation lists them: in the groups of `cortext --help`."""
    groups = [
        {heading: [{name: page_of(name)} for name in commands]}
        for heading, commands in all_commands().items()
    ]
    return [INDEX, *groups]


def page_of(name: str) -> str:
    """Return the address of the page of a command or group."""
    return f"reference/commands/{name}.md"


def _index() -> str:
    text = front("Command line") + (
        "# Command line\n\n"
        "Find the command for a task; its page lists every option with its default and its bounds."
        " `cortext COMMAND --help` prints the same in the terminal.\n\n"
    )
    for heading, names in all_commands().items():
        rows: list[tuple[str, str]] = []
        for name in names:
            command = ROOT_COMMAND.get_command(None, name)
            if hasattr(command, "commands"):
                rows += _group_rows(name, command.commands, f"commands/{name}.md")
            else:
                rows.append((f"[`cortext {name}`](commands/{name}.md)", _purpose(command)))
        text += f"## {heading}\n\n" + table(("Command", "Purpose"), rows)
    return text + (
        "## All commands\n\n"
        "Every command exits with 0 when it has done its work. It exits with 2 after one line on"
        " stderr when an input is wrong, and with 130 after Ctrl-C.\n\n"
        + table(
            ("Option", "Meaning"),
            (
                ("`cortext --version`", "Print the version."),
                ("`cortext --install-completion`", "Complete commands in the current shell."),
                ("`cortext COMMAND --help`", "Print a command's options."),
            ),
        )
    )


def _described(command: Any, name: str, level: str, guides: dict[str, list[str]]) -> str:
    paragraphs = [" ".join(part.split()) for part in command.help.split("\n\n")]
    examples = [part for part in paragraphs if part.startswith("Example: ")]
    text = "\n\n".join(plain(part) for part in paragraphs if part not in examples) + "\n\n"
    text += f"```text\n{_usage(command, name)}\n```\n\n"
    for example in examples:
        text += f"Example:\n\n```bash\n{example.removeprefix('Example: ')}\n```\n\n"
    arguments = [p for p in command.params if p.param_type_name == "argument"]
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
    for title, parameters in (
        ("Arguments", arguments),
        ("Required options", [p for p in options if p.required]),
        ("Options", [p for p in options if not p.required]),
    ):
        if parameters:
            anchor = f"{name}-{title}".replace(" ", "-").lower()
            text += f"{level} {title} {{#{anchor}}}\n\n"
            heads = (
                ("Name", "Default", "Meaning")
                if title != "Options"
                else ("Option", "Default", "Meaning")
            )
            text += table(heads, map(_row, parameters))
    if guides.get(name):
        text += "Guides: " + ", ".join(guides[name]) + ".\n\n"
    return text


def _purpose(command: Any) -> str:
    first = " ".join(command.help.split("\n\n")[0].split())
    return plain(re.split(r"(?<=[a-z]\.) ", first)[0])


def _usage(command: Any, name: str) -> str:
    words = ["cortext", name]
    for parameter in command.params:
        if parameter.param_type_name == "argument":
            word = _metavar(parameter)
            words.append(word if parameter.required else f"[{word}]")
        elif parameter.required:
            words.append(f"{parameter.opts[0]} {_metavar(parameter)}")
    if any(p.param_type_name == "option" and not p.required for p in command.params):
        words.append("[OPTIONS]")
    return " ".join(words)


def _row(parameter: Any) -> tuple[str, str, str]:
    if parameter.param_type_name == "argument":
        name = code(_metavar(parameter))
    else:
        value = "" if parameter.is_flag else f" {_metavar(parameter)}"
        name = "<br>".join(
            code(option + value) for option in (*parameter.opts, *parameter.secondary_opts)
        )
    notes = [plain(parameter.help or "")]
    choices = _choices(parameter.type_descriptor.annotation)
    if choices:
        notes.append("One of " + ", ".join(map(code, choices)) + ".")
    if (bounds := _bounds(parameter)) is not None:
        notes.append(bounds)
    if parameter.multiple and "several times" not in notes[0]:
        notes.append("May be given several times.")
    if parameter.envvar:
        notes.append(f"Also read from the variable `{parameter.envvar}`.")
    return name, _default(parameter), " ".join(notes)


def _default(parameter: Any) -> str:
    default = parameter.default
    if parameter.required:
        return "required"
    if default is None or default is False or default in ((), []) or not parameter.show_default:
        return ""
    if isinstance(default, Enum):
        default = default.value
    return code(str(default)) if not callable(default) else ""


def _bounds(parameter: Any) -> str | None:
    low, high = parameter.min, parameter.max
    if low is None and high is None:
        return None
    if high is None:
        return f"At least {low:,g}."
    return f"At most {high:,g}." if low is None else f"From {low:,g} to {high:,g}."


def _metavar(parameter: Any) -> str:
    if parameter.metavar:
        return str(parameter.metavar)
    if parameter.param_type_name == "argument":
        return str(parameter.name).upper()
    annotation = _bare(parameter.type_descriptor.annotation)
    return "CHOICE" if _choices(annotation) else KINDS.get(annotation, "TEXT")


def _choices(annotation: Any) -> list[str]:
    bare = _bare(annotation)
    if typing.get_origin(bare) is typing.Literal:
        return [str(choice) for choice in typing.get_args(bare)]
    if isinstance(bare, type) and issubclass(bare, Enum):
        return [str(choice.value) for choice in bare]
    return []


def _bare(annotation: Any) -> Any:
    """Return the type of one value: without None, and of a list its items'."""
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        (annotation, *_) = [a for a in typing.get_args(annotation) if a is not type(None)]
    if typing.get_origin(annotation) is list:
        (annotation,) = typing.get_args(annotation)
    return annotation


def _guides() -> dict[str, list[str]]:
    """Return links to the pages that use a command, by command, the one that uses it most first."""
    found: dict[str, Counter[str]] = {}
    for page in sorted(DOCS.glob("[sg][tu]*/*.md")):
        text = page.read_text()
        title = next((line[2:] for line in text.splitlines() if line.startswith("# ")), page.stem)
        link = f"[{title}](../../{page.relative_to(DOCS)})"
        for name in _names():
            if uses := len(re.findall(rf"cortext {name}(?![\w-])", text)):
                found.setdefault(name, Counter())[link] = uses
    return {
        name: [link for link, _ in pages.most_common(MOST_GUIDES)] for name, pages in found.items()
    }


def _names() -> Iterator[str]:
    for commands in all_commands().values():
        for name, entry in commands.items():
            if isinstance(entry, str):
                yield name
            else:
                yield from (f"{name} {below}" for below in entry.commands)
