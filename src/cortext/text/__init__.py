"""Text: phonemes, sentence normalisation, pronunciations and error rates."""

from cortext.text.lexicon import Lexicon
from cortext.text.metrics import EditCounts, ErrorRate, align, confusion, edit_counts, error_rate
from cortext.text.normalize import normalize
from cortext.text.phonemes import ARPABET, BLANK, LM, RELEASE, SIL, Inventory, get_inventory
from cortext.text.pronunciation import lexicon_for, pronounce, to_phonemes

__all__ = [
    "ARPABET",
    "BLANK",
    "LM",
    "RELEASE",
    "SIL",
    "EditCounts",
    "ErrorRate",
    "Inventory",
    "Lexicon",
    "align",
    "confusion",
    "edit_counts",
    "error_rate",
    "get_inventory",
    "lexicon_for",
    "normalize",
    "pronounce",
    "to_phonemes",
]
