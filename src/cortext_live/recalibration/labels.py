"""Labels made of decoded sentences, and how far a decoded sentence is to be trusted."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from cortext.data.conventions import Conventions
from cortext.decoding import Decoder
from cortext.decoding.nbest import NBest
from cortext.errors import TextError
from cortext.evaluation.decoder_options import ChosenOptions, choose_options
from cortext.evaluation.fit.confidence import choose_confidence
from cortext.evaluation.settings import Options
from cortext.text.lexicon import Lexicon
from cortext.text.pronunciation import to_tokens
from cortext_live.recalibration.wildcard import ANY

FEWEST_WORDS = 2
"""Fewest trusted words of a sentence that is learnt from."""


def labelling_search(
    run: Path, lm: str | Path, options: Options = None
) -> tuple[Decoder, ChosenOptions]:
    """Return the search that makes labels for a run, and where its options come from.

    Its confidences are probabilities where they were fitted to the run, the options and the
    language model.

    Raises:
        CortextError: The options, the confidences or the language model cannot be used.
    """
    chosen = choose_options(run, lm, options)
    confidence = choose_confidence(run, lm, chosen.options)
    decoder = Decoder.from_dir(lm, chosen.options)
    return decoder.with_calibrator(confidence.calibrator), chosen


def confidence_of(nbest: NBest) -> float:
    """Return the mean confidence of the best sentence's words, 0 for a sentence without words.

    It is the share of right words to expect, as far as confidences are probabilities.
    """
    confidences = [word.confidence or 0.0 for word in nbest[0].words]
    return float(np.mean(confidences)) if confidences else 0.0


def label_of(text: str, conventions: Conventions, lexicon: Lexicon | None) -> np.ndarray | None:
    """Return the tokens of a sentence as labels have them, int64 [U].

    Args:
        text: The sentence.
        conventions: Tokens and language of the label.
        lexicon: Pronunciations; None for those of the inventory itself.

    Returns:
        The label; None for a sentence without words, or with one that cannot be pronounced.
    """
    try:
        tokens = to_tokens(text, conventions.inventory, conventions.language, lexicon)
    except TextError:
        return None
    return conventions.inventory.ids(tokens)


def pseudo_label(
    nbest: NBest,
    least: float,
    conventions: Conventions,
    lexicon: Lexicon | None,
    fewest: float = 0.0,
    least_word: float = 0.0,
) -> np.ndarray | None:
    """Return the tokens of a decoded sentence as labels have them, int64 [U].

    Args:
        nbest: The decoded sentence.
        least: Lowest confidence of a sentence that is trusted; see `confidence_of`.
        conventions: Tokens and language of the label.
        lexicon: Pronunciations; None for those of the inventory itself.
        fewest: Fewest tokens of a sentence that is trusted; see `Learner.fewest_tokens`.
        least_word: Lowest confidence of a word that is trusted. In the place of others the label
            has `ANY`, one for several in a row.

    Returns:
        The label; None for a sentence that is not trusted, or that `label_of` has none for.
    """
    if confidence_of(nbest) < least:
        return None
    label_U = label_of(nbest[0].text, conventions, lexicon)
    if label_U is None or len(label_U) < fewest:
        return None
    return _trusted_words(nbest, least_word, conventions, lexicon) if least_word else label_U


def _trusted_words(
    nbest: NBest, least: float, conventions: Conventions, lexicon: Lexicon | None
) -> np.ndarray | None:
    """Return the label of a sentence's trusted words, int64 [U], with `ANY` between them.

    None for fewer than `FEWEST_WORDS`, unless the sentence has no more.
    """
    label: list[int] = []
    trusted = 0
    for word in nbest[0].words:
        tokens_U = None
        if (word.confidence or 0.0) >= least:
            tokens_U = label_of(word.word, conventions, lexicon)
        if tokens_U is not None:
            label += tokens_U.tolist()
            trusted += 1
        elif label[-1:] != [ANY]:
            label.append(ANY)
    if trusted < min(FEWEST_WORDS, len(nbest[0].words)):
        return None
    return np.array(label, np.int64)
