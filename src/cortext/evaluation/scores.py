"""Error rates of decoded trials with intervals, by groups of trials, and confusions.

All rates are at corpus level (edits of all trials over the reference lengths of all trials), as the
Brain-to-Text benchmarks score; intervals come from a bootstrap over trials.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from importlib.util import find_spec
from typing import Any

import numpy as np

from cortext.data.trial import BIN_MS
from cortext.decoding.nbest import NBest
from cortext.describe import Described, percent, with_interval
from cortext.extras import install_hint
from cortext.text import metrics
from cortext.text.inventory import RELEASE, Inventory
from cortext.text.language import EN, Language

FORMAT_VERSION = 1
BLEU_HINT = f"BLEU needs sacrebleu; {install_hint('bleu')}"


def long_name(inventory: Inventory) -> str:
    """Return the long name of the error rate of an inventory's tokens (`Inventory.error_rate`)."""
    return f"{'phoneme' if inventory.unit == 'phoneme' else 'token'} error rate"


@dataclass(frozen=True, slots=True, eq=False)
class TrialResult:
    """One trial with its logits and sentences.

    Attributes:
        id: Row of `predictions.csv`: sessions in order, trials in file order, counted from 0.
        phonemes: Reference symbols as labels have them; None where labels are withheld.
        greedy: Symbols of the best CTC path without blanks and repeats.
        logits_PV: float32 [P, V] in the model's token order.
        nbest: Sentences of the word search; None without a language model.
        language: Normalisation of the sentences.
    """

    id: int
    session: str
    block: int
    trial: int
    n_bins: int
    corpus: str | None
    sentence: str | None
    phonemes: tuple[str, ...] | None
    greedy: tuple[str, ...]
    logits_PV: np.ndarray
    nbest: NBest | None = None
    language: Language = EN

    @property
    def text(self) -> str | None:
        """The best sentence as it is scored, or None without a language model."""
        return None if self.nbest is None else self.language.normalize(self.nbest[0].text)

    @property
    def reference(self) -> str | None:
        """The prompt as it is scored."""
        return None if self.sentence is None else self.language.normalize(self.sentence)

    @property
    def name(self) -> str:
        """The trial's name in messages and files."""
        return f"{self.session}/block {self.block}/trial {self.trial}"


@dataclass(frozen=True, repr=False)
class Rates(Described):
    """Error rates of some trials; a rate is None where labels, or the word search, are missing."""

    n_trials: int
    n_words: int
    n_phonemes: int
    per: float | None
    per_ci95: tuple[float, float] | None
    wer: float | None
    wer_ci95: tuple[float, float] | None
    cer: float | None
    cer_ci95: tuple[float, float] | None
    edits: dict[str, dict[str, int]] = field(default_factory=dict)
    """Substitutions, insertions, deletions and reference length, by `phoneme`, `word` and
    `char`.
    """

    def _facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = {"trials": self.n_trials, "words": self.n_words}
        for name in ("per", "wer", "cer"):
            low, high = getattr(self, f"{name}_ci95") or (None, None)
            facts[name.upper()] = with_interval(getattr(self, name), low, high)
        return facts


