"""Difficulty of the demo's task: is it hard, and does the decoder solve it from the recordings?

Four gates; each is a number that the demo must respect.

    python benchmarks/difficulty.py [--out build/difficulty] [--json FILE]

- frames:   logistic regression on single non-silent 20 ms frames of its own day errs on at least 40
  %;
- linear:   a linear CTC model on the same patches with the same budget has at least 1.5 times the
  GRU's PER;
- shuffled: the GRU trained on shuffled labels stays within 3 points of the best sequence that is
  blind to its input;
- swapped:  decoding another trial's posteriors gives a WER of at least 90 %.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import h5py
import numpy as np
import torch
from rapidfuzz.distance import Levenshtein
from rapidfuzz.process import cdist
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression
from torch import nn

from cortext.data import BIN_MS, Dataset, PatchGeometry, Trial, open_dataset, pack, write_session
from cortext.evaluation import error_rate
from cortext.models import GRU, GRUConfig, register
from cortext.models.layers import dropout, patches
from cortext.text.inventory import RELEASE
from cortext.training import read_train_config, train
from cortext_bench.harness import markdown_table, study_arguments, write_result
from cortext_data.demo import run_demo
from cortext_data.simulate import simulate

FRAME_ERROR = 0.40
LINEAR_RATIO = 1.5
SHUFFLED_GAIN = 0.03
SWAPPED_WER = 0.90
TRAIN_FRAMES = 20_000
VAL_FRAMES = 10_000
FRAME_DAYS = 2
LEADS_MS = (0, 60, 120, 180, 240)
"""Leads of the electrodes over the sound that are tried; the easiest one counts.

A frame is labelled with the phoneme that is spoken that much later.
"""


@dataclass
class LinearConfig(GRUConfig):
    """The GRU's settings; those of its layers are not used."""

    kind: str = "linear"  # type: ignore[assignment]


