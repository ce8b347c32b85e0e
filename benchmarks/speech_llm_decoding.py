"""WER of a speech LLM on sentences that it has never seen, with right and exchanged recordings.

    python benchmarks/speech_llm_decoding.py [--demo runs/demo] [--out build/speech-llm] [--seeds 3]
    [--json FILE]

The encoder is the demo's, trained with CTC. The language model is a small one of `lm train-neural`,
on the demo's text, which has no validation sentence. It learns from text alone to read the
encoder's output (`speech-llm teach`); then encoder, projector and LoRA learn from the demo's
recordings (`speech-llm train`). Beam search writes sentences for the validation split. Then every
trial gets the recording of another trial of similar length, which shows what the language model
writes without the right recording. Files that `--out` already has are not made again.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import matplotlib
from matplotlib.figure import Figure

from cortext.data import PackedSplit, open_packed
from cortext.evaluation.figures import BLUE, INK, ORANGE, STYLE, panels, save_picture
from cortext.provenance import provenance
from cortext.text import error_rate
from cortext_bench.harness import study_arguments, write_result
from cortext_lm.neural.train_neural import NeuralSettings, train_neural
from cortext_speechllm import SpeechLLM, train_speech_llm
from cortext_speechllm.audio_llm.assemble import TowerSettings, assemble
from cortext_speechllm.teach import TeachSettings, teach_from_text

MARGIN = 0.20
"""Lead in word error rate that the right recordings must have over exchanged ones."""

GROUP = 8
"""Recordings are exchanged among so many of neighbouring length."""

TOWER = TowerSettings(window_s=12)
"""Nothing is aligned to it here."""


def exchanged(lengths: Sequence[int], sentences: Sequence[str], seed: int = 0) -> list[int]:
    """Return for each trial the number of another trial of similar length and another sentence.

    Each trial is used once.

    Args:
        lengths: Length of each trial, in bins.
        sentences: Sentence of each trial.
        seed: Seed of the exchange.
    """
    rng = random.Random(seed)
    order = sorted(range(len(lengths)), key=lambda i: lengths[i])
    given = [0] * len(order)
    for start in range(0, len(order), GROUP):
        group = order[start : start + GROUP]
        if len(order) - start - GROUP == 1:  # a last one alone could only keep its own
            group = order[start:]
        shift = rng.randrange(1, len(group)) if len(group) > 1 else 0
        for place, trial in enumerate(group):
            given[trial] = group[(place + shift) % len(group)]
        if len(order) - start - GROUP == 1:
            break
    assert all(sentences[i] != sentences[j] for i, j in enumerate(given))
    return given


def write(model: SpeechLLM, split: PackedSplit, trials: Sequence[int], size: int = 16) -> list[str]:
    """Return the sentences that the model writes for the recordings of these trials.

    Args:
        model: The speech LLM.
        split: Packed split.
        trials: Numbers of trials in the split.
        size: Trials of a batch.
    """
    texts: dict[int, str] = {}
    by_length = sorted(range(len(trials)), key=lambda place: int(split.n_bins_N[trials[place]]))
    for start in range(0, len(by_length), size):
        places = by_length[start : start + size]
        rows = [trials[place] for place in places]
        batch = split.batch(rows)
        lists = model.generate(
            batch.features_BTC, [split.session(row) for row in rows], batch.n_bins_B
        )
        texts |= {place: nbest[0].text for place, nbest in zip(places, lists, strict=True)}
    return [texts[place] for place in range(len(trials))]


def measure(run: Path, packed: Path) -> dict[str, Any]:
    """Measure WER on the validation split, with the right recordings and with exchanged ones."""
    split = open_packed(packed).split("val")
    model = SpeechLLM.load(run)
    sentences = [split.sentence(i) or "" for i in range(len(split))]
    other = exchanged(split.n_bins_N.tolist(), sentences)
    found: dict[str, Any] = {"trials": len(split), "parameters": model.network.llm.n_parameters}
    for name, trials in (("right", range(len(split))), ("exchanged", other)):
        texts = write(model, split, list(trials))
        rate = error_rate(sentences, texts, unit="word")
        found[name] = {
            "wer": rate.rate,
            "ci95": [rate.low, rate.high],
            "samples": dict(zip(sentences[:3], texts[:3], strict=True)),
        }
    return found


def teach(
    demo: Path,
    out: Path,
    layers: int,
    steps: int,
    batches: int,
    seed: int = 0,
    pieces: int = 2000,
    lr: float = TeachSettings.lr,
) -> Path:
    """Return the run of a speech LLM whose language model has learnt to read the demo's text.

    It is made where it is missing.

    Args:
        demo: Directory that `cortext demo` made.
        out: Folder of the language model, the audio LLM and the run.
        layers: Layers of the language model.
        steps: Steps that train the language model on text.
        batches: Batches that teach it to read phonemes.
        seed: Seed of both trainings.
        pieces: Pieces of its tokenizer.
        lr: Learning rate of the second training.
    """
    text = demo / "data" / "text" / "lm.txt"
    reads = out / "reads"
    if not reads.exists():
        options = NeuralSettings(pieces=pieces, layers=layers, steps=steps, minutes=None, seed=seed)
        train_neural([str(text)], out / "neural", options)
        assemble(out / "neural", out / "audio-llm", TOWER)
        lesson = TeachSettings(batches=batches, lr=lr, seed=seed)
        teach_from_text(demo / "run", [text], demo / "packed", out / "audio-llm", reads, lesson)
    return reads


def train_on_recordings(demo: Path, reads: Path, out: Path, batches: int, seed: int = 0) -> Path:
    """Return the run after encoder, projector and LoRA have learnt from the demo's recordings.

    Args:
        demo: Directory that `cortext demo` made.
        reads: Run that `teach` made.
        out: Run directory; it is trained where it is missing.
        batches: Training batches.
        seed: Seed of the training.
    """
    if not (out / "summary.json").exists():
        overrides = {
            "speech.audio_llm": reads / "audio_llm",
            "speech.merge_blanks": "true",
            "speech.alpha": 0,
            "speech.ctc": 0.1,
            "speech.lora": "{r: 16, alpha: 16, dropout: 0.1}",
            "model.n_units": 256,
            "model.n_layers": 2,
            "model.rnn_dropout": 0.2,
            "dataset.batch_size": 32,
            "dataset.length_buckets": 4,
            "epsilon": "1.0e-8",
            "seed": seed,
            "num_training_batches": batches,
            "batches_per_val_step": max(1, batches // 2),
            "val_wer_trials": 100,
        }
        for name in ("", "_day"):
            overrides |= {
                f"lr_max{name}": 0.001,
                f"lr_min{name}": 0.0001,
                f"lr_decay_steps{name}": batches,
            }
            overrides |= {f"lr_warmup_steps{name}": 20}
        settings = [f"{key}={value}" for key, value in overrides.items()]
        train_speech_llm("speech_llm", demo / "packed", out, overrides=settings, init_from=reads)
    return out


def picture(rows: Sequence[dict[str, Any]]) -> Figure:
    """Draw the WER with the right recordings (blue) and exchanged ones (orange).

    Lines are 95 % intervals.
    """
    with matplotlib.rc_context(STYLE | {"axes.grid.axis": "x", "ytick.labelcolor": INK}):
        figure, ((axis,),) = panels([0.3 * len(rows)], left=2.3, top=0.3, bottom=0.45, gap=0.4)
        axis.set_yticks(
            range(len(rows)), [f"seed {row['seed']}, {row['learnt from']}" for row in rows]
        )
        axis.set_ylim(len(rows) - 0.5, -0.5)
        for place, row in enumerate(rows):
            for name, colour in (("right", BLUE), ("exchanged", ORANGE)):
                wer, (low, high) = row[name]["wer"], row[name]["ci95"]
                axis.plot([100 * low, 100 * high], [place, place], color=colour)
                axis.plot(
                    [100 * wer],
                    [place],
                    color=colour,
                    marker="o",
                    markersize=5,
                    label=f"{name} recordings",
                )
                axis.annotate(
                    f"{100 * wer:.1f}",
                    (100 * high, place),
                    (6, 0),
                    textcoords="offset points",
                    va="center",
                )
        axis.set_xlim(0, 116)
        axis.set_xlabel("word errors, %")
        axis.legend(
            *(each[:2] for each in axis.get_legend_handles_labels()),
            loc="center",
            bbox_to_anchor=(0.62, 0.5),
            frameon=False,
        )
    return figure


def main() -> None:
    parser = study_arguments(__doc__)
    parser.add_argument("--demo", type=Path, default=Path("runs/demo"))
    parser.add_argument("--out", type=Path, default=Path("build/speech-llm"))
    parser.add_argument("--layers", type=int, default=4, help="of the language model")
    parser.add_argument(
        "--steps", type=int, default=100, help="batches of text for the language model"
    )
    parser.add_argument("--batches", type=int, default=1000, help="from which reading is learnt")
    parser.add_argument("--recordings", type=int, default=200, help="batches of recordings")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument(
        "--picture",
        type=Path,
        help="of the result that --json names, if it is there, else of this one",
    )
    given = parser.parse_args()
    if given.picture and given.json and given.json.is_file():
        save_picture(picture(json.loads(given.json.read_text())["rows"]), given.picture)
        return
    rows = []
    for seed in range(given.seeds):
        out = given.out / f"seed{seed}"
        reads = teach(given.demo, out, given.layers, given.steps, given.batches, seed)
        learnt = train_on_recordings(given.demo, reads, out / "learnt", given.recordings, seed)
        for name, run in (("text alone", reads), ("and recordings", learnt)):
            rows.append({"seed": seed, "learnt from": name, **measure(run, given.demo / "packed")})
            right, other = (rows[-1][key]["wer"] for key in ("right", "exchanged"))
            print(
                f"seed {seed}, {name}: WER {100 * right:.1f} %, with other recordings"
                f" {100 * other:.1f} %",
                flush=True,
            )
    settings = {
        key: value
        for key, value in vars(given).items()
        if key in ("layers", "steps", "batches", "recordings")
    }
    result = {
        "settings": settings | {"tower": asdict(TOWER)},
        "rows": rows,
        "provenance": provenance(),
    }
    write_result(given.json, result)
    if given.picture:
        save_picture(picture(rows), given.picture)


if __name__ == "__main__":
    main()
