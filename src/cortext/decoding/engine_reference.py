"""The reference engine.

`reference.Search` finds sentences, `sentences` scores them exactly and times their words.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from cortext.decoding.nbest import FRAME_MS, Hypothesis, NBest, Partial, Word
from cortext.decoding.ngram import LanguageModel
from cortext.decoding.options import DecoderOptions
from cortext.decoding.reference import Graph, LexiconTree, ReferenceSearch, scaled
from cortext.decoding.sentences import SentencePaths, Spelling, score_sentences
from cortext.decoding.words import WordChanges
from cortext.errors import DecodingError
from cortext.text.inventory import Inventory


class ReferenceEngine:
    """The plain Python search over a language model in memory."""

    def __init__(self, lm: LanguageModel) -> None:
        self.lm = lm
        self._trees: dict[Inventory, LexiconTree] = {}
        self._graphs: dict[tuple[DecoderOptions, Inventory], Graph] = {}

    @classmethod
    def from_dir(cls, lm_dir: Path, second_lm: Path | None = None) -> ReferenceEngine:
        """Return the engine for a language-model directory."""
        _refuse("a second language model", second_lm)
        return cls(LanguageModel.open(lm_dir))

    def with_lm(self, lm: LanguageModel) -> ReferenceEngine:
        """Return an engine for another language model."""
        return ReferenceEngine(lm)

    def start(
        self,
        options: DecoderOptions,
        inventory: Inventory,
        words: WordChanges = WordChanges(),
        hook: object = None,
        every_frames: int = 1,
    ) -> ReferenceStream:
        """Begin the search in a new utterance.

        Args:
            options: Options of the search.
            inventory: Tokens of the columns, in order.
            words: Refused unless empty.
            hook: Refused unless None.
            every_frames: Not used.
        """
        _refuse("added, removed or favoured words", words)
        _refuse("a hook", hook)
        return ReferenceStream(self, self._graph(options, inventory), options, inventory)

    def score(
        self,
        text: str,
        log_probs_PV: np.ndarray,
        options: DecoderOptions,
        inventory: Inventory,
        changes: WordChanges = WordChanges(),
    ) -> Hypothesis:
        """Return the exact scores of a given sentence.

        Args:
            text: The sentence, its words separated by blanks.
            log_probs_PV: float32 [P, V], checked natural-log probabilities.
            options: Options of the search.
            inventory: Tokens of the columns, in order.
            changes: Refused unless empty.

        Raises:
            DecodingError: For a word that the lexicon lacks or a sentence too long for the frames.
        """
        _refuse("added, removed or favoured words", changes)
        words = text.split()
        for word in words:
            if word not in self.lm.lexicon:
                raise DecodingError(
                    f"the word {word!r} is not in the lexicon", where=self.lm.directory
                )
        scores_PV = scaled(log_probs_PV, options, inventory)
        (paths,) = score_sentences(
            [self._spellings(words, inventory)], scores_PV, options, inventory
        )
        if paths.score == -np.inf:
            raise DecodingError(
                f"the sentence {text!r} does not fit into {len(log_probs_PV)} frames"
            )
        return self._hypothesis(words, paths, options)

    def rank(
        self,
        sentences: Sequence[Sequence[str]],
        scores_PV: np.ndarray,
        options: DecoderOptions,
        inventory: Inventory,
    ) -> NBest:
        """Return sentences with their exact scores, best first.

        Args:
            sentences: Words of each sentence, all of them in the lexicon.
            scores_PV: float64 [P, V] of `reference.scaled`.
            options: Options of the search.
            inventory: Tokens of the columns, in order.
        """
        spellings = [self._spellings(words, inventory) for words in sentences]
        paths = score_sentences(spellings, scores_PV, options, inventory)
        hypotheses = [
            self._hypothesis(words, each, options)
            for words, each in zip(sentences, paths, strict=True)
        ]
        return NBest(
            tuple(sorted(hypotheses, key=lambda hypothesis: (-hypothesis.score, hypothesis.text)))
        )

    def _hypothesis(
        self, words: Sequence[str], paths: SentencePaths, options: DecoderOptions
    ) -> Hypothesis:
        unknown = sum(word not in self.lm.ngram for word in words)
        lm_score = self.lm.ngram.sentence(" ".join(words)) + options.unk_score * unknown
        sil_score = 0.0 - options.sil_cost * paths.boundaries
        spans = zip(words, paths.spans, strict=True)
        return Hypothesis(
            text=" ".join(words),
            score=paths.score + options.lm_weight * lm_score + options.word_score * len(words),
            acoustic_score=(paths.score - sil_score) / options.acoustic_scale,
            lm_score=lm_score,
            words=tuple(
                Word(word, first * FRAME_MS, end * FRAME_MS) for word, (first, end) in spans
            ),
            sil_score=sil_score,
        )

    def _spellings(self, words: Sequence[str], inventory: Inventory) -> list[Spelling]:
        lexicon = self.lm.lexicon
        index = inventory.index
        return [
            [
                ([index[phoneme] for phoneme in phonemes], float(np.log(weight)))
                for phonemes, weight in zip(
                    lexicon.pronunciations(word), lexicon.weights(word), strict=True
                )
            ]
            for word in words
        ]

    def _graph(self, options: DecoderOptions, inventory: Inventory) -> Graph:
        graph = self._graphs.get((options, inventory))
        if graph is None:
            if inventory not in self._trees:
                self._trees[inventory] = LexiconTree.of(self.lm.lexicon, inventory)
            self._graphs.clear()  # one at a time: they are large, and tuning tries many options
            graph = Graph(self._trees[inventory], self.lm.ngram, options, inventory)
            self._graphs[options, inventory] = graph
        return graph


class ReferenceStream:
    """The reference engine's search through one utterance."""

    def __init__(
        self, engine: ReferenceEngine, graph: Graph, options: DecoderOptions, inventory: Inventory
    ) -> None:
        self._engine = engine
        self._options = options
        self._inventory = inventory
        self._search = ReferenceSearch(graph)
        self._frames: list[np.ndarray] = [np.empty((0, len(inventory)))]

    def advance(self, log_probs_PV: np.ndarray) -> None:
        """Take in frames of log-probabilities."""
        scores_PV = scaled(log_probs_PV, self._options, self._inventory)
        self._frames.append(scores_PV)
        self._search.advance(scores_PV)

    def partial(self) -> Partial:
        """Return the words that will not change any more, and the current guess after them."""
        stable, tail = self._search.partial()
        return Partial(" ".join(stable), " ".join(tail))

    def set_options(self, options: DecoderOptions) -> None:
        """Refuse options other than those of the start."""
        _refuse("a change of options during an utterance", options != self._options)

    def finish(self) -> NBest:
        """Return the n-best list with exact scores."""
        options = self._options
        found = self._search.finish()
        least = found[0][0] - options.lattice_beam * options.acoustic_scale
        kept = [history.words() for score, history in found if score >= least]
        kept = kept[: min(options.nbest, options.max_arcs)]
        return self._engine.rank(kept, np.concatenate(self._frames), options, self._inventory)


def _refuse(what: str, value: object) -> None:
    if value:
        raise DecodingError(f"the reference engine does not know {what}", fix="use engine='native'")