@register("linear")
class Linear(GRU):
    """The baseline with its softsign and GRU taken out: day layer, patches, one linear map."""

    Config: ClassVar[type] = LinearConfig

    def __init__(
        self, config: LinearConfig, *, n_features: int, n_days: int, n_classes: int
    ) -> None:
        super().__init__(config, n_features=n_features, n_days=n_days, n_classes=n_classes)
        self.out = nn.Linear(self.gru.input_size, n_classes)
        del self.gru

    def _initialise(self) -> None:
        nn.init.zeros_(self.h0)

    def forward(
        self,
        x_BTC: torch.Tensor,
        day_B: torch.Tensor,
        state_LBD: torch.Tensor | None = None,
        *,
        n_patches_B: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits [B, P, V]; there is no state.

        Args:
            x_BTC: Smoothed features, float32 [B, T, C].
            day_B: Day of each trial, int64 [B].
            state_LBD: Unused.
            n_patches_B: Unused.
        """
        x_BTC = torch.baddbmm(self.day_bias[day_B].unsqueeze(1), x_BTC, self.day_weight[day_B])
        x_BTC = dropout(x_BTC, self.config.input_network.input_layer_dropout, self.training)
        return self.out(patches(x_BTC, self.config.patch_size, self.config.patch_stride)), self.h0


def frame_error(data: Path, days: int = FRAME_DAYS) -> float:
    """Return the error rate of logistic regression on single non-silent frames.

    It is trained and tested within each day. The result is the mean over days at the lead (of
    LEADS_MS) where it is lowest.

    Args:
        data: A simulation with its truth.
        days: Number of days to average over.
    """
    dataset = open_dataset(data)
    sessions = dataset.sessions[:: max(1, len(dataset.sessions) // days)][:days]
    return min(
        _frame_error(dataset, data, [session.name for session in sessions], lead)
        for lead in LEADS_MS
    )


def _frame_error(dataset: Dataset, data: Path, sessions: list[str], lead_ms: float) -> float:
    errors = []
    for session in sessions:
        (x_train, y_train), (x_val, y_val) = (
            _frames(
                list(dataset.trials(split, [session])),
                data / session / "truth.hdf5",
                split,
                limit,
                lead_ms,
            )
            for split, limit in (("train", TRAIN_FRAMES), ("val", VAL_FRAMES))
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            classifier = LogisticRegression(C=0.01, max_iter=100).fit(x_train, y_train)
        errors.append(1 - classifier.score(x_val, y_val))
    return float(np.mean(errors))


def _frames(
    trials: list[Trial], truth: Path, split: str, limit: int, lead_ms: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return features [N, C] of non-silent frames, and the phonemes [N] spoken `lead_ms` later.

    At most `limit` frames are drawn, evenly.
    """
    features = []
    phonemes = []
    with h5py.File(truth) as file:
        for number, trial in enumerate(trials):
            alignment = file[f"{split}/trial_{number:04d}/alignment"][:]
            middles_ms = (np.arange(trial.n_bins) + 0.5) * BIN_MS + lead_ms
            segment = np.searchsorted(alignment[:, 1], middles_ms, side="right") - 1
            inside = (segment >= 0) & (middles_ms < alignment[segment, 2])
            spoken = (
                inside
                & (alignment[segment, 0] != RELEASE.sil)
                & (alignment[segment, 0] != RELEASE.blank)
            )
            features.append(trial.features_TC[spoken])
            phonemes.append(alignment[segment[spoken], 0])
    x = np.concatenate(features)
    y = np.concatenate(phonemes)
    chosen = np.linspace(0, len(y) - 1, min(limit, len(y))).astype(int)
    return x[chosen], y[chosen]


def best_constant_per(labels: list[np.ndarray], width: int = 20) -> float:
    """Return the PER of the best sequence that is the same for every trial.

    A beam search over growing sequences finds it. The search sees the very labels that are scored,
    so no decoder that is blind to its input does better by luck.
    """
    texts = ["".join(map(chr, label)) for label in labels]
    n_phonemes = sum(map(len, texts))
    tokens = [chr(token) for token in range(1, len(RELEASE))]
    best = n_phonemes
    beam = [""]
    for _ in range(max(map(len, texts))):
        grown = sorted({sequence + token for sequence in beam for token in tokens})
        costs = cdist(grown, texts, scorer=Levenshtein.distance, dtype=np.int32).sum(axis=1)
        order = np.argsort(costs, kind="stable")[:width]
        beam = [grown[number] for number in order]
        if costs[order[0]] >= best + 2 * len(texts):
            break
        best = min(best, int(costs[order[0]]))
    return best / n_phonemes


def shuffle_labels(data: Path, out: Path, seed: int = 0) -> None:
    """Write session files with the training trials' sentences exchanged.

    Each trial gets another trial's sentence that its length can hold. Validation trials keep
    theirs.

    Args:
        data: Session files to read.
        out: Folder to write in.
        seed: Seed of the permutation.
    """
    dataset = open_dataset(data)
    rng = np.random.default_rng(seed)
    trials = list(dataset.trials("train"))
    order = rng.permutation(len(trials))
    for _ in range(100):
        short = [i for i, j in enumerate(order) if not _fits(trials[i], trials[j])]
        if not short:
            break
        for i in short:
            other = rng.integers(len(order))
            order[i], order[other] = order[other], order[i]
    by_session: dict[str, list[Trial]] = {}
    for trial, other in zip(trials, order, strict=True):
        ids = trials[other].phoneme_ids
        sentence = trials[other].sentence
        swapped = Trial(
            trial.features_TC, trial.session, trial.block, trial.trial, sentence, ids, trial.corpus
        )
        by_session.setdefault(trial.session, []).append(swapped)
    for session in dataset.sessions:
        write_session(out / session.name / "data_train.hdf5", by_session[session.name])
        write_session(out / session.name / "data_val.hdf5", dataset.trials("val", [session.name]))


def _fits(trial: Trial, other: Trial) -> bool:
    ids = other.phoneme_ids
    assert ids is not None
    frames = PatchGeometry().n_patches(trial.n_bins - 2)  # augmentation cuts up to two bins
    return bool(frames >= len(ids) + int((ids[1:] == ids[:-1]).sum()))


def swapped_wer(evaluation: Path) -> float:
    """Return the WER when every trial gets the sentence decoded from the trial before it."""
    lines = [json.loads(line) for line in (evaluation / "nbest.jsonl").read_text().splitlines()]
    references = [line["reference"] for line in lines]
    texts = [line["hypotheses"][0]["text"] for line in lines]
    rate = error_rate(references, texts[-1:] + texts[:-1], unit="word").rate
    assert rate is not None
    return rate


def measure_blind(
    data: Path, work: Path, recipe: str = "demo", overrides: Sequence[str] = ()
) -> dict[str, float]:
    """Measure the GRU's best PER on shuffled labels, beside the best constant sequence.

    Args:
        data: Session files.
        work: Folder for the shuffled data and the run.
        recipe: Recipe to train.
        overrides: `key=value` changes of the recipe.

    Returns:
        `shuffled_per` and `constant_per`.
    """
    shuffle_labels(data, work / "shuffled")
    packed = pack(work / "shuffled", work / "shuffled-packed")
    summary = train(recipe, packed.path, work / "shuffled-run", overrides=overrides)
    val = packed.split("val")
    labels = [ids for ids in map(val.labels, range(len(val))) if ids is not None]
    return {"shuffled_per": summary.val_per, "constant_per": best_constant_per(labels)}


def measure_linear(
    packed: Path, work: Path, recipe: str = "demo", overrides: Sequence[str] = ()
) -> float:
    """Return the PER of the linear model, trained as the GRU is.

    Args:
        packed: Packed data.
        work: Folder for the run.
        recipe: Recipe of the GRU, whose input layer the model takes.
        overrides: `key=value` changes of the recipe.
    """
    config = read_train_config(recipe, overrides)
    config.model = LinearConfig(input_network=config.model.input_network)
    return train(config, packed, work / "linear-run").val_per


def main() -> None:
    parser = study_arguments(__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/difficulty"))
    arguments = parser.parse_args()
    out: Path = arguments.out
    demo = run_demo(out / "demo", workers=2)
    simulate(out / "truth", "demo", truth=True, workers=2)
    figures: dict[str, Any] = {"gru_per": demo.metrics.per, "gru_wer": demo.metrics.wer}
    figures["frame_error"] = frame_error(out / "truth")
    figures["linear_per"] = measure_linear(out / "demo" / "packed", out)
    figures |= measure_blind(out / "demo" / "data", out)
    figures["swapped_wer"] = swapped_wer(out / "demo" / "eval")
    figures["ratio"] = figures["linear_per"] / figures["gru_per"]
    print_gates(figures)
    write_result(arguments.json, figures)


def print_gates(figures: dict[str, Any]) -> None:
    """Print the table of the docs."""
    linear = f"{100 * figures['linear_per']:.1f} % against {100 * figures['gru_per']:.1f} %"
    shuffled = (
        f"{100 * figures['shuffled_per']:.1f} % against {100 * figures['constant_per']:.1f} %"
    )
    rows = [
        (
            "single frames, logistic regression",
            ">= 40 % error",
            f"{100 * figures['frame_error']:.1f} %",
        ),
        (
            "linear CTC model against the GRU, PER",
            ">= 1.5 times",
            f"{figures['ratio']:.2f} times ({linear})",
        ),
        ("GRU on shuffled labels against a constant, PER", ">= -3 points", shuffled),
        ("another trial's posteriors, WER", ">= 90 %", f"{100 * figures['swapped_wer']:.1f} %"),
    ]
    print(markdown_table(["gate", "required", "found"], rows))


if __name__ == "__main__":
    main()
