"""Beam search over an audio LLM's answers.

Hypotheses of different lengths are compared as in Wu et al. (2016) and in transformers: by
log-probability / length ** length_penalty.

B trials, P patches, A width of the audio tower, R rows (live hypotheses of all trials), V tokens of
the vocabulary, Q the best continuations of a trial
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field

import torch

from cortext.errors import DecodingError
from cortext_lm.llm.explain import out_of_memory
from cortext_speechllm.audio_llm.chat import Chat
from cortext_speechllm.audio_llm.inputs import Prompt, lay_out
from cortext_speechllm.audio_llm.model import AudioLLM


@dataclass(frozen=True)
class GeneratedText:
    """A sentence that was written.

    Attributes:
        text: The sentence, without markers.
        log_prob: Natural log-probability, summed over the tokens and the end token. A sentence that
            was cut off has no end token.
        n_tokens: Number of tokens in that sum.
        tokens: The tokens of that sum.
    """

    text: str
    log_prob: float
    n_tokens: int
    tokens: tuple[int, ...] = ()


@torch.no_grad()
def generate(
    llm: AudioLLM,
    brain_BPA: torch.Tensor,
    n_patches_B: torch.Tensor,
    prompt: Prompt,
    *,
    beams: int = 4,
    max_length: int = 50,
    min_length: int = 1,
    length_penalty: float = 1.0,
    nbest: int = 1,
) -> list[list[GeneratedText]]:
    """Return the best sentences of each trial, best first, at most `nbest` and all different.

    A trial's sentences do not depend on the other trials of the batch.

    Args:
        llm: The audio language model.
        brain_BPA: Float [B, P, A], patches in the place of the audio tower's frames, padded.
        n_patches_B: int64 [B], patches of each trial.
        prompt: Tokens before and after the audio.
        beams: Hypotheses kept at each step.
        max_length: Most tokens, the end included; longer sentences are cut off.
        min_length: Fewest tokens before the end.
        length_penalty: Hypotheses are ranked by log-probability / tokens ** length_penalty.
        nbest: Most sentences of a trial.

    Raises:
        DecodingError: For options that contradict each other, for sentences longer than the model's
            positions, and where memory runs out.
    """
    if not 1 <= nbest <= beams or not 0 <= min_length <= max_length or max_length < 1:
        problem = (
            f"{nbest} sentences of {beams} beams and {min_length} to {max_length} tokens cannot be"
            " searched for"
        )
        raise DecodingError(
            problem,
            fix=(
                "give at least as many beams as sentences, and max_length at least 1 and min_length"
            ),
        )
    searches = [_BeamSearch(beams, length_penalty) for _ in range(len(brain_BPA))]
    if searches:
        check_positions(llm.chat, prompt, int(n_patches_B.max()), max_length)
    try:
        if searches:
            _run(
                llm,
                searches,
                lay_out(llm, brain_BPA, n_patches_B, prompt, [[]] * len(searches), left=True)[:2],
                max_length,
                min_length,
            )
    except Exception as error:
        if not out_of_memory(error):
            raise
        problem = f"not enough memory to write {len(searches)} sentences at once with {beams} beams"
        raise DecodingError(
            problem, where=llm.name, fix="use fewer beams or a smaller batch"
        ) from error
    return [_candidates(llm, search, nbest) for search in searches]


def check_positions(chat: Chat, prompt: Prompt, n_patches: int, max_length: int) -> None:
    """Raise DecodingError where prompt, trial and sentence exceed the model's positions.

    Args:
        chat: Prompts of the model, and the number of its positions.
        prompt: Tokens before and after the audio.
        n_patches: Patches of the longest trial.
        max_length: Most tokens of a sentence, its end included.
    """
    n_given = len(prompt[0]) + n_patches + len(prompt[1])
    # The model never reads the last token: it needs no position.
    n_free = math.inf if chat.window is None else chat.window - n_given + 1
    if max_length > n_free:
        problem = (
            f"{max_length} tokens behind {n_given} positions of prompt and recording; the model"
            f" knows {chat.window}"
        )
        shorter = (
            f"set speech.generation.max_length (--max-length) to {n_free} or less, "
            if n_free > 0
            else ""
        )
        raise DecodingError(
            problem, where=chat.name, fix=f"{shorter}leave long trials out, or use another model"
        )


@dataclass
class _Hypothesis:
    """A prefix of a sentence; `row` is the row in the last batch that it extends."""

    tokens: tuple[int, ...]
    log_prob: float
    row: int


@dataclass
class _BeamSearch:
    """The beam search of one trial."""

    beams: int
    length_penalty: float
    live: list[_Hypothesis] = field(default_factory=lambda: [_Hypothesis((), 0.0, 0)])
    finished: list[_Hypothesis] = field(default_factory=list)
    done: bool = False

    def value(self, hypothesis: _Hypothesis) -> float:
        """Score by which hypotheses are ranked."""
        return float(hypothesis.log_prob / len(hypothesis.tokens) ** self.length_penalty)

    def take(
        self, continuations: Iterable[tuple[float, int, int]], ends: set[int], last: bool
    ) -> None:
        """Extend the hypotheses by the best continuations.

        An end counts only among the `beams` best. The search is done once `beams` hypotheses have
        finished and the best live one, at its present length, is no better than the worst of them.

        Args:
            continuations: (log-probability, row in the batch, token), best first.
            ends: Tokens that end a sentence.
            last: End all hypotheses: this is the last step.
        """
        came_of = {hypothesis.row: hypothesis for hypothesis in self.live}
        live = list[_Hypothesis]()
        for rank, (log_prob, row, token) in enumerate(continuations):
            longer = _Hypothesis((*came_of[row].tokens, token), log_prob, row)
            if token in ends or last:
                self.finished += [longer] if rank < self.beams else []
            elif len(live) < self.beams:
                live.append(longer)
        self.live = live
        self.finished = sorted(self.finished, key=self.value, reverse=True)[: self.beams]
        full = len(self.finished) == self.beams
        self.done = not live or (full and self.value(live[0]) <= self.value(self.finished[-1]))


def _run(
    llm: AudioLLM,
    searches: list[_BeamSearch],
    given: tuple[torch.Tensor, torch.Tensor],
    max_length: int,
    min_length: int,
) -> None:
    """Search all trials side by side; a trial that is done leaves the batch."""
    embeds_RSH, mask_RS = given
    ends = torch.tensor(llm.ends, device=llm.device)
    live = list(searches)
    for row, search in enumerate(live):
        search.live[0].row = row
    cache = None
    for length in range(1, max_length + 1):
        output = llm.step(embeds_RSH, mask_RS, past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        # Prompts are padded on the left, so the last position is every row's newest token.
        # bfloat16 has two to three digits: too few to rank sums of log-probabilities.
        log_probs_RV = llm.logits(output.last_hidden_state[:, -1]).float().log_softmax(-1)
        if length <= min_length:
            log_probs_RV[:, ends] = -math.inf
        _advance(live, log_probs_RV, set(llm.ends), length == max_length)
        live = [search for search in live if not search.done]
        rows = [hypothesis for search in live for hypothesis in search.live]
        if not rows:
            return
        before_R = torch.tensor([each.row for each in rows], device=llm.device)
        tokens_R1 = torch.tensor([[each.tokens[-1]] for each in rows], device=llm.device)
        cache.reorder_cache(before_R)
        embeds_RSH = llm.embed(tokens_R1)
        mask_RS = torch.nn.functional.pad(mask_RS[before_R], (0, 1), value=True)
        for row, each in enumerate(rows):
            each.row = row


def _advance(
    live: list[_BeamSearch], log_probs_RV: torch.Tensor, ends: set[int], last: bool
) -> None:
    """Extend each search by one token.

    Rows of a search lie side by side in the batch, in the order of its hypotheses.
    """
    # Each beam ends in at most len(ends) ways: at least `beams` of so many are still open.
    n_best = (1 + len(ends)) * live[0].beams
    device = log_probs_RV.device
    widest = max(len(search.live) for search in live)
    none = _Hypothesis((), -math.inf, 0)
    padded = [search.live + [none] * (widest - len(search.live)) for search in live]
    row_BW = torch.tensor([[each.row for each in row] for row in padded], device=device)
    score_BW = torch.tensor([[each.log_prob for each in row] for row in padded], device=device)
    # topk takes NaN for the largest number.
    best_RQ, token_RQ = log_probs_RV.nan_to_num_(nan=-math.inf, neginf=-math.inf).topk(
        min(n_best, log_probs_RV.shape[1])
    )
    total_BWQ = best_RQ[row_BW] + score_BW[..., None]
    best_BQ, place_BQ = total_BWQ.flatten(1).topk(min(n_best, total_BWQ[0].numel()))
    rows_BQ = row_BW.gather(1, place_BQ // best_RQ.shape[1])
    tokens_BQ = token_RQ[row_BW].flatten(1).gather(1, place_BQ)
    for search, *columns in zip(
        live, best_BQ.tolist(), rows_BQ.tolist(), tokens_BQ.tolist(), strict=True
    ):
        search.take(
            (each for each in zip(*columns, strict=True) if each[0] > -math.inf), ends, last
        )


def _candidates(llm: AudioLLM, search: _BeamSearch, nbest: int) -> list[GeneratedText]:
    """Return the finished sentences, best first; of equal texts only the best.

    Return one empty sentence where no token has a probability.
    """
    by_text = dict[str, GeneratedText]()
    for each in search.finished:
        text = llm.chat.text(list(each.tokens))
        by_text.setdefault(text, GeneratedText(text, each.log_prob, len(each.tokens), each.tokens))
    return list(by_text.values())[:nbest] or [GeneratedText("", -math.inf, 0)]
