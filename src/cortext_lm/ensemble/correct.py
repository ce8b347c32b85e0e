"""Generative correction: a large language model reads the systems' sentences and writes one.

The model chooses word by word, at each position among the words of the hypotheses' transition
network. Only `free` lets it write by itself.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from cortext.errors import LanguageModelError
from cortext.text.language import EN, Language
from cortext_lm.ensemble.candidates import Weighted, least_risk, risks
from cortext_lm.ensemble.options import EnsembleOptions
from cortext_lm.ensemble.rover import NULL, Slot

if TYPE_CHECKING:
    from cortext_lm.llm.model import CausalLM

PROMPT = """Several speech recognizers listened to one {language}sentence. This is what they heard, with their votes:
{hypotheses}
Which sentence was said? Choose one or combine their words. Answer with the sentence only, in lower case."""  # noqa: E501
ANSWER = "Sentence:"
"""Beginning of the model's answer; the candidates follow."""

IN_PROMPT = 10
"""Number of hypotheses that the prompt shows, the heaviest ones."""

MOST_SCORED = 100
"""Number of hypotheses that the model scores: the heaviest ones, and those as heavy as the last.

A lattice has many that are next to impossible.
"""


class Corrector(Protocol):
    """Interface to a large language model that corrects sentences."""

    def score(self, prompt: str, texts: Sequence[str], complete: bool = True) -> list[float]:
        """Return the natural-log probability of each text as the answer to the prompt.

        Args:
            prompt: Question to the model (`prompt_for`).
            texts: Normalised sentences or beginnings of such.
            complete: True if a text is the whole answer, False if the answer begins with it.
        """

    def write(self, prompt: str, most_words: int) -> str:
        """Return an answer that the model writes by itself; `most_words` bounds its length."""


def prompt_for(candidates: Sequence[Weighted], language: Language = EN) -> str:
    """Return the prompt: the heaviest hypotheses, each with its share of the votes."""
    heaviest = sorted(candidates, key=lambda candidate: -candidate.weight)[:IN_PROMPT]
    lines = [
        f"- {language.joined(candidate.words) or '(nothing)'} ({candidate.weight:.0%})"
        for candidate in heaviest
    ]
    named = "English " if language.is_benchmark else ""
    return PROMPT.format(language=named, hypotheses="\n".join(lines))


def correct(
    candidates: Sequence[Weighted],
    slots: Sequence[Slot],
    options: EnsembleOptions,
    llm: Corrector,
    language: Language = EN,
) -> tuple[str, ...]:
    """Return the sentence with the highest llm_weight * log P(text | prompt) - risk.

    The candidates and the `written` sentences are compared. The risk is the expected number of word
    errors (`candidates.risks`), so that a weight of 0 leaves minimum Bayes risk over candidates and
    paths. With `free` the model writes the sentence, which is normalised; where it writes nothing,
    the candidate with the least risk is returned.

    Args:
        candidates: Sentences of the systems with their weights.
        slots: Transition network of the candidates (`rover.build_network`).
        options: `llm_weight`, `candidates` and `free` are used.
        llm: The large language model.
        language: Language of the sentences, as which the model reads and writes them.

    Raises:
        LanguageModelError: Where the model fails.
    """
    prompt = prompt_for(candidates, language)
    if options.free:
        longest = max(len(candidate.words) for candidate in candidates)
        answer = tuple(language.normalize(llm.write(prompt, longest)).split())
        return answer or candidates[least_risk(candidates)].words
    heaviest = sorted(candidates, key=lambda candidate: -candidate.weight)[:MOST_SCORED]
    own = [candidate.words for candidate in candidates if candidate.weight >= heaviest[-1].weight]
    texts = list(dict.fromkeys([*own, *written(prompt, slots, options, llm, language)]))
    log_probs = llm.score(prompt, [language.joined(words) for words in texts])
    scores = options.llm_weight * np.array(log_probs) - risks(texts, candidates)
    return texts[int(np.argmax(scores >= scores.max() - 1e-9))]


