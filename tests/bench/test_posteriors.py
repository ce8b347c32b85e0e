import json

import numpy as np
import pytest

from cortext.decoding import greedy
from cortext.errors import DataError
from cortext_bench.posteriors import (
    INVENTORY,
    LEAD,
    Confusions,
    PseudoTrial,
    blank_share,
    evaluation_posteriors,
    halves,
    pseudo_posterior,
    pseudo_posteriors,
    read_trials,
)


def ids(symbols: str) -> np.ndarray:
    return INVENTORY.ids(symbols.split())


def trial(true: str, decoded: str) -> PseudoTrial:
    return PseudoTrial("", ids(true), ids(decoded))


def test_confusions_are_counts_plus_a_tenth():
    given_VV = Confusions.of([trial("AA B", "AA P")]).given_VV
    aa, b, p, d = ids("AA B P D")
    assert given_VV[aa, aa] == pytest.approx(1.1 / 5.1)  # one count, and 41 tenths
    assert given_VV[p, b] == pytest.approx(1.1 / 5.1)
    assert given_VV[p, p] == pytest.approx(0.1 / 5.1)
    assert given_VV[d] == pytest.approx(np.full(41, 1 / 41))  # never decoded: nothing is known
    assert given_VV.sum(axis=1) == pytest.approx(1)


def test_inserted_phonemes_put_mass_on_the_blank():
    given_VV = Confusions.of([trial("AA", "AA K")]).given_VV
    (k,) = ids("K")
    assert given_VV[k, INVENTORY.blank] == pytest.approx(1.1 / 5.1)


def test_blank_frames_carry_what_the_network_misses():
    given_V = Confusions.of([trial("B " + "AA " * 99, "AA " * 99)]).given_VV[INVENTORY.blank]
    b, k = ids("B K")  # 99 decoded phonemes have 100 gaps, B was missed in one
    assert given_V[b] == pytest.approx(1.1 / 100)
    assert given_V[k] == pytest.approx(0.1 / 100)
    assert given_V[INVENTORY.blank] == pytest.approx(1 - 1.1 / 100 - 39 * 0.1 / 100)


def test_sharpening_keeps_the_decoded_token_ahead():
    probabilities_VV = Confusions.of([trial("B B", "P P"), trial("P", "P")]).sharpened(1.0)
    b, p = ids("B P")
    assert probabilities_VV[p].argmax() == p
    assert probabilities_VV[p, p] == pytest.approx(LEAD * probabilities_VV[p, b])
    assert probabilities_VV.sum(axis=1) == pytest.approx(1)
    assert (probabilities_VV.argmax(axis=1) == np.arange(41)).all()


def test_a_higher_power_makes_the_rows_surer():
    confusions = Confusions.of([trial("AA AA AA B", "AA AA AA P")])
    (aa,) = ids("AA")
    soft, plain, sharp = (confusions.sharpened(power)[aa, aa] for power in (0.5, 1.0, 2.0))
    assert soft == pytest.approx(3.1**0.5 / (3.1**0.5 + 40 * 0.1**0.5))
    assert plain == pytest.approx(3.1 / 7.1)
    assert sharp == pytest.approx(3.1**2 / (3.1**2 + 40 * 0.1**2))


def test_the_argmax_is_what_the_network_decoded_with_repeats_apart():
    decoded = ids("AA AA B SIL SIL T")
    log_probs_PV = pseudo_posterior(
        decoded, Confusions.of([trial("AA B T", "AA B T")]).sharpened(1.0), 0, 0
    )
    assert greedy(log_probs_PV, INVENTORY) == decoded.tolist()
    assert np.exp(log_probs_PV.astype(np.float64)).sum(axis=1) == pytest.approx(1, abs=1e-5)
    assert log_probs_PV.dtype == np.float32


def test_every_phoneme_takes_two_to_four_frames_and_ends_with_a_blank():
    decoded = ids("AA B T K S " * 200)
    probabilities_VV = Confusions.of([trial("AA", "AA")]).sharpened(1.0)
    best = pseudo_posterior(decoded, probabilities_VV, 0, 0).argmax(axis=1)
    starts = [
        at
        for at in range(1, len(best))
        if best[at] != INVENTORY.blank and best[at - 1] == INVENTORY.blank
    ]
    assert len(starts) == len(decoded)
    assert starts[0] in (1, 2)
    lengths = np.diff([*starts, len(best)])
    assert set(lengths.tolist()) == {2, 3, 4}
    assert lengths.mean() == pytest.approx(3, abs=0.1)
    assert all(best[start - 1] == INVENTORY.blank for start in starts)


