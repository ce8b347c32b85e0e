"""The training loss of a speech LLM: alignment, tokens, contrast and CTC, each by its weight.

B trials, N audio frames, A width of the audio tower, K tokens of an answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import torch

from cortext.data.packed import PackedSplit
from cortext.errors import DataError
from cortext.speechllm.audio_llm.model import AudioLLM
from cortext.speechllm.config import SpeechConfig
from cortext.speechllm.losses import ALIGNMENTS
from cortext.speechllm.losses.tokens import info_nce, token_cross_entropy
from cortext.speechllm.network import SpeechOutput
from cortext.training.batches import TrainBatch
from cortext.training.loss import ctc_loss, trial_name


class Targets(Protocol):
    """Gives the audio tower's output for sentences: a cache, or live speech."""

    def features(self, sentences: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """float32 [B, N, A], zeros behind, and int64 [B], the frames of each; on any device."""
        ...


class SpeechLoss:
    """alpha * alignment + beta * tokens + gamma * contrastive + ctc * CTC.

    A loss of weight 0 is not computed.

    Attributes:
        split: The trials that the batches' `indices` count.
        llm: The audio language model, for the sentences' tokens; None where no loss reads it.
        targets: Where the audio tower's output comes from; None with alpha = 0.

    Raises:
        DataError: For a trial without a sentence.
    """

    Config: ClassVar[type] = SpeechConfig

    def __init__(
        self,
        speech: SpeechConfig,
        split: PackedSplit,
        llm: AudioLLM | None,
        targets: Targets | None,
    ) -> None:
        self.speech, self.targets = speech, targets
        self.sentences = sentences_of(split)
        self._distinct = {
            sentence: number for number, sentence in enumerate(dict.fromkeys(self.sentences))
        }
        asked = speech.reads_language_model
        assert llm is not None or not asked
        self._answers = {
            sentence: llm.answer(sentence) if asked and llm else [] for sentence in self._distinct
        }

    def __call__(self, network: Any, batch: TrainBatch, fraction: float) -> dict[str, torch.Tensor]:
        """Losses by name, float32 [B] each; see `cortext.training.loss.Loss`."""
        return self.read(network, batch)[1]

    def read(self, network: Any, batch: TrainBatch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """The encoder's phoneme logits [B, P, V] of a batch, and the losses by name."""
        sentences = [self.sentences[i] for i in batch.indices.tolist()]
        answers = [self._answers[sentence] for sentence in sentences]
        read: SpeechOutput = network(
            batch.x_BTC, batch.day_B, n_patches_B=batch.n_patches_B, answers=answers
        )
        return read.phonemes_BPV, self._losses(read, batch, sentences)

    def _losses(
        self, read: SpeechOutput, batch: TrainBatch, sentences: Sequence[str]
    ) -> dict[str, torch.Tensor]:
        speech, device, losses = self.speech, batch.x_BTC.device, dict[str, torch.Tensor]()
        if speech.alpha:
            assert self.targets is not None
            target_BNA, n_frames_B = (
                each.to(device, non_blocking=True) for each in self.targets.features(sentences)
            )
            n_patches_B = batch.n_patches_B.to(device)
            losses["alignment"] = ALIGNMENTS[speech.alignment](
                read.brain_BPA, n_patches_B, target_BNA, n_frames_B
            )
        if read.answers is not None:
            losses["tokens"] = token_cross_entropy(*read.answers)
        if read.pooled is not None:
            number_B = torch.tensor(
                [self._distinct[sentence] for sentence in sentences], device=device
            )
            same_BB = number_B[:, None] == number_B
            losses["contrastive"] = info_nce(*read.pooled, same_BB, speech.temperature)
        if speech.ctc:
            losses["ctc"] = ctc_loss(
                read.phonemes_BPV, batch.n_patches_B, batch.labels_BU, batch.n_labels_B
            )
        return {
            "loss": sum(speech.weights[name] * loss_B for name, loss_B in losses.items()),  # type: ignore[dict-item]
            **losses,
        }


def sentences_of(split: PackedSplit) -> list[str]:
    """The sentence of each trial. Raises DataError for a trial without one."""
    sentences = []
    for i in range(len(split)):
        sentence = (split.sentence(i) or "").strip()
        if not sentence:
            what = f"the {split.name} split has a trial without a sentence"
            raise DataError(
                what, where=trial_name(split, i), fix="name it in dataset.bad_trials_dict"
            )
        sentences.append(sentence)
    return sentences
