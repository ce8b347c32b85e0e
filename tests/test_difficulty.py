"""The yardsticks of the demo's difficulty, on cases small enough to work out by hand."""

import itertools
import json

import numpy as np
import pytest
import torch

import difficulty
from cortext.data import make_trial, open_dataset, write_session


def test_best_constant_sequence_is_found():
    # "1 2" costs 0 + 1 + 1 edits against these labels of 6 phonemes; every other sequence costs
    # more.
    assert difficulty.best_constant_per([[1, 2], [1, 2, 3], [2]]) == pytest.approx(2 / 6)


def test_linear_model_is_one_affine_map_of_each_patch():
    torch.manual_seed(0)
    config = difficulty.LinearConfig(n_units=4, n_layers=1)
    model = difficulty.Linear(config, n_features=3, n_days=2, n_classes=41).eval()
    with torch.no_grad():
        model.day_weight.add_(torch.randn(2, 3, 3))
    x_BTC = torch.randn(2, 34, 3, generator=torch.Generator().manual_seed(1))
    day_B = torch.tensor([0, 1])
    with torch.no_grad():
        logits_BPV, _ = model(x_BTC, day_B)
        for trial, patch in itertools.product(range(2), range(6)):
            vector = (x_BTC[trial, 4 * patch : 4 * patch + 14] @ model.day_weight[trial]).flatten()
            torch.testing.assert_close(
                logits_BPV[trial, patch], model.out(vector), atol=1e-5, rtol=1e-5
            )
    assert logits_BPV.shape == (2, 6, 41)
    model.train()(x_BTC, day_B)[0].sum().backward()
    assert model.out.weight.grad is not None


def test_shuffling_moves_training_labels_and_nothing_else(tmp_path):
    rng = np.random.default_rng(0)
    sentences = ("yes", "good morning", "how are you", "see you soon", "thank you very much", "no")
    for split, count in (("train", 6), ("val", 2)):
        trials = [
            make_trial(
                rng.standard_normal((150 + 40 * number, 4)),
                "lab.2026.01.12",
                1,
                number,
                sentences[number],
            )
            for number in range(count)
        ]
        write_session(tmp_path / "data" / "lab.2026.01.12" / f"data_{split}.hdf5", trials)
    difficulty.shuffle_labels(tmp_path / "data", tmp_path / "shuffled")
    before, after = (
        list(open_dataset(tmp_path / name).trials("train")) for name in ("data", "shuffled")
    )
    assert [trial.sentence for trial in before] != [trial.sentence for trial in after]
    assert sorted(trial.sentence for trial in before) == sorted(trial.sentence for trial in after)
    for one, other in zip(before, after, strict=True):
        np.testing.assert_array_equal(one.features_TC, other.features_TC)
    val = [
        [trial.sentence for trial in open_dataset(tmp_path / name).trials("val")]
        for name in ("data", "shuffled")
    ]
    assert val[0] == val[1]


def test_swapped_posteriors_are_scored_against_the_next_trials_sentence(tmp_path):
    lines = [{"reference": text, "hypotheses": [{"text": text}]} for text in ("a b", "a c", "d")]
    (tmp_path / "nbest.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    # "d" for "a b" 2 edits, "a b" for "a c" 1, "a c" for "d" 2, of 5 words
    assert difficulty.swapped_wer(tmp_path) == pytest.approx(5 / 5)
