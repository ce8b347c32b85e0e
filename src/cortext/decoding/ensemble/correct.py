"""Generative correction: a large language model reads what the systems heard, and says what it was.

What it may say is held to the hypotheses: every sentence of theirs and the best paths through their word transition
network are scored, given the prompt, and one of them is the result. Only `free` lets it write by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from cortext.decoding.ensemble.candidates import Weighted
from cortext.decoding.ensemble.mbr import least_risk, risks
from cortext.decoding.ensemble.network import Slot
from cortext.decoding.ensemble.options import EnsembleOptions
from cortext.decoding.ensemble.rover import best_paths
from cortext.text.normalize import normalize

if TYPE_CHECKING:
    from cortext.decoding.llm.model import CausalLM

PROMPT = """Several speech recognizers listened to one English sentence. This is what they heard, with their votes:
{hypotheses}
Which sentence was said? Choose one or combine their words. Answer with the sentence only, in lower case."""
ANSWER = "Sentence:"
"""How the model's answer begins; the candidates follow."""

IN_PROMPT = 10
"""So many of the heaviest hypotheses are shown."""


class Corrector(Protocol):
    """What asks a large language model."""

    def score(self, prompt: str, texts: Sequence[str]) -> list[float]:
        """Natural-log probability of each text as the answer to the prompt."""

    def write(self, prompt: str, most_words: int) -> str:
        """The model's own answer."""


def prompt_for(candidates: Sequence[Weighted]) -> str:
    """The prompt: the hypotheses, the heaviest first, each with its share of the votes."""
    heaviest = sorted(candidates, key=lambda candidate: -candidate.weight)[:IN_PROMPT]
    lines = [f"- {' '.join(candidate.words) or '(nothing)'} ({candidate.weight:.0%})" for candidate in heaviest]
    return PROMPT.format(hypotheses="\n".join(lines))


def correct(
    candidates: Sequence[Weighted], slots: Sequence[Slot], options: EnsembleOptions, llm: Corrector
) -> tuple[str, ...]:
    """The candidate or path of the network with the highest llm_weight * log P(text | prompt) - risk.

    The risk is the word errors to be expected (`mbr.risks`), so that a weight of 0 leaves minimum Bayes risk over
    candidates and paths. With `free` what the model writes, normalised; where it writes nothing, as without a model.
    """
    prompt = prompt_for(candidates)
    if options.free:
        longest = max(len(candidate.words) for candidate in candidates)
        written = tuple(normalize(llm.write(prompt, longest)).split())
        return written or candidates[least_risk(candidates)].words
    own = [candidate.words for candidate in candidates]
    texts = list(dict.fromkeys([*own, *best_paths(slots, options, options.candidates)]))
    log_probs = llm.score(prompt, [" ".join(words) for words in texts])
    scores = options.llm_weight * np.array(log_probs) - risks(texts, candidates)
    return texts[int(np.argmax(scores >= scores.max() - 1e-9))]


class LargeCorrector:
    """A causal language model of transformers, asked through its chat template where it has one."""

    def __init__(self, lm: CausalLM) -> None:
        self.lm = lm
        self._known: dict[tuple[str, str], float] = {}

    def score(self, prompt: str, texts: Sequence[str]) -> list[float]:
        """As `Corrector` has it; what was scored before is remembered, so that weights can be fitted."""
        from cortext.decoding.llm.scoring import score_texts

        new = [text for text in texts if (prompt, text) not in self._known]
        if new:
            scored = score_texts(self.lm, new, context=self.context(prompt))
            self._known |= {(prompt, text): score.log_prob for text, score in zip(new, scored, strict=True)}
        return [self._known[prompt, text] for text in texts]

    def write(self, prompt: str, most_words: int) -> str:
        """Greedy generation up to the end of the line."""
        import torch

        tokens = torch.tensor([self.lm.prefix(self.context(prompt))], device=self.lm.device)
        with self.lm.lock, torch.inference_mode():
            found = self.lm.network.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                do_sample=False,
                max_new_tokens=min(4 * most_words + 16, self.lm.window - tokens.shape[1]),
                pad_token_id=self.lm.start,
            )
        written: str = self.lm.tokenizer.decode(found[0, tokens.shape[1] :], skip_special_tokens=True)
        return next((line for line in written.splitlines() if line.strip()), "")

    def context(self, prompt: str) -> str:
        """The prompt as the model was taught to read it, and the beginning of its answer."""
        tokenizer = self.lm.tokenizer
        if getattr(tokenizer, "chat_template", None) is None:
            return f"{prompt}\n{ANSWER}"
        asked = [{"role": "user", "content": prompt}]
        text: str = tokenizer.apply_chat_template(
            asked, tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
        return text.removeprefix(tokenizer.bos_token or "") + ANSWER
