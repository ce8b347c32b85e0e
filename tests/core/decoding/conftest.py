"""Fixtures that the tests of the search share."""

from searched_lms import lm_of, sentence_lm

__all__ = ["lm_of", "sentence_lm"]
