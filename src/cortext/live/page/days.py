"""A pipeline whose recording day changes: one model and one word search, a day layer for each."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from cortext.decoding import Decoder
from cortext.errors import RunError, nearest
from cortext.live.core.acoustic_stream import PipelineOptions
from cortext.live.core.decoder import check_hotwords, check_options
from cortext.live.core.pipeline import Pipeline
from cortext.models.stepping import Stepper

WARM_UP_BINS = 40
"""Bins that are decoded for nothing.

The first step of a model takes many times longer than the next ones.
"""


class Days:
    """Gives the pipeline, set to a day.

    Attributes:
        chosen: The day whose layer is used whatever was recorded when (`latest` is the model's
            last); None: each recording uses its own day's, and the latest where the model does not
            know its day.
        context: What was said before, for a large model.

    Raises:
        RunError: For a day that the model does not know.
    """

    def __init__(
        self,
        stepper: Stepper,
        decoder: Decoder,
        options: PipelineOptions = PipelineOptions(),
        chosen: str | None = None,
        context: str = "",
    ) -> None:
        self.known = stepper.sessions
        self.pipeline = Pipeline(None, decoder, options=options, stepper=stepper, context=context)
        self.pipeline.push(np.zeros((WARM_UP_BINS, stepper.n_features), dtype=np.float32))
        self.pipeline.reset()
        self.chosen: str | None = None
        self.choose(chosen)
        self.use(None)

    def choose(self, session: str | None) -> None:
        """Choose a day for all, or None for each recording's own; from the next `use` on."""
        if session is not None and session != "latest" and session not in self.known:
            raise RunError(
                f"session {session!r} is unknown to the run; {nearest(session, self.known)}"
            )
        self.chosen = self.known[-1] if session == "latest" else session

    def use(self, recorded: str | None) -> Pipeline:
        """The pipeline for a recording of that day (None: of today).

        Must not be called in mid-utterance.
        """
        own = recorded if recorded in self.known else None
        session = self.chosen or own or self.known[-1]
        if session != self.pipeline.session:
            self.pipeline.stepper.use(session)
        return self.pipeline

    def set_options(self, changes: Mapping[str, Any]) -> None:
        """Change decoder options. Raises DecodingError, and changes nothing, if one is wrong."""
        decoder = self.pipeline.decoder
        assert decoder is not None
        check_options(
            decoder.options.changed(changes)
        )  # refuses unknown names, which may be no names of arguments
        self.pipeline.set_options(**changes)

    def change_hotwords(self, bonuses: Mapping[str, Any]) -> None:
        """Give words other bonuses, or none (null or 0), from the next utterance on.

        Raises DecodingError.
        """
        merged = self.pipeline.hotwords | {
            word: 0.0 if bonus is None else bonus for word, bonus in bonuses.items()
        }
        check_hotwords(merged)
        self.pipeline.hotwords = {word: bonus for word, bonus in merged.items() if bonus != 0}
