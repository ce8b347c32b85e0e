"""A large language model that takes part in the word search."""

from __future__ import annotations

import atexit
import math
import threading
import time
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from cortext.decoding.llm.explain import out_of_memory
from cortext.errors import LanguageModelError, first_line

if TYPE_CHECKING:
    from cortext.decoding.engine import LiveBatch
    from cortext.decoding.llm.model import CausalLM
    from cortext.decoding.options import DecoderOptions, LLMOptions

Words = tuple[str, ...]

AT_EXIT_S = 10.0
"""So long an interpreter that ends waits for forward passes that have begun."""


class Scorer(Protocol):
    """Log-probabilities of token sequences after a prefix.

    A `TokenTree`, or what stands in for one.
    """

    longest: int
    evaluated: int
    passes: int
    peak_mb: float

    def score(self, sequences: Sequence[Sequence[int]]) -> list[float]:
        """Natural log-probability of each."""

    def retain(self, sequences: Iterable[Sequence[int]]) -> None:
        """Forget all but these and their beginnings."""


def scorer(lm: CausalLM, prefix: Sequence[int], cache_mb: float) -> Scorer:
    """What scores hypotheses by a model, with the fewest tokens that the model and the memory
    allow.
    """
    from cortext.decoding.llm import cache_kind  # needs transformers

    return cache_kind.scorer(lm, prefix, cache_mb)


@dataclass
class FusionStats:
    """What fusion did, of one utterance or of several.

    Attributes:
        looks: Times that the model was asked about hypotheses.
        hypotheses: Those looked at, added up over the looks.
        late: Those of them whose score had not come when the search went on.
        evaluated: Tokens that the model read.
        from_scratch: Tokens that it would have read had every look scored its hypotheses from their
            beginning.
        from_scratch_once: The same, had each hypothesis been scored once, at the first look that
            had it.
        passes: Forward passes.
        model_s: Seconds of the model's thread at work.
        waited_s: Seconds that the search waited for it.
        peak_mb: The most memory that an utterance's hypotheses held.
    """

    utterances: int = 0
    looks: int = 0
    hypotheses: int = 0
    late: int = 0
    evaluated: int = 0
    from_scratch: int = 0
    from_scratch_once: int = 0
    passes: int = 0
    model_s: float = 0.0
    waited_s: float = 0.0
    peak_mb: float = 0.0

    def add(self, other: FusionStats) -> None:
        """Count what another one counted."""
        for each in fields(self):
            both = getattr(self, each.name), getattr(other, each.name)
            setattr(self, each.name, max(both) if each.name == "peak_mb" else sum(both))


