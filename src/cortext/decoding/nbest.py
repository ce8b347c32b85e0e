"""Candidate sentences as JSON objects."""

from __future__ import annotations

import math
from typing import Any

from cortext.decoding.options import Hypothesis


def hypothesis_json(hypothesis: Hypothesis) -> dict[str, Any]:
    """A hypothesis as `nbest.jsonl` has it.

    Text, scores (natural logs) and words with their times and confidences.

    Where a large model ranked the list, `confidence` is the sentence's share of its probability.
    """
    ranked = {} if hypothesis.confidence is None else {"confidence": _finite(hypothesis.confidence)}
    return {
        "text": hypothesis.text,
        "score": _finite(hypothesis.score),
        "acoustic": _finite(hypothesis.acoustic_score),
        "ngram": _finite(hypothesis.lm_score),
        "llm": _finite(hypothesis.llm_score),
        **ranked,
        "words": [
            {
                "word": word.word,
                "start_ms": _finite(word.start_ms),
                "end_ms": _finite(word.end_ms),
                "confidence": _finite(word.confidence),
            }
            for word in hypothesis.words
        ],
    }


def _finite(number: float | None) -> float | None:
    """JSON has no infinity: such a score is null."""
    return float(number) if number is not None and math.isfinite(number) else None
