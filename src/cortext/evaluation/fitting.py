"""Fit the options of the word search to log-probabilities whose sentences are known.

No language model is trained and no acoustic model runs: a setting is judged by decoding with it and
counting word errors. `halves` keeps the count honest: each half is decoded with options that were
fitted on the other.

Shapes: B trials, P frames, V tokens.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from cortext.decoding import Decoder, DecoderOptions
from cortext.errors import DataError
from cortext.processes import Progress
from cortext.text.metrics import ErrorRate, edit_counts, error_rate
from cortext.text.normalize import normalize
from cortext.text.phonemes import Inventory, get_inventory

Settings = Mapping[str, Any]
Item = TypeVar("Item", bound=Hashable)

FRAMES = 1_000_000
"""Most frames that a fit decodes; 0.05 ms each on an ordinary core with a large n-gram."""
SETTINGS = 40
"""Number of settings that a search is expected to try."""

STARTS: tuple[Settings, ...] = (
    {
        "sil_required": True,
        "recombine": "max",
        "blank_penalty": 4.0,
        "word_score": -1.5,
        "acoustic_scale": 0.85,
    },
    {
        "sil_required": False,
        "recombine": "logadd",
        "blank_penalty": 32.0,
        "word_score": 0.0,
        "acoustic_scale": 1.0,
    },
    {
        "sil_required": True,
        "recombine": "logadd",
        "blank_penalty": 90.0,
        "word_score": 0.0,
        "acoustic_scale": 0.5,
    },
)
"""Settings tried before the search moves, each known to be good on one kind of posteriors."""

GRID: dict[str, tuple[Any, ...]] = {
    "blank_penalty": (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0),
    "acoustic_scale": (0.3, 0.35, 0.4, 0.45, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.15, 1.3),
    "word_score": (-4.0, -3.0, -2.0, -1.5, -1.0, -0.5, 0.0, 0.5, 1.0, 2.0),
    "sil_required": (False, True),
    "recombine": ("max", "logadd"),
}
"""Values that the search steps through, in an order in which neighbours are alike."""


@dataclass(frozen=True)
class Fit:
    """Options that were fitted, and word errors with them.

    Attributes:
        options: Options fitted on all trials.
        fitted: Word errors with them on the same trials, which is too few on other ones.
        cross_fitted: Word errors with each half decoded with options fitted on the other.
        start: Word errors with the options that the search began with.
        halves: Options fitted on each half.
        half: Half of each trial, 0 or 1.
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
        """Return the options that were fitted without a trial, given by its position."""
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
    progress: Progress | None = None,
) -> Fit:
    """Return the options under which the fewest word errors are made.

    The result depends on the arguments alone: not on the machine's speed, its load, or `threads`.

    Args:
        log_probs: float32 [P, V] natural-log probabilities of each trial.
        references: Sentence of each trial; trials without a word are left out.
        blocks: Block of each trial, or anything that trials recorded together share.
        lm: Language-model directory, or a decoder that has opened one.
        start: Options to begin with; those that are not fitted stay. The defaults without.
        order: Tokens of the columns, in order.
        threads: Threads that decode.
        seed: Seed of the sample of trials, where there are more than `FRAMES` allow.
        progress: Called with frames decoded and the most that will be.

    Raises:
        DataError: For unequal numbers of trials, and for fewer than two different sentences.
        DecodingError: As `Decoder.decode`.
    """
    began = time.perf_counter()
    if not len(log_probs) == len(references) == len(blocks):
        what = f"{len(log_probs)} trials, {len(references)} references, {len(blocks)} blocks"
        raise DataError(f"{what}; one of each per trial is needed")
    sentences = [normalize(reference) for reference in references]
    half_B = halves(sentences, blocks)
    start = DecoderOptions.of(start)
    decoder = lm if isinstance(lm, Decoder) else Decoder.from_dir(lm)
    judge = _Judge(
        decoder.with_llm(None), log_probs, sentences, get_inventory(order), threads, progress
    )
    indices_B = _sample(log_probs, sentences, seed)
    found = _search(judge, start, indices_B)
    parts = [indices_B[half_B[indices_B] == half] for half in (0, 1)]
    of_half = (_search(judge, start, parts[0]), _search(judge, start, parts[1]))
    crossed = judge.texts(of_half[1], parts[0]) | judge.texts(of_half[0], parts[1])
    kept = [sentences[index] for index in indices_B]

    def rate(texts: Mapping[int, str]) -> ErrorRate:
        return error_rate(kept, [texts[index] for index in indices_B.tolist()])

    return Fit(
        options=found,
        fitted=rate(judge.texts(found, indices_B)),
        cross_fitted=rate(crossed),
        start=rate(judge.texts(start, indices_B)),
        halves=of_half,
        half=tuple(half_B.tolist()),
        n_trials=len(indices_B),
        tried=judge.n_tried,
        seconds=time.perf_counter() - began,
    )


