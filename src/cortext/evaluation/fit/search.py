"""Fit the options of the word search to trials whose sentences are known.

Options are judged by decoding with them and counting word errors. No model runs, and no language
model is trained. A coordinate search starts from `STARTS` and steps through `STEPS`.

Few trials could fit noise. Three things keep the result honest: a step must make fewer errors by
`GAIN` standard errors of the paired difference, so that without evidence the options stay as they
are; the steps are coarse; and the reported gain is cross-fitted. Each half of the trials is decoded
with options that were fitted on the other half.

Shapes: B trials, P frames, V tokens.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from cortext.arguments import check_list, check_text
from cortext.decoding import Decoder, DecoderOptions
from cortext.decoding.log_probs import check_trials, estimate_priors
from cortext.errors import DataError
from cortext.processes import Progress
from cortext.text.inventory import Inventory, get_inventory
from cortext.text.metrics import ErrorRate, edit_counts, error_rate

Settings = Mapping[str, Any]
Item = TypeVar("Item", bound=Hashable)

STARTS: tuple[Settings, ...] = tuple(
    {"lm_weight": 1.0, "sil_cost": 0.0, **settings}
    for settings in (
        {
            "sil_required": True,
            "recombine": "max",
            "blank_penalty": 4.0,
            "word_score": -1.0,
            "acoustic_scale": 0.85,
        },
        {
            "sil_required": True,
            "recombine": "logadd",
            "blank_penalty": 32.0,
            "word_score": -1.0,
            "acoustic_scale": 0.7,
        },
        {
            "sil_required": True,
            "recombine": "max",
            "blank_penalty": 32.0,
            "word_score": -1.0,
            "acoustic_scale": 0.85,
            "prior_weight": 0.5,
        },
        {  # the published settings of the T15 release
            "sil_required": False,
            "recombine": "max",
            "blank_penalty": 90.0,
            "word_score": 0.0,
            "acoustic_scale": 0.325,
        },
    )
)
"""Settings that are tried first; each suits one kind of posteriors."""

STEPS: Mapping[str, tuple[Any, ...]] = {
    "blank_penalty": (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0),
    "acoustic_scale": (0.3, 0.35, 0.4, 0.5, 0.6, 0.7, 0.85, 1.0, 1.2, 1.4),
    "word_score": (-4.0, -3.0, -2.0, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0),
    "sil_required": (False, True),
    "recombine": ("logadd", "max"),
    "prior_weight": (0.0, 0.25, 0.5, 0.75, 1.0),
}
"""Values of each option, in an order in which neighbours are alike.

`lm_weight` is not among them: the best sentence depends on the ratio of the scores alone.
"""

GAIN = 0.5
"""Standard errors of the paired difference by which a step must make fewer errors."""
LOSS = 1.0
"""Standard errors by which more errors on part of the trials end a comparison.

