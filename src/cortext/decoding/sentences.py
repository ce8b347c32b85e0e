"""Exact scores of given sentences, and the times of their words.

CTC forward and Viterbi, no beam.

The paths and their scores are those that `cortext.decoding.reference` defines. Time and memory grow
with frames times phonemes, that is with the square of the length: milliseconds for a sentence,
minutes for a quarter of an hour.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from cortext.decoding.options import DecoderOptions
from cortext.text.inventory import Inventory

_NO_WORD = -1
_MAX_CELLS = 20_000_000
"""Frames times states of the sentences that are scored together; `viterbi` keeps a byte of each."""


Spelling = Sequence[tuple[Sequence[int], float]]
"""The pronunciations of a word: token numbers, and the log of the weight."""


@dataclass(frozen=True, slots=True)
class SentencePaths:
    """The paths that read one sentence.

    Attributes:
        score: Joined score of all paths, without the n-gram and word scores.
        boundaries: Times that the best path enters a word directly after another, without SIL; 0
            where nothing stands between words.
        spans: First frame and end frame (exclusive) of the phonemes of each word on the best path.
    """

    score: float
    boundaries: int
    spans: tuple[tuple[int, int], ...]


def boundary_cost(options: DecoderOptions, inventory: Inventory) -> float:
    """Return the cost of entering a word directly after another; infinite where that is forbidden.

    Where nothing stands between words it is 0, whatever the options.
    """
    if inventory.sil is None:
        return 0.0
    return np.inf if options.sil_required else options.sil_cost


class _States:
    """CTC states of several sentences side by side.

    Every state stands for one token; sources lead to it.
    """

    def __init__(self, inventory: Inventory, options: DecoderOptions) -> None:
        self.blank = inventory.blank
        self.sil = inventory.sil
        self.scale = options.acoustic_scale
        self.cost = boundary_cost(options, inventory)
        self.tokens: list[int] = []
        self.words: list[int] = []
        self.sources: list[list[tuple[int, float]]] = []
        self.starts: list[int] = []
        self.finals: list[list[int]] = []

    def state(self, token: int, sources: Sequence[tuple[int, float]], word: int = _NO_WORD) -> int:
        """Add a state that can repeat itself and that follows `sources` (state, added score)."""
        number = len(self.tokens)
        self.tokens.append(token)
        self.words.append(word)
        self.sources.append([(number, 0.0), *sources])
        return number

    def add(self, spellings: Sequence[Spelling]) -> None:
        """Add the states of one sentence, given the pronunciations of its words."""
        start = self.state(self.blank, [])
        self.sources[start] = []  # before the first frame: nothing leads here, not even itself
        self.starts.append(start)
        ends = [(start, 0.0), (self.state(self.blank, [(start, 0.0)]), 0.0)]
        cost = 0.0
        entries = ends + self._silence(ends)
        for word, spelling in enumerate(spellings):
            ends = []
            for tokens, log_weight in spelling:
                before = [(state, added + self.scale * log_weight) for state, added in entries]
                for token in tokens:
                    # Equal tokens in a row are one label for CTC, unless a blank stands between.
                    label = self.state(
                        token, [each for each in before if self.tokens[each[0]] != token], word
                    )
                    before = [(label, 0.0), (self.state(self.blank, [(label, 0.0)]), 0.0)]
                ends += before
            cost = self.cost
            entries = [(state, -cost) for state, _ in ends] + self._silence(ends)
        self.finals.append([state for state, _ in entries])

    def _silence(self, ends: list[tuple[int, float]]) -> list[tuple[int, float]]:
        """Add SIL, any number of times, after `ends`; return the states before the next word."""
        if self.sil is None:
            return []
        sil = self.state(self.sil, ends)
        blank = self.state(self.blank, [(sil, 0.0)])
        self.sources[sil].append((blank, 0.0))
        return [(sil, 0.0), (blank, 0.0)]


class _Arrays:
    """The states as padded arrays: sources and the scores that they add, both [S, K].

    State S is the padding; it is impossible.
    """

    def __init__(self, states: _States) -> None:
        n_states = len(states.tokens)
        width = max(map(len, states.sources))
        self.tokens_S = np.array(states.tokens)
        self.sources_SK = np.full((n_states, width), n_states)
        self.added_SK = np.zeros((n_states, width))
        for number, sources in enumerate(states.sources):
            for column, (source, added) in enumerate(sources):
                self.sources_SK[number, column] = source
                self.added_SK[number, column] = added
        self.before_S = np.full(n_states + 1, -np.inf)  # before the first frame
        self.before_S[states.starts] = 0.0

    def forward(self, scores_PV: np.ndarray) -> np.ndarray:
        """Return the log of the summed exponentials of all paths into each state, float64 [S]."""
        alpha_S = self.before_S.copy()
        with np.errstate(divide="ignore"):
            for scores_V in scores_PV:
                paths_SK = alpha_S[self.sources_SK] + self.added_SK
                best_S = paths_SK.max(axis=1)
                best_S[best_S == -np.inf] = 0.0  # -inf less -inf would be NaN
                summed_S = np.log(np.exp(paths_SK - best_S[:, None]).sum(axis=1))
                alpha_S[:-1] = best_S + summed_S + scores_V[self.tokens_S]
        return alpha_S

    def viterbi(self, scores_PV: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the score of the best path into each state, and its sources.

        float64 [S], and [P, S]: the number of the source in each frame.
        """
        alpha_S = self.before_S.copy()
        # The number of the source among a state's sources takes a byte, its own number eight.
        came_PS = np.zeros(
            (len(scores_PV), len(self.tokens_S)), dtype=np.min_scalar_type(self.sources_SK.shape[1])
        )
        rows_S = np.arange(len(self.tokens_S))
        for came_S, scores_V in zip(came_PS, scores_PV, strict=True):
            paths_SK = alpha_S[self.sources_SK] + self.added_SK
            choice_S = paths_SK.argmax(axis=1)
            came_S[:] = choice_S
            alpha_S[:-1] = paths_SK[rows_S, choice_S] + scores_V[self.tokens_S]
        return alpha_S, came_PS


