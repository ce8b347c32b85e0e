"""Recall and false insertions of hotwords by their bonus, with two sets of decoder options.

    make demo
    python benchmarks/hotwords.py [--demo runs/demo] [--json FILE]

Each of 24 words, which are said two to twelve times in the demo's validation split, is a hotword
alone. It is decoded in every trial that has it, and in a third of the others. Words are known, or
they are names: the n-gram is built of the text without the sentences that have them.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from cortext.decoding import Decoder
from cortext.decoding.ngram import LanguageModel
from cortext.provenance import provenance
from cortext.text import normalize
from cortext_bench.harness import markdown_table, study_arguments, write_result
from cortext_bench.posteriors import INVENTORY, Utterance, evaluation_posteriors
from decoder_defaults import BEFORE

BONUSES = (0, 2, 4, 6, 8, 12, 16, 20)
OPTIONS: Mapping[str, Mapping[str, Any]] = {"before": BEFORE, "defaults": {}}
N_WORDS = 24
SAID = (2, 12)
"""Fewest and most trials that say a chosen word."""
OTHERS = 3
"""One of so many of the trials without the word is decoded."""


def chosen_words(references: Sequence[Sequence[str]]) -> list[str]:
    """Return the hotwords of the study."""
    counts = Counter(word for reference in references for word in set(reference))
    low, high = SAID
    known = sorted(word for word, n in counts.items() if low <= n <= high and len(word) > 2)
    found: list[str] = np.random.default_rng(0).choice(known, N_WORDS, replace=False).tolist()
    return found


def measure(
    decoder: Decoder, utterances: Sequence[Utterance], words: Sequence[str], bonus: float
) -> dict[str, int]:
    """Count the trials with and without a hotword, and those of each whose sentence has it."""
    counts = dict.fromkeys(("said", "found", "not_said", "false"), 0)
    for word in words:
        for number, utterance in enumerate(utterances):
            is_said = word in normalize(utterance.reference).split()
            if not is_said and number % OTHERS:
                continue
            new = () if word in decoder else (word,)
            stream = decoder.stream(INVENTORY, words=new, hotwords={word: bonus})
            stream.step(utterance.log_probs_PV)
            has_it = word in stream.finish()[0].text.split()
            counts["said" if is_said else "not_said"] += 1
            counts["found" if is_said else "false"] += has_it
    return counts


def main() -> None:
    parser = study_arguments(__doc__)
    parser.add_argument("--demo", type=Path, default=Path("runs/demo"))
    arguments = parser.parse_args()
    utterances, _ = evaluation_posteriors(arguments.demo / "eval")
    words = chosen_words([normalize(each.reference).split() for each in utterances])
    text = (arguments.demo / "data" / "text" / "lm.txt").read_text().splitlines()
    without = [line for line in text if not set(normalize(line).split()) & set(words)]
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        LanguageModel.build(without, 4, Path(folder) / "lm")
        for kind, lm in (("known", arguments.demo / "lm"), ("name", Path(folder) / "lm")):
            for name, options in OPTIONS.items():
                decoder = Decoder.from_dir(lm, {**options, "nbest": 1})
                for bonus in BONUSES:
                    counts = measure(decoder, utterances, words, bonus)
                    rows.append({"words": kind, "options": name, "bonus": bonus, **counts})
    print(table(rows))
    write_result(arguments.json, {"words": words, "rows": rows, "provenance": provenance()})


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return recall and false insertions in %, a line for each bonus."""
    columns = [(kind, name) for kind in ("known", "name") for name in OPTIONS]
    lines = [
        [
            bonus,
            *(
                f"{100 * row['found'] / row['said']:.0f} / {100 * row['false'] / row['not_said']:.1f}"
                for kind, name in columns
                for row in rows
                if (row["words"], row["options"], row["bonus"]) == (kind, name, bonus)
            ),
        ]
        for bonus in BONUSES
    ]
    return markdown_table(["bonus", *(f"{kind}, {name}" for kind, name in columns)], lines)


if __name__ == "__main__":
    main()