class Fusion:
    """The hook of one utterance (`cortext.decoding.engine.Hook`).

    A hypothesis with finished words W is brought to l * (llm(W) - ngram(W)) above its n-gram score,
    where the search weighs the n-gram by n + l and (n, l) are `LLMOptions.shares`: its words count
    n * ngram + l * llm, and the word that is not finished has its whole look-ahead. A hypothesis
    without a score has that of its longest beginning with one. Where the model fails, all are
    brought back to the n-gram's scores, and `failed` says what happened.

    Args:
        options: Those of the user, as `LargeModel.hook` gets them.
        totals: Counts are added to these when the utterance ends.
    """

    def __init__(
        self,
        lm: CausalLM,
        options: DecoderOptions,
        context: str = "",
        totals: FusionStats | None = None,
    ) -> None:
        self.set_options(options)
        self._gains: dict[Words, float] = {(): 0.0}
        self._ngram: dict[Words, float] = {}
        self._totals = totals
        self._late, self._waited_s = 0, 0.0
        self._reader = _Reader(lm, context, options.llm)
        weakref.finalize(self, self._reader.stop)

    def set_options(self, options: DecoderOptions) -> None:
        """Weigh by these options from the next look on.

        What the reader does holds to the end: penalty and memory.
        """
        ngram, self._weight = options.llm.shares(options.lm_weight)
        self._options, self._ngram_weight = options, ngram + self._weight

    @property
    def failed(self) -> str | None:
        """Why the model takes no part any more, in one line; None where it does."""
        return self._reader.failed

    @property
    def stats(self) -> FusionStats:
        """What was done so far."""
        return replace(self._reader.counted(), late=self._late, waited_s=self._waited_s)

    def __call__(self, batch: LiveBatch) -> np.ndarray:
        """What to add to each hypothesis of a batch, float32 [N].

        At the end the best are looked for again by their new scores, until the best are all scored.
        """
        looked = self._looked(batch, batch.added) if self._weight else {}
        asked: set[Words] = set()
        while looked and self.failed is None:
            self._ask(batch, looked)
            asked.update(looked)
            best = self._looked(batch, self._brought_to(batch)) if batch.is_last else {}
            looked = {words: lm for words, lm in best.items() if words not in asked}
        if batch.is_last:
            self._end()
        added_N: np.ndarray = (self._brought_to(batch) - batch.added).astype(np.float32)
        return added_N

    def _looked(self, batch: LiveBatch, added_N: np.ndarray) -> dict[Words, float]:
        """The best hypotheses that have words, with their n-gram scores, best first."""
        options = self._options
        lengths_N = np.fromiter(map(len, batch.words), dtype=np.float64, count=len(batch.words))
        values_N = options.acoustic_scale * batch.acoustic + self._ngram_weight * batch.lm + added_N
        best = np.argsort(-(values_N + options.word_score * lengths_N), kind="stable")[
            : options.llm.most_hypotheses
        ]
        return {batch.words[row]: float(batch.lm[row]) for row in best if batch.words[row]}

    def _ask(self, batch: LiveBatch, looked: dict[Words, float]) -> None:
        """Have hypotheses scored, and wait as long as the options allow."""
        self._ngram |= looked
        budget_s = self._options.llm.budget_ms / 1e3
        began = time.perf_counter()
        number = self._reader.ask(_Look(list(looked), batch.words))
        waits = batch.is_last or not budget_s
        for words, log_prob in self._reader.answers(number, None if waits else budget_s).items():
            self._gains[words] = log_prob - self._ngram[words]
        self._waited_s += time.perf_counter() - began
        self._late += 0 if waits else sum(words not in self._gains for words in looked)

    def _brought_to(self, batch: LiveBatch) -> np.ndarray:
        return np.array(
            [self._target(words) if self.failed is None else 0.0 for words in batch.words]
        )

    def _target(self, words: Words) -> float:
        """What a hypothesis is brought to.

        Its own, or that of its longest beginning that has one.
        """
        while words not in self._gains:
            words = words[:-1]
        return self._weight * self._gains[words]

    def _end(self) -> None:
        self._reader.stop()
        self._reader.join()
        if self._totals is not None:
            with _all_readers:
                self._totals.add(self.stats)
            self._totals = None


@dataclass(frozen=True)
class _Look:
    """What a look wants: hypotheses to be scored, and all that live."""

    looked: list[Words]
    live: list[Words]