def written(
    prompt: str,
    slots: Sequence[Slot],
    options: EnsembleOptions,
    llm: Corrector,
    language: Language = EN,
) -> list[tuple[str, ...]]:
    """Return at most `candidates` sentences that the model writes along the network.

    This is a beam search, slot by slot. Beginnings are ranked by
    llm_weight * log P(beginning | prompt) - errors. The errors are the votes that the beginning did
    not get, which is their expected number if the alignment is right. As long as there are no more
    paths than `candidates`, the model is not asked.

    Args:
        prompt: Question to the model (`prompt_for`).
        slots: Transition network of the candidates (`rover.build_network`).
        options: `candidates` and `llm_weight` are used.
        llm: The large language model.
        language: Language of the sentences.
    """
    beginnings: dict[tuple[str, ...], float] = {(): 0.0}  # and the expected errors so far
    for slot in slots:
        longer: dict[tuple[str, ...], float] = {}
        for words, errors in beginnings.items():
            for word, votes in slot.votes.items():
                text = words if word == NULL else (*words, word)
                longer[text] = min(longer.get(text, np.inf), errors + 1 - votes)
        beginnings = longer
        if len(longer) > options.candidates:
            log_probs = llm.score(prompt, [language.joined(words) for words in longer], False)
            scored = {
                words: options.llm_weight * log_prob - errors
                for (words, errors), log_prob in zip(longer.items(), log_probs, strict=True)
            }
            best = sorted(scored, key=lambda words: -scored[words])[: options.candidates]
            beginnings = {words: longer[words] for words in best}
    return list(beginnings)


class LargeCorrector:
    """A causal language model of transformers, asked through its chat template where it has one."""

    def __init__(self, lm: CausalLM) -> None:
        self.lm = lm
        self._known: dict[tuple[str, str, bool], float] = {}

    def score(self, prompt: str, texts: Sequence[str], complete: bool = True) -> list[float]:
        """See `Corrector`.

        Scores are remembered: fitting weights asks for the same sentences again. A complete answer
        includes the token that ends it. Without that token a sentence that breaks off would have
        fewer factors below 1, and a higher score.
        """
        new = list(
            dict.fromkeys(text for text in texts if (prompt, text, complete) not in self._known)
        )
        if new:
            log_probs = self._scored(prompt, new, complete)
            self._known |= {
                (prompt, text, complete): log_prob
                for text, log_prob in zip(new, log_probs, strict=True)
            }
        return [self._known[prompt, text, complete] for text in texts]

    def _scored(self, prompt: str, texts: Sequence[str], complete: bool) -> list[float]:
        from cortext_lm.llm.scoring import score_tokens

        lm = self.lm
        context = self.context(prompt)
        last = lm.end if lm.end is not None else lm.tokenizer.eos_token_id
        ending = (last,) if complete and last is not None else ()
        answers = [(*lm.tokens(text, context), *ending) for text in texts]
        prefix = lm.prefix(context)
        if len(prefix) + max(map(len, answers)) > lm.window:
            fix = "use a model with a longer window"
            raise LanguageModelError(
                "the prompt and a sentence are longer than its window", where=lm.name, fix=fix
            )
        log_probs = score_tokens(lm, prefix, [answer for answer in answers if answer])
        return [log_probs[answer] if answer else 0.0 for answer in answers]

    def write(self, prompt: str, most_words: int) -> str:
        """Return the first line with text that greedy generation gives; empty without any.

        Raises:
            LanguageModelError: Where the model fails.
        """
        import torch

        from cortext_lm.llm.scoring import explained_pass

        tokens = torch.tensor([self.lm.prefix(self.context(prompt))], device=self.lm.device)
        with explained_pass(self.lm), self.lm.lock, torch.inference_mode():
            tokens_BT = self.lm.network.generate(
                tokens,
                attention_mask=torch.ones_like(tokens),
                do_sample=False,
                max_new_tokens=min(4 * most_words + 16, self.lm.window - tokens.shape[1]),
                pad_token_id=self.lm.start,
            )
        answer: str = self.lm.tokenizer.decode(
            tokens_BT[0, tokens.shape[1] :], skip_special_tokens=True
        )
        return next((line for line in answer.splitlines() if line.strip()), "")

    def context(self, prompt: str) -> str:
        """Return the prompt in the model's chat template, if any, and the answer's beginning."""
        from cortext_lm.llm.chat_template import render
        from cortext_lm.llm.scoring import explained_pass

        tokenizer = self.lm.tokenizer
        if getattr(tokenizer, "chat_template", None) is None:
            return f"{prompt}\n{ANSWER}"
        asked = [{"role": "user", "content": prompt}]
        with explained_pass(self.lm):
            text = render(
                tokenizer.chat_template,
                asked,
                tokenizer,
                add_generation_prompt=True,
                enable_thinking=False,
            )
        return text.removeprefix(tokenizer.bos_token or "") + ANSWER
