"""Commands that train neural language models, and compare one with an n-gram."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from typing import Annotated

import typer

from cortext.cli.console import JSON, print_json, print_lines, print_table, progress_bar, stages


def train(
    texts: Annotated[
        list[str],
        typer.Argument(metavar="TEXT[:FACTOR]...", help="Files of English text, plain or .gz."),
    ],
    out: Annotated[Path, typer.Option(help="Model directory to write, in transformers' form.")],
    held_out: Annotated[
        Path | None,
        typer.Option(
            help="Text that decides which weights are kept. Default: a part of each TEXT."
        ),
    ] = None,
    minutes: Annotated[
        float | None, typer.Option(help="Training ends after so long. Default: 10 without --steps.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Batches to learn from; repeatable, unlike --minutes.")
    ] = None,
    pieces: Annotated[int, typer.Option(help="Word pieces, at most.")] = 4000,
    width: Annotated[
        int, typer.Option(help="Width of the network, a multiple of 2 x heads.")
    ] = 192,
    layers: Annotated[int, typer.Option(help="Layers of the network.")] = 3,
    heads: Annotated[int, typer.Option(help="Attention heads of a layer.")] = 3,
    lr: Annotated[float, typer.Option(help="Highest learning rate.")] = 6e-3,
    threads: Annotated[int, typer.Option(help="Threads to compute with.")] = 1,
    seed: Annotated[int, typer.Option(help="Of the weights and the order of the text.")] = 0,
    as_json: bool = JSON,
) -> None:
    """Train a small causal language model on a CPU.

    It is a Llama of a few million parameters, with word pieces.

    TEXT:3 is read three times for one reading of the others. Needs the extra `llm`.

    Example: cortext lm train-neural prompts.txt:5 general.txt.gz --minutes 20 --out runs/neural
    """
    from cortext_lm.neural.train_neural import NeuralSettings, train_neural

    options = NeuralSettings(
        pieces=pieces,
        width=width,
        layers=layers,
        heads=heads,
        lr=lr,
        steps=steps,
        minutes=10.0 if minutes is None and steps is None else minutes,
        threads=threads,
        seed=seed,
    )
    with ExitStack() as bars:
        facts = train_neural(texts, out, options, held_out, stages(bars))
    if as_json:
        print_json(facts)
        return
    names = ("parameters", "pieces", "steps", "tokens", "seconds", "bits_per_character")
    print_table(
        "", [str(out), ""], [(name.replace("_", " "), f"{facts[name]:,}") for name in names]
    )


def compare(
    directory: Annotated[Path, typer.Argument(help="Language-model directory.")],
    model: Annotated[Path, typer.Argument(help="Directory that lm train-neural wrote.")],
    text: Annotated[
        Path,
        typer.Argument(help="File of English text, plain or .gz, that neither was built from."),
    ],
    held_out: Annotated[
        Path,
        typer.Option(help="Another such text, which the weights of the mixture are fitted on."),
    ],
    as_json: bool = JSON,
) -> None:
    """Compare bits per character of a text under an n-gram, a neural model, and both mixed.

    The mixture is taken word by word.

    Sentence ends and unknown words count. Needs the extra `llm`.

    Example: cortext lm compare runs/lm runs/neural test.txt --held-out held.txt
    """
    from cortext_lm.neural.compare import compare as compared

    with progress_bar("scoring") as bar:
        facts = compared(directory, model, text, held_out, bar)
    if as_json:
        print_json(facts)
        return
    bits = facts["bits_per_character"]
    perplexity = facts["perplexity"]
    gain = facts["gain"]
    rows = [(name, f"{bits[name]:.4f}", f"{perplexity[name]:.1f}") for name in bits]
    size = f"{facts['sentences']:,} sentences, {facts['characters']:,} characters"
    print_table("", [size, "bits per character", "perplexity"], rows)
    print_lines(
        f"mixed is {gain['bits_per_character']:.4f} bits per character below the n-gram (95 %"
        f" interval {gain['low']:.4f} to {gain['high']:.4f}), with a neural weight of"
        f" {facts['weights']['neural']:.3f} fitted on {facts['weights']['fitted_on_words']:,} other"
        " words"
    )


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
    """Finetune a causal language model on text with LoRA.

    TEXT:3 is read three times for one reading of the others. Needs the extra `llm`.

    Example: cortext finetune-llm Qwen/Qwen3.5-4B prompts.txt:3 general.txt.gz --out runs/lora
    --merge runs/merged
    """
    from cortext_lm.llm.finetune import FinetuneSettings
    from cortext_lm.llm.finetune import finetune as finetuned

    options = FinetuneSettings(
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
