"""The command `doctor`: what this machine has, and what of it does not work."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cortext.cli.console import JSON, print_json, print_lines, print_table, stage

if TYPE_CHECKING:
    from cortext_bench.doctor import DoctorReport
    from cortext_bench.kernels import KernelWork


def doctor(
    run: Annotated[
        bool, typer.Option("--run", help="Take a training step of each model on what is found.")
    ] = False,
    speed: Annotated[
        bool,
        typer.Option(
            "--speed", help="Time our compiled kernels beside torch's own (half a minute)."
        ),
    ] = False,
    device: Annotated[
        str | None, typer.Option(help="With --run: only on cpu, cuda or tpu.")
    ] = None,
    tpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="TPU: a name, grpc://HOST:8470, or local.")
    ] = None,
    limit: Annotated[
        int,
        typer.Option(min=1, help="Seconds that a backend may take to answer, or for its steps."),
    ] = 120,
    as_json: bool = JSON,
) -> int:
    """Look for a TPU, ask every installed backend for its devices, and say what to do.

    Ends with status 1 where something that is installed or attached does not work, and with 0
    otherwise, whatever there is to advise.

    Example: cortext doctor --run --speed
    """
    from cortext_bench.doctor import examine, take_steps

    report = examine(tpu, limit_s=limit, stage=stage)
    if run:
        steps = take_steps(report, device, tpu, limit_s=limit, stage=stage)
        failed = [
            f"{step.model} with {step.backend} on {step.kind}: {step.problem}"
            for step in steps
            if step.problem
        ]
        if not steps:
            failed.append(
                f"no installed backend has a device{f' of kind {device!r}' if device else ''}"
            )
        report = dataclasses.replace(report, steps=steps, broken=[*report.broken, *failed])
    work = None
    if speed:
        from cortext_bench.kernels import kernel_work

        stage("timing compiled kernels")
        work = kernel_work()
    if as_json:
        print_json(report.to_json() | {"speed": work and work.to_json()})
    else:
        _print(report)
        _print_speed(work)
    return 1 if report.broken else 0


def _print(report: DoctorReport) -> None:
    print_table("TPU", ["looked at", "there"], report.looked, right_from=9)
    print_lines(f"found: {report.found}", "")
    rows = []
    for backend in report.backends:
        names = ", ".join(f"{name} {version}" for name, version in backend.versions.items())
        rows.append(
            (backend.name, names, "; ".join(_devices(backend.devices)) or backend.problem or "none")
        )
    print_table("Backends", ["backend", "versions", "devices"], rows, right_from=9)
    if report.steps:
        print_table(
            "One training step",
            ["model", "backend", "on", "cores", "loss", "seconds"],
            [
                (
                    step.model,
                    step.backend,
                    step.device or step.kind,
                    *map(_number, (step.cores, step.loss, step.seconds)),
                )
                for step in report.steps
            ],
            right_from=3,
        )
    print_lines(*report.computes)
    print_lines(f"transparent hugepages: {report.hugepages.state or 'none'}")
    for title, lines in (("advice", report.advice), ("broken", report.broken)):
        for line in lines:
            print_lines(f"{title}: {line}")
    if not report.broken:
        print_lines("everything that is installed works")


def _print_speed(work: KernelWork | None) -> None:
    if work is None:
        print_lines("how fast our compiled kernels are on this processor: cortext doctor --speed")
        return
    tables = (
        ("a live step of the published model", work.live_ms, work.live_no_more),
        ("a layer's recurrence in training, bf16", work.training_ms, work.training_no_more),
    )
    for what, times_ms, no_more in tables:
        rows = [(name, *map(_number, times.values())) for name, times in times_ms.items()]
        title = f"Processor time of {what}, ms on one core of {work.processor}"
        print_table(title, ["way", *next(iter(times_ms.values()))], rows)
        print_lines(
            "no way of ours does more work than torch's own"
            if no_more
            else "advice: ours does more work than torch's own here; please report this table"
        )


def _devices(devices: list[dict[str, Any]]) -> list[str]:
    """Return the devices as texts, equal ones together: `8 x TPU v5 lite (15.8 GiB)`."""
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
