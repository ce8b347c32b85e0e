"""Log-probabilities: computed from logits, checked, and decoded greedily."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from cortext.errors import DecodingError
from cortext.text.inventory import Inventory, get_inventory

SUM_TOLERANCE = 1e-2
"""Largest distance from 0 of the log of a frame's summed probabilities.

Rounding to float16 stays below it; logits that were given by mistake exceed it.
"""

LEAST_PRIOR = 1e-6
"""Least share of a token that never occurs: the logarithm of its prior must be finite."""


def log_softmax(logits_PV: np.ndarray) -> np.ndarray:
    """Return natural log-probabilities float32 [P, V] of logits."""
    shifted = logits_PV - logits_PV.max(axis=-1, keepdims=True)
    log_probs: np.ndarray = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return log_probs


def check_log_probs(log_probs_PV: np.ndarray, inventory: Inventory) -> None:
    """Raise DecodingError unless an array holds log-probabilities [P, V] of an inventory."""
    if not isinstance(log_probs_PV, np.ndarray):
        raise DecodingError(
            f"log_probs is a {type(log_probs_PV).__name__}; a NumPy array is needed"
        )
    if log_probs_PV.dtype != np.float32:
        raise DecodingError(
            f"log_probs has dtype {log_probs_PV.dtype}; float32 is needed", fix="convert it"
        )
    if log_probs_PV.ndim != 2 or log_probs_PV.shape[1] != len(inventory):
        raise DecodingError(
            f"log_probs has shape {list(log_probs_PV.shape)}; [frames, {len(inventory)}] is needed"
            f" for the tokens of inventory {inventory.name!r}"
        )
    if not log_probs_PV.flags.c_contiguous:
        raise DecodingError("log_probs is not C-contiguous", fix="use numpy.ascontiguousarray")
    if not len(log_probs_PV):
        return
    if np.isnan(log_probs_PV).any():
        raise DecodingError(
            f"log_probs has NaN, first in frame {int(np.isnan(log_probs_PV).any(axis=1).argmax())}"
        )
    with np.errstate(over="ignore"):  # logits may overflow; their sum is refused below
        sums_P = np.exp(log_probs_PV.astype(np.float64)).sum(axis=1)
    low = np.exp(-SUM_TOLERANCE)
    high = np.exp(SUM_TOLERANCE)
    wrong_P = ~((sums_P >= low) & (sums_P <= high))
    if wrong_P.any():
        frame = int(wrong_P.argmax())
        raise DecodingError(
            f"the probabilities of frame {frame} sum to {sums_P[frame]:.4g}, not 1: these are no"
            " log-probabilities",
            fix="apply log-softmax over the tokens to logits, or the logarithm to probabilities",
        )


def greedy(log_probs_PV: np.ndarray, inventory: Inventory | str) -> list[int]:
    """Return the best token of each frame, repeats joined, then blanks removed.

    This is best-path decoding (Graves et al., ICML 2006): no search, no words.

    Args:
        log_probs_PV: Float [P, V], log-probabilities or logits; P = 0 gives the empty list.
        inventory: Tokens of the columns, in order.
    """
    inventory = get_inventory(inventory)
    scores_PV = np.asarray(log_probs_PV)
    if scores_PV.size and scores_PV.shape[1:] != (len(inventory),):
        raise DecodingError(
            f"log_probs has shape {list(scores_PV.shape)}; [frames, {len(inventory)}] is needed for"
            f" the tokens of inventory {inventory.name!r}"
        )
    if scores_PV.dtype.kind not in "fiu":
        raise DecodingError(
            f"log_probs is of type {scores_PV.dtype}; an array of numbers is needed"
        )
    blank = inventory.blank
    best_P = scores_PV.argmax(axis=1) if scores_PV.size else np.empty(0, dtype=np.int64)
    starts_P = np.ones(len(best_P), dtype=bool)
    starts_P[1:] = best_P[1:] != best_P[:-1]
    return [int(token) for token in best_P[starts_P & (best_P != blank)]]


def check_trials(log_probs: Sequence[np.ndarray], inventory: Inventory) -> None:
    """Check the log-probabilities of each trial. The DecodingError says which trial it is."""
    for number, log_probs_PV in enumerate(log_probs):
        try:
            check_log_probs(log_probs_PV, inventory)
        except DecodingError as error:
            raise DecodingError(error.what, where=f"utterance {number}", fix=error.fix) from None


def estimate_priors(log_probs: Sequence[np.ndarray], inventory: Inventory) -> dict[str, float]:
    """Estimate the label priors of `DecoderOptions` from log-probabilities without labels.

    A token's prior is its share of all tokens' probability, the blank's left out. The blank gets
    the logarithmic mean of the others, so that `blank_penalty` means the same whatever
    `prior_weight` is.

    Args:
        log_probs: float32 [P, V] natural-log probabilities of each trial.
        inventory: Tokens of the columns, in order.

    Returns:
        Prior by token symbol, with four digits; one for every token.
    """
    total_V = np.sum([np.exp(x_PV.astype(np.float64)).sum(axis=0) for x_PV in log_probs], axis=0)
    total_V += LEAST_PRIOR * max(total_V.sum(), 1.0)
    total_V[inventory.blank] = 0.0
    priors_V = total_V / total_V.sum()
    is_token_V = np.arange(len(inventory)) != inventory.blank
    tokens = priors_V[is_token_V]
    priors_V[inventory.blank] = np.exp((tokens * np.log(tokens)).sum())
    return {
        symbol: float(f"{prior:.4g}")
        for symbol, prior in zip(inventory.symbols, priors_V.tolist(), strict=True)
    }
