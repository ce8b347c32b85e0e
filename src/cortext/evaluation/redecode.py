"""The logits of an evaluation decoded again, beside the sentences that it holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cortext.arguments import as_path, check_type
from cortext.decoding.decoder import Decoder, part_of
from cortext.decoding.nbest import NBest
from cortext.decoding.options import DecoderOptions
from cortext.decoding.saved import to_log_probs
from cortext.evaluation.decoder_options import ChosenOptions
from cortext.evaluation.fit.options import TrialName
from cortext.evaluation.logits_origin import LogitFiles, LogitsOrigin
from cortext.evaluation.nbest_file import SavedTrialLists, language_of, read_nbest
from cortext.evaluation.submission import check_predictions_file
from cortext.evaluation.vocabularies import Vocabulary, decode_limited, read_vocabularies
from cortext.files import atomic_write, disk_errors, read_json
from cortext.processes import Progress
from cortext.tables import sentence_table
from cortext.text.inventory import RELEASE, Inventory
from cortext.text.language import Language
from cortext.text.metrics import ErrorRate, error_rate

OPEN = "open vocabulary"
"""Name of the trials that no vocabulary limits."""


@dataclass(frozen=True)
class RedecodedErrors:
    """Word errors of some trials: of the sentences that the evaluation holds, and decoded now.

    Attributes:
        per: Token error rate of the logits, from the evaluation; None where it is not known.
    """

    name: str
    n_trials: int
    per: float | None
    before: ErrorRate
    now: ErrorRate


@dataclass(frozen=True)
class Redecoded:
    """The sentences of an evaluation, decoded again.

    Attributes:
        lists: N-best list of each trial by its number.
        published: Another program made the sentences of the evaluation.
        rows: Rates of all trials with references, last, and of those of each vocabulary; empty
            without references.
        n_cross_fitted: Trials that the decoder options were fitted on; each is decoded with options
            of the other half of them.
        inventory: Tokens of the logits.
    """

    lists: dict[int, NBest]
    published: bool
    rows: tuple[RedecodedErrors, ...]
    n_cross_fitted: int = 0
    inventory: Inventory = RELEASE

    def to_json(self) -> list[dict[str, Any]]:
        """Return the rows with plain values."""
        return [asdict(row) for row in self.rows]


def decode_evaluation(
    directory: str | Path,
    decoder: Decoder,
    out: str | Path,
    *,
    options: ChosenOptions | None = None,
    temperature: float = 1.0,
    threads: int = 1,
    context: str = "",
    progress: Progress | None = None,
) -> Redecoded:
    """Decode the logits of an evaluation directory and write `id,text` rows to `out`.

    Trials of a limited vocabulary (`vocabularies.json`) are decoded with its words alone.

    Args:
        directory: Evaluation directory; it says how its logits are ordered.
        decoder: The decoder.
        out: CSV file to write, or text file (`.txt`).
        options: Origin of the decoder's options; trials that these were fitted on are decoded with
            those of the other half. None for options that were not fitted.
        temperature: Divisor of the logits, above 0.
        threads: Number of threads that decode.
        context: See `Decoder.stream`; the same for all trials.
        progress: Called with trials done and in all.

    Raises:
        CortextError: For a directory that is no evaluation, and as `Decoder.decode_batch`.
    """
    out = as_path(out, "out")
    check_type(decoder, Decoder, "decoder", "a Decoder")
    check_predictions_file(out)
    directory = as_path(directory, "a directory")
    language = language_of(directory)
    trials = list(read_nbest(directory).values())
    origin = LogitsOrigin.of(directory)
    origin.require(decoder.lm, directory)
    files = LogitFiles.of(directory, origin.inventory)
    log_probs = [
        # Rounded twice, as those of the run are where an ensemble searches it: the same bits.
        to_log_probs(to_log_probs(files.log_probs(trial.key)), temperature)
        for trial in trials
    ]
    numbers = [trial.number for trial in trials]
    vocabularies = read_vocabularies(directory)
    groups: dict[DecoderOptions, list[int]] = {}
    own = [None if options is None else options.without(_name(trial, language)) for trial in trials]
    for n, fitted in enumerate(own):
        groups.setdefault(fitted or decoder.options, []).append(n)
    lists: dict[int, NBest] = {}
    for part, (key, chosen) in enumerate(groups.items()):
        found = decode_limited(
            decoder.with_options(**vars(key)),
            [log_probs[n] for n in chosen],
            origin.inventory,
            vocabularies,
            [numbers[n] for n in chosen],
            threads=threads,
            progress=part_of(progress, part, len(groups)),
            context=context,
        )
        for n, nbest in zip(chosen, found, strict=True):
            lists[numbers[n]] = nbest.timed(origin.frame_ms)
    rows = [(number, language.normalize(lists[number][0].text)) for number in numbers]
    with disk_errors(out):
        atomic_write(out, sentence_table(out, rows))
    metrics = read_json(directory / "metrics.json")  # LogitsOrigin has checked it
    return Redecoded(
        {number: lists[number] for number in numbers},
        "imported" in metrics["provenance"],
        tuple(_compared(trials, lists, vocabularies, metrics, language)),
        sum(each is not None for each in own),
        origin.inventory,
    )


def _name(trial: SavedTrialLists, language: Language) -> TrialName:
    _, session, block, number = trial.key
    said = language.normalize(trial.reference or "")
    return TrialName(str(session), int(block or 0), int(number or 0), said)


def _compared(
    trials: Sequence[SavedTrialLists],
    lists: Mapping[int, NBest],
    vocabularies: Sequence[Vocabulary],
    metrics: Mapping[str, Any],
    language: Language,
) -> Iterator[RedecodedErrors]:
    """Yield the rates of each vocabulary, of the other trials, and of all of them."""
    said = [trial for trial in trials if trial.reference]
    limited = {number for vocabulary in vocabularies for number in vocabulary.trials}
    groups = {each.name: set(each.trials) for each in vocabularies}
    if groups:
        groups[OPEN] = {trial.number for trial in trials} - limited
    groups["all trials"] = {trial.number for trial in trials}
    per = {name: rates["per"] for name, rates in (metrics.get("per_corpus") or {}).items()}
    per["all trials"] = metrics.get("per")
    for name, members in groups.items():
        chosen = [trial for trial in said if trial.number in members]
        if chosen:
            references = [trial.reference for trial in chosen]
            before = [
                " ".join(language.normalize(trial.hypotheses[0]["text"]).split())
                for trial in chosen
            ]
            now = [lists[trial.number][0].text for trial in chosen]
            yield RedecodedErrors(
                name,
                len(chosen),
                per.get(name),
                error_rate(references, before, language=language),
                error_rate(references, now, language=language),
            )
