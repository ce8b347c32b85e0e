"""Measure how often a wrong sentence's right one is among the alternatives that a page offers.

    python benchmarks/alternatives.py [--demo runs/demo] [--year build/year] [--seeds 4 7]
        [--json FILE] [--plot FILE]

A page offers the first two, three or four sentences of the n-best list if the calibrated
probability of the first one is between two bounds, of which the upper one can be set. Three kinds of sentences are decoded:

- demo: the validation and test sentences of `cortext demo`, on the days of its training
- weeks: all sentences of the first three later days of participants of `year.py`, one to four weeks
  after the last day of training, by a model that stays as it is
- months: the same of the next three days, on which nearly all words are wrong

Intervals are 95 %, by a bootstrap over blocks of ten sentences that were recorded one after the
other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from cortext.data import PackedSplit, open_packed
from cortext.decoding import Decoder
from cortext.decoding.log_probs import log_softmax
from cortext.evaluation.confidence import choose_confidence
from cortext.evaluation.decoder_options import options_for
from cortext.evaluation.logits import logits_of
from cortext.models import AcousticModel, load_model
from cortext.provenance import provenance
from cortext_bench.harness import markdown_table, study_arguments, write_result
from year import base_run, decoder_of, known_sessions, language_model, participant

COUNTS = (2, 3, 4)
LEAST = 0.1
"""Lower bound."""
BOUNDS = (
    (0.0, LEAST),
    *((LEAST, upper) for upper in (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)),
    (0.0, 1.01),
)
"""Lower and upper bounds; the last ones offer alternatives to every sentence."""
LATER = {"weeks": slice(0, 3), "months": slice(3, 6)}
"""Later days of each kind."""
BLOCK = 10
"""Sentences that are resampled together."""
N_BOOT = 1000
KINDS = ("demo", *LATER)

Row = tuple[float, int, int]
"""Probability of the first sentence, place of the right one (0: not in the list), candidates."""


def rows_of(
    model: AcousticModel,
    split: PackedSplit,
    decoder: Decoder,
    layer_of: str | None = None,
    sentences: Sequence[str] | None = None,
) -> Iterator[Row]:
    """Decode the sentences of a split.

    Args:
        model: The model.
        split: The trials.
        decoder: The search, with a calibration.
        layer_of: Session whose day layer the model uses; None: each trial's own.
        sentences: What was to be said; None: as the split has it.
    """
    chosen = list(range(len(split)))
    if layer_of is None:
        logits = logits_of(model, split, chosen, None)
    else:
        logits = []
        for start in range(0, len(chosen), 16):
            batch = split.batch(chosen[start : start + 16])
            layers = [layer_of] * len(batch.n_bins_B)
            logits_BPV, n_B = model.logits_batch(batch.features_BTC, layers, batch.n_bins_B)
            logits += [each[:n] for each, n in zip(logits_BPV, n_B, strict=True)]
    log_probs = [log_softmax(logits_PV) for logits_PV in logits]
    for row, nbest in enumerate(decoder.decode_batch(log_probs, model.inventory)):
        language = decoder.language
        said = language.normalize(sentences[row] if sentences else split.sentence(row) or "")
        texts = dict.fromkeys(language.normalize(each.text) for each in nbest)
        texts.pop("", None)
        order = list(texts)
        place = order.index(said) + 1 if said in texts else 0
        yield (nbest.confidence or 0.0, place, len(order))


def demo(folder: Path) -> list[Row]:
    """Return the rows of a demo."""
    run, lm, data = folder / "run", folder / "lm", open_packed(folder / "packed")
    options, _ = options_for(run, lm, None)
    calibrator = choose_confidence(run, lm, options, has_llm=False).calibrator
    decoder = Decoder.from_dir(lm, options).with_calibrator(calibrator)
    model = load_model(run)
    # Recordings of the test split are kept without their sentences; they are said in this order.
    sentences = (folder / "data" / "text" / "test.txt").read_text().splitlines()
    tests = rows_of(model, data.split("test"), decoder, sentences=sentences)
    return [*rows_of(model, data.split("val"), decoder), *tests]


def later(seed: int, year: Path) -> dict[str, list[Row]]:
    """Return the rows of a participant's later days."""
    lm = language_model(year, None)
    data, base = participant("usual", seed, year), base_run("usual", seed, year, lm)
    known, decoder, model = (
        known_sessions(data, "usual", seed),
        decoder_of(base, lm),
        load_model(base),
    )
    return {
        kind: [
            row
            for session in data.sessions[len(known) :][days]
            for name in ("train", "val")
            for row in rows_of(
                model, data.split(name).select(sessions=[session]), decoder, known[-1]
            )
        ]
        for kind, days in LATER.items()
    }


