"""Log-probabilities of sentences under a causal language model, many at a time.

Shapes: B sentences, T tokens, D hidden units, V tokens of the vocabulary, M pairs of a position and
the token after it.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from cortext.errors import CortextError, LanguageModelError, first_line
from cortext.memory import free_bytes
from cortext.text.language import EN, Language
from cortext_lm.llm.explain import ENDS, out_of_memory
from cortext_lm.llm.loading import free_gpu_bytes
from cortext_lm.llm.model import CausalLM

STOPS = ".?!"
LOGITS_BYTES = 64 << 20
"""Bytes of memory that hold logits at any time, about.

A vocabulary of 150,000 tokens takes 0.6 MB for every position.
"""
LONG_PREFIX = 8
"""Tokens from which on a prefix is read once for all sentences instead of once for each."""
SHARE = 0.5
"""Largest share of the free memory that one batch may take."""

AT_WORK = 32
"""Memory of a token in the layer at work, in multiples of the hidden width.

Keys and values add twice the width in each layer. That makes 48 for 8 layers; 20 to 33 were
measured (Llama, OPT, GPT-2; with and without a context).
"""


@dataclass(frozen=True, slots=True)
class TokenScore:
    """Natural log-probability of a sentence's tokens, and their number."""

    log_prob: float
    n_tokens: int


@dataclass(frozen=True, slots=True)
class _BatchRow:
    """One row of a batch: the tokens after the prefix without the last one.

    Sentences that differ only in their last token share a row: the same logits score all of them.
    """

    tokens: tuple[int, ...]
    last: tuple[int, ...]


def score_texts(
    lm: CausalLM,
    texts: Sequence[str],
    context: str = "",
    variants: str = "plain",
    batch_tokens: int | None = None,
    language: Language = EN,
) -> list[TokenScore]:
    """Return the natural log-probability of each text after BOS and `context`.

    A text that occurs twice is scored once; an empty text has no tokens, unless the model ends
    sentences (`lm.end`). Raises LanguageModelError where memory does not hold a single text, a text
    is longer than the window, or the model fails.

    Args:
        lm: The model.
        texts: Sentences.
        context: The preceding text, whose tokens are not counted.
        variants: `plain`, or `written`: the sum of the probabilities with a capital and each of the
            stops `.?!`; forms that the tokenizer does not tell apart count once. A script without
            capitals is written plainly.
        batch_tokens: Most tokens that go through the model at once, padding included; None: as many
            as the free memory holds (`tokens_that_fit`). Where memory runs out all the same, the
            number is halved and stays so.
        language: Language of the texts.
    """
    forms = {
        text: list({_tokens(lm, form, context): None for form in _forms(text, variants, language)})
        for text in texts
    }
    prefix = lm.prefix(context)
    _check_lengths(lm, len(prefix), forms)
    scores = score_tokens(
        lm, prefix, [tokens for ways in forms.values() for tokens in ways if tokens], batch_tokens
    )
    summed = {
        text: _summed([TokenScore(scores.get(one, 0.0), len(one)) for one in ways])
        for text, ways in forms.items()
    }
    return [summed[text] for text in texts]


def score_tokens(
    lm: CausalLM,
    prefix: list[int],
    sequences: Sequence[tuple[int, ...]],
    batch_tokens: int | None = None,
) -> dict[tuple[int, ...], float]:
    """Return the natural log-probability of each token sequence after the prefix.

    Errors are those of `score_texts`.

    Args:
        lm: The model.
        prefix: Tokens before every sequence (`CausalLM.prefix`).
        sequences: Sequences of at least one token each.
        batch_tokens: See `score_texts`.
    """
    lasts: dict[tuple[int, ...], dict[int, None]] = {}
    for tokens in sequences:
        lasts.setdefault(tokens[:-1], {})[tokens[-1]] = None
    # Rows of similar length go together, which saves padding. The longest are first: if memory is
    # too small, the first batch shows it.
    rows = [
        _BatchRow(tokens, tuple(last))
        for tokens, last in sorted(lasts.items(), key=lambda item: -len(item[0]))
    ]
    with lm.lock, torch.inference_mode(), explained_pass(lm):
        return _score_rows(lm, prefix, rows, batch_tokens)


