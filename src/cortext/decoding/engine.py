"""The native engine: the compiled search (`native/`) over a language-model directory."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from cortext import _native
from cortext.decoding.nbest import FRAME_MS, Hypothesis, NBest, Partial, Word
from cortext.decoding.ngram import LanguageModel
from cortext.decoding.options import LARGEST, DecoderOptions
from cortext.decoding.words import WordChanges
from cortext.errors import DecodingError, LanguageModelError
from cortext.text.inventory import Inventory
from cortext.text.lexicon import encode

Tokens = tuple[str | None, ...]
"""Symbols in the engine's own order: spoken ones, the separator (None where there is none), the
blank.
"""

NOT_READ_BY_NAME = frozenset({"blank_penalty", "label_priors", "prior_weight", "recombine", "llm"})
"""Fields of `DecoderOptions` that the compiled search gets as `offsets` or `logadd`, or not at all.

All others are read under their own name, from the lines of native/options.hpp.
"""

MAX_CHANGED_MODELS = 8
"""Models with other words or bonuses that an engine remembers; each takes about 2 MB."""


@dataclass(frozen=True)
class LiveBatch:
    """The live hypotheses of an utterance, one row for each context.

    The n-gram and `history_words` decide which contexts are kept apart.

    Attributes:
        ids: uint32 [N], the same for a hypothesis in every batch; the empty hypothesis is 0.
        parent_ids: uint32 [N], of the hypothesis without its last word (the empty one is its own).
        words: The finished words of each one's best path.
        acoustic: float32 [N], unscaled acoustic log-probability of the best path.
        lm: float32 [N], unscaled n-gram log-probability of the words.
        added: float32 [N], sum of the scores that the hook has added to it and its prefixes so far.
        frame: Number of frames searched.
        is_last: Whether the utterance has ended.
    """

    ids: np.ndarray
    parent_ids: np.ndarray
    words: list[tuple[str, ...]]
    acoustic: np.ndarray
    lm: np.ndarray
    added: np.ndarray
    frame: int
    is_last: bool


Hook = Callable[[LiveBatch], np.ndarray | None]
"""A function of the live hypotheses that returns scores to add, float32 [N], or None."""


class NativeEngine:
    """The compiled search over one language model.

    One read-only model in memory serves any number of streams and threads.
    """

    def __init__(self, lm: LanguageModel, second: _native.NGram | None = None) -> None:
        self.lm = lm
        self._second = second
        codes = lm.lexicon.codes
        self._tokens = _tokens(lm.lexicon.inventory)
        self._model = _native.Model.make(
            lm.ngram,
            list(codes),
            list(codes.values()),
            _log_weights(lm),
            len(lm.lexicon.inventory.spoken),
            None not in self._tokens,
        )
        self._changed: dict[WordChanges, _native.Model] = {}
        self._lock = threading.Lock()

    @classmethod
    def from_dir(cls, lm_dir: Path, second_lm: Path | None = None) -> NativeEngine:
        """Return the engine for a language-model directory; `second_lm` rescores lattices.

        A warning is logged where the second n-gram lacks many words of the first one's lexicon.

        Raises LanguageModelError where the two differ in tokens, language or unit, and where the
        second n-gram knows none of these words.
        """
        lm = LanguageModel.open(lm_dir)
        if second_lm is None:
            return cls(lm)
        second = LanguageModel.open(second_lm)
        lm.require(second.inventory, second.language, theirs="the second one")
        if lm.unit != second.unit:
            raise LanguageModelError(
                f"the language model has {lm.unit}s and the second one {second.unit}s",
                where=lm_dir,
                fix="take two of the same unit",
            )
        second.require_words(lm.lexicon)
        for note in second.notes_on(lm.lexicon):
            logging.getLogger(__name__).warning(note)
        return cls(lm, second.ngram)

    def with_lm(self, lm: LanguageModel) -> NativeEngine:
        """Return an engine for another language model; lattices are rescored as here."""
        return NativeEngine(lm, self._second)

    def start(
        self,
        options: DecoderOptions,
        inventory: Inventory,
        words: WordChanges = WordChanges(),
        hook: Hook | None = None,
        every_frames: int = 1,
    ) -> NativeStream:
        """Begin the search in a new utterance.

        Args:
            options: Options of the search.
            inventory: Tokens of the columns, in order.
            words: Words added, removed or favoured; none by default.
            hook: Adds scores to the live hypotheses; None for no hook.
            every_frames: Frames between two calls of the hook, at least 1.

        Raises:
            DecodingError: For an `every_frames` that is no whole number of at least 1.
        """
        model = self._model_with(words)
        stream = _native.Stream(
            model,
            native_options(options, self._tokens),
            self._columns(inventory),
            self._second,
            hook is not None,
        )
        return NativeStream(stream, options, self._tokens, hook, every_frames)

    def score(
        self,
        text: str,
        log_probs_PV: np.ndarray,
        options: DecoderOptions,
        inventory: Inventory,
        words: WordChanges = WordChanges(),
    ) -> Hypothesis:
        """Return the exact scores of a given sentence.

        Args:
            text: The sentence, its words separated by blanks.
            log_probs_PV: float32 [P, V], checked natural-log probabilities.
            options: Options of the search.
            inventory: Tokens of the columns, in order.
            words: Words added, removed or favoured; none by default.

        Raises:
            DecodingError: For a word that the lexicon lacks or a sentence too long for the frames.
        """
        model = self._model_with(words)
        sentence = text.split()
        for word in sentence:
            if word not in model:
                raise DecodingError(
                    f"the word {word!r} is not in the lexicon", where=self.lm.directory
                )
        result = model.score(
            sentence,
            log_probs_PV,
            self._columns(inventory),
            native_options(options, self._tokens),
        )
        if not len(result):
            raise DecodingError(
                f"the sentence {text!r} does not fit into {len(log_probs_PV)} frames"
            )
        return _hypothesis(result, 0, options, has_hook=False, has_confidence=False)

    def _columns(self, inventory: Inventory) -> list[int]:
        """Return the column of each of the engine's tokens in an inventory's order; -1 for none."""
        return [-1 if symbol is None else inventory.index[symbol] for symbol in self._tokens]

    def _model_with(self, words: WordChanges) -> _native.Model:
        if not words:
            return self._model
        with self._lock:  # engines are shared by threads, and building a model takes a while
            model = self._changed.get(words)
            if model is None:
                model = self._model.changed(
                    self._spelt(words), list(words.removed), dict(words.bonuses)
                )
                while len(self._changed) >= MAX_CHANGED_MODELS:
                    del self._changed[next(iter(self._changed))]
                self._changed[words] = model
        return model

    def _spelt(self, words: WordChanges) -> list[tuple[str, str, list[float]]]:
        """Return added words with all their pronunciations, also the lexicon's, and log weights."""
        lexicon = self.lm.lexicon
        spelt = []
        for word, variants in words.added:
            known = dict(
                zip(lexicon.codes.get(word, "").split(), lexicon.weights(word), strict=True)
            )
            weights = {encode(variant, lexicon.inventory): 1.0 for variant in variants} | known
            spelt.append(
                (word, " ".join(weights), [math.log(weight) for weight in weights.values()])
            )
        return spelt


