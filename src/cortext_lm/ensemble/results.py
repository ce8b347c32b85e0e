"""Ensembles of whole runs: reading, combination, error rates, and writing."""

from __future__ import annotations

import csv
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cortext.decoding.nbest import NBest, hypothesis_json
from cortext.decoding.ngram import LanguageModel
from cortext.decoding.options import DecoderOptions
from cortext.errors import DataError, DecodingError
from cortext.evaluation.logits_origin import LogitsOrigin
from cortext.evaluation.nbest_file import NBEST
from cortext.files import atomic_directory, disk_errors, read_json, refuse_foreign
from cortext.processes import Progress
from cortext.provenance import provenance
from cortext.tables import csv_table, json_text
from cortext.text.language import EN, Language
from cortext.text.metrics import ErrorRate, edit_counts, error_rate
from cortext_lm.ensemble.candidates import Candidates, sentence_of
from cortext_lm.ensemble.combine import Combined, check_method, combine
from cortext_lm.ensemble.correct import Corrector
from cortext_lm.ensemble.options import EnsembleOptions
from cortext_lm.ensemble.posteriors import (
    average_origin,
    decode_average,
    read_lattices,
)
from cortext_lm.ensemble.sources import read_evaluations, read_lists

Lm = str | Path | None


@dataclass(frozen=True)
class Ensemble:
    """Result of an ensemble.

    Attributes:
        sources: Names of the inputs: a file and its field, or the evaluation directories.
        combined: The combined sentence of each trial.
        nbest: The lists of averaged posteriors; None for other methods.
        log_probs: The averaged posteriors, float32 [P, V] of each trial, in the order of `origin`.
        search: Options of the search for lattices; None for the runs' own options, or without
            lattices.
    """

    options: EnsembleOptions
    sources: tuple[str, ...]
    trials: tuple[Candidates, ...]
    combined: tuple[Combined, ...]
    seconds: float
    lm: str | None = None
    nbest: tuple[NBest, ...] | None = None
    log_probs: tuple[np.ndarray, ...] | None = None
    origin: LogitsOrigin | None = None
    search: DecoderOptions | None = None

    @property
    def language(self) -> Language:
        """Language of the sentences."""
        return self.trials[0].language if self.trials else EN

    @property
    def cross_fitted(self) -> bool:
        """Tell whether trials were decoded with options that were fitted on others of them."""
        return self.origin is not None and bool(self.origin.cross_fitted)

    def error_rate(self, unit: str = "word") -> ErrorRate | None:
        """Return WER (`word`) or CER (`char`) of the trials with a reference.

        None where no trial has one.
        """
        return self._rate([combined.text for combined in self.combined], unit)

    def system_rates(self) -> tuple[float, ...] | None:
        """Return the WER of each system's best sentences.

        None without references, and where not all trials have the same number of systems.
        """
        if len({len(trial.systems) for trial in self.trials}) != 1:
            return None
        systems = zip(*(trial.best for trial in self.trials), strict=True)
        language = self.language
        rates = [
            self._rate([sentence_of(words, language) for words in texts], n_boot=0)
            for texts in systems
        ]
        return (
            tuple(rate.rate for rate in rates if rate is not None and rate.rate is not None) or None
        )

    def oracle_rate(self) -> float | None:
        """Return the WER of the best candidate of every trial; None without references."""
        texts = []
        for trial in self.trials:
            words = trial.reference_words or ()
            candidates = [
                candidate.words
                for system in trial.systems
                for candidate in system[: self.options.taken]
            ]
            errors = [edit_counts(words, candidate).errors for candidate in candidates]
            texts.append(sentence_of(candidates[errors.index(min(errors))], self.language))
        rate = self._rate(texts, n_boot=0)
        return None if rate is None else rate.rate

    def _rate(
        self, texts: Sequence[str], unit: str = "word", n_boot: int = 1000
    ) -> ErrorRate | None:
        known = [
            (t.reference, text)
            for t, text in zip(self.trials, texts, strict=True)
            if t.reference is not None
        ]
        if not known:
            return None
        references, hypotheses = zip(*known, strict=True)
        return error_rate(references, hypotheses, unit, n_boot, language=self.language)  # type: ignore[arg-type] # zip forgets the types

    def to_json(self) -> dict[str, Any]:
        """Return the output of `cortext ensemble --json`. A rate is None without references."""
        wer, cer = self.error_rate("word"), self.error_rate("char")
        options = asdict(self.options)
        return {
            "method": self.options.method,
            "n_trials": len(self.trials),
            "n_words": wer.counts.reference_length if wer else 0,
            "wer": wer.rate if wer else None,
            "wer_ci95": [wer.low, wer.high] if wer and wer.low is not None else None,
            "cer": cer.rate if cer else None,
            "systems": list(self.sources),
            "system_wer": self.system_rates(),
            "oracle_wer": self.oracle_rate(),
            "degraded": sum(combined.degraded is not None for combined in self.combined),
            "seconds": round(self.seconds, 3),
            "options": options,
        }


