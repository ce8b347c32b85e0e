"""Saved logits of anyone's: what is read, what is refused, and what comes out."""

import csv
import math

import h5py
import numpy as np
import pytest

from cortext.cli.options import KINDS
from cortext.decoding import Decoder
from cortext.decoding.fake import fake_log_probs
from cortext.decoding.log_probs import SCORES, doubts, kind_of
from cortext.decoding.saved import decode_saved, read_saved, to_log_probs
from cortext.errors import CortextError, DecodingError
from cortext.text.inventory import LM, RELEASE

GENERATOR = np.random.default_rng(0)
TRIALS = {
    f"trial_{number}": GENERATOR.normal(size=(length, 41))
    for number, length in ((2, 5), (10, 0), (1, 3))
}


def batch():
    """The trials padded with what must not be read."""
    lengths = np.array([len(trial) for trial in TRIALS.values()])
    batch_BPV = np.full((3, 6, 41), np.nan)
    for row_PV, trial_PV in zip(batch_BPV, TRIALS.values(), strict=True):
        row_PV[: len(trial_PV)] = trial_PV
    return batch_BPV, lengths


def assert_same(found, expected):
    assert [trial.name for trial in found] == list(expected)
    for trial, logits_PV in zip(found, expected.values(), strict=True):
        np.testing.assert_array_equal(trial.logits_PV, logits_PV)


def test_arrays_by_name_come_in_the_order_of_the_file(tmp_path):
    np.savez(tmp_path / "a.npz", **TRIALS)
    np.savez_compressed(tmp_path / "b.npz", **TRIALS)
    for name in ("a.npz", "b.npz"):
        assert_same(read_saved(tmp_path / name, "release"), TRIALS)


def test_a_batch_is_cut_to_its_lengths(tmp_path):
    logits, lengths = batch()
    np.savez(tmp_path / "a.npz", lengths=lengths, anything=logits)
    with h5py.File(tmp_path / "a.hdf5", "w") as file:
        file["group/logits"], file["group/lengths"] = logits, lengths
    expected = dict(zip("012", TRIALS.values(), strict=True))
    for name in ("a.npz", "a.hdf5"):
        assert_same(read_saved(tmp_path / name, "release"), expected)


