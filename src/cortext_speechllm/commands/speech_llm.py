"""Commands that train a speech LLM and let it write: train, evaluate, decode."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from cortext.cli.console import (
    DEVICE,
    JSON,
    OVERRIDES,
    PLUGINS,
    SKIP_BAD,
    print_json,
    print_left_out,
    print_lines,
    print_metrics,
    progress_bar,
)
from cortext.plugins import load_plugins
from cortext.settings import Setting

Run = Annotated[Path, typer.Argument(help="Run directory of a speech LLM.")]
Data = Annotated[Path, typer.Option(help="Directory of session files, or a packed one.")]
AudioLlm = Annotated[
    str | None,
    typer.Option(help="Where the audio language model is now, if not where it was in training."),
]


@dataclass(frozen=True)
class Generation:
    """Options of writing sentences; None takes the run's."""

    beams: Annotated[
        int | None,
        Setting(help="Beginnings kept beside each other; the run's without it.", minimum=1),
    ] = None
    max_length: Annotated[
        int | None, Setting(help="Most tokens of a sentence; the run's without it.", minimum=1)
    ] = None
    length_penalty: Annotated[
        float | None,
        Setting(help="Compare by log-probability / length ** this; the run's without it."),
    ] = None

    @property
    def given(self) -> dict[str, Any]:
        """Options that are not None."""
        return {name: value for name, value in vars(self).items() if value is not None}


def train(
    config: Annotated[
        str, typer.Option(help="YAML file, or a recipe: speech_llm, speech_llm_best.")
    ],
    data: Data,
    out: Annotated[Path, typer.Option(help="Run directory to write.")],
    cache: Annotated[
        Path | None, typer.Option(help="File of `cortext speech-llm cache`, for the alignment.")
    ] = None,
    init_from: Annotated[
        Path | None,
        typer.Option(
            help="Run whose weights to start from: of `cortext train`, or a speech LLM's."
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue a training that was stopped.")
    ] = False,
    skip_bad: bool = SKIP_BAD,
    device: Annotated[str, typer.Option(help="Where to train: cpu, cuda or cuda:N.")] = "cpu",
    plugins: list[Path] = PLUGINS,
    overrides: list[str] = OVERRIDES,
    as_json: bool = JSON,
) -> None:
    """Train a brain encoder that an audio language model reads.

    Training runs on several GPUs where torchrun starts it.

    Example: cortext speech-llm train --config speech_llm --data runs/packed --cache
    runs/speech.safetensors --out runs/speech --device cuda
    """
    from cortext.training.callbacks import RankZero
    from cortext_speechllm.stages import train_speech_llm

    load_plugins(plugins)
    first = RankZero()
    summary = train_speech_llm(
        config,
        data,
        out,
        overrides=overrides,
        cache=cache,
        init_from=init_from,
        resume=resume,
        skip_bad=skip_bad,
        device=device,
        callbacks=[first],
    )
    if not first.here:
        return
    if as_json:
        print_json(summary.to_json())
        return
    print_lines(summary)
    print_left_out(summary.skipped)


def evaluate(
    run: Run,
    data: Data,
    out: Annotated[Path, typer.Option(help="Evaluation directory to write.")],
    *,
    split: Annotated[str, typer.Option(help="train, val or test.")] = "val",
    audio_llm: AudioLlm = None,
    generation: Generation,
    nbest: Annotated[int, typer.Option(min=1, help="Sentences kept for each trial.")] = 10,
    description: Annotated[
        Path | None, typer.Option(help="CSV of blocks: post-implant day and corpus.")
    ] = None,
    skip_bad: bool = SKIP_BAD,
    device: str = DEVICE,
    plugins: list[Path] = PLUGINS,
    as_json: bool = JSON,
) -> None:
    """Let the language model write the sentences of a split, measure WER, and write a report.

    The n-best lists are kept, too.

    Example: cortext speech-llm evaluate runs/speech --data runs/packed --out runs/speech-eval
    """
    from cortext_speechllm.inference import evaluate as evaluated

    load_plugins(plugins)
    with progress_bar("writing") as progress:
        metrics = evaluated(
            run,
            data,
            split,
            out,
            audio_llm=audio_llm,
            generation=generation.given,
            nbest=nbest,
            device=device,
            skip_bad=skip_bad,
            description=description,
            progress=progress,
        )
    if as_json:
        print_json(dataclasses.asdict(metrics))
        return
    print_metrics(metrics)
    print_lines(f"report: {out / 'report.html'}")


def decode(
    run: Run,
    data: Data,
    out: Annotated[Path, typer.Option(help="CSV file to write, as the competition takes it.")],
    *,
    split: Annotated[str, typer.Option(help="train, val or test.")] = "test",
    audio_llm: AudioLlm = None,
    generation: Generation,
    skip_bad: bool = SKIP_BAD,
    device: str = DEVICE,
    plugins: list[Path] = PLUGINS,
    as_json: bool = JSON,
) -> None:
    """Write the language model's sentences of a split to a CSV file, `id,text`.

    Example: cortext speech-llm decode runs/speech --data runs/packed --out runs/predictions.csv
    """
    from cortext_speechllm.inference import decode as decoded

    load_plugins(plugins)
    with progress_bar("writing") as progress:
        texts = decoded(
            run,
            data,
            split,
            out,
            audio_llm=audio_llm,
            generation=generation.given,
            device=device,
            skip_bad=skip_bad,
            progress=progress,
        )
    if as_json:
        print_json(
            {
                "sentences": texts,
                "out": str(out),
                "skipped": [problem.to_json() for problem in texts.skipped],
            }
        )
        return
    print_lines(f"{out}: {len(texts)} sentences")
    print_left_out(texts.skipped)
