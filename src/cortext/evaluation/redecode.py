"""The logits of an evaluation decoded again, beside the sentences that it holds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cortext.arguments import as_path, check_type
from cortext.decoding.decoder import Decoder, part_of
from cortext.decoding.nbest import NBest
from cortext.decoding.ngram import LanguageModel
from cortext.decoding.options import DecoderOptions
from cortext.decoding.saved import to_log_probs
from cortext.evaluation.decoder_options import ChosenOptions
from cortext.evaluation.fit.options import TrialName
from cortext.evaluation.logits_origin import LogitFiles, LogitsOrigin
from cortext.evaluation.nbest_file import SavedTrialLists, read_nbest
from cortext.evaluation.submission import check_predictions_file
from cortext.evaluation.vocabularies import Vocabulary, decode_limited, read_vocabularies
from cortext.files import atomic_write, disk_errors, read_json
from cortext.processes import Progress
from cortext.tables import sentence_table
from cortext.text.inventory import RELEASE, Inventory
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
class SavedEvaluation:
    """An evaluation directory, open, whose logits are to be decoded again.

    Attributes:
        origin: Order of the logits, and language of the sentences.
        trials: Trials with the sentences that the directory holds.
        files: Logits of the trials.
        vocabularies: Words that the sentences of some trials are made of.
        metrics: The contents of `metrics.json`.
    """

    origin: LogitsOrigin
    trials: list[SavedTrialLists]
    files: LogitFiles
    vocabularies: tuple[Vocabulary, ...]
    metrics: dict[str, Any]

    @classmethod
    def open(cls, directory: Path, lm: LanguageModel) -> SavedEvaluation:
        """Open a directory; see `decode_evaluation`.

        Raises:
            CortextError: For a directory that is no evaluation, and for logits of other tokens than
                those of the language model.
        """
        trials = list(read_nbest(directory).values())
        origin = LogitsOrigin.of(directory)
        origin.require(lm, directory)
        files = LogitFiles.of(directory, origin.inventory)
        metrics = read_json(directory / "metrics.json")  # LogitsOrigin has checked it
        return cls(origin, trials, files, read_vocabularies(directory), metrics)

    def log_probs(self, temperature: float) -> list[np.ndarray]:
        """Return the natural-log probabilities of each trial, float32 [P, V]."""
        return [
            # Normalised again, as an average of this run alone is: the same but for rounding.
            to_log_probs(to_log_probs(self.files.log_probs(trial.key)), temperature)
            for trial in self.trials
        ]

    def names(self) -> list[TrialName]:
        """Return the name of each trial, by which a fit knows it."""
        normalize = self.origin.language.normalize
        keys = [(each.key[1:], normalize(each.reference or "")) for each in self.trials]
        return [
            TrialName(str(session), int(block or 0), int(trial or 0), reference)
            for (session, block, trial), reference in keys
        ]


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
    saved = SavedEvaluation.open(as_path(directory, "a directory"), decoder.lm)
    log_probs = saved.log_probs(temperature)
    fitted = [None if options is None else options.without(name) for name in saved.names()]
    own = [each or decoder.options for each in fitted]
    found = _decoded(saved, decoder, own, log_probs, threads, context, progress)
    normalize = saved.origin.language.normalize
    rows = [(trial.number, normalize(found[trial.number][0].text)) for trial in saved.trials]
    with disk_errors(out):
        atomic_write(out, sentence_table(out, rows))
    return Redecoded(
        found,
        "imported" in saved.metrics["provenance"],
        tuple(_compared(saved, found)),
        sum(each is not None for each in fitted),
        saved.origin.inventory,
    )


def _decoded(
    saved: SavedEvaluation,
    decoder: Decoder,
    options: Sequence[DecoderOptions],
    log_probs: Sequence[np.ndarray],
    threads: int,
    context: str,
    progress: Progress | None,
) -> dict[int, NBest]:
    """Return the n-best list of each trial by its number; each is decoded with its own options."""
    numbers = [trial.number for trial in saved.trials]
    groups: dict[DecoderOptions, list[int]] = {}
    for n, own in enumerate(options):
        groups.setdefault(own, []).append(n)
    found: dict[int, NBest] = {}
    for part, (own, chosen) in enumerate(groups.items()):
        lists = decode_limited(
            decoder.with_options(**vars(own)),
            [log_probs[n] for n in chosen],
            saved.origin.inventory,
            saved.vocabularies,
            [numbers[n] for n in chosen],
            threads=threads,
            progress=part_of(progress, part, len(groups)),
            context=context,
        )
        for n, nbest in zip(chosen, lists, strict=True):
            found[numbers[n]] = nbest.timed(saved.origin.frame_ms)
    return {number: found[number] for number in numbers}


def _compared(saved: SavedEvaluation, lists: Mapping[int, NBest]) -> Iterator[RedecodedErrors]:
    """Yield the rates of each vocabulary, of the other trials, and of all of them."""
    language = saved.origin.language
    everything = {trial.number for trial in saved.trials}
    groups = {each.name: set(each.trials) for each in saved.vocabularies}
    if groups:
        groups[OPEN] = everything.difference(*groups.values())
    groups["all trials"] = everything
    per_corpus = saved.metrics.get("per_corpus") or {}
    per = {name: rates["per"] for name, rates in per_corpus.items()}
    per["all trials"] = saved.metrics.get("per")
    for name, members in groups.items():
        chosen = [each for each in saved.trials if each.reference and each.number in members]
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
