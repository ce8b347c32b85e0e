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

from cortext.errors import LanguageModelError, first_line
from cortext.text.language import EN, Language
from cortext_lm.llm.explain import out_of_memory

if TYPE_CHECKING:
    from cortext.decoding.engine import LiveBatch
    from cortext.decoding.options import DecoderOptions, LLMOptions
    from cortext_lm.llm.model import CausalLM

Words = tuple[str, ...]

AT_EXIT_S = 10.0
"""Seconds that an interpreter waits at its end for forward passes that have begun."""


class Scorer(Protocol):
    """Interface of a `TokenTree` or `UncachedScorer`: scores of token sequences after a prefix."""

    longest: int
    evaluated: int
    passes: int
    peak_mb: float

    def score(self, sequences: Sequence[Sequence[int]]) -> list[float]:
        """Return the natural log-probability of each sequence."""

    def retain(self, sequences: Iterable[Sequence[int]]) -> None:
        """Drop the cache of all sequences but these and their prefixes."""


def scorer(lm: CausalLM, prefix: Sequence[int], cache_mb: float) -> Scorer:
    """Return the scorer that reads the fewest tokens that the model and the memory allow.

    Args:
        lm: The model.
        prefix: Tokens before every hypothesis; at least one.
        cache_mb: Bound on the memory of the cache, in MiB.
    """
    from cortext_lm.llm import cache_kind  # needs transformers

    return cache_kind.scorer(lm, prefix, cache_mb)


@dataclass
class FusionStats:
    """Counts of the work of fusion, in one utterance or in several.

    Attributes:
        queries: Times that the model was asked for scores.
        hypotheses: Hypotheses asked for, summed over the queries.
        late: Hypotheses of these whose score had not come when the search continued.
        evaluated: Tokens that the model read.
        from_scratch: Tokens that it would read if every query scored its hypotheses from the prefix
            on.
        from_scratch_once: Tokens that it would read if it scored each hypothesis once, from the
            prefix on, at the first query with that hypothesis.
        passes: Forward passes.
        model_s: Seconds that the model's thread worked.
        waited_s: Seconds that the search waited for it.
        peak_mb: Most memory that an utterance's hypotheses held, in MiB.
    """

    utterances: int = 0
    queries: int = 0
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
        """Add the counts of others; of `peak_mb` the larger is kept."""
        for each in fields(self):
            both = getattr(self, each.name), getattr(other, each.name)
            setattr(self, each.name, max(both) if each.name == "peak_mb" else sum(both))


