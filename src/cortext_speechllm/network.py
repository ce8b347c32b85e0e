"""The network of a speech LLM: encoder, projector and LoRA as one module.

The frozen language model is no part of the module: its weights are neither trained nor saved.

B trials, T bins, C features, P patches, D hidden units, V phoneme tokens, A width of the audio
tower, H width of the language model, K tokens of an answer, W words of its vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import nn

from cortext.errors import ConfigError
from cortext.memory import to_device
from cortext_speechllm.audio_llm.inputs import answer_logits, teacher_forced
from cortext_speechllm.audio_llm.model import AudioLLM
from cortext_speechllm.config import SpeechConfig
from cortext_speechllm.losses.alignment import length_mask, masked_mean


class SpeechOutput(NamedTuple):
    """Outputs for a batch; None for an output that no loss needs.

    Attributes:
        phonemes_BPV: Logits of the encoder's own read-out.
        brain_BPA: Patches in the space of the audio tower's output.
        answers: Logits [B, K, W], targets [B, K] and number [B] of the answers' tokens.
        pooled: Mean over the patches, and mean over the sentence's tokens, [B, H] each, in the
            language model's space.
    """

    phonemes_BPV: torch.Tensor
    brain_BPA: torch.Tensor
    answers: tuple[torch.Tensor, torch.Tensor, torch.Tensor] | None = None
    pooled: tuple[torch.Tensor, torch.Tensor] | None = None


class SpeechNetwork(nn.Module):
    """Network from neural features to phoneme logits, or to embeddings for an audio LLM.

    Args:
        encoder: A registered model that returns its hidden units (see
            `cortext.models.registry.Model`).
        speech: Section `speech` of the configuration.
        audio_width: A, width of the audio tower's frames.
        llm: The audio language model; None where only its audio tower's width is needed.

    Raises:
        ConfigError: For a model that returns no hidden units.
    """

    def __init__(
        self, encoder: Any, speech: SpeechConfig, audio_width: int, llm: AudioLLM | None
    ) -> None:
        super().__init__()
        if not hasattr(encoder, "hidden"):
            problem = f"model {encoder.config.kind!r} gives out no hidden units"
            raise ConfigError(
                problem,
                fix="use kind gru or triple_gru, or add hidden, read_out and n_hidden to it",
            )
        self.encoder = encoder
        self.config = encoder.config
        self.speech = speech
        self.projector = nn.Sequential(
            nn.Dropout(speech.projector_dropout),
            nn.Linear(encoder.n_hidden, audio_width),
            nn.LayerNorm(audio_width),
        )
        self.lora = nn.ParameterDict()
        self._frozen = (llm,)  # the tuple hides it from torch
        if llm is not None and speech.lora is not None:
            self.lora.update(llm.add_lora(speech.lora))

    @property
    def llm(self) -> AudioLLM:
        """The audio language model, where one was given."""
        (llm,) = self._frozen
        assert llm is not None  # only losses that read it ask for it
        return llm

    def n_patches(self, n_bins: Any) -> Any:
        """Return the number of patches of so many bins (an int, array or tensor)."""
        return self.encoder.n_patches(n_bins)

    def train(self, mode: bool = True) -> SpeechNetwork:
        """Set the mode of encoder, projector and LoRA; the frozen language model has no dropout."""
        super().train(mode)
        (llm,) = self._frozen
        if llm is not None:
            llm.train_lora(mode)
        return self

    def forward(
        self,
        x_BTC: torch.Tensor,
        day_B: torch.Tensor,
        state: Any = None,
        *,
        n_patches_B: torch.Tensor | None = None,
        answers: Sequence[Sequence[int]] | None = None,
    ) -> Any:
        """Return phoneme logits [B, P, V] and the encoder's state, as every acoustic model does.

        With answers, return a `SpeechOutput`.

        Args:
            x_BTC: See `cortext.models.registry.Model`, as for `day_B`, `state` and `n_patches_B`.
            day_B: Positions of the days.
            state: State of the encoder.
            n_patches_B: Patches of each trial; needed with answers.
            answers: Tokens of each trial's sentence, see `AudioLLM.answer`; read where a loss needs
                them.
        """
        hidden_BPD, state = self.encoder.hidden(x_BTC, day_B, state, n_patches_B=n_patches_B)
        phonemes_BPV = self.encoder.read_out(hidden_BPD)
        if answers is None:
            return phonemes_BPV, state
        assert n_patches_B is not None
        brain_BPA = self.projector(hidden_BPD)
        n_patches_B = to_device(n_patches_B, hidden_BPD.device)
        output = SpeechOutput(phonemes_BPV, brain_BPA)
        if not self.speech.reads_language_model:
            return output
        read_BPA, n_read_B = brain_BPA, n_patches_B
        if self.speech.merge_blanks:
            read_BPA, n_read_B = self._merged(hidden_BPD, phonemes_BPV, n_patches_B)
        if self.speech.beta:
            prompt = self.llm.prompt(self.speech.prompt)
            sequence = teacher_forced(self.llm, read_BPA, n_read_B, prompt, answers)
            logits_BKW = answer_logits(self.llm, sequence)
            output = output._replace(answers=(logits_BKW, sequence.targets_BK, sequence.n_tokens_B))
        if self.speech.gamma:
            brain_BH = masked_mean(self.llm.project(read_BPA), n_read_B)
            output = output._replace(pooled=(brain_BH, self._pooled_text(answers)))
        return output

    def embeddings(
        self, x_BTC: torch.Tensor, day_B: torch.Tensor, n_patches_B: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the vectors in the place of audio [B, P, A], and their number by trial [B].

        Args:
            x_BTC: See `forward`, as for the others.
            day_B: Positions of the days.
            n_patches_B: int64 [B], patches of each trial.
        """
        hidden_BPD, _ = self.encoder.hidden(x_BTC, day_B, n_patches_B=n_patches_B)
        n_patches_B = to_device(n_patches_B, hidden_BPD.device)
        if self.speech.merge_blanks:
            return self._merged(hidden_BPD, self.encoder.read_out(hidden_BPD), n_patches_B)
        return self.projector(hidden_BPD), n_patches_B

    def _merged(
        self, hidden_BPD: torch.Tensor, phonemes_BPV: torch.Tensor, n_patches_B: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        merged_BQD, n_merged_B = merge_blanks(hidden_BPD, phonemes_BPV.argmax(-1), n_patches_B)
        return self.projector(merged_BQD), n_merged_B

    def _pooled_text(self, answers: Sequence[Sequence[int]]) -> torch.Tensor:
        """Return the mean embedding [B, H] of each sentence's tokens, without the end token."""
        ends = set(self.llm.ends)
        own = [[token for token in answer if token not in ends] for answer in answers]
        rows = [torch.tensor(tokens, device=self.llm.device) for tokens in own]
        tokens_BK = nn.utils.rnn.pad_sequence(rows, batch_first=True)
        n_tokens_B = torch.tensor([len(tokens) for tokens in own], device=self.llm.device)
        return masked_mean(self.llm.embed(tokens_BK), n_tokens_B)


def merge_blanks(
    x_BPA: torch.Tensor, token_BP: torch.Tensor, n_patches_B: torch.Tensor, blank: int = 0
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the mean vector of each run of equal tokens, without the runs of blanks.

    The runs are those of CTC's best path (Graves et al., 2006). Gaido et al. (2021) shorten speech
    for a translator in this way. A trial with only blanks keeps the mean of all its patches: no
    sequence is empty.

    Args:
        x_BPA: Float, a vector for each patch.
        token_BP: int64 [B, P], the likeliest token of each patch.
        n_patches_B: int64 [B], patches of each trial.
        blank: The token that is left out.

    Returns:
        Vectors float [B, Q, A], zero-padded, and their number, int64 [B].
    """
    inside_BP = length_mask(n_patches_B, token_BP.shape[1])
    silent_B = ~((token_BP != blank) & inside_BP).any(1)
    token_BP = torch.where(silent_B[:, None], blank + 1, token_BP)
    begins_BP = torch.ones_like(inside_BP)
    begins_BP[:, 1:] = token_BP[:, 1:] != token_BP[:, :-1]
    kept_BP = inside_BP & (token_BP != blank)
    n_runs_B = (begins_BP & kept_BP).sum(1)
    run_BP = ((begins_BP & kept_BP).cumsum(1) - 1).clamp(min=0)
    member_BPQ = (
        run_BP[..., None] == torch.arange(int(n_runs_B.max()), device=run_BP.device)
    ) & kept_BP[..., None]
    share_BQP = member_BPQ.to(x_BPA.dtype).transpose(1, 2)
    x_BPA = x_BPA.masked_fill(~inside_BP[..., None], 0.0)
    size_BQ1 = share_BQP.sum(2, keepdim=True).clamp(min=1)
    return share_BQP @ x_BPA / size_BQ1, n_runs_B
