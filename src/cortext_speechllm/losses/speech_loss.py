"""The training loss of a speech LLM: alignment, tokens, contrast and CTC, each by its weight.

B trials, N audio frames, A width of the audio tower, K tokens of an answer, V vocabulary, H width
of a pooled vector, M answer tokens of all trials.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

import torch
import torch.nn.functional as F

from cortext.data.packed import PackedSplit
from cortext.errors import DataError
from cortext.training.batches import TrainBatch
from cortext.training.loss import ctc_loss, trial_name
from cortext_speechllm.audio_llm.model import AudioLLM
from cortext_speechllm.config import SpeechConfig
from cortext_speechllm.losses import ALIGNMENTS
from cortext_speechllm.losses.alignment import in_float32, length_mask, unit, widened
from cortext_speechllm.network import SpeechOutput


class AudioTargets(Protocol):
    """A source of the audio tower's output for sentences: a cache, or live speech."""

    def features(self, sentences: Sequence[str]) -> tuple[torch.Tensor, torch.Tensor]:
        """Return frames float32 [B, N, A], zero-padded, and their numbers int64 [B].

        Both may be on any device.
        """
        ...


class SpeechLoss:
    """alpha * alignment + beta * tokens + gamma * contrastive + ctc * CTC.

    A loss of weight 0 is not computed.

    Args:
        speech: Weights and options of the losses.
        split: The trials that the batches' `indices` count.
        llm: The audio language model, for the sentences' tokens; None where no loss reads it.
        targets: Source of the audio tower's output; None with alpha = 0.

    Raises:
        DataError: For a trial without a sentence.
    """

    Config: ClassVar[type] = SpeechConfig

    def __init__(
        self,
        speech: SpeechConfig,
        split: PackedSplit,
        llm: AudioLLM | None,
        targets: AudioTargets | None,
    ) -> None:
        self.speech = speech
        self.targets = targets
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
        """Return the losses by name, float32 [B] each; see `cortext.training.loss.Loss`."""
        return self.read(network, batch)[1]

    def read(self, network: Any, batch: TrainBatch) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Return the encoder's phoneme logits [B, P, V] of a batch, and the losses by name."""
        sentences = [self.sentences[i] for i in batch.indices.tolist()]
        answers = [self._answers[sentence] for sentence in sentences]
        read: SpeechOutput = network(
            batch.x_BTC, batch.day_B, n_patches_B=batch.n_patches_B, answers=answers
        )
        return read.phonemes_BPV, self._losses(read, batch, sentences)

    def _losses(
        self, read: SpeechOutput, batch: TrainBatch, sentences: Sequence[str]
    ) -> dict[str, torch.Tensor]:
        speech = self.speech
        device = batch.x_BTC.device
        losses = dict[str, torch.Tensor]()
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
    """Return the sentence of each trial. Raises DataError for a trial without one."""
    sentences = []
    for i in range(len(split)):
        sentence = (split.sentence(i) or "").strip()
        if not sentence:
            problem = f"the {split.name} split has a trial without a sentence"
            raise DataError(
                problem, where=trial_name(split, i), fix="name it in dataset.bad_trials_dict"
            )
        sentences.append(sentence)
    return sentences


def token_cross_entropy(
    logits_BKV: torch.Tensor, targets_BK: torch.Tensor, n_tokens_B: torch.Tensor
) -> torch.Tensor:
    """Return the mean negative log-probability (natural) of a trial's tokens, float32 [B].

    Only the logits of true tokens are converted to float32, which saves memory.

    Args:
        logits_BKV: Logits of the answers' tokens, padded.
        targets_BK: int64, true tokens, padded.
        n_tokens_B: int64 [B], tokens of each trial; 0 gives a loss of 0.
    """
    n_tokens_B = n_tokens_B.to(logits_BKV.device)
    mask_BK = length_mask(n_tokens_B, targets_BK.shape[1])
    trial_M = mask_BK.nonzero()[:, 0]
    with torch.autocast(logits_BKV.device.type, enabled=False):
        loss_M = F.cross_entropy(
            widened(logits_BKV[mask_BK]), targets_BK[mask_BK], reduction="none"
        )
        sum_B = loss_M.new_zeros(len(n_tokens_B)).index_add(0, trial_M, loss_M)
        return sum_B / n_tokens_B.clamp(min=1)


@in_float32
def info_nce(
    x_BH: torch.Tensor,
    y_BH: torch.Tensor,
    same_BB: torch.Tensor | None = None,
    temperature: float = 0.1,
) -> torch.Tensor:
    """Return the InfoNCE loss of x and y of each trial among those of the others, float32 [B].

    It is the cross-entropy of cosines over a temperature (van den Oord et al. 2018): the mean of
    both directions, from x to its y and from y to its x (Radford et al. 2021).

    Args:
        x_BH: Float, first view of each trial.
        y_BH: Float, second view of each trial.
        same_BB: Bool, True where two trials have the same sentence: neither counts as a wrong
            answer for the other. None if all sentences differ.
        temperature: Divisor of the cosines.
    """
    logits_BB = unit(x_BH) @ unit(y_BH).T / temperature
    if same_BB is not None:
        itself_BB = torch.eye(len(x_BH), dtype=torch.bool, device=x_BH.device)
        logits_BB = logits_BB.masked_fill(same_BB.to(x_BH.device) & ~itself_BB, -torch.inf)
    chance_B = (logits_BB.logsumexp(0) + logits_BB.logsumexp(1)) / 2
    return chance_B - logits_BB.diagonal()
