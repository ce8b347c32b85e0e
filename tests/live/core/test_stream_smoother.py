import math

import numpy as np
import pytest
import scipy.ndimage

from cortext.data.scaling import RollingZScore
from cortext.errors import DataError
from cortext_live.core.stream_smoother import StreamSmoother

CHUNKINGS = {
    "one by one": [1],
    "two and seven": [2, 7],
    "as frames": [4],
    "with empty ones": [0, 3, 0, 64, 1],
    "whole": [10**6],
}


def in_chunks(push, x_TC, sizes):
    out, first, turn = [], 0, 0
    while first < len(x_TC):
        size = sizes[turn % len(sizes)]
        out.append(push(x_TC[first : first + size]))
        first, turn = first + size, turn + 1
    return np.concatenate(out)


@pytest.fixture
def x_TC():
    return np.random.default_rng(0).normal(3, 2, size=(211, 5)).astype(np.float32)


def test_published_smoothing_is_scipys_gaussian_filter_away_from_the_tails_that_the_release_cuts(
    x_TC,
):
    """The taps above 0.01, which the release keeps, are those of scipy's filter that ends after
    two deviations.
    """
    smoother = StreamSmoother(2, 100, "published")
    expected_TC = scipy.ndimage.gaussian_filter1d(x_TC.astype(np.float64), 2, axis=0, truncate=2.0)
    np.testing.assert_allclose(smoother.push(x_TC), expected_TC[4:-4], atol=2e-6)


def test_causal_smoothing_weighs_the_present_and_the_past_four_bins_by_half_a_gaussian():
    taps = [math.exp(-(lag**2) / 8) for lag in range(5)]  # std of 2 bins; lag 0 is the present
    impulse_TC = np.zeros((12, 1), dtype=np.float32)
    impulse_TC[6] = 1
    response_TC = StreamSmoother(2, 100, "causal").push(impulse_TC)
    expected = np.zeros(8)  # of bins 4 to 11
    expected[2:7] = np.array(taps) / sum(taps)
    np.testing.assert_allclose(response_TC[:, 0], expected, atol=1e-6)


@pytest.mark.parametrize(("kind", "look_ahead", "lost"), [("published", 4, 8), ("causal", 0, 4)])
def test_a_smoothed_bin_comes_as_soon_as_its_look_ahead_is_there(kind, look_ahead, lost, x_TC):
    smoother = StreamSmoother(2, 100, kind)
    assert (smoother.look_ahead_bins, smoother.lost_bins) == (look_ahead, lost)
    counts = [len(smoother.push(x_TC[t : t + 1])) for t in range(20)]
    assert counts == [0] * lost + [1] * (20 - lost)


@pytest.mark.parametrize("sizes", CHUNKINGS.values(), ids=CHUNKINGS)
@pytest.mark.parametrize("kind", ["published", "causal"])
def test_smoothing_gives_the_same_bits_in_any_chunking(kind, sizes, x_TC):
    whole_TC = StreamSmoother(2, 100, kind).push(x_TC)
    assert in_chunks(StreamSmoother(2, 100, kind).push, x_TC, sizes).tobytes() == whole_TC.tobytes()


def test_after_a_reset_nothing_of_what_came_before_is_left(x_TC):
    smoother = StreamSmoother()
    smoother.push(x_TC[:50])
    smoother.reset()
    np.testing.assert_array_equal(smoother.push(x_TC[50:]), StreamSmoother().push(x_TC[50:]))


def test_what_is_given_is_not_changed_and_may_be_reused(x_TC):
    smoother, normaliser, frame_TC = (
        StreamSmoother(),
        RollingZScore(5),
        np.empty((1, 5), dtype=np.float32),
    )
    smoothed, scores = [], []
    for t in range(30):  # a rig that fills the same buffer again and again
        frame_TC[:] = x_TC[t]
        smoothed.append(smoother.push(frame_TC))
        scores.append(normaliser.push(frame_TC))
        np.testing.assert_array_equal(frame_TC[0], x_TC[t])
    np.testing.assert_array_equal(np.concatenate(smoothed), StreamSmoother().push(x_TC[:30]))
    np.testing.assert_array_equal(np.concatenate(scores), RollingZScore(5).push(x_TC[:30]))


def test_the_statistics_a_block_begins_with_count_as_so_many_bins(x_TC):
    """250 bins of the given mean and deviation, then each utterance with its bins.

    NumPy on all of them together.
    """
    mean_C, std_C = np.arange(5.0), np.arange(5.0) + 1
    warm_TC = np.concatenate([np.tile(mean_C - std_C, (125, 1)), np.tile(mean_C + std_C, (125, 1))])
    normaliser, utterances = RollingZScore(5), [x_TC[:60], x_TC[60:90], x_TC[90:150]]
    normaliser.start_block(mean_C, std_C)
    for number, utterance_TC in enumerate(utterances):
        known_TC = np.concatenate([warm_TC, *utterances[:number]])
        expected_TC = (utterance_TC - known_TC.mean(axis=0)) / known_TC.std(axis=0)
        np.testing.assert_allclose(normaliser.push(utterance_TC), expected_TC, rtol=1e-4, atol=1e-6)
        normaliser.end_utterance()


def test_within_an_utterance_statistics_change_after_every_64_bins(x_TC):
    normaliser = RollingZScore(5)
    normaliser.push(x_TC)
    normaliser.push(x_TC[:39])
    normaliser.end_utterance()
    heard_TC = np.concatenate([x_TC, x_TC[:39]])  # 211 and 39 bins: as many as are needed
    scores_TC = normaliser.push(x_TC)
    for first, until in ((0, 64), (64, 128), (128, 192), (192, 211)):
        known_TC = np.concatenate([heard_TC, x_TC[:first]]).astype(np.float64)
        expected_TC = (x_TC[first:until] - known_TC.mean(axis=0)) / known_TC.std(axis=0)
        np.testing.assert_allclose(scores_TC[first:until], expected_TC, rtol=1e-4, atol=1e-6)


