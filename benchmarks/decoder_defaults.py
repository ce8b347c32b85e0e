"""The search's default options, beside the ones before and beside options fitted to each material.

    make demo
    python benchmarks/decoder_defaults.py [--demo runs/demo] [--out build/defaults] [--json FILE]

The demo's logits and the pseudo-posteriors of `cortext bench decoder` ($CORTEXT_REAL_DATA) are
decoded as they are and with blanks that are surer or less sure:

- near 0.999 or 0.9: all log-probabilities times one factor, so that the blank has that median
  probability in the frames where it is the most probable token;
- blank alone: the blank's odds times one factor, which is a negative blank penalty of as much.

Fitted options are those of `fit_options`, cross-fitted: each half is decoded with options that were
fitted on the other. Differences are paired by trial, with 95 % intervals by a bootstrap over
trials. What `--out` already has is not measured again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cortext.decoding import Decoder, DecoderOptions
from cortext.evaluation.fitting import Fit, fit_options
from cortext.provenance import provenance
from cortext.text.metrics import bootstrap_interval, edit_counts
from cortext.text.normalize import normalize
from cortext_bench.harness import (
    cost_of,
    in_turns,
    made_once,
    markdown_table,
    study_arguments,
    write_result,
)
from cortext_bench.materials import RealData, language_models
from cortext_bench.posteriors import (
    INVENTORY,
    Utterance,
    evaluation_posteriors,
    pseudo_posteriors,
    tempered,
    with_surer_blank,
)

BEFORE: dict[str, Any] = {
    "acoustic_scale": 1.0,
    "word_score": 0.0,
    "sil_cost": 0.0,
    "blank_penalty": 32.0,
    "recombine": "logadd",
    "beam": 18.0,
}
"""The defaults before this study."""
CHANGES: tuple[dict[str, Any], ...] = (
    {"sil_cost": 10.0},
    {"sil_required": True},
    {"word_score": -1.0},
    {"acoustic_scale": 0.8},
    {"recombine": "max"},
    {"blank_penalty": 4.0},
)
"""Single changes of the defaults before."""
PSEUDO_STEP = 2
"""Every second trial of the pseudo-posteriors is decoded: 220 trials, 1,400 words."""
TURNS = 5
N_BOOT = 2000


@dataclass(frozen=True)
class Material:
    """Posteriors with the language model that they are decoded with."""

    utterances: Sequence[Utterance]
    lm: Path

    @property
    def references(self) -> list[str]:
        """The sentence of each trial."""
        return [utterance.reference for utterance in self.utterances]

    @property
    def log_probs(self) -> list[np.ndarray]:
        """The log-probabilities of each trial, float32 [P, V]."""
        return [utterance.log_probs_PV for utterance in self.utterances]


def materials(demo: Path, cache: Path) -> dict[str, Material]:
    """Return the posteriors to decode by their name in the table.

    Args:
        demo: Directory that `cortext demo` wrote.
        cache: Folder of the language models of `cortext bench decoder`.
    """
    data = RealData.find()
    lm = language_models(data, cache, static=False).lm
    found = {"demo": Material(evaluation_posteriors(demo / "eval")[0], demo / "lm")}
    found["pseudo"] = Material(pseudo_posteriors(data.trials)[0][::PSEUDO_STEP], lm)
    for name, material in list(found.items()):
        for blank in (0.999, 0.9):
            found[f"{name}, near {blank}"] = Material(
                tempered(material.utterances, blank), material.lm
            )
    surer = with_surer_blank(found["demo"].utterances, 0.999)
    found["demo, blank alone 0.999"] = Material(surer, demo / "lm")
    return found


def word_errors(material: Material, decoder: Decoder) -> tuple[np.ndarray, float]:
    """Return the word errors [trials], and milliseconds of processor time for a frame.

    Args:
        material: Posteriors and references.
        decoder: Search with its options.
    """
    texts: list[str] = []

    def decode() -> None:
        lists = decoder.decode_batch(material.log_probs, INVENTORY, threads=1)
        texts.extend(nbest.texts[0] for nbest in lists)

    cost = cost_of(decode)
    errors = [
        edit_counts(reference.split(), normalize(text).split()).errors
        for reference, text in zip(material.references, texts, strict=True)
    ]
    n_frames = sum(len(log_probs_PV) for log_probs_PV in material.log_probs)
    return np.array(errors), 1000 * cost.cpu_seconds / n_frames


def fitted_errors(material: Material, decoder: Decoder, fit: Fit) -> np.ndarray:
    """Return the word errors [trials] with the options that were fitted without each trial."""
    half_N = np.array(fit.half)
    errors_N = np.zeros(len(half_N), int)
    for half in (0, 1):
        part = half_N == half
        trials = [material.utterances[index] for index in np.flatnonzero(part)]
        options = fit.halves[1 - half]
        errors_N[part], _ = word_errors(
            Material(trials, material.lm), decoder.with_options(**vars(options))
        )
    return errors_N


def measure(material: Material) -> dict[str, Any]:
    """Return the word errors of a material with all options, and the fitted ones."""
    decoder = Decoder.from_dir(material.lm)
    sides = {"before": BEFORE, "now": {}}
    sides |= {f"before, {name}={value}": BEFORE | {name: value}
              for change in CHANGES for name, value in change.items()}  # fmt: skip
    errors, ms = {}, {}
    for name, options in sides.items():
        errors[name], ms[name] = word_errors(material, decoder.with_options(**options))
    fit = fit_options(
        material.log_probs,
        material.references,
        range(len(material.utterances)),
        decoder,
        order=INVENTORY,
    )
    errors["fitted"] = fitted_errors(material, decoder, fit)
    length_N = np.array([len(reference.split()) for reference in material.references])
    start = vars(DecoderOptions())
    return {
        "trials": len(length_N),
        "words": int(length_N.sum()),
        "wer": {name: float(errors_N.sum() / length_N.sum()) for name, errors_N in errors.items()},
        "ms": ms,
        "now_less_fitted": difference(errors["now"], errors["fitted"], length_N),
        "now_less_before": difference(errors["now"], errors["before"], length_N),
        "fitted_options": [
            {
                name: value
                for name, value in vars(options).items()
                if value != start[name] and name != "label_priors"  # 41 numbers from the trials
            }
            for options in fit.halves
        ],
    }


def difference(errors_N: np.ndarray, other_N: np.ndarray, length_N: np.ndarray) -> dict[str, Any]:
    """Return the difference of two word error rates with its paired interval.

    Args:
        errors_N: Word errors of each trial.
        other_N: Word errors of each trial that are subtracted.
        length_N: Words of each trial's reference.
    """
    more_N = errors_N - other_N
    return {
        "wer": float(more_N.sum() / length_N.sum()),
        "ci95": bootstrap_interval(more_N, length_N, N_BOOT, 0, 0.95),
    }


def speed(material: Material) -> dict[str, list[float]]:
    """Return milliseconds of processor time a frame, before and now, in turns."""
    decoder = Decoder.from_dir(material.lm)
    sides: dict[str, Mapping[str, Any]] = {"before": BEFORE, "now": {}}
    decoders = {name: decoder.with_options(**options) for name, options in sides.items()}
    return in_turns(
        {
            name: lambda turn, side=side: word_errors(material, side)[1]
            for name, side in decoders.items()
        },
        range(TURNS + 1),
        warmup=1,
    )


def points(rate: float, sign: str = "") -> str:
    """Format a rate in points."""
    return f"{100 * rate:{sign}.1f}"


def print_tables(rows: Mapping[str, Mapping[str, Any]], ms: Mapping[str, Sequence[float]]) -> None:
    """Print the tables of the docs."""
    lines = []
    for name, row in rows.items():
        wer, less = row["wer"], row["now_less_fitted"]
        span = " to ".join(points(bound, "+") for bound in less["ci95"])
        cells = [points(wer[side]) for side in ("before", "now", "fitted")]
        lines.append([name, *cells, f"{points(less['wer'], '+')} ({span})"])
    print(markdown_table(["posteriors", "before", "now", "fitted", "now less fitted"], lines))
    names = list(rows)
    changes = [name for name in rows[names[0]]["wer"] if name.startswith("before")]
    single = [[name, *(points(rows[each]["wer"][name]) for each in names)] for name in changes]
    print(markdown_table(["WER, %", *names], single))
    print({name: [round(value, 4) for value in values] for name, values in ms.items()})


def main() -> None:
    parser = study_arguments(__doc__)
    parser.add_argument("--demo", type=Path, default=Path("runs/demo"))
    parser.add_argument("--cache", type=Path, default=Path("build/bench"))
    parser.add_argument("--out", type=Path, default=Path("build/defaults"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    found = materials(arguments.demo, arguments.cache)
    rows = {
        name: made_once(
            arguments.out / f"{name.replace(', ', '-').replace(' ', '-')}.json",
            lambda material=material: measure(material),
        )
        for name, material in found.items()
    }
    ms = speed(found["demo"])
    print_tables(rows, ms)
    now = {name: value for name, value in vars(DecoderOptions()).items() if name in BEFORE}
    write_result(
        arguments.json,
        {
            "before": BEFORE,
            "now": now,
            "materials": rows,
            "demo_cpu_ms_per_frame": ms,
            "provenance": provenance(),
        },
    )


if __name__ == "__main__":
    main()
