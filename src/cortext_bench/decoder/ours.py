"""Our own search, as the benchmark sees it."""

from __future__ import annotations

from typing import ClassVar

import numpy as np

from cortext.decoding import Decoder, NBest
from cortext_bench.decoder.searcher import INVENTORY, NBEST, Paths, Settings, distinct

LATTICE_BEAM = 12.0
"""More than the default, so that there are alternatives enough for a hundred sentences."""


class Native:
    """The compiled search."""

    package = "cortext"
    note = ""
    one_of = 1
    steps: ClassVar = {
        "acoustic_scale": (0.2, 0.25, 0.3, 0.35, 0.4, 0.5, 0.6, 0.7, 0.85, 1.0, 1.2),
        "word_score": (-3.0, -2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 1.5, 2.0, 3.0),
        "sil_cost": (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0),
        "blank_penalty": (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 24.0, 32.0),
        "recombine": ("max", "logadd"),
        "beam": (3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 14.0, 16.0, 18.0),
        "word_beam": (0.4, 0.5, 0.6, 0.7, 0.85, 1.0),
        "max_active": (50, 100, 200, 300, 500, 1000, 2000, 3000, 5000),
    }
    start: ClassVar[Settings] = {
        "acoustic_scale": 0.7,
        "word_score": -2.0,
        "sil_cost": 12.0,
        "blank_penalty": 16.0,
        "recombine": "logadd",
        "beam": 12.0,
        "word_beam": 0.7,
        "max_active": 3000,
    }
    speed: ClassVar = {"beam": -1, "word_beam": -1, "max_active": -1}
    sizes: ClassVar = tuple(
        {"beam": beam, "word_beam": word_beam, "max_active": max_active, "recombine": recombine}
        for recombine in ("max", "logadd")
        for beam, word_beam, max_active in (
            (6.0, 0.6, 100), (7.0, 0.6, 100), (7.0, 0.6, 200), (8.0, 0.6, 200), (8.0, 0.6, 300),
            (9.0, 0.6, 500), (10.0, 0.6, 500), (11.0, 0.7, 1000), (12.0, 0.7, 2000),
            (14.0, 0.7, 5000),
        )
    )  # fmt: skip

    def __init__(self, paths: Paths) -> None:
        self._decoder = Decoder.from_dir(paths.lm, {"nbest": NBEST})

    def configure(self, settings: Settings) -> None:
        """Use other settings from now on."""
        self._decoder = self._decoder.with_options(
            **settings, nbest=NBEST, lattice_beam=LATTICE_BEAM
        )

    def decode(self, log_probs_PV: np.ndarray) -> NBest:
        """Search one utterance."""
        return self._decoder.decode(log_probs_PV, INVENTORY)

    def texts(self, found: NBest) -> list[str]:
        """Return the sentences found, best first."""
        return distinct(found.texts)

    @property
    def decoder(self) -> Decoder:
        """The decoder with the present settings."""
        return self._decoder
