"""The command line: thin commands that parse, call one function and print.

Every command returns 0 on success and 2 on a user's error, which is one line on stderr without a
traceback.
"""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import typer
from typer.core import TyperGroup

from cortext import __version__
from cortext.cli import (
    bench,
    bench_llm,
    data,
    decode,
    ensemble,
    live,
    lm,
    lm_neural,
    redis_streams,
    speech_llm,
    speech_llm_prepare,
    tools,
    train,
    tune,
    tune_decoder,
)
from cortext.cli.console import print_lines
from cortext.cli.options import with_options
from cortext.errors import CortextError, shown

Command = Callable[..., Any]


@dataclass(frozen=True)
class Group:
    """Commands under a common name, such as `cortext lm build`."""

    help: str
    commands: Mapping[str, Command]


COMMANDS: dict[str, dict[str, Command | Group]] = {
    "Data": {
        "simulate": data.simulate,
        "fetch": data.fetch,
        "inspect": data.inspect,
        "pack": data.pack,
    },
    "Training": {
        "train": train.train,
        "adapt": train.adapt,
        "tune": Group(
            "Search for good settings of the training or of the decoder.",
            {"training": tune.training, "decoder": tune_decoder.decoder},
        ),
        "launch": tools.launch,
        "import-checkpoint": train.import_checkpoint,
        "export": train.export,
    },
    "Language models": {
        "lm": Group(
            "Build, describe and use n-gram language models.",
            {
                "build": lm.build,
                "info": lm.info,
                "score": lm.score,
                "import": lm.import_folder,
                "train-neural": lm_neural.train,
                "compare": lm_neural.compare,
            },
        ),
        "finetune-llm": lm_neural.finetune,
    },
    "Decoding": {
        "evaluate": decode.evaluate,
        "decode": decode.decode,
        "ensemble": ensemble.ensemble,
    },
    "Live": {
        "serve": live.serve,
        "lm-server": redis_streams.lm_server,
        "brand-node": redis_streams.brand_node,
        "replay": redis_streams.replay,
        "report": Group("Draw what was recorded in daily use.", {"use": live.use}),
    },
    "Speech LLM": {
        "speech-llm": Group(
            "Train and use an audio language model that reads neural activity.",
            {
                "assemble": speech_llm_prepare.assemble,
                "cache": speech_llm_prepare.cache,
                "teach": speech_llm_prepare.teach,
                "train": speech_llm.train,
                "evaluate": speech_llm.evaluate,
                "decode": speech_llm.decode,
                "memory": speech_llm_prepare.memory,
            },
        ),
    },
    "Benchmarks and tools": {
        "demo": tools.demo,
        "doctor": tools.doctor,
        "bench": Group(
            "Compare cortext with the best alternatives, side by side.",
            {
                "decoder": bench.decoder,
                "training": bench.training,
                "latency": bench.latency,
                "tpu-compile": bench.tpu_compile,
                "llm": bench_llm.llm,
                "speech-llm": bench_llm.speech_llm,
            },
        ),
    },
}
"""All commands, by the heading under which `cortext --help` shows them."""


class _Headings(TyperGroup):
    """A list of commands under headings, as plain text, each with its whole first sentence."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        sections: dict[str, list[tuple[str, str]]] = {}
        for name, command in self.commands.items():
            text = " ".join((command.help or "").split("\n\n")[0].split())
            rows = sections.setdefault(getattr(command, "rich_help_panel", None) or "Commands", [])
            rows.append((name, re.split(r"(?<=[a-z]\.) ", text)[0]))
        for heading in (*COMMANDS, "Commands"):
            if heading in sections:
                with formatter.section(heading):
                    formatter.write_dl(sections[heading])


def _application() -> typer.Typer:
    # Without Rich's markup help is plain text, which pipes and screen readers take as it is.
    plain: dict[str, Any] = {"rich_markup_mode": None, "cls": _Headings}
    text = "Intracortical recordings of attempted speech, decoded into text."
    application = typer.Typer(name="cortext", help=text, **plain)
    for heading, commands in COMMANDS.items():
        for name, command in commands.items():
            if isinstance(command, Group):
                group = typer.Typer(help=command.help, **plain)
                for inner, each in command.commands.items():
                    _add(group, inner, each)
                application.add_typer(group, name=name, rich_help_panel=heading)
            else:
                _add(application, name, command, heading)
    return application


def _add(parent: typer.Typer, name: str, command: Command, heading: str | None = None) -> None:
    settings: dict[str, Any] = {"rich_help_panel": heading}
    if command is lm.build:
        settings["cls"] = lm.ManyNumbers
    if command is redis_streams.brand_node:
        # A supervisor may pass flags of later specifications: nodes ignore what they do not know.
        settings["context_settings"] = {"ignore_unknown_options": True, "allow_extra_args": True}
    parent.command(name, **settings)(with_options(command))


app = _application()

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
