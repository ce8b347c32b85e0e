"""Verbs about language models: lm build, lm info, lm score."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cortext.cli.console import JSON, print_json, print_table

lm = typer.Typer(help="Build, describe and use n-gram language models.", rich_markup_mode=None)


def add_verbs(app: typer.Typer) -> None:
    """Add this file's verbs to the command line."""
    for verb in (build, info, score):
        lm.command()(verb)
    app.add_typer(lm, name="lm")


def build(
    texts: Annotated[list[Path], typer.Argument(help="Text files, one sentence per line.")],
    out: Annotated[Path, typer.Option(help="Language-model directory to write.")],
    order: Annotated[int, typer.Option(help="Longest n-gram, 1 to 6.")] = 4,
    as_json: bool = JSON,
) -> None:
    """Estimate an n-gram model with modified Kneser-Ney smoothing, and the lexicon of its words.

    Example: cortext lm build runs/sim/text/lm.txt --order 4 --out runs/lm
    """
    from cortext.decoding.ngram import LanguageModel

    model = LanguageModel.build(texts, order, out)
    _print_facts(out, model.info(), as_json)


def info(
    directory: Annotated[Path, typer.Argument(help="Language-model directory.")],
    as_json: bool = JSON,
) -> None:
    """Describe a language model: order, n-grams, vocabulary, sources.

    Example: cortext lm info runs/lm
    """
    from cortext.decoding.ngram import LanguageModel

    _print_facts(directory, LanguageModel.open(directory).info(), as_json)


def score(
    directory: Annotated[Path, typer.Argument(help="Language-model directory.")],
    text: Annotated[Path, typer.Argument(help="Text file, one sentence per line.")],
    as_json: bool = JSON,
) -> None:
    """Perplexity and rate of unknown words of a text.

    Example: cortext lm score runs/lm runs/sim/text/val.txt
    """
    from cortext.decoding.ngram import LanguageModel

    _print_facts(text, LanguageModel.open(directory).evaluate(text), as_json)


def _print_facts(title: Path, facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(facts)
        return
    rows = [(name.replace("_", " "), _readable(value)) for name, value in facts.items()]
    print_table("", [str(title), ""], rows, right_from=2)


def _readable(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_readable(item)}" for name, item in value.items())
    if isinstance(value, list | tuple):
        return ("\n" if value and isinstance(value[0], dict) else "  ").join(map(_readable, value))
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
