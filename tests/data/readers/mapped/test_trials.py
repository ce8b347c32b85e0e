"""Trials of mapped files: those that overlap in time are counted."""

import numpy as np
import pytest
from lab_nwb import SIMPLE, cue_rows, read_nwb, write_simple

from cortext_data.readers.mapped.trials import count_overlaps

NOTE = "trials that begin before the one before them ends: 1"


@pytest.mark.parametrize(
    ("starts", "stops", "n"),
    [
        ([1, 5, 9], [5, 9, 12], 0),  # the next one may begin where the last one ended
        ([1, 4, 9], [5, 9, 12], 1),
        ([9, 1, 4], [12, 5, 9], 1),  # in any order
        ([1, 2, 3], [10, 9, 8], 2),
        ([1], [5], 0),
        ([1, np.nan], [5, np.nan], 0),
    ],
)
def test_overlaps_by_hand(starts, stops, n):
    assert count_overlaps(np.array(starts, float), np.array(stops, float)) == n


@pytest.mark.parametrize(("earlier_s", "notes"), [(0.0, []), (0.1, [NOTE])])
def test_trials_of_an_nwb_file_that_overlap_are_noted(tmp_path, earlier_s, notes):
    rows = cue_rows("one", "two")
    rows[1]["start_time"] = 0.8 - earlier_s
    write_simple(tmp_path / "a.nwb", rows)
    contents, _ = read_nwb(tmp_path / "a.nwb", SIMPLE)
    assert list(contents.notes) == notes
