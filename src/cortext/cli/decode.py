"""Commands that find words: evaluate, and decode for a run, saved logits or a made-up sentence."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cortext.cli.console import (
    DEVICE,
    JSON,
    PLUGINS,
    SKIP_BAD,
    is_given,
    percent,
    print_json,
    print_left_out,
    print_lines,
    print_metrics,
    print_notes,
    print_table,
    progress_bar,
)
from cortext.cli.options import Data, PromptedModelOptions, Run, check_ray
from cortext.errors import ConfigError, DecodingError
from cortext.evaluation.settings import SearchSettings
from cortext.plugins import load_plugins
from cortext.settings import Setting

if TYPE_CHECKING:
    from cortext.decoding import Decoder, NBest
    from cortext.evaluation.decoder_options import Chosen
    from cortext.evaluation.submission import Predictions
    from cortext.text.metrics import ErrorRate

SHARED = {"lm", "options", "engine", "llm", "llm_lora", "llm_device", "context", "as_json"}
FORMS = {
    "run": (
        {"run", "data", "out"},
        {"split", "threads", "ray", "gpus_per_worker", "skip_bad", "device", "plugin"},
    ),
    "logits": ({"logits", "order", "out"}, {"temperature", "threads"}),
    "evaluation": ({"logits", "out"}, {"temperature", "threads"}),
    "fake_text": ({"fake_text"}, {"noise", "seed"}),
}
"""Forms of the command: the parameters that each needs, and those that it may have.