class Fusion:
    """The hook of one utterance (`cortext.decoding.engine.Hook`).

    The search weighs the n-gram by n + l, where (n, l) are `LLMOptions.shares`. The hook adds the
    gain l * (llm(W) - ngram(W)) to a hypothesis with finished words W. So its words count
    n * ngram + l * llm in all, and the unfinished word keeps its full look-ahead. A hypothesis that
    has not been scored yet takes the gain of its longest scored prefix: the search never waits for
    a score that comes late. Where the model fails, all gains are taken back, and `failed` says what
    happened.

    Args:
        lm: The model.
        options: Options of the user, as `LargeModel.hook` gets them.
        context: The preceding text.
        totals: Counts to which those of the utterance are added at its end; None for none.
        language: Language of the words, as which the model reads them.
        patience_s: Seconds that the end of the utterance waits for scores; None: without end.
    """

    def __init__(
        self,
        lm: CausalLM,
        options: DecoderOptions,
        context: str = "",
        totals: FusionStats | None = None,
        language: Language = EN,
        patience_s: float | None = None,
    ) -> None:
        self.set_options(options)
        self._gains: dict[Words, float] = {(): 0.0}
        self._ngram: dict[Words, float] = {}
        self._totals = totals
        self._late = 0
        self._waited_s = 0.0
        self._patience_s = patience_s
        self._scores = _ScoringThread(lm, context, options.llm, language)
        weakref.finalize(self, self._scores.stop)

    def set_options(self, options: DecoderOptions) -> None:
        """Weigh by these options from the next query on; penalty and memory stay as they are."""
        ngram, self._weight = options.llm.shares(options.lm_weight)
        self._options = options
        self._ngram_weight = ngram + self._weight

    @property
    def failed(self) -> str | None:
        """The reason why the model takes no part any more, in one line; None where it does."""
        return self._scores.failed

    @property
    def stats(self) -> FusionStats:
        """The counts so far."""
        return replace(self._scores.counted(), late=self._late, waited_s=self._waited_s)

    def __call__(self, batch: LiveBatch) -> np.ndarray:
        """Return the numbers to add to the scores of a batch's hypotheses, float32 [N].

        New scores change the order. So at the end of the utterance, where there is time, queries
        are repeated until all of the best hypotheses have a score.
        """
        best = self._best(batch, batch.added) if self._weight else {}
        asked: set[Words] = set()
        while best and self.failed is None:
            self._ask(batch, best)
            asked.update(best)
            best = self._best(batch, self._gains_of(batch)) if batch.is_last else {}
            best = {words: lm for words, lm in best.items() if words not in asked}
        if batch.is_last:
            self._end()
        added_N: np.ndarray = (self._gains_of(batch) - batch.added).astype(np.float32)
        return added_N

    def _best(self, batch: LiveBatch, added_N: np.ndarray) -> dict[Words, float]:
        """Return the n-gram scores of the best hypotheses that have words, best first."""
        options = self._options
        lengths_N = np.fromiter(map(len, batch.words), dtype=np.float64, count=len(batch.words))
        values_N = options.acoustic_scale * batch.acoustic + self._ngram_weight * batch.lm + added_N
        order_N = np.argsort(-(values_N + options.word_score * lengths_N), kind="stable")
        best = order_N[: options.llm.most_hypotheses]
        return {batch.words[row]: float(batch.lm[row]) for row in best if batch.words[row]}

    def _ask(self, batch: LiveBatch, best: dict[Words, float]) -> None:
        """Ask for scores, and wait for them as long as the options allow."""
        self._ngram |= best
        budget_s = self._options.llm.budget_ms / 1e3
        began = time.perf_counter()
        number = self._scores.ask(_Query(list(best), batch.words))
        waits = batch.is_last or not budget_s
        seconds = self._patience_s if waits else budget_s
        for words, log_prob in self._scores.answers(number, seconds, needed=waits).items():
            self._gains[words] = log_prob - self._ngram[words]
        self._waited_s += time.perf_counter() - began
        self._late += 0 if waits else sum(words not in self._gains for words in best)

    def _gains_of(self, batch: LiveBatch) -> np.ndarray:
        return np.array(
            [self._gain(words) if self.failed is None else 0.0 for words in batch.words]
        )

    def _gain(self, words: Words) -> float:
        """Return the weighted gain of a hypothesis, or of its longest scored prefix."""
        while words not in self._gains:
            words = words[:-1]
        return self._weight * self._gains[words]

    def _end(self) -> None:
        self._scores.stop()
        # A model that gives no answer may hold its thread for ever.
        self._scores.join(self._patience_s if self.failed is None else 1.0)
        if self._totals is not None:
            with _lock:
                self._totals.add(self.stats)
            self._totals = None


@dataclass(frozen=True)
class _Query:
    """Hypotheses to be scored, and all that are alive, whose cache is kept."""

    wanted: list[Words]
    live: list[Words]