def test_durations_depend_on_the_seed_and_the_trial_only():
    decoded, probabilities_VV = ids("AA B T"), Confusions.of([trial("AA", "AA")]).sharpened(1.0)
    one = pseudo_posterior(decoded, probabilities_VV, 3, 7)
    assert np.array_equal(one, pseudo_posterior(decoded, probabilities_VV, 3, 7))
    lengths = {len(pseudo_posterior(decoded, probabilities_VV, seed, 7)) for seed in range(20)}
    assert len(lengths) > 1


def test_true_phonemes_of_the_reported_half_change_nothing(trials_file):
    before, facts = pseudo_posteriors(trials_file)
    lines = [json.loads(line) for line in trials_file.read_text().splitlines()]
    for line in lines[1::2]:
        line["true_phonemes"] = ["ZH", "|"]
    trials_file.write_text("\n".join(map(json.dumps, lines)))
    after, same_facts = pseudo_posteriors(trials_file)
    assert facts == same_facts
    assert all(
        np.array_equal(one.log_probs_PV, other.log_probs_PV)
        for one, other in zip(before, after, strict=True)
    )


def test_true_phonemes_of_the_tuning_half_do(trials_file):
    before, _ = pseudo_posteriors(trials_file)
    lines = [json.loads(line) for line in trials_file.read_text().splitlines()]
    lines[0]["true_phonemes"][1] = "ZH"
    trials_file.write_text("\n".join(map(json.dumps, lines)))
    after, _ = pseudo_posteriors(trials_file)
    assert not np.array_equal(before[0].log_probs_PV, after[0].log_probs_PV)


def test_real_trials_collapse_to_the_phonemes_of_the_network(real_data):
    path = real_data / "phonemes" / "t12_val_even.jsonl"
    utterances, facts = pseudo_posteriors(path)
    trials = read_trials(path)
    assert len(utterances) == 440
    assert all(
        greedy(utterance.log_probs_PV, INVENTORY) == trial.decoded.tolist()
        for utterance, trial in zip(utterances, trials, strict=True)
    )
    assert 0.45 < blank_share(utterances) < 0.55
    assert 0.8 <= facts["sharpness"] <= 1.3  # near 1: the counts are probabilities already


def test_halves_are_even_and_odd():
    assert halves(list(range(5))) == ([0, 2, 4], [1, 3])


def test_a_bad_line_is_named(tmp_path):
    path = tmp_path / "trials.jsonl"
    path.write_text('{"reference": "a", "true_phonemes": ["XX"], "gru_phonemes": []}\n')
    with pytest.raises(DataError, match=r"trials.jsonl, line 1"):
        read_trials(path)
    with pytest.raises(DataError, match="CORTEXT_REAL_DATA"):
        read_trials(tmp_path / "none.jsonl")


def test_logits_of_an_evaluation_become_log_probabilities(tmp_path):
    (tmp_path / "logits").mkdir()
    logits_PV = np.zeros((41, 3), dtype=np.float16).T
    logits_PV[:, 5] = np.log(60.0)
    np.save(tmp_path / "logits" / "00004_day_b01_t002.npy", logits_PV)
    (tmp_path / "nbest.jsonl").write_text(json.dumps({"id": 4, "reference": "Hello there."}) + "\n")
    (utterance,), facts = evaluation_posteriors(tmp_path)
    assert utterance.reference == "hello there"
    assert np.exp(utterance.log_probs_PV[0, 5]) == pytest.approx(0.6, rel=1e-3)
    assert np.exp(utterance.log_probs_PV[0, 6]) == pytest.approx(0.01, rel=1e-3)
    assert utterance.log_probs_PV.flags.c_contiguous  # as searches read it
    assert facts["kind"] == "logits"


def test_what_is_no_evaluation_is_refused(tmp_path):
    with pytest.raises(DataError, match="not an evaluation directory"):
        evaluation_posteriors(tmp_path)
