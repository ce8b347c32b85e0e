"""Bits per character of real prompts: the 5-gram, the small neural model, and both mixed.

    python benchmarks/neural_lm.py [--data ../shared/data] [--out build/neural-lm] [--minutes 35]
    [--json FILE]

Both models learn from the same texts: general English, and the prompts of the training splits of
T12 and T15 without every 20th. Every 20th prompt is held out to choose the mixture of the two texts
in the 5-gram (`lm build --interpolate`), the neural weights that are kept and the weight of the
neural model. The test text is the prompts of the validation splits. A held-out or test prompt that
also occurs in another of the texts is dropped. Files that `--out` already has are not made again.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

from cortext.decoding.ngram import LanguageModel
from cortext.decoding.ngram.corpus import sentences_of
from cortext.provenance import provenance
from cortext_bench.harness import study_arguments, write_result
from cortext_lm.llm.loading import FACTS
from cortext_lm.neural.compare import compare
from cortext_lm.neural.train_neural import NeuralOptions, train_neural

HELD_OUT_EVERY = 20
FACTOR = 12
ORDER = 5
TESTS = ("nbest/t15_val_even.jsonl", "phonemes/t12_val_even.jsonl")


def write_texts(data: Path, out: Path, general: Path) -> None:
    """Write the prompts to train on, to choose weights on and to test on; no two share a sentence.

    Args:
        data: Folder of the real material.
        out: Folder for `train.txt`, `held.txt` and `test.txt`.
        general: General text, whose sentences the last two leave out.
    """
    prompts = (data / "text" / "transcripts_train.txt").read_text().splitlines()
    references = [
        json.loads(line)["reference"]
        for name in TESTS
        for line in (data / name).read_text().splitlines()
    ]
    train = [prompt for number, prompt in enumerate(prompts) if number % HELD_OUT_EVERY]
    known = {*sentences_of(general), *sentences_of(train)}
    held = [
        prompt for prompt in prompts[::HELD_OUT_EVERY] if known.isdisjoint(sentences_of([prompt]))
    ]
    known.update(sentences_of(held))
    test = [reference for reference in references if known.isdisjoint(sentences_of([reference]))]
    for name, lines in {"train": train, "held": held, "test": test}.items():
        (out / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))


def measure(data: Path, out: Path, options: NeuralOptions) -> dict[str, Any]:
    out.mkdir(parents=True, exist_ok=True)
    train, held, test = (out / f"{name}.txt" for name in ("train", "held", "test"))
    general = data / "text" / "general_english.txt.gz"
    write_texts(data, out, general)
    if not (out / "lm" / "lm.json").is_file():
        mixture = {"interpolate": True, "held_out": held, "binary": "trie"}
        LanguageModel.build([train, general], ORDER, out / "lm", **mixture)
    if not (out / "neural" / FACTS).is_file():
        train_neural([f"{train}:{FACTOR}", general], out / "neural", options, held)
    neural = json.loads((out / "neural" / FACTS).read_text())
    neural["sources"] = [
        source | {"path": Path(source["path"]).name} for source in neural["sources"]
    ]
    ngram = LanguageModel.open(out / "lm").info()
    return {
        **compare(out / "lm", out / "neural", test, held),
        "ngram": {
            name: ngram[name]
            for name in ("order", "ngrams", "bytes", "vocabulary", "interpolation")
        },
        "neural": {
            name: value for name, value in neural.items() if name not in ("kind", "held_out")
        },
        "provenance": provenance(),
    }


def main() -> None:
    parser = study_arguments(__doc__)
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--out", type=Path, default=Path("build/neural-lm"))
    parser.add_argument("--minutes", type=float, default=35.0)
    arguments = parser.parse_args()
    found = measure(arguments.data, arguments.out, NeuralOptions(minutes=arguments.minutes))
    for name, bits in found["bits_per_character"].items():
        print(
            f"{name:14} {bits:.4f} bits per character, perplexity {found['perplexity'][name]:.1f}"
        )
    gain = found["gain"]
    print(
        f"gain           {gain['bits_per_character']:.4f} ({gain['low']:.4f} to {gain['high']:.4f})"
    )
    write_result(arguments.json, found)


if __name__ == "__main__":
    main()