class _Reader:
    """The thread that reads hypotheses with the model; it ends when told to.

    It does not know its `Fusion`, so that one that nobody holds any more can go, and the thread
    with it. A look that has not begun when the next one comes is dropped: the next one asks for
    what still lives.
    """

    def __init__(self, lm: CausalLM, context: str, options: LLMOptions) -> None:
        self._lm, self._context, self._options = lm, context, options
        self.failed: str | None = None
        self._stats = FusionStats(utterances=1)
        self._tokens: dict[Words, tuple[int, ...]] = {(): ()}
        self._known: set[Words] = set()
        self._change = threading.Condition()
        self._next: _Look | None = None
        self._new: dict[Words, float] = {}
        self._asked = self._done = 0
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="cortext-fusion", daemon=True)
        with _all_readers:
            _running.add(self)
        try:
            self._thread.start()
        except RuntimeError as error:  # the machine gives no more threads
            self._fail(error)

    def ask(self, look: _Look) -> int:
        """Want hypotheses scored; the number of the look."""
        with self._change:
            self._next, self._asked = look, self._asked + 1
            self._change.notify_all()
            return self._asked

    def answers(self, number: int, seconds: float | None) -> dict[Words, float]:
        """New scores, once a look is done or the time is over (None: never)."""
        with self._change:
            self._change.wait_for(lambda: self._done >= number or self.failed is not None, seconds)
            found, self._new = self._new, {}
            return found

    def stop(self) -> None:
        """Have the thread end after the forward pass that it is in."""
        with self._change:
            self._stopped, self._next = True, None
            self._change.notify_all()

    def join(self, seconds: float | None = None) -> None:
        """Wait for its end."""
        if self._thread.ident is not None:
            self._thread.join(seconds)

    def counted(self) -> FusionStats:
        """The counts so far."""
        with self._change:
            return replace(self._stats)

    def _run(self) -> None:
        try:
            prefix = self._lm.prefix(self._context)
            hypotheses = scorer(self._lm, prefix, self._options.cache_mb)
            hypotheses.score([])  # what comes before the sentence can be read before the first look
            while (wanted := self._wait()) is not None:
                number, look = wanted
                began = time.perf_counter()
                scores = self._scored(hypotheses, look)
                with self._change:
                    self._count(hypotheses, look, len(prefix), time.perf_counter() - began)
                    self._known.update(scores)
                    self._new |= scores
                    self._done = number
                    self._change.notify_all()
                hypotheses.retain({self._tokens[self._beginning(words)] for words in look.live})
        except BaseException as error:  # whatever a model raises, panics of compiled code included
            self._fail(error)
        finally:
            with _all_readers:
                _running.discard(self)

    def _wait(self) -> tuple[int, _Look] | None:
        """The newest look and its number; None when there will be none."""
        with self._change:
            self._change.wait_for(lambda: self._next is not None or self._stopped)
            look, self._next = self._next, None
            return None if look is None else (self._asked, look)

    def _scored(self, hypotheses: Scorer, look: _Look) -> dict[Words, float]:
        """Scores of the hypotheses of a look that have none yet and fit into the model's window."""
        for words in look.looked:
            if words not in self._tokens:
                self._tokens[words] = tuple(self._lm.tokens(" ".join(words), self._context))
        new = [words for words in look.looked if words not in self._known]
        new = [words for words in new if len(self._tokens[words]) <= hypotheses.longest]
        log_probs = hypotheses.score([self._tokens[words] for words in new])
        if not all(map(math.isfinite, log_probs)):
            raise LanguageModelError("gave scores that are no numbers", where=self._lm.name)
        penalty = self._options.token_penalty
        return {
            words: log_prob - penalty * len(self._tokens[words])
            for words, log_prob in zip(new, log_probs, strict=True)
        }

    def _beginning(self, words: Words) -> Words:
        """The longest beginning of a hypothesis that has been looked at."""
        while words not in self._tokens:
            words = words[:-1]
        return words

    def _count(self, hypotheses: Scorer, look: _Look, n_prefix: int, seconds: float) -> None:
        stats = self._stats
        sizes = {words: n_prefix + len(self._tokens[words]) - 1 for words in look.looked}
        stats.looks += 1
        stats.hypotheses += len(sizes)
        stats.from_scratch += sum(sizes.values())
        stats.from_scratch_once += sum(
            size for words, size in sizes.items() if words not in self._known
        )
        stats.evaluated, stats.passes, stats.peak_mb = (
            hypotheses.evaluated,
            hypotheses.passes,
            hypotheses.peak_mb,
        )
        stats.model_s += seconds

    def _fail(self, error: BaseException) -> None:
        with self._change:
            self.failed = "memory ran out" if out_of_memory(error) else first_line(error)
            self._change.notify_all()


_all_readers = threading.Lock()
_running: set[_Reader] = set()


@atexit.register
def _stop_all() -> None:
    """An interpreter that ends must not take a thread's ground away in the middle of a forward
    pass.
    """
    with _all_readers:
        readers = list(_running)
    for reader in readers:
        reader.stop()
    end = time.monotonic() + AT_EXIT_S
    for reader in readers:
        reader.join(max(0.0, end - time.monotonic()))
