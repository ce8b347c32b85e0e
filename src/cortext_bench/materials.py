"""Materials of every search: posteriors and the language model, built once and kept."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cortext.decoding.ngram import LanguageModel
from cortext.errors import DataError
from cortext.text.lexicon import Lexicon
from cortext.text.normalize import normalize
from cortext_bench.decoder.searcher import Paths
from cortext_bench.posteriors import halves, read_trials

ORDER = 5
STATIC_ORDER = 3
TRIALS = Path("phonemes", "t12_val_even.jsonl")
TEXTS = (Path("text", "transcripts_train.txt"), Path("text", "general_english.txt.gz"))


@dataclass(frozen=True)
class RealData:
    """The directory of real recordings and texts; raises DataError where it is absent."""

    root: Path

    @classmethod
    def find(cls) -> RealData:
        """Return the data in `$CORTEXT_REAL_DATA`, by default `../shared/data`."""
        root = Path(os.environ.get("CORTEXT_REAL_DATA", Path("..", "shared", "data")))
        for path in (TRIALS, *TEXTS):
            if not (root / path).is_file():
                raise DataError(
                    "is not there",
                    where=root / path,
                    fix="set CORTEXT_REAL_DATA to the real material",
                )
        return cls(root)

    @property
    def trials(self) -> Path:
        """The file of real trials."""
        return self.root / TRIALS


def language_models(
    data: RealData, cache: Path, static: bool, stage: Callable[[str], None] = lambda name: None
) -> Paths:
    """Return the 5-gram that all searches get and, if `static`, the 3-gram for static graphs.

    They are built where `cache` lacks them. The words are CMUdict's and the in-domain text's. Both
    texts become models of their own, mixed with the weights that suit the sentences of the tuning
    half best.

    Args:
        data: The real material.
        cache: Folder of the models.
        static: Whether the 3-gram is needed.
        stage: Called with the name of each stage of the work.
    """
    paths = Paths(cache / "lm", cache / "lm3", cache)
    in_domain = data.root / TEXTS[0]
    for directory, order in ((paths.lm, ORDER), (paths.static, STATIC_ORDER)):
        if (directory / "lm.json").is_file() or (directory == paths.static and not static):
            continue
        cache.mkdir(parents=True, exist_ok=True)
        held_out = cache / "held_out.txt"
        tuning, _ = halves(read_trials(data.trials))
        held_out.write_text("".join(f"{trial.reference}\n" for trial in tuning), encoding="utf-8")
        stage(f"building the {order}-gram")
        words = set(Lexicon.cmu())
        words.update(
            word for line in in_domain.read_text().splitlines() for word in normalize(line).split()
        )
        LanguageModel.build(
            [data.root / text for text in TEXTS],
            order,
            directory,
            sorted(word for word in words if word.strip("-'")),
            interpolate=True,
            held_out=held_out,
            keep_arpa=True,
        )
    return paths


def write_posteriors(path: Path, log_probs: list[np.ndarray]) -> None:
    """Write utterances where workers read them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez(path, **{str(number): log_probs_PV for number, log_probs_PV in enumerate(log_probs)})  # type: ignore[arg-type]


def lm_facts(paths: Paths) -> dict[str, Any]:
    """Return facts about a language model for a result file."""
    facts = LanguageModel.open(paths.lm).info()
    names = ("order", "counts", "binary", "bytes_per_ngram", "lexicon_words", "interpolation")
    return {"directory": str(paths.lm), "model_bytes": paths.model.stat().st_size} | {
        name: facts[name] for name in names if name in facts
    }
