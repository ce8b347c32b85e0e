"""What the language model reads, against the library's own forward pass with audio."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cortext_speechllm.audio_llm.inputs import TeacherForced, answer_logits, teacher_forced
from cortext_speechllm.audio_llm.model import AudioLLM

INSTRUCTION = "please write what you hear"
SENTENCES = ["how are you today", "no", "i would like some water"]


@pytest.fixture(scope="module")
def llm(tiny_audio_llm: Path) -> AudioLLM:
    return AudioLLM.load(tiny_audio_llm, device="cpu")


def waves() -> list[np.ndarray]:
    made = np.random.default_rng(0)
    return [0.1 * made.normal(size=size).astype(np.float32) for size in (16000, 40000, 27001)]


def heard(llm: AudioLLM) -> tuple[torch.Tensor, torch.Tensor]:
    """The tower's frames of the waves, with noise for padding: nobody may read it."""
    frames = llm.audio_features(waves())
    n_B = torch.tensor([len(each) for each in frames])
    brain_BPA = torch.randn(
        len(frames), int(n_B.max()) + 3, llm.audio_width, generator=torch.Generator().manual_seed(1)
    )
    for row, each in enumerate(frames):
        brain_BPA[row, : len(each)] = each
    return brain_BPA, n_B


def forced(llm: AudioLLM, brain_BPA: torch.Tensor, n_B: torch.Tensor) -> TeacherForced:
    return teacher_forced(
        llm, brain_BPA, n_B, llm.prompt(INSTRUCTION), [llm.answer(each) for each in SENTENCES]
    )


def library_chats(llm: AudioLLM, side: str) -> Any:
    """Inputs that the library's processor makes of whole chats with audio, answers and their end
    included.
    """
    content = [{"type": "audio", "audio_url": ""}, {"type": "text", "text": INSTRUCTION}]
    asked = llm.processor.apply_chat_template(
        [{"role": "user", "content": content}], add_generation_prompt=True, tokenize=False
    )
    llm.tokenizer.padding_side = side
    texts = [f"{asked}{sentence}<|im_end|>" for sentence in SENTENCES]
    return llm.processor(
        text=texts, audio=waves(), sampling_rate=16000, return_tensors="pt", padding=True
    )


@pytest.mark.parametrize("side", ["right", "left"])
@torch.no_grad()
def test_with_audio_in_place_of_brains_the_logits_are_those_of_the_library(
    llm: AudioLLM, side: str
) -> None:
    inputs = library_chats(llm, side)
    expected_BSV = llm.network(**inputs).logits
    found_BKV = answer_logits(llm, forced(llm, *heard(llm)))
    for row, sentence in enumerate(SENTENCES):
        true = inputs["attention_mask"][row].nonzero()[:, 0]
        n_tokens = len(llm.tokenizer(sentence)["input_ids"]) + 1
        readers = true[-n_tokens - 1 : -1]  # each token is given one position before it
        torch.testing.assert_close(
            found_BKV[row, :n_tokens], expected_BSV[row, readers], rtol=1e-4, atol=1e-4
        )
        assert inputs["input_ids"][row, readers + 1].tolist() == llm.answer(sentence)


def test_targets_are_the_answers_with_their_ends(llm: AudioLLM) -> None:
    sequence = forced(llm, *heard(llm))
    for row, sentence in enumerate(SENTENCES):
        answer = llm.answer(sentence)
        assert sequence.targets_BK[row, : len(answer)].tolist() == answer
        assert sequence.targets_BK[row, len(answer) :].eq(0).all()
        assert sequence.n_tokens_B[row] == len(answer)
    before, after = llm.prompt(INSTRUCTION)
    n_read = sequence.mask_BS.sum(1) - sequence.n_tokens_B + 1  # the end is only a target
    assert (n_read - len(before) - len(after)).tolist() == heard(llm)[1].tolist()


@torch.no_grad()
def test_neither_padding_nor_the_other_trials_change_a_trial(llm: AudioLLM) -> None:
    brain_BPA, n_B = heard(llm)
    together = answer_logits(llm, forced(llm, brain_BPA, n_B))
    noise = torch.randn(3, 20, llm.audio_width) * 50
    padded_BPA = torch.cat([brain_BPA, noise], 1)
    padded_BPA[0, int(n_B[0]) :] = 1e3
    torch.testing.assert_close(answer_logits(llm, forced(llm, padded_BPA, n_B)), together)
    for row, sentence in enumerate(SENTENCES):
        n, answer = int(n_B[row]), llm.answer(sentence)
        alone = teacher_forced(
            llm, brain_BPA[row : row + 1, :n], n_B[row : row + 1], llm.prompt(INSTRUCTION), [answer]
        )
        torch.testing.assert_close(
            answer_logits(llm, alone)[0], together[row, : len(answer)], rtol=1e-4, atol=1e-5
        )


def test_gradients_reach_true_patches_and_only_those(llm: AudioLLM) -> None:
    brain_BPA, n_B = heard(llm)
    brain_BPA.requires_grad_()
    sequence = forced(llm, brain_BPA, n_B)
    log_probs_BKV = answer_logits(llm, sequence).log_softmax(-1)
    log_probs_BKV.gather(2, sequence.targets_BK[..., None])[:, 0].sum().backward()
    touched_BP = brain_BPA.grad.abs().sum(-1) > 0
    assert torch.equal(touched_BP, torch.arange(brain_BPA.shape[1]) < n_B[:, None])


@torch.no_grad()
def test_logits_are_computed_at_answers_alone(
    llm: AudioLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.Size] = []
    logits = llm.logits
    monkeypatch.setattr(
        llm, "logits", lambda hidden: (seen.append(hidden.shape), logits(hidden))[1]
    )
    sequence = forced(llm, *heard(llm))
    answer_logits(llm, sequence)
    assert seen == [(*sequence.targets_BK.shape, llm.text_width)]
