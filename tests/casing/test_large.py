"""A large model that chooses among ways to show a sentence: it takes part where it can, in time."""

import time

import pytest

from cortext.casing import RuleCaser
from cortext.casing.large import REST, LargeCaser
from cortext.errors import LanguageModelError


def writes_well(texts):
    """Log-probabilities of a model that knows a few things about English."""
    return [
        -1.0 * (text[0].islower())
        - 1.0 * (text.split()[0].lower() in ("how", "where") and not text.endswith("?"))
        - 1.0 * (text.split()[0].lower() not in ("how", "where", "you") and text.endswith("?"))
        - 0.9 * (text.startswith("You") and not text.endswith("?"))
        - 0.1 * text.endswith("!")
        for text in texts
    ]


def test_the_model_chooses_the_mark_of_the_first_sentence():
    caser = LargeCaser(RuleCaser(), writes_well)
    assert caser.unfit() is None
    texts = ["you are coming", "you are here", ""]
    assert caser.show(texts) == ["You are coming?", "You are here.", ""]
    assert caser.show(["i see avni"], {"avni": "Avni"}) == ["I see Avni."]
    assert caser.show([""]) == [""]
    assert caser.show([]) == []


def test_a_model_that_cannot_tell_or_is_slow_does_not_choose():
    assert (
        "does not prefer 'How are you?'"
        in LargeCaser(RuleCaser(), lambda texts: [0.0] * len(texts)).unfit()
    )

    def slow(texts):
        time.sleep(0.003)
        return writes_well(texts)

    assert "a choice takes the large model" in LargeCaser(RuleCaser(), slow, 1.0).unfit()


@pytest.mark.parametrize("fault", ["fails", "is slow"])
def test_after_a_fault_the_other_caser_shows_some_sentences_alone(fault):
    asked = []

    def score(texts):
        asked.append(texts)
        if fault == "fails":
            raise LanguageModelError("out of memory")
        time.sleep(0.003)
        return writes_well(texts)

    caser = LargeCaser(RuleCaser(), score, 1.0)
    first = caser.show(["you are coming"])
    assert first == (["You are coming."] if fault == "fails" else ["You are coming?"])
    for _ in range(REST):
        assert caser.show(["you are coming"]) == ["You are coming."]
    assert len(asked) == 1
    caser.show(["you are coming"])
    assert len(asked) == 2
