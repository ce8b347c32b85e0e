"""Fitting of an ensemble's options on trials with known sentences.

Options are chosen from a short list, and nothing else is trained. So the errors of all trials under
all options are counted once; a choice only adds up columns.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from cortext.errors import DataError
from cortext.text.metrics import edit_counts
from cortext_lm.ensemble.candidates import Candidates
from cortext_lm.ensemble.combine import combine
from cortext_lm.ensemble.correct import Corrector
from cortext_lm.ensemble.options import EnsembleOptions
from cortext_lm.ensemble.rover import Ngram

TRIED: dict[str, dict[str, tuple[Any, ...]]] = {
    "mbr": {},
    "rover": {"null_weight": (1.0, 0.8, 1.5)},
    "rover-lm": {"null_weight": (1.0, 1.5), "lm_weight": (0.05, 0.02, 0.1, 0.2)},
    "correct": {"llm_weight": (0.02, 0.0, 0.005, 0.05, 0.1)},
}
"""Values that are tried for each method, the default first."""
TRIED_WITH_SCORES = {"score_scale": (1.0, 0.0, 0.1, 0.3)}
TRIED_WITH_CONFIDENCES = {"alpha": (1.0, 0.5)}

NOISE = 2.0
"""Standard errors by which other options must lead the first ones to be chosen.

Of many options one leads by chance; few lead by more than two standard errors.
"""


@dataclass(frozen=True)
class Fitted:
    """Options chosen by fitting.

    Attributes:
        options: The chosen options.
        wer: Their WER on the trials that they were fitted on.
        baseline: WER of the first options of the list on the same trials.
        tried: Number of options that were tried.
    """

    options: EnsembleOptions
    wer: float
    baseline: float
    tried: int


def tried_options(
    base: EnsembleOptions, methods: Iterable[str], trials: Sequence[Candidates]
) -> list[EnsembleOptions]:
    """Return the options to try: `base` with every combination of a method's values in `TRIED`.

    `score_scale` is tried where a candidate has a score, and `alpha` of the rovers where one has
    confidences.

    Args:
        base: Options whose other fields are kept.
        methods: Names of the methods to try.
        trials: Trials that the options will be fitted on.

    Raises:
        DataError: For a method that is not in `TRIED`.
    """
    candidates = [candidate for trial in trials for system in trial.systems for candidate in system]
    tried = []
    for method in methods:
        if method not in TRIED:
            raise DataError(
                f"{method} has no options that can be fitted", fix=f"fit one of {', '.join(TRIED)}"
            )
        values = dict(TRIED[method])
        if any(candidate.score is not None for candidate in candidates):
            values |= TRIED_WITH_SCORES
        if method.startswith("rover") and any(
            candidate.confidences is not None for candidate in candidates
        ):
            values |= TRIED_WITH_CONFIDENCES
        for chosen in itertools.product(*values.values()):
            tried.append(base.changed({"method": method} | dict(zip(values, chosen, strict=True))))
    return tried


def count_errors(
    trials: Sequence[Candidates],
    tried: Sequence[EnsembleOptions],
    lm: Ngram | None = None,
    llm: Corrector | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Count the word errors of each trial under each of the options.

    Args:
        trials: Trials with references.
        tried: The options.
        lm: See `combine`.
        llm: See `combine`.
        progress: Called with options done and in all.

    Returns:
        Word errors, int64 [trials, options], and words of each reference, int64 [trials].

    Raises:
        DataError: For a trial without a reference.
    """
    references = []
    for trial in trials:
        if (reference := trial.reference_words) is None:
            raise DataError(
                "has no reference, and options cannot be fitted", where=f"trial {trial.id}"
            )
        references.append(reference)
    errors_NK = np.zeros((len(trials), len(tried)), dtype=np.int64)
    for k, options in enumerate(tried):
        for n, combined in enumerate(combine(trials, options, lm=lm, llm=llm)):
            errors_NK[n, k] = edit_counts(references[n], combined.words).errors
        if progress:
            progress(k + 1, len(tried))
    return errors_NK, np.array([len(words) for words in references], dtype=np.int64)


def choose(errors_NK: np.ndarray) -> int:
    """Return the number of the options with the fewest errors, of errors [trials, options].

    The first options are kept unless the lead of others is beyond its noise. The lead is the sum
    over trials of the difference in errors, its noise `NOISE` standard errors of that sum. Trials
    are taken to be independent.
    """
    lead_NK = errors_NK[:, :1] - errors_NK
    best = int(np.argmax(lead_NK.sum(axis=0)))
    noise = NOISE * float(np.sqrt(len(lead_NK)) * lead_NK[:, best].std())
    return best if lead_NK[:, best].sum() > noise else 0


def fit(
    trials: Sequence[Candidates],
    tried: Sequence[EnsembleOptions],
    lm: Ngram | None = None,
    llm: Corrector | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Fitted:
    """Return the best of the options (`choose`).

    Args:
        trials: Trials with references.
        tried: The options; the first ones are the baseline.
        lm: See `combine`.
        llm: See `combine`.
        progress: Called with options done and in all.

    Raises:
        DataError: For a trial without a reference, and for references without a word.
    """
    errors_NK, length_N = count_errors(trials, tried, lm, llm, progress)
    if not length_N.sum():
        raise DataError("the references have no words, and options cannot be fitted")
    best = choose(errors_NK)
    wer_K = errors_NK.sum(axis=0) / length_N.sum()
    return Fitted(tried[best], float(wer_K[best]), float(wer_K[0]), len(tried))
