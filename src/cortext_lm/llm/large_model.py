"""A large language model beside the n-gram of a `Decoder`.

It ranks the sentences, and may take part in the search.
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from cortext.decoding.nbest import Hypothesis, NBest
from cortext.decoding.options import DecoderOptions
from cortext.errors import DecodingError, LanguageModelError, first_line
from cortext.text.language import EN, Language
from cortext_lm.llm.augment import augmented
from cortext_lm.llm.explain import ENDS
from cortext_lm.llm.fusion import Fusion, FusionStats
from cortext_lm.llm.model import CausalLM
from cortext_lm.llm.scoring import TokenScore, score_texts

LISTS_AT_ONCE = 16
"""Number of lists that are ranked together; where that fails, each is ranked by itself."""


class _Patience:
    """Calls functions, and waits for each no longer than `limit_s` seconds (None: to its end).

    A call that takes longer continues in its thread. Until it ends, there is no other one: it holds
    the model.
    """

    def __init__(self) -> None:
        self.limit_s: float | None = None
        self._late: threading.Thread | None = None

    def call(self, function: Callable[[], Any]) -> Any:
        """Return what a function returns; raises its error, or LanguageModelError if it is late."""
        if self.limit_s is None:
            return function()
        if self._late is not None and self._late.is_alive():
            raise LanguageModelError("it is still busy with an earlier sentence")
        ended: list[tuple[Any, BaseException | None]] = []

        def run() -> None:
            try:
                ended.append((function(), None))
            except BaseException as error:
                ended.append((None, error))

        thread = threading.Thread(target=run, name="cortext-llm", daemon=True)
        thread.start()
        thread.join(self.limit_s)
        if not ended:
            self._late = thread
            raise LanguageModelError(f"it gave no answer within {self.limit_s:g} s")
        result, error = ended[0]
        if error is not None:
            raise error
        return result


class LLM:
    """A causal language model as `Decoder.with_llm` takes it. Threads and decoders may share one.

    Attributes:
        lm: The model.
        fusion: Counts of its part in the searches of all utterances that have ended so far.
        language: Language of the sentences, as which the model reads them.
    """

    def __init__(self, lm: CausalLM, language: Language = EN) -> None:
        self.lm = lm
        self.language = language
        self.fusion = FusionStats()
        self._patience = _Patience()

    @classmethod
    def load(cls, name: str | Path, lora: str | Path | None = None, device: str = "auto") -> Self:
        """Load the model of a directory or of the Hugging Face Hub; errors as in `CausalLM.load`.

        Args:
            name: Directory or name on the Hub.
            lora: Directory of a LoRA adapter to merge into the weights; None for none.
            device: `cpu`, `cuda`, `cuda:N`, or `auto`: a GPU where there is one.
        """
        return cls(CausalLM.load(name, lora, device))

    @staticmethod
    def check(name: str | Path, lora: str | Path | None = None) -> None:
        """Raise LanguageModelError where `load` would find no such model; no weights are read."""
        CausalLM.check(name, lora)

    def in_language(self, language: Language) -> LLM:
        """Return the same model, with the same counts, for sentences of a language."""
        if language == self.language:
            return self
        other = copy.copy(self)
        other.language = language
        return other

    def wait_at_most(self, seconds: float | None) -> None:
        """Bound the wait for the model, at the end of an utterance; None waits for ever.

        A sentence whose scores come later is the n-gram's.
        """
        self._patience.limit_s = seconds

    def in_time(self, function: Callable[[], Any]) -> Any:
        """Return what a function that asks the model returns; LanguageModelError if it is late."""
        return self._patience.call(function)

    def describe(self) -> dict[str, Any]:
        """Return facts about the model for a result file."""
        return self.lm.describe()

    def forget_notes(self) -> None:
        """Drop the notes that were added in use; notes about the model itself stay."""
        self.lm.forget_notes()

    def search_options(self, options: DecoderOptions) -> DecoderOptions:
        """Return the options that the search gets.

        Fusion needs more words of history, and it always interpolates. Adding w * llm to
        lm_weight * ngram is the same as interpolation with w / (lm_weight + w) at a weight of
        lm_weight + w. So the n-gram's look-ahead for an unfinished word is as large as the finished
        word's score.
        """
        llm = options.llm
        if not llm.weight or llm.mode != "fusion":
            return options
        changes: dict[str, Any] = {"history_words": max(options.history_words, llm.history_words)}
        if llm.form == "add":
            both = options.lm_weight + llm.weight
            changes["lm_weight"] = both
            changes["llm"] = replace(llm, form="interpolate", weight=llm.weight / both)
        try:
            return options.changed(changes)
        except DecodingError as error:
            sizes = (
                f"lm_weight {options.lm_weight:g} and llm.weight {llm.weight:g} are too much"
                " together"
            )
            raise DecodingError(
                f"{sizes}: {error.what}", fix="make all weights and acoustic_scale smaller"
            ) from None

    def hook(self, options: DecoderOptions, context: str) -> Fusion | None:
        """Return the hook that adds the model's scores to the live hypotheses of one utterance.

        None where the model only ranks at the end.
        """
        if not options.llm.weight or options.llm.mode != "fusion":
            return None
        patience_s = self._patience.limit_s
        return Fusion(self.lm, options, context, self.fusion, self.language, patience_s)

    def rank(
        self,
        lists: Sequence[NBest],
        options: DecoderOptions,
        context: str = "",
        progress: Callable[[int, int], None] | None = None,
    ) -> list[NBest]:
        """Return each list with the model's scores, best first, and with exchanged words.

        A weight of 0 leaves the lists as they are, but takes out scores that the model added in a
        search with another weight. Where the model fails, the n-gram's list is returned, and says
        why in `degraded`.

        Args:
            lists: N-best list of each utterance, as the search found it.
            options: Weights of all scores.
            context: The preceding text; the same for all lists.
            progress: Called with lists done and in all.
        """
        if not options.llm.weight:
            return [_without(nbest, options, nbest.degraded) for nbest in lists]
        ranked: list[NBest] = []
        for start in range(0, len(lists), LISTS_AT_ONCE):
            ranked += self._rank(lists[start : start + LISTS_AT_ONCE], options, context)
            if progress:
                progress(len(ranked), len(lists))
        return ranked

    def _rank(self, lists: Sequence[NBest], options: DecoderOptions, context: str) -> list[NBest]:
        try:
            read = self.in_time(lambda: self.read(lists, options, context))
        except ENDS:
            raise
        except (
            BaseException
        ) as error:  # a tokenizer or a model raises anything; no sentence may be lost for it
            why = str(error) if isinstance(error, LanguageModelError) else first_line(error)
        else:
            return [
                ranked(one, options, nbest.degraded) for one, nbest in zip(read, lists, strict=True)
            ]
        if len(lists) > 1:  # not before the error is gone, with the memory that it holds
            return [self._rank([nbest], options, context)[0] for nbest in lists]
        return [_without(nbest, options, f"without the large model: {why}") for nbest in lists]

    def read(
        self, lists: Sequence[NBest], options: DecoderOptions, context: str = ""
    ) -> list[list[tuple[Hypothesis, TokenScore]]]:
        """Score the sentences of each list, and those made by exchanging words, with the model.

        Args:
            lists: N-best lists of the search.
            options: `llm.augment`, `llm.augment_penalty` and `llm.variants`, and the weights that
                exchanged words need.
            context: The preceding text; the same for all lists.

        Returns:
            Hypotheses and scores of each list, from which `ranked` makes lists for any weights.

        Raises:
            LanguageModelError: Where the model fails.
        """
        llm = options.llm
        longer = [augmented(nbest, options, llm.augment, llm.augment_penalty) for nbest in lists]
        texts = list(
            dict.fromkeys(hypothesis.text for hypotheses in longer for hypothesis in hypotheses)
        )
        of_texts = score_texts(
            self.lm,
            list(map(self._as_written, texts)),
            context,
            llm.variants,
            language=self.language,
        )
        scores = dict(zip(texts, of_texts, strict=True))
        return [
            [(hypothesis, scores[hypothesis.text]) for hypothesis in hypotheses]
            for hypotheses in longer
        ]

    def _as_written(self, text: str) -> str:
        """Return a sentence as people write it: the search sets words apart by blanks."""
        return text if self.language.unit == "word" else self.language.joined(text.split())


def ranked(
    read: Sequence[tuple[Hypothesis, TokenScore]],
    options: DecoderOptions,
    degraded: str | None = None,
) -> NBest:
    """Return hypotheses by their total scores, best first, with the share of each in the list.

    Args:
        read: Hypotheses and the large model's scores of their texts, as `LLM.read` gives them.
        options: Weights of all scores.
        degraded: One line that names a part missing in the list; None where nothing is.
    """
    scored: list[Hypothesis] = []
    for hypothesis, of_llm in read:
        log_prob = (
            of_llm.log_prob - options.llm.token_penalty * of_llm.n_tokens
            if of_llm.n_tokens
            else None
        )
        hypothesis = replace(hypothesis, llm_score=log_prob)
        scored.append(replace(hypothesis, score=_score(hypothesis, options)))
    scored.sort(key=lambda hypothesis: -hypothesis.score)
    best = scored[0].score if scored else 0.0
    parts = [
        math.exp(hypothesis.score - best) if math.isfinite(best) else 1.0 for hypothesis in scored
    ]
    total = math.fsum(parts)
    return NBest(
        (
            replace(hypothesis, confidence=part / total)
            for hypothesis, part in zip(scored, parts, strict=True)
        ),
        degraded,
    )


def _score(hypothesis: Hypothesis, options: DecoderOptions) -> float:
    """Return the total score. A sentence without tokens has the n-gram's score as the model's."""
    ngram, llm = options.llm.shares(options.lm_weight)
    of_llm = hypothesis.lm_score if hypothesis.llm_score is None else hypothesis.llm_score
    rest = (
        options.word_score * len(hypothesis.text.split())
        + hypothesis.sil_score
        + hypothesis.hotword_score
    )
    models = sum(
        share * log_prob
        for share, log_prob in ((ngram, hypothesis.lm_score), (llm, of_llm))
        if share
    )
    # `models` leaves out parts with share 0, because 0 * -inf is NaN.
    return options.acoustic_scale * hypothesis.acoustic_score + models + rest


def _without(nbest: NBest, options: DecoderOptions, degraded: str | None) -> NBest:
    """Return the list as the n-gram ranks it, without the large model's part in the scores."""
    if all(hypothesis.llm_score is None and hypothesis.confidence is None for hypothesis in nbest):
        return nbest if degraded == nbest.degraded else NBest(nbest, degraded)
    plain = options.changed({"llm": {"weight": 0.0}})
    scored = [replace(hypothesis, llm_score=None, confidence=None) for hypothesis in nbest]
    scored = [replace(hypothesis, score=_score(hypothesis, plain)) for hypothesis in scored]
    return NBest(sorted(scored, key=lambda hypothesis: -hypothesis.score), degraded)
