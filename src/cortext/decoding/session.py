"""`Decoder`: log-probabilities to ranked sentences, at once, in batches or as a stream, by a named search engine."""

from __future__ import annotations

import copy
import multiprocessing
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from cortext.decoding.engine_reference import ReferenceEngine
from cortext.decoding.options import DecoderOptions, Hypothesis, NBest, Partial
from cortext.errors import DecodingError, nearest
from cortext.processes import uninterrupted
from cortext.text.phonemes import Inventory, get_inventory

SUM_TOLERANCE = 1e-2
"""How far the log of a frame's summed probabilities may be from 0; float16 rounding stays below it."""


class Utterance(Protocol):
    """The search through one utterance. Frames are checked before they come here."""

    def advance(self, log_probs_PV: np.ndarray) -> None:
        """Take in frames."""

    def partial(self) -> Partial:
        """What is known so far."""

    def finish(self) -> NBest:
        """The candidate sentences."""


class Engine(Protocol):
    """A search engine: made from a language-model directory, starts utterances."""

    def start(self, options: DecoderOptions, inventory: Inventory) -> Utterance:
        """A search through a new utterance."""

    def score(self, text: str, log_probs_PV: np.ndarray, options: DecoderOptions, inventory: Inventory) -> Hypothesis:
        """The exact scores of a given sentence."""


ENGINES: dict[str, Callable[[Path], Engine]] = {"reference": ReferenceEngine.from_dir}
"""Search engines by name."""


class Session:
    """One utterance, decoded as it comes. Any chunking gives bit for bit what `Decoder.decode` gives for the whole."""

    def __init__(self, utterance: Utterance, inventory: Inventory) -> None:
        self._utterance: Utterance | None = utterance
        self._inventory = inventory

    def step(self, chunk_PV: np.ndarray) -> Partial:
        """Take in the next frames, float32 [P, V] log-probabilities (P may be 0); tell what is known so far.

        Words once in `stable` never change. Raises DecodingError as `Decoder.decode` does; a refused chunk changes
        nothing.
        """
        check_log_probs(chunk_PV, self._inventory)
        utterance = self._open()
        utterance.advance(chunk_PV)
        return utterance.partial()

    def finish(self) -> NBest:
        """The candidate sentences, best first. Ends the session."""
        utterance, self._utterance = self._open(), None
        return utterance.finish()

    def _open(self) -> Utterance:
        if self._utterance is None:
            raise DecodingError("the session is finished", fix="open a new one for the next utterance")
        return self._utterance


