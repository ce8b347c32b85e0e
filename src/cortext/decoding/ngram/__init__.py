"""N-gram language models.

Scoring, texts and words, and the directory that the word search reads. `cortext_lm.ngram` estimates
a model and writes it.
"""

from cortext.decoding.ngram.language_model import LanguageModel, TextScore

__all__ = ["LanguageModel", "TextScore"]
