"""Log-probabilities: computed from logits, checked, recognised, and decoded greedily."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np

from cortext.errors import DecodingError, nearest
from cortext.text.inventory import Inventory, get_inventory

SUM_TOLERANCE = 1e-2
"""Largest distance from 0 of the log of a frame's summed probabilities.

Rounding to float16 stays below it; logits that were given by mistake exceed it.
"""

LEAST_PRIOR = 1e-6
"""Least share of a token that never occurs: the logarithm of its prior must be finite."""


LOGITS = "logits"
SCORES: Mapping[str, str] = {
    LOGITS: "logits or natural log-probabilities",
    "log-probs": "natural log-probabilities",
    "probabilities": "probabilities or percentages",
    "negated": "negated log-probabilities",
    "log10-probs": "log-probabilities to the base 10",
    "log2-probs": "log-probabilities to the base 2",
}
"""Kinds of numbers that programs save for tokens, by the name that a user gives."""
_FACTORS = {"log-probs": 1.0, "log10-probs": math.log(10), "log2-probs": math.log(2)}
"""Factors that turn logarithms into natural ones."""
_ROUNDING = 1e-3
"""Distance from 0 by which float16 may push a probability or a logarithm to the wrong side."""
_ALL = 0.95
"""Share of frames that sum to 1 in scores of a kind: a few may be padding."""

FEWEST_FRAMES = 3
"""Frames that say of which kind their numbers are: in a single one, logits may sum to 1, too."""
FEW_FRAMES = 200
"""Frames below which a file's tokens are too few to judge its numbers by."""
RARE_BLANK = 0.05
"""Share of frames of the blank below which it may be another column's: CTC needs it."""
FLAT = 3.0
"""Likeliest tokens that have less than this many times their equal share say almost nothing."""


def kind_of(scores_PV: np.ndarray) -> str | None:
    """Return the kind of numbers whose frames sum to 1 as probabilities do; None for logits.

    Logits of a network do not pass: 95 % of the frames would have to be of one sign and sum to 1
    within 1 %. Frames of equal numbers say nothing and do not count; of fewer than
    `FEWEST_FRAMES` others the kind stays unknown.

    Args:
        scores_PV: Float [P, V] without NaN.

    Returns:
        A key of `SCORES` but `logits`.
    """
    x_PV = _telling(scores_PV).astype(np.float64)
    if len(x_PV) < FEWEST_FRAMES:
        return None

    def sum_to_one(probabilities_PV: np.ndarray) -> bool:
        return bool((abs(probabilities_PV.sum(axis=1) - 1) < SUM_TOLERANCE).mean() >= _ALL)

    if x_PV.max() <= _ROUNDING:
        return next((k for k, f in _FACTORS.items() if sum_to_one(np.exp(f * x_PV))), None)
    if x_PV.min() < -_ROUNDING:
        return None
    if sum_to_one(x_PV) or sum_to_one(x_PV / 100):  # of percentages log-softmax is the same
        return "probabilities"
    return "negated" if sum_to_one(np.exp(-x_PV)) else None


def _telling(scores_PV: np.ndarray) -> np.ndarray:
    """Return the frames whose numbers differ: padding and uniform frames are of any kind."""
    return scores_PV[(scores_PV != scores_PV[:, :1]).any(axis=1)] if scores_PV.size else scores_PV


def unlike(scores_PV: np.ndarray, kind: str = LOGITS) -> str | None:
    """Return why numbers are not of the kind that somebody says they are, or None.

    Args:
        scores_PV: Float [P, V] without NaN.
        kind: A key of `SCORES`.
    """
    own_kind = kind_of(scores_PV)
    if own_kind == kind or (kind == LOGITS and own_kind == "log-probs"):
        return None
    if own_kind is not None:
        return f"holds {SCORES[own_kind]} (as such they sum to 1 in each frame), not {SCORES[kind]}"
    if kind in (LOGITS, "negated"):  # negated logits are read, too
        return None
    if len(_telling(scores_PV)) < FEWEST_FRAMES:
        return None
    return f"holds no {SCORES[kind]}: they do not sum to 1 in each frame"


def as_logits(scores_PV: np.ndarray, kind: str) -> np.ndarray:
    """Return numbers of a kind as logits.

    Args:
        scores_PV: Float [P, V].
        kind: A key of `SCORES`.
    """
    check_kind(kind)
    if kind == "probabilities":
        with np.errstate(divide="ignore"):  # the logarithm of 0 makes a token impossible
            return np.log(np.maximum(scores_PV.astype(np.float64), 0.0))
    if kind == "negated":
        return -scores_PV
    factor = _FACTORS.get(kind, 1.0)
    return scores_PV if factor == 1.0 else scores_PV.astype(np.float64) * factor


def check_kind(kind: object) -> None:
    """Raise DecodingError unless a kind is a key of `SCORES`."""
    if not isinstance(kind, str) or kind not in SCORES:
        raise DecodingError(f"unknown kind of scores {kind!r:.40}; {nearest(kind, SCORES)}")


def doubts(logits: Sequence[np.ndarray], inventory: Inventory) -> list[str]:
    """Return what makes it doubtful that numbers are logits of an inventory's tokens.

    Nothing is refused for it: a network that has learnt little gives such logits, too.

    Args:
        logits: Float [P, V] of each trial of a file.
        inventory: Tokens of the columns, in order.
    """
    joined_PV = np.concatenate([x_PV.astype(np.float32) for x_PV in logits])
    if len(joined_PV) < FEW_FRAMES:
        return []
    n_tokens, blank = len(inventory), inventory.blank
    shares_V = np.bincount(joined_PV.argmax(axis=1), minlength=n_tokens) / len(joined_PV)
    mean_best = float(np.exp(log_softmax(joined_PV)).max(axis=1).mean())
    frames = f"{len(joined_PV):,} frames"
    if shares_V[blank] == 1:
        return [f"the blank is the best token of all {frames}: the sentences will be empty"]
    if mean_best < FLAT / n_tokens:
        return [
            f"the best token of a frame has a probability of {mean_best:.3f} on average, hardly"
            f" more than the equal share of {n_tokens} tokens: are these logits?"
        ]
    if shares_V[blank] < RARE_BLANK:
        best = int(shares_V.argmax())
        return [
            f"the blank (column {blank}) is the best token of {shares_V[blank]:.1%} of {frames},"
            f" column {best} ({inventory.symbols[best]}) of {shares_V[best]:.1%}: are the tokens in"
            " this order, and is the largest number the best?"
        ]
    return []


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