def halves(sentences: Sequence[str], blocks: Sequence[Hashable]) -> np.ndarray:
    """Split trials into two halves of about as many words, by block; equal sentences stay together.

    A sentence that was said in blocks of both halves goes to the smaller one, with all its trials.
    Where there is one block only, trials are split by sentence.

    Args:
        sentences: Normalised sentence of each trial; an empty one is in half 0.
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
            f"{len(words)} different sentences; at least two are needed to fit options",
            fix="give more labelled trials",
        )
    half_of_block = _balanced(Counter(blocks))
    sides: dict[str, set[int]] = {sentence: set() for sentence in words}
    for sentence, block in zip(sentences, blocks, strict=True):
        if sentence:
            sides[sentence].add(half_of_block[block])
    fixed = {sentence: side.pop() for sentence, side in sides.items() if len(side) == 1}
    half_of = _balanced(words, fixed)
    if len(set(half_of.values())) == 1:  # one block
        half_of = _balanced(words)
    return np.array([half_of.get(sentence, 0) for sentence in sentences])


def _balanced(sizes: Mapping[Item, int], fixed: Mapping[Item, int] = {}) -> dict[Item, int]:
    """Return the side of each item, 0 or 1: the smaller one when the item's turn comes."""
    side_of = dict(fixed)
    total = [sum(sizes[item] for item in side_of if side_of[item] == side) for side in (0, 1)]
    for item, size in sizes.items():
        if item not in side_of:
            side_of[item] = int(total[1] < total[0])
            total[side_of[item]] += size
    return side_of


def _sample(log_probs: Sequence[np.ndarray], sentences: Sequence[str], seed: int) -> np.ndarray:
    """Return positions of trials with words, int64 [B], as many as the budget allows."""
    index_B = np.array([index for index, sentence in enumerate(sentences) if sentence])
    drawn_B = np.random.default_rng(seed).permutation(index_B)
    frames_B = np.cumsum([len(log_probs[index]) for index in drawn_B])
    return np.sort(drawn_B[frames_B <= FRAMES // SETTINGS])


@dataclass
class _Judge:
    """Decodes trials and remembers their texts and errors by options."""

    decoder: Decoder
    log_probs: Sequence[np.ndarray]
    sentences: Sequence[str]
    inventory: Inventory
    threads: int
    progress: Progress | None
    found: dict[DecoderOptions, dict[int, str]] = field(default_factory=dict)
    n_frames: int = 0

    @property
    def n_tried(self) -> int:
        """Number of options that were decoded with."""
        return len(self.found)

    def texts(self, options: DecoderOptions, indices: np.ndarray) -> dict[int, str]:
        """Return the best sentence of each trial by its position."""
        known = self.found.setdefault(options, {})
        missing = [index for index in indices.tolist() if index not in known]
        decoder = self.decoder.with_options(**vars(options))
        lists = decoder.decode_batch(
            [self.log_probs[index] for index in missing], self.inventory, self.threads
        )
        for index, nbest in zip(missing, lists, strict=True):
            known[index] = nbest.texts[0]
            self.n_frames += len(self.log_probs[index])
        if self.progress:
            self.progress(min(self.n_frames, FRAMES), FRAMES)
        return {index: known[index] for index in indices.tolist()}

    def errors(self, options: DecoderOptions, indices: np.ndarray) -> int:
        """Return the word errors of some trials."""
        texts = self.texts(options, indices)
        return sum(
            edit_counts(self.sentences[index].split(), normalize(text).split()).errors
            for index, text in texts.items()
        )


def _search(judge: _Judge, start: DecoderOptions, indices: np.ndarray) -> DecoderOptions:
    """Return the options with the fewest errors that a coordinate search finds."""
    best = min(
        (start, *(start.changed(settings) for settings in STARTS)),
        key=lambda options: judge.errors(options, indices),
    )
    least = judge.errors(best, indices)
    moved = True
    while moved:
        moved = False
        for name, values in GRID.items():
            for options in _neighbours(best, name, values):
                errors = judge.errors(options, indices)
                if errors < least:
                    best, least, moved = options, errors, True
    return best


def _neighbours(options: DecoderOptions, name: str, values: Sequence[Any]) -> list[DecoderOptions]:
    """Return options with the next lower and the next higher value of an option."""
    value = getattr(options, name)
    lower = [other for other in values if other < value]
    higher = [other for other in values if other > value]
    return [options.changed({name: other}) for other in (*lower[-1:], *higher[:1])]
