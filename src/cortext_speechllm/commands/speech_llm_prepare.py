"""Commands that prepare a speech LLM: assemble, cache, teach, memory."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cortext.cli.console import (
    JSON,
    OVERRIDES,
    PLUGINS,
    SKIP_BAD,
    print_json,
    print_lines,
    print_table,
    progress_bar,
)
from cortext.plugins import load_plugins

if TYPE_CHECKING:
    from cortext_speechllm.memory import GPU, Planned


def assemble(
    language_model: Annotated[
        str,
        typer.Argument(
            help=(
                "Causal language model: a directory, as of lm train-neural, or OWNER/NAME of the"
                " Hub."
            )
        ),
    ],
    out: Annotated[Path, typer.Option(help="Directory of the audio language model to write.")],
    width: Annotated[
        int, typer.Option(help="Width of the audio tower, a multiple of 2 x heads.")
    ] = 128,
    layers: Annotated[int, typer.Option(help="Layers of the audio tower.")] = 2,
    heads: Annotated[int, typer.Option(help="Attention heads of a layer.")] = 4,
    mels: Annotated[int, typer.Option(help="Bands of the spectrum.")] = 80,
    window: Annotated[int, typer.Option(help="Longest sound, in seconds.")] = 30,
    seed: Annotated[int, typer.Option(help="Of the tower's and the projector's weights.")] = 0,
    as_json: bool = JSON,
) -> None:
    """Make an audio language model of a causal one, with a random audio tower.

    Nothing is downloaded or trained.

    Example: cortext speech-llm assemble runs/neural --out runs/audio-llm
    """
    from cortext_speechllm.audio_llm.assemble import TowerSettings
    from cortext_speechllm.audio_llm.assemble import assemble as assembled

    options = TowerSettings(
        width=width, layers=layers, heads=heads, mels=mels, window_s=window, seed=seed
    )
    facts = assembled(language_model, out, options)
    if as_json:
        print_json(facts)
        return
    rows = [
        ("parameters", f"{facts['n_parameters']:,}"),
        ("of which the language model", f"{facts['language_model']['n_parameters']:,}"),
    ]
    print_table("", [str(out), ""], rows)


def cache(
    out: Annotated[Path, typer.Option(help="File to write, or to go on with.")],
    data: Annotated[
        Path | None,
        typer.Argument(
            help="Directory of session files, or a packed one: the sentences of all its trials."
        ),
    ] = None,
    text: Annotated[
        Path | None, typer.Option(help="Instead of DATA: a file with a sentence in each line.")
    ] = None,
    audio_llm: Annotated[
        str, typer.Option(help="Audio language model: a directory, or OWNER/NAME on the Hub.")
    ] = "Qwen/Qwen2-Audio-7B-Instruct",
    voice: Annotated[
        str,
        typer.Option(
            help="formant, espeak-ng, or a VITS model: a directory, or OWNER/NAME on the Hub."
        ),
    ] = "facebook/mms-tts-eng",
    workers: Annotated[
        int | None,
        typer.Option(min=0, help="Processes that speak. Default: all processors but one."),
    ] = None,
    device: Annotated[
        str, typer.Option(help="auto (a GPU where there is one), cpu, cuda or cuda:N.")
    ] = "auto",
    skip_bad: bool = SKIP_BAD,
    as_json: bool = JSON,
) -> None:
    """Speak sentences, and keep the audio tower's output, for training to align to.

    May be stopped and started again at any time, and be given more sentences later. Needs the extra
    `speechllm`.

    Example: cortext speech-llm cache runs/packed --voice formant --out runs/speech.safetensors
    """
    from cortext.data import open_data
    from cortext.text.language import EN
    from cortext_speechllm.targets.build import build_cache, sentences_of_data, sentences_of_text

    if (data is None) == (text is None):
        raise typer.BadParameter("give DATA or --text, one of them")
    language = EN
    if text is not None:
        sentences = sentences_of_text(text)
    else:
        assert data is not None
        with progress_bar("packing") as bar:
            sentences = sentences_of_data(data, skip_bad=skip_bad, progress=bar)
        language = open_data(data, skip_bad=skip_bad).conventions.language
    with progress_bar("speaking") as bar:
        facts = build_cache(
            sentences,
            audio_llm,
            voice,
            out,
            workers=workers,
            device=device,
            skip_bad=skip_bad,
            language=language,
            progress=bar,
        )
    if as_json:
        print_json(facts)
        return
    rows = [
        ("sentences", f"{facts['sentences']:,}"),
        ("new ones", f"{facts['added']:,}"),
        ("minutes of speech", f"{facts['minutes']:,}"),
        ("megabytes", f"{facts['bytes'] / 1e6:,.1f}"),
        ("numbers per frame", f"{facts['width']:,}"),
        ("frame ms", f"{facts['frame_ms']:g}"),
        ("seconds", f"{facts['seconds']:.0f}"),
    ]
    print_table("", [str(out), ""], rows)
    for reason, lines in (
        ("left out, as nothing in them can be spoken", facts["left_out"]),
        (
            f"spoken in part, as {voice} passes over digits or letters (write them as words)",
            facts["in_part"],
        ),
    ):
        if lines:
            print_lines(f"{reason}: {len(lines)}", *(f"  {line}" for line in lines))


def teach(
    run: Annotated[Path, typer.Argument(help="Run directory of `cortext train`, with a CTC loss.")],
    texts: Annotated[
        list[Path], typer.Argument(metavar="TEXT...", help="Files of a sentence in each line.")
    ],
    data: Annotated[
        Path, typer.Option(help="What the run was trained on: session files, or packed.")
    ],
    audio_llm: Annotated[
        Path, typer.Option(help="Audio language model of `cortext speech-llm assemble`.")
    ],
    out: Annotated[Path, typer.Option(help="Run directory of a speech LLM to write.")],
    lexicon: Annotated[
        Path | None,
        typer.Option(help="Pronunciations of the words, for tokens of one's own."),
    ] = None,
    batches: Annotated[int, typer.Option(help="Batches of sentences.")] = 600,
    lr: Annotated[float, typer.Option(help="Highest learning rate.")] = 0.004,
    threads: Annotated[int, typer.Option(help="Threads to compute with.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the projector's weights and of what is read.")] = 0,
    plugins: list[Path] = PLUGINS,
    as_json: bool = JSON,
) -> None:
    """Teach a small language model to read what an encoder hears, from text alone.

    All of it is trained, on a CPU.

    The sentences of an evaluation must not be in TEXT. Needs the extra `speechllm`.

    Example: cortext speech-llm teach runs/first prompts.txt --data runs/packed --audio-llm
    runs/audio-llm --out runs/reads
    """
    from cortext_speechllm.teach import TeachSettings, teach_from_text

    load_plugins(plugins)
    options = TeachSettings(batches=batches, lr=lr, seed=seed, threads=threads)
    with progress_bar("reading") as progress:
        facts = teach_from_text(
            run, texts, data, audio_llm, out, options, lexicon=lexicon, progress=progress
        )
    if as_json:
        print_json(facts)
        return
    rows = [
        ("sentences", f"{facts['sentences']:,}"),
        ("batches", f"{batches:,}"),
        ("loss of the first tenth", f"{facts['loss_first']:.2f}"),
        ("and of the last", f"{facts['loss_last']:.2f}"),
        ("seconds", f"{facts['seconds']:.0f}"),
    ]
    print_table("", [str(out), ""], rows)


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
    from cortext_speechllm.audio_llm.cost import Load
    from cortext_speechllm.memory import gpu_named, plan

    card = gpu_named(gpu)
    load = Load(n_bins=n_bins, answer_tokens=answer_tokens)
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
    estimate = planned.estimate
    return {
        "stage": planned.stage,
        "training_bytes": estimate.training | {"all": estimate.training_bytes},
        "generation_bytes": estimate.generation | {"all": estimate.generation_bytes},
        "problem": planned.problem,
        "training_flops": estimate.training_flops,
        "batches": planned.n_batches,
        "training_hours": estimate.training_hours(planned.n_batches, gpu, share),
        "generation_s": estimate.generation_s(gpu, share),
    }


def _print(planned: Planned, gpu: GPU, share: float) -> None:
    need = planned.estimate
    for work, parts in (("training", need.training), ("writing", need.generation)):
        if parts:
            rows = [(part, f"{n_bytes / 1e9:.2f}") for part, n_bytes in parts.items() if n_bytes]
            title = f"{planned.stage}: {work}" if planned.stage else work
            print_table(
                title,
                ("estimated from shapes", "GB"),
                [*rows, ("all", f"{sum(parts.values()) / 1e9:.2f}")],
            )
    if need.training_flops:
        hours = need.training_hours(planned.n_batches, gpu, share)
        print_lines(
            f"{planned.n_batches:,} batches of the language model at {share:.0%} of the peak of an"
            f" {gpu.name}: about {hours:.1f} h ({need.training_flops / 1e12:.0f} TFLOP a batch),"
            " and the encoder's time; estimated, not measured"
        )
    print_lines(planned.problem or f"fits into {gpu.memory_bytes / 1e9:.0f} GB")