class _ScoringThread:
    """The thread that scores hypotheses with the model, beside the search.

    It holds no reference to its `Fusion`. So a `Fusion` that nobody uses any more is collected, and
    its finaliser ends the thread. A query that has not begun when the next one comes is dropped:
    the next one asks for the hypotheses that are still alive.
    """

    def __init__(self, lm: CausalLM, context: str, options: LLMOptions, language: Language) -> None:
        self._lm = lm
        self._context = context
        self._options = options
        self._language = language
        self.failed: str | None = None
        self._stats = FusionStats(utterances=1)
        self._tokens: dict[Words, tuple[int, ...]] = {(): ()}
        self._known: set[Words] = set()
        self._change = threading.Condition()
        self._next: _Query | None = None
        self._new: dict[Words, float] = {}
        self._asked = self._done = 0
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="cortext-fusion", daemon=True)
        with _lock:
            _running.add(self)
        try:
            self._thread.start()
        except RuntimeError as error:  # the machine gives no more threads
            self._fail(error)

    def ask(self, query: _Query) -> int:
        """Ask for scores and return the number of the query."""
        with self._change:
            self._next = query
            self._asked += 1
            self._change.notify_all()
            return self._asked

    def answers(
        self, number: int, seconds: float | None, needed: bool = False
    ) -> dict[Words, float]:
        """Return new scores, once a query is done or the time is over (None: never).

        Where they are needed, the model has failed at the end of the time.
        """
        with self._change:
            is_done = self._change.wait_for(
                lambda: self._done >= number or self.failed is not None, seconds
            )
            if needed and not is_done:
                self.failed = f"it gave no answer within {seconds:g} s"
            new = self._new
            self._new = {}
            return new

    def stop(self) -> None:
        """Let the thread end after the forward pass that it is in."""
        with self._change:
            self._stopped = True
            self._next = None
            self._change.notify_all()

    def join(self, seconds: float | None = None) -> None:
        """Wait for the thread to end."""
        if self._thread.ident is not None:
            self._thread.join(seconds)

    def counted(self) -> FusionStats:
        """Return the counts so far."""
        with self._change:
            return replace(self._stats)

    def _run(self) -> None:
        try:
            prefix = self._lm.prefix(self._context)
            hypotheses = scorer(self._lm, prefix, self._options.cache_mb)
            hypotheses.score([])  # reads the prefix while the utterance has no words yet
            while (wanted := self._wait()) is not None:
                number, query = wanted
                began = time.perf_counter()
                scores = self._scored(hypotheses, query)
                with self._change:
                    self._count(hypotheses, query, len(prefix), time.perf_counter() - began)
                    self._known.update(scores)
                    self._new |= scores
                    self._done = number
                    self._change.notify_all()
                hypotheses.retain({self._tokens[self._known_prefix(words)] for words in query.live})
        except BaseException as error:  # tokenizers' compiled code panics with BaseException
            self._fail(error)
        finally:
            with _lock:
                _running.discard(self)

    def _wait(self) -> tuple[int, _Query] | None:
        """Return the newest query and its number; None when there will be none."""
        with self._change:
            self._change.wait_for(lambda: self._next is not None or self._stopped)
            query = self._next
            self._next = None
            return None if query is None else (self._asked, query)

    def _scored(self, hypotheses: Scorer, query: _Query) -> dict[Words, float]:
        """Score the hypotheses that have no score yet and fit into the model's window."""
        for words in query.wanted:
            if words not in self._tokens:
                text = self._language.joined(words)
                self._tokens[words] = tuple(self._lm.tokens(text, self._context))
        new = [words for words in query.wanted if words not in self._known]
        new = [words for words in new if len(self._tokens[words]) <= hypotheses.longest]
        log_probs = hypotheses.score([self._tokens[words] for words in new])
        if not all(map(math.isfinite, log_probs)):
            raise LanguageModelError("gave scores that are no numbers", where=self._lm.name)
        penalty = self._options.token_penalty
        return {
            words: log_prob - penalty * len(self._tokens[words])
            for words, log_prob in zip(new, log_probs, strict=True)
        }

    def _known_prefix(self, words: Words) -> Words:
        """Return the longest prefix of a hypothesis whose tokens are known."""
        while words not in self._tokens:
            words = words[:-1]
        return words

    def _count(self, hypotheses: Scorer, query: _Query, n_prefix: int, seconds: float) -> None:
        stats = self._stats
        sizes = {words: n_prefix + len(self._tokens[words]) - 1 for words in query.wanted}
        stats.queries += 1
        stats.hypotheses += len(sizes)
        stats.from_scratch += sum(sizes.values())
        stats.from_scratch_once += sum(
            size for words, size in sizes.items() if words not in self._known
        )
        stats.evaluated = hypotheses.evaluated
        stats.passes = hypotheses.passes
        stats.peak_mb = hypotheses.peak_mb
        stats.model_s += seconds

    def _fail(self, error: BaseException) -> None:
        with self._change:
            self.failed = "memory ran out" if out_of_memory(error) else first_line(error)
            self._change.notify_all()


_lock = threading.Lock()
_running: set[_ScoringThread] = set()


@atexit.register
def _stop_all() -> None:
    """End all threads first: torch crashes when the interpreter goes in mid-forward pass."""
    with _lock:
        threads = list(_running)
    for thread in threads:
        thread.stop()
    end = time.monotonic() + AT_EXIT_S
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
