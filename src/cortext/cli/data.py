"""Commands about recordings: inspect and pack."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cortext.cli.console import (
    JSON,
    OVERRIDES,
    SKIP_BAD,
    print_json,
    print_left_out,
    print_lines,
    print_notes,
    print_table,
    progress_bar,
)
from cortext.errors import ConfigError

if TYPE_CHECKING:
    from cortext.data import Limits, Trial

MOST_BINS = typer.Option(
    60_000, "--max-bins", min=1, help="Longest trial that is read from session files, in bins."
)
MOST_FEATURES = typer.Option(
    16_384, "--max-features", min=1, help="Most features of a trial in session files."
)


def inspect(
    data: Annotated[Path, typer.Argument(help="Directory of session files, or a packed one.")],
    config: Annotated[
        str | None,
        typer.Option(
            help="Settings of a training, a YAML file or a shipped recipe: name the trials that"
            " they leave too short for their labels."
        ),
    ] = None,
    overrides: list[str] = OVERRIDES,
    max_bins: int = MOST_BINS,
    max_features: int = MOST_FEATURES,
    as_json: bool = JSON,
) -> None:
    """Show sessions, splits, trials, minutes and labels of a data set, and every problem in it.

    Example: cortext inspect runs/sim
    """
    from cortext.data import Limits
    from cortext.data.inspect import inspect as examine

    limits = Limits(max_bins, max_features)
    options: dict[str, Any] = {}
    if config is not None:
        options["too_short"] = _too_short(data, config, overrides, limits)
    elif overrides:
        raise ConfigError("--set is given without --config", fix="name the settings it changes")
    with progress_bar("reading") as progress:
        report = examine(data, progress=progress, limits=limits, **options)
    if as_json:
        print_json(report.plain())
        return
    print_lines(*str(report).split("\n"))


def _too_short(
    data: Path, config: str, overrides: list[str], limits: Limits
) -> Callable[[Trial, str], str | None]:
    """Return the function that says why a trial is too short for a training configuration."""
    from cortext.data import open_packed
    from cortext.data.dataset import open_session_files
    from cortext.data.packed import is_packed
    from cortext.training.config import read_train_config
    from cortext.training.setup import lengths_for

    settings = read_train_config(config, overrides)
    opened = open_packed(data) if is_packed(data) else open_session_files(data, limits=limits)
    return lengths_for(settings, opened)


def pack(
    data: Annotated[Path, typer.Argument(help="Directory of session files.")],
    out: Annotated[Path, typer.Option(help="Directory to write.")],
    format: Annotated[
        str, typer.Option(help="f16, memory maps, or tfrecord, which TensorFlow's readers take.")
    ] = "f16",
    bin_ms: Annotated[
        float | None,
        typer.Option(
            min=5,
            max=50,
            help="Length of the packed bins in ms; the bins of the session files are joined.",
        ),
    ] = None,
    sums: Annotated[
        str | None,
        typer.Option(
            help="With --bin-ms: features whose bins are summed, such as 0-255 for spike counts."
            " All others are averaged."
        ),
    ] = None,
    skip_bad: bool = SKIP_BAD,
    max_bins: int = MOST_BINS,
    max_features: int = MOST_FEATURES,
    as_json: bool = JSON,
) -> None:
    """Pack session files into one float16 memory map per split, for faster training.

    Example: cortext pack runs/sim --out runs/packed
    """
    from cortext.data import Limits
    from cortext.data.label_sentences import label_notes
    from cortext.data.packed import pack as pack_data

    limits = Limits(max_bins, max_features)
    with progress_bar("packing") as progress:
        packed = pack_data(
            data,
            out,
            format=format,
            bin_ms=bin_ms,
            sums=_numbers(sums),
            skip_bad=skip_bad,
            progress=progress,
            limits=limits,
        )
    counts = {name: len(packed.split(name)) for name in packed.splits}
    notes = [*packed.notes, *label_notes(packed)]
    if as_json:
        print_json(
            {
                "out": str(out),
                "trials": counts,
                "skipped": [str(problem) for problem in packed.bad_trials],
                "notes": notes,
            }
        )
        return
    print_table("", ["split", "trials"], list(counts.items()))
    print_left_out(packed.bad_trials)
    print_notes(notes)


def _numbers(ranges: str | None) -> list[int]:
    """Return the numbers of ranges such as `0-255,300`."""
    numbers: list[int] = []
    for part in ranges.split(",") if ranges is not None else ():
        matched = re.fullmatch(r"\s*(\d{1,5})(?:-(\d{1,5}))?\s*", part)
        low, high = (int(n) for n in (matched[1], matched[2] or matched[1])) if matched else (1, 0)
        if low > high:
            raise ConfigError(
                f"--sums is {ranges!r:.100}; numbers and ranges such as 0-255,300 are needed"
            )
        numbers += range(low, high + 1)
    return numbers
