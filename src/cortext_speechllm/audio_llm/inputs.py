"""Inputs of the language model: prompt, brain, answer.

The brain's embeddings stand in the place of the audio's.

B trials, P patches, A width of the audio tower, H width of the language model, S positions, K
answer tokens, V tokens of the vocabulary
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from cortext_speechllm.audio_llm.model import AudioLLM

Prompt = tuple[list[int], list[int]]
"""Tokens before and after the audio, see `AudioLLM.prompt`."""


@dataclass(frozen=True)
class TeacherForced:
    """Prompts, brains and answers of a batch, padded on the right, for teacher forcing.

    Attributes:
        embeds_BSH: Inputs of the language model; the last token of an answer is only a target.
        mask_BS: Bool, False in the padding.
        reader_BK: int64, position whose hidden units predict each token of an answer: the one
            before it.
        targets_BK: int64, the answers' tokens, padded with 0.
        n_tokens_B: int64, tokens of each answer, its end included.
    """

    embeds_BSH: torch.Tensor
    mask_BS: torch.Tensor
    reader_BK: torch.Tensor
    targets_BK: torch.Tensor
    n_tokens_B: torch.Tensor


def teacher_forced(
    llm: AudioLLM,
    brain_BPA: torch.Tensor,
    n_patches_B: torch.Tensor,
    prompt: Prompt,
    answers: Sequence[Sequence[int]],
) -> TeacherForced:
    """Return the sequences in which each answer stands behind its prompt and brain.

    Only the answers give a loss.

    Args:
        llm: The audio language model.
        brain_BPA: Float [B, P, A], patches in the place of the audio tower's frames, padded.
        n_patches_B: int64 [B], patches of each trial.
        prompt: Tokens before and after the audio.
        answers: Tokens with their end, at least one each (`AudioLLM.answer`).
    """
    embeds_BSH, mask_BS, begin_B = lay_out(
        llm, brain_BPA, n_patches_B, prompt, [answer[:-1] for answer in answers]
    )
    targets_BK = _padded(answers, llm.device)
    reader_BK = begin_B[:, None] - 1 + torch.arange(targets_BK.shape[1], device=llm.device)
    n_tokens_B = torch.tensor([len(answer) for answer in answers], device=llm.device)
    return TeacherForced(
        embeds_BSH, mask_BS, reader_BK.clamp(max=mask_BS.shape[1] - 1), targets_BK, n_tokens_B
    )


def answer_logits(llm: AudioLLM, sequence: TeacherForced) -> torch.Tensor:
    """Return the logits [B, K, V] of the answers' tokens; no others are computed."""
    hidden_BSH = llm.hidden(sequence.embeds_BSH, sequence.mask_BS)
    reader_BKH = sequence.reader_BK[..., None].expand(-1, -1, hidden_BSH.shape[-1])
    return llm.logits(hidden_BSH.gather(1, reader_BKH))


def lay_out(
    llm: AudioLLM,
    brain_BPA: torch.Tensor,
    n_patches_B: torch.Tensor,
    prompt: Prompt,
    answers: Sequence[Sequence[int]],
    left: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return embeddings [B, S, H], their mask [B, S], and the first position [B] of each answer.

    Args:
        llm: The audio language model.
        brain_BPA: See `teacher_forced`.
        n_patches_B: See `teacher_forced`.
        prompt: Tokens before and after the audio.
        answers: The tokens of each answer so far.
        left: Pad on the left, so that all answers continue at the same position.
    """
    before, after = prompt
    texts_BT = _padded([[*before, *after, *answer] for answer in answers], llm.device)
    n_B = n_patches_B.to(llm.device)
    n_text_B = torch.tensor(
        [len(before) + len(after) + len(answer) for answer in answers], device=llm.device
    )
    length_B = n_text_B + n_B
    n_positions = int(length_B.max())
    shift_B = n_positions - length_B if left else torch.zeros_like(length_B)
    # Positions count from the first token of a trial's prompt.
    at_BS = torch.arange(n_positions, device=llm.device) - shift_B[:, None]
    brain_BS = at_BS - len(before)
    is_brain_BS = (brain_BS >= 0) & (brain_BS < n_B[:, None])
    text_BS = torch.where(brain_BS < 0, at_BS, at_BS - n_B[:, None]).clamp(0, texts_BT.shape[1] - 1)
    embeds_BSH = llm.embed(texts_BT.gather(1, text_BS))
    projected_BPH = llm.project(brain_BPA.to(llm.device)).to(embeds_BSH.dtype)
    brain_BS = brain_BS.clamp(0, projected_BPH.shape[1] - 1)
    brain_BSH = projected_BPH.gather(1, brain_BS[..., None].expand(-1, -1, projected_BPH.shape[-1]))
    embeds_BSH = torch.where(is_brain_BS[..., None], brain_BSH, embeds_BSH)
    mask_BS = (at_BS >= 0) & (at_BS < length_B[:, None])
    return embeds_BSH, mask_BS, shift_B + len(before) + n_B + len(after)


def _padded(rows: Sequence[Sequence[int]], device: torch.device) -> torch.Tensor:
    longest = max(map(len, rows))
    return torch.tensor(
        [[*row, *[0] * (longest - len(row))] for row in rows], dtype=torch.long, device=device
    )
