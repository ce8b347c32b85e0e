"""Checks of the published analyses: the participant's own logits and sentences."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from cortext.cores import available_cores
from cortext.decoding import Decoder
from cortext.evaluation.redecode import decode_evaluation
from cortext.evaluation.scores import Metrics
from cortext.processes import Progress
from cortext_published.copy_task import import_copy_task, session_of
from cortext_published.verification.checks import Check, StageOutcome, judged, not_checked
from cortext_published.verification.published import Published
from cortext_published.verification.words import Searching

ROUNDING = 0.005
"""Largest difference from a published WER; the paper may score apostrophes and marks otherwise."""


def check_analyses(
    file: Path, evaluation: Path, published: Published, progress: Progress | None
) -> StageOutcome:
    """Import the published copy task and compare its error rates with the paper's.

    Args:
        file: `t15_copyTask.pkl`.
        evaluation: Evaluation directory to write.
        published: The published rates.
        progress: Called with steps done and in all.
    """
    metrics = import_copy_task(file, evaluation, progress=progress)
    order = metrics.provenance["imported"]["order"]
    expected = published.n_copy_trials
    checks = [
        judged(
            "Token order of the published logits", True, f"{order!r} gives the published phonemes"
        ),
        judged(
            "Trials of the published analyses",
            metrics.n_trials == expected,
            f"{metrics.n_trials:,} found, {expected:,} published",
        ),
        *_rates_of_days(metrics, published),
    ]
    rows = {
        name: {"n_trials": rates.n_trials, "per": rates.per, "published_wer": rates.wer}
        for name, rates in metrics.per_corpus.items()
    }
    return StageOutcome(checks, {"analyses": {"order": order, "rates": rows}})


def _rates_of_days(metrics: Metrics, published: Published) -> list[Check]:
    checks = []
    for (day, corpus), wer in published.copy_wer.items():
        name = f"Published sentences, day {day}, {corpus}"
        rates = metrics.per_session_corpus.get(session_of(day), {}).get(corpus)
        if rates is None or rates.wer is None:
            checks.append(not_checked(name, "the file has no such trials"))
        else:
            finding = f"WER {100 * rates.wer:.1f} % here, {100 * wer:.1f} % in the paper"
            checks.append(judged(name, abs(rates.wer - wer) <= ROUNDING, finding))
    return checks


def check_analyses_words(
    evaluation: Path, search: Searching, out: Path, progress: Progress | None
) -> StageOutcome:
    """Decode the published logits, and put the rates beside those of the published sentences.

    Args:
        evaluation: Evaluation directory of the published copy task.
        search: The search.
        out: CSV file of the sentences to write.
        progress: Called with trials done and in all.
    """
    decoder = Decoder.from_dir(search.lm, search.options)
    threads = search.threads or available_cores()
    redecoded = decode_evaluation(evaluation, decoder, out, threads=threads, progress=progress)
    rows: dict[str, dict[str, Any]] = {
        row.name: {"n_trials": row.n_trials, "published_wer": row.before.rate, "wer": row.now.rate}
        for row in redecoded.rows
    }
    rates = "; ".join(
        f"{name}: {100 * (row['wer'] or 0):.1f} % here, {100 * (row['published_wer'] or 0):.1f} %"
        " published"
        for name, row in rows.items()
    )
    because = f"the two searches have different language models; {rates}"
    facts = {"rates": rows, "options": asdict(decoder.options)}
    return StageOutcome([not_checked("WER of the published logits", because)], {"search": facts})
