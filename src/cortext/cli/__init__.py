"""The command line: thin verbs that parse, call one function and print.

Every verb returns 0 on success and 2 on a user's error, which is one line on stderr without a
traceback.
"""

from __future__ import annotations

import errno
import os
import sys

import typer

from cortext import __version__
from cortext.cli import (
    adapt,
    bench,
    brand_node,
    data,
    decode,
    demo,
    doctor,
    ensemble,
    exchange,
    finetune,
    launch,
    lm,
    lm_import,
    lm_neural,
    lm_server,
    model,
    replay,
    report,
    serve,
    speech_llm,
    tune,
)
from cortext.cli.console import print_lines
from cortext.errors import CortextError, shown

app = typer.Typer(
    name="cortext",
    help="Intracortical recordings of attempted speech, decoded into text.",
    add_completion=False,
    rich_markup_mode=None,
)


# Typer carries click inside; of its exceptions only BadParameter is public, and what a user can
# cause shares its base.
_ClickError: type[Exception] = typer.BadParameter.__mro__[2]  # type: ignore[assignment]


def _print_version(wanted: bool) -> None:
    if wanted:
        print_lines(f"cortext {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_print_version, is_eager=True, help="Print the version."
    ),
) -> None:
    pass


for module in (
    demo,
    data,
    model,
    adapt,
    exchange,
    decode,
    ensemble,
    lm,
    lm_import,
    lm_neural,
    finetune,
    lm_server,
    tune,
    speech_llm,
    serve,
    bench,
    brand_node,
    replay,
    report,
    doctor,
    launch,
):
    module.add_verbs(app)


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit with its status."""
    sys.exit(run(sys.argv[1:] if arguments is None else arguments))


def run(arguments: list[str]) -> int:
    """Run one verb and return its status."""
    try:
        status = app(arguments or ["--help"], prog_name="cortext", standalone_mode=False)
        if status == 130:  # Typer ends quietly on Ctrl-C
            return _complain("interrupted", 130)
        return status if isinstance(status, int) else 0
    except CortextError as error:
        return _complain(str(error), 2)
    except _ClickError as error:
        context = getattr(error, "ctx", None)
        verb = context.command_path if context else "cortext"
        return _complain(f"{error.format_message().rstrip('.')}; see `{verb} --help`", 2)  # type: ignore[attr-defined]
    except (KeyboardInterrupt, typer.Abort):
        return _complain("interrupted", 130)
    except MemoryError:
        return _complain(
            "there is not enough memory for this; give less at once, or end other programs", 2
        )
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
        ):
            raise
        return _complain(
            f"{error.filename or 'writing'}: {error.strerror}; choose another place", 2
        )


def _complain(line: str, status: int) -> int:
    print_lines(shown(f"cortext: {line}"), err=True)
    return status