With 0.5 a third of the time was saved, and 1.8 points of word errors lost on peaked posteriors:
steps that are better look worse on an eighth of the trials too often.
"""
PARTS = (8, 4, 2, 1)
"""A setting is compared on an eighth, a quarter, a half of the trials before it is on all."""
FRAMES = 45_000
"""Most frames of the trials that are decoded: with a large n-gram, a minute on two cores."""
MOST_STEPS = 40
"""Most comparisons of a search; it ends earlier where no step makes fewer errors."""
N_SEARCHES = 3
"""One search on all trials, and one on each half."""
NARROW: Mapping[str, float] = {"beam": 12.0, "max_active": 300}
"""Most that these are while options are compared: twice as fast, and the same options win."""


@dataclass(frozen=True)
class Fit:
    """Options that were fitted, and word errors with them.

    Attributes:
        options: Options fitted on all trials.
        fitted: Word errors with them on the same trials; other trials have more.
        cross_fitted: Word errors with each half decoded with options fitted on the other.
        start: Word errors with the options that the search began with.
        halves: Options fitted on each half.
        half: Half of each given trial, 0 or 1.
        n_trials: Number of trials that were decoded.
        tried: Number of settings that were tried.
        seconds: Time that it took.
    """

    options: DecoderOptions
    fitted: ErrorRate
    cross_fitted: ErrorRate
    start: ErrorRate
    halves: tuple[DecoderOptions, DecoderOptions]
    half: tuple[int, ...]
    n_trials: int
    tried: int
    seconds: float

    def options_for(self, trial: int) -> DecoderOptions:
        """Return the options that were fitted on the half without a trial, by its position."""
        return self.halves[1 - self.half[trial]]


def fit_options(
    log_probs: Sequence[np.ndarray],
    references: Sequence[str],
    blocks: Sequence[Hashable],
    lm: Decoder | str | Path,
    start: DecoderOptions | Mapping[str, Any] | None = None,
    *,
    order: Inventory | str = "lm",
    threads: int = 1,
    seed: int = 0,
    frames: int = FRAMES,
    progress: Progress | None = None,
) -> Fit:
    """Find the options under which the fewest word errors are made.

    The result depends on the arguments alone, not on `threads` or on the time that anything takes.
    Label priors are estimated from the log-probabilities, without their sentences.

    Args:
        log_probs: float32 [P, V] natural-log probabilities of each trial.
        references: Sentence of each trial; trials without a word are left out.
        blocks: Block of each trial, or anything that trials recorded together share.
        lm: Language-model directory, or a decoder that has opened one.
        start: Options to begin with; those that are not in `STEPS` stay. The defaults without.
        order: Tokens of the columns, in order.
        threads: Threads that decode.
        seed: Seed of the order of the trials, and of the sample where there are more.
        frames: Most frames of the trials that are decoded, at least one trial of each half.
        progress: Called with steps of the search done and the most that there will be.

    Raises:
        DataError: For unequal numbers of trials, and for fewer than two different sentences.
        DecodingError: As `Decoder.decode`.
    """
    began = time.perf_counter()
    log_probs = list(check_list(log_probs, "log_probs", "a list of arrays [frames, tokens]"))
    references = list(check_list(references, "references", "a list of sentences"))
    blocks = list(check_list(blocks, "blocks", "a list with the block of each trial"))
    for number, reference in enumerate(references):
        check_text(reference, f"reference {number}")
    if not len(log_probs) == len(references) == len(blocks):
        counts = f"{len(log_probs)} trials, {len(references)} references, {len(blocks)} blocks"
        raise DataError(f"{counts}; one of each per trial is needed")
    start = DecoderOptions.of(start)
    # Without a large model, which would be asked about each trial again for every setting.
    decoder = (lm if isinstance(lm, Decoder) else Decoder.from_dir(lm)).with_llm(None)
    language = decoder.language
    sentences = [language.normalize(reference) for reference in references]
    half_B = halves(sentences, blocks)
    inventory = get_inventory(order)
    check_trials(log_probs, inventory)
    judge = _Judge(decoder, log_probs, sentences, inventory, threads)
    drawn_B = _drawn(log_probs, sentences, half_B, frames, seed)
    parts = [drawn_B[half_B[drawn_B] == half] for half in (0, 1)]
    search = _Search(judge, with_priors(start, log_probs, inventory), progress)
    best, *of_half = [
        without_idle_priors(search.best(indices_B), start) for indices_B in (drawn_B, *parts)
    ]
    judge.bounds = {}  # reported errors are those of the options as they are
    sentences_B = [sentences[index] for index in drawn_B]

    def rate(texts: Mapping[int, str]) -> ErrorRate:
        return error_rate(sentences_B, [texts[index] for index in drawn_B], language=language)

    crossed = judge.texts(of_half[1], parts[0]) | judge.texts(of_half[0], parts[1])
    fit = Fit(
        options=best,
        fitted=rate(judge.texts(best, drawn_B)),
        cross_fitted=rate(crossed),
        start=rate(judge.texts(start, drawn_B)),
        halves=(of_half[0], of_half[1]),
        half=tuple(half_B.tolist()),
        n_trials=len(drawn_B),
        tried=len(search.tried),
        seconds=time.perf_counter() - began,
    )
    if progress:
        progress(N_SEARCHES * MOST_STEPS, N_SEARCHES * MOST_STEPS)
    return fit


def with_priors(
    options: DecoderOptions, log_probs: Sequence[np.ndarray], inventory: Inventory
) -> DecoderOptions:
    """Return options with estimated label priors of weight 0, unless they have priors already.

    Args:
        options: The options.
        log_probs: float32 [P, V] natural-log probabilities of each trial.
        inventory: Tokens of the columns, in order.
    """
    if options.label_priors:
        return options
    priors = estimate_priors(log_probs, inventory)
    return options.changed({"label_priors": priors, "prior_weight": 0.0})


def without_idle_priors(options: DecoderOptions, start: DecoderOptions) -> DecoderOptions:
    """Return options with the label priors of others where their own have no weight."""
    if options.prior_weight:
        return options
    return options.changed({"label_priors": start.label_priors, "prior_weight": start.prior_weight})


def halves(sentences: Sequence[str], blocks: Sequence[Hashable]) -> np.ndarray:
    """Split trials into two halves with about as many words, by block.

    A sentence that was spoken in blocks of both halves goes to the smaller half with all its
    trials. Where there is one block only, trials are split by sentence.

    Args:
        sentences: Normalised sentence of each trial; trials without a word are in half 0.
        blocks: Block of each trial.

    Returns:
        The half of each trial, 0 or 1, int64 [B].

    Raises:
        DataError: For fewer than two different sentences.
    """
    counts = Counter(sentence for sentence in sentences if sentence)
    words = {sentence: n * len(sentence.split()) for sentence, n in counts.items()}
    if len(words) < 2:
        raise DataError(
            f"different sentences: {len(words)}; at least two are needed to fit options",
            fix="give more labelled trials",
        )
    words_of_block: Counter[Hashable] = Counter()
    for sentence, block in zip(sentences, blocks, strict=True):
        words_of_block[block] += len(sentence.split())
    half_of_block = _balanced(words_of_block)
    sides: dict[str, set[int]] = {sentence: set() for sentence in words}
    for sentence, block in zip(sentences, blocks, strict=True):
        if sentence:
            sides[sentence].add(half_of_block[block])
    # A sentence on both sides would judge options by what they were fitted on: it gets one.
    fixed = {sentence: side.pop() for sentence, side in sides.items() if len(side) == 1}
    half_of = _balanced(words, fixed)
    if len(set(half_of.values())) == 1:  # one block
        half_of = _balanced(words)
    return np.array([half_of.get(sentence, 0) for sentence in sentences])


def _balanced(sizes: Mapping[Item, int], fixed: Mapping[Item, int] = {}) -> dict[Item, int]:
    """Return the side of each item, 0 or 1: the smaller one when the item's turn comes."""
    side_of = dict(fixed)
    total = [sum(sizes[item] for item in fixed if fixed[item] == side) for side in (0, 1)]
    for item, size in sizes.items():
        if item not in side_of:
            side_of[item] = int(total[1] < total[0])
            total[side_of[item]] += size
    return side_of


