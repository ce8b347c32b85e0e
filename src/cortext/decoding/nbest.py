"""Results of the word search: words, hypotheses, n-best lists. Scores are natural logarithms.

A sentence w1 ... wn is read from a sequence of one token per frame by the rules of CTC (repeats
joined, then blanks removed) if what remains is

    SIL* pron(w1) SIL* pron(w2) ... SIL* pron(wn) SIL*

with any pronunciation of each word. SIL may stand before, between and after words any number of
times and is never required (unless `sil_required` asks for one between words); entering a word
directly after the last phoneme of another costs `sil_cost`, the start and the end of the sentence
cost nothing. Two equal phonemes that meet at a word boundary need a blank (or SIL) between them, as
within a word.

SIL stands here for what the inventory has between words, a silence or a boundary. With neither,
nothing stands there, entering a word costs nothing, and `sil_cost` and `sil_required` do not apply.

A path is one token per frame, read as words in one way (`AA B` may be two ways to read one
sentence, as where one word has the pronunciations `AA` and `AA B`). Its score is the sum of
`Hypothesis.score`, with

    acoustic: sum of log-probabilities - log(blank_penalty) per blank
              - prior_weight * log(label prior) per token + log weight of each pronunciation
    ngram:    log p(w1 ... wn </s>) + unk_score for each word that the n-gram does not know
              (such a word has the n-gram's `<unk>` probability)
    sil:      -sil_cost for each boundary between words without SIL

The score of a *sentence* joins all its paths: the log of the sum of their exponentials (`logadd`)
or their maximum (`max`). It is exact and does not depend on the beam, which decides which sentences
are found. Log-probabilities below -1000 count as -1000, so that every sentence that fits into the
frames has a finite score. In frames that are passed over (`blank_skip`) the blank is the only
token.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from numbers import Real
from typing import Any, overload

from cortext.arguments import check_list, check_text, check_type
from cortext.describe import Described

FRAME_MS = 80.0
"""Frame p of the search stands for the time from 80 p to 80 (p + 1) ms.