def score_sentences(
    sentences: Sequence[Sequence[Spelling]],
    scores_PV: np.ndarray,
    options: DecoderOptions,
    inventory: Inventory,
) -> list[SentencePaths]:
    """Score sentences, each given as the pronunciations of its words.

    A sentence that does not fit into the frames scores -inf and has no spans.

    Args:
        sentences: The words of each sentence, and of each word the pronunciations and their log
            weights.
        scores_PV: float64 [P, V] of `reference.scaled`.
        options: Options of the search.
        inventory: Tokens of the columns, in order.
    """
    return [
        paths
        for group in _groups(sentences, len(scores_PV))
        for paths in _score_group(group, scores_PV, options, inventory)
    ]


def _groups(
    sentences: Sequence[Sequence[Spelling]], n_frames: int
) -> Iterator[list[Sequence[Spelling]]]:
    """Yield the sentences in groups that fit into memory together."""
    group: list[Sequence[Spelling]] = []
    cells = 0
    for sentence in sentences:
        own = n_frames * sum(4 + 2 * len(tokens) for spelling in sentence for tokens, _ in spelling)
        if group and cells + own > _MAX_CELLS:
            yield group
            group = []
            cells = 0
        group.append(sentence)
        cells += own
    if group:
        yield group


def _score_group(
    sentences: Sequence[Sequence[Spelling]],
    scores_PV: np.ndarray,
    options: DecoderOptions,
    inventory: Inventory,
) -> list[SentencePaths]:
    states = _States(inventory, options)
    for sentence in sentences:
        states.add(sentence)
    arrays = _Arrays(states)
    best_S, came_PS = arrays.viterbi(scores_PV)
    joined_S = arrays.forward(scores_PV) if options.recombine == "logadd" else best_S
    results = []
    for sentence, ends in zip(sentences, states.finals, strict=True):
        score = float(
            np.logaddexp.reduce(joined_S[ends])
            if options.recombine == "logadd"
            else joined_S[ends].max()
        )
        if score == -np.inf:
            results.append(SentencePaths(score, 0, ()))
            continue
        path = _trace(arrays, came_PS, ends[int(best_S[ends].argmax())])
        results.append(SentencePaths(score, *_read(path, states, len(sentence))))
    return results


def _trace(arrays: _Arrays, came_PS: np.ndarray, state: int) -> list[int]:
    """Return the states of the best path that ends in `state`, one per frame."""
    path = []
    for came_S in came_PS[::-1]:
        path.append(state)
        state = int(arrays.sources_SK[state, came_S[state]])
    return path[::-1]


def _read(
    path: list[int], states: _States, n_words: int
) -> tuple[int, tuple[tuple[int, int], ...]]:
    """Return the number of boundaries without SIL, and the frames of each word."""
    first = [0] * n_words
    last = [_NO_WORD] * n_words
    boundaries = 0
    silent = True
    has_sil = states.sil is not None
    for frame, state in enumerate(path):
        word = states.words[state]
        if word != _NO_WORD:
            if last[word] == _NO_WORD:
                first[word] = frame
                boundaries += has_sil and not silent
            last[word] = frame
            silent = False
        elif states.tokens[state] == states.sil:
            silent = True
    return boundaries, tuple((start, end + 1) for start, end in zip(first, last, strict=True))
