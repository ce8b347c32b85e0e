"""The interface of every search in the benchmark, ours and the peers'."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from cortext.errors import DecodingError, nearest
from cortext.text.inventory import RELEASE

INVENTORY = RELEASE
NBEST = 100

Settings = Mapping[str, Any]


@dataclass(frozen=True)
class Paths:
    """Files of a search: its language models, and a folder for the files built from them.

    Attributes:
        lm: language-model directory: `lexicon.txt`, `lm.bin` (KenLM binary) and `lm.arpa`.
        static: language-model directory whose `lm.arpa` is small enough for a static graph and for
            models of spellings.
        cache: Directory for their compiled forms.
    """

    lm: Path
    static: Path
    cache: Path

    @property
    def model(self) -> Path:
        """The n-gram of `lm`: the KenLM binary if there is one."""
        binary = self.lm / "lm.bin"
        return binary if binary.is_file() else self.lm / "lm.arpa"


class Searcher(Protocol):
    """A search with its models in memory.

    Attributes:
        package: The distribution whose version is reported.
        note: Differences from the other searches' conditions; empty without any.
        one_of: N, where every Nth utterance is decoded; above 1 for slow searches.
        steps: The values that tuning may give each setting, in an order in which neighbours are
            alike.
        start: The settings that tuning starts from.
        speed: Settings that trade accuracy for time, each with the direction (-1 or 1) that is
            faster.
        sizes: Values of these settings from narrow to wide, for the frontier.
    """

    package: str
    note: str
    one_of: int
    steps: Mapping[str, Sequence[Any]]
    start: Settings
    speed: Mapping[str, int]
    sizes: Sequence[Settings]

    def __init__(self, paths: Paths) -> None:
        """Read or make the models; raises Missing if the peer is not installed."""

    def configure(self, settings: Settings) -> None:
        """Use other settings from now on."""

    def decode(self, log_probs_PV: np.ndarray) -> Any:
        """Search one utterance, n-best list included: the part that is timed."""

    def texts(self, found: Any) -> list[str]:
        """Return the different sentences of what `decode` returned, best first, at most NBEST."""


def with_blank_penalty(log_probs_PV: np.ndarray, penalty: float, scale: float = 1.0) -> np.ndarray:
    """Return log-probabilities for a peer without a blank penalty or acoustic scale of its own.

    Args:
        log_probs_PV: Natural-log probabilities, float32 [P, V].
        penalty: Divisor of the blank's probability.
        scale: Factor on all log-probabilities, applied after the penalty.
    """
    scores_PV = log_probs_PV.copy()
    scores_PV[:, INVENTORY.blank] -= np.log(penalty)
    scores_PV *= scale
    return scores_PV


def distinct(texts: Sequence[str]) -> list[str]:
    """Return the first NBEST different texts, in their order."""
    return list(dict.fromkeys(texts))[:NBEST]


SEARCHERS = {
    "cortext": "ours:Native",
    "flashlight": "flashlight:Flashlight",
    "kaldi": "kaldi:KaldiBest",
    "kaldi-lattice": "kaldi:KaldiLattice",
    "pyctcdecode": "pyctc:PyCtc",
}
"""Module and class of every search by name. A process imports only the one that it runs."""


def searcher(name: str) -> type[Searcher]:
    """Return the class of a search; raise DecodingError for an unknown name."""
    if name not in SEARCHERS:
        raise DecodingError(f"unknown search {name!r}; {nearest(name, SEARCHERS)}")
    module, _, kind = SEARCHERS[name].partition(":")
    found: type[Searcher] = getattr(import_module(f"cortext_bench.decoder.{module}"), kind)
    return found