class Decoder:
    """Finds the sentences that phoneme log-probabilities most probably say, given a lexicon and an n-gram."""

    def __init__(self, lm_dir: Path, options: DecoderOptions, engine: str) -> None:
        if engine not in ENGINES:
            raise DecodingError(f"unknown engine {engine!r}; {nearest(engine, ENGINES)}")
        self.lm_dir, self.options, self.engine = lm_dir, options, engine
        self._engine = ENGINES[engine](lm_dir)

    def with_options(self, **changes: Any) -> Decoder:
        """A decoder with some options changed that shares the model in memory."""
        other = copy.copy(self)
        other.options = self.options.changed(changes)
        return other

    @classmethod
    def from_dir(
        cls,
        lm_dir: str | Path,
        options: DecoderOptions | Mapping[str, Any] | None = None,
        engine: str = "reference",
    ) -> Decoder:
        """A decoder from a language-model directory (`lexicon.txt`, `tokens.txt`, `lm.arpa`).

        Raises LanguageModelError for a directory that cannot be used, DecodingError for options or an engine that
        do not exist.
        """
        return cls(Path(lm_dir), DecoderOptions.of(options), engine)

    def decode(self, log_probs_PV: np.ndarray, inventory: Inventory | str) -> NBest:
        """The candidate sentences of one utterance, best first; no frames give the empty sentence.

        log_probs_PV: float32 (or float64) [P, V], C-contiguous natural-log probabilities of a frame's tokens, in the
                      order of `inventory` (an `Inventory`, `"release"` or `"lm"`). -inf is allowed.
        Raises DecodingError for anything else: nothing is guessed, converted or reordered.
        """
        inventory = get_inventory(inventory)
        check_log_probs(log_probs_PV, inventory)
        utterance = self._engine.start(self.options, inventory)
        utterance.advance(log_probs_PV)
        return utterance.finish()

    def decode_batch(
        self,
        log_probs: Sequence[np.ndarray],
        inventory: Inventory | str,
        workers: int = 1,
        progress: Callable[[int, int], None] | None = None,
    ) -> list[NBest]:
        """`decode` for each utterance, in `workers` processes; the results do not depend on their number.

        Processes are spawned, so a script that calls this with workers > 1 needs `if __name__ == "__main__":`.
        All utterances are checked before any is decoded; the error says which one it is.
        """
        inventory = get_inventory(inventory)
        for number, log_probs_PV in enumerate(log_probs):
            try:
                check_log_probs(log_probs_PV, inventory)
            except DecodingError as error:
                raise DecodingError(error.what, where=f"utterance {number}", fix=error.fix) from None
        if workers <= 1 or len(log_probs) < 2:
            return _collect(map(self._decode_as(inventory), log_probs), len(log_probs), progress)
        context = multiprocessing.get_context("spawn")
        arguments = (self.lm_dir, self.options, self.engine, inventory)
        workers = min(workers, len(log_probs))
        pool = ProcessPoolExecutor(workers, context, _start_worker, arguments)
        try:
            with uninterrupted():
                found = pool.map(_decode_in_worker, log_probs)
            return _collect(found, len(log_probs), progress)
        finally:  # after Ctrl-C nothing that has not begun is decoded
            pool.shutdown(cancel_futures=True)

    def session(self, inventory: Inventory | str) -> Session:
        """A session for one utterance that comes in chunks."""
        inventory = get_inventory(inventory)
        return Session(self._engine.start(self.options, inventory), inventory)

    def score(self, log_probs_PV: np.ndarray, inventory: Inventory | str, text: str) -> Hypothesis:
        """The exact scores and word times of a given sentence, whatever the search would find.

        Raises DecodingError for a word that the lexicon lacks or a sentence too long for the frames.
        """
        inventory = get_inventory(inventory)
        check_log_probs(log_probs_PV, inventory)
        return self._engine.score(text, log_probs_PV, self.options, inventory)

    def _decode_as(self, inventory: Inventory) -> Callable[[np.ndarray], NBest]:
        return lambda log_probs_PV: self.decode(log_probs_PV, inventory)


def check_log_probs(log_probs_PV: np.ndarray, inventory: Inventory) -> None:
    """Raise DecodingError unless the array holds log-probabilities [P, V] of the inventory's tokens."""
    if not isinstance(log_probs_PV, np.ndarray):
        raise DecodingError(f"log_probs is a {type(log_probs_PV).__name__}; a NumPy array is needed")
    if log_probs_PV.dtype not in (np.float32, np.float64):
        raise DecodingError(f"log_probs has dtype {log_probs_PV.dtype}; float32 is needed", fix="convert it")
    if log_probs_PV.ndim != 2 or log_probs_PV.shape[1] != len(inventory):
        raise DecodingError(
            f"log_probs has shape {list(log_probs_PV.shape)}; [frames, {len(inventory)}] is needed for the tokens of "
            f"inventory {inventory.name!r}"
        )
    if not log_probs_PV.flags.c_contiguous:
        raise DecodingError("log_probs is not C-contiguous", fix="use numpy.ascontiguousarray")
    if not len(log_probs_PV):
        return
    if np.isnan(log_probs_PV).any():
        raise DecodingError(f"log_probs has NaN, first in frame {int(np.isnan(log_probs_PV).any(axis=1).argmax())}")
    with np.errstate(over="ignore"):
        sums_P = np.exp(log_probs_PV.astype(np.float64)).sum(axis=1)
    low, high = np.exp(-SUM_TOLERANCE), np.exp(SUM_TOLERANCE)
    wrong_P = ~((sums_P >= low) & (sums_P <= high))
    if wrong_P.any():
        frame = int(wrong_P.argmax())
        raise DecodingError(
            f"the probabilities of frame {frame} sum to {sums_P[frame]:.4g}, not 1: these are no log-probabilities",
            fix="apply log-softmax over the tokens to logits, or the logarithm to probabilities",
        )


def _collect(results: Any, total: int, progress: Callable[[int, int], None] | None) -> list[NBest]:
    collected = []
    for result in results:
        collected.append(result)
        if progress:
            progress(len(collected), total)
    return collected


_worker: Callable[[np.ndarray], NBest]


def _start_worker(lm_dir: Path, options: DecoderOptions, engine: str, inventory: Inventory) -> None:
    global _worker
    _worker = Decoder(lm_dir, options, engine)._decode_as(inventory)


def _decode_in_worker(log_probs_PV: np.ndarray) -> NBest:
    return _worker(log_probs_PV)
