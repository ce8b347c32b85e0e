"""Commands for a usage log: export the conversation, delete from it."""

from __future__ import annotations

import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from cortext.cli.console import JSON, print_json, print_lines
from cortext.errors import ConfigError
from cortext_live.usage.conversation import FORMATS

LOG = Annotated[
    Path, typer.Argument(help="Directory that a decoder wrote with --session-log.", metavar="LOG")
]


def export(
    log: LOG,
    form: Annotated[
        str, typer.Option("--format", help=f"One of {', '.join(FORMATS)}.", metavar="FORMAT")
    ] = "text",
    out: Annotated[
        Path | None, typer.Option(help="File to write. Default: standard output.", metavar="FILE")
    ] = None,
    search: Annotated[
        str, typer.Option(help="Only entries that hold this text.", metavar="TEXT")
    ] = "",
) -> None:
    """Write the conversation of a usage log as text, CSV or JSON lines.

    Example: cortext log export runs/log --format csv --out conversation.csv
    """
    if form not in FORMATS:
        raise ConfigError(f"--format is {form!r}", fix=f"give one of {', '.join(FORMATS)}")
    from cortext.files import atomic_stream, disk_errors
    from cortext_live.usage import conversation
    from cortext_live.usage.log import read_log

    contents = read_log(log)
    entries = conversation.latest(contents.entries, len(contents.entries), search=search)
    content = conversation.export(entries, form)
    for note in contents.notes:
        print_lines(note, err=True)
    if out is None:
        sys.stdout.buffer.write(content)
        sys.stdout.flush()
        return
    with disk_errors(out), atomic_stream(out, private=True) as file:
        file.write(content)
    print_lines(f"{_count(len(entries))}: {out}")


def delete(
    log: LOG,
    entry: Annotated[
        list[int] | None, typer.Option(min=0, help="Number of an entry, as exports have it.")
    ] = None,
    since: Annotated[
        str | None,
        typer.Option(help="Time from which entries are deleted.", metavar="TIME"),
    ] = None,
    until: Annotated[
        str | None, typer.Option(help="Time up to which they are deleted.", metavar="TIME")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Delete all entries.")] = False,
    chain: Annotated[
        Path | None,
        typer.Option(
            help="Chain of `recalibrate`: delete what it keeps of deleted entries, too.",
            metavar="DIR",
        ),
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
    as_json: bool = JSON,
) -> None:
    """Delete sentences and turns of a usage log, with features and recordings of them.

    --chain alone repeats earlier deletions. It cannot be undone.

    Example: cortext log delete runs/log --since 2026-11-21T10:00 --until 2026-11-21T11:00
    """
    from cortext_live.usage.deletion import Selection, delete
    from cortext_live.usage.log import read_log

    chosen = None
    if entry or since is not None or until is not None or everything or chain is None:
        times = (_time("--since", since), _time("--until", until))
        chosen = Selection(tuple(entry) if entry else None, *times, everything)
    if chain is not None:
        from cortext_live.recalibration.chain import read_chain

        read_chain(chain)  # raises for a damaged chain before anything is deleted
    numbers = [] if chosen is None else chosen.of(read_log(log).entries)
    if numbers and not yes and not _agrees(f"Delete {_count(len(numbers))} of {log} for ever?"):
        print_lines("nothing was deleted", err=True)
        return
    if chosen is not None:
        numbers = delete(log, chosen)
    models: list[str] = []
    notes: list[str] = []
    if chain is not None:
        from cortext_live.recalibration.forgetting import forget_in_chain

        models, notes = forget_in_chain(chain, log, None if chosen is None else numbers)
    if as_json:
        print_json({"deleted": numbers, "models": models, "notes": notes})
        return
    print_lines(f"deleted: {_count(len(numbers))}")
    if models:
        print_lines(f"models that learnt from them: {', '.join(models)}")
    for note in notes:
        print_lines(note)


def _count(n: int) -> str:
    return f"{n} {'entry' if n == 1 else 'entries'}"


def _agrees(question: str) -> bool:
    """Ask on the terminal; refuse where there is none."""
    if not sys.stdin.isatty():
        raise ConfigError("nobody can be asked here", fix="give --yes")
    return typer.confirm(question, err=True)


def _time(option: str, text: str | None) -> datetime | None:
    """Return a time of an option; without an offset it is one of this place."""
    try:
        return None if text is None else datetime.fromisoformat(text).astimezone()
    except (ValueError, OverflowError, OSError):
        example = "2026-11-21T10:00"
        raise ConfigError(
            f"{option} is {text!r}", fix=f"give a time such as {example}, or with an offset"
        ) from None
