"""Error rates of the demo's recipe on other tokens: Spanish phonemes, and handwritten characters.

    python benchmarks/own_tokens.py [--out build/own-tokens] [--json FILE] [--cases spanish ...]

A case simulates a preset, trains the demo's recipe on it, builds language models from the
simulation's text, and decodes the validation trials, with decoder options fitted to the run. No
validation sentence is in the training or in the text of the language models.

- spanish: preset `spanish`, with its lexicon, and a 4-gram of words
- handwriting: preset `handwriting`, bins of 10 ms, frames of 80 ms as in the demo; a 4-gram of words
  that are spelt, and a 6-gram of characters (open vocabulary)

Cases that `--out` already has are not measured again. `--threads` is for the search; training uses
the threads of torch (OMP_NUM_THREADS).
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cortext.data import pack
from cortext.decoding.ngram import LanguageModel
from cortext.evaluation import evaluate
from cortext.provenance import provenance
from cortext.training import read_train_config, train
from cortext_bench.harness import made_once, markdown_table, study_arguments, write_result
from cortext_data.simulate import PRESETS, simulate

REQUIRED = {"spanish": {"per": 0.15, "wer": 0.20}}


@dataclass(frozen=True)
class Case:
    """A preset, changes to the demo's recipe, and language models by name."""

    recipe: tuple[str, ...]
    models: dict[str, dict[str, Any]]


_BATCHES = ("num_training_batches", "lr_decay_steps", "lr_decay_steps_day")
CASES = {
    "spanish": Case((), {"4-gram of words": {"order": 4}}),
    # A quarter of the demo's training: trials are three times as long. Patch, stride, smoothing and
    # cut last as long as in bins of 20 ms.
    "handwriting": Case(
        (
            *(f"{name}=300" for name in _BATCHES),
            "dataset.batch_size=16",
            "model.patch_size=28",
            "model.patch_stride=8",
            "dataset.data_transforms.smooth_kernel_std=4",
            "dataset.data_transforms.random_cut=6",
        ),
        {
            "4-gram of words, spelt": {"order": 4},
            "6-gram of characters": {"order": 6, "unit": "character"},
        },
    ),
}


def measure(name: str, out: Path, threads: int) -> dict[str, Any]:
    """Simulate, train and decode one case.

    Args:
        name: Case and preset.
        out: Folder of the results; a result that is there is read instead.
        threads: Threads of the search.

    Returns:
        `trials`, `sentences` (different ones) and `per` of the validation split, and by language
        model `wer`, `wer_ci95`, `cer` and the rate of unknown words, `oov`.
    """

    def measured() -> dict[str, Any]:
        work = out / name
        shutil.rmtree(work, ignore_errors=True)
        simulate(work / "data", name)
        pack(work / "data", work / "packed")
        train(read_train_config("demo", CASES[name].recipe), work / "packed", work / "run")
        found: dict[str, Any] = {"models": {}}
        for number, (title, options) in enumerate(CASES[name].models.items()):
            lm = work / f"lm{number}"
            build(work / "data", lm, PRESETS[name], **options)
            metrics = evaluate(
                work / "run",
                work / "packed",
                "val",
                lm,
                work / f"eval{number}",
                fit=True,
                threads=threads,
            )
            said = (work / "data" / "text" / "val.txt").read_text(encoding="utf-8").splitlines()
            found |= {"trials": len(said), "sentences": len(set(said))}
            found |= {"per": metrics.per, "per_ci95": metrics.per_ci95}
            found["models"][title] = {
                "wer": metrics.wer,
                "wer_ci95": metrics.wer_ci95,
                "cer": metrics.cer,
                "oov": metrics.oov and metrics.oov["rate"],
            }
        shutil.rmtree(work)
        return found

    return made_once(out / f"{name}.json", measured)


def build(data: Path, lm: Path, preset: Any, **options: Any) -> None:
    """Build a language model of a simulation's text.

    Args:
        data: The simulation.
        lm: Directory to write.
        preset: The simulation's settings.
        options: Options of `LanguageModel.build`.
    """
    lexicon = data / "text" / "lexicon.txt"
    LanguageModel.build(
        [data / "text" / "lm.txt"],
        options.pop("order"),
        lm,
        inventory=preset.inventory,
        language=preset.language,
        lexicon=lexicon if lexicon.exists() else None,
        **options,
    )


def percent(value: float | None) -> str:
    """Return a fraction as text."""
    return "" if value is None else f"{100 * value:.1f} %"


def main() -> None:
    parser = study_arguments(__doc__)
    parser.add_argument("--out", type=Path, default=Path("build/own-tokens"))
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    found = {name: measure(name, arguments.out, arguments.threads) for name in arguments.cases}
    rows = [
        [
            name,
            case["trials"],
            case["sentences"],
            percent(case["per"]),
            title,
            percent(rates["wer"]),
            " to ".join(percent(end) for end in rates["wer_ci95"]),
            percent(rates["cer"]),
            percent(rates["oov"]),
        ]
        for name, case in found.items()
        for title, rates in case["models"].items()
    ]
    heads = [
        "case",
        "trials",
        "sentences",
        "PER",
        "language model",
        "WER",
        "95 %",
        "CER",
        "unknown",
    ]
    print(markdown_table(heads, rows))
    for name, most in REQUIRED.items():
        for case in [found[name]] if name in found else []:
            wer = min(rates["wer"] for rates in case["models"].values())
            print(
                f"{name}: required at most {most}: {case['per'] <= most['per'] and wer <= most['wer']}"
            )
    write_result(arguments.json, {"cases": found, "provenance": provenance()})


if __name__ == "__main__":
    main()
