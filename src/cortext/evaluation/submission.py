"""Predictions as the Brain-to-Text '25 competition takes them, and the n-best lists behind them."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from cortext.data.checks import Problem
from cortext.data.disk import disk_errors
from cortext.decoding.nbest import hypothesis_json
from cortext.errors import DataError, DecodingError
from cortext.evaluation.cluster import LargeModelFiles
from cortext.evaluation.recognise import Options, Progress, in_order, recognise
from cortext.evaluation.scores import TrialResult
from cortext.tables import csv_table, json_text


def decode(
    run: str | Path,
    data: str | Path,
    split: str,
    lm: str | Path,
    out: str | Path,
    *,
    options: Options = None,
    engine: str = "native",
    device: str = "cpu",
    skip_bad: bool | list[Problem] = False,
    threads: int | None = 1,
    ray: str | None = None,
    gpus_per_worker: float = 0.0,
    llm: LargeModelFiles | None = None,
    context: str = "",
    notes: list[str] | None = None,
    progress: Progress | None = None,
) -> list[str]:
    """Write the sentences of a split to the CSV file `out` and return them, one per row.

    Rows are `id,text`: ids count from 0 over sessions in order and trials in file order, texts are
    normalised as the benchmark scores them. A trial that was left out (`skip_bad`) keeps its row,
    with an empty text; `skip_bad` may be a list, which gets the reasons, and `notes` one, which
    gets what was not as asked for. Other arguments and errors are those of `evaluate`; labels are
    not needed. An `out` that cannot be written is an error before the work.
    """
    if lm is None:
        raise DecodingError(
            "decoding to text needs a language-model directory",
            fix="make one with cortext lm build",
        )
    with file_beside(Path(out)) as temporary:
        found = recognise(
            run,
            data,
            split,
            lm,
            options=options,
            engine=engine,
            device=device,
            skip_bad=skip_bad is not False,
            threads=threads,
            ray=ray,
            gpus_per_worker=gpus_per_worker,
            llm=llm,
            context=context,
            progress=progress,
        )
        with disk_errors(Path(out)):
            texts = write_predictions(temporary, found.trials, found.skipped)
            temporary.replace(out)
    if isinstance(skip_bad, list):
        skip_bad.extend(found.skipped.values())
    if notes is not None:
        notes.extend(found.notes)
    return texts


@contextmanager
def file_beside(out: Path) -> Iterator[Path]:
    """An empty temporary file beside `out`, removed at the end unless it was renamed."""
    if out.is_dir():
        raise DataError("is a directory; the name of a CSV file is needed", where=out)
    temporary = out.with_name(f".{out.name}.{os.getpid()}.tmp")
    with disk_errors(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch()
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def write_predictions(
    path: Path, trials: Sequence[TrialResult], skipped: Mapping[int, Problem]
) -> list[str]:
    """Write `id,text` rows and return the texts."""
    rows = [
        (number, (trial.text or "") if trial else "") for number, trial in in_order(trials, skipped)
    ]
    path.write_bytes(csv_table(("id", "text"), rows))
    return [text for _, text in rows]


def write_nbest(path: Path, trials: Iterable[TrialResult], source: str) -> None:
    """Write one JSON object a line and trial.

    Its candidate sentences with their scores (natural logs) and words.

    Args:
        source: What searched; `degraded` says what is missing in the sentences, such as a large
            model's scores.
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
            file.write(json_text(line, allow_nan=False) + "\n")
