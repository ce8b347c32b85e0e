"""Commands that compare a published data set on this machine with its published facts."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cortext.cli.console import DEVICE, JSON, print_json, print_lines, stages
from cortext.evaluation.settings import OptionsFile, Threads

if TYPE_CHECKING:
    from cortext_published.verification import Verification


def t15(
    directory: Annotated[
        Path, typer.Argument(help="Directory that the release was unpacked in.", metavar="DIR")
    ],
    out: Annotated[Path, typer.Option(help="Directory for the page; a second call goes on in it.")],
    lm: Annotated[
        Path | None, typer.Option(help="Language-model directory; without it no words are checked.")
    ] = None,
    analyses: Annotated[
        Path | None, typer.Option(help="t15_copyTask.pkl, where it is not in DIR.")
    ] = None,
    *,
    options: OptionsFile = None,
    threads: Threads = None,
    with_text: Annotated[
        bool, typer.Option("--with-text", help="Put the sentences of the data into the page, too.")
    ] = False,
    device: str = DEVICE,
    as_json: bool = JSON,
) -> int:
    """Compare the public T15 data on this machine with the published facts about them.

    Reads the recordings, imports the published checkpoint, decodes the validation split, and writes
    verify.html and verify.json with a line for each check: PASS, FAIL, or the reason why it could
    not be made. They hold no text of the data and can be attached to a bug report. The exit status
    is 1 if a check failed.

    Example: cortext verify t15 data/t15 --lm data/lm --out runs/verify
    """
    from cortext_published.verification import verify_t15

    with ExitStack() as bars:
        result = verify_t15(
            directory,
            out,
            lm=lm,
            analyses=analyses,
            options=options,
            with_text=with_text,
            device=device,
            threads=threads,
            stage=stages(bars),
        )
    return _show(result, out, as_json)


def t12(
    directory: Annotated[
        Path, typer.Argument(help="Directory that the release was unpacked in.", metavar="DIR")
    ],
    out: Annotated[Path, typer.Option(help="Directory for the page; a second call goes on in it.")],
    data: Annotated[
        Path | None, typer.Option(help="Session files that `cortext import t12` wrote of it.")
    ] = None,
    *,
    as_json: bool = JSON,
) -> int:
    """Compare the data of Brain-to-Text '24 on this machine with the published facts about them.

    Reads every array, and with --data the imported session files, too. Writes verify.html and
    verify.json with a line for each check: PASS, FAIL, or the reason why it could not be made. They
    hold no text of the data and can be attached to a bug report. The exit status is 1 if a check
    failed.

    Example: cortext verify t12 competitionData --data data/t12 --out runs/verify-t12
    """
    from cortext_published.verification import verify_t12

    with ExitStack() as bars:
        result = verify_t12(directory, out, data=data, stage=stages(bars))
    return _show(result, out, as_json)


def _show(result: Verification, out: Path, as_json: bool) -> int:
    """Print the checks, and return the exit status."""
    if as_json:
        print_json(result.to_json())
    else:
        print_lines(*result.checks)
        counts = ", ".join(
            f"{result.count(status)} {status}" for status in ("PASS", "FAIL", "not checked")
        )
        print_lines("", f"{counts}; see {out / 'verify.html'}")
    return int(result.failed)
