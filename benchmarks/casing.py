"""Capitals and marks of shown sentences: a trained model beside the rules, on held-out sentences.

    python benchmarks/casing.py [--prompts FILE] [--json FILE]

Materials: the simulator's sentences, English and Spanish, which ship with cortext; and with
--prompts a file of prompts, one a line, with capitals and marks. A fifth of the sentences of each
is held out, chosen by the words of a sentence, whatever file it stands in. Models learn from the
rest of one English material, of both, and of the Spanish one. They are measured on single
sentences, and on two that are said without a pause.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import cortext_data
from cortext.processes import threads
from cortext.provenance import provenance
from cortext.text.language import EN, get_language
from cortext_bench.harness import markdown_table, study_arguments, write_result
from cortext_live.casing import RuleCaser
from cortext_live.casing.model import ModelCaser
from cortext_live.casing.rules import case_english
from cortext_live.casing.scores import CasingScores
from cortext_live.casing.texts import Sentence, part_of, read_sentences
from cortext_live.casing.train import CasingOptions, fit_caser, scored

SHIPPED = Path(cortext_data.__file__).parent / "simulate"
SIMULATOR = [SHIPPED / "text" / f"{name}.txt" for name in ("care", "home", "people", "world")]
SPANISH = [SHIPPED / "spanish" / "text.txt"]
HELD_OUT = range(4)
"""Parts of twenty that are measured; the next one decides which weights are kept."""
DECIDES = 4
CANDIDATES = 20
"""Sentences of the longest n-best list that a page gets."""


def parted(sentences: Sequence[Sentence]) -> dict[str, list[Sentence]]:
    """Return the sentences to learn from, to decide, and to measure, and the last two by two."""
    held_out = [each for each in sentences if part_of(each) in HELD_OUT]
    pairs = zip(held_out[::2], held_out[1::2], strict=False)
    return {
        "learnt": [each for each in sentences if part_of(each) > DECIDES],
        "decides": [each for each in sentences if part_of(each) == DECIDES],
        "single": held_out,
        "two": [
            Sentence(one.words + other.words, one.shown + other.shown, other.ends)
            for one, other in pairs
            if one.ends
        ],
    }


def rules(sentences: Sequence[Sentence]) -> CasingScores:
    """Count what the rules of English make of sentences."""
    scores = CasingScores()
    for sentence in sentences:
        scores.add(sentence, case_english(sentence.words))
    return scores


def times_ms(caser: ModelCaser | RuleCaser, sentences: Sequence[Sentence]) -> dict[str, float]:
    """Return milliseconds of processor time for a sentence alone, and for a list of candidates."""
    texts = [" ".join(sentence.words) for sentence in sentences]
    found = {}
    for name, count in (("sentence", 1), ("candidates", CANDIDATES)):
        taken = []
        for at in range(0, min(len(texts), 500)):
            started = time.thread_time()
            caser.show([texts[at]] * count)
            taken.append(1000 * (time.thread_time() - started))
        found[f"{name}_p50"] = float(np.median(taken))
        found[f"{name}_p99"] = float(np.quantile(taken, 0.99))
    return found


def main() -> None:
    parser = study_arguments(__doc__)
    parser.add_argument("--prompts", type=Path, help="prompts with capitals and marks, one a line")
    arguments = parser.parse_args()
    english = {"simulator": parted(read_sentences(SIMULATOR, EN))}
    if arguments.prompts:
        english["prompts"] = parted(read_sentences([arguments.prompts], EN))
    spanish = {"Spanish": parted(read_sentences(SPANISH, get_language("es")))}
    rows: list[dict[str, Any]] = []
    trained: dict[str, Any] = {}
    times: dict[str, Any] = {}
    with threads(1):
        for name, materials in english.items():
            for kind in ("single", "two"):
                figures = rules(materials[kind]).to_json()
                rows.append({"caser": "rules", "text": name, "said": kind, **figures})
        sources = [*((name,) for name in english), tuple(english)][: 3 if len(english) > 1 else 1]
        for names in (*sources, ("Spanish",)):
            measured = spanish if names == ("Spanish",) else english
            language = get_language("es") if measured is spanish else EN
            caser, facts = fit_caser(
                [each for name in names for each in measured[name]["learnt"]],
                [each for name in names for each in measured[name]["decides"]],
                language,
                CasingOptions(),
            )
            of = " and ".join(names)
            trained[of] = facts
            for name, materials in measured.items():
                for kind in ("single", "two"):
                    figures = scored(caser, materials[kind]).to_json()
                    rows.append({"caser": of, "text": name, "said": kind, **figures})
            times[of] = times_ms(caser, next(iter(measured.values()))["single"])
        times["rules"] = times_ms(RuleCaser(), english["simulator"]["single"])
    print(table(rows))
    for of, figures in times.items():
        print(of, {name: round(ms, 2) for name, ms in figures.items()})
    result = {"rows": rows, "trained": trained, "times_ms": times, "provenance": provenance()}
    write_result(arguments.json, result)


def table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the figures in %, a line for each text and caser."""
    ordered = sorted(rows, key=lambda row: (row["text"], row["said"]))
    columns = ["text", "said", "by", "words", "names", *(f"F1 of {mark}" for mark in ",.?!")]
    return markdown_table(
        [*columns, "sentences"],
        [
            [
                row["text"],
                row["said"],
                row["caser"],
                _percent(row["case_accuracy"]),
                _percent(row["inner_capitals_right"]),
                *(_percent(row["f1"][mark]) for mark in ",.?!"),
                _percent(row["sentences_right"]),
            ]
            for row in ordered
        ],
    )


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}"


if __name__ == "__main__":
    main()