def written_forms(text: str, language: Language = EN) -> list[str]:
    """Return the sentence with a capital, `I` for English `i`, and each of the stops."""
    words = [
        "I" + word[1:] if word == "i" or word.startswith("i'") else word for word in text.split()
    ]
    sentence = " ".join(words) if language.is_benchmark else text
    return [sentence[:1].upper() + sentence[1:] + stop for stop in STOPS]


def _forms(text: str, variants: str, language: Language) -> list[str]:
    has_capitals = language.is_benchmark or text.upper() != text
    if variants == "written" and text.strip() and has_capitals:
        return written_forms(text, language)
    return [text]


def _tokens(lm: CausalLM, text: str, context: str) -> tuple[int, ...]:
    return (*lm.tokens(text, context), *(() if lm.end is None else (lm.end,)))


def _summed(forms: Sequence[TokenScore]) -> TokenScore:
    """Return the summed probabilities of a text's forms, and the likeliest one's tokens."""
    best = max(forms, key=lambda form: form.log_prob)
    total = sum(math.exp(form.log_prob - best.log_prob) for form in forms)
    return TokenScore(best.log_prob + math.log(total), best.n_tokens)


def _check_lengths(lm: CausalLM, n_prefix: int, forms: dict[str, list[tuple[int, ...]]]) -> None:
    longest = max((len(tokens) for ways in forms.values() for tokens in ways), default=0)
    if n_prefix + longest > lm.window:
        raise LanguageModelError(
            f"a sentence has more tokens than the {lm.window - n_prefix} that the model reads after"
            f" the {n_prefix} before it",
            where=lm.name,
            fix="use a model with a longer window or a shorter context",
        )


