"""Arguments that a caller gave: a wrong one is refused by its name."""

import numpy as np
import pytest

from cortext.arguments import as_count, as_number, check_list
from cortext.errors import ConfigError, WrongType


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


def test_a_number_is_finite_and_no_truth_value():
    for value in (True, "3", None, [3], np.zeros(2), 3j):
        with pytest.raises(WrongType, match=r"weight is .*; a number is needed"):
            as_number(value, "weight")
    for value in (float("nan"), float("inf"), 10**400):
        with pytest.raises(ConfigError, match=r"; a finite number is needed"):
            as_number(value, "weight")
    with pytest.raises(ConfigError, match=r"weight is -1; a finite number of at least 0 is needed"):
        as_number(-1, "weight", 0)
    assert (as_number(np.float32(0.5), "weight"), as_number(-7, "weight")) == (0.5, -7.0)
