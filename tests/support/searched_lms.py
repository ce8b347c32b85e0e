"""Language models on disk that several tests of the search share."""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from engine_cases import SENTENCES, Entry, Grams, sentence_entries, write_lm


@pytest.fixture(scope="session")
def lm_of(tmp_path_factory) -> Callable[[Sequence[Entry], Grams], Path]:
    """Makes language-model directories."""
    root, numbers = tmp_path_factory.mktemp("lms"), itertools.count()
    return lambda entries, grams: write_lm(root / str(next(numbers)), entries, grams)


@pytest.fixture(scope="session")
def sentence_lm(tmp_path_factory) -> Path:
    """A 3-gram of a few sentences."""
    return write_lm(tmp_path_factory.mktemp("sentences") / "lm", sentence_entries(), SENTENCES)