def test_only_the_latest_utterances_count():
    normaliser = RollingZScore(1, window_utterances=2, least_bins=1)
    for value in (1000.0, 3.0, 5.0):
        normaliser.push(np.full((10, 1), value, dtype=np.float32))
        normaliser.end_utterance()
    assert normaliser.statistics == (4.0, 1.0)  # of ten 3s and ten 5s


def test_a_block_without_given_statistics_continues_with_those_of_the_block_before():
    normaliser = RollingZScore(1, least_bins=2)
    for value in (1.0, 3.0):
        normaliser.push(np.array([[value]], dtype=np.float32))
    normaliser.end_utterance()
    normaliser.start_block()
    assert normaliser.push(np.array([[5.0]], dtype=np.float32))[0, 0] == 3.0  # mean 2, std 1
    normaliser.end_utterance()
    assert normaliser.statistics[0] == 3.0  # of 1, 3 and 5
    assert normaliser.statistics[1] ** 2 == pytest.approx(8 / 3)


def test_from_a_cold_start_a_bin_is_scored_against_all_bins_up_to_itself_until_enough_are_known(
    x_TC,
):
    normaliser = RollingZScore(5, least_bins=100)
    scores_TC = np.empty_like(x_TC)
    scores_TC[:70] = normaliser.push(x_TC[:70])
    normaliser.end_utterance()
    assert normaliser.statistics is None
    scores_TC[70:] = normaliser.push(x_TC[70:])
    for t, n_known in (
        (1, 2),
        (2, 3),
        (17, 18),
        (71, 72),
        (99, 100),
        (100, 100),
        (163, 100),
        (164, 164),
    ):
        known_TC = x_TC[:n_known].astype(np.float64)
        expected_C = (x_TC[t] - known_TC.mean(axis=0)) / known_TC.std(axis=0)
        np.testing.assert_allclose(scores_TC[t], expected_C, rtol=1e-4, atol=1e-6)
    assert (scores_TC[0] == 0).all()


@pytest.mark.parametrize("sizes", CHUNKINGS.values(), ids=CHUNKINGS)
@pytest.mark.parametrize("warm", [True, False])
def test_scores_and_statistics_are_the_same_bits_in_any_chunking(warm, sizes, x_TC):
    def run(sizes):
        normaliser = RollingZScore(5)
        if warm:
            normaliser.start_block(np.ones(5), np.full(5, 2.0))
        scores = []
        for _ in range(3):
            scores.append(in_chunks(normaliser.push, x_TC, sizes))
            normaliser.end_utterance()
        return np.concatenate(scores).tobytes(), np.array(normaliser.statistics).tobytes()

    assert run(sizes) == run([64])


@pytest.mark.parametrize("value", [0.0, 0.1, -1e6])
def test_a_silent_channel_gives_zero_and_one_that_wakes_up_stays_in_bounds(value):
    normaliser = RollingZScore(2, least_bins=1)
    x_TC = np.random.default_rng(1).normal(size=(300, 2)).astype(np.float32)
    x_TC[:, 0] = value
    for _ in range(3):
        scores_TC = normaliser.push(x_TC)
        assert (scores_TC[:, 0] == 0).all()
        assert np.isfinite(scores_TC).all()
        normaliser.end_utterance()
    x_TC[100, 0] = 7e5
    for _ in range(4):  # values that recur are no artefact
        normaliser.push(x_TC)
        normaliser.end_utterance()
    awake_TC = normaliser.push(x_TC)
    assert np.isfinite(awake_TC).all()
    assert np.abs(awake_TC).max() == 10.0


def test_hours_of_features_on_a_large_offset_cost_no_digits():
    """3.3 hours: a sum of squares in float64 less the square of the mean would have lost all but
    three digits.
    """
    generator, normaliser = np.random.default_rng(2), RollingZScore(3, window_utterances=20)
    recent = []
    for _ in range(2000):
        x_TC = (1e6 + generator.normal(size=(300, 3))).astype(np.float32)
        recent = [*recent[-19:], x_TC]
        normaliser.push(x_TC)
        normaliser.end_utterance()
    heard_TC = np.concatenate(recent).astype(np.float64)
    mean_C, std_C = normaliser.statistics
    np.testing.assert_allclose(mean_C, heard_TC.mean(axis=0), rtol=1e-14)
    np.testing.assert_allclose(std_C, heard_TC.std(axis=0), rtol=1e-9)


def test_a_dropped_utterance_and_an_empty_one_count_for_nothing(x_TC):
    normaliser = RollingZScore(5, window_utterances=1)
    normaliser.start_block(np.zeros(5), np.ones(5))
    normaliser.push(x_TC)
    normaliser.drop_utterance()
    for _ in range(20):
        normaliser.end_utterance()
    assert (normaliser.statistics[0] == 0).all()
    assert (normaliser.statistics[1] == 1).all()


@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [
        (np.zeros(5), None, "a warm start needs a mean and a standard deviation"),
        (np.zeros(4), np.ones(4), r"a mean of shape \[4\].*\[5\] is needed"),
        (np.full(5, np.nan), np.ones(5), "not finite"),
        (np.zeros(5), np.full(5, -1.0), "negative"),
    ],
)
def test_impossible_statistics_are_refused_and_change_nothing(mean, std, message):
    normaliser = RollingZScore(5)
    normaliser.start_block(np.ones(5), np.ones(5))
    with pytest.raises(DataError, match=message):
        normaliser.start_block(mean, std)
    assert (normaliser.statistics[0] == 1).all()
