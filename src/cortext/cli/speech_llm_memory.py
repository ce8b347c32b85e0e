"""`cortext speech-llm memory`: what a training takes of a GPU, before there is one."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cortext.cli.console import JSON, OVERRIDES, print_json, print_lines, print_table

if TYPE_CHECKING:
    from cortext.speechllm.memory import GPU, Planned


def add_verbs(app: typer.Typer) -> None:
    """Add this file's verb to the group."""
    app.command()(memory)


def memory(
    config: Annotated[
        str, typer.Option(help="YAML file, or a recipe: speech_llm, speech_llm_best.")
    ] = "speech_llm",
    audio_llm: Annotated[
        str | None,
        typer.Option(help="A directory, or a name on the Hub; the configuration's without it."),
    ] = None,
    gpu: Annotated[str, typer.Option(help="h100 or a100, each of 80 GB.")] = "h100",
    share: Annotated[
        float,
        typer.Option(
            min=0.01,
            max=1,
            help="Share of what the GPU computes at most that is taken to be reached.",
        ),
    ] = 0.4,
    n_bins: Annotated[int, typer.Option(min=1, help="20 ms bins of the longest trials.")] = 544,
    answer_tokens: Annotated[
        int, typer.Option(min=1, help="Tokens of the longest sentences.")
    ] = 20,
    overrides: list[str] = OVERRIDES,
    as_json: bool = JSON,
) -> None:
    """Estimate memory and time of training and writing on one GPU from shapes.

    Nothing is measured or downloaded.

    Example: cortext speech-llm memory --config speech_llm_best --set
    speech.gradient_checkpointing=true
    """
    from cortext.speechllm.audio_llm.cost import Load
    from cortext.speechllm.memory import gpu_named, plan

    card, load = gpu_named(gpu), Load(n_bins=n_bins, answer_tokens=answer_tokens)
    planned = plan(config, card, overrides=overrides, audio_llm=audio_llm, load=load)
    if as_json:
        stages = [_facts(each, card, share) for each in planned]
        print_json(
            {"measured": False, "gpu": dataclasses.asdict(card), "share": share, "stages": stages}
        )
        return
    for each in planned:
        _print(each, card, share)


def _facts(planned: Planned, gpu: GPU, share: float) -> dict[str, Any]:
    found = planned.estimate
    return {
        "stage": planned.stage,
        "training_bytes": found.training | {"all": found.training_bytes},
        "generation_bytes": found.generation | {"all": found.generation_bytes},
        "problem": planned.problem,
        "training_flops": found.training_flops,
        "batches": planned.n_batches,
        "training_hours": found.training_hours(planned.n_batches, gpu, share),
        "generation_s": found.generation_s(gpu, share),
    }


def _print(planned: Planned, gpu: GPU, share: float) -> None:
    found = planned.estimate
    for work, parts in (("training", found.training), ("writing", found.generation)):
        if parts:
            rows = [(part, f"{n_bytes / 1e9:.2f}") for part, n_bytes in parts.items() if n_bytes]
            title = f"{planned.stage}: {work}" if planned.stage else work
            print_table(
                title,
                ("estimated from shapes", "GB"),
                [*rows, ("all", f"{sum(parts.values()) / 1e9:.2f}")],
            )
    if found.training_flops:
        hours = found.training_hours(planned.n_batches, gpu, share)
        print_lines(
            f"{planned.n_batches:,} batches of the language model at {share:.0%} of the peak of an"
            f" {gpu.name}: about {hours:.1f} h ({found.training_flops / 1e12:.0f} TFLOP a batch),"
            " and the encoder's time; estimated, not measured"
        )
    print_lines(planned.problem or f"fits into {gpu.memory_bytes / 1e9:.0f} GB")
