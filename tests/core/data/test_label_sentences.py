"""Labels compared with the sentences that they stand for."""

import json
import os
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cortext.data import make_trial, pack, write_session
from cortext.data.conventions import Conventions
from cortext.data.label_sentences import LabelSentences, label_notes
from cortext.text.inventory import CHARACTERS, LM, RELEASE, Inventory
from cortext.text.language import get_language

SENTENCES = [
    "what time is it",
    "please give me the pen",
    "they will be here",
    "i would like some water",
    "turn the light off",
    "she sold both houses",
]
REAL = Path(os.environ.get("CORTEXT_REAL_DATA", Path(__file__).parents[4] / "shared/data"))


def trials(sentences=SENTENCES, **conventions):
    features_TC = np.zeros((300, 2), np.float32)
    given = {"conventions": Conventions(**conventions)} if conventions else {}
    return [
        make_trial(features_TC, "lab.2026.01.12", 1, n, text, **given)
        for n, text in enumerate(sentences)
    ]


def compared(changed, sentences=SENTENCES, **conventions):
    """The result for trials whose labels a function has changed, by the trial's number."""
    labels = LabelSentences(Conventions(**conventions))
    found = trials(sentences, **conventions)
    ids = changed([trial.phoneme_ids for trial in found])
    for trial, ids_U in zip(found, ids, strict=True):
        labels.add(
            make_trial(
                trial.features_TC,
                trial.session,
                1,
                trial.trial,
                trial.sentence,
                phoneme_ids=ids_U,
                conventions=trial.conventions,
            ),
            "a.hdf5",
        )
    return labels.result()


def test_right_labels_and_other_pronunciations_are_no_problem():
    assert compared(lambda ids: ids) == (0.0, [])
    variant = RELEASE.ids("DH IY SIL".split())  # the dictionary's second one
    usual = RELEASE.ids("DH AH SIL".split())
    label = RELEASE.ids("P L IY Z SIL G IH V SIL M IY SIL DH IY SIL P EH N SIL".split())
    assert list(variant) != list(usual)
    rate, problems = compared(lambda ids: [ids[0], label, *ids[2:]])
    n_tokens = sum(len(trial.phoneme_ids) for trial in trials())
    assert (rate, problems) == (pytest.approx(1 / n_tokens), [])


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (lambda ids: [np.maximum(each - 1, 1) for each in ids], "1 less than the number .*add 1"),
        (lambda ids: [*ids[1:], ids[0]], "that of the next trial's sentence"),
        (lambda ids: [ids[-1], *ids[:-1]], "that of the previous trial's sentence"),
        (lambda ids: [each[each != 40] for each in ids], "the labels lack SIL between words"),
        (
            lambda ids: [np.array([LM.index[RELEASE.symbols[i]] for i in each]) for each in ids],
            "numbered in the order 'lm'",
        ),
        (lambda ids: [41 - each for each in ids], "each number stands for another token"),
    ],
)
def test_labels_that_follow_another_rule_are_one_line_with_the_cause(change, cause):
    rate, (problem,) = compared(change, SENTENCES * 5)
    line = str(problem)
    assert rate > 0.15
    assert line.startswith("a.hdf5: seq_class_ids: labels of 30 of 30 trials do not fit their")
    assert re.search(cause, line), line
    assert " lab.2026.01.12/block 1/trial " in line
    assert " and 25 more)" in line


def test_two_exchanged_tokens_are_named_and_a_dialect_is_not():
    t, d = RELEASE.index["T"], RELEASE.index["D"]

    def exchanged(ids):
        return [np.where(each == t, d, np.where(each == d, t, each)) for each in ids]

    rate, (problem,) = compared(exchanged, SENTENCES * 5)
    assert rate < 0.15
    assert "labels exchange phonemes throughout (D for T, T for D)" in problem.message
    merged = compared(lambda ids: [np.where(each == t, d, each) for each in ids], SENTENCES * 5)
    assert merged[1] == []


def test_packed_labels_of_the_next_trial_are_noted(tmp_path):
    good = trials()
    moved = [
        replace(one, phoneme_ids=other.phoneme_ids)
        for one, other in zip(good, [*good[1:], good[0]], strict=True)
    ]
    for name, given in (("good", good), ("moved", moved)):
        write_session(tmp_path / name / "lab.2026.01.12" / "data_train.hdf5", given)
    assert label_notes(pack(tmp_path / "good", tmp_path / "packed")) == []
    (note,) = label_notes(pack(tmp_path / "moved", tmp_path / "packed2"))
    assert note.startswith("labels of 6 of 6 trials do not fit their sentences")
    assert note.endswith("next trial's sentence: shift them (cortext inspect compares all)")


def test_one_label_of_another_sentence_is_named():
    _, (problem,) = compared(lambda ids: [*ids[:3], ids[0][::-1].copy(), *ids[4:]])
    assert "labels of 1 of 6 trials" in problem.message
    assert "lab.2026.01.12/block 1/trial 3 (" in problem.message
    assert "compare the labels with the sentences" in problem.message


def test_characters_are_compared_and_what_nobody_can_pronounce_is_not():
    assert compared(lambda ids: ids, inventory=CHARACTERS) == (0.0, [])
    _, (problem,) = compared(lambda ids: [*ids[1:], ids[0]], inventory=CHARACTERS)
    assert "next trial's sentence" in problem.message
    own = Inventory("own", ("BLANK", "a", "b", "SIL"), "BLANK", "SIL")
    labels = LabelSentences(Conventions(own, get_language("es")))
    features_TC = np.zeros((300, 2), np.float32)
    given = {"phoneme_ids": [1, 2, 3], "conventions": labels.conventions}
    labels.add(make_trial(features_TC, "lab.2026.01.12", 1, 1, "sí", **given), "a.hdf5")
    labels.add(make_trial(features_TC, "lab.2026.01.12", 1, 2), "a.hdf5")
    assert labels.result() == (None, [])


@pytest.mark.parametrize("name", ["t12", "t15"])
def test_published_labels_raise_no_alarm(name):
    file = REAL / f"phonemes/{name}_val_even.jsonl"
    if not file.is_file():
        pytest.skip(f"no real data at {REAL}; set CORTEXT_REAL_DATA")
    labels = LabelSentences(Conventions())
    for n, line in enumerate(file.read_text().splitlines()):
        said = json.loads(line)
        symbols = ["SIL" if symbol == "|" else symbol for symbol in said["true_phonemes"]]
        ids = RELEASE.ids(symbols)
        labels.add(
            make_trial(np.zeros((9, 1)), name, 1, n, said["reference"], phoneme_ids=ids), "a.hdf5"
        )
    rate, problems = labels.result()
    assert rate < 0.005
    assert problems == []
