"""The score of every sentence by enumeration of all sequences of one token per frame.

For tiny inventories of any kind: with a silence or a boundary between words, or with nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from engine_cases import FLOOR, token_paths

from cortext.decoding import DecoderOptions
from cortext.text.inventory import Inventory
from cortext.text.lexicon import Lexicon

Reading = tuple[tuple[str, ...], int, float]
"""Words, boundaries without separator, log weights of the pronunciations."""


def readings(labels: Sequence[str], lexicon: Lexicon, separator: str | None) -> list[Reading]:
    """All ways to read labels as words."""
    entries = [
        (word, list(pronunciation), math.log(weight))
        for word in lexicon
        for pronunciation, weight in zip(
            lexicon.pronunciations(word), lexicon.weights(word), strict=True
        )
    ]

    def read(rest: list[str], after_word: bool) -> Iterator[Reading]:
        if not rest:
            yield (), 0, 0.0
            return
        if rest[0] == separator:
            yield from read(rest[1:], False)
        for word, pronunciation, log_weight in entries:
            if rest[: len(pronunciation)] == pronunciation:
                for words, boundaries, log_weights in read(rest[len(pronunciation) :], True):
                    yield (word, *words), boundaries + after_word, log_weight + log_weights

    return list(read(list(labels), False))


def enumerated(
    lexicon: Lexicon,
    model: Any,
    log_probs_PV: np.ndarray,
    options: DecoderOptions,
    inventory: Inventory,
) -> dict[str, float]:
    """The score of every sentence that the frames can be read as.

    model: knows which words are `in` it, and the log-probability of a `sentence`
    """
    by_labels: dict[tuple[int, ...], list[float]] = {}
    scores: dict[tuple[str, ...], list[float]] = {}
    log_probs_PV = np.maximum(log_probs_PV.astype(np.float64), FLOOR)
    paths_NP, read = token_paths(len(inventory), inventory.blank, len(log_probs_PV))
    for path, (labels, _) in zip(paths_NP.tolist(), read, strict=True):
        frames = list(enumerate(path))
        if options.blank_skip < 1 and any(
            token != inventory.blank
            and math.exp(log_probs_PV[frame, inventory.blank]) >= options.blank_skip
            for frame, token in frames
        ):
            continue
        acoustic = sum(log_probs_PV[frame, token] for frame, token in frames)
        acoustic -= path.count(inventory.blank) * math.log(options.blank_penalty)
        by_labels.setdefault(labels, []).append(acoustic)
    for labels, acoustic in by_labels.items():
        symbols = [inventory.symbols[token] for token in labels]
        for words, boundaries, log_weight in readings(symbols, lexicon, inventory.separator):
            if inventory.separator is None:
                boundaries = 0  # there is nothing that could be missing
            elif options.sil_required and boundaries:
                continue
            rest = options.acoustic_scale * log_weight - options.sil_cost * boundaries
            scores.setdefault(words, []).extend(
                options.acoustic_scale * each + rest for each in acoustic
            )
    join = np.logaddexp.reduce if options.recombine == "logadd" else max
    return {
        " ".join(words): (
            float(join(paths))
            + options.lm_weight * lm_score(model, words, options)
            + options.word_score * len(words)
        )
        for words, paths in scores.items()
    }


def lm_score(model: Any, words: Sequence[str], options: DecoderOptions) -> float:
    """What the n-gram gives a sentence, with the score of unknown words."""
    return model.sentence(" ".join(words)) + sum(
        options.unk_score for word in words if word not in model
    )
