"""N-gram language models.

Estimation, ARPA files, scoring, and the directory that the word search reads.
"""

from cortext.decoding.ngram.language_model import LanguageModel, TextScore

__all__ = ["LanguageModel", "TextScore"]
