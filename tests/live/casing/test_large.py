"""A large model that chooses among ways to show a sentence: it takes part where it can, in time."""

import time

import pytest
import torch

from cortext.errors import LanguageModelError
from cortext_live.casing import NoCasing, RuleCaser
from cortext_live.casing.large import _PROBES, SKIPPED, LargeCaser


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
    assert caser.show_final(texts) == ["You are coming?", "You are here.", ""]
    assert caser.show_final(["i see avni"], {"avni": "Avni"}) == ["I see Avni."]
    assert caser.show_final([""]) == [""]
    assert caser.show_final([]) == []
    assert caser.show(texts[:1]) == ["You are coming."]


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
    first = caser.show_final(["you are coming"])
    assert first == (["You are coming."] if fault == "fails" else ["You are coming?"])
    for _ in range(SKIPPED):
        assert caser.show_final(["you are coming"]) == ["You are coming."]
    assert len(asked) == 1
    caser.show_final(["you are coming"])
    assert len(asked) == 2


@pytest.mark.slow
def test_a_causal_language_model_chooses_once_it_has_learnt_how_people_write(tmp_path):
    pytest.importorskip("transformers")
    from tiny_llm import save_tiny_lm

    from cortext_lm.llm.model import CausalLM
    from cortext_lm.llm.scoring import score_texts

    lm = CausalLM.load(save_tiny_lm(tmp_path), device="cpu")

    def score(texts):
        return [found.log_prob for found in score_texts(lm, texts)]

    caser = LargeCaser(NoCasing("en"), score, budget_ms=10_000)
    assert "does not prefer" in caser.unfit()  # its weights are random
    rows = [torch.tensor([[lm.start, *lm.tokens(right)]]) for right, _ in _PROBES]
    lm.network.requires_grad_(True)
    optimizer = torch.optim.Adam(lm.network.parameters(), 1e-2)
    for step in range(120):
        optimizer.zero_grad()
        lm.network(rows[step % 4], labels=rows[step % 4]).loss.backward()
        optimizer.step()
    assert caser.unfit() is None
    assert caser.show_final(["where is my sister", "how are you"]) == [
        "Where is my sister?",
        "how are you",
    ]
    assert 0 < caser.last_ms < 10_000