def _drawn(
    log_probs: Sequence[np.ndarray],
    sentences: Sequence[str],
    half_B: np.ndarray,
    frames: int,
    seed: int,
) -> np.ndarray:
    """Return positions of trials with words in random order, as many as `frames` allow."""
    with_words_B = [index for index, sentence in enumerate(sentences) if sentence]
    drawn_B = np.random.default_rng(seed).permutation(with_words_B)
    total_B = np.cumsum([len(log_probs[index]) for index in drawn_B])
    # Cross-fitting needs a trial of each half, however long the first ones are.
    first_of_half = [int((half_B[drawn_B] == half).argmax()) for half in (0, 1)]
    return drawn_B[: max(int((total_B <= frames).sum()), max(first_of_half) + 1)]


@dataclass
class _Judge:
    """Decodes trials with options and remembers the sentences.

    Attributes:
        bounds: Most that an option may be while it decodes.
    """

    decoder: Decoder
    log_probs: Sequence[np.ndarray]
    sentences: Sequence[str]
    inventory: Inventory
    threads: int
    bounds: Mapping[str, float] = field(default_factory=lambda: dict(NARROW))

    def __post_init__(self) -> None:
        self._kept: dict[DecoderOptions, dict[int, tuple[str, int]]] = {}

    def texts(self, options: DecoderOptions, indices_B: np.ndarray) -> dict[int, str]:
        """Return the best sentence of each of some trials."""
        decoded = self._decoded(options, indices_B)
        return {index: decoded[index][0] for index in indices_B.tolist()}

    def fewer(self, options: DecoderOptions, than: DecoderOptions, indices_B: np.ndarray) -> bool:
        """Return True if options make fewer errors than others by more than chance would."""
        for part in PARTS:
            some_B = indices_B[: math.ceil(len(indices_B) / part)]
            more_B = self._errors(options, some_B) - self._errors(than, some_B)
            # Standard error of the sum of the differences, were their true mean 0.
            noise = math.sqrt((more_B**2).sum())
            if more_B.sum() > LOSS * noise:
                return False
        return bool(more_B.sum() < -GAIN * noise)

    def _errors(self, options: DecoderOptions, indices_B: np.ndarray) -> np.ndarray:
        decoded = self._decoded(options, indices_B)
        return np.array([decoded[index][1] for index in indices_B.tolist()])

    def _decoded(
        self, options: DecoderOptions, indices_B: np.ndarray
    ) -> dict[int, tuple[str, int]]:
        """Decode the trials that were not yet; return sentence and errors by trial."""
        bounded = options.changed(
            {name: min(getattr(options, name), most) for name, most in self.bounds.items()}
        )
        decoded = self._kept.setdefault(bounded, {})
        missing = [index for index in indices_B.tolist() if index not in decoded]
        decoder = self.decoder.with_options(**vars(bounded))
        log_probs = [self.log_probs[index] for index in missing]
        for index, nbest in zip(
            missing, decoder.decode_batch(log_probs, self.inventory, self.threads), strict=True
        ):
            text = nbest.texts[0]
            words = self.decoder.language.normalize(text).split()
            decoded[index] = text, edit_counts(self.sentences[index].split(), words).errors
        return decoded


