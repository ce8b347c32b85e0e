"""Casing and punctuation of decoded text, for people who read or hear it.

Scores and logs keep the text as it was decoded.
"""

from cortext.casing.rules import RuleCaser
from cortext.casing.writing import Caser, NoCasing
from cortext.text.language import Language

__all__ = ["Caser", "NoCasing", "RuleCaser", "caser_for"]


def caser_for(language: Language) -> Caser:
    """Return the caser of a language without a trained model: rules for English, else none."""
    return RuleCaser() if language.is_benchmark else NoCasing(language.name)
