"""The oracle of the word search: prefix search of CTC in plain Python, with nothing clever in it.

`cortext.decoding.nbest` defines the paths of a sentence and their scores. Here a hypothesis is its
words so far, the tokens of the word that it is within, and the last token. Each frame extends every
hypothesis by every token that may follow; hypotheses that become equal are joined. Without a beam
nothing is lost, so what is left after the last frame are all sentences with their exact scores.
`tests/core/decoding/test_search_oracle.py` checks this file by hand and against PyTorch's CTC loss.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
from engine_cases import Entry

from cortext.decoding import DecoderOptions, Hypothesis
from cortext.text.inventory import RELEASE, Inventory

FLOOR = -1000.0
FRAME_MS = 80.0
TIE = 1e-6
"""Paths whose scores differ by less are equally good."""

Prefix = tuple[int, ...]
"""The tokens of an unfinished word; none between words."""

Key = tuple[tuple[str, ...], Prefix, bool, int]
"""A hypothesis: its words, its prefix, whether the next word begins at no cost, the last token.

CTC needs the last token: the same token is a new label after a blank and a repeat after itself.
"""

Course = tuple[tuple[tuple[int, int], ...], int, int]
"""When the words are said: the frames [first, end) of each, the words that were entered directly
after another, and the first frame of the word that is not finished.
"""

Courses = dict[Course, float]
Table = dict[Key, tuple[float, Courses]]
"""Hypotheses with the joined score of their paths and the scores of their courses."""


@dataclass(frozen=True)
class Sentence:
    """A sentence with its exact scores.

    paths:    joined score of its paths, without n-gram and word scores
    lm_score: of the n-gram, with the score of unknown words
    courses:  the courses of its best paths, and their scores
    """

    words: tuple[str, ...]
    paths: float
    lm_score: float
    courses: Courses
    options: DecoderOptions

    @property
    def text(self) -> str:
        return " ".join(self.words)

    @property
    def score(self) -> float:
        o = self.options
        return self.paths + o.lm_weight * self.lm_score + o.word_score * len(self.words)

    def parts(self) -> list[list[float]]:
        """For each best course: score, acoustic, n-gram's and silence's score, times in ms."""
        parts = []
        for spans, boundaries, _ in self.courses:
            sil_score = -self.options.sil_cost * boundaries
            acoustic = (self.paths - sil_score) / self.options.acoustic_scale
            times = [FRAME_MS * frame for span in spans for frame in span]
            parts.append([self.score, acoustic, self.lm_score, sil_score, *times])
        return parts


def scaled(
    log_probs_PV: np.ndarray, options: DecoderOptions, inventory: Inventory = RELEASE
) -> np.ndarray:
    """What each token adds to a path in each frame; -inf where only the blank is allowed."""
    scores_PV = np.maximum(log_probs_PV.astype(np.float64), FLOOR)
    is_blank_V = np.arange(len(inventory)) == inventory.blank
    is_sure_P = np.exp(scores_PV[:, inventory.blank]) >= options.blank_skip
    scores_PV[:, inventory.blank] -= math.log(options.blank_penalty)
    for symbol, prior in dict(options.label_priors).items():
        if symbol in inventory.index:
            scores_PV[:, inventory.index[symbol]] -= options.prior_weight * math.log(prior)
    scores_PV *= options.acoustic_scale
    if options.blank_skip < 1:
        scores_PV[np.ix_(is_sure_P, ~is_blank_V)] = -np.inf
    return scores_PV


@dataclass
class Tree:
    """Pronunciations by their prefixes.

    follow: tokens that may follow a prefix
    ends:   words that end with it, each with the log of its weight
    """

    follow: dict[Prefix, set[int]] = field(default_factory=lambda: defaultdict(set))
    ends: dict[Prefix, list[tuple[str, float]]] = field(default_factory=lambda: defaultdict(list))

    @classmethod
    def of(cls, entries: Iterable[Entry], inventory: Inventory) -> Tree:
        tree = cls()
        for word, phonemes, weight in entries:
            tokens = tuple(inventory.index[symbol] for symbol in phonemes.split())
            tree.ends[tokens].append((word, math.log(weight)))
            for place, token in enumerate(tokens):
                tree.follow[tokens[:place]].add(token)
        return tree


class Oracle:
    """The search for what frames say, by a lexicon and an n-gram.

    grams: scores a `sentence` of words and a word after others (`log_prob`); without, all score 0
    """

    def __init__(
        self,
        entries: Sequence[Entry],
        grams: Any,
        options: DecoderOptions,
        inventory: Inventory = RELEASE,
    ) -> None:
        self.entries = entries
        self.grams = grams
        self.options = options
        self.inventory = inventory
        self.blank = inventory.blank
        self.sil = None if inventory.separator is None else inventory.index[inventory.separator]
        self.cost = math.inf if options.sil_required else options.sil_cost
        if self.sil is None:
            self.cost = 0.0  # nothing stands between words, so nothing can be missing there
        self._tree = Tree.of(entries, inventory)
        self._added: dict[tuple[str, ...], float] = {(): 0.0}

    def sentences(
        self,
        log_probs_PV: np.ndarray,
        *,
        given: Sequence[str] | None = None,
        every_course: bool = False,
    ) -> dict[str, Sentence]:
        """All sentences that the frames can be read as; see `sentences_of_scores`."""
        scores_PV = scaled(log_probs_PV, self.options, self.inventory)
        return self.sentences_of_scores(scores_PV, given=given, every_course=every_course)

    def sentences_of_scores(
        self,
        scores_PV: np.ndarray,
        *,
        given: Sequence[str] | None = None,
        every_course: bool = False,
        beam: float = math.inf,
    ) -> dict[str, Sentence]:
        """All sentences that the frames can be read as, with their exact scores.

        scores_PV:    as `scaled` gives them
        given:        the words of the only sentence to look for
        every_course: also the courses that are not best, each with the joined score of its paths
        beam:         paths worse than the best so far by more are given up, to save time
        """
        trees = None
        if given is not None:
            trees = [
                Tree.of([each for each in self.entries if each[0] == word], self.inventory)
                for word in given
            ]
            trees.append(Tree())
        live: Table = {((), (), True, self.blank): (0.0, {((), 0, -1): 0.0})}
        for frame, scores_V in enumerate(scores_PV.tolist()):
            live = self._extended(live, frame, scores_V, trees, every_course)
            least = max((score for score, _ in live.values()), default=0.0) - beam
            live = {key: paths for key, paths in live.items() if paths[0] >= least}
        found = self._ended(live, every_course)
        return {
            " ".join(words): Sentence(words, *paths, options=self.options)
            for words, paths in found.items()
            if given is None or words == tuple(given)
        }

    def search(self, log_probs_PV: np.ndarray) -> list[Sentence]:
        """The sentences that a search with the options' beam finds, best first."""
        options = self.options
        live: Table = {((), (), True, self.blank): (0.0, {})}
        ahead = self._look_ahead()
        for frame, scores_V in enumerate(scaled(log_probs_PV, options, self.inventory).tolist()):
            live = self._extended(live, frame, scores_V, None, False)
            rank = {
                key: score + self._language(key[0]) + ahead[key[1]]
                for key, (score, _) in live.items()
            }
            best_first = sorted(live, key=rank.__getitem__, reverse=True)
            least = rank[best_first[0]] - options.beam
            live = {
                key: live[key]
                for place, key in enumerate(best_first[: options.max_active])
                if place < options.min_active or rank[key] >= least
            }
        between = {key: paths for key, paths in live.items() if not key[1]}
        found = sorted(
            (
                (paths + options.lm_weight * lm_score + options.word_score * len(words), words)
                for words, (paths, lm_score, _) in self._ended(between or live, False).items()
            ),
            reverse=True,
        )
        least = found[0][0] - options.lattice_beam * options.acoustic_scale
        kept = [words for score, words in found if score >= least]
        exact = [
            sentence
            for words in kept[: min(options.nbest, options.max_arcs)]
            for sentence in self.sentences(log_probs_PV, given=words).values()
        ]
        return sorted(exact, key=lambda sentence: (-sentence.score, sentence.text))

    def _extended(
        self,
        live: Table,
        frame: int,
        scores_V: list[float],
        trees: list[Tree] | None,
        every_course: bool,
    ) -> Table:
        """The continuations of all hypotheses by one token."""
        table: Table = {}

        def join(key: Key, paths: float, courses: Courses, added: float) -> None:
            if added > -math.inf:
                courses = {course: score + added for course, score in courses.items()}
                self._join(table, key, paths + added, courses, every_course)

        for (words, prefix, is_free, last), (paths, courses) in live.items():
            tree = self._tree if trees is None else trees[len(words)]
            join((words, prefix, is_free, self.blank), paths, courses, scores_V[self.blank])
            if last != self.blank:
                # The last token of a word that continues makes the word longer.
                held = courses if prefix or is_free else _each(courses, _longer, frame)
                join((words, prefix, is_free, last), paths, held, scores_V[last])
            if not prefix and self.sil is not None and self.sil != last:
                join((words, (), True, self.sil), paths, courses, scores_V[self.sil])
            for token in tree.follow.get(prefix, set()) - {last}:
                added, begun = scores_V[token], courses
                if not prefix:
                    is_direct = not is_free and self.sil is not None
                    added -= 0.0 if is_free else self.cost
                    begun = _each(courses, _entered, frame, is_direct)
                longer = (*prefix, token)
                if longer in tree.follow:
                    join((words, longer, False, token), paths, begun, added)
                for word, log_weight in tree.ends.get(longer, []):
                    weight = self.options.acoustic_scale * log_weight
                    ended = _each(begun, _left, frame)
                    join(((*words, word), (), False, token), paths, ended, added + weight)
        return table

    def _join(
        self, table: dict[Any, Any], key: Any, paths: float, courses: Courses, every_course: bool
    ) -> None:
        """Add paths to those of the same key."""
        join = _sum if self.options.recombine == "logadd" else max
        if key not in table:
            table[key] = (paths, courses)
            return
        other_paths, other_courses = table[key]
        both = dict(other_courses)
        for course, score in courses.items():
            join_courses = _sum if every_course else max
            both[course] = join_courses(both[course], score) if course in both else score
        if not every_course and len(both) > 1:
            best = max(both.values())
            both = {course: score for course, score in both.items() if score > best - TIE}
        table[key] = (join(other_paths, paths), both)

    def _ended(
        self, live: Table, every_course: bool
    ) -> dict[tuple[str, ...], tuple[float, float, Courses]]:
        """The sentences of hypotheses, with the scores of their paths and of the n-gram.

        Words that are not finished are dropped.
        """
        table: dict[tuple[str, ...], tuple[float, Courses]] = {}
        only_unfinished = all(prefix for _, prefix, _, _ in live)
        for (words, prefix, _, _), (paths, courses) in live.items():
            if not prefix or only_unfinished:
                self._join(table, words, paths, courses, every_course)
        return {
            words: (paths, self._lm_score(words), courses)
            for words, (paths, courses) in table.items()
        }

    def _lm_score(self, words: tuple[str, ...]) -> float:
        return 0.0 if self.grams is None else self.grams.sentence(words, self.options.unk_score)

    def _language(self, words: tuple[str, ...]) -> float:
        """What n-gram and word score have added to the beginning of a sentence."""
        if words not in self._added:
            own = self._word_score(words[-1], self.grams.log_prob(["<s>", *words[:-1]], words[-1]))
            self._added[words] = self._language(words[:-1]) + own
        return self._added[words]

    def _word_score(self, word: str, log_prob: float) -> float:
        unknown = 0.0 if (word,) in self.grams.log_probs else self.options.unk_score
        return self.options.lm_weight * (log_prob + unknown) + self.options.word_score

    def _look_ahead(self) -> dict[Prefix, float]:
        """The best that a word with this prefix can add by its unigram.

        The n-gram scores a word when it ends. Without a guess before, unfinished words would look
        better than finished ones.
        """
        ahead: dict[Prefix, float] = {(): 0.0}
        for word, phonemes, weight in self.entries:
            tokens = tuple(self.inventory.index[symbol] for symbol in phonemes.split())
            added = self._word_score(word, self.grams.log_prob([], word))
            added += self.options.acoustic_scale * math.log(weight)
            for place in range(1, len(tokens)):
                ahead[tokens[:place]] = max(ahead.get(tokens[:place], -math.inf), added)
        return ahead