class NativeStream:
    """The native engine's search through one utterance."""

    def __init__(
        self,
        stream: _native.Stream,
        options: DecoderOptions,
        tokens: Tokens,
        hook: Hook | None,
        every_frames: int,
    ) -> None:
        if not isinstance(every_frames, int) or every_frames < 1:
            raise DecodingError(
                f"every_frames is {every_frames!r}; a whole number of at least 1 is needed"
            )
        self._stream = stream
        self._options = options
        self._tokens = tokens
        self._hook = hook
        self._every = every_frames
        self._frame = 0
        self._in_hook = False

    def advance(self, log_probs_PV: np.ndarray) -> None:
        """Take in frames of log-probabilities."""
        if self._hook is None:
            self._stream.advance(log_probs_PV)
            return
        self._refuse_within_hook()
        # Cut the chunk where the hook is due: it must see the same frames in any chunking.
        while len(log_probs_PV):
            step = self._every - self._frame % self._every
            self._stream.advance(log_probs_PV[:step])
            self._frame += len(log_probs_PV[:step])
            if self._frame % self._every == 0:
                self._call_hook(self._hook, is_last=False)
            log_probs_PV = log_probs_PV[step:]

    def partial(self) -> Partial:
        """Return the words that will not change any more, and the current guess after them."""
        return Partial(*self._stream.partial())

    def set_options(self, options: DecoderOptions) -> None:
        """Change the options from the next frame on; the final scores use the last ones."""
        self._stream.set_options(native_options(options, self._tokens))
        self._options = options

    def finish(self) -> NBest:
        """Return the n-best list with exact scores."""
        if self._hook is not None:
            self._refuse_within_hook()
            self._call_hook(self._hook, is_last=True)
        return NativeNBest(self._stream.finish(), self._options, self._hook is not None)

    def _call_hook(self, hook: Hook, is_last: bool) -> None:
        ids, parents, words, acoustic, lm, added = self._stream.live()
        batch = LiveBatch(
            ids=np.array(ids, dtype=np.uint32),
            parent_ids=np.array(parents, dtype=np.uint32),
            words=words,
            acoustic=np.array(acoustic, dtype=np.float32),
            lm=np.array(lm, dtype=np.float32),
            added=np.array(added, dtype=np.float32),
            frame=self._frame,
            is_last=is_last,
        )
        self._in_hook = True  # a hook that steps its own stream would wait for itself for ever
        try:
            scores = hook(batch)
        finally:
            self._in_hook = False
        if scores is None:
            return
        if (
            not isinstance(scores, np.ndarray)
            or scores.dtype != np.float32
            or scores.shape != (len(ids),)
        ):
            raise DecodingError(
                f"the hook returned {_described(scores)}; float32 [{len(ids)}] or None is needed"
            )
        if not np.isfinite(scores).all():
            raise DecodingError("the hook returned scores that are not finite")
        if len(scores) and np.abs(scores).max() > LARGEST:
            raise DecodingError(f"the hook returned a score beyond {LARGEST:g}")
        self._stream.add_scores(ids, np.ascontiguousarray(scores))

    def _refuse_within_hook(self) -> None:
        if self._in_hook:
            raise DecodingError(
                "the stream is in use by its hook", fix="step and finish outside of the hook"
            )


