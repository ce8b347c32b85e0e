"""Combination of several systems' sentences into one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cortext.arguments import check_list, check_type
from cortext.errors import DecodingError, LanguageModelError
from cortext.processes import Progress
from cortext.text.language import EN, Language
from cortext_lm.ensemble.candidates import (
    Candidates,
    Weighted,
    least_risk,
    sentence_of,
    weighted,
)
from cortext_lm.ensemble.correct import Corrector, correct
from cortext_lm.ensemble.options import EnsembleOptions
from cortext_lm.ensemble.rover import Ngram, build_network, vote, vote_with_lm


@dataclass(frozen=True, slots=True)
class Combined:
    """The sentence combined of several systems.

    Attributes:
        words: Words, normalised as they are scored.
        degraded: One line that names a part missing here or in a system's list, such as the large
            model's scores; None where nothing is missing.
        language: Normalisation of the words.
    """

    words: tuple[str, ...]
    degraded: str | None = None
    language: Language = EN

    @property
    def text(self) -> str:
        """The sentence that normalising turns into `words`."""
        return sentence_of(self.words, self.language)


def combine(
    trials: Sequence[Candidates],
    options: EnsembleOptions | None = None,
    *,
    lm: Ngram | None = None,
    llm: Corrector | None = None,
    progress: Progress | None = None,
) -> list[Combined]:
    """Combine the candidates of each trial's systems into one sentence.

    Where all systems have the same words, these are the result. Only `correct` with `free` asks the
    model all the same.

    Args:
        trials: Candidates of each system, trial by trial.
        options: The method and its settings; None: the defaults.
        lm: n-gram, for the method `rover-lm`: a `cortext.decoding.ngram.LanguageModel`.
        llm: A `LargeCorrector`, for the method `correct`.
        progress: Called with trials done and in all.

    Raises:
        DecodingError: For a method without the model that it needs, and for `average`, which needs
            more than sentences (`combine_runs`).
    """
    options = EnsembleOptions.of(options)
    check_method(options, lm is not None, llm is not None)
    combined = []
    for number, trial in enumerate(check_list(trials, "trials", "a list of Candidates"), 1):
        check_type(trial, Candidates, f"trial {number}", "Candidates")
        result = _combine_one(weighted(trial, options), options, lm, llm, trial.language)
        degraded = result.degraded or trial.degraded
        combined.append(Combined(result.words, degraded, trial.language))
        if progress:
            progress(number, len(trials))
    return combined


def check_method(options: EnsembleOptions, has_lm: bool, has_llm: bool) -> None:
    """Raise DecodingError unless the method has what it needs to combine sentences.

    Args:
        options: The method and its settings.
        has_lm: Whether there is an n-gram.
        has_llm: Whether there is a large language model.
    """
    if options.method == "average":
        raise DecodingError(
            "average needs logits, and there are only sentences", fix="give evaluation directories"
        )
    if options.method == "rover-lm" and not has_lm:
        raise DecodingError(
            "rover-lm needs an n-gram", fix="give a language-model directory with --lm"
        )
    if options.method == "correct" and not has_llm:
        raise DecodingError("correct needs a large language model", fix="give one with --llm")


def _combine_one(
    candidates: Sequence[Weighted],
    options: EnsembleOptions,
    lm: Ngram | None,
    llm: Corrector | None,
    language: Language,
) -> Combined:
    if len(candidates) == 1 and not (options.method == "correct" and options.free):
        return Combined(candidates[0].words)
    if options.method == "mbr":
        return Combined(candidates[least_risk(candidates)].words)
    slots = build_network(candidates)
    if options.method == "correct" and llm is not None:
        try:
            return Combined(correct(candidates, slots, options, llm, language))
        except LanguageModelError as error:
            return Combined(candidates[least_risk(candidates)].words, f"no large model: {error}")
    if options.method == "rover-lm" and lm is not None:
        return Combined(vote_with_lm(slots, options, lm))
    return Combined(vote(slots, options))
