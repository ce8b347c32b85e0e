"""Evaluate a run: decode a split, measure it, and write everything about it into one directory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Unpack

import numpy as np
import torch

from cortext.arguments import as_count, as_path
from cortext.config import read_mapping
from cortext.data.dataset import Description
from cortext.data.packed import data_path
from cortext.decoding.ngram.language_model import language_model_checksum
from cortext.errors import DataError
from cortext.evaluation.fit.calibration import trial_calibrations
from cortext.evaluation.logits_origin import LogitsOrigin, conventions_json
from cortext.evaluation.recognise import Data, Recognised, Results, recognise
from cortext.evaluation.scores import (
    BLEU_HINT,
    Confusion,
    Metrics,
    Rates,
    TrialResult,
    bleu,
    bleu_available,
    confusion,
    group_rates,
    out_of_vocabulary,
    rates,
    split_by_seen,
    words_per_minute,
)
from cortext.evaluation.settings import SearchKeywords, SearchSettings
from cortext.evaluation.submission import write_nbest, write_predictions
from cortext.evaluation.vocabularies import write_vocabularies
from cortext.evaluation.word_search import stage
from cortext.files import atomic_directory, check_writable, disk_errors, read_json, refuse_foreign
from cortext.models.participants import run_for
from cortext.processes import Progress
from cortext.provenance import provenance
from cortext.tables import csv_table, json_text
from cortext.training.checkpoint import read_identity

if TYPE_CHECKING:
    from cortext.evaluation.report import Compared


EVALUATION_FILES = (
    "metrics.json",
    "predictions.csv",
    "logits",
    "nbest.jsonl",
    "confusion.csv",
    "report.html",
    "online.json",
    "vocabularies.json",
)
"""Names of all that an evaluation directory holds."""


def evaluate(
    run: str | Path,
    data: Data,
    split: str,
    lm: str | Path | None,
    out: str | Path,
    *,
    fit: bool = False,
    device: str = "cpu",
    skip_bad: bool = False,
    description: str | Path | None = None,
    progress: Progress | None = None,
    seed: int = 0,
    participant: str | None = None,
    **search: Unpack[SearchKeywords],
) -> Metrics:
    """Decode a split and write the evaluation directory `out`.

    It holds metrics.json, report.html, predictions.csv, nbest.jsonl, confusion.csv and
    logits/*.npy. Labels are not needed: without them the metrics are None and the predictions are
    written. `out` appears when all is written; an earlier evaluation directory is replaced.

    Args:
        run: Run directory of a trained model.
        data: Directory of session files, or a packed one; or what `open_dataset` returned.
        split: `train`, `val` or `test`.
        lm: Language-model directory; None measures PER only and writes neither predictions nor
            n-best lists.
        out: Evaluation directory to write.
        fit: Fit options to these trials first, and keep them in the run; a minute at most.
        device: Where the model runs: `cpu`, `cuda` or `cuda:N`.
        skip_bad: Leave bad trials out and report them.
        description: The release's table of blocks, for post-implant days and corpora.
        progress: Called with steps done and in all.
        seed: Seed of the bootstrap intervals.
        participant: Whose model, in a run of several participants; None for the one whose
            recordings these are.
        **search: Settings of the search, see `cortext.evaluation.settings.SearchKeywords`.

    Returns:
        What metrics.json holds.

    Raises:
        CortextError: For what a user can put right, such as a session that the run does not know,
            or an `out` that holds something else.
    """
    seed = as_count(seed, "seed")
    settings = SearchSettings.of(lm, search)
    with evaluation_directory(out) as write:
        run = run_for(as_path(run, "run"), data, participant)
        config = config_of(run)
        found = recognise(
            run,
            data,
            split,
            settings,
            fit=fit,
            device=device,
            skip_bad=skip_bad,
            description=description,
            progress=progress,
        )
        origin = searched_origin(run, data, lm, found, device, seed) | {"config": config}
        return write(found, Path(run), origin, description)


class Write(Protocol):
    """A function that measures recognised trials and writes an evaluation directory."""

    def __call__(
        self,
        found: Results,
        run: Path | None,
        origin: Mapping[str, Any],
        description: str | Path | None = None,
        compared: Compared | None = None,
    ) -> Metrics:
        """Measure and write the results.

        Args:
            found: Decoded trials.
            run: Run directory of the model; None where another program decoded them.
            origin: Fields for the provenance; `origin["seed"]` is the seed of the intervals.
            description: The release's table of blocks.
            compared: Errors of other models on the same trials, for the report.
        """
        ...


@contextmanager
def evaluation_directory(out: str | Path) -> Iterator[Write]:
    """Return a context whose value writes `out`, which may hold nothing else."""
    out = as_path(out, "out")

    def write(
        found: Results,
        run: Path | None,
        origin: Mapping[str, Any],
        description: str | Path | None = None,
        compared: Compared | None = None,
    ) -> Metrics:
        blocks = Description.read(description) if description is not None else Description()
        with stage(found.seconds, "scoring"):
            measured = _measure(found, blocks, origin["seed"])
            measured["provenance"] |= origin
            measured["caveats"] = _caveats(found, run, origin)
            confused = confusion(found.trials, found.conventions.inventory)
        with disk_errors(out), atomic_directory(out) as folder:
            with stage(found.seconds, "report"):
                # Imported here: the report draws, and matplotlib takes long to import.
                from cortext.evaluation.report import write_report

                _write_results(folder, found, confused)
                metrics = Metrics(**measured, seconds=_with_total(found.seconds))
                write_report(folder / "report.html", metrics, found, confused, run, compared)
            # Once more: metrics.json has the seconds that writing the report took, too.
            metrics = Metrics(**measured, seconds=_with_total(found.seconds))
            text = json_text(asdict(metrics), indent=2, default=str) + "\n"
            (folder / "metrics.json").write_text(text, encoding="utf-8")
        return metrics

    _check_replaceable(out)
    check_writable(out)  # before the work
    yield write


def _measure(found: Results, blocks: Description, seed: int) -> dict[str, Any]:
    """Return all fields of `Metrics` but the seconds."""
    trials = found.trials
    sessions = [trial.session for trial in trials]
    # Apart, because the network may have memorised the sentences of the training split.
    known = _training_sentences(found)
    seen, unseen = split_by_seen(trials, known) if known else ((), ())
    seen_rates = unseen_rates = None
    if seen or unseen:
        seen_rates = rates(seen, seed)
        unseen_rates = rates(unseen, seed)
    with_corpus = [trial for trial in trials if trial.corpus]
    read = [trial for trial in trials if trial.reference and trial.text is not None]
    skipped = [{"id": number, **problem.to_json()} for number, problem in found.skipped.items()]
    scoring_note = found.conventions.language.scoring_note(trial.sentence or "" for trial in trials)
    days = {name: blocks.post_implant_day(name) or found.days.get(name) for name in sessions}
    return {
        **vars(rates(trials, seed)),
        "split": found.split,
        "wer_seen": seen_rates.wer if seen_rates else None,
        "wer_unseen": unseen_rates.wer if unseen_rates else None,
        "seen": seen_rates,
        "unseen": unseen_rates,
        "per_session": group_rates(trials, sessions),
        "per_corpus": group_rates(with_corpus, [trial.corpus or "" for trial in with_corpus]),
        "per_session_corpus": {name: _by_corpus(trials, name) for name in dict.fromkeys(sessions)},
        "post_implant_day": {name: day for name, day in days.items() if day is not None},
        "words_per_minute": words_per_minute(trials, found.conventions.bin_ms),
        "oov": _oov(found),
        "bleu": bleu(
            [trial.reference or "" for trial in read], [trial.text or "" for trial in read]
        ),
        "bleu_hint": None if bleu_available() else BLEU_HINT,
        "n_skipped": len(skipped),
        "skipped": skipped,
        "n_degraded": len(found.degraded),
        "notes": [*found.notes, scoring_note] if scoring_note else found.notes,
        "decoder_options": None if found.options is None else found.options.note,
        "n_cross_fitted": len(found.cross_fitted),
        "confidence": _confidence(found, seed),
        "provenance": provenance(),
    }


def _confidence(found: Results, seed: int) -> dict[str, Any] | None:
    measures = trial_calibrations(found.trials, seed)
    if not measures:
        return None
    note = None if found.confidence is None else found.confidence.note
    return {"note": note} | {name: asdict(each) for name, each in measures.items()}


CHOSEN_BY = {"val_wer": "WER", "val_loss": "loss"}


def _caveats(found: Results, run: Path | None, origin: Mapping[str, Any]) -> list[str]:
    """Return lines about the choices that were made on these very trials."""
    lines = []
    if found.cross_fitted:
        lines.append(
            f"WER and CER are cross-fitted: {len(found.cross_fitted)} of {len(found.trials)} trials"
            " used decoder options that were fitted on the other half of the trials"
        )
    if found.cross_fitted and found.confidence and found.confidence.calibrator:
        lines.append("confidences were fitted on these trials, among others under simulated drift")
    if _chose_weights(found, run):
        metric = (origin.get("config") or {}).get("best_metric") or "val_per"
        tokens = found.conventions.inventory.error_rate
        name = tokens if metric == "val_per" else CHOSEN_BY.get(str(metric), "result")
        lines.append(
            f"training kept the weights with the best {name} on these trials: expect slightly more"
            " errors on new trials"
        )
    return lines


def _chose_weights(found: Results, run: Path | None) -> bool:
    """Tell whether the run kept the weights that were best on the trials of this split."""
    if run is None or not isinstance(found, Recognised) or found.split != "val":
        return False
    # By checksum, not by path: the same trials may lie in another directory.
    known = read_identity(run).get("crc32")
    if isinstance(known, dict) and known.get("val") == found.data.checksums["val"]:
        return True
    try:  # an adapted run has validated on one day of its data
        adaptation = read_json(run / "adaptation.json")
    except (OSError, ValueError):
        return False
    own_split = adaptation.get("validated_on") == "the day's validation split"
    return own_split and adaptation.get("session") in {trial.session for trial in found.trials}


def _training_sentences(found: Results) -> set[str]:
    if not isinstance(found, Recognised) or "train" not in found.data.splits:
        return set()
    normalize = found.conventions.language.normalize
    return {normalize(sentence) for sentence in found.data.split("train").sentences if sentence}


def _by_corpus(trials: Sequence[TrialResult], session: str) -> dict[str, Rates]:
    of_day = [trial for trial in trials if trial.session == session and trial.corpus]
    return group_rates(of_day, [trial.corpus or "" for trial in of_day])


def _oov(found: Results) -> dict[str, Any] | None:
    n_words = sum(len((trial.reference or "").split()) for trial in found.trials)
    if found.vocabulary is None or not n_words:
        return None
    words = out_of_vocabulary(found.trials, found.vocabulary)
    return {
        "n": words.total(),
        "rate": words.total() / n_words,
        "words": dict(words.most_common(20)),
    }


def searched_origin(
    run: str | Path,
    data: Data,
    lm: str | Path | None,
    found: Recognised,
    device: str,
    seed: int,
) -> dict[str, Any]:
    """Return the fields of an evaluation's provenance: those of `origin_of`, and of the search."""
    origin = origin_of(run, data, found, device, seed)
    chosen = found.options
    if lm is None or chosen is None:
        return origin | {"lm": None, "engine": None, "options": None}
    searched = LogitsOrigin(
        found.model.inventory,
        found.model.frame_ms,
        chosen.options,
        chosen.fitted is not None,
        language_model_checksum(lm),
        found.cross_fitted,
        found.model.language,
        found.model.bin_ms,
    )
    return (
        searched.to_json()
        | origin
        | {
            "lm": str(lm),
            "lm_words": None if found.lm is None else len(found.lm.lexicon),
            "lm_words_in_ngram": None if found.lm is None else found.lm.n_known,
            "engine": found.engine,
        }
    )


def config_of(run: str | Path) -> dict[Any, Any] | None:
    """Return the configuration in a run directory; None where the directory has none.

    Raises:
        ConfigError: Where it cannot be read. Call this before the work.
    """
    path = as_path(run, "run") / "config.yaml"
    return read_mapping(path) if path.exists() else None


def origin_of(
    run: str | Path, data: Data, found: Recognised, device: str, seed: int
) -> dict[str, Any]:
    """Return the run, the data and the device of a result.

    Args:
        run: Run directory.
        data: Directory of session files, or a packed one.
        found: Recognised trials.
        device: Device that the model ran on.
        seed: Seed of the bootstrap intervals.
    """
    return {
        "run": str(run),
        "data": str(data_path(data)),
        "llm": found.llm,
        "device": device,
        "device_name": (
            torch.cuda.get_device_name(device) if device.startswith("cuda") else device.upper()
        ),
        "seed": seed,
        **conventions_json(found.model.conventions),
        "frame_ms": float(found.model.frame_ms),
        "n_parameters": found.model.n_parameters,
    }


def _with_total(seconds: Mapping[str, float]) -> dict[str, float]:
    return {name: round(value, 3) for name, value in seconds.items()} | {
        "total": round(sum(seconds.values()), 3)
    }


def _check_replaceable(out: Path) -> None:
    """Raise DataError unless `out` is absent, an empty directory, or an evaluation directory."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return
    try:
        ours = "per_session" in read_json(out / "metrics.json")
    except (OSError, ValueError):
        ours = False
    if not ours:
        raise DataError(
            "exists and is not an evaluation directory",
            where=out,
            fix="choose another name or remove it",
        )
    refuse_foreign(out, EVALUATION_FILES, "an evaluation")


def _write_results(folder: Path, found: Results, confused: Confusion | None) -> None:
    (folder / "logits").mkdir()
    for trial in found.trials:
        # The number comes first: `LogitFiles` finds a trial's file by it.
        name = f"{trial.id:05d}_{trial.session}_b{trial.block:02d}_t{trial.trial:03d}.npy"
        np.save(folder / "logits" / name, trial.logits_PV.astype(np.float16))
    if any(trial.nbest for trial in found.trials):
        write_predictions(folder / "predictions.csv", found)
        write_nbest(folder / "nbest.jsonl", found.trials, found.engine)
    if found.limited:
        write_vocabularies(folder, found.limited)
    if confused is not None:
        _write_confusion(folder / "confusion.csv", confused)


def _write_confusion(path: Path, confused: Confusion) -> None:
    """Write a row per reference token and a column per decoded one.

    The last row counts insertions, the last column deletions.
    """
    names = (*confused.symbols, "inserted")
    rows = [
        (name, *counts) for name, counts in zip(names, confused.counts_RH.tolist(), strict=True)
    ]
    path.write_bytes(csv_table(("reference", *confused.symbols, "deleted"), rows))
