"""The page of a verification, and the same as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from markupsafe import Markup

from cortext.evaluation import figures
from cortext.evaluation.report import render
from cortext.evaluation.scores import Rates
from cortext.files import atomic_write
from cortext.tables import json_text
from cortext_published.verification.checks import Verification
from cortext_published.verification.stages import PAGE, RESULT

TITLES = {
    "files": "Files",
    "recordings": "Recordings",
    "import": "Imported data",
    "packing": "Validation trials",
    "checkpoint": "Checkpoint",
    "logits": "Logits of the checkpoint",
    "validation": "Phoneme errors",
    "words": "Words",
    "analyses": "Published analyses",
    "analyses words": "Words of the published analyses",
}
"""Headings by name of the stage."""


def write_verification(out: Path, result: Verification) -> None:
    """Write `verify.json` and `verify.html` into a directory.

    Raises:
        RunError: A file cannot be written.
    """
    atomic_write(out / RESULT, (json_text(result.to_json(), indent=2) + "\n").encode())
    atomic_write(out / PAGE, page(result).encode())


def page(result: Verification) -> str:
    """Return the page."""
    n_failed = result.count("FAIL")
    name = result.dataset.upper()
    differs = f"{name}: {n_failed} check{'' if n_failed == 1 else 's'} failed"
    seconds = sum(stage.seconds for stage in result.stages)
    words = result.facts.get("words", {})
    word_errors = {name: words[name] for name in ("wer", "wer_ci95") if name in words}
    return render(
        "verify.html.j2",
        "cortext_published.verification",
        published=result.published,
        title=differs if n_failed else f"{name}: no check failed",
        result=result,
        titles=TITLES,
        duration=f"{seconds / 60:.0f} minutes" if seconds >= 90 else f"{seconds:.0f} s",
        kept=sum(stage.kept for stage in result.stages),
        figure=_by_day(result.sessions),
        sessions=result.sessions,
        all_trials=result.facts.get("evaluation", {}) | word_errors,
    )


def _by_day(sessions: dict[str, dict[str, Any]]) -> Markup | None:
    """Draw error rates along the recording days; None without any."""
    decoded = {name: row for name, row in sessions.items() if row.get("per") is not None}
    if not decoded:
        return None
    days = [row.get("day") for row in decoded.values()]
    known = all(day is not None for day in days)
    x_N = [float(number if day is None else day) for number, day in enumerate(days)]
    ticks = None if known else dict(zip(x_N, decoded, strict=True))
    label = "days after implantation" if known else "session"
    series = figures.DailyRates("validation", x_N, [_rates(row) for row in decoded.values()])
    drawn = figures.rates_by_day([series], label, ticks)
    return Markup(figures.to_svg(drawn, "verify", "Error rates of each recording day"))


def _rates(row: dict[str, Any]) -> Rates:
    return Rates(
        n_trials=row["n_trials"],
        n_words=row["n_words"],
        n_phonemes=0,
        per=row["per"],
        per_ci95=row["per_ci95"],
        wer=row.get("wer"),
        wer_ci95=row.get("wer_ci95"),
        cer=None,
        cer_ci95=None,
    )
