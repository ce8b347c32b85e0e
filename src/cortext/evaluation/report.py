"""The report: one HTML file with everything in it, to read on a screen or on paper."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from jinja2 import ChoiceLoader, Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from cortext.data.trial import Session
from cortext.errors import HIDDEN
from cortext.evaluation import figures, pictures
from cortext.evaluation import summary as summaries
from cortext.evaluation.recognise import Recognised, Results
from cortext.evaluation.scores import Confusion, Rates, TrialResult, group_rates, long_name
from cortext.files import json_lines
from cortext.text.inventory import RELEASE, Inventory
from cortext.text.metrics import align

if TYPE_CHECKING:
    from cortext.evaluation.scores import Metrics

N_PICTURES = 6
N_EXAMPLES = 16
N_CONFUSIONS = 18
SPLIT_NAMES = {"train": "training", "val": "validation", "test": "test"}


@dataclass(frozen=True)
class Compared:
    """Errors of several models on the same trials.

    Attributes:
        overall: Rates by the model's name; the first one is the evaluated model.
        by_day: Rates by the model's name and session.
        note: A sentence about the models, for the reader.
    """

    overall: Mapping[str, Rates]
    by_day: Mapping[str, Mapping[str, Rates]]
    note: str


def write_report(
    path: Path,
    metrics: Metrics,
    results: Results,
    confused: Confusion | None,
    run: Path | None,
    compared: Compared | None = None,
) -> None:
    """Write the report of an evaluation.

    Args:
        path: HTML file to write.
        metrics: Error rates of the split.
        results: Decoded trials.
        confused: Confusion of tokens; None without labels.
        run: Run directory, for its learning curves; None without one.
        compared: Errors of other models on the same trials; None without any.
    """
    labelled = [trial for trial in results.trials if trial.reference or trial.phonemes]
    positions = _day_axis(list(metrics.per_session), metrics.post_implant_day)[0]
    inventory, language = results.conventions.inventory, results.conventions.language
    page = render(
        "report.html.j2",
        "cortext.evaluation",
        metrics=metrics,
        title=(
            "Evaluation of the published copy task"
            if "imported" in metrics.provenance
            else f"Evaluation of the {SPLIT_NAMES.get(metrics.split, metrics.split)} split"
        ),
        summary=summaries.summary(metrics, results.trials, confused, positions, inventory),
        inventory=inventory,
        conventions=results.conventions,
        is_published=inventory.is_published,
        by_manner=inventory.groups == RELEASE.groups,
        # Sentences of other scripts may run from right to left.
        direction=Markup("" if language.is_benchmark else ' dir="auto"'),
        days_rule=summaries.DAYS_RULE,
        splits=summaries.SPLITS,
        explain=summaries.explain,
        headline=_headline(metrics, inventory),
        compared=_compared(compared, metrics, inventory),
        groups=_groups(metrics),
        days=_days(metrics, results.trials, inventory),
        day_rows=[
            {"name": name, "day": metrics.post_implant_day.get(name), "rates": rates}
            for name, rates in metrics.per_session.items()
        ],
        curves=None if run is None else _curves(run / "metrics.jsonl", inventory),
        confidence=_confidence(metrics.confidence),
        confusion=_confusion(confused),
        pictures=_pictures(results) if isinstance(results, Recognised) else [],
        choice=pictures.CHOICE,
        examples=[
            _example(trial)
            for trial in pictures.choose(labelled, N_EXAMPLES)
            if trial.text is not None
        ],
        origin=metrics.provenance,
        config=(
            yaml.safe_dump(metrics.provenance["config"], sort_keys=False)
            if metrics.provenance["config"]
            else None
        ),
    )
    path.write_text(page, encoding="utf-8")


def render(template: str, package: str, /, **values: Any) -> str:
    """Return a page made of a template.

    Whatever is not Markup is escaped, and so are characters that a page would hide.

    Args:
        template: Name of the file.
        package: Package that has it in its folder `templates`. It may extend and import those of
            this package.
        **values: Values that the template names.
    """
    page = _environment(package).get_template(template).render(**values)
    return HIDDEN.sub(lambda match: match[0].encode("unicode_escape").decode(), page)


@cache  # its templates are compiled once
def _environment(package: str) -> Environment:
    environment = Environment(
        loader=ChoiceLoader([PackageLoader(package), PackageLoader("cortext.evaluation")]),
        autoescape=True,
        # A misspelt name in a template is an error and no gap in the page.
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"percent": percent, "interval": interval, "number": number}
    return environment


def percent(rate: float | None) -> str:
    """Format a rate as `12.3`, or as a dash where there is none."""
    return "–" if rate is None else f"{100 * rate:.1f}"


def interval(bounds: Sequence[float] | None) -> str:
    """Format bounds as `11.0–13.9` in per cent, or as a dash where there are none."""
    return "–" if bounds is None else f"{100 * bounds[0]:.1f}–{100 * bounds[1]:.1f}"


def number(value: float | None) -> str:
    """Format a number: a thin space between thousands, one decimal below 100, a dash for None."""
    if value is None:
        return "–"
    text = f"{value:,.0f}" if abs(value) >= 100 or float(value).is_integer() else f"{value:.1f}"
    return text.replace(",", "\u2009")


def _headline(metrics: Metrics, inventory: Inventory) -> list[dict[str, Any]]:
    rows = []
    # PER is measured before the search, so no fitted option has changed it.
    crossed = ("wer", "cer") if metrics.n_cross_fitted else ()
    for name, counted, unit, long in (
        ("per", "phoneme", inventory.unit, long_name(inventory)),
        ("wer", "word", "word", "word error rate"),
        ("cer", "char", "character", "character error rate"),
    ):
        if getattr(metrics, name) is not None:
            bounds = getattr(metrics, f"{name}_ci95")
            shown = inventory.error_rate if name == "per" else name.upper()
            rows.append(
                {
                    "name": shown,
                    "unit": f"{unit}s",
                    "long": f"{long} ({shown})",
                    "crossed": name in crossed,
                    "rate": getattr(metrics, name),
                    "ci": bounds,
                    "counts": metrics.edits[counted],
                }
            )
    return rows


def _compared(
    compared: Compared | None, metrics: Metrics, inventory: Inventory
) -> dict[str, Any] | None:
    if compared is None or not any(rate.n_trials for rate in compared.overall.values()):
        return None
    positions, x_label, ticks = _day_axis(list(metrics.per_session), metrics.post_implant_day)
    series = [
        figures.DailyRates(name, [positions[day] for day in by_day], list(by_day.values()))
        for name, by_day in compared.by_day.items()
    ]
    figure = figures.rates_by_day(series, x_label, ticks, inventory.error_rate)
    label = f"Error rates of {len(series)} models with 95 % intervals along the recording days"
    days = next(iter(compared.by_day.values()))
    return {
        "svg": Markup(figures.to_svg(figure, "compared", label)),
        "names": list(compared.overall),
        "note": compared.note,
        "overall": compared.overall,
        "rows": [(day, [rates[day] for rates in compared.by_day.values()]) for day in days],
    }


def _days(
    metrics: Metrics, trials: Sequence[TrialResult], inventory: Inventory
) -> dict[str, Any] | None:
    labelled = [trial for trial in trials if trial.phonemes or trial.reference]
    if not labelled:
        return None
    positions, x_label, ticks = _day_axis(list(metrics.per_session), metrics.post_implant_day)
    series = []
    kinds = dict.fromkeys(summaries.vocabulary(trial.corpus) for trial in labelled)
    for kind in kinds:
        of_kind = [trial for trial in labelled if summaries.vocabulary(trial.corpus) == kind]
        by_session = group_rates(of_kind, [trial.session for trial in of_kind])
        series.append(
            figures.DailyRates(
                kind, [positions[name] for name in by_session], list(by_session.values())
            )
        )
    figure = figures.rates_by_day(series, x_label, ticks, inventory.error_rate)
    label = "Error rates with 95 % intervals along the recording days"
    return {"svg": Markup(figures.to_svg(figure, "days", label)), "kinds": list(kinds)}


def _day_axis(
    sessions: Sequence[str], post_implant: dict[str, int]
) -> tuple[dict[str, float], str, Any]:
    """Return each session's position on the axis of days, the axis' name, and its ticks."""
    if all(name in post_implant for name in sessions):
        return (
            {name: float(post_implant[name]) for name in sessions},
            "days after implantation",
            None,
        )
    dates: dict[str, date | None] = {name: Session(name, {}).date for name in sessions}
    known = [day for day in dates.values() if day is not None]
    # Two sessions of one date would be drawn on top of each other.
    if len(set(known)) == len(sessions) and len(known) > 1:
        first = min(known)
        days = {name: float((day - first).days) for name, day in dates.items() if day is not None}
        return days, f"days since {first.isoformat()}", None
    positions = {name: float(number) for number, name in enumerate(sessions)}
    return positions, "session", {position: name for name, position in positions.items()}


def _curves(path: Path, inventory: Inventory) -> Markup | None:
    """Draw learning curves from `metrics.jsonl`: a JSON object a line, with `step` and numbers."""
    lines = list(json_lines(path))
    losses = [_curve(lines, "train", ("train_loss",)), _curve(lines, "validation", ("val_loss",))]
    errors = [
        _curve(lines, inventory.error_rate, ("val_per",), 100),
        _curve(lines, "WER", ("val_wer",), 100),
    ]
    shown = [[curve for curve in curves if curve is not None] for curves in (losses, errors)]
    if not any(shown):
        return None
    return Markup(
        figures.to_svg(
            figures.learning_curves(*shown), "curves", "Losses and error rates during training"
        )
    )


def _curve(
    lines: Iterable[dict[str, Any]], name: str, keys: Sequence[str], factor: float = 1
) -> figures.Curve | None:
    points = [
        (line["step"], factor * line[key])
        for line in lines
        for key in keys
        if figures.is_drawable(line.get("step")) and figures.is_drawable(line.get(key))
    ]
    return figures.Curve(name, *map(list, zip(*points, strict=True))) if points else None  # type: ignore[arg-type]


def _confidence(measured: dict[str, Any] | None) -> dict[str, Any] | None:
    if measured is None:
        return None
    label = "Share of right words by confidence, and number of words"
    svg = Markup(figures.to_svg(figures.reliability(measured["words"]["bins"]), "reliable", label))
    names = {
        "words": "words",
        "posteriors": "the same words, posteriors of the search",
        "sentences": "sentences",
    }
    rows = [(long, measured[name]) for name, long in names.items() if name in measured]
    return {"svg": svg, "note": measured["note"], "rows": rows}


def _confusion(confused: Confusion | None) -> dict[str, Any] | None:
    if confused is None:
        return None
    figure = figures.confusion_matrix(confused)
    label = f"Confusion matrix of {confused.inventory.unit}s: rows are said, columns decoded"
    return {
        "svg": Markup(figures.to_svg(figure, "confusion", label)),
        "top": confused.top(N_CONFUSIONS),
    }


def _pictures(recognised: Recognised) -> list[dict[str, Any]]:
    index = {trial.id: i for trial, i in zip(recognised.trials, recognised.indices, strict=True)}
    shown = []
    for trial in pictures.choose(recognised.trials, N_PICTURES):
        figure = pictures.trial_figure(pictures.picture_of(trial, index[trial.id], recognised))
        unit = recognised.conventions.inventory.unit
        label = f"Features, {unit} posteriors and decoded words of trial {trial.name}"
        shown.append(
            {**_example(trial), "svg": Markup(figures.to_svg(figure, f"trial{trial.id}", label))}
        )
    return shown


def _example(trial: TrialResult) -> dict[str, Any]:
    words, phonemes = pictures.error_share(trial)
    return {
        "id": trial.id,
        "name": trial.name,
        "corpus": trial.corpus,
        "wer": words if trial.reference and trial.text is not None else None,
        "per": phonemes if trial.phonemes else None,
        **_marked(trial),
    }


def _marked(trial: TrialResult) -> dict[str, Any]:
    """Return reference and decoded sentence as lists of (word, right)."""
    decoded = (trial.text or "").split()
    if trial.reference is None:
        return {"reference": None, "decoded": [(word, True) for word in decoded]}
    if trial.text is None:
        return {"reference": [(word, True) for word in trial.reference.split()], "decoded": None}
    pairs = align(trial.reference.split(), decoded)
    return {
        "reference": [
            (true, true == decoded_word) for true, decoded_word in pairs if true is not None
        ],
        "decoded": [
            (decoded_word, true == decoded_word)
            for true, decoded_word in pairs
            if decoded_word is not None
        ],
    }


def _groups(metrics: Metrics) -> list[tuple[str, Rates]]:
    """Return groups of trials worth comparing: seen and unseen sentences, then corpora."""
    groups = [(summaries.SEEN, metrics.seen), (summaries.UNSEEN, metrics.unseen)]
    rows = [(name, rates) for name, rates in groups if rates is not None and rates.n_trials]
    return rows + (list(metrics.per_corpus.items()) if len(metrics.per_corpus) > 1 else [])
