"""The verb bench tpu-compile, and what it prints."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from cortext.cli.bench_out import Out, hand_over, make_room, stage
from cortext.cli.console import JSON, OVERRIDES, print_lines, print_table


def tpu_compile(
    shape: Annotated[
        list[str] | None, typer.Option(help="Only this shape; may be given several times.")
    ] = None,
    bins: Annotated[
        int, typer.Option(min=1, help="Bins of 20 ms that trials are padded to.")
    ] = 900,
    topology: Annotated[str, typer.Option(help="The TPU, as libtpu names it.")] = "v5e:2x4",
    overrides: list[str] = OVERRIDES,
    out: Out = None,
    as_json: bool = JSON,
) -> None:
    """Compile whole training steps for a TPU that is not there.

    Memory, operations, exchanges, and a time estimated.

    Takes minutes for each shape: baseline; adversarial, noise 768; adversarial, noise 7168.

    Example: cortext bench tpu-compile --shape baseline --json
    """
    from dataclasses import replace

    from cortext.bench.tpu_compile import SHAPES, bench_tpu_compile
    from cortext.errors import ConfigError, nearest

    for name in shape or []:
        if name not in SHAPES:
            raise ConfigError(f"unknown {name!r}; {nearest(name, SHAPES)}")
    make_room(out)
    chosen = {name: SHAPES[name] for name in shape or SHAPES}
    targets = {
        name: replace(
            target, n_bins=bins, topology=topology, overrides=(*target.overrides, *overrides)
        )
        for name, target in chosen.items()
    }
    result = bench_tpu_compile(targets, stage)
    hand_over(result, out, as_json, _print)


def _print(result: dict[str, Any]) -> None:
    shapes = result["shapes"]
    target = next(iter(shapes.values()))["target"]
    title = (
        f"one step on one of {target['chips']} chips ({target['topology']}), trials of"
        f" {target['n_bins']} bins, {target['n_features']} features, {target['n_days']} days;"
        " compiled, not run"
    )
    _print_program(title, shapes)
    _print_memory(shapes)
    _print_estimate(shapes)
    for name, why in result["missing"].items():
        print_lines(f"{name} left out: {why}")
    for name, found in shapes.items():
        for check, holds in found["checks"].items():
            print_lines(f"{name}: {check}: {'yes' if holds else 'NO'}")
    print_lines(
        "times are estimates of what the program needs at least; nothing was measured on a TPU"
    )
    print_lines(f"{result['batches']:,} batches elsewhere: {'; '.join(result['claims'])}")


def _print_program(title: str, shapes: dict[str, Any]) -> None:
    rows = [
        (
            name,
            f"{found['target']['parameters'] / 1e6:.1f} M",
            found["target"]["batch"],
            f"{found['flops'] / 1e9:,.0f} G",
            f"{found['flops_by_formula'] / 1e9:,.0f} G",
            f"{found['hbm_bytes'] / 1e9:.2f} GB",
            f"{sum(exchange['n_bytes'] for exchange in found['exchanges']) / 1e6:,.0f} MB",
            f"{found['compile_s']:.0f}",
        )
        for name, found in shapes.items()
    ]
    columns = [
        "shape",
        "parameters",
        "batch",
        "operations",
        "by formula",
        "HBM traffic",
        "exchanged",
        "compiled in s",
    ]
    print_table(title, columns, rows)


def _print_memory(shapes: dict[str, Any]) -> None:
    parts = ("arguments", "temporaries", "output", "aliased", "program", "total")
    rows = [
        (name, *(f"{found['memory'][part] / 2**30:.2f}" for part in parts))
        for name, found in shapes.items()
    ]
    print_table("", ["GiB of a chip's memory", *parts], rows)


def _print_estimate(shapes: dict[str, Any]) -> None:
    estimates = {name: found["estimate"] for name, found in shapes.items()}
    latencies = [each["latency_us"] for each in next(iter(estimates.values()))["latencies"]]
    rows = [
        (
            name,
            *(
                f"{found[part]:.1f}"
                for part in (
                    "compute_ms",
                    "memory_ms",
                    "overlapped_ms",
                    "exchange_ms",
                    "roofline_ms",
                )
            ),
            f"{found['waits']:,}",
            *(f"{each['ms']:.1f}" for each in found["latencies"]),
            "-" if found["schedule_ms"] is None else f"{found['schedule_ms']:.1f}",
        )
        for name, found in estimates.items()
    ]
    waits = [f"at {latency:g} µs each" for latency in latencies]
    parts = ["products", "memory", "overlapped exchange", "exchange", "roofline", "waits"]
    print_table("", ["ms a step, estimated", *parts, *waits, "compiler's"], rows)
    rows = [
        (
            name,
            f"{found['hours']:.1f}",
            *(f"{each['hours']:.1f}" for each in found["latencies"]),
            "-" if found["schedule_hours"] is None else f"{found['schedule_hours']:.1f}",
        )
        for name, found in estimates.items()
    ]
    print_table("", ["h of 120,000, estimated", "roofline", *waits, "compiler's"], rows)
