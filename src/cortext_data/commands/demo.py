"""The command `demo`: the whole path, on simulated recordings."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from cortext.cli.console import (
    JSON,
    percent,
    print_json,
    print_lines,
    print_metrics,
    print_table,
    progress_bar,
    stage,
)
from cortext.cores import available_cores


def demo(
    out: Annotated[
        Path, typer.Option(help="Directory to write; an earlier demo there is replaced.")
    ] = Path("runs/demo"),
    preset: Annotated[
        str, typer.Option(help="demo (minutes), or tiny (seconds, and far less accurate).")
    ] = "demo",
    seed: Annotated[int | None, typer.Option(help="Seed of the simulation.")] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Override a setting of the training recipe."
        ),
    ] = None,
    llm: Annotated[
        bool,
        typer.Option(
            "--llm",
            help="Train a small neural language model, too, and decode with it (extra `llm`).",
        ),
    ] = False,
    long: Annotated[
        bool,
        typer.Option("--long", help="Train the recipe transformer, for half an hour on one core."),
    ] = False,
    as_json: bool = JSON,
) -> None:
    """Simulate recordings, train a decoder on them, decode held-out sentences, and write a report.

    Example: cortext demo --preset tiny --out runs/tiny
    """
    from cortext_data.demo import run_demo

    with ExitStack() as bars:

        def begin(name: str) -> Callable[[int, int], None] | None:
            bars.close()
            stage(name)
            # Training draws a bar of its own; two bars on one terminal overwrite each other.
            return None if name == "train" else bars.enter_context(progress_bar(name))

        workers = available_cores()
        result = run_demo(
            out,
            preset,
            seed=seed,
            workers=workers,
            overrides=overrides or (),
            llm=llm,
            long=long,
            stage=begin,
        )
    if as_json:
        print_json(dataclasses.asdict(result))
        return
    print_metrics(result.metrics)
    if result.llm:
        words = {"n-gram": result.metrics} | {
            f"and the neural model, {name}": each for name, each in result.llm.items()
        }
        rows = [
            (name, percent(each.wer), *map(percent, each.wer_ci95 or ()))
            for name, each in words.items()
        ]
        print_table("", ["word error rate with", "", "from", "to"], rows)
    total = sum(result.seconds.values())
    print_table(
        "",
        [*result.seconds, "in all"],
        [[f"{seconds:.0f} s" for seconds in (*result.seconds.values(), total)]],
        0,
    )
    if preset == "tiny":
        print_lines("The words make little sense: tiny trains for seconds, to show that all parts")
        print_lines("work together. `cortext demo` trains for minutes, and reads words.", "")
    for reference, hypothesis in result.examples:
        print_lines(f"said     {reference}", f"decoded  {hypothesis}", "")
    print_lines(f"peak memory {result.peak_memory_gb:.1f} GB")
    print_lines(f"report: {result.report}")
    print_lines(f"watch it decode: cortext serve {out}/run --lm {out}/lm --data {out}/packed")
    if preset == "demo" and not long:
        print_lines("train a Transformer, for half an hour: cortext demo --long")
