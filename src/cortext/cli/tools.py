"""Commands around the others: demo, doctor, launch."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cortext.cli.console import (
    JSON,
    OVERRIDES,
    PLUGINS,
    percent,
    print_json,
    print_lines,
    print_metrics,
    print_table,
    progress_bar,
    stage,
)
from cortext.cores import available_cores
from cortext_tune.cloud.job import LaunchSettings

if TYPE_CHECKING:
    from cortext_bench.kernels import KernelWork
    from cortext_tpu.doctor import DoctorReport


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
    from cortext_tpu.doctor import examine, take_steps

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


def launch(
    config: Annotated[
        str,
        typer.Option(
            help="YAML file, or the name of a shipped recipe: gru_tpu, triple_gru_tpu ..."
        ),
    ],
    settings: LaunchSettings,
    dry_run: Annotated[
        bool, typer.Option("--dry-run/--yes", help="Write and show the task only, or start it.")
    ] = True,
    plugins: list[Path] = PLUGINS,
    overrides: list[str] = OVERRIDES,
    as_json: bool = JSON,
) -> None:
    """Train on a rented TPU or GPU, through SkyPilot.

    Without --yes it only writes and shows what would be done.

    Example: cortext launch --config gru_tpu --data gs://lab/packed --out gs://lab/runs/first --spot
    """
    from cortext_tune.cloud.job import write_task

    job = write_task(config, settings, overrides, plugins)
    if not as_json:
        print_lines(*job.text.split("\n"))
        print_lines(f"written: {job.file}")
    if not dry_run:
        job.submit()
    if as_json:
        print_json(
            {
                "file": job.file,
                "name": job.name,
                "started": not dry_run,
                "stop": job.stop,
                "task": job.text,
            }
        )
    elif dry_run:
        print_lines("nothing was started and nothing costs money yet")
        print_lines(
            f"prices:  {job.prices}", f"start:   the same command with --yes, or {job.start}"
        )
    else:
        print_lines(f"watch:  {job.logs}", f"stop:   {job.stop}")
