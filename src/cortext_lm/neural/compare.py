"""An n-gram and a neural model on the same text.

Bits per character of each, and of both mixed word by word.

Every word of the text and every sentence end is an event with a probability under each model; the
characters are the letters, the blanks between words, and one for each sentence end.

The neural model spells everything. With s the tokens that begin a word or end the sentence, a word
of pieces c1..cn after history h has the probability

    p(c1 | h) / p(s | h) * p(c2 | h c1) * ... * p(cn | ...) * p(s | h c1..cn)

that is, it is this word and no longer one that begins so. The divisor of the first piece is the
last factor of the word before. So the product over a sentence is that of its tokens, and the words
after a history sum to one or less.

The n-gram gives a word that it does not know the probability of <unk>, times that of the word's
spelling. The spelling has a model of letters, made from the n-gram's own vocabulary. As <unk> is
far too rare in the n-gram, it is mixed with that model of letters:

    (1 - u) * ngram(word | h) + u * letters(word)

The weight u, and that of the neural model in the mixture of both, are fitted on other held-out
text.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from cortext.decoding.ngram import LanguageModel
from cortext.decoding.ngram.vocabulary import spelt
from cortext.errors import LanguageModelError
from cortext.processes import Progress
from cortext_lm.llm.model import CausalLM
from cortext_lm.neural.pieces import encode, starts
from cortext_lm.neural.texts import length_batches, read_sentences
from cortext_lm.ngram.interpolate import maximise

_BATCH_TOKENS = 2048
_LETTER_ORDER = 6
_RESAMPLES = 1000


@dataclass(frozen=True)
class TextLogProbs:
    """Natural log-probabilities of every word and sentence end of a text, sentence by sentence."""

    ngram: np.ndarray
    letters: np.ndarray
    """-inf at sentence ends."""
    neural: np.ndarray
    sentence: np.ndarray
    """Number of the sentence that each event is in."""
    characters: np.ndarray
    """Characters of each sentence, its end included."""
    unknown: int
    """Words that the n-gram does not know."""


def compare(
    ngram_dir: Path,
    model: str | Path,
    text: Path,
    held_out: Path,
    progress: Progress = lambda done, total: None,
) -> dict[str, Any]:
    """Compare bits per character of a text under an n-gram, a neural model, and their mixture.

    Args:
        ngram_dir: Language-model directory.
        model: Directory or name of the neural model.
        text: The text that is scored.
        held_out: Another text, on which the weights are fitted.
        progress: Called with sentences done and in all.

    Raises:
        LanguageModelError: For models and texts that cannot be used.
    """
    if text.resolve() == held_out.resolve():
        raise LanguageModelError(
            "the weights would be fitted on the text itself", where=text, fix="give another text"
        )
    ngram = LanguageModel.open(ngram_dir)
    if ngram.is_open or not ngram.language.is_benchmark:
        raise LanguageModelError(
            f"only n-grams of English words are compared; this one is of {ngram.unit}s in"
            f" {ngram.language.name!r}",
            where=ngram_dir,
            fix="measure its perplexity: cortext lm score",
        )
    neural = CausalLM.load(model, device="cpu")
    first, second = read_sentences(held_out), read_sentences(text)
    total = len(first) + len(second)
    with tempfile.TemporaryDirectory() as folder:
        letters = letter_model(ngram, Path(folder) / "letters")
        fitted = events(ngram, letters, neural, first, lambda done, _: progress(done, total))
        tested = events(
            ngram, letters, neural, second, lambda done, _: progress(len(first) + done, total)
        )
    return _report(fitted, tested)


def _report(fitted: TextLogProbs, tested: TextLogProbs) -> dict[str, Any]:
    spelling = float(fit([fitted.ngram, fitted.letters])[1])
    weight = float(fit([open_ngram(fitted, spelling), fitted.neural])[1])
    ngram = open_ngram(tested, spelling)
    both = mixed([ngram, tested.neural], [1 - weight, weight])
    n_characters = int(tested.characters.sum())
    return {
        "sentences": len(tested.characters),
        "words": len(tested.ngram) - len(tested.characters),
        "characters": n_characters,
        "unknown_words": tested.unknown,
        "bits_per_character": {
            name: -float(log_probs.sum()) / math.log(2) / n_characters
            for name, log_probs in (
                ("ngram", ngram),
                ("neural", tested.neural),
                ("interpolated", both),
            )
        },
        "perplexity": {
            name: math.exp(-float(log_probs.mean()))
            for name, log_probs in (
                ("ngram", ngram),
                ("neural", tested.neural),
                ("interpolated", both),
            )
        },
        "gain": _gain(tested, ngram, both),
        "weights": {
            "neural": weight,
            "spelling": spelling,
            "fitted_on_words": len(fitted.ngram) - len(fitted.characters),
        },
    }


def _gain(tested: TextLogProbs, ngram: np.ndarray, both: np.ndarray) -> dict[str, float]:
    """Return the bits per character by which the mixture is below the n-gram.

    The 95 % interval comes from resampling sentences.
    """
    bits_S = np.bincount(
        tested.sentence, weights=(both - ngram) / math.log(2), minlength=len(tested.characters)
    )
    generator = np.random.default_rng(0)
    gains_R = np.empty(_RESAMPLES)
    for number in range(_RESAMPLES):
        chosen_S = generator.integers(0, len(bits_S), len(bits_S))
        gains_R[number] = bits_S[chosen_S].sum() / tested.characters[chosen_S].sum()
    low, high = np.quantile(gains_R, [0.025, 0.975])
    return {
        "bits_per_character": float(bits_S.sum() / tested.characters.sum()),
        "low": float(low),
        "high": float(high),
    }


def fit(log_probs: Sequence[np.ndarray]) -> np.ndarray:
    """Fit the weights of the linear mixture under which events are most probable.

    Each array has the natural log-probabilities under one model, [events].
    """
    stacked_EM = np.stack(log_probs, axis=1)
    best_E1 = stacked_EM.max(axis=1, keepdims=True)
    return maximise(np.exp(stacked_EM - best_E1), np.ones(len(stacked_EM)))


def mixed(log_probs: Sequence[np.ndarray], weights: Sequence[float]) -> np.ndarray:
    """Return log sum_m weights[m] * exp(log_probs[m]), [events]."""
    with np.errstate(divide="ignore"):
        terms = [np.log(weight) + each for weight, each in zip(weights, log_probs, strict=True)]
    return np.asarray(np.logaddexp.reduce(terms))


def open_ngram(log_probs: TextLogProbs, spelling: float) -> np.ndarray:
    """Return log-probabilities [events] of the n-gram mixed with the model of letters."""
    return mixed([log_probs.ngram, log_probs.letters], [1 - spelling, spelling])


def letter_model(ngram: LanguageModel, out: Path) -> LanguageModel:
    """Build a model of spelling from the words of an n-gram's vocabulary, each read once."""
    words = [word for word in ngram.ngram.words() if word.strip("-'") and not word.startswith("<")]
    order = min(_LETTER_ORDER, max(map(len, words), default=0) + 1)
    return LanguageModel.build(words, order, out, kind="spelling", binary="trie")


