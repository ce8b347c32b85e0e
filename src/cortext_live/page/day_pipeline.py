"""A pipeline whose recording day changes: one model and one word search, a day layer for each."""

from __future__ import annotations

import unicodedata
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cortext.decoding import Decoder, DecoderOptions
from cortext.errors import LiveError, RunError, nearest
from cortext_live.casing.writing import is_spelling
from cortext_live.core.acoustic_stream import PipelineOptions
from cortext_live.core.chain_follower import ChainModel
from cortext_live.core.decoder import Notes, check_options, checked_hotwords
from cortext_live.core.gate import IdleGate
from cortext_live.core.pipeline import Pipeline
from cortext_live.steps.stepper import Stepper

WARM_UP_BINS = 40
"""Bins of silence decoded at the start: a model's first step takes many times longer."""


class DayPipeline:
    """A pipeline with a decoder, and the day layer that it uses.

    Args:
        stepper: The model.
        decoder: The word search, with a large model or without.
        options: See `PipelineOptions`.
        chosen: The day whose layer every recording uses (`latest` is the model's last). None: each
            recording uses its own day's, or the latest where the model does not know its day.
        context: The text before the utterance, for a large model.
        gate: Tells when an utterance begins.
        model: Name that a chain has for the model; None without a chain.

    Attributes:
        spellings: Hotwords as they were typed, by the words of decoded text; those with capitals.

    Raises:
        RunError: The model does not know the day.
    """

    def __init__(
        self,
        stepper: Stepper,
        decoder: Decoder,
        options: PipelineOptions = PipelineOptions(),
        chosen: str | None = None,
        context: str = "",
        gate: IdleGate | None = None,
        model: str | None = None,
    ) -> None:
        self.model = model
        self.context = context
        self.known = stepper.sessions
        self.spellings = dict[str, str]()
        self._decoder = decoder
        self.pipeline = Pipeline(
            None, decoder, options=options, stepper=stepper, context=context, gate=gate
        )
        self.notes = Notes(decoder)
        self._has_llm = decoder.llm is not None
        self.pipeline.push(np.zeros((WARM_UP_BINS, stepper.n_features), dtype=np.float32))
        self.pipeline.reset()
        self.chosen: str | None = None
        self.choose(chosen)
        self.use(None)

    def choose(self, session: str | None) -> None:
        """Choose a day for all recordings, or None for each one's own; from the next `use` on."""
        if session is not None and session != "latest" and session not in self.known:
            raise RunError(
                f"session {session!r} is unknown to the run; {nearest(session, self.known)}"
            )
        self.chosen = self.known[-1] if session == "latest" else session
        self._is_latest = session == "latest"

    def swap(self, model: ChainModel, recorded: str | None) -> None:
        """Let another model of the chain speak, for a recording of that day (None: of today).

        Must not be called in mid-utterance. A day that was chosen stays so where the model knows
        it; its latest day replaces the latest.
        """
        days = model.stepper.sessions
        chosen = self.chosen
        if chosen is not None and (self._is_latest or chosen not in days):
            chosen = days[-1]
        model.stepper.use(_day(chosen, recorded, days))
        self.pipeline.swap(model.stepper, model.calibrator)
        self.model, self.known, self.chosen = model.name, days, chosen

    def use(self, recorded: str | None) -> Pipeline:
        """Return the pipeline with the layer for a recording of that day (None: of today).

        Must not be called in mid-utterance.
        """
        session = _day(self.chosen, recorded, self.known)
        if session != self.pipeline.session:
            self.pipeline.stepper.use(session)
        return self.pipeline

    @property
    def options(self) -> DecoderOptions:
        """The decoder options in force."""
        return self.pipeline.decoder_options

    def set_options(self, changes: Mapping[str, Any]) -> None:
        """Change decoder options. Raises DecodingError, and changes nothing, if one is wrong."""
        # `changed` refuses unknown names first: they may be no names of arguments.
        check_options(self.options.changed(changes))
        self.pipeline.set_options(**changes)

    def change_hotwords(self, bonuses: Mapping[str, Any]) -> None:
        """Set the bonuses of words from the next utterance on; null or 0 removes a word.

        A word with capitals is one of the language model's in small letters, unless the language
        model has it as it is; its spelling is kept for showing (`spellings`), until it is removed.

        Raises DecodingError.
        """
        typed = {self._decoded(word): word for word in bonuses}
        merged = self.pipeline.hotwords | {
            self._decoded(word): 0.0 if bonus is None else bonus for word, bonus in bonuses.items()
        }
        checked = checked_hotwords(merged, self.pipeline.conventions.language)
        self.pipeline.hotwords = {word: bonus for word, bonus in checked.items() if bonus != 0}
        spelt = self.spellings | {
            word: unicodedata.normalize("NFC", spelling)
            for word, spelling in typed.items()
            if is_spelling(spelling, word) and spelling != word
        }
        self.spellings = {
            word: spelling for word, spelling in spelt.items() if word in self.pipeline.hotwords
        }

    def _decoded(self, hotword: str) -> str:
        """Return a hotword as it stands in decoded text."""
        composed = unicodedata.normalize("NFC", hotword)
        language = self.pipeline.conventions.language
        # English words are those of the lexicon, however they were written there.
        return (
            composed
            if language.is_benchmark and composed in self._decoder
            else language.small(composed)
        )

    @property
    def gate(self) -> IdleGate | None:
        """The idle gate; None without one."""
        return self.pipeline.gate

    def set_gate_threshold(self, threshold: float) -> None:
        """Open the idle gate above another probability, from the next frame on.

        Raises LiveError without a gate, and ConfigError for a threshold that is not between 0 and
        1.
        """
        if self.gate is None:
            raise LiveError("there is no idle gate", fix="start the server with --gate")
        self.gate.threshold = threshold

    def set_context(self, text: str) -> None:
        """Set the text before the next utterance. Raises LiveError without a large model."""
        if not self._has_llm:
            raise LiveError(
                "no large model is there to read it", fix="start the server with --llm MODEL"
            )
        self.context = self.pipeline.context = text.strip()

    def add_context(self, words: str) -> None:
        """Let a large model read the end of the conversation after the context that was set.

        Raises LiveError without a large model.
        """
        text = self.context
        self.set_context(f"{text} {words}")
        self.context = text


def _day(chosen: str | None, recorded: str | None, known: Sequence[str]) -> str:
    """Return the day whose layer a recording uses."""
    own = recorded if recorded in known else None
    return chosen or own or known[-1]
