"""Spelling: letters as words, for a model of what is spelt letter by letter.

What is spelt is one word at a time: the beginning of the word is `<s>`, its end `</s>`, so that the
end of the utterance ends the word and no letter has to stand for the blank. Apostrophes and hyphens
are spoken by their names, which stand as words too: `o'neil` is the sentence `o apostrophe n e i
l`.
"""

from __future__ import annotations

from collections.abc import Iterator
from string import ascii_lowercase

from cortext.text.lexicon import Lexicon
from cortext.text.pronunciation import pronounce, spell

_NAMES = {"'": "apostrophe", "-": "hyphen"}
LETTERS = (*ascii_lowercase, *sorted(_NAMES.values()))
"""The words of a spelling model."""


def spelt(sentence: str) -> Iterator[str]:
    """Each word of a normalised sentence as a sentence of letters."""
    for word in sentence.split():
        if word.strip("-'"):
            yield " ".join([_NAMES.get(letter, letter) for letter in word])


def letter_lexicon() -> Lexicon:
    """The names of the letters as they are spoken.

    `apostrophe` and `hyphen` as the words they are.
    """
    names = {letter: [spell(letter)] for letter in ascii_lowercase}
    return Lexicon(names | {name: pronounce(name) for name in _NAMES.values()})
