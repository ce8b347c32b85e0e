"""Fixtures that the tests of large models and ensembles share."""

from searched_lms import lm_of, sentence_lm

__all__ = ["lm_of", "sentence_lm"]