@dataclass(frozen=True, kw_only=True, repr=False)
class Metrics(Rates):
    """The contents of `metrics.json`.

    Rates are fractions (0.1 is 10 %), None where they cannot be measured. The fields of `Rates`
    (`per, wer, cer`, their `_ci95`, counts) are those of all trials.
    """

    split: str
    wer_seen: float | None
    """WER of the trials whose normalised sentence occurs in the training split of the same data."""
    wer_unseen: float | None
    """WER of all other trials."""
    seen: Rates | None
    """All rates of the trials of `wer_seen`.

    They are None where the data have no labelled training split to compare with.
    """
    unseen: Rates | None
    per_session: dict[str, Rates]
    per_corpus: dict[str, Rates]
    per_session_corpus: dict[str, dict[str, Rates]]
    post_implant_day: dict[str, int]
    words_per_minute: float | None
    """Prompted words per minute of recording."""
    oov: dict[str, Any] | None
    """Prompted words the language model lacks: `n`, `rate` and `words` (the most frequent).

    None without one.
    """
    bleu: float | None
    bleu_hint: str | None
    n_skipped: int
    skipped: list[dict[str, Any]]
    """Trials left out as bad: number, file, trial, field and why."""
    n_degraded: int
    """Trials whose sentences lack something that was asked for, such as a large model's scores.

    `nbest.jsonl` gives the reason.
    """
    notes: list[str]
    """Lines about sentences that lack something that was asked for."""
    decoder_options: str | None
    """Origin of the decoder options, a line; None without a word search."""
    n_cross_fitted: int
    """Trials on which the decoder options were fitted.

    Each is decoded with options that were fitted on the other half of them. Above 0, WER and CER
    are cross-fitted.
    """
    caveats: list[str]
    """Lines about choices that were made on these trials, and how the rates allow for them."""
    seconds: dict[str, float]
    """Seconds of each stage, and their sum `total`."""
    provenance: dict[str, Any] = field(repr=False)
    """Run, data, language models, decoder options, device, seed, versions, commit, the run's
    configuration.
    """
    confidence: dict[str, Any] | None = None
    """Measures of the confidences (`Calibration`): `words`, and where they are calibrated
    `sentences` and `posteriors`, those of the search for the same words; `note` says what they are.

    None where no decoded word has both a confidence and a reference.
    """
    format_version: int = FORMAT_VERSION

    def _facts(self) -> dict[str, Any]:
        return {
            "split": self.split,
            **super()._facts(),
            "left out as bad": self.n_skipped or None,
        }

    def _table(self) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
        rows = [
            (name, rates.n_trials, *map(percent, (rates.per, rates.wer, rates.cer)))
            for name, rates in self.per_session.items()
        ]
        return ("session", "trials", "PER", "WER", "CER"), rows


def rates(trials: Sequence[TrialResult], seed: int = 0) -> Rates:
    """Measure PER, WER and CER of the trials with 95 % bootstrap intervals.

    PER compares the greedy tokens with the labels, silences included, as the T15 release does.
    """
    language = trials[0].language if trials else EN
    spelt = [trial for trial in trials if trial.phonemes]
    labelled = [trial for trial in trials if trial.reference]
    # Without a language model no trial has a text: PER alone is measured.
    words = [trial for trial in labelled if trial.text is not None]
    said_words = [t.reference for t in words]
    read_words = [t.text for t in words]
    values: dict[str, Any] = {"edits": {}}
    for name, unit, references, hypotheses in (
        ("per", "phoneme", [t.phonemes for t in spelt], [t.greedy for t in spelt]),
        ("wer", "word", said_words, read_words),
        ("cer", "char", said_words, read_words),
    ):
        rate = metrics.error_rate(references, hypotheses, unit, seed=seed, language=language)  # type: ignore[arg-type] # the unit says which texts
        values[name] = rate.rate
        values[f"{name}_ci95"] = None if rate.low is None else (rate.low, rate.high)
        if rate.rate is not None:
            values["edits"][unit] = asdict(rate.counts)
    return Rates(
        n_trials=len(trials),
        n_words=sum(len((t.reference or "").split()) for t in labelled),
        n_phonemes=sum(len(t.phonemes or ()) for t in spelt),
        **values,
    )


def group_rates(trials: Sequence[TrialResult], keys: Iterable[str]) -> dict[str, Rates]:
    """Return rates of the trials that share a key, by key; `keys` has one for each trial."""
    groups: dict[str, list[TrialResult]] = {}
    for trial, key in zip(trials, keys, strict=True):
        groups.setdefault(key, []).append(trial)
    return {key: rates(group) for key, group in groups.items()}


