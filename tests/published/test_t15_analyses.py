"""The published analyses, written by hand in the published form."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cortext.errors import DataError
from cortext.text.inventory import LM, RELEASE, Inventory
from cortext_published.t15_analyses import (
    CopyTrial,
    PersonalUse,
    find_order,
    read_analyses,
)

# "he" as HH IY: a blank between two IY, which the release makes one.
FRAMES = ["BLANK", "HH", "HH", "BLANK", "IY", "BLANK", "IY", "SIL", "SIL", "BLANK"]
RAW = ["HH", "IY", "SIL"]


def logits(order: Inventory, frames: list[str] = FRAMES) -> np.ndarray:
    logits_PV = np.full((len(frames), len(order)), -4.0, np.float32)
    logits_PV[np.arange(len(frames)), [order.index[symbol] for symbol in frames]] = 6.0
    return logits_PV


def copy_task(order: Inventory = LM, n: int = 3) -> dict[str, Any]:
    return {
        "cue_sentence": ["he"] * n,
        "cue_sentence_phonemes": [["HH", "IY", "SIL"]] * n,
        "decoded_logits": [logits(order) for _ in range(n)],
        "decoded_phonemes_raw": [RAW] * n,
        "decoded_sentence": ["he"] * n,
        "decoded_sentence_phonemes": [["HH", "IY", "SIL"]] * n,
        "post_implant_day": np.array([25, 25, 32][:n]),
        "vocab_size": np.array([50, 125_000, 125_000][:n]),
    }


def personal_use() -> dict[str, Any]:
    return {
        "trialized_info": {
            "post_implant_day": [46, 46, 47],
            "correctness_rating": ["correct", "no user rating", "one word wrong"],
            "wpm": [30.5, float("nan"), np.float64(41)],
        },
        "total_use_time": {46: 3600.0, 47: 0, 48: 1800},
        "total_trial_count": {46: 2, 47: 1, 48: 0},
    }


def saved(folder: Path, content: Any) -> Path:
    path = folder / "t15.pkl"
    path.write_bytes(pickle.dumps(content))
    return path


@pytest.mark.parametrize("order", [LM, RELEASE], ids=lambda order: order.name)
def test_the_copy_task_is_read_and_its_order_found(tmp_path: Path, order: Inventory) -> None:
    trials = read_analyses(saved(tmp_path, copy_task(order)))
    assert isinstance(trials, list)
    assert [(trial.day, trial.vocabulary) for trial in trials] == [
        (25, 50),
        (25, 125_000),
        (32, 125_000),
    ]
    first = trials[0]
    assert (first.cue, first.decoded) == ("he", "he")
    assert first.decoded_phonemes == tuple(RAW)
    np.testing.assert_array_equal(first.logits_PV, logits(order))
    assert find_order(trials) == order


def test_texts_may_be_arrays_of_numpy(tmp_path: Path) -> None:
    content = copy_task()
    for name in ("cue_sentence", "decoded_sentence"):
        content[name] = np.array(content[name])
    content["cue_sentence_phonemes"] = [np.array(one) for one in content["cue_sentence_phonemes"]]
    content["decoded_sentence_phonemes"] = [[np.str_("HH"), np.str_("IY")]] * 3
    trials = read_analyses(saved(tmp_path, content))
    assert isinstance(trials, list)
    assert trials[0].cue == "he"
    assert trials[0].cue_phonemes == ("HH", "IY", "SIL")
    assert trials[0].sentence_phonemes == ("HH", "IY")


def test_personal_use_is_read(tmp_path: Path) -> None:
    use = read_analyses(saved(tmp_path, personal_use()))
    assert isinstance(use, PersonalUse)
    assert use.days == (46, 46, 47)
    assert use.ratings == ("correct", "no user rating", "one word wrong")
    np.testing.assert_array_equal(use.words_per_minute, [30.5, np.nan, 41])
    assert use.use_s == {46: 3600, 47: 0, 48: 1800}
    assert use.n_sentences == {46: 2, 47: 1, 48: 0}


def test_an_order_that_reproduces_nothing_is_refused() -> None:
    trial = CopyTrial(25, 50, "he", (), "he", ("AA",), (), logits(LM))
    with pytest.raises(
        DataError, match=r"no known token order .* for 0 of 1 trials; name it: cortext import"
    ):
        find_order([trial])


def spoilt(name: str, value: Any) -> Callable[[dict[str, Any]], None]:
    def change(content: dict[str, Any]) -> None:
        content[name] = value

    return change


COPY_FAULTS = {
    "a list too few": (lambda content: content.pop("vocab_size"), "has no vocab_size"),
    "a shorter list": (spoilt("cue_sentence", ["he"]), r"lists have \[1, 3\] items"),
    "a text for a list": (spoilt("cue_sentence", "he"), "cue_sentence is a str"),
    "a number for a text": (spoilt("cue_sentence", [1, 2, 3]), r"cue_sentence\[0\] is a int"),
    "an unknown phoneme": (
        spoilt("decoded_phonemes_raw", [["Q"]] * 3),
        r"decoded_phonemes_raw\[0\] is no list of phonemes",
    ),
    "half a day": (spoilt("post_implant_day", [1.5, 2, 3]), r"post_implant_day\[0\]"),
    "a day of no number": (spoilt("post_implant_day", [float("nan"), 2, 3]), "whole number"),
    "an endless day": (spoilt("post_implant_day", [float("inf"), 2, 3]), r"post_implant_day\[0\]"),
    "another vocabulary": (spoilt("vocab_size", [50, 51, 50]), r"vocab_size\[1\] is 51"),
    "too few tokens": (
        spoilt("decoded_logits", [np.zeros((4, 40), np.float32)] * 3),
        r"has shape \[4, 40\]; \[frames, 41\] is needed",
    ),
    "no frames": (spoilt("decoded_logits", [np.zeros((0, 41), np.float32)] * 3), "shape"),
    "whole numbers": (spoilt("decoded_logits", [np.zeros((4, 41), int)] * 3), "floating-point"),
    "NaN": (spoilt("decoded_logits", [np.full((4, 41), np.nan)] * 3), "has NaN"),
    "too large": (spoilt("decoded_logits", [np.full((4, 41), 7e4)] * 3), "beyond 60000"),
    "a blank": (spoilt("cue_sentence_phonemes", [["BLANK"]] * 3), "no list of phonemes"),
    "no array": (spoilt("decoded_logits", [[1.0]] * 3), "no array"),
    "an array many times": (
        spoilt("decoded_logits", [np.zeros((400, 41), np.float32)] * 3),
        "decoded_logits has the same row many times: more than",
    ),
    "a list many times": (
        spoilt("cue_sentence_phonemes", [["AA"] * 5000] * 30),
        "cue_sentence_phonemes has the same row many times",
    ),
    "an array of texts many times": (
        spoilt("cue_sentence_phonemes", [np.full(5000, "AA")] * 3000),
        "cue_sentence_phonemes has the same row many times",
    ),
    "more trials than there are": (
        spoilt("vocab_size", np.zeros(1_000_001, "i1")),
        "vocab_size has 1,000,001 items; at most 1,000,000 are read",
    ),
    "a text without an end": (
        spoilt("cue_sentence", ["he", "he" * 5001, "he"]),
        r"cue_sentence\[1\] has 10002 characters; at most 10000 are read",
    ),
}
USE_FAULTS = {
    "a rating of another name": (
        lambda content: content["trialized_info"]["correctness_rating"].__setitem__(0, "corect"),
        "did you mean 'correct'",
    ),
    "a shorter list": (
        lambda content: content["trialized_info"]["wpm"].pop(),
        "differ in length",
    ),
    "a speed of 400 digits": (
        lambda content: content["trialized_info"]["wpm"].__setitem__(0, 10**400),
        "an integer beyond 64 bits",
    ),
    "a speed of 18 digits": (
        lambda content: content["trialized_info"]["wpm"].__setitem__(0, 10**18),
        "wpm has an item that is no number",
    ),
    "no table": (spoilt("total_use_time", [1, 2]), "total_use_time is a list; a dict is needed"),
    "a day too few": (spoilt("total_trial_count", {46: 2}), "lacks a day"),
    "time that runs back": (spoilt("total_use_time", {46: -1}), "no table of numbers"),
}


FAULTS = [(copy_task, *fault) for fault in COPY_FAULTS.values()]
FAULTS += [(personal_use, *fault) for fault in USE_FAULTS.values()]


@pytest.mark.parametrize(("whole", "change", "says"), FAULTS, ids=[*COPY_FAULTS, *USE_FAULTS])
def test_damaged_analyses_are_refused(tmp_path: Path, whole, change, says: str) -> None:
    content = whole()
    change(content)
    with pytest.raises(DataError, match=says):
        read_analyses(saved(tmp_path, content))


def test_an_error_quotes_no_sentence(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="has no post_implant_day") as caught:
        read_analyses(saved(tmp_path, {"he said so": 1, "cue_sentence": [], float("nan"): 2}))
    assert "he said so" not in str(caught.value)


def test_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="is no dict of lists"):
        read_analyses(saved(tmp_path, [1, 2]))
