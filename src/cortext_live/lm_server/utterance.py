"""One utterance of a client: its logits checked, normalised and searched, and its problems."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from cortext.data.conventions import Conventions
from cortext.decoding.decoder import Decoder
from cortext.decoding.log_probs import FEWEST_FRAMES, unlike
from cortext.decoding.nbest import FRAME_MS, NBest, Partial
from cortext.decoding.options import DecoderOptions
from cortext.decoding.saved import to_log_probs
from cortext.errors import DecodingError
from cortext.text.inventory import LM, RELEASE, Inventory
from cortext_live.core.decoder import in_time
from cortext_live.core.redis_connection import Stopped

LARGEST_LOGIT = 1e6
"""Largest logit: bytes of other types (float64, integers) read as float32 often exceed it."""
LARGEST_ENTRY = 64 * 2**20
"""Bytes of logits in one entry, nine hours of speech."""
MOST_PROBLEMS = 10
_SLICE_FRAMES = 500
"""Frames that are searched before `stop` is asked again."""


class ClientUtterance:
    """The search through one client's utterance.

    Args:
        decoder: The word search.
        options: Its options for this utterance.
        stop: Asked during long searches; True ends them with `Stopped`.
        inventory: The order of the client's tokens; None for the usual one (`usual_order`).
        hotwords: Bonus by word.
        context: The text before the utterance, for a large model.
        frame_ms: Milliseconds of a frame.
    """

    def __init__(
        self,
        decoder: Decoder,
        options: DecoderOptions,
        stop: Callable[[], bool],
        inventory: Inventory | None = None,
        hotwords: Mapping[str, float] | None = None,
        context: str = "",
        frame_ms: float = FRAME_MS,
    ) -> None:
        inventory = usual_order(decoder) if inventory is None else inventory
        decoder = decoder.with_options(**vars(in_time(options, frame_ms)))
        self._stream = decoder.stream(inventory, hotwords=hotwords, context=context)
        self._stop = stop
        self._inventory = inventory
        self._frame_ms = frame_ms
        self._first_PV = np.empty((0, len(inventory)), dtype=np.float32)
        self._other_kind: str | None = None
        self.partial = Partial("", "")
        self.n_frames = 0
        self.n_entries = 0
        self.search_s = 0.0
        self.problems: list[str] = []
        self._n_problems = 0

    def take(self, raw: bytes | None) -> str | None:
        """Search through logits; return their problem, in which case they are left out.

        Args:
            raw: float32 bytes [P, V].
        """
        self.n_entries += 1
        start = time.perf_counter()
        try:
            logits_PV = logits_from(raw, self._inventory)
            self._check_kind(logits_PV)
            for first in range(0, len(logits_PV), _SLICE_FRAMES):
                if self._stop():
                    raise Stopped
                log_probs_PV = to_log_probs(logits_PV[first : first + _SLICE_FRAMES])
                self.partial = self._stream.step(log_probs_PV)
                self.n_frames += len(log_probs_PV)
        except DecodingError as error:
            self.problem(f"entry {self.n_entries} was left out: {error}")
            return str(error)
        finally:
            self.search_s += time.perf_counter() - start
        return None

    def _check_kind(self, logits_PV: np.ndarray) -> None:
        """Raise DecodingError where the first frames are no logits: too few of them cannot say."""
        if len(self._first_PV) < FEWEST_FRAMES:
            self._first_PV = np.concatenate([self._first_PV, logits_PV[:FEWEST_FRAMES]])
            self._other_kind = unlike(self._first_PV)
        if self._other_kind:
            raise DecodingError(
                f"the entry {self._other_kind}", fix="send logits or natural log-probabilities"
            )

    def problem(self, text: str) -> None:
        """Keep a problem for the result; of very many only the first."""
        self._n_problems += 1
        if self._n_problems <= MOST_PROBLEMS:
            self.problems.append(text)
        else:
            self.problems[MOST_PROBLEMS:] = [f"and {self._n_problems - MOST_PROBLEMS} more"]

    def set_options(self, options: DecoderOptions) -> None:
        """Change the options from the next frame on."""
        self._stream.set_options(**vars(in_time(options, self._frame_ms)))

    def finish(self, context: str | None = None) -> NBest:
        """Return the candidate sentences.

        A large model ranks them after this context, or after the context from the beginning.
        """
        if context is not None:
            self._stream.context = context
        return self._stream.finish().timed(self._frame_ms)


def served_conventions(decoder: Decoder) -> dict[str, Any]:
    """Return `inventory` and `language` of a language model where they are not the published."""
    mine = decoder.inventory
    return Conventions(RELEASE if mine.is_published else mine, decoder.language).to_json()


def usual_order(decoder: Decoder) -> Inventory:
    """Return the order of tokens of a client that names none: the language model's.

    For the published tokens it is always that of the released language models, which published
    clients send, whatever the order in `tokens.txt`.
    """
    return LM if decoder.inventory.is_published else decoder.inventory


def logits_from(raw: bytes | None, inventory: Inventory) -> np.ndarray:
    """Return logits, float32 [P, V], from their bytes; -inf makes a token impossible.

    Raises:
        DecodingError: These are no logits.
    """
    size = 4 * len(inventory)
    if raw is None:
        raise DecodingError("the entry has no field 'logits'")
    if len(raw) > LARGEST_ENTRY:
        raise DecodingError(
            f"the entry has {len(raw)} bytes of logits; at most {LARGEST_ENTRY} are read at once"
        )
    if len(raw) % size:
        raise DecodingError(
            f"{len(raw)} bytes are no whole number of frames of {len(inventory)} float32 logits"
            f" ({size} bytes)"
        )
    logits_PV = np.frombuffer(raw, dtype="<f4").reshape(-1, len(inventory))
    wrong_PV = np.isnan(logits_PV) | (logits_PV > LARGEST_LOGIT)
    if wrong_PV.any() or _looks_like_float64(raw):
        if _looks_like_float64(raw):
            raise DecodingError("the bytes look like float64", fix="send float32")
        frame = int(wrong_PV.any(axis=1).argmax())
        problem = (
            "NaN" if np.isnan(logits_PV[frame]).any() else "no logits (infinite or huge numbers)"
        )
        raise DecodingError(
            f"frame {frame} of {len(logits_PV)} has {problem}", fix="send finite float32 logits"
        )
    empty_P = np.isneginf(logits_PV).all(axis=1)
    if empty_P.any():
        raise DecodingError(
            f"frame {int(empty_P.argmax())} of {len(logits_PV)} leaves no token possible"
        )
    return logits_PV


def _looks_like_float64(raw: bytes) -> bool:
    """Return whether the bytes make sense as float64 logits only.

    As float32 the numbers are huge, or every other one is zero.
    """
    if not raw or len(raw) % 8:
        return False
    singles = np.frombuffer(raw, dtype="<f4")
    doubles = np.frombuffer(raw, dtype="<f8")
    with np.errstate(invalid="ignore", over="ignore"):
        if not (np.abs(doubles) < LARGEST_LOGIT).all():
            return False
        if not (np.abs(singles) < LARGEST_LOGIT).all():
            return bool((np.abs(doubles) > 1e-6).mean() > 0.5)
        return not singles[0::2].any() and bool((singles[1::2] != 0).mean() > 0.5)
