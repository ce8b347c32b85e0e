"""Averaged posteriors: by hand, and against SciPy."""

import json

import numpy as np
import pytest
from scipy.special import log_softmax, logsumexp

from cortext.errors import DataError, DecodingError
from cortext.text.inventory import LM, RELEASE
from cortext_lm.ensemble import average
from cortext_lm.ensemble.candidates import Candidates
from cortext_lm.ensemble.posteriors import read_average

N_TOKENS = len(RELEASE)


def logits(seed, n_frames=3):
    return np.random.default_rng(seed).normal(size=(n_frames, N_TOKENS)).astype(np.float32)


def evaluation(folder, arrays, inventory=RELEASE, frame_ms=80.0, **options):
    """An evaluation directory with the logits of trials 0, 1, ... ."""
    (folder / "logits").mkdir(parents=True)
    for number, array in enumerate(arrays):
        np.save(folder / "logits" / f"{number:05d}_day.1_b01_t{number:03d}.npy", array)
    facts = {
        "inventory": {"name": inventory.name, "symbols": inventory.symbols},
        "frame_ms": frame_ms,
    }
    (folder / "metrics.json").write_text(json.dumps({"provenance": facts | {"options": options}}))
    return folder


def trials(n):
    return [Candidates.of(["a"], id=number) for number in range(n)]


def test_means_by_hand():
    one, two = np.log([[0.5, 0.5]]), np.log([[0.9, 0.1]])
    assert np.exp(average([one, two], "arithmetic")) == pytest.approx(np.array([[0.7, 0.3]]))
    # sqrt(.45) : sqrt(.05) = 3 : 1
    assert np.exp(average([one, two], "geometric")) == pytest.approx(np.array([[0.75, 0.25]]))
    assert np.exp(average([one, two], "arithmetic", [3, 1])) == pytest.approx(
        np.array([[0.6, 0.4]])
    )
    # 9 ** (1 / 4) : 1, as the first says nothing
    share = 9**0.25 / (9**0.25 + 1)
    assert np.exp(average([one, two], "geometric", [3, 1])) == pytest.approx(
        np.array([[share, 1 - share]])
    )


@pytest.mark.parametrize("n_systems", [1, 2, 4])
def test_means_agree_with_scipy(n_systems):
    arrays = [log_softmax(5 * logits(seed).astype(np.float64), axis=1) for seed in range(n_systems)]
    weights_S11 = np.arange(1.0, n_systems + 1)[:, None, None]
    weights_S11 /= weights_S11.sum()
    arithmetic = logsumexp(np.stack(arrays), b=weights_S11, axis=0)
    geometric = log_softmax((weights_S11 * np.stack(arrays)).sum(axis=0), axis=1)
    weights = list(range(1, n_systems + 1))
    for mean, expected in (("arithmetic", arithmetic), ("geometric", geometric)):
        found = average(arrays, mean, weights)
        assert found.dtype == np.float32
        np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize("mean", ["arithmetic", "geometric"])
def test_equal_systems_are_their_own_mean_and_a_weight_of_zero_leaves_one_out(mean):
    one, two = (log_softmax(logits(seed), axis=1) for seed in (0, 1))
    np.testing.assert_allclose(average([one, one, one], mean), one, atol=1e-6)
    np.testing.assert_allclose(average([one, two], mean, [0, 2]), two, atol=1e-6)
    np.testing.assert_allclose(average([one, two], mean), average([two, one], mean), atol=1e-6)
    assert average([one[:0], two[:0]], mean).shape == (0, N_TOKENS)


def test_what_one_system_thinks_impossible_is_so_for_all_only_in_the_geometric_mean():
    with np.errstate(divide="ignore"):
        one, two = np.log([[1.0, 0.0]]), np.log([[0.5, 0.5]])
        three = np.log([[0.0, 1.0]])
    assert np.exp(average([one, two], "arithmetic")) == pytest.approx(np.array([[0.75, 0.25]]))
    assert np.exp(average([one, two], "geometric")) == pytest.approx(np.array([[1.0, 0.0]]))
    assert np.exp(average([one, three], "arithmetic")) == pytest.approx(np.array([[0.5, 0.5]]))
    with pytest.raises(
        DecodingError,
        match="no token is possible to all systems in some frame; use mean=arithmetic",
    ):
        average([one, three], "geometric")


def test_what_cannot_be_averaged_is_refused():
    with pytest.raises(DecodingError, match=r"shapes \(2, 41\), \(3, 41\) cannot be averaged"):
        average([logits(0, 3), logits(0, 2)], "arithmetic")
    with pytest.raises(DecodingError, match="3 weights for 2 systems"):
        average([logits(0), logits(1)], "arithmetic", [1, 1, 1])


def test_logits_in_another_order_are_put_in_the_first_ones(tmp_path):
    in_release = [logits(0), logits(1, 5)]
    in_lm = [array[:, LM.order_from(RELEASE)] for array in in_release]
    one = evaluation(tmp_path / "one", in_release)
    two = evaluation(tmp_path / "two", in_lm, LM)
    expected = [log_softmax(array, axis=1) for array in in_release]
    for found, wanted in zip(
        read_average([one, two], trials(2), "geometric"), expected, strict=True
    ):
        np.testing.assert_allclose(found, wanted, atol=1e-5)
    for found, wanted in zip(
        read_average([two, one], trials(2), "geometric"), expected, strict=True
    ):
        np.testing.assert_allclose(found, wanted[:, LM.order_from(RELEASE)], atol=1e-5)


def test_what_does_not_go_together_is_said_in_one_line(tmp_path):
    one = evaluation(tmp_path / "one", [logits(0), logits(1)])

    def complaint(path):
        with pytest.raises(DataError) as error:
            read_average([one, path], trials(2), "geometric")
        return str(error.value)

    found = complaint(evaluation(tmp_path / "slow", [logits(0), logits(1)], frame_ms=40.0))
    assert f"slow: a frame takes 40 ms, in {one} 80 ms" in found
    found = complaint(evaluation(tmp_path / "long", [logits(0), logits(1, 4)]))
    assert f"00001_day.1_b01_t001.npy: 4 frames, in {one} 3" in found
    assert "no logits of trial 1" in complaint(evaluation(tmp_path / "fewer", [logits(0)]))
    assert "empty: no logits" in complaint(evaluation(tmp_path / "empty", []))
    assert "cannot be read: No such file" in complaint(tmp_path / "absent")
    (tmp_path / "slow" / "metrics.json").write_text('{"provenance": {}}')
    assert "slow: does not say how its logits are ordered" in complaint(tmp_path / "slow")
    (tmp_path / "slow" / "metrics.json").write_text('{"provenance": {"frame_ms": 80.0}}')
    assert "slow: does not say how its logits are ordered" in complaint(tmp_path / "slow")
    unknown = {
        "inventory": {"name": RELEASE.name, "symbols": RELEASE.symbols},
        "frame_ms": 80.0,
        "options": {"bean": 1},
    }
    (tmp_path / "slow" / "metrics.json").write_text(json.dumps({"provenance": unknown}))
    assert "slow/metrics.json: unknown decoder option 'bean'" in complaint(tmp_path / "slow")
    (tmp_path / "slow" / "metrics.json").write_text("[")
    assert "metrics.json: not valid JSON" in complaint(tmp_path / "slow")