def split_by_seen(
    trials: Sequence[TrialResult], known: Collection[str]
) -> tuple[list[TrialResult], list[TrialResult]]:
    """Part the trials into those whose normalised sentence is in `known`, and the others."""
    labelled = [trial for trial in trials if trial.reference]
    seen = [trial for trial in labelled if trial.reference in known]
    return seen, [trial for trial in labelled if trial.reference not in known]


def words_per_minute(trials: Sequence[TrialResult], bin_ms: float = BIN_MS) -> float | None:
    """Return prompted words per minute of recording, with the pauses around the sentence."""
    labelled = [trial for trial in trials if trial.reference]
    minutes = sum(trial.n_bins for trial in labelled) * bin_ms / 60_000
    return sum(len((t.reference or "").split()) for t in labelled) / minutes if minutes else None


def out_of_vocabulary(trials: Sequence[TrialResult], vocabulary: Collection[str]) -> Counter[str]:
    """Count the prompted words that the search cannot write, the most frequent first."""
    words = Counter(word for trial in trials for word in (trial.reference or "").split())
    return Counter({word: count for word, count in words.most_common() if word not in vocabulary})


def bleu(references: Sequence[str], hypotheses: Sequence[str]) -> float | None:
    """Return corpus BLEU (0 to 100) of normalised sentences split at blanks.

    None without sacrebleu or sentences.
    """
    if not references or not bleu_available():
        return None
    from sacrebleu.metrics.bleu import BLEU

    # The sentences hold neither punctuation nor capitals any more, so that there is nothing left to
    # tokenise.
    return float(BLEU(tokenize="none").corpus_score(list(hypotheses), [list(references)]).score)


def bleu_available() -> bool:
    """Return whether sacrebleu is installed."""
    return find_spec("sacrebleu") is not None


@dataclass(frozen=True)
class Confusion:
    """Counts of aligned tokens, of which n are no blank.

    Attributes:
        symbols: Tokens in the order of rows and columns.
        counts_RH: Int [n + 1, n + 1], a row for each reference token and a column for each decoded
            one; the last row counts insertions, the last column deletions.
        inventory: The tokens with their roles.
    """

    symbols: tuple[str, ...]
    counts_RH: np.ndarray
    inventory: Inventory = RELEASE

    def top(self, n: int) -> list[tuple[str | None, str | None, int, float]]:
        """Return the `n` most frequent errors, the most frequent first.

        Each is reference, decoded, count, and share of the reference's occurrences. None stands for
        the missing side of an insertion or deletion; an insertion's share is of all insertions.
        """
        names = (*self.symbols, None)
        errors = self.counts_RH.copy()
        np.fill_diagonal(errors, 0)
        # Stable: with another sort, ties would be listed in another order on another processor.
        order = np.argsort(errors, axis=None, kind="stable")[::-1][:n]
        rows, columns = np.unravel_index(order, errors.shape)
        totals = self.counts_RH.sum(axis=1)
        return [
            (
                names[row],
                names[column],
                int(errors[row, column]),
                float(errors[row, column] / totals[row]),
            )
            for row, column in zip(rows, columns, strict=True)
            if errors[row, column]
        ]


def confusion(trials: Sequence[TrialResult], inventory: Inventory = RELEASE) -> Confusion | None:
    """Count confusions of the greedy tokens with the labels; None where no trial has any."""
    labelled = [trial for trial in trials if trial.phonemes]
    if not labelled:
        return None
    symbols = inventory.grouped_symbols
    index = {symbol: number for number, symbol in enumerate(symbols)}
    references = [[index[symbol] for symbol in trial.phonemes or ()] for trial in labelled]
    decoded = [[index[symbol] for symbol in trial.greedy] for trial in labelled]
    counts_RH = metrics.confusion(references, decoded, len(index))
    return Confusion(symbols, counts_RH, inventory)