def _each(courses: Courses, change: Callable[..., Course], *arguments: Any) -> Courses:
    return {change(course, *arguments): score for course, score in courses.items()}


def _entered(course: Course, frame: int, is_direct: bool) -> Course:
    spans, boundaries, _ = course
    return spans, boundaries + (is_direct and len(spans) > 0), frame


def _left(course: Course, frame: int) -> Course:
    spans, boundaries, first = course
    return (*spans, (first, frame + 1)), boundaries, -1


def _longer(course: Course, frame: int) -> Course:
    spans, boundaries, first = course
    return (*spans[:-1], (spans[-1][0], frame + 1)), boundaries, first


def _sum(one: float, other: float) -> float:
    """The log of the sum of probabilities."""
    return max(one, other) + math.log1p(math.exp(-abs(one - other)))


def all_scores(
    entries: Sequence[Entry],
    grams: Any,
    log_probs_PV: np.ndarray,
    options: DecoderOptions,
    inventory: Inventory = RELEASE,
) -> dict[str, float]:
    """The score of every sentence that the frames can be read as, by its text."""
    found = Oracle(entries, grams, options, inventory).sentences(log_probs_PV)
    return {text: sentence.score for text, sentence in found.items()}


def check_hypothesis(found: Hypothesis, expected: Sentence) -> None:
    """Fail unless scores and times are the oracle's; of paths that are equally good any may be taken."""
    assert [word.word for word in found.words] == list(expected.words)
    times = [time for word in found.words for time in (word.start_ms, word.end_ms)]
    own = [found.score, found.acoustic_score, found.lm_score, found.sil_score, *times]
    assert any(own == pytest.approx(parts, abs=1e-4) for parts in expected.parts()), (own, expected)
