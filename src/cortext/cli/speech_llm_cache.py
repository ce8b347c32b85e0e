"""The verb speech-llm cache: what the audio tower hears of each sentence, computed once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cortext.cli.console import JSON, SKIP_BAD, print_json, print_lines, print_table, progress_bar


def add_verbs(app: typer.Typer) -> None:
    """Add this file's verb to the group `speech-llm`."""
    app.command()(cache)


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
    """Speak sentences, and keep what the audio tower of a language model hears of them, for
    training to align to.

    May be stopped and started again at any time, and be given more sentences later. Needs the extra
    `speechllm`.

    Example: cortext speech-llm cache runs/packed --voice formant --out runs/speech.safetensors
    """
    from cortext.speechllm.targets.build import build_cache, sentences_of_data, sentences_of_text

    if (data is None) == (text is None):
        raise typer.BadParameter("give DATA or --text, one of them")
    if text is not None:
        sentences = sentences_of_text(text)
    else:
        assert data is not None
        with progress_bar("packing") as bar:
            sentences = sentences_of_data(data, skip_bad=skip_bad, progress=bar)
    with progress_bar("speaking") as bar:
        facts = build_cache(
            sentences,
            audio_llm,
            voice,
            out,
            workers=workers,
            device=device,
            skip_bad=skip_bad,
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
    for told, lines in (
        ("left out, as nothing in them can be spoken", facts["left_out"]),
        (
            f"spoken in part, as {voice} passes over digits or letters (write them as words)",
            facts["in_part"],
        ),
    ):
        if lines:
            print_lines(f"{told}: {len(lines)}", *(f"  {line}" for line in lines))
