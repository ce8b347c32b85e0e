"""Models with known day layers, and chains of them."""

from datetime import datetime
from pathlib import Path

import torch
from drift_log import session

from cortext.models import AcousticModel, Smoothing, build_model, model_config, save_model
from cortext.text.inventory import RELEASE
from cortext_live.recalibration.chain import open_chain

OLD = ("t15.2025.12.30", "t15.2025.12.31")
"""Days that the base of the chain was trained on; the log begins on 1 January."""


def write_model(root: Path, days, moves=None, day_layer="softsign") -> Path:
    """A model whose day layers differ by `moves`: by number of the day, row, column and summand.

    Places of the weight; a row without a column is one of the bias.
    """
    inputs = {"day_layer": day_layer}
    config = model_config({"kind": "gru", "n_units": 4, "n_layers": 1, "input_network": inputs})
    network = build_model(config, n_features=8, n_days=len(days), n_classes=len(RELEASE))
    with torch.no_grad():
        for day, changes in (moves or {}).items():
            for row, column, summand in changes:
                part = network.day_bias[day] if column is None else network.day_weight[day, row]
                part[row if column is None else column] += summand
    reads = {"n_features": 8, "inventory": RELEASE, "smoothing": Smoothing()}
    root.mkdir(parents=True, exist_ok=True)
    save_model(AcousticModel(network, sessions=list(days), **reads), root)
    return root


SECOND = [(0, 0, 3.0), (1, 0, 4.0), (5, None, -2.0)]
THIRD = [*SECOND, (3, 3, 6.0), (3, 4, 8.0)]
DISTANCES = [None, {"weight": 5, "bias": 2}, {"weight": 10, "bias": 0}, None, None]
"""Of the five days of the log: 3 and 4 in two places are 5 apart, 6 and 8 are 10."""


def write_chain(folder: Path, write, base=None, decide=None) -> Path:
    """A chain with a base that knows old days and a candidate that `write` writes.

    Args:
        folder: Its directory.
        write: Writes the candidate's run into a directory.
        base: Run directory of the base; None for one that knows old days.
        decide: Adds decisions about the candidate; None promotes it.
    """
    base = base or write_model(folder.with_name("base"), OLD)
    made = datetime.fromisoformat("2026-01-03T12:00:00+00:00")
    with open_chain(folder, base, now=lambda: made) as chain:
        chain.add_model("candidate", write, parent=0)
        (decide or (lambda chain: chain.add("promoted", model=1)))(chain)
    return folder


def learnt_of_three_days(folder: Path) -> None:
    write_model(folder, [session(n) for n in range(3)], {1: SECOND, 2: THIRD})
