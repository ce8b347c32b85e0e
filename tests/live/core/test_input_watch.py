"""Bad live channels are left out, said once, and the words still come."""

from dataclasses import replace

import numpy as np
import pytest

from cortext.data.conventions import Conventions, FeatureRange
from cortext.errors import DataError
from cortext.models.card import Conventional, Smoothing
from cortext.text.inventory import RELEASE
from cortext_live.core.input_watch import InputWatch
from cortext_live.core.pipeline import Pipeline

N = 16
RAW = Conventions(features="raw", feature_range=FeatureRange(2.0, 1.4, 1.6, 0.0))
Z_SCORED = Conventions()


class Keeper(Conventional):
    """A stepper of single bins that keeps them."""

    session, sessions, n_features = "a", ("a",), N
    patch_size = patch_stride = 1
    smoothing = Smoothing(smooth_data=False)

    def __init__(self, conventions):
        self.conventions = conventions

    def start(self):
        self.bins = []

    def prepare(self, bins_KC):
        pass

    def step(self, bins_SC):
        self.bins.append(bins_SC[0].copy())
        return np.zeros(len(RELEASE), dtype=np.float32)


def bins(n, conventions=RAW, seed=0):
    counts_TC = np.random.default_rng(seed).poisson(2, (n, N)).astype(np.float32)
    if conventions.features == "raw":
        return counts_TC
    return ((counts_TC - 2) / np.sqrt(2)).astype(np.float32)


@pytest.mark.parametrize("conventions", [RAW, Z_SCORED])
@pytest.mark.parametrize("value", [np.nan, np.inf, 3e9, 1e4])
def test_a_bad_channel_becomes_zero_and_has_one_line(conventions, value):
    """NaN, infinity, numbers too large, and the rail of an amplifier; the others are as without."""
    x_TC = bins(600, conventions)
    stepper, undisturbed = Keeper(conventions), Keeper(conventions)
    pipeline, other = (
        Pipeline(None, None, stepper=stepper),
        Pipeline(None, None, stepper=undisturbed),
    )
    other.push(x_TC)
    x_TC[300:, 5] = value
    for first in range(0, 600, 4):
        pipeline.push(x_TC[first : first + 4])
    notes = pipeline.take_notes()
    assert len(notes) == 1
    assert notes[0].startswith("feature 5: ")
    assert "dataset.feature_subset" in notes[0]
    z_TC, expected_TC = np.array(stepper.bins), np.array(undisturbed.bins)
    assert (z_TC[350:, 5] == 0).all()
    np.testing.assert_array_equal(np.delete(z_TC, 5, 1), np.delete(expected_TC, 5, 1))


def test_a_bin_most_of_which_is_unusable_is_refused():
    watch = InputWatch(N, Z_SCORED, normalises=False)
    x_TC = bins(3, Z_SCORED)
    x_TC[1, :9] = np.nan
    with pytest.raises(DataError, match="first in bin 1 of 3"):
        watch.usable(x_TC)


def test_channels_that_die_together_have_one_line():
    pipeline = Pipeline(None, None, stepper=Keeper(RAW))
    x_TC = bins(500)
    x_TC[300:, 4:] = 0
    pipeline.push(x_TC)
    (note,) = pipeline.take_notes()
    assert note.startswith("features 4, 5, 6, 7, 8 and 7 more: the same value for a second")


@pytest.mark.parametrize(
    ("conventions", "spoil", "words"),
    [
        (RAW, lambda x: 1000 * x, "the deviations are of another size"),
        (RAW, lambda x: (x - 2) / 1.4, "values are below 0"),
        (Z_SCORED, lambda x: 1000 * x, "the deviations are of another size"),
        (Z_SCORED, lambda x: x * 1.4 + 2, "no value is below 0"),
        (replace(RAW, feature_range=None), lambda x: (x - 2) / 1.41, "look like z-scores"),
    ],
    ids=["raw x1000", "z-scores for raw", "z-scores x1000", "counts for z-scores", "no range"],
)
def test_features_of_another_range_are_named_once_in_the_first_seconds(conventions, spoil, words):
    pipeline = Pipeline(None, None, stepper=Keeper(conventions))
    x_TC = np.maximum(spoil(bins(900, conventions)), -1e9).astype(np.float32)
    if words == "no value is below 0":
        x_TC = np.abs(x_TC)
    notes = []
    for first in range(0, 900, 50):
        pipeline.push(x_TC[first : first + 50])
        notes += [(first, note) for note in pipeline.take_notes()]
    ((first, note),) = notes
    assert first == 200  # 250 bins, 5 s
    assert words in note


@pytest.mark.parametrize("conventions", [RAW, Z_SCORED])
def test_usual_features_have_no_note(conventions):
    pipeline = Pipeline(None, None, stepper=Keeper(conventions))
    pipeline.push(np.zeros((40, N), np.float32))  # as servers warm up
    pipeline.reset()
    for seed in range(5):
        pipeline.push(bins(300, conventions, seed))
        pipeline.finish()
    assert pipeline.take_notes() == []


def test_outliers_of_an_utterance_are_said_at_its_end():
    pipeline = Pipeline(None, None, stepper=Keeper(RAW))
    pipeline.push(bins(300))
    pipeline.finish()
    x_TC = bins(100, seed=1)
    x_TC[40] = 1e4
    pipeline.push(x_TC)
    pipeline.finish()
    assert pipeline.take_notes() == [
        "1 bin with many features far out, the first after 0.8 s: they count for less in the running"
        " statistics"
    ]
