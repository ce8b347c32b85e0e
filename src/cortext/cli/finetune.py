"""The verb finetune-llm: a LoRA adapter from one's own sentences."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from cortext.cli.console import JSON, print_json, print_table
from cortext.cli.lm_neural import stages


def add_verbs(app: typer.Typer) -> None:
    """Add this file's verb to the command line."""
    app.command("finetune-llm")(finetune)


def finetune(
    model: Annotated[
        str, typer.Argument(help="Causal language model: a directory, or OWNER/NAME on the Hub.")
    ],
    texts: Annotated[
        list[str],
        typer.Argument(metavar="TEXT[:FACTOR]...", help="Files of English text, plain or .gz."),
    ],
    out: Annotated[Path, typer.Option(help="Adapter directory to write, for --llm-lora.")],
    held_out: Annotated[
        Path | None,
        typer.Option(
            help="Text that decides which weights are kept. Default: a part of each TEXT."
        ),
    ] = None,
    merge: Annotated[
        Path | None, typer.Option(help="Write the model with the adapter merged into it here, too.")
    ] = None,
    rank: Annotated[int, typer.Option(help="Rank of what is added to each matrix.")] = 16,
    alpha: Annotated[float, typer.Option(help="What is added is scaled by alpha / rank.")] = 32.0,
    lr: Annotated[float, typer.Option(help="Highest learning rate.")] = 2e-4,
    epochs: Annotated[float, typer.Option(help="Readings of the texts.")] = 2.0,
    batch_tokens: Annotated[
        int, typer.Option(help="Tokens of a batch; less takes less memory.")
    ] = 1024,
    device: Annotated[
        str, typer.Option(help="auto (a GPU where there is one), cpu, cuda or cuda:N.")
    ] = "auto",
    threads: Annotated[int, typer.Option(help="Threads to compute with on a CPU.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the added weights and the order of the text.")] = 0,
    as_json: bool = JSON,
) -> None:
    """Finetune a causal language model on text with LoRA; a FACTOR reads a text so often.

    Needs the extra `llm`.

    Example: cortext finetune-llm Qwen/Qwen3.5-4B prompts.txt:3 general.txt.gz --out runs/lora
    --merge runs/merged
    """
    from cortext.decoding.llm.finetune import FinetuneOptions
    from cortext.decoding.llm.finetune import finetune as finetuned

    options = FinetuneOptions(
        rank=rank,
        alpha=alpha,
        lr=lr,
        epochs=epochs,
        batch_tokens=batch_tokens,
        threads=threads,
        seed=seed,
    )
    with ExitStack() as bars:
        facts = finetuned(
            model,
            texts,
            out,
            options,
            held_out=held_out,
            merge=merge,
            device=device,
            stage=stages(bars),
        )
    if as_json:
        print_json(facts)
        return
    rows = [
        ("held-out perplexity before", f"{facts['perplexity_before']:.2f}"),
        ("and after", f"{facts['perplexity_after']:.2f}"),
        ("trained parameters", f"{facts['trained_parameters']:,}"),
        ("in", " ".join(facts["target_modules"])),
        ("batches", f"{facts['steps']:,}"),
        ("seconds", f"{facts['seconds']:.0f}"),
    ]
    print_table("", [str(out), ""], rows)
