"""The verb doctor: what this machine can train with, and what stands in the way."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cortext.cli.console import JSON, print_json, print_lines, print_table

if TYPE_CHECKING:
    from cortext.tpu.doctor import Report


def add_verbs(app: typer.Typer) -> None:
    """Add this file's verbs to the command line."""
    app.command()(doctor)


def doctor(
    run: Annotated[
        bool, typer.Option("--run", help="Take a training step of each model on what is found.")
    ] = False,
    device: Annotated[
        str | None, typer.Option(help="With --run: only on cpu, cuda or tpu.")
    ] = None,
    tpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="TPU: a name, grpc://HOST:8470, or local.")
    ] = None,
    limit: Annotated[
        int,
        typer.Option(min=1, help="Seconds that an engine may take to answer, or for its steps."),
    ] = 120,
    as_json: bool = JSON,
) -> int:
    """Look for a TPU, ask every installed engine for its devices, and say what is wrong and what
    to do.

    Ends with status 1 where something that is installed or attached does not work, and with 0
    otherwise, whatever there is to advise.

    Example: cortext doctor --run
    """
    from cortext.tpu.doctor import examine, take_steps

    def stage(name: str) -> None:
        print_lines(f"{name} ...", err=True)

    report = examine(tpu, limit_s=limit, stage=stage)
    if run:
        steps = take_steps(report, device, tpu, limit_s=limit, stage=stage)
        failed = [
            f"{step.model} with {step.engine} on {step.kind}: {step.problem}"
            for step in steps
            if step.problem
        ]
        if not steps:
            failed.append(
                f"no installed engine has a device{f' of kind {device!r}' if device else ''}"
            )
        report = dataclasses.replace(report, steps=steps, broken=[*report.broken, *failed])
    if as_json:
        print_json(dataclasses.asdict(report))
    else:
        _print(report)
    return 1 if report.broken else 0


def _print(report: Report) -> None:
    print_table("TPU", ["looked at", "there"], report.looked, right_from=9)
    print_lines(f"found: {report.found}", "")
    rows = []
    for engine in report.engines:
        names = ", ".join(f"{name} {version}" for name, version in engine.versions.items())
        rows.append(
            (engine.name, names, "; ".join(_devices(engine.devices)) or engine.problem or "none")
        )
    print_table("Engines", ["engine", "versions", "devices"], rows, right_from=9)
    if report.steps:
        print_table(
            "One training step",
            ["model", "engine", "on", "cores", "loss", "seconds"],
            [
                (
                    step.model,
                    step.engine,
                    step.device or step.kind,
                    *map(_number, (step.cores, step.loss, step.seconds)),
                )
                for step in report.steps
            ],
            right_from=3,
        )
    print_lines(f"transparent hugepages: {report.hugepages.state or 'none'}")
    for title, lines in (("advice", report.advice), ("broken", report.broken)):
        for line in lines:
            print_lines(f"{title}: {line}")
    if not report.broken:
        print_lines("everything that is installed works")


def _devices(devices: list[dict[str, Any]]) -> list[str]:
    """`8 x TPU v5 lite (15.8 GiB)`: equal devices together."""
    names = [
        f"{device['kind']}: {device['name']}"
        + (f" ({device['memory_gib']} GiB)" if device["memory_gib"] else "")
        for device in devices
    ]
    return [
        name if names.count(name) == 1 else f"{names.count(name)} x {name}"
        for name in dict.fromkeys(names)
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.4g}"