@dataclass
class _Search:
    """A coordinate search from the same start on any trials.

    Attributes:
        tried: All options that were compared.
    """

    judge: _Judge
    start: DecoderOptions
    progress: Progress | None
    tried: set[DecoderOptions] = field(default_factory=set)
    n_searches: int = 0

    def best(self, indices_B: np.ndarray) -> DecoderOptions:
        """Return the options that the search ends with on some trials."""
        best = self.start
        compared: set[DecoderOptions] = set()

        def steps_to(options: DecoderOptions | None) -> bool:
            """Take the step if there is one and it is better."""
            nonlocal best
            # Options that lost once would lose again: the best has only become better since.
            if options is None or options in compared or len(compared) == MOST_STEPS:
                return False
            compared.add(options)
            if self.progress:
                done = self.n_searches * MOST_STEPS + len(compared)
                self.progress(done, N_SEARCHES * MOST_STEPS)
            if not self.judge.fewer(options, best, indices_B):
                return False
            best = options
            return True

        for settings in STARTS:
            steps_to(self.start.changed(settings))
        before = None
        while best != before:
            before = best
            for name in STEPS:
                for towards in (-1, 1):
                    while steps_to(_stepped(best, name, towards)):
                        pass
        self.tried |= compared
        self.n_searches += 1
        return best


def _stepped(options: DecoderOptions, name: str, towards: int) -> DecoderOptions | None:
    """Return options with the next lower (-1) or higher (1) value of one; None at the end."""
    value = getattr(options, name)
    beyond = [other for other in STEPS[name] if (other > value if towards > 0 else other < value)]
    return options.changed({name: beyond[0 if towards > 0 else -1]}) if beyond else None