def combine_lists(
    path: str | Path,
    field: str,
    options: EnsembleOptions | None = None,
    *,
    lm: Lm = None,
    llm: Corrector | None = None,
    progress: Progress | None = None,
    language: Language = EN,
) -> Ensemble:
    """Combine the sentences of a file (`read_lists`); errors are those of `combine`.

    Args:
        path: File with a JSON object a line.
        field: Field of the objects that holds the sentences, one of each system.
        options: The method and its settings; None: the defaults.
        lm: Language-model directory, for `rover-lm`.
        llm: See `combine`.
        progress: Called with trials done and in all.
        language: Language of the sentences.
    """
    options = EnsembleOptions.of(options)
    check_method(options, lm is not None, llm is not None)
    check_lists(options)
    trials = read_lists(path, field, language)
    return _combined(trials, (f"{path}: {field}",), options, lm, llm, progress)


def check_lists(options: EnsembleOptions) -> None:
    """Raise DecodingError for options that need more than sentences."""
    if options.lattice:
        raise DecodingError(
            "a lattice needs logits, and there are only sentences",
            fix="give evaluation directories",
        )


def combine_runs(
    directories: Sequence[str | Path],
    options: EnsembleOptions | None = None,
    *,
    lm: Lm = None,
    llm: Corrector | None = None,
    decoder: DecoderOptions | None = None,
    threads: int = 1,
    progress: Progress | None = None,
) -> Ensemble:
    """Combine evaluation directories (`read_evaluations`); errors are those of `combine`.

    Args:
        directories: One of each system.
        options: The method and its settings; None: the defaults.
        lm: Language-model directory, for `rover-lm`, `average` and lattices.
        llm: See `combine`.
        decoder: Options of the search, for `average` and lattices; None: those of the directories
            (see `decode_average`).
        threads: Threads of that search.
        progress: Called with trials done and in all.
    """
    options = EnsembleOptions.of(options)
    if options.method != "average":
        check_method(options, lm is not None, llm is not None)
        trials = read_runs(
            directories, options, lm=lm, decoder=decoder, threads=threads, progress=progress
        )
        progress = None if options.lattice else progress
        ensemble = _combined(trials, tuple(map(str, directories)), options, lm, llm, progress)
        return replace(ensemble, search=decoder) if options.lattice else ensemble
    if lm is None:
        raise DecodingError("average needs a language-model directory", fix="give one with --lm")
    start = time.perf_counter()
    trials = read_evaluations(directories)
    log_probs, nbest = decode_average(
        directories,
        trials,
        lm,
        mean=options.mean,
        weights=options.weights,
        options=decoder,
        threads=threads,
        progress=progress,
    )
    return Ensemble(
        options,
        tuple(map(str, directories)),
        tuple(trials),
        tuple(
            Combined(
                tuple(trial.language.normalize(ensemble[0].text).split()),
                ensemble.degraded,
                trial.language,
            )
            for trial, ensemble in zip(trials, nbest, strict=True)
        ),
        time.perf_counter() - start,
        str(lm),
        tuple(nbest),
        tuple(log_probs),
        average_origin(directories, lm, decoder),
    )


def read_runs(
    directories: Sequence[str | Path],
    options: EnsembleOptions,
    *,
    lm: Lm = None,
    decoder: DecoderOptions | None = None,
    threads: int = 1,
    progress: Progress | None = None,
) -> list[Candidates]:
    """Return the trials of evaluation directories with their saved lists, or their lattices.

    Args:
        directories: One of each system.
        options: `lattice` decides between lists and lattices.
        lm: Language-model directory, for lattices.
        decoder: Options of the search for lattices; None: each run's own.
        threads: Threads of that search.
        progress: Called with trials done and in all, of that search.

    Raises:
        DecodingError: For lattices without a language-model directory.
    """
    trials = read_evaluations(directories)
    if not options.lattice:
        return trials
    if lm is None:
        raise DecodingError(
            "lattices need a language-model directory", fix="give the runs' with --lm"
        )
    return read_lattices(
        directories, trials, lm, options=decoder, threads=threads, progress=progress
    )


