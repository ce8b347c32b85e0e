"""BLEU of the decoded sentences, by sacrebleu where it is installed (the extra `bleu`)."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

HINT = "install sacrebleu for BLEU: pip install 'cortext[bleu]'"


def bleu(references: Sequence[str], hypotheses: Sequence[str]) -> float | None:
    """Corpus BLEU (0 to 100) of normalised sentences split at blanks.

    None without sacrebleu or sentences.
    """
    if not references or not available():
        return None
    from sacrebleu.metrics.bleu import BLEU

    # The sentences hold neither punctuation nor capitals any more, so that there is nothing left to
    # tokenise.
    return float(BLEU(tokenize="none").corpus_score(list(hypotheses), [list(references)]).score)


def available() -> bool:
    """Whether sacrebleu is installed."""
    return find_spec("sacrebleu") is not None
