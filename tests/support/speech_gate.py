"""An idle gate that is known by hand."""

import numpy as np

from cortext_live.core.gate import GateCard, GateNetwork, IdleGate, Operating

N_TOKENS = 41
CARD = GateCard(
    weights=None,
    threshold=0.5,
    measured=[Operating(0.2, 3.0, 4.0, 0.0, 0.01), Operating(0.6, 1.0, 2.0, 0.1, 0.2)],
    idle_hours=1.0,
    beginnings=10,
    data="sentences",
    idle=None,
    created="2026-01-01T00:00:00+00:00",
    version="0",
)


def speech_gate(threshold: float = 0.5) -> IdleGate:
    """Return a gate whose log-odds are 20 times the share of speech in the last 960 ms, less 10."""
    n = 2 * (2 * N_TOKENS + 1)
    hidden_SD = np.zeros((n, 1), dtype=np.float32)
    hidden_SD[0, 0] = -0.01  # the blank's average probability; tanh is linear near 0
    network = GateNetwork(
        np.zeros(n, np.float32), np.ones(n, np.float32), hidden_SD,
        np.zeros(1, np.float32), np.full(1, 2000, np.float32), 10.0,
    )  # fmt: skip
    return IdleGate(network, CARD, 80.0, threshold)