A patch of the release begins every 4 bins of 20 ms (and sees 14). `NBest.timed` gives the times of
other frames.
"""
_SHOWN = 10
"""Hypotheses that a notebook shows of a list."""


@dataclass(frozen=True, slots=True)
class Word:
    """A decoded word with its time in the trial.

    Attributes:
        confidence: Probability that the word is right: from a run's calibration where the decoder
            has one, else the search's posterior. None where neither is known.
        posterior: The search's posterior, where `confidence` is calibrated; None elsewhere.
    """

    word: str
    start_ms: float
    end_ms: float
    confidence: float | None = None
    posterior: float | None = None


@dataclass(frozen=True, slots=True, repr=False)
class Hypothesis(Described):
    """A sentence of an n-best list. Scores are natural logs.

        score = acoustic_scale * acoustic_score + lm_weight * lm_score
                + word_score * len(words) + sil_score + hotword_score + llm_score

    With a large language model `LLMOptions` defines the n-gram's part. The top of this module
    defines the terms of one path.

    Attributes:
        score: The sum above.
        lm_score: Unscaled log-probability of the n-gram, sentence end and unknown-word scores
            included.
        sil_score: -sil_cost for every word that follows another without SIL on the sentence's best
            path.
        acoustic_score: The rest of `score`, unscaled: the log-probability of the best path (`max`)
            or of all paths (`logadd`). With a sil_cost it includes the difference in cost of paths
            with other silences than the best one's.
        hotword_score: The bonuses of its words.
        llm_score: Unscaled log-probability of a large language model, or the sum of what a hook
            added; None without either.
        confidence: Share of the sentence in the summed probabilities of its list, where a large
            model ranked it.
    """

    text: str
    score: float
    acoustic_score: float
    lm_score: float
    words: tuple[Word, ...] = ()
    llm_score: float | None = None
    sil_score: float = 0.0
    hotword_score: float = 0.0
    confidence: float | None = None

    def __post_init__(self) -> None:
        check_text(self.text, "text")
        for score in (self.score, self.acoustic_score, self.lm_score):
            check_type(score, Real, "a score", "a number")
        for word in check_list(self.words, "words", "a tuple of Word"):
            check_type(word, Word, "a word", "a Word")

    def _facts(self) -> dict[str, Any]:
        return {
            "text": repr(self.text),
            "score": self.score,
            "acoustic": self.acoustic_score,
            "n-gram": self.lm_score,
            "large model": self.llm_score,
        }

    def _table(self) -> tuple[Sequence[str], Sequence[Sequence[Any]]] | None:
        rows = [
            (word.word, f"{word.start_ms:.0f}", f"{word.end_ms:.0f}", word.confidence)
            for word in self.words
        ]
        return (("word", "from ms", "to ms", "confidence"), rows) if rows else None


class NBest(Sequence[Hypothesis], Described):
    """An n-best list: hypotheses, best first; never empty (silence gives one with empty text).

    Attributes:
        degraded: One line that names a requested part that is missing, such as a large language
            model's scores; None where nothing is missing.
        confidence: Probability that the best sentence is right in all words, from a run's
            calibration; None without one, and for a sentence without words.
    """

    degraded: str | None = None
    confidence: float | None = None
    _shown_as = "NBest"

    def __init__(
        self,
        hypotheses: Iterable[Hypothesis],
        degraded: str | None = None,
        confidence: float | None = None,
    ) -> None:
        self._hypotheses = tuple(check_list(hypotheses, "hypotheses", "a list of Hypothesis"))
        for hypothesis in self._hypotheses:
            check_type(hypothesis, Hypothesis, "a hypothesis", "a Hypothesis")
        self.degraded = degraded
        self.confidence = confidence

    @property
    def hypotheses(self) -> tuple[Hypothesis, ...]:
        """All hypotheses, best first."""
        return self._hypotheses

    @property
    def texts(self) -> list[str]:
        """The text of each."""
        return [hypothesis.text for hypothesis in self]

    def timed(self, frame_ms: float) -> NBest:
        """Return the list with word times for frames of `frame_ms` instead of `FRAME_MS`."""
        if frame_ms == FRAME_MS:
            return self
        by = frame_ms / FRAME_MS
        timed = []
        for hypothesis in self:
            words = [
                replace(word, start_ms=word.start_ms * by, end_ms=word.end_ms * by)
                for word in hypothesis.words
            ]
            timed.append(replace(hypothesis, words=tuple(words)))
        return NBest(timed, self.degraded, self.confidence)

    @overload
    def __getitem__(self, index: int) -> Hypothesis: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Hypothesis, ...]: ...
    def __getitem__(self, index: int | slice) -> Hypothesis | tuple[Hypothesis, ...]:
        return self.hypotheses[index]

    def __len__(self) -> int:
        return len(self.hypotheses)

    def __iter__(self) -> Iterator[Hypothesis]:
        return iter(self.hypotheses)

    def __eq__(self, other: object) -> bool:
        return self.hypotheses == other.hypotheses if isinstance(other, NBest) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.hypotheses)

    def _facts(self) -> dict[str, Any]:
        return {
            "hypotheses": len(self),
            "best": repr(self[0].text) if self.hypotheses else None,
            "score": self[0].score if self.hypotheses else None,
            "confidence": self.confidence,
            "lacks": self.degraded,
        }

    def _table(self) -> tuple[Sequence[str], Sequence[Sequence[Any]]]:
        ranked = any(hypothesis.llm_score is not None for hypothesis in self)
        header = ("text", "score", "acoustic", "n-gram", *(["large model"] if ranked else []))
        rows = [
            (h.text, *(f"{score:.2f}" for score in scores if score is not None))
            for h in self[:_SHOWN]
            for scores in [(h.score, h.acoustic_score, h.lm_score, h.llm_score)]
        ]
        return header, rows


@dataclass(frozen=True, slots=True)
class Partial:
    """The words of a stream in mid-sentence.

    Attributes:
        stable: Words that will not change any more.
        tail: The current guess after them.
    """

    stable: str
    tail: str

    @property
    def text(self) -> str:
        """The whole current guess."""
        return f"{self.stable} {self.tail}".strip()


def hypothesis_json(hypothesis: Hypothesis) -> dict[str, Any]:
    """Return a hypothesis as `nbest.jsonl` has it.

    Text, scores (natural logs) and words with their times and confidences; `posterior` stands
    beside a confidence that is calibrated. Where a large model ranked the list, `confidence` is the
    sentence's share of its probability.
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
                **({} if word.posterior is None else {"posterior": _finite(word.posterior)}),
            }
            for word in hypothesis.words
        ],
    }


def _finite(number: float | None) -> float | None:
    """Return the number; JSON has no infinity: such a score is null."""
    return float(number) if number is not None and math.isfinite(number) else None
