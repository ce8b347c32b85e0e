"""Verbs about acoustic models: train, evaluate."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from cortext.cli.console import (
    DEVICE,
    JSON,
    OVERRIDES,
    PLUGINS,
    SKIP_BAD,
    is_given,
    print_json,
    print_left_out,
    print_lines,
    print_metrics,
    print_notes,
    progress_bar,
)
from cortext.cli.llm_options import Context, Llm, LlmDevice, LlmLora, llm_files
from cortext.cli.ray_options import GpusPerWorker, Ray, check_ray
from cortext.errors import ConfigError
from cortext.plugins import load_plugins

Run = Annotated[Path, typer.Argument(help="Run directory of a trained model.")]
Data = Annotated[Path, typer.Option(help="Directory of session files, or a packed one.")]
Options = Annotated[Path | None, typer.Option("--options", help="YAML file of decoder options.")]
Engine = Annotated[str, typer.Option(help="Search engine: native, or reference (slow, plain).")]
Threads = Annotated[
    int | None, typer.Option(min=1, help="Threads for the search; all cores without it.")
]


def add_verbs(app: typer.Typer) -> None:
    """Add this file's verbs to the command line."""
    for verb in (train, evaluate):
        app.command()(verb)


def train(
    config: Annotated[
        str,
        typer.Option(
            help="YAML file, or a recipe: gru, triple_gru, gru_tpu, triple_gru_tpu, demo, tiny."
        ),
    ],
    data: Data,
    out: Annotated[Path, typer.Option(help="Run directory to write.")],
    lm: Annotated[
        Path | None, typer.Option(help="Language-model directory; without it WER is not reported.")
    ] = None,
    init_from: Annotated[
        Path | None, typer.Option(help="Run directory whose weights to start from.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue a run that was stopped.")
    ] = False,
    skip_bad: bool = SKIP_BAD,
    device: Annotated[
        str, typer.Option(help="Where the model trains: cpu, cuda, cuda:N or tpu.")
    ] = "cpu",
    backend: Annotated[str, typer.Option(help="torch, or tensorflow (with Keras 3).")] = "torch",
    tpu: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name or address of a TPU.")
    ] = None,
    tpu_engine: Annotated[
        str, typer.Option(help="What runs torch models on a TPU: torchax.")
    ] = "torchax",
    require_cores: Annotated[
        int | None,
        typer.Option(min=1, help="Fail where there are not so many TPU cores, GPUs or processes."),
    ] = None,
    xla_dump: Annotated[
        Path | None, typer.Option(help="Directory for what XLA compiles, as text.")
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(
            help="auto, bf16 or fp32 matrix products; as the configuration says without it."
        ),
    ] = None,
    profile: Annotated[
        Path | None, typer.Option(help="Directory for a trace that TensorBoard shows.")
    ] = None,
    profile_steps: Annotated[
        str, typer.Option(metavar="FIRST:END", help="Batches that the trace covers.")
    ] = "10:15",
    plugins: list[Path] = PLUGINS,
    overrides: list[str] = OVERRIDES,
    as_json: bool = JSON,
) -> None:
    """Train a phoneme decoder, on several GPUs where torchrun starts it (`torchrun --no-python
    ... cortext train ...`).

    Example: cortext train --config demo --data runs/packed --lm runs/lm --out runs/first
    """
    from cortext.tpu.profile import dump_xla
    from cortext.training import DeviceSpec
    from cortext.training import train as train_model
    from cortext.training.callbacks import First

    spec = DeviceSpec(device, backend, tpu, tpu_engine, require_cores)  # type: ignore[arg-type] # it checks them
    if xla_dump is not None:
        if spec.backend_name == "torch":
            raise ConfigError(
                f"--xla-dump is given, and XLA compiles nothing with --device {device}"
            )
        dump_xla(xla_dump)
    load_plugins(plugins)
    if precision is not None:
        overrides = [*overrides, f"precision={precision}"]
    first = First()
    summary = train_model(
        config,
        data,
        out,
        lm=lm,
        resume=resume,
        device=spec,
        init_from=init_from,
        overrides=overrides,
        skip_bad=skip_bad,
        callbacks=[first],
        profile=profile,
        profile_steps=_span(profile_steps),
    )
    if not first.here:
        return
    if as_json:
        print_json(dataclasses.asdict(summary))
        return
    print_lines(summary)
    print_left_out(summary.skipped)


def _span(text: str) -> tuple[int, int]:
    """First and end of `first:end`."""
    first, _, end = text.partition(":")
    if not (first.isdecimal() and end.isdecimal() and int(first) < int(end)):
        raise ConfigError(
            f"--profile-steps is {text!r}; two numbers are needed, the smaller first",
            fix="write 10:15",
        )
    return int(first), int(end)


SEARCHING = ("options", "engine", "threads")
"""Parameters of `evaluate` that say how words are searched for."""


def evaluate(
    call: typer.Context,
    run: Run,
    data: Data,
    out: Annotated[Path, typer.Option(help="Evaluation directory to write.")],
    split: Annotated[str, typer.Option(help="train, val or test.")] = "val",
    lm: Annotated[
        Path | None, typer.Option(help="Language-model directory; without it only PER is reported.")
    ] = None,
    options: Options = None,
    engine: Engine = "native",
    description: Annotated[
        Path | None, typer.Option(help="CSV of blocks: post-implant day and corpus.")
    ] = None,
    threads: Threads = None,
    ray: Ray = None,
    gpus_per_worker: GpusPerWorker = 0.0,
    llm: Llm = None,
    llm_lora: LlmLora = None,
    llm_device: LlmDevice = "auto",
    context: Context = "",
    skip_bad: bool = SKIP_BAD,
    device: str = DEVICE,
    plugins: list[Path] = PLUGINS,
    as_json: bool = JSON,
) -> None:
    """Decode a split, measure PER, WER and CER, and write predictions, n-best lists and a report.

    Example: cortext evaluate runs/first --data runs/packed --lm runs/lm --out runs/eval

    Example: cortext evaluate runs/first --data runs/packed --lm runs/lm --llm facebook/opt-6.7b
    --out runs/eval
    """
    from cortext import evaluation

    for name in SEARCHING:
        if lm is None and is_given(call, name):
            raise ConfigError(
                f"--{name} is given without --lm, and no words are searched for",
                fix="give an n-gram, too",
            )
    check_ray(ray, gpus_per_worker, threads, llm_device)
    large = llm_files(llm, llm_lora, llm_device, context)
    load_plugins(plugins)
    with progress_bar("evaluating") as progress:
        metrics = evaluation.evaluate(
            run,
            data,
            split,
            lm,
            out,
            options=options,
            engine=engine,
            device=device,
            skip_bad=skip_bad,
            description=description,
            threads=threads,
            ray=ray,
            gpus_per_worker=gpus_per_worker,
            llm=large,
            context=context,
            progress=progress,
        )
    print_notes(metrics.notes)
    if as_json:
        print_json(dataclasses.asdict(metrics))
        return
    print_metrics(metrics)
    print_lines(f"report: {out / 'report.html'}")
