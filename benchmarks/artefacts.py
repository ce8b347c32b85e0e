"""Word errors of the sentences after an artefact, with plain and with robust rolling z-scores.

    python benchmarks/artefacts.py [--out build/artefacts] [--json FILE]

A model of raw features is trained on the demo's simulation without normalisation (counts and power
of 64 electrodes). Of each of its six days the training sentences are normalised first, as live
decoding would. Then comes one more training sentence, with an artefact or without; then the day's
20 validation sentences are decoded, and their word errors are counted. `plain` takes the
statistics of all bins, as they are. Cold starts have nothing before the sentence with the artefact.

What `--out` already has is not made again. On one core it takes about ten minutes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from cortext.data import pack
from cortext.data.dataset import open_session_files
from cortext.data.scaling import Moments, RollingZScore
from cortext.data.trial import Trial
from cortext.decoding import Decoder
from cortext.decoding.log_probs import log_softmax
from cortext.decoding.ngram import LanguageModel
from cortext.models import AcousticModel, load_model
from cortext.text.metrics import EditCounts, edit_counts
from cortext.text.normalize import normalize
from cortext.training import train
from cortext_bench.harness import made_once, markdown_table, study_arguments, write_result
from cortext_data.simulate import simulate

N_AFTER = 20
"""Sentences after an artefact: those whose statistics it belongs to."""
N_ELECTRODES = 64
BIN_S = 0.02

Artefact = Callable[[np.ndarray, np.random.Generator], None]
"""Changes the features [T, C] of a sentence in place: counts, then power, of each electrode."""


class Plain(RollingZScore):
    """Rolling z-scores in which every bin counts as it is."""

    def _add(self, x_TC: np.ndarray) -> None:
        self._n_bins += len(x_TC)
        self._utterance += Moments.of(x_TC)
        self._known = self._before + self._utterance

    def _remember(self, x_TC: np.ndarray, flat_TC: np.ndarray | None) -> None:
        super()._remember(x_TC, None)

    def _begin_anew_if_changed(self) -> None:
        pass

    def _begin_anew_if_spoilt(self) -> None:
        pass


def line_noise(hz: float, seconds: float) -> Artefact:
    """Return a burst of line noise on all electrodes.

    Each half cycle crosses the threshold once. The power is that of a sine five times as large as
    the usual signal.
    """

    def spoil(x_TC: np.ndarray, generator: np.random.Generator) -> None:
        spoilt_TC = x_TC[20 : 20 + round(seconds / BIN_S)]
        crossings_T = np.diff(np.floor(np.arange(len(spoilt_TC) + 1) * BIN_S * 2 * hz))
        spoilt_TC[:, :N_ELECTRODES] += crossings_T[:, None]
        spoilt_TC[:, N_ELECTRODES:] *= 25 * generator.lognormal(0, 0.1, (len(spoilt_TC), 1))

    return spoil


def movement(share: float) -> Artefact:
    """Return a moved cable: 0.4 s of large steps on the first electrodes."""

    def spoil(x_TC: np.ndarray, generator: np.random.Generator) -> None:
        n = round(share * N_ELECTRODES)
        spoilt_TC = x_TC[20:40]
        spoilt_TC[:, :n] = generator.integers(0, 20, (20, n))
        spoilt_TC[:, N_ELECTRODES : N_ELECTRODES + n] *= generator.lognormal(6, 2, (20, n))

    return spoil


def saturated(n_electrodes: int, seconds: float) -> Artefact:
    """Return a saturated amplifier: a jump to the rail, where no spike crosses a threshold."""

    def spoil(x_TC: np.ndarray, generator: np.random.Generator) -> None:
        until = 20 + round(seconds / BIN_S)
        x_TC[20:until, :n_electrodes] = 0
        x_TC[20:until, N_ELECTRODES : N_ELECTRODES + n_electrodes] = 1e4

    return spoil


def one_bin(value: float, n_features: int = 2 * N_ELECTRODES, at: int = 20) -> Artefact:
    """Return a single bin of one value in the last features."""

    def spoil(x_TC: np.ndarray, generator: np.random.Generator) -> None:
        x_TC[at, -n_features:] = value

    return spoil


ARTEFACTS: dict[str, tuple[Artefact, bool]] = {
    "one bin of 10,000, all features": (one_bin(1e4), False),
    "one bin of 10^9, all features": (one_bin(1e9), False),
    "one bin of 10^9, one feature": (one_bin(1e9, 1), False),
    "line noise of 50 Hz, 1 s": (line_noise(50, 1), False),
    "line noise of 60 Hz, 3 s": (line_noise(60, 3), False),
    "moved cable, 5 electrodes": (movement(0.08), False),
    "moved cable, half of the electrodes": (movement(0.5), False),
    "saturated amplifier, one electrode, 2 s": (saturated(1, 2), False),
    "saturated amplifier, all electrodes, 2 s": (saturated(N_ELECTRODES, 2), False),
    "cold start, bin 5 of 10,000": (one_bin(1e4, at=5), True),
    "cold start, bin 100 of 10^9": (one_bin(1e9, at=100), True),
    "cold start, moved cable, half": (movement(0.5), True),
}
"""Each artefact, and whether it comes in a cold start."""


def prepare(out: Path) -> None:
    """Make the simulation, the language model and the run, if they are not there."""
    if (out / "run" / "model.json").is_file():
        return
    torch.set_num_threads(1)
    simulate(out / "data", "demo", overrides=["normalise=none"])
    pack(out / "data", out / "packed")
    LanguageModel.build([out / "data" / "text" / "lm.txt"], 4, out / "lm")
    train("demo", out / "packed", out / "run", progress=False)


def days(out: Path) -> list[tuple[list[Trial], list[Trial]]]:
    """Return of each day the latest training sentences and the validation sentences."""
    dataset = open_session_files(out / "data")
    found = []
    for session in dataset.sessions:
        before = list(dataset.trials("train", [session.name]))[-21:]
        found.append((before, list(dataset.trials("val", [session.name]))[:N_AFTER]))
    return found


def word_errors(
    model: AcousticModel,
    decoder: Decoder,
    material: list[tuple[list[Trial], list[Trial]]],
    kind: type[RollingZScore],
    artefact: Artefact | None,
    cold: bool,
) -> dict[str, float]:
    """Return the WER of all sentences after an artefact, and of those of the worst day.

    Args:
        model: The model.
        decoder: The search.
        material: Of each day the sentences before and after.
        kind: Class of the z-scores.
        artefact: Spoils the last sentence before; None: there is none.
        cold: Whether nothing lies before that sentence.
    """
    total, worst = EditCounts(), 0.0
    for number, (before, after) in enumerate(material):
        normaliser = kind(model.n_features)
        for trial in before[:-1] if not cold else []:
            normaliser.push(trial.features_TC)
            normaliser.end_utterance()
        x_TC = before[-1].features_TC.copy()
        if artefact is not None:
            artefact(x_TC, np.random.default_rng(number))
        normaliser.push(x_TC)
        normaliser.end_utterance()
        edits = EditCounts()
        for trial in after:
            z_TC = normaliser.push(trial.features_TC)
            normaliser.end_utterance()
            logits_PV = model.logits(z_TC, trial.session)
            text = decoder.decode(log_softmax(logits_PV), model.inventory)[0].text
            edits += edit_counts(normalize(trial.sentence or "").split(), text.split())
        total += edits
        worst = max(worst, edits.errors / edits.reference_length)
    return {"wer": total.errors / total.reference_length, "worst_day": worst}


def change_without_artefacts(out: Path) -> dict[str, float]:
    """Return how robust z-scores of the simulation differ from plain ones."""
    plain: RollingZScore | None = None
    block, changes, ratios = None, [], []
    for _, trial in open_session_files(out / "data").as_recorded():
        if plain is None:
            plain, robust = (
                Plain(trial.features_TC.shape[1]),
                RollingZScore(trial.features_TC.shape[1]),
            )
        if block != (trial.session, trial.block):
            block = trial.session, trial.block
            plain.start_block()
            robust.start_block()
        changes.append(np.abs(plain.push(trial.features_TC) - robust.push(trial.features_TC)))
        plain.end_utterance()
        robust.end_utterance()
        if plain.statistics and robust.statistics:
            ratios.append(robust.statistics[1] / np.maximum(plain.statistics[1], 1e-9))
    change_TC = np.concatenate(changes)
    return {
        "n": change_TC.size,
        "mean": float(change_TC.mean(dtype=np.float64)),
        "share_above_0.1": float((change_TC > 0.1).mean()),
        "deviation_ratio_1st_percentile": float(np.percentile(ratios, 1)),
    }


def main() -> None:
    parser = study_arguments(__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/artefacts"))
    arguments = parser.parse_args()
    prepare(arguments.out)
    torch.set_num_threads(1)
    model = load_model(arguments.out / "run")
    decoder = Decoder.from_dir(arguments.out / "lm")
    material = days(arguments.out)
    conditions: dict[str, tuple[Artefact | None, bool]] = {
        "none": (None, False),
        "none, cold start": (None, True),
        **ARTEFACTS,
    }
    figures: dict[str, dict[str, dict[str, float]]] = {}
    for number, (name, (artefact, cold)) in enumerate(conditions.items()):
        figures[name] = {}
        for kind in (Plain, RollingZScore):
            found = made_once(
                arguments.out / f"{number}-{kind.__name__}.json",
                lambda kind=kind, artefact=artefact, cold=cold: word_errors(  # type: ignore[misc]
                    model, decoder, material, kind, artefact, cold
                ),
            )
            figures[name]["plain" if kind is Plain else "robust"] = found
        print(name, figures[name], flush=True)
    rows = [
        [name, *(f"{100 * found[way]['wer']:.1f} %" for way in ("plain", "robust"))]
        for name, found in figures.items()
    ]
    print(markdown_table(["artefact", "WER, plain", "WER, robust"], rows))
    clean = change_without_artefacts(arguments.out)
    print("without artefacts:", clean)
    result = {"n_after": N_AFTER, "conditions": figures, "without_artefacts": clean}
    write_result(arguments.json, result)


if __name__ == "__main__":
    main()