`evaluation` is the form of `--logits` with a directory.
"""

SEE_HELP = "see `cortext decode --help`"


@dataclass(frozen=True)
class SavedLogits:
    """Logits in a file, which `cortext decode` reads instead of running a model."""

    logits: Annotated[
        Path | None,
        Setting(
            help=(
                "Evaluation directory, or file of anyone's logits or log-probabilities (.npz,"
                " .npy, .h5); needs --out, and a file --order. What is read is treated as logits,"
                " for which log-softmax of log-probabilities is the identity."
            )
        ),
    ] = None
    order: Annotated[
        str | None, Setting(help="Order of the tokens in --logits: release or lm.")
    ] = None
    temperature: Annotated[float, Setting(help="What --logits are divided by.")] = 1.0


@dataclass(frozen=True)
class MadeUpSentence:
    """A sentence for which `cortext decode` makes up log-probabilities."""

    fake_text: Annotated[str | None, Setting(help="Sentence to make up log-probabilities for.")] = (
        None
    )
    noise: Annotated[
        float, Setting(help="Noise of the made-up logits; from 2 on it does harm.")
    ] = 1.0
    seed: Annotated[int, Setting(help="Seed of the noise.", minimum=0)] = 0


def decode(
    call: typer.Context,
    lm: Annotated[Path, typer.Option(help="Language-model directory.")],
    *,
    run: Annotated[
        Path | None, typer.Argument(help="Run directory of a trained model; needs --data, --out.")
    ] = None,
    data: Annotated[
        Path | None, typer.Option(help="Directory of session files, or a packed one.")
    ] = None,
    split: Annotated[str, typer.Option(help="train, val or test.")] = "test",
    saved: SavedLogits,
    made_up: MadeUpSentence,
    out: Annotated[Path | None, typer.Option(help="CSV file to write.")] = None,
    search: SearchSettings,
    large: PromptedModelOptions,
    skip_bad: bool = SKIP_BAD,
    device: str = DEVICE,
    plugin: list[Path] = PLUGINS,
    as_json: bool = JSON,
) -> None:
    """Decode a split, saved logits, or a made-up sentence into text.

    A split becomes `id,text` rows, numbered as the Brain-to-Text competition numbers them; saved
    logits become rows named by their arrays: [P, V] each (or one [B, P, V] and `lengths` [B]), a
    dataset per trial in HDF5. The logits of an evaluation directory are decoded beside the
    sentences that it holds.

    Example: cortext decode runs/first --data runs/sim --split test --lm runs/lm --out
    predictions.csv

    Example: cortext decode runs/first --data runs/sim --lm runs/lm --llm facebook/opt-6.7b --out
    predictions.csv

    Example: cortext decode --logits logits.npz --order release --lm runs/lm --out predictions.csv

    Example: cortext decode --logits runs/eval --lm runs/lm --out predictions.csv

    Example: cortext decode --fake-text "how are you" --noise 1 --lm runs/lm
    """
    check_form(call)
    search = _searching(search, lm, large)
    load_plugins(plugin)
    if run is not None and data is not None and out is not None:
        from cortext.evaluation import decode as decode_split

        _decode_split(
            partial(decode_split, run, data, split, out=out, device=device, **vars(search)),
            out,
            skip_bad,
            as_json,
        )
    elif saved.logits is not None and out is not None:
        decoder, chosen = _decoder(search)
        settings: dict[str, Any] = {
            "temperature": saved.temperature,
            "context": search.context,
            "threads": search.threads or os.cpu_count() or 1,
        }
        if saved.order is None:
            settings |= {"options": chosen}
            _decode_evaluation(saved.logits, decoder, out, settings, as_json)
        else:
            _decode_logits(saved.logits, saved.order, decoder, out, settings, as_json)
    elif made_up.fake_text is not None:
        _decode_fake(made_up, _decoder(search)[0], search.context, as_json)


def _searching(
    search: SearchSettings, lm: Path | None, large: PromptedModelOptions
) -> SearchSettings:
    """Return the search with its language models, where their options agree."""
    check_ray(search.ray, search.gpus_per_worker, search.threads, large.llm_device)
    return replace(search, lm=lm, llm=large.files, context=large.context)


def check_form(call: typer.Context) -> None:
    """Raise DecodingError unless all parameters of one form are given, and no others."""
    given = {name for name in call.params if is_given(call, name)}
    named = {
        name: "RUN" if name == "run" else f"--{name.replace('_', '-')}" for name in call.params
    }
    forms = [name for name in FORMS if name in given]
    if len(forms) != 1:
        found = (
            f"{' and '.join(named[name] for name in forms)} at once"
            if forms
            else "nothing to decode"
        )
        raise DecodingError(
            f"{found}; give a run directory or --logits or --fake-text", fix=SEE_HELP
        )
    logits = call.params["logits"]
    is_directory = forms == ["logits"] and logits is not None and logits.is_dir()
    required, allowed = FORMS["evaluation" if is_directory else forms[0]]
    if is_directory and "order" in given:
        raise DecodingError(
            f"--order is given, and {logits} says how its logits are ordered", fix="leave it out"
        )
    for name in sorted(given - required - allowed - SHARED):
        raise DecodingError(f"{named[name]} does not go with {named[forms[0]]}", fix=SEE_HELP)
    for name in sorted(required - given):
        raise DecodingError(f"{named[forms[0]]} needs {named[name]}", fix=SEE_HELP)


def _decoder(search: SearchSettings) -> tuple[Decoder, Chosen]:
    """Return a decoder, and where its options come from."""
    from cortext.decoding import Decoder
    from cortext.evaluation.decoder_options import choose_options

    assert search.lm is not None
    chosen = choose_options(None, search.lm, search.options)
    decoder = Decoder.from_dir(search.lm, chosen.options, search.engine)
    return decoder if search.llm is None else decoder.with_llm(search.llm.open()), chosen


def _notes(decoder: Decoder, lists: Mapping[Any, NBest]) -> list[str]:
    """Print and return notes on sentences that lack something that was asked for."""
    from cortext.decoding.decoder import notes_of

    notes = notes_of([] if decoder.llm is None else decoder.llm.describe()["notes"], lists)
    print_notes(notes)
    return notes


def _decode_split(
    decode_all: Callable[..., Predictions], out: Path, skip_bad: bool, as_json: bool
) -> None:
    """Call `cortext.evaluation.decode` with the arguments that it lacks, and print its result."""
    with progress_bar("decoding") as progress:
        texts = decode_all(skip_bad=skip_bad, progress=progress)
    print_lines(texts.decoder_options, err=True)
    print_notes(texts.notes)
    if as_json:
        facts = {
            "out": str(out),
            "n_trials": len(texts),
            "n_skipped": len(texts.skipped),
            "skipped": [problem.to_json() for problem in texts.skipped],
            "notes": list(texts.notes),
            "decoder_options": texts.decoder_options,
        }
        print_json(facts)
    else:
        print_lines(f"{out}: {len(texts)} rows")
        print_left_out(texts.skipped)


def _decode_logits(
    logits: Path, order: str, decoder: Decoder, out: Path, settings: dict[str, Any], as_json: bool
) -> None:
    """Decode the logits in a file and print the result.

    Args:
        logits: The file.
        order: Order of its tokens.
        decoder: The decoder.
        out: CSV file to write.
        settings: Other arguments of `decode_saved`.
        as_json: Print JSON.
    """
    from cortext.decoding.saved import decode_saved

    with progress_bar("decoding") as progress:
        found = decode_saved(logits, order, decoder, out, progress=progress, **settings)
    notes = _notes(decoder, found)
    if as_json:
        print_json(_listed(found, out) | {"notes": notes})
        return
    shown = list(found.items())[:10]
    print_table(
        "",
        ["trial", "text", "score"],
        [(name, n[0].text, f"{n[0].score:.1f}") for name, n in shown],
        2,
    )
    print_lines(f"{out}: {len(found)} rows")


def _listed(found: Mapping[Any, NBest], out: Path) -> dict[str, Any]:
    """Return the best sentence of each trial as JSON, and the file that has them."""
    trials = [
        {"id": name, "text": nbest[0].text, "score": nbest[0].score, "degraded": nbest.degraded}
        for name, nbest in found.items()
    ]
    return {"out": str(out), "n_trials": len(trials), "trials": trials}


def _decode_evaluation(
    directory: Path, decoder: Decoder, out: Path, settings: dict[str, Any], as_json: bool
) -> None:
    """Decode the logits of an evaluation and print word errors beside those of its sentences.

    Args:
        directory: The evaluation directory.
        decoder: The decoder.
        out: CSV file to write.
        settings: Other arguments of `decode_evaluation`.
        as_json: Print JSON.
    """
    from cortext.evaluation.redecode import decode_evaluation

    with progress_bar("decoding") as progress:
        found = decode_evaluation(directory, decoder, out, progress=progress, **settings)
    notes = _notes(decoder, found.lists)
    if as_json:
        print_json(
            _listed(found.lists, out)
            | {"rates": found.to_json(), "notes": notes, "n_cross_fitted": found.n_cross_fitted}
        )
        return
    before = "as published" if found.published else "in the evaluation"
    now = "WER decoded now" + (", cross-fitted" if found.n_cross_fitted else "")
    columns = ["", "trials", "words", "PER", f"WER {before}", "95 %", now, "95 %"]
    rows = [
        (
            row.name,
            row.n_trials,
            row.now.counts.reference_length,
            percent(row.per),
            *_rate(row.before),
            *_rate(row.now),
        )
        for row in found.rows
    ]
    if rows:
        print_table("", columns, rows)
    print_lines(f"{out}: {len(found.lists)} rows")


def _rate(rate: ErrorRate) -> tuple[str, str]:
    """Return a rate and its interval in per cent."""
    if rate.low is None or rate.high is None:
        return percent(rate.rate), "-"
    return percent(rate.rate), f"{100 * rate.low:.1f} to {100 * rate.high:.1f}"


def _decode_fake(made_up: MadeUpSentence, decoder: Decoder, context: str, as_json: bool) -> None:
    from cortext.decoding.fake import fake_log_probs
    from cortext.decoding.nbest import hypothesis_json
    from cortext.text.lexicon import Lexicon
    from cortext.text.normalize import normalize

    assert made_up.fake_text is not None
    sentence = made_up.fake_text
    lexicon = Lexicon.read(decoder.lm_dir / "lexicon.txt")
    unknown = [word for word in normalize(sentence).split() if word not in lexicon]
    log_probs_PV = fake_log_probs(sentence, made_up.noise, made_up.seed, "release", lexicon)
    start = time.perf_counter()
    nbest = decoder.decode(log_probs_PV, "release", context=context)
    seconds = time.perf_counter() - start
    notes = _notes(decoder, {0: nbest})
    if as_json:
        facts: dict[str, Any] = {
            "text": sentence,
            "noise": made_up.noise,
            "seed": made_up.seed,
            "n_frames": len(log_probs_PV),
        }
        facts |= {"seconds": seconds, "not_in_lexicon": unknown, "notes": notes}
        print_json(facts | {"hypotheses": [hypothesis_json(hypothesis) for hypothesis in nbest]})
        return
    _print_nbest(nbest)
    print_lines(f"{len(log_probs_PV)} frames of 80 ms, decoded in {1000 * seconds:.1f} ms")
    if unknown:
        print_lines(f"not in the lexicon, so never found: {' '.join(dict.fromkeys(unknown))}")


def _print_nbest(nbest: NBest) -> None:
    """Print sentences with their scores, and the times of their words in seconds."""
    rows = []
    for hypothesis in nbest:
        times = [
            f"{word.word} {word.start_ms / 1000:.2f}-{word.end_ms / 1000:.2f}"
            for word in hypothesis.words
        ]
        rows.append((hypothesis.text, f"{hypothesis.score:.2f}", ", ".join(times)))
    print_table("", ["text", "score", "words (s)"], rows, 2)


SEARCHING = ("options", "engine", "threads", "fit")
"""Parameters of `evaluate` that say how words are searched for."""


def evaluate(
    call: typer.Context,
    run: Run,
    data: Data,
    out: Annotated[Path, typer.Option(help="Evaluation directory to write.")],
    *,
    split: Annotated[str, typer.Option(help="train, val or test.")] = "val",
    lm: Annotated[
        Path | None, typer.Option(help="Language-model directory; without it only PER is reported.")
    ] = None,
    description: Annotated[
        Path | None, typer.Option(help="CSV of blocks: post-implant day and corpus.")
    ] = None,
    search: SearchSettings,
    fit: Annotated[
        bool,
        typer.Option(
            "--fit", help="Fit decoder options to this split first, and keep them in the run."
        ),
    ] = False,
    large: PromptedModelOptions,
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
    search = _searching(search, lm, large)
    load_plugins(plugins)
    with progress_bar("evaluating") as progress:
        metrics = evaluation.evaluate(
            run,
            data,
            split,
            out=out,
            fit=fit,
            device=device,
            skip_bad=skip_bad,
            description=description,
            progress=progress,
            **vars(search),
        )
    if metrics.decoder_options is not None:
        print_lines(metrics.decoder_options, err=True)
    print_notes(metrics.notes)
    if as_json:
        print_json(asdict(metrics))
        return
    print_metrics(metrics)
    print_lines(f"report: {out / 'report.html'}")
