"""Arguments that a caller gave: a wrong one is refused, and its name is told."""

import numpy as np
import pytest

from cortext.arguments import as_count, check_list
from cortext.errors import WrongType


@pytest.mark.parametrize("value", [True, False, np.True_, 3.0, "3", None])
def test_a_count_is_a_whole_number_and_no_truth_value(value):
    with pytest.raises(WrongType, match=r"n_trials is .*; a whole number is needed"):
        as_count(value, "n_trials")
    assert as_count(np.int64(3), "n_trials") == 3


@pytest.mark.parametrize("values", ["abc", b"abc", {"a": 1}, 3, None])
def test_a_list_is_neither_text_nor_bytes_nor_mapping(values):
    with pytest.raises(WrongType, match=r"sentences is .*; a list is needed"):
        check_list(values, "sentences", "a list")
    assert list(check_list(iter("ab"), "sentences", "a list")) == ["a", "b"]