def _combined(
    trials: Sequence[Candidates],
    sources: tuple[str, ...],
    options: EnsembleOptions,
    lm: Lm,
    llm: Corrector | None,
    progress: Progress | None,
) -> Ensemble:
    model = None
    if lm is not None and options.method == "rover-lm":
        model = LanguageModel.open(lm)
        model.require(model.inventory, trials[0].language, theirs="the sentences")
    start = time.perf_counter()
    combined = combine(trials, options, lm=model, llm=llm, progress=progress)
    seconds = time.perf_counter() - start
    used = str(lm) if model is not None or options.lattice else None
    return Ensemble(options, sources, tuple(trials), tuple(combined), seconds, used)


def check_replaceable(out: Path) -> None:
    """Raise DataError unless `out` is absent, an empty directory, or what an ensemble wrote."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    try:
        ours = "ensemble" in read_json(out / "metrics.json")["provenance"]
    except (OSError, ValueError, TypeError, KeyError):
        ours = False
    if not ours:
        raise DataError(
            "exists and is not an ensemble's directory",
            where=out,
            fix="choose another name or remove it",
        )
    names = ("metrics.json", "predictions.csv", NBEST, "logits")
    refuse_foreign(out, names, "an ensemble's results")


def write_ensemble(ensemble: Ensemble, out: str | Path) -> None:
    """Write metrics.json, predictions.csv and nbest.jsonl to `out`, and logits of averages.

    Averaged posteriors that were written so can be combined in turn. `out` appears when all is
    written; what an ensemble wrote there earlier is replaced. Raises DataError for an `out` that
    holds something else or cannot be written.
    """
    out = Path(out)
    check_replaceable(out)
    with disk_errors(out), atomic_directory(out) as folder:
        metrics = json_text(_metrics(ensemble), indent=2, default=str)
        (folder / "metrics.json").write_text(metrics + "\n", encoding="utf-8")
        _write_predictions(folder / "predictions.csv", ensemble)
        with (folder / NBEST).open("w", encoding="utf-8") as file:
            for number in range(len(ensemble.trials)):
                line = _nbest_line(ensemble, number)
                file.write(json_text(line, allow_nan=False) + "\n")
        if ensemble.log_probs is not None:
            _write_logits(folder / "logits", ensemble.trials, ensemble.log_probs)


def _metrics(ensemble: Ensemble) -> dict[str, Any]:
    facts: dict[str, Any] = provenance() | {"ensemble": list(ensemble.sources), "lm": ensemble.lm}
    if ensemble.language != EN:
        facts |= {"language": ensemble.language.to_json()}
    if ensemble.search is not None:
        facts |= {"options": asdict(ensemble.search)}
    if ensemble.origin is not None:
        facts |= ensemble.origin.to_json()
    return ensemble.to_json() | {"provenance": facts}


def _write_predictions(path: Path, ensemble: Ensemble) -> None:
    """Write rows `id,text`; a trial that the evaluations left out gets an empty text."""
    rows = {
        str(trial.id): combined.text
        for trial, combined in zip(ensemble.trials, ensemble.combined, strict=True)
    }
    numbers = _row_names(Path(ensemble.sources[0]) / path.name)
    rows = {number: rows.get(number, "") for number in numbers} | rows
    path.write_bytes(csv_table(("id", "text"), rows.items()))


def _row_names(path: Path) -> list[str]:
    """Return the ids of an evaluation's rows; of a file that is missing or damaged none."""
    try:
        if not path.is_file():
            return []
        with path.open(newline="", encoding="utf-8") as file:
            return [row[0] for row in csv.reader(file) if row][1:]
    except (OSError, UnicodeDecodeError, csv.Error):
        return []


def _nbest_line(ensemble: Ensemble, number: int) -> dict[str, Any]:
    trial, combined = ensemble.trials[number], ensemble.combined[number]
    unknown = dict.fromkeys(("score", "acoustic", "ngram", "llm"))
    hypotheses: list[dict[str, Any]] = [{"text": combined.text, **unknown, "words": []}]
    if ensemble.nbest is not None:
        hypotheses = [hypothesis_json(hypothesis) for hypothesis in ensemble.nbest[number]]
    return {
        "id": trial.id,
        "session": trial.session,
        "block": trial.block,
        "trial": trial.trial,
        "reference": trial.reference,
        "hypotheses": hypotheses,
        "source": ensemble.options.method,
        "degraded": combined.degraded,
    }


def _write_logits(
    folder: Path, trials: Sequence[Candidates], log_probs: Sequence[np.ndarray]
) -> None:
    folder.mkdir()
    for trial, log_probs_PV in zip(trials, log_probs, strict=True):
        # float16 ends at -65504; anything below is as good as impossible
        name = f"{trial.id:05d}_{trial.session}_b{trial.block}_t{trial.trial}.npy"
        np.save(folder / name, np.maximum(log_probs_PV, -6e4).astype(np.float16))
