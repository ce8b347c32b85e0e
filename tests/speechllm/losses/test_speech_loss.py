"""The training loss of a speech LLM: its parts by weight, its targets by sentence."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from cortext.data import open_packed
from cortext.errors import DataError
from cortext.training.batches import TrainBatch
from cortext_speechllm.audio_llm.model import AudioLLM
from cortext_speechllm.config import SpeechConfig
from cortext_speechllm.losses.speech_loss import SpeechLoss, info_nce, sentences_of
from cortext_speechllm.network import SpeechOutput
from cortext_speechllm.targets.cache import TargetCache


@pytest.fixture
def split(recordings):
    return open_packed(recordings).split("train")


def a_batch(n_patches_B: torch.Tensor, indices: list[int]) -> TrainBatch:
    nothing = torch.zeros(len(indices), dtype=torch.int64)
    labels_BU = torch.tensor([[1, 2]] * len(indices))
    n_labels_B = torch.full((len(indices),), 2)
    return TrainBatch(
        torch.zeros(len(indices), 1, 1),
        nothing,
        nothing,
        n_patches_B,
        labels_BU,
        n_labels_B,
        np.array(indices),
        nothing,
    )


def test_losses_are_weighted_and_what_has_no_weight_is_left_out(split, cached, tiny_audio_llm):
    llm = AudioLLM.load(tiny_audio_llm)
    indices, n_patches_B = [3, 0, 7], torch.tensor([9, 12, 5])
    generator = torch.Generator().manual_seed(0)
    read = SpeechOutput(
        torch.randn(3, 12, 41, generator=generator),
        torch.randn(3, 12, 24, generator=generator),
        (
            torch.randn(3, 4, 50, generator=generator),
            torch.randint(0, 50, (3, 4)),
            torch.tensor([4, 2, 3]),
        ),
        (torch.randn(3, 32, generator=generator), torch.randn(3, 32, generator=generator)),
    )
    asked = {}

    def network(x_BTC, day_B, *, n_patches_B, answers):
        asked["answers"] = answers
        return read

    speech = SpeechConfig(alpha=2.0, beta=3.0, gamma=5.0, ctc=7.0, alignment="mse")
    loss = SpeechLoss(speech, split, llm, TargetCache.open(cached))
    losses = loss(network, a_batch(n_patches_B, indices), 0.0)
    expected_B = (
        2 * losses["alignment"]
        + 3 * losses["tokens"]
        + 5 * losses["contrastive"]
        + 7 * losses["ctc"]
    )
    torch.testing.assert_close(losses["loss"], expected_B)
    assert asked["answers"] == [llm.answer(split.sentence(i)) for i in indices]
    target_BNA, n_frames_B = TargetCache.open(cached).features([split.sentence(i) for i in indices])
    for row in range(3):  # by the definition, trial by trial
        patches = torch.nn.functional.interpolate(
            read.brain_BPA[row, : n_patches_B[row]].T[None],
            int(n_frames_B[row]),
            mode="linear",
            align_corners=False,
        )[0].T
        expected = (patches - target_BNA[row, : n_frames_B[row]]).square().mean()
        torch.testing.assert_close(losses["alignment"][row], expected, atol=1e-5, rtol=1e-5)
    lean = {
        "alpha": read,
        "beta": read._replace(answers=None),
        "gamma": read._replace(pooled=None),
        "ctc": read,
    }
    for (weight, given), name in zip(
        lean.items(), ("alignment", "tokens", "contrastive", "ctc"), strict=True
    ):
        left = SpeechLoss(replace(speech, **{weight: 0.0}), split, llm, TargetCache.open(cached))
        found = left(lambda *_, given=given, **__: given, a_batch(n_patches_B, indices), 0.0)
        assert set(found) == {"loss", "alignment", "tokens", "contrastive", "ctc"} - {name}


def test_trials_of_one_sentence_are_no_wrong_answers_for_each_other(split, tiny_audio_llm):
    llm = AudioLLM.load(tiny_audio_llm)
    generator = torch.Generator().manual_seed(0)
    pooled = (torch.randn(3, 32, generator=generator), torch.randn(3, 32, generator=generator))
    read = SpeechOutput(torch.zeros(3, 12, 41), torch.zeros(3, 12, 24), None, pooled)
    loss = SpeechLoss(SpeechConfig(alpha=0, beta=0, gamma=1.0), split, llm, None)
    losses = loss(lambda *_, **__: read, a_batch(torch.tensor([9, 9, 9]), [4, 4, 5]), 0.0)
    same_BB = torch.tensor([[True, True, False], [True, True, False], [False, False, True]])
    torch.testing.assert_close(losses["contrastive"], info_nce(*pooled, same_BB, 0.1))
    assert not torch.allclose(losses["contrastive"], info_nce(*pooled, None, 0.1))


def test_a_trial_without_a_sentence_is_named(split, monkeypatch):
    sentence = split.sentence
    monkeypatch.setattr(type(split), "sentence", lambda self, i: " " if i == 5 else sentence(i))
    with pytest.raises(
        DataError, match=r"block \d+/trial \d+.*the train split has a trial without a sentence"
    ):
        sentences_of(split)
