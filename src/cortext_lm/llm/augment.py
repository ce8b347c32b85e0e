"""More candidates for a large model, made by exchanging words between the best ones.

The exchange follows language_model/language-model-standalone.py of the public NEJM 2024 release.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from cortext.decoding.nbest import Hypothesis
from cortext.decoding.options import DecoderOptions
from cortext.text.metrics import align


def augmented(
    hypotheses: Sequence[Hypothesis], options: DecoderOptions, top: int, penalty_fraction: float
) -> list[Hypothesis]:
    """Return the hypotheses and those made by exchanging words between them, best first.

    Two sentences of equal length exchange the words in which they differ, one at a time. A new
    sentence has the mean of their scores, less a fraction of the mean's size.

    Args:
        hypotheses: Hypotheses, best first.
        options: `acoustic_scale` and `lm_weight` weigh the scores.
        top: Number of the best hypotheses that exchange words.
        penalty_fraction: Fraction of its acoustic and n-gram score that a new hypothesis loses.
    """
    known = {hypothesis.text for hypothesis in hypotheses}
    made: list[Hypothesis] = []
    best = [(hypothesis, hypothesis.text.split()) for hypothesis in hypotheses[:top]]
    for number, (left, left_words) in enumerate(best):
        for right, right_words in best[number + 1 :]:
            if len(left_words) != len(right_words):
                continue
            for one, other, at, word in _exchanges((left, left_words), (right, right_words)):
                text = " ".join([*one.text.split()[:at], word, *one.text.split()[at + 1 :]])
                if text not in known:
                    known.add(text)
                    made.append(_between(text, one, other, at, options, penalty_fraction))
    # The sort is stable: at equal scores, hypotheses that were found precede those that were made.
    return sorted([*hypotheses, *made], key=lambda hypothesis: -hypothesis.score)


def _exchanges(
    left: tuple[Hypothesis, list[str]], right: tuple[Hypothesis, list[str]]
) -> Iterable[tuple[Hypothesis, Hypothesis, int, str]]:
    """Yield each exchange of a word in which two sentences differ, for either sentence.

    An exchange is the hypothesis, the other one, the word's number, and the other one's word.
    """
    at_left = at_right = 0
    for ours, theirs in align(left[1], right[1]):
        if ours is not None and theirs is not None and ours != theirs:
            yield left[0], right[0], at_left, theirs
            yield right[0], left[0], at_right, ours
        at_left += ours is not None
        at_right += theirs is not None


def _between(
    text: str, one: Hypothesis, other: Hypothesis, at: int, options: DecoderOptions, fraction: float
) -> Hypothesis:
    """Return the first hypothesis with the other's word at number `at`, and the mean scores."""

    def mean(ours: float, theirs: float) -> float:
        middle = (ours + theirs) / 2
        return middle - fraction * abs(middle)

    def rest(hypothesis: Hypothesis) -> float:
        ranked = (
            options.acoustic_scale * hypothesis.acoustic_score
            + options.lm_weight * hypothesis.lm_score
        )
        return hypothesis.score - ranked

    acoustic = mean(one.acoustic_score, other.acoustic_score)
    ngram = mean(one.lm_score, other.lm_score)
    words = one.words
    if len(words) == len(text.split()):
        words = (
            *words[:at],
            replace(words[at], word=text.split()[at], confidence=None),
            *words[at + 1 :],
        )
    return replace(
        one,
        text=text,
        score=options.acoustic_scale * acoustic
        + options.lm_weight * ngram
        + (rest(one) + rest(other)) / 2,
        acoustic_score=acoustic,
        lm_score=ngram,
        words=words,
        llm_score=_half(one.llm_score, other.llm_score),
        sil_score=(one.sil_score + other.sil_score) / 2,
        hotword_score=(one.hotword_score + other.hotword_score) / 2,
        confidence=None,
    )


def _half(ours: float | None, theirs: float | None) -> float | None:
    return None if ours is None or theirs is None else (ours + theirs) / 2
