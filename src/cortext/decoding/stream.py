"""`DecoderStream`: the state of the search within one utterance, fed chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np

from cortext.decoding.confidence import Calibrator
from cortext.decoding.engine import LiveBatch, NativeStream
from cortext.decoding.log_probs import check_log_probs
from cortext.decoding.nbest import NBest, Partial
from cortext.decoding.ngram import LanguageModel
from cortext.decoding.open_vocabulary import OpenVocabularyStream
from cortext.decoding.options import DecoderOptions
from cortext.errors import DecodingError
from cortext.processes import Progress
from cortext.text.inventory import Inventory
from cortext.text.language import Language

SearchStream = NativeStream | OpenVocabularyStream
"""The search through one utterance. Frames are checked before they come here."""


class ModelHook(Protocol):
    """A large model's part in the search through one utterance: a `Hook`."""

    @property
    def failed(self) -> str | None:
        """The reason why the model takes no part any more, in one line; None where it does."""

    def __call__(self, batch: LiveBatch) -> np.ndarray | None:
        """Return scores to add to the live hypotheses, float32 [N], or nothing."""

    def set_options(self, options: DecoderOptions) -> None:
        """Weigh by these options from the next query on."""


class LargeModel(Protocol):
    """A large language model beside the n-gram. `DecoderOptions.llm` says what it does."""

    def describe(self) -> dict[str, Any]:
        """Return facts about the model for a result file; `notes` are lines for its users."""

    def forget_notes(self) -> None:
        """Drop the notes that were added in use; notes about the model itself stay."""

    def search_options(self, options: DecoderOptions) -> DecoderOptions:
        """Return the options that the search needs so that the model can take part."""

    def hook(self, options: DecoderOptions, context: str) -> ModelHook | None:
        """Return the hook of one utterance, or None where the model only ranks at the end.

        It is called every `options.llm.every_frames` frames.
        """

    def rank(
        self,
        lists: Sequence[NBest],
        options: DecoderOptions,
        context: str,
        progress: Progress | None = ...,
    ) -> list[NBest]:
        """Return each list with the model's scores, best first.

        Args:
            lists: N-best list of each utterance, as the search found it.
            options: Weights of all scores.
            context: The preceding text.
            progress: Called with lists done and in all.

        Returns:
            The ranked lists, in the order of `lists`; `NBest.degraded` says what failed.
        """


@runtime_checkable
class ReadsLanguage(Protocol):
    """A large model that writes the sentences of a language as people do."""

    def in_language(self, language: Language) -> LargeModel:
        """Return the model for sentences of a language."""


@dataclass(frozen=True)
class BoundCalibrator:
    """A calibrator with the language model that its signals are read from."""

    calibrator: Calibrator
    lm: LanguageModel

    def of(self, nbest: NBest, log_probs_PV: np.ndarray, options: DecoderOptions) -> NBest:
        """Return a list with calibrated confidences, or as it is where options have changed.

        Args:
            nbest: The list as the search found it.
            log_probs_PV: float32 [P, V], all frames.
            options: The options that ranked it.
        """
        if not self.calibrator.goes_with(options):
            return nbest
        return self.calibrator.calibrated(nbest, log_probs_PV, self.lm)


class DecoderStream:
    """The state of the search within one utterance, decoded as it comes.

    Any chunking gives bit for bit what `Decoder.decode` gives for the whole utterance. A stream is
    for one thread at a time; the search refuses a second one with a DecodingError.

    Attributes:
        context: The preceding text; a large model ranks the sentences after the last one set.
    """

    def __init__(
        self,
        search: SearchStream,
        options: DecoderOptions,
        inventory: Inventory,
        llm: LargeModel | None = None,
        context: str = "",
        hook: ModelHook | None = None,
        calibration: BoundCalibrator | None = None,
    ) -> None:
        self._search: SearchStream | None = search
        self._calibration = calibration
        self._frames: list[np.ndarray] = []
        self._hook = hook
        self._options = options
        self._inventory = inventory
        self._llm = llm
        self.context = context
        self._began_with = options.llm

    @property
    def options(self) -> DecoderOptions:
        """The options in force."""
        return self._options

    def step(self, chunk_PV: np.ndarray) -> Partial:
        """Take in the next frames and return the result so far.

        Words once in `stable` never change: all sentences of the final list begin with them.

        Args:
            chunk_PV: float32 [P, V] log-probabilities; P may be 0.

        Raises:
            DecodingError: As in `Decoder.decode`; a refused chunk changes nothing.
        """
        check_log_probs(chunk_PV, self._inventory)
        search = self._open()
        search.advance(chunk_PV)
        if self._calibration is not None:
            self._frames.append(chunk_PV.copy())  # the caller may use the array again
        return search.partial()

    def set_options(self, **changes: Any) -> None:
        """Change options (fields of `DecoderOptions`) from the next frame on.

        The final list is scored with the last ones. A large model's weight counts in the search,
        too, where it took part from the start. Its mode, the time between queries and its memory
        stay as they were at the start of the utterance, and so does `history_words`.
        """
        changed = self._options.changed(changes)
        changed.require_tokens(self._inventory)
        if changed.history_words != self._options.history_words:
            raise DecodingError(
                "history_words cannot change during an utterance", fix="open a new stream"
            )
        mode = {"mode": self._began_with.mode}
        searching = changed.changed(
            {"llm": self._began_with if self._hook is None else changed.llm.changed(mode)}
        )
        self._open().set_options(search_options(searching, self._llm))
        if self._hook is not None:
            self._hook.set_options(searching)
        self._options = changed

    def finish(self) -> NBest:
        """End the utterance and return its n-best list."""
        nbest = marked(self._open().finish(), self._hook)
        self._search = None
        if self._calibration is not None and self._frames:
            nbest = self._calibration.of(nbest, np.concatenate(self._frames), self._options)
        return (
            nbest if self._llm is None else self._llm.rank([nbest], self._options, self.context)[0]
        )

    def _open(self) -> SearchStream:
        if self._search is None:
            raise DecodingError(
                "the stream is finished", fix="open a new one for the next utterance"
            )
        return self._search


def search_options(options: DecoderOptions, llm: LargeModel | None) -> DecoderOptions:
    """Return the options that the search gets, which a large model may change."""
    return options if llm is None else llm.search_options(options)


def marked(nbest: NBest, hook: ModelHook | None) -> NBest:
    """Return the list, marked where a large model could not take part in the search to its end."""
    why = None if hook is None else hook.failed
    return nbest if why is None else NBest(nbest, f"searched without the large model: {why}")
