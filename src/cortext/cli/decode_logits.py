"""The command `decode` without a model: saved logits, an evaluation's, or a made-up sentence."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cortext.cli.console import (
    percent,
    print_json,
    print_lines,
    print_notes,
    print_table,
    progress_bar,
)
from cortext.cli.options import KINDS, ORDERS
from cortext.cores import available_cores
from cortext.evaluation.settings import SearchSettings
from cortext.settings import Setting

if TYPE_CHECKING:
    from cortext.decoding import Decoder, NBest
    from cortext.evaluation.decoder_options import ChosenOptions
    from cortext.text.metrics import ErrorRate


@dataclass(frozen=True)
class SavedLogitsOptions:
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
    scores: Annotated[str, Setting(help=f"Numbers in the file --logits: {KINDS}.")] = "logits"
    order: Annotated[str | None, Setting(help=f"Order of the tokens in --logits: {ORDERS}.")] = None
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


def decode_saved_logits(
    saved: SavedLogitsOptions, out: Path, search: SearchSettings, as_json: bool
) -> None:
    """Decode logits in a file, or those of an evaluation directory, and print the result."""
    decoder, chosen = _decoder(search)
    settings: dict[str, Any] = {
        "temperature": saved.temperature,
        "context": search.context,
        "threads": search.threads or available_cores(),
    }
    assert saved.logits is not None
    if saved.order is None:
        settings |= {"options": chosen}
        _decode_evaluation(saved.logits, decoder, out, settings, as_json)
    else:
        settings |= {"scores": saved.scores}
        _decode_file(saved.logits, saved.order, decoder, out, settings, as_json)


def _decoder(search: SearchSettings) -> tuple[Decoder, ChosenOptions]:
    """Return a decoder, and where its options come from."""
    from cortext.decoding import Decoder
    from cortext.evaluation.decoder_options import choose_options

    assert search.lm is not None
    chosen = choose_options(None, search.lm, search.options)
    decoder = Decoder.from_dir(search.lm, chosen.options)
    return decoder if search.llm is None else decoder.with_llm(search.llm.open()), chosen


def _notes(decoder: Decoder, lists: Mapping[Any, NBest], doubts: Sequence[str] = ()) -> list[str]:
    """Print and return notes: doubts, and sentences that lack something that was asked for."""
    from cortext.decoding.decoder import notes_of

    said = [] if decoder.llm is None else decoder.llm.describe()["notes"]
    notes = notes_of([*decoder.lm.notes, *doubts, *said], lists)
    print_notes(notes)
    return notes


def _decode_file(
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
    from cortext.text.inventory import read_inventory

    inventory = read_inventory(order)
    doubts: list[str] = []
    with progress_bar("decoding") as progress:
        found = decode_saved(
            logits, inventory, decoder, out, progress=progress, note=doubts.append, **settings
        )
    notes = _notes(decoder, found, doubts)
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
    columns = [
        "",
        "trials",
        "words",
        found.inventory.error_rate,
        f"WER {before}",
        "95 %",
        now,
        "95 %",
    ]
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


def decode_made_up(made_up: MadeUpSentence, search: SearchSettings, as_json: bool) -> None:
    """Decode a made-up sentence and print it with scores and times."""
    from cortext.decoding.fake import fake_log_probs
    from cortext.decoding.nbest import hypothesis_json
    from cortext.evaluation.fit.confidence import RAW
    from cortext.text.inventory import RELEASE

    assert made_up.fake_text is not None
    sentence = made_up.fake_text
    decoder, _ = _decoder(search)
    lm = decoder.lm
    inventory = RELEASE if lm.inventory.is_published else lm.inventory
    words = [] if lm.is_open else lm.language.normalize(sentence).split()
    unknown = [word for word in words if word not in lm.lexicon]
    log_probs_PV = fake_log_probs(
        sentence, made_up.noise, made_up.seed, inventory, lm.lexicon, lm.language
    )
    start = time.perf_counter()
    nbest = decoder.decode(log_probs_PV, inventory, context=search.context)
    seconds = time.perf_counter() - start
    notes = _notes(decoder, {0: nbest})
    if as_json:
        facts: dict[str, Any] = {
            "text": sentence,
            "noise": made_up.noise,
            "seed": made_up.seed,
            "n_frames": len(log_probs_PV),
        }
        facts |= {"seconds": seconds, "not_in_lexicon": unknown, "notes": [*notes, RAW]}
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
