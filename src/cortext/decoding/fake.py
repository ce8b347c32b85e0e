"""Synthetic log-probabilities that say a given sentence.

Something to decode before there is a recording.
"""

from __future__ import annotations

import numpy as np

from cortext.arguments import as_count, check_type
from cortext.decoding.options import is_finite
from cortext.decoding.saved import to_log_probs
from cortext.errors import DecodingError, TextError
from cortext.text.inventory import Inventory, get_inventory
from cortext.text.language import Language, get_language
from cortext.text.lexicon import Lexicon, Pronunciation
from cortext.text.pronunciation import pronouncer

STRENGTH = 6.0
"""Logit of the token that a frame says; the others have 0."""


def fake_log_probs(
    sentence: str,
    noise: float = 1.0,
    seed: int = 0,
    inventory: Inventory | str = "release",
    lexicon: Lexicon | None = None,
    language: Language | str = "en",
) -> np.ndarray:
    """Return synthetic log-probabilities float32 [P, V] that say a sentence.

    A silence follows every word, a boundary parts two. A token lasts 3 frames, or 2 or 4; 1 or 2
    blanks follow it. Words have their most usual pronunciation.

    Args:
        sentence: Text; it is normalised first.
        noise: Standard deviation of the Gaussian noise on the logits, of which the right one is 6
            and the others 0.
        seed: Seed of the noise and the durations.
        inventory: Tokens of the columns, in order.
        lexicon: Decides on pronunciations where it has the word.
        language: Language of the sentence.

    Raises:
        TextError: For a sentence without words or with letters that the language lacks, and for a
            word without a pronunciation.
        DecodingError: For a noise that is no number from 0 up.
    """
    inventory = get_inventory(inventory)
    seed = as_count(seed, "seed")
    check_type(lexicon, (Lexicon, type(None)), "lexicon", "a Lexicon or None")
    if not (is_finite(noise) and noise >= 0):
        raise DecodingError(f"noise is {noise}; a number from 0 up is needed")
    generator = np.random.default_rng(seed)
    symbols = _symbols(sentence, inventory, get_language(language), lexicon)
    tokens = _frames(symbols, inventory.blank_symbol, generator)
    logits_PV = generator.normal(scale=noise, size=(len(tokens), len(inventory)))
    logits_PV[np.arange(len(tokens)), inventory.ids(tokens)] += STRENGTH
    return to_log_probs(logits_PV)


def _symbols(
    sentence: str, inventory: Inventory, language: Language, lexicon: Lexicon | None
) -> list[str]:
    """Return the symbols of a sentence, as its label has them."""
    words = language.words(sentence)
    if not words:
        raise TextError(f"no word in the sentence {sentence!r}; it needs at least one letter")
    language.require(sentence)

    def pronounced(word: str) -> Pronunciation:
        listed = lexicon.pronunciations(word) if lexicon else ()
        return (listed or pronouncer(inventory, language)(word))[0]

    return inventory.closed(map(pronounced, words))


def _frames(symbols: list[str], blank: str, generator: np.random.Generator) -> list[str]:
    """Return one token per frame for symbols with durations of their own."""
    frames = [blank] * 2
    for symbol in symbols:
        frames += [symbol] * int(generator.integers(2, 5)) + [blank] * int(generator.integers(1, 3))
    return frames
