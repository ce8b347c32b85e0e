"""Bins of neural features in, words out, as they come; without files or sockets.

T bins, C features, P frames of logits, V tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cortext.arguments import check_text, check_type
from cortext.data.conventions import Conventions
from cortext.decoding import Decoder, DecoderOptions, DecoderStream, Hypothesis, NBest, Partial
from cortext.decoding.confidence import Calibrator
from cortext.decoding.log_probs import log_softmax
from cortext.describe import Described
from cortext.errors import ConfigError
from cortext.models import AcousticModel
from cortext_live.core.acoustic_stream import (
    AcousticStream,
    Endpoint,
    PipelineOptions,
    Reason,
)
from cortext_live.core.decoder import in_time
from cortext_live.core.gate import KEPT_MS, SCAN_MS, IdleGate
from cortext_live.core.statistics import TIMES, Stopwatch
from cortext_live.steps.stepper import Stepper


@dataclass(frozen=True)
class Update:
    """The result of the latest bins.

    Attributes:
        partial: The words so far.
        logits_PV: float32 [P, V], frames that are new, in the order of the model's inventory.
        stage_ms: Milliseconds by `statistics.TIMES`, a number for each new frame.
        reason: Why the utterance has ended by itself, and so is to be finished; None while it is
            in progress.
        held_bins: Bins that came after its end: `finish` keeps them for the next utterance.
    """

    partial: Partial
    logits_PV: np.ndarray
    stage_ms: dict[str, list[float]]
    reason: Reason | None = None
    held_bins: int = 0

    @property
    def ended(self) -> bool:
        """Tell whether the utterance has ended by itself."""
        return self.reason is not None

    @property
    def stable(self) -> str:
        """Words that will not change any more."""
        return self.partial.stable

    @property
    def tail(self) -> str:
        """The current guess after them."""
        return self.partial.tail

    @property
    def text(self) -> str:
        """The whole current guess."""
        return self.partial.text


class Pipeline(Described):
    """From features to words, one utterance after the other.

    Any chunking gives the same text, times and scores. (Fusion with a large model is the exception:
    scores that come after `llm.budget_ms` do not count.)

    Args:
        model: A loaded model; not needed with a stepper.
        decoder: The word search, with a large model or without; None gives logits only.
        session: The recording day whose layer is used; `latest` is the model's last one.
        options: How features become logits, and when an utterance ends.
        stepper: Another way to run the model (ONNX Runtime, bfloat16); it has a session already.
        context: The text before the utterance, for a large model; may be changed.
        gate: Tells when an utterance begins. With one, push bins to `listen` while `is_idle`.
    """

    def __init__(
        self,
        model: AcousticModel | None,
        decoder: Decoder | None,
        session: str = "latest",
        *,
        options: PipelineOptions = PipelineOptions(),
        stepper: Stepper | None = None,
        context: str = "",
        gate: IdleGate | None = None,
    ) -> None:
        source = model if stepper is None else stepper
        if source is None:
            raise ConfigError("a pipeline needs a model or a stepper")
        check_type(decoder, (Decoder, type(None)), "decoder", "a Decoder or None")
        check_text(context, "context")
        self.options = options
        self._stopwatch = Stopwatch()
        self._stream = AcousticStream(source, session, options, self._stopwatch)
        self._inventory = self._stream.stepper.inventory
        self._frame_ms = self._stream.frame_ms
        if decoder is not None:
            decoder.lm.require(self._inventory, self.conventions.language, theirs="the model")
        self._endpoint = (
            Endpoint(options.endpoint, self._inventory, self._frame_ms)
            if options.endpoint
            else None
        )
        self._decoder = (
            None
            if decoder is None
            else decoder.with_options(**vars(in_time(decoder.options, self._frame_ms)))
        )
        self._hotwords = dict[str, float]()
        self._context = context
        self._held_TC = np.empty((0, self._stream.stepper.n_features), dtype=np.float32)
        self._search: DecoderStream | None = None
        self.gate = gate
        self._kept_TC = self._held_TC
        self._n_scanned = 0
        self._begin()

    def _facts(self) -> dict[str, Any]:
        stepper = self.stepper
        return {
            "session": self.session,
            "features": stepper.n_features,
            "frame": f"{self._frame_ms:g} ms",
            "look-ahead": f"{self.look_ahead_ms:g} ms",
            "decoder": "none" if self._decoder is None else self._decoder.lm_dir,
            "bins so far": self.n_bins,
            "words so far": repr(self._partial.text),
        }

    @property
    def session(self) -> str:
        """The recording day whose layer is used."""
        return self._stream.session

    @property
    def look_ahead_ms(self) -> float:
        """Milliseconds from a bin until its smoothed value is known."""
        return self._stream.look_ahead_ms

    @property
    def conventions(self) -> Conventions:
        """The model's tokens, language and length of a bin."""
        return self._stream.conventions

    @property
    def frame_ms(self) -> float:
        """Milliseconds of a frame, the time that a step may take."""
        return self._frame_ms

    @property
    def stepper(self) -> Stepper:
        """The stepper that runs the model."""
        return self._stream.stepper

    @property
    def seconds(self) -> float:
        """Length of the utterance so far."""
        return self.n_bins * self.conventions.bin_ms / 1000

    @property
    def decoder(self) -> Decoder | None:
        """The word search with the options in force."""
        return self._decoder

    @property
    def decoder_options(self) -> DecoderOptions:
        """The decoder options in force. Raises ConfigError without a decoder."""
        if self._decoder is None:
            raise ConfigError("a pipeline without a decoder has no decoder options")
        return self._decoder.options

    @property
    def hotwords(self) -> dict[str, float]:
        """The bonus by word, from the next utterance on.

        A word that is not in the lexicon is added, as it is spelt. Setting raises DecodingError for
        anything that is no word, or no number.
        """
        return dict(self._hotwords)

    @hotwords.setter
    def hotwords(self, bonuses: Mapping[str, float]) -> None:
        check_type(bonuses, Mapping, "hotwords", "a mapping of words to bonuses")
        bonuses = dict(bonuses)
        # Rejects wrong bonuses, and adds words to the lexicon before speech comes: that takes time.
        self._open_search(bonuses)
        self._hotwords = bonuses

    @property
    def context(self) -> str:
        """The text before the utterance, after which sentences are ranked.

        In fusion it counts from the next utterance on.
        """
        return self._context

    @context.setter
    def context(self, text: str) -> None:
        check_text(text, "context")
        self._context = text
        if self._search is not None:
            self._search.context = text

    @property
    def statistics(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Rolling mean and standard deviation in force, float64 [C] each, or None.

        They give another day a warm start.
        """
        return self._stream.statistics

    def remember(self, utterances: Iterable[np.ndarray]) -> None:
        """Take earlier utterances, float32 [T, C], into the rolling statistics, oldest first."""
        self._stream.remember(utterances)

    def usable(self, bins_TC: np.ndarray) -> np.ndarray:
        """Return bins as `push` takes them, without NaN, infinity and values too large.

        Raises:
            DataError: See `push`.
        """
        return self._stream.watch.usable(bins_TC)

    def take_notes(self) -> list[str]:
        """Return the notes on unusual features since the last call, a line each."""
        return self._stream.watch.take_notes()

    def set_options(self, **changes: Any) -> None:
        """Change decoder options, from the next frame on.

        `history_words` cannot change in mid-utterance.

        Raises:
            DecodingError: An option is wrong. Nothing has changed.
        """
        if self._decoder is None:
            raise ConfigError("a pipeline without a decoder has no decoder options")
        options = in_time(self._decoder.options.changed(changes), self._frame_ms)
        if self._search is not None:
            self._search.set_options(**vars(options))
        self._decoder = self._decoder.with_options(**vars(options))

    @property
    def is_idle(self) -> bool:
        """Tell whether there is a gate and it is shut."""
        return self.gate is not None and not self.gate.is_open

    def listen(self, bins_TC: np.ndarray) -> np.ndarray:
        """Take the next bins while the gate is shut.

        Returns:
            The bins of an utterance that begins, float32 [T, C], for `push`: those that were kept,
            and those of this chunk that follow the opening. T is 0 while the gate stays shut.

        Raises:
            ConfigError: There is no gate.
            DataError: See `push`.
        """
        if self.gate is None:
            raise ConfigError("a pipeline without an idle gate cannot listen")
        bins_TC = np.concatenate((self._held_TC, self.usable(bins_TC)))
        self._held_TC = self._held_TC[:0]
        first = 0
        while first < len(bins_TC):
            next_TC = bins_TC[first : first + self._stream.bins_to_frame]
            first += len(next_TC)
            if self._scan(next_TC, self.gate):
                begun_TC = np.concatenate((self._kept_TC, bins_TC[first:]))
                self.reset()
                self.gate.open()
                return begun_TC
        return bins_TC[:0].copy()

    def _scan(self, bins_TC: np.ndarray, gate: IdleGate) -> bool:
        """Take bins that complete at most one frame; return whether the gate opens."""
        bin_ms = self.conventions.bin_ms
        n_kept = round(KEPT_MS / bin_ms)
        self._kept_TC = np.concatenate((self._kept_TC, bins_TC))[-n_kept:]
        self._n_scanned += len(bins_TC)
        self._stopwatch.start()
        logits_PV = self._stream.advance(bins_TC)
        self._stopwatch.stop(completes=len(logits_PV) > 0)
        self._stopwatch.take()
        odds = [gate.push(log_probs_V) for log_probs_V in log_softmax(logits_PV)]
        if any(gate.opens(each) for each in odds):
            return True
        if odds and self._n_scanned * bin_ms >= SCAN_MS:
            self._scan_again(gate)
        return False

    def _scan_again(self, gate: IdleGate) -> None:
        """Forget all but the bins that are kept."""
        self._stream.reset()
        gate.restart()
        self._n_scanned = len(self._kept_TC)
        for log_probs_V in log_softmax(self._stream.advance(self._kept_TC)):
            gate.push(log_probs_V)

    def swap(self, stepper: Stepper, calibrator: Calibrator | None = None) -> None:
        """Let another model take over, between two utterances.

        No bin is lost: it gets those that are held, and those that the idle gate keeps. Rolling
        statistics, options, hotwords and the gate stay.

        Args:
            stepper: The model, with the session to use.
            calibrator: Calibrates its confidences; None: they are the search's posteriors.

        Raises:
            ConfigError: An utterance is in progress.
            RunError: The model reads other recordings or writes other tokens. Nothing has changed.
        """
        if self.n_bins:
            raise ConfigError("a model is swapped in mid-utterance", fix="call finish() first")
        self._stream.swap(stepper)
        if self._decoder is not None:
            self._decoder = self._decoder.with_calibrator(calibrator)
        if self.gate is not None:
            self._scan_again(self.gate)

    def start_block(
        self, mean_C: np.ndarray | None = None, std_C: np.ndarray | None = None
    ) -> None:
        """Begin a block of recording, with given rolling statistics or those in force (warm start).

        An utterance in progress and the bins that are held are dropped.
        """
        self._stream.start_block(mean_C, std_C)
        self.reset()

    def push(self, bins_TC: np.ndarray) -> Update:
        """Take the next bins; return the words and logits that are known so far.

        Where the utterance ends by itself in mid-chunk, later bins are held: call `finish`, then
        push on (an empty chunk will do). Pushing on without `finish` continues the utterance.

        Args:
            bins_TC: float32 [T, C]; T may be 0.

        Raises:
            DataError: Bins of another width or dtype, or most values of a bin unusable. Nothing
                has changed.
        """
        bins_TC = self.usable(bins_TC)
        if len(self._held_TC):
            bins_TC = np.concatenate((self._held_TC, bins_TC))
        reason = had_ended = self._reason
        stage_ms: dict[str, list[float]] = {stage: [] for stage in TIMES}
        logits: list[np.ndarray] = []
        first = 0
        try:
            while first < len(bins_TC):
                next_TC = bins_TC[first : first + self._stream.bins_to_frame]
                first += len(next_TC)
                # After a frame the caller waits for its words: no time to prepare the next step.
                logits_PV, reason = self._step(next_TC, prepare=not logits)
                if len(logits_PV):
                    logits.append(logits_PV)
                    for stage, ms in self._stopwatch.take().items():
                        stage_ms[stage].append(ms)
                # A caller that pushes after the end continues the utterance; no bins are held back
                # then.
                if reason and not had_ended:
                    break
        finally:  # also where a step fails: what follows its frame comes with the next push
            # A copy: the caller may write the next bins into the same array.
            self._held_TC = bins_TC[first:].copy()
        logits_PV = (
            np.concatenate(logits)
            if logits
            else np.empty((0, len(self._inventory)), dtype=np.float32)
        )
        return Update(self._partial, logits_PV, stage_ms, reason, len(self._held_TC))

    def flush(self) -> Update:
        """Take the bins that are left at the end of an utterance, too few for a patch.

        A model that fills its last patch with zeros makes one frame of them; others drop them.
        `finish` calls it. Call it yourself before `finish`, and push nothing in between, where the
        logits of that frame are needed.
        """
        stage_ms: dict[str, list[float]] = {stage: [] for stage in TIMES}
        self._stopwatch.start()
        logits_PV = self._stream.advance_last()
        reason = self._take_frames(logits_PV)
        if len(logits_PV):
            stage_ms = {stage: [ms] for stage, ms in self._stopwatch.take().items()}
        return Update(self._partial, logits_PV, stage_ms, reason, len(self._held_TC))

    def finish(self) -> NBest:
        """End the utterance; return its n-best list, words with times and confidence.

        Too few bins for one frame, like silence, give one candidate with an empty text. If the
        model fails on the last frame, the utterance continues without it, as in `push`.
        """
        self.flush()
        search, self._search = self._search, None
        try:
            if search is None:
                search = self._open_search(self._hotwords)
            return (
                search.finish().timed(self._frame_ms)
                if search
                else NBest((Hypothesis("", 0.0, 0.0, 0.0),))
            )
        finally:
            self._stream.end_utterance()
            self._begin()

    def reset(self) -> None:
        """Drop the utterance and the held bins: the next bin is the first of another."""
        self._stream.reset()
        self._held_TC = self._held_TC[:0]
        self._begin()

    def _begin(self) -> None:
        self._search = None
        self._partial = Partial("", "")
        self.n_bins = 0
        self._stopwatch.take()
        if self._endpoint:
            self._endpoint.reset()
        if self.gate:
            self.gate.reset()
        self._kept_TC = self._held_TC[:0]
        self._n_scanned = 0

    @property
    def _reason(self) -> Reason | None:
        """The reason for which the utterance has ended, if it has."""
        reason = self._endpoint.reason if self._endpoint else None
        return reason or ("idle" if self.gate and self.gate.has_shut else None)

    def _open_search(self, hotwords: Mapping[str, float]) -> DecoderStream | None:
        if self._decoder is None:
            return None
        new = [word for word in hotwords if word not in self._decoder]
        return self._decoder.stream(
            self._inventory, words=new, hotwords=hotwords, context=self._context
        )

    def _step(self, bins_TC: np.ndarray, prepare: bool) -> tuple[np.ndarray, Reason | None]:
        """Take bins that complete at most one frame."""
        self._stopwatch.start()
        self.n_bins += len(bins_TC)
        logits_PV = self._stream.advance(bins_TC, prepare)
        return logits_PV, self._take_frames(logits_PV)

    def _take_frames(self, logits_PV: np.ndarray) -> Reason | None:
        """Search on with new frames, if any, and end the work that the stopwatch times."""
        reason = self._reason
        if len(logits_PV):
            if self._search is None:
                # Not before the first frame: options, hotwords and context count until then.
                self._search = self._open_search(self._hotwords)
            log_probs_PV = log_softmax(logits_PV)
            if self._search:
                self._partial = self._search.step(log_probs_PV)
            self._stopwatch.lap("search")
            if self._endpoint:
                self._endpoint.push(log_probs_PV)
            if self.gate:
                for log_probs_V in log_probs_PV:
                    self.gate.push(log_probs_V)
            reason = self._reason
        self._stopwatch.stop(completes=len(logits_PV) > 0)
        return reason
