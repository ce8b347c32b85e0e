"""Text: tokens, languages, pronunciations and error rates."""

from cortext.text.inventory import (
    ARPABET,
    BLANK,
    CHARACTERS,
    HANDWRITING,
    LM,
    RELEASE,
    SIL,
    Inventory,
    get_inventory,
)
from cortext.text.language import EN, Language, get_language
from cortext.text.lexicon import Lexicon
from cortext.text.metrics import EditCounts, ErrorRate, align, confusion, edit_counts, error_rate
from cortext.text.normalize import normalize
from cortext.text.pronunciation import lexicon_for, pronounce, to_phonemes, to_tokens

__all__ = [
    "ARPABET",
    "BLANK",
    "CHARACTERS",
    "EN",
    "HANDWRITING",
    "LM",
    "RELEASE",
    "SIL",
    "EditCounts",
    "ErrorRate",
    "Inventory",
    "Language",
    "Lexicon",
    "align",
    "confusion",
    "edit_counts",
    "error_rate",
    "get_inventory",
    "get_language",
    "lexicon_for",
    "normalize",
    "pronounce",
    "to_phonemes",
    "to_tokens",
]