class NativeNBest(NBest):
    """An n-best list that becomes Python objects on access.

    A caller who reads only the best text does not pay for the words of all the others.
    """

    def __init__(self, result: _native.Result, options: DecoderOptions, has_hook: bool) -> None:
        self._result = result
        self._options = options
        self._has_hook = has_hook

    @cached_property
    def hypotheses(self) -> tuple[Hypothesis, ...]:  # type: ignore[override]
        """All hypotheses, best first."""
        return tuple(self._hypothesis(number) for number in range(len(self._result)))

    @property
    def texts(self) -> list[str]:
        """The text of each."""
        return [self._result.text(number) for number in range(len(self._result))]

    def __len__(self) -> int:
        return len(self._result)

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel to other processes as the plain list that it stands for."""
        return NBest, (self.hypotheses, self.degraded, self.confidence)

    def _hypothesis(self, number: int) -> Hypothesis:
        return _hypothesis(self._result, number, self._options, self._has_hook, has_confidence=True)


def _tokens(inventory: Inventory) -> Tokens:
    return (*inventory.spoken, inventory.separator, inventory.blank_symbol)


def native_options(options: DecoderOptions, tokens: Tokens) -> _native.Options:
    """Return the options as the compiled search takes them.

    Args:
        options: Options of the search.
        tokens: The engine's tokens.

    Raises:
        DecodingError: Where the compiled module is older than `DecoderOptions`. Without this error
            a search would pass over the new option in silence.
    """
    names = {option.name for option in fields(options)} - NOT_READ_BY_NAME
    if missing := names - _native.Options.BOUNDS.keys():
        raise DecodingError(
            f"the compiled search does not know the option {min(missing)!r}",
            fix="run `make native`",
        )
    native = _native.Options()
    for name in names:
        setattr(native, name, getattr(options, name))
    native.logadd = options.recombine == "logadd"
    if None in tokens:  # nothing stands between words, and nothing is missing there
        native.sil_cost = 0.0
        native.sil_required = False
    # Penalty and priors are constants of a token, so all of them become one subtraction a frame.
    priors = dict(options.label_priors)
    offsets = [options.prior_weight * math.log(priors.get(symbol or "", 1.0)) for symbol in tokens]
    offsets[-1] += math.log(options.blank_penalty)
    native.offsets = offsets
    return native


def _hypothesis(
    result: _native.Result,
    number: int,
    options: DecoderOptions,
    has_hook: bool,
    has_confidence: bool,
) -> Hypothesis:
    score, lm_score, sil_score, hotword_score, added_score = result.scores(number)
    words = result.words(number)
    acoustic = score - options.lm_weight * lm_score - options.word_score * len(words)
    return Hypothesis(
        text=result.text(number),
        score=score,
        acoustic_score=(acoustic - sil_score - hotword_score - added_score)
        / options.acoustic_scale,
        lm_score=lm_score,
        words=tuple(
            Word(word, first * FRAME_MS, end * FRAME_MS, confidence if has_confidence else None)
            for word, first, end, confidence in words
        ),
        llm_score=added_score if has_hook else None,
        sil_score=sil_score,
        hotword_score=hotword_score,
    )


def _log_weights(lm: LanguageModel) -> list[tuple[int, int, float]]:
    """Return word number, pronunciation number and log weight of weighted pronunciations."""
    if not lm.lexicon.weighted:
        return []
    numbers = {word: number for number, word in enumerate(lm.lexicon)}
    return [
        (numbers[word], lm.lexicon.codes[word].split().index(code), math.log(weight))
        for (word, code), weight in lm.lexicon.weighted.items()
    ]


def _described(value: object) -> str:
    return (
        f"{value.dtype} {list(value.shape)}"
        if isinstance(value, np.ndarray)
        else type(value).__name__
    )
