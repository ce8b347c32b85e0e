"""Predictions as the Brain-to-Text competitions take them, and the n-best lists behind them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Unpack

from cortext.arguments import as_path
from cortext.data.checks import Problem
from cortext.decoding.nbest import hypothesis_json
from cortext.errors import DataError, DecodingError
from cortext.evaluation.recognise import Data, Results, in_order, recognise
from cortext.evaluation.scores import TrialResult
from cortext.evaluation.settings import SearchKeywords, SearchSettings
from cortext.files import atomic_stream, check_writable, disk_errors
from cortext.processes import Progress
from cortext.tables import LINES, json_text, sentence_table


class Predictions(list[str]):
    """The sentences of a split, one per trial.

    Attributes:
        skipped: Why trials were left out; their sentences are empty.
        notes: Every departure from what the caller asked for.
        decoder_options: Origin of the decoder options, a line; None without a word search.
    """

    def __init__(
        self,
        texts: Iterable[str],
        skipped: Sequence[Problem],
        notes: Sequence[str],
        decoder_options: str | None = None,
    ) -> None:
        super().__init__(texts)
        self.decoder_options = decoder_options
        self.skipped = tuple(skipped)
        self.notes = tuple(notes)


def decode(
    run: str | Path,
    data: Data,
    split: str,
    lm: str | Path,
    out: str | Path,
    *,
    device: str = "cpu",
    skip_bad: bool = False,
    progress: Progress | None = None,
    **search: Unpack[SearchKeywords],
) -> Predictions:
    """Write the sentences of a split to the file `out` and return them, one per row.

    Rows are `id,text`: ids count from 0 over sessions in order and trials in file order, texts are
    normalised as the benchmark scores them. A name that ends in `.txt` gets the texts alone, one a
    line. A trial that was left out (`skip_bad`) keeps its row, with an empty text. Labels are not
    needed. An `out` that cannot be written is an error before the work.

    Args:
        run: Run directory of a trained model.
        data: Directory of session files, or a packed one.
        split: `train`, `val` or `test`.
        lm: Language-model directory; it is needed here.
        out: CSV file to write, or text file (`.txt`).
        device: Where the model runs: `cpu`, `cuda` or `cuda:N`.
        skip_bad: Leave bad trials out.
        progress: Called with steps done and in all.
        **search: Settings of the search, see `cortext.evaluation.settings.SearchKeywords`.

    Raises:
        CortextError: As `evaluate`.
    """
    if lm is None:
        raise DecodingError(
            "decoding to text needs a language-model directory",
            fix="make one with cortext lm build",
        )
    out = as_path(out, "out")
    check_predictions_file(out)
    settings = SearchSettings.of(lm, search)
    results = recognise(
        run, data, split, settings, device=device, skip_bad=skip_bad, progress=progress
    )
    return write_predictions(out, results)


def check_predictions_file(out: Path) -> None:
    """Raise DataError where the CSV file `out` could not be written after the work."""
    if out.is_dir():
        raise DataError("is a directory; the name of a CSV file is needed", where=out)
    check_writable(out)


def write_predictions(path: Path, results: Results) -> Predictions:
    """Write the sentences in the form that the file's name asks for, and return them.

    Raises:
        DataError: For a text file, where it is not known how many lines a damaged session file
            needs: all later sentences would stand for other trials.
    """
    lost = next((results.skipped[number] for number in results.skipped if number < 0), None)
    if lost is not None and path.suffix.lower() == LINES:
        raise DataError(
            "cannot be read, and each of its trials needs a line of the submission",
            where=lost.file,
            fix="put a copy that can be read in its place",
        )
    rows = [
        (number, (trial.text or "") if trial else "")
        for number, trial in in_order(results.trials, results.skipped)
    ]
    with disk_errors(path), atomic_stream(path) as file:
        file.write(sentence_table(path, rows))
    note = None if results.options is None else results.options.note
    texts = (text for _, text in rows)
    return Predictions(texts, tuple(results.skipped.values()), results.notes, note)


def write_nbest(path: Path, trials: Iterable[TrialResult], source: str) -> None:
    """Write one JSON object per trial: its sentences with their scores (natural logs) and words.

    Args:
        path: File to write.
        trials: In the order of the lines.
        source: What made the sentences. Beside it stands `degraded`, what the sentences lack, such
            as a large model's scores.
    """
    with path.open("w", encoding="utf-8") as file:
        for trial in trials:
            line = {
                "id": trial.id,
                "session": trial.session,
                "block": trial.block,
                "trial": trial.trial,
                "reference": trial.sentence,
                "hypotheses": [hypothesis_json(hypothesis) for hypothesis in trial.nbest or ()],
                "source": source,
                "degraded": trial.nbest.degraded if trial.nbest else None,
            }
            if trial.nbest is not None and trial.nbest.confidence is not None:
                line["confidence"] = trial.nbest.confidence
            file.write(json_text(line, allow_nan=False) + "\n")