def shares(rows: np.ndarray, bounds: tuple[float, float], most: int) -> dict[str, float]:
    """Return what is offered between two bounds, as shares.

    Args:
        rows: Float [N, 3], see `Row`.
        bounds: Sentences of a probability between these have alternatives.
        most: Candidates that are shown, the first one included.

    Returns:
        `shown`: of all sentences, those with alternatives; `found`: of the wrong sentences, those
        that are shown with the right one; `helps`: of those shown, the ones with the right one
        below the first; `needless`: of those shown, the ones whose first is right.
    """
    confidence_N, place_N, n_N = rows.T
    low, high = bounds
    shown_N = (confidence_N >= low) & (confidence_N < high) & (n_N > 1)
    other_N = (place_N > 1) & (place_N <= most)
    wrong_N = place_N != 1
    return {
        "shown": float(shown_N.mean()),
        "found": float((shown_N & other_N).sum() / max(wrong_N.sum(), 1)),
        "helps": float((shown_N & other_N).sum() / max(shown_N.sum(), 1)),
        "needless": float((shown_N & ~wrong_N).sum() / max(shown_N.sum(), 1)),
    }


def measured(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return the shares with intervals, of each count and pair of bounds."""
    rows_N3 = np.asarray(rows, dtype=np.float64)
    blocks = np.array_split(np.arange(len(rows)), max(len(rows) // BLOCK, 1))
    generator = np.random.default_rng(0)
    drawn = [
        np.concatenate([blocks[b] for b in generator.integers(len(blocks), size=len(blocks))])
        for _ in range(N_BOOT)
    ]
    found = []
    for most in COUNTS:
        for bounds in BOUNDS:
            value = shares(rows_N3, bounds, most)
            again = [shares(rows_N3[N], bounds, most) for N in drawn]
            interval = {
                f"{name}_ci95": np.percentile([each[name] for each in again], [2.5, 97.5]).tolist()
                for name in value
            }
            found.append({"most": most, "bounds": bounds, **value, **interval})
    return found


def table(name: str, rows: Sequence[Row], found: Sequence[Mapping[str, Any]]) -> str:
    """Return a table of one kind of sentences: a line for each pair of bounds."""
    n_wrong = sum(place != 1 for _, place, _ in rows)

    def share(row: Mapping[str, Any], what: str) -> str:
        low, high = row[f"{what}_ci95"]
        return f"{100 * row[what]:.0f} ({100 * low:.0f} to {100 * high:.0f})"

    lines = []
    for bounds in BOUNDS:
        two, three, four = (row for row in found if row["bounds"] == bounds)
        label = "all" if bounds[1] > 1 else f"{bounds[0]:g} to {bounds[1]:g}"
        cells = [share(four, "shown"), *(share(row, "found") for row in (two, three, four))]
        lines.append([label, *cells, share(four, "helps"), share(four, "needless")])
    columns = ["probability", "shown", "found of 2", "of 3", "of 4", "4 help", "needless"]
    return f"\n{name}: {len(rows)} sentences, {n_wrong} wrong\n\n{markdown_table(columns, lines)}"


def plot(found: Mapping[str, Sequence[Mapping[str, Any]]]) -> Figure:
    """Return a picture: found of the wrong sentences against shown of all, a panel a kind."""
    figure = Figure(figsize=(6.4, 2.9), layout="constrained")
    panels = figure.subplots(1, len(found), sharey=True)
    for axes, (kind, rows) in zip(np.atleast_1d(panels), found.items(), strict=True):
        for most, shade in zip(COUNTS, ("#8fc7c0", "#2f9389", "#00504b"), strict=True):
            own = [row for row in rows if row["most"] == most and row["bounds"][0] == LEAST]
            x = [100 * row["shown"] for row in own]
            axes.plot(x, [100 * row["found"] for row in own], "o-", ms=3, color=shade, label=most)
            if most == COUNTS[-1]:
                low, high = ([100 * row["found_ci95"][side] for row in own] for side in (0, 1))
                axes.fill_between(x, low, high, color=shade, alpha=0.15, linewidth=0)
        axes.set(title=kind, xlabel="shown, % of sentences", xlim=(0, 100), ylim=(0, 62))
        axes.spines[["top", "right"]].set_visible(False)
    np.atleast_1d(panels)[0].set_ylabel("found, % of wrong sentences")
    np.atleast_1d(panels)[-1].legend(title="sentences", frameon=False, fontsize=8)
    return figure


def main() -> None:
    """Measure what is missing, print the tables, write the results."""
    parser = study_arguments(__doc__)
    parser.add_argument("--demo", type=Path, default=Path("runs/demo"))
    parser.add_argument("--year", type=Path, default=Path("build/year"))
    parser.add_argument("--seeds", type=int, nargs="+", default=[4, 7])
    parser.add_argument("--plot", type=Path)
    asked = parser.parse_args()
    rows: dict[str, list[Row]] = {kind: [] for kind in KINDS}
    rows["demo"] = demo(asked.demo)
    for seed in asked.seeds:
        for kind, more in later(seed, asked.year).items():
            rows[kind] += more
    found = {kind: measured(rows[kind]) for kind in KINDS}
    for kind in KINDS:
        print(table(kind, rows[kind], found[kind]))
    result = {
        kind: {
            "sentences": len(rows[kind]),
            "wrong": sum(place != 1 for _, place, _ in rows[kind]),
            "rows": found[kind],
        }
        for kind in KINDS
    }
    write_result(asked.json, {"seeds": asked.seeds, **result, "provenance": provenance()})
    if asked.plot:
        plot({kind: found[kind] for kind in KINDS[:2]}).savefig(asked.plot, dpi=120)


if __name__ == "__main__":
    main()
