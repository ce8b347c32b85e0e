"""Loading a causal language model, and the tokens that scoring works on."""

from __future__ import annotations

from pathlib import Path

import pytest

from cortext.decoding.llm.model import CausalLM


@pytest.fixture(scope="module")
def lm(tiny_lm_dir: Path) -> CausalLM:
    return CausalLM.load(tiny_lm_dir)


def test_a_directory_is_loaded_in_evaluation_mode(lm: CausalLM) -> None:
    assert not lm.network.training
    assert not any(parameter.requires_grad for parameter in lm.network.parameters())
    assert (lm.window, lm.start, lm.end) == (256, lm.tokenizer.bos_token_id, None)


@pytest.mark.parametrize("context", ["", "i would like some water", " what do you think? "])
def test_prefix_and_tokens_are_the_tokens_of_the_whole(lm: CausalLM, context: str) -> None:
    whole = " ".join(f"{context} how are you".split())
    expected = lm.tokenizer.encode(whole, add_special_tokens=False)
    assert lm.prefix(context) + lm.tokens("how are you", context) == [lm.start, *expected]
