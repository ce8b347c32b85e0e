"""The most probable token of every frame, collapsed by the rules of CTC: no search, no words."""

from __future__ import annotations

import numpy as np

from cortext.text.phonemes import Inventory, get_inventory


def greedy(log_probs_PV: np.ndarray, inventory: Inventory | str) -> list[int]:
    """Token numbers of the best token per frame, repeats joined, then blanks removed (Graves et
    al., ICML 2006).

    Args:
        log_probs_PV: Float [P, V], log-probabilities or logits in the inventory's order; P = 0
            gives the empty list.
    """
    blank = get_inventory(inventory).blank
    best_P = (
        np.asarray(log_probs_PV).argmax(axis=1)
        if len(log_probs_PV)
        else np.empty(0, dtype=np.int64)
    )
    starts_P = np.ones(len(best_P), dtype=bool)
    starts_P[1:] = best_P[1:] != best_P[:-1]
    return [int(token) for token in best_P[starts_P & (best_P != blank)]]
