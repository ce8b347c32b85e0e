"""The verb bench speech-llm, and what it prints."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cortext.cli.bench_out import Out, hand_over, make_room, stage
from cortext.cli.console import DEVICE, JSON, OVERRIDES, percent, print_lines, print_table


def speech_llm(
    audio_llm: Annotated[
        str | None,
        typer.Option(
            help=(
                "Audio language model: a directory, or OWNER/NAME on the Hub. Default: a random"
                " one."
            )
        ),
    ] = None,
    voice: Annotated[
        str,
        typer.Option(
            help="formant, espeak-ng, or a VITS model: a directory, or OWNER/NAME on the Hub."
        ),
    ] = "formant",
    data: Annotated[
        Path | None,
        typer.Option(help="Directory of session files, or a packed one. Default: simulated."),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(help="File of `cortext speech-llm cache`; made on the spot without it."),
    ] = None,
    config: Annotated[
        str,
        typer.Option(
            help="YAML file, or a recipe: speech_llm, speech_llm_best. Its last stage is trained."
        ),
    ] = "speech_llm",
    only: Annotated[
        list[str] | None, typer.Option(help="Setting to measure; may be given several times.")
    ] = None,
    turns: Annotated[int, typer.Option(min=1, help="Turns of each setting.")] = 3,
    steps: Annotated[int, typer.Option(min=1, help="Timed steps in a turn.")] = 2,
    threads: Annotated[
        int | None, typer.Option(min=1, help="Threads of each setting; torch's choice if absent.")
    ] = None,
    apart: Annotated[
        bool,
        typer.Option(
            "--apart", help="One setting after the other, for a model that memory holds only once."
        ),
    ] = False,
    device: str = DEVICE,
    overrides: list[str] = OVERRIDES,
    out: Out = None,
    as_json: bool = JSON,
) -> None:
    """Measure training steps of a speech LLM.

    Cached or live audio targets, bfloat16, compilation, checkpointing.

    Live: the voice speaks and the audio tower listens in every step. Time of a step and peak memory
    of each setting.

    Example: cortext bench speech-llm --turns 2 --json
    """
    from cortext.bench.speech_llm.compare import Plan, bench_speech_llm
    from cortext.bench.speech_llm.materials import Given
    from cortext.training.distributed import own_device

    own_device(device)
    make_room(out)
    given = Given(data, audio_llm, voice, cache)
    plan = Plan(only or (), turns, steps, device=device, threads=threads, apart=apart)
    result = bench_speech_llm(config, given, plan, overrides, stage)
    hand_over(result, out, as_json, _print)


def _print(result: dict[str, Any]) -> None:
    found = result["settings"]
    if found:
        _print_settings(found, result)
    _print_comparisons(result["ratios"])
    for name, why in result["missing"].items():
        print_lines(f"{name} left out: {why}")
    claim = result["claim"]
    low, high = claim["times_faster"]
    print_lines(
        f"claimed of cached targets: {low:g} to {high:g} times faster,"
        f" {percent(claim['less_memory'])} less memory"
    )
    for name, held in claim["holds"].items():
        times, memory = (
            "not measured" if one is None else "yes" if one else "NO" for one in held.values()
        )
        print_lines(
            f"{name}: {low:g} times faster: {times}; {percent(claim['less_memory'])} less memory:"
            f" {memory}"
        )
    if (steps := result["cache_pays_after_steps"]) is not None:
        cache = result["input"]["cache"]
        print_lines(
            f"the cache of {cache['sentences']} sentences took {cache['seconds']:.0f} s:"
            f" {steps:.0f} live steps"
        )


def _print_settings(found: dict[str, Any], result: dict[str, Any]) -> None:
    first = next(iter(found.values()))
    llm = first["audio_llm"]
    title = (
        f"batches of {result['batch']}; {first['n_trained'] / 1e6:.1f} M parameters learn, audio"
        f" tower {llm['n_tower_parameters'] / 1e6:.1f} M, language model"
        f" {llm['n_language_parameters'] / 1e6:.1f} M; voice {result['input']['voice']};"
        f" {result['machine']['device']}, load {result['machine']['load']:.1f}"
    )
    rows = [
        (
            name,
            values["precision"],
            f"{values['ms']:,.0f}",
            " to ".join(f"{bound:,.0f}" for bound in values["ms_10_90"]),
            f"{values['cpu_ms']:,.0f}",
            f"{values['targets_ms']:,.1f}",
            f"{values['voice_ms']:,.1f}",
            _mb(values["peak_mb"]),
            _mb(values["process_mb"]),
        )
        for name, values in found.items()
    ]
    columns = [
        "setting",
        "in",
        "ms/step",
        "10 to 90 %",
        "processor ms",
        "targets",
        "voice",
        "peak MB",
        "process MB",
    ]
    print_table(title, columns, rows, right_from=2)


def _print_comparisons(ratios: dict[str, Any]) -> None:
    rows = [
        (
            name,
            f"{values['times_faster']:.2f}",
            f"{values['times_faster_cpu']:.2f}",
            percent(values["less_memory"]),
        )
        for name, values in ratios.items()
        if values is not None
    ]
    if rows:
        print_table("", ["with", "times faster", "by processor time", "less memory"], rows)


def _mb(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f}"
