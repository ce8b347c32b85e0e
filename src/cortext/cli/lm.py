"""Commands about n-gram language models: `cortext lm ...`."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand

from cortext.cli.console import (
    JSON,
    print_json,
    print_lines,
    print_notes,
    print_table,
    progress_bar,
    stages,
)
from cortext.cli.options import with_settings

if TYPE_CHECKING:
    from cortext.text.inventory import Inventory
    from cortext.text.language import Language


_NAMED = 20
"""Most words without a pronunciation that are printed."""


class ManyNumbers(TyperCommand):
    """A command whose option `--prune` takes all numbers that follow it: `--prune 0 0 1`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Join the numbers, then parse as usual."""
        if "--prune" in args:
            first = args.index("--prune") + 1
            end = first
            while end < len(args) and args[end].isdigit():
                end += 1
            if end > first:
                args = [*args[:first], " ".join(args[first:end]), *args[end:]]
        return super().parse_args(ctx, args)


@dataclass(frozen=True)
class WordSettings:
    """Tokens and language of a language model, and the pronunciations of its words."""

    data: Annotated[
        Path | None,
        typer.Option(help="Session files or packed data, whose tokens and language are taken."),
    ] = None
    inventory: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Tokens: arpabet, characters, handwriting, or a JSON file. Default: those of"
            " --lexicon, else arpabet.",
        ),
    ] = None
    language: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="Language: en (the default), es, de, fr, nl, zh, or a JSON file.",
        ),
    ] = None
    lexicon: Annotated[
        Path | None,
        typer.Option(help="Pronunciations of your own: lines WORD P1 P2 ..., one a pronunciation."),
    ] = None
    g2p: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND",
            help="Program that pronounces other words: it reads one a line and writes lines"
            " WORD<tab>P1 P2 ... Time limit: 60 s, and 0.1 s a word.",
        ),
    ] = None
    spell: Annotated[bool, typer.Option("--spell", help="Spell other words with the tokens.")] = (
        False
    )
    unit: Annotated[
        str,
        typer.Option(help="word; or character: an n-gram of characters, for an open vocabulary."),
    ] = "word"
    skip_damaged: Annotated[
        bool,
        typer.Option(
            "--skip-damaged", help="Leave out sentences with letters that the language lacks."
        ),
    ] = False


@with_settings(cls=ManyNumbers)
def build(
    texts: Annotated[list[Path], typer.Argument(help="Files of text, plain, .gz, .bz2 or .xz.")],
    out: Annotated[Path, typer.Option(help="Language-model directory to write.")],
    words: WordSettings,
    order: Annotated[int, typer.Option(help="Longest n-gram, 1 to 6.")] = 5,
    vocab: Annotated[
        str | None,
        typer.Option(
            metavar="N|FILE",
            help="Keep the N most frequent words, or those of a file. Default: all.",
        ),
    ] = None,
    prune: Annotated[
        str,
        typer.Option(
            metavar="N ...", help="For each order: leave out n-grams that occur at most N times."
        ),
    ] = "0",
    interpolate: Annotated[
        bool,
        typer.Option("--interpolate", help="Mix one model for each TEXT, weighted by --held-out."),
    ] = False,
    held_out: Annotated[
        Path | None, typer.Option(help="Text that the weights of --interpolate are fitted on.")
    ] = None,
    kind: Annotated[
        str, typer.Option("--type", help="words, or spelling: a model of letters.")
    ] = "words",
    binary: Annotated[
        str, typer.Option(help="lm.bin is a quantised trie, a trie or probing.")
    ] = "quantised",
    keep_arpa: Annotated[
        bool, typer.Option("--keep-arpa", help="Keep the model as text too, lm.arpa.")
    ] = False,
    engine: Annotated[
        str, typer.Option(help="cortext, or lmplz: KenLM's estimator, where installed.")
    ] = "cortext",
    memory: Annotated[
        float,
        typer.Option(
            min=0.125, max=16384, help="Gigabytes for counting; the rest goes to the disk of --out."
        ),
    ] = 4.0,
    as_json: bool = JSON,
) -> None:
    """Estimate an n-gram model with modified Kneser-Ney smoothing, and the lexicon of its words.

    Words that nothing can pronounce are left out, counted and named.

    Example: cortext lm build runs/sim/text/lm.txt --order 5 --vocab 125000 --prune 0 0 1 --out
    runs/lm
    """
    from cortext.decoding.ngram import LanguageModel
    from cortext.decoding.ngram.vocabulary import read_vocabulary

    tokens, language = _conventions(words)
    with ExitStack() as bars:
        model = LanguageModel.build(
            texts,
            order,
            out,
            read_vocabulary(vocab, language) if vocab is not None else None,
            stage=stages(bars),
            prune=_numbers(prune),
            interpolate=interpolate,
            held_out=held_out,
            kind=kind,
            binary=binary,
            keep_arpa=keep_arpa,
            engine=engine,
            memory_bytes=int(memory * (1 << 30)),
            inventory=tokens,
            language=language,
            lexicon=words.lexicon,
            g2p=words.g2p,
            spell=words.spell,
            unit=words.unit,
            skip_damaged=words.skip_damaged,
        )
    facts = model.info()
    _print_facts(out, facts, as_json)
    _warn_of_words_left_out(facts)


def _conventions(words: WordSettings) -> tuple[Inventory | None, Language]:
    """Return tokens and language: those of data, or those named, with None for unnamed tokens."""
    from cortext.data import open_dataset, open_packed
    from cortext.data.packed_index import is_packed
    from cortext.text.inventory import read_inventory
    from cortext.text.language import EN, read_language

    if words.data is not None:
        if words.inventory is not None or words.language is not None:
            raise typer.BadParameter(
                "--data names the tokens and the language; leave --inventory and --language out",
                param_hint="--data",
            )
        conventions = (open_packed if is_packed(words.data) else open_dataset)(
            words.data
        ).conventions
        return conventions.inventory, conventions.language
    return (
        None if words.inventory is None else read_inventory(words.inventory),
        EN if words.language is None else read_language(words.language),
    )


def _warn_of_words_left_out(facts: dict[str, Any]) -> None:
    """Name the first words without a pronunciation, and count them."""
    if names := facts.get("without_pronunciation", []):
        n_left_out = facts["pronunciations"]["without"]
        more = f" and {n_left_out - _NAMED:,} more (see lm.json)" if n_left_out > _NAMED else ""
        words = "word" if n_left_out == 1 else "words"
        print_lines(
            f"{n_left_out:,} {words} without a pronunciation left out:"
            f" {', '.join(names[:_NAMED])}{more}",
            err=True,
        )


def info(
    directory: Annotated[Path, typer.Argument(help="Language-model directory.")],
    as_json: bool = JSON,
) -> None:
    """Describe a language model: order, n-grams, file type, bytes per n-gram, vocabulary, sources.

    Example: cortext lm info runs/lm
    """
    from cortext.decoding.ngram import LanguageModel

    lm = LanguageModel.open(directory)
    _print_facts(directory, lm.info(), as_json)
    print_notes(lm.notes)


def score(
    directory: Annotated[Path, typer.Argument(help="Language-model directory.")],
    text: Annotated[Path, typer.Argument(help="File of text, plain, .gz, .bz2 or .xz.")],
    as_json: bool = JSON,
) -> None:
    """Measure perplexity and the rate of unknown words of a text.

    Example: cortext lm score runs/lm runs/sim/text/val.txt
    """
    from cortext.decoding.ngram import LanguageModel

    with progress_bar("scoring") as bar:
        facts = LanguageModel.open(directory).evaluate(text, progress=bar)
    _print_facts(text, facts, as_json)


def _numbers(text: str) -> tuple[int, ...]:
    fields = text.replace(",", " ").split()
    if not fields or not all(field.isdecimal() and len(field) <= 18 for field in fields):
        raise typer.BadParameter(
            f"{text!r} is not a list of numbers such as 0 0 1", param_hint="--prune"
        )
    return tuple(map(int, fields))


def _print_facts(title: Path, facts: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(facts)
        return
    rows = [
        (name.replace("_", " "), _readable(value))
        for name, value in facts.items()
        if value not in ({}, []) and name != "without_pronunciation"
    ]
    print_table("", [str(title), ""], rows, right_from=2)


def _readable(value: Any) -> str:
    if isinstance(value, dict):
        items = {name: item for name, item in value.items() if item not in ({}, [])}
        lines = any(isinstance(item, dict | list) for item in items.values())
        return ("\n" if lines else ", ").join(
            f"{name.replace('_', ' ')} {_readable(item)}" for name, item in items.items()
        )
    if isinstance(value, list | tuple):
        return ("\n" if value and isinstance(value[0], dict | list) else "  ").join(
            map(_readable, value)
        )
    if isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}"