def test_datasets_of_any_depth_come_in_the_order_of_their_numbers(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for name, logits_PV in TRIALS.items():
            file[f"day_1/{name}/logits"] = logits_PV
        file["x"] = TRIALS["trial_1"]
    expected = {f"day_1/{name}/logits": TRIALS[name] for name in ("trial_1", "trial_2", "trial_10")}
    assert_same(read_saved(tmp_path / "a.h5", LM), expected | {"x": TRIALS["trial_1"]})


def test_one_array_is_one_trial(tmp_path):
    np.save(tmp_path / "said.npy", TRIALS["trial_2"].astype(np.float16))
    assert_same(
        read_saved(tmp_path / "said.npy", "lm"), {"said": TRIALS["trial_2"].astype(np.float16)}
    )


GOOD = np.zeros((4, 41), np.float32)


def spoilt(value):
    wrong = GOOD.copy()
    wrong[2, 7] = value
    return wrong


IMPOSSIBLE = GOOD.copy()
IMPOSSIBLE[1] = -np.inf


@pytest.mark.parametrize(
    ("arrays", "parts"),
    [
        ({"x": GOOD, "y": GOOD[:, :40]}, ("trial y", "[4, 40]", "[frames, 41]", "'release'")),
        ({"x": GOOD[0]}, ("trial x", "[41]")),
        ({"x": spoilt(np.nan)}, ("trial x", "NaN", "frame 2")),
        ({"x": spoilt(np.inf)}, ("trial x", "infinity", "frame 2")),
        ({"x": IMPOSSIBLE}, ("trial x", "no token", "frame 1")),
        ({"x": GOOD.astype(np.int64)}, ("trial x", "int64", "float32")),
        ({"x": GOOD.astype(np.complex64)}, ("trial x", "complex64")),
        ({"x": np.array(["text"])}, ("trial x", "U4")),
        ({"x": np.zeros((2, 4, 41))}, ("trial x", "batch", "'lengths'")),
        ({"x": np.zeros((2, 4, 41)), "lengths": np.array([4])}, ("'lengths'", "[1]", "2 integers")),
        ({"x": np.zeros((2, 4, 41)), "lengths": np.array([4.0, 4.0])}, ("'lengths'", "float64")),
        (
            {"x": np.zeros((2, 4, 41)), "lengths": np.array([4, 5])},
            ("trial 1", "length is 5", "4 frames"),
        ),
        ({"x": np.zeros((2, 4, 41)), "lengths": np.array([-1, 4])}, ("trial 0", "length is -1")),
        ({"x": GOOD, "lengths": np.array([4])}, ("'lengths'", "[B, P, V]")),
        ({"lengths": np.array([4])}, ("'lengths'", "[B, P, V]")),
        ({"x": np.array([None, {}])}, ("trial x", "cannot be read", "allow_pickle=False")),
        ({}, ("holds no trials",)),
    ],
)
def test_what_is_no_logits_is_refused_by_file_and_trial(tmp_path, arrays, parts):
    np.savez(tmp_path / "a.npz", **arrays)
    with pytest.raises(DecodingError) as raised:
        read_saved(tmp_path / "a.npz", "release")
    line = str(raised.value)
    assert "\n" not in line
    assert all(part in line for part in (str(tmp_path / "a.npz"), *parts)), line


def test_other_files_are_refused_by_name(tmp_path):
    np.savez(tmp_path / "good.npz", x=GOOD)
    whole = (tmp_path / "good.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    damaged = bytearray(whole)
    damaged[len(whole) // 2] ^= 0xFF
    (tmp_path / "damaged.npz").write_bytes(damaged)
    np.save(tmp_path / "object.npy", np.array([{}]), allow_pickle=True)
    (tmp_path / "array.npz").write_bytes((tmp_path / "object.npy").read_bytes())
    np.save(tmp_path / "one.npy", GOOD)
    (tmp_path / "one.npz").write_bytes((tmp_path / "one.npy").read_bytes())
    (tmp_path / "several.npy").write_bytes(whole)
    (tmp_path / "text.h5").write_text("no HDF5")
    (tmp_path / "empty.npz").write_bytes(b"")
    (tmp_path / "logits.csv").write_text("0,1\n")
    bad = (
        "cut.npz damaged.npz object.npy array.npz one.npz several.npy text.h5 empty.npz logits.csv"
        " none.npz none.h5"
    )
    for name in bad.split():
        with pytest.raises(DecodingError, match=name):
            read_saved(tmp_path / name, "release")
    with pytest.raises(CortextError, match="unknown inventory 'relase'"):
        read_saved(tmp_path / "good.npz", "relase")


def test_strange_datasets_are_refused_by_name(tmp_path):
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["empty"] = h5py.Empty("f4")
    with pytest.raises(DecodingError, match="trial empty"):
        read_saved(tmp_path / "a.h5", "release")
    with h5py.File(tmp_path / "b.h5", "w") as file:
        file["text"] = "hello"
    with pytest.raises(DecodingError, match="trial text"):
        read_saved(tmp_path / "b.h5", "release")


@pytest.mark.parametrize("n_trials", [1, 40])
def test_short_trials_of_probabilities_are_judged_together(tmp_path, n_trials):
    logits = np.random.default_rng(0).normal(0, 3, (n_trials, 4 if n_trials == 1 else 1, 41))
    shares = np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)
    for scale in (1, 100):
        np.savez(tmp_path / "a.npz", **{str(n): scale * each for n, each in enumerate(shares)})
        with pytest.raises(DecodingError, match="trial 0: holds probabilities or percentages"):
            read_saved(tmp_path / "a.npz", "release")
        for trial, expected in zip(
            read_saved(tmp_path / "a.npz", "release", "probabilities"), logits, strict=True
        ):
            found, wanted = to_log_probs(trial.logits_PV), to_log_probs(expected)
            np.testing.assert_allclose(found, wanted, atol=1e-5)
    np.savez(tmp_path / "a.npz", **{str(n): each for n, each in enumerate(logits)})
    assert len(read_saved(tmp_path / "a.npz", "release")) == n_trials


def test_log_softmax_by_hand():
    logits = np.log(np.array([[2.0, 6.0, 8.0]]))
    np.testing.assert_allclose(np.exp(to_log_probs(logits)), [[2 / 16, 6 / 16, 8 / 16]], rtol=1e-6)
    squared = np.exp(to_log_probs(logits, temperature=0.5))  # a half: the squares
    np.testing.assert_allclose(squared, [[4 / 104, 36 / 104, 64 / 104]], rtol=1e-6)
    for temperature in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(DecodingError, match="temperature"):
            to_log_probs(logits, temperature)


def test_log_softmax_leaves_log_probabilities_as_they_are():
    log_probs = fake_log_probs("hello there", noise=2.0)
    log_probs[0] = [0.0] + [-np.inf] * 40
    np.testing.assert_allclose(to_log_probs(log_probs), log_probs, atol=1e-5)
    extreme = np.array([[1e300, -1e300, 0.0]])
    np.testing.assert_array_equal(to_log_probs(extreme, 1e-3), [[0, -np.inf, -np.inf]])


def test_rows_have_the_names_of_the_arrays_and_the_decoders_sentences(sentence_lm, tmp_path):
    decoder = Decoder.from_dir(sentence_lm)
    said = {"one": "we want to see you", "two, quoted": "they would like to see their sea"}
    trials = {
        name: fake_log_probs(text, seed=seed) for seed, (name, text) in enumerate(said.items())
    }
    path, out = tmp_path / "logits.npz", tmp_path / "new" / "out.csv"
    np.savez(path, **{name: 2.5 * log_probs + 3 for name, log_probs in trials.items()})
    for threads in (1, 2):
        found = decode_saved(path, "release", decoder, out, temperature=2.5, threads=threads)
        with out.open(newline="") as file:
            rows = list(csv.reader(file))
        expected = {
            name: decoder.decode(log_probs, "release") for name, log_probs in trials.items()
        }
        assert rows == [
            ["id", "text"],
            *([name, nbest[0].text] for name, nbest in expected.items()),
        ]
        for name, nbest in expected.items():
            assert found[name][0].score == pytest.approx(nbest[0].score, abs=1e-2)
    assert sorted(each.name for each in tmp_path.rglob("*")) == ["logits.npz", "new", "out.csv"]


def test_the_order_of_the_tokens_is_the_declared_one(sentence_lm, tmp_path):
    decoder = Decoder.from_dir(sentence_lm)
    log_probs = fake_log_probs("see you soon")
    np.savez(tmp_path / "a.npz", x=log_probs[:, LM.order_from(RELEASE)])
    found = decode_saved(tmp_path / "a.npz", "lm", decoder, tmp_path / "out.csv")
    assert found["x"][0].score == pytest.approx(
        decoder.decode(log_probs, "release")[0].score, abs=1e-3
    )


def test_a_refused_file_leaves_an_earlier_result_alone(sentence_lm, tmp_path):
    decoder, out = Decoder.from_dir(sentence_lm), tmp_path / "out.csv"
    out.write_text("before")
    np.savez(tmp_path / "a.npz", x=spoilt(np.nan))
    with pytest.raises(DecodingError, match="trial x"):
        decode_saved(tmp_path / "a.npz", "release", decoder, out)
    with pytest.raises(DecodingError, match="is a directory"):
        decode_saved(tmp_path / "a.npz", "release", decoder, tmp_path)
    assert out.read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npz", "out.csv"]


SAID = fake_log_probs("what time is it", 1.0, 0, RELEASE).astype(np.float64)
SAVED_AS = {
    "log-probs": SAID,
    "probabilities": np.exp(SAID),
    "negated": -SAID,
    "log10-probs": SAID / math.log(10),
    "log2-probs": SAID / math.log(2),
}


@pytest.mark.parametrize("kind", SAVED_AS)
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_scores_are_read_by_name_and_other_kinds_are_recognised(tmp_path, kind, dtype):
    file = tmp_path / "a.npz"
    np.savez(file, x=SAVED_AS[kind].astype(dtype))
    read = read_saved(file, RELEASE, kind)[0].logits_PV
    likely = SAID > -5
    np.testing.assert_allclose(to_log_probs(read)[likely], SAID[likely], atol=0.02)
    others = [name for name in SCORES if (name, kind) != ("logits", "log-probs") and name != kind]
    for other in others:
        with pytest.raises(DecodingError, match=f"trial x: holds {SCORES[kind]} .*--scores {kind}"):
            read_saved(file, RELEASE, other)


def test_probabilities_by_name_have_the_text_of_their_log_probabilities(tmp_path, sentence_lm):
    np.save(tmp_path / "a.npy", np.exp(SAID))
    decoder = Decoder.from_dir(sentence_lm)
    found = decode_saved(
        tmp_path / "a.npy", RELEASE, decoder, tmp_path / "a.csv", scores="probabilities"
    )
    expected = decoder.decode(SAID.astype(np.float32), RELEASE)
    assert found["a"][0].text == expected[0].text
    assert found["a"][0].score == pytest.approx(expected[0].score, abs=1e-3)


def test_numbers_that_do_not_sum_to_1_are_not_what_their_name_says(tmp_path):
    np.savez(tmp_path / "a.npz", x=GENERATOR.normal(size=(30, 41)))
    for kind in ("probabilities", "log-probs", "log10-probs", "log2-probs"):
        with pytest.raises(DecodingError, match=f"holds no {SCORES[kind]}: .*--scores logits"):
            read_saved(tmp_path / "a.npz", RELEASE, kind)
    read = read_saved(tmp_path / "a.npz", RELEASE, "negated")[0].logits_PV
    np.testing.assert_array_equal(read, -np.load(tmp_path / "a.npz")["x"])
    with pytest.raises(DecodingError, match="unknown kind of scores 'probs'; did you mean"):
        read_saved(tmp_path / "a.npz", RELEASE, "probs")


def test_padding_does_not_hide_probabilities_and_logits_are_never_mistaken():
    padded = np.concatenate([np.exp(SAID), np.zeros((100, 41))])
    assert kind_of(padded) == "probabilities"
    masked = SAID.copy()
    masked[:, 5] = -np.inf
    for logits in (
        SAID + 3.0,
        SAID - 3.0,
        SAID / 2,  # of a temperature
        GENERATOR.normal(size=(50, 41)) ** 2,
        np.abs(GENERATOR.normal(size=(1, 3))),
        np.zeros((9, 41)),
        np.full((9, 41), -np.inf),
        np.empty((0, 41)),
        masked - 1.0,
    ):
        assert kind_of(logits) is None


def frames(shares, blank_at=0):
    """Logits of 1,000 frames whose best tokens have these shares, the blank's first."""
    best = np.repeat(np.arange(len(shares)), (np.array(shares) * 1000).astype(int))
    return np.roll(8.0 * np.eye(41)[best], blank_at, axis=1)


def test_doubts_name_a_blank_elsewhere_flat_numbers_and_empty_sentences():
    shares = [0.4, *15 * [0.04]]
    usual = frames(shares)
    assert doubts([usual], RELEASE) == []
    assert doubts([usual[:100]], RELEASE) == []  # too few to say
    (line,) = doubts([frames(shares, 40)], RELEASE)
    assert "the blank (column 0) is the best token of 4.0% of 1,000 frames" in line
    assert "column 40 (SIL) of 40.0%" in line
    (line,) = doubts([frames([1.0])], RELEASE)
    assert "the blank is the best token of all 1,000 frames" in line
    (line,) = doubts([usual / 100], RELEASE)
    assert "0.026 on average" in line  # e^0.08 / (e^0.08 + 40)
    negated = -usual
    negated[:, 7] = 8.0
    (line,) = doubts([negated], RELEASE)
    assert "of 0.0% of 1,000 frames, column 7 (B) of 100.0%" in line
    assert "is the largest number the best?" in line


def test_the_help_names_every_kind():
    assert KINDS.replace(" or ", ", ").split(", ") == list(SCORES)