def _score_rows(
    lm: CausalLM, prefix: list[int], rows: Sequence[_BatchRow], batch_tokens: int | None
) -> dict[tuple[int, ...], float]:
    """Return the log-probability of every row's tokens with each of its last ones.

    Rows are in order of length, longest first.
    """
    scores: dict[tuple[int, ...], float] = {}
    budget = batch_tokens or tokens_that_fit(lm.network, lm.batch_tokens)
    if not lm.splits:
        budget = min(budget, _positions_at_once(lm))
    cache = None
    done = 0
    while done < len(rows):
        n_cached = (
            len(prefix) - 1 if len(prefix) >= LONG_PREFIX and len(rows) > 1 and lm.continues else 0
        )
        width = len(prefix) + len(rows[done].tokens)
        batch = rows[done : done + max(1, budget // width)]
        try:
            if n_cached and cache is None:
                tokens_1T = torch.tensor([prefix[:n_cached]], device=lm.device)
                cache = lm.body(input_ids=tokens_1T, use_cache=True).past_key_values
            scores |= _score_batch(lm, prefix[n_cached:], batch, cache)
        except Exception as error:
            if not out_of_memory(error) or len(batch) == 1:
                raise
            budget = max(width, len(batch) * width // 2)
            lm.batch_tokens = min(lm.batch_tokens, budget)
        else:
            done += len(batch)
            continue
        if lm.device.type == "cuda":  # here nothing holds the tensors of the batch that did not fit
            torch.cuda.empty_cache()
    return scores


def tokens_that_fit(network: Any, most: int) -> int:
    """Return the number of tokens that may go through a network at once.

    That is `most`, halved until `SHARE` of the free memory holds the tokens; at least one. Where
    the free memory is not known, it is `most`.
    """
    config = network.config.get_text_config(decoder=True)
    width, layers = getattr(config, "hidden_size", None), getattr(config, "num_hidden_layers", None)
    free = free_bytes() if network.device.type == "cpu" else free_gpu_bytes(network.device)
    if free is None or not width or not layers:
        return most
    token_bytes = network.dtype.itemsize * width * (2 * layers + AT_WORK)
    while most > 1 and most * token_bytes > SHARE * free:
        most //= 2
    return most


@contextmanager
def explained_pass(lm: CausalLM) -> Iterator[None]:
    """Turn any failure of the model into a LanguageModelError."""
    try:
        yield
    except (CortextError, *ENDS):
        raise
    except BaseException as error:
        if out_of_memory(error):
            fix = "use a smaller model, a shorter context or another device"
            raise LanguageModelError(
                "not enough memory for a single sentence", where=lm.name, fix=fix
            ) from error
        raise LanguageModelError(
            f"the model failed ({first_line(error)})", where=lm.name
        ) from error


def _score_batch(
    lm: CausalLM, prefix: list[int], rows: Sequence[_BatchRow], cache: Any | None
) -> dict[tuple[int, ...], float]:
    """Score rows that go through the model together, after the tokens in `cache`."""
    sequences = [prefix + list(row.tokens) for row in rows]
    n_before = 0 if cache is None else cache.get_seq_length()
    tokens_BT, mask_BT = _padded(sequences, n_before, lm)
    pairs = [pair for b, row in enumerate(rows) for pair in _pairs(b, len(prefix) - 1, row)]
    row_M, at_M, next_M = (
        torch.tensor(column, device=lm.device) for column in zip(*pairs, strict=True)
    )
    inputs = {"input_ids": tokens_BT, "attention_mask": mask_BT, "use_cache": cache is not None}
    if cache is not None:  # a copy for each sequence that continues from it
        inputs["past_key_values"] = copied = copy.deepcopy(cache)
        copied.reorder_cache(torch.zeros(len(rows), dtype=torch.long))
    log_probs = iter(_log_probs(lm, inputs, row_M, at_M, next_M).double().tolist())
    scores: dict[tuple[int, ...], float] = {}
    for row in rows:
        beginning = math.fsum(next(log_probs) for _ in row.tokens)
        scores |= {(*row.tokens, last): beginning + next(log_probs) for last in row.last}
    if not all(math.isfinite(score) for score in scores.values()):
        fix = (
            f"its weights in {lm.network.dtype} may be too coarse; try it on the CPU, where it is"
            " float32"
        )
        raise LanguageModelError(
            "the model gave scores that are no numbers", where=lm.name, fix=fix
        )
    return scores


def _padded(sequences: Sequence[list[int]], n_before: int, lm: CausalLM) -> tuple[Tensor, Tensor]:
    """Return tokens [B, T] and mask [B, n_before + T], padded on the right.

    A causal model sees the padding from no position, positions are counted from the left by every
    model, and no tokenizer's padding matters.
    """
    longest = max(len(tokens) for tokens in sequences)
    tokens_BT = torch.tensor(
        [tokens + [lm.start] * (longest - len(tokens)) for tokens in sequences]
    )
    mask_BT = torch.tensor(
        [[1] * (n_before + len(tokens)) + [0] * (longest - len(tokens)) for tokens in sequences]
    )
    return tokens_BT.to(lm.device), mask_BT.to(lm.device)


def _pairs(b: int, first: int, row: _BatchRow) -> Iterator[tuple[int, int, int]]:
    """Yield number of the row, position, and the token whose probability is wanted there."""
    yield from ((b, first + n, token) for n, token in enumerate(row.tokens))
    yield from ((b, first + len(row.tokens), token) for token in row.last)


def _log_probs(
    lm: CausalLM, inputs: dict[str, Any], row_M: Tensor, at_M: Tensor, next_M: Tensor
) -> Tensor:
    """Return the log-probability of each wanted token, float32 [M].

    The whole vocabulary is held for few positions at a time.
    """
    if not lm.splits:  # then few positions go through the model at once
        logits_MV = lm.network(**inputs).logits[row_M, at_M]
        return _chosen(logits_MV, next_M)
    hidden_MD = lm.body(**inputs).last_hidden_state[row_M, at_M]
    n = _positions_at_once(lm)
    parts = zip(torch.split(hidden_MD, n), torch.split(next_M, n), strict=True)
    return torch.cat([_chosen(lm.head(hidden_ND), next_N) for hidden_ND, next_N in parts])


def _chosen(logits_NV: Tensor, next_N: Tensor) -> Tensor:
    logits_NV = logits_NV.float()
    return logits_NV.gather(1, next_N[:, None])[:, 0] - logits_NV.logsumexp(1)


def _positions_at_once(lm: CausalLM) -> int:
    return max(1, LOGITS_BYTES // (4 * lm.vocab_size))