def events(
    ngram: LanguageModel, letters: LanguageModel, neural: CausalLM, sentences: Sequence[str],
    progress: Progress = lambda done, total: None,
) -> TextLogProbs:  # fmt: skip
    """Score the words and ends of normalised sentences by each model.

    Args:
        ngram: The n-gram.
        letters: Model of spelling (`letter_model`).
        neural: The neural model, trained to end sentences.
        sentences: Normalised sentences.
        progress: Called with sentences done and in all.
    """
    spelling = {
        word: letters.ngram.sentence(next(spelt(word)))
        for word in {w for text in sentences for w in text.split()}
    }
    ngram_E = []
    letters_E = []
    unknown = 0
    for text in sentences:
        state = ngram.begin()
        for word in text.split():
            log_prob, state = ngram.score(state, word)
            known = word in ngram.ngram
            unknown += not known
            ngram_E.append(log_prob if known else log_prob + spelling[word])
            letters_E.append(spelling[word])
        ngram_E.append(ngram.end(state))
        letters_E.append(-math.inf)
    words = [len(text.split()) + 1 for text in sentences]
    return TextLogProbs(
        np.array(ngram_E),
        np.array(letters_E),
        np.concatenate(word_log_probs(neural, sentences, progress)),
        np.repeat(np.arange(len(sentences)), words),
        np.array([len(text) + 1 for text in sentences]),
        unknown,
    )


def word_log_probs(
    lm: CausalLM, sentences: Sequence[str], progress: Progress = lambda done, total: None
) -> list[np.ndarray]:
    """Return log-probabilities of each sentence's words and end, float64 [words + 1].

    Args:
        lm: The neural model, trained to end sentences.
        sentences: Normalised sentences.
        progress: Called with sentences done and in all.

    Raises:
        LanguageModelError: For another kind of model, and a sentence beyond the model's window.
    """
    if lm.end is None:
        raise LanguageModelError(
            "was not trained to end sentences", where=lm.name, fix="use lm train-neural's models"
        )
    boundary = torch.tensor([*starts(lm.tokenizer), lm.end])
    begins = set(boundary.tolist())
    cut = [[encode([word], lm.tokenizer)[0] for word in text.split()] for text in sentences]
    rows = [[lm.start, *(piece for word in words for piece in word), lm.end] for words in cut]
    for text, words, row in zip(sentences, cut, rows, strict=True):
        if any(word[0] not in begins or begins.intersection(word[1:]) for word in words):
            raise LanguageModelError("the pieces do not mark where words begin", where=lm.name)
        if len(row) > lm.window + 1:
            raise LanguageModelError(
                f"the sentence {text[:40]!r} ... is longer than the model's window", where=lm.name
            )
    by_sentence: list[np.ndarray] = [np.empty(0)] * len(rows)
    done = 0
    for group in length_batches(rows, _BATCH_TOKENS):
        scored = _piece_log_probs(lm, [rows[number] for number in group], boundary)
        for number, (pieces_T, boundary_T) in zip(group, scored, strict=True):
            by_sentence[number] = _by_word(
                [len(word) for word in cut[number]], pieces_T, boundary_T
            )
        done += len(group)
        progress(done, len(rows))
    return by_sentence


def _piece_log_probs(
    lm: CausalLM, rows: Sequence[Sequence[int]], boundary: torch.Tensor
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield log-probabilities of each row's tokens, and that a word or the end begins there."""
    length = max(map(len, rows))
    tokens_BT = torch.tensor(
        [[*row, *[row[-1]] * (length - len(row))] for row in rows], device=lm.device
    )
    with torch.inference_mode(), lm.lock:
        log_probs_BTV = lm.network(input_ids=tokens_BT[:, :-1]).logits.double().log_softmax(-1)
    pieces_BT = log_probs_BTV.gather(-1, tokens_BT[:, 1:, None])[..., 0].cpu().numpy()
    boundary_BT = log_probs_BTV[..., boundary.to(lm.device)].logsumexp(-1).cpu().numpy()
    for row, pieces_T, boundary_T in zip(rows, pieces_BT, boundary_BT, strict=True):
        yield pieces_T[: len(row) - 1], boundary_T[: len(row) - 1]


def _by_word(pieces: Sequence[int], pieces_T: np.ndarray, boundary_T: np.ndarray) -> np.ndarray:
    """Return log-probabilities of words and of the end; `pieces` has each word's number of them."""
    first = np.cumsum([0, *pieces])
    sums = np.add.reduceat(pieces_T, first)
    # No word precedes the first one, so no end of a word is scored there.
    before = np.where(first > 0, boundary_T[first], 0.0)
    after = np.append(boundary_T[first[1:]], 0.0)
    return np.asarray(sums - before + after)
