"""Sentences decoded by the models of a chain: word errors where they have labels, and confidence.

Shapes: P frames, V tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np

from cortext.decoding import Decoder, NBest
from cortext.decoding.log_probs import log_softmax
from cortext.models import AcousticModel, load_model
from cortext.text.metrics import edit_counts
from cortext_live.recalibration.chain import model_folder
from cortext_live.recalibration.chain_entries import ChainEntry
from cortext_live.recalibration.labels import confidence_of
from cortext_live.recalibration.promotion import Comparison, PromotionOptions, compare
from cortext_live.recalibration.recorded import LoggedSentence, LoggedSentences, blamed
from cortext_live.recalibration.settings import ServiceOptions


def day_of(model: AcousticModel, session: str) -> str:
    """Return the day whose layer decodes a recording, as live decoding chooses it."""
    return session if session in model.sessions else model.sessions[-1]


class ChainDecoder:
    """Decodes sentences with models of a chain, each once.

    Args:
        decoder: The search, with the options of the chain.
        before_sentence: Is called before each sentence; it may wait.
    """

    MOST = 4000
    """Decoded sentences that are kept, the latest ones."""

    def __init__(self, decoder: Decoder, before_sentence: Callable[[], None]) -> None:
        self.decoder = decoder
        self._before_sentence = before_sentence
        self._decoded: dict[tuple[int, int], NBest] = {}

    def decode(
        self, number: int, model: AcousticModel, sentences: Sequence[LoggedSentence]
    ) -> list[NBest]:
        """Return what a model decodes.

        Args:
            number: The model's number in the chain.
            model: The model.
            sentences: The sentences.

        Raises:
            SentenceFault: The model cannot be run on one of them.
        """
        # The oldest ones: a dict keeps its order, and judgements ask for the latest sentences.
        for key in list(self._decoded)[: -self.MOST]:
            del self._decoded[key]
        for each in sentences:
            if (number, each.number) not in self._decoded:
                self._before_sentence()
                day = day_of(model, each.utterance.session)
                with blamed(each.number):
                    logits_PV = model.logits(each.features_TC, day)
                    nbest = self.decoder.decode(log_softmax(logits_PV), model.inventory)
                # Word errors and confidence need the best sentence alone; thousands are kept.
                self._decoded[number, each.number] = NBest(nbest[:1])
        return [self._decoded[number, each.number] for each in sentences]

    def forget_sentences(self, numbers: Collection[int]) -> None:
        """Forget the decoded sentences of some utterances."""
        self._decoded = {
            key: nbest for key, nbest in self._decoded.items() if key[1] not in numbers
        }

    def forget_all_but(self, models: Sequence[int]) -> None:
        """Forget what other models have decoded."""
        self._decoded = {key: nbest for key, nbest in self._decoded.items() if key[0] in models}


def word_errors(decoded: Sequence[NBest], sentences: Sequence[LoggedSentence]) -> list[int]:
    """Return the word errors of decoded sentences, all of which have labels."""
    return [
        edit_counts((each.utterance.label or "").split(), nbest[0].text.split()).errors
        for nbest, each in zip(decoded, sentences, strict=True)
    ]


class ModelComparer:
    """Word errors and confidences of a model of a chain, beside its parent's.

    Args:
        chain: Directory of the chain.
        decoder: Decodes with its models.
        sentences: Sentences of the usage log.
        settings: Numbers of sentences.
        rule: Fewest sentences that judge a model.
    """

    def __init__(
        self,
        chain: Path,
        decoder: ChainDecoder,
        sentences: LoggedSentences,
        settings: ServiceOptions,
        rule: PromotionOptions,
    ) -> None:
        self._chain = chain
        self._decoder = decoder
        self._sentences = sentences
        self._settings = settings
        self._rule = rule

    def comparison(
        self, entry: ChainEntry, numbers: Sequence[int], level: float, other: int | None = None
    ) -> Comparison | None:
        """Compare a model with its parent on the latest labelled ones of some utterances.

        Args:
            entry: The model's.
            numbers: The utterances, in the order of time.
            level: Level of the bounds.
            other: Number of another model than the parent to compare it with.

        Returns:
            The comparison; None if too few of them have labels and features.
        """
        utterances = self._sentences.log.utterances
        # The latest ones judge: features drift, and a model must be good today.
        labelled = [number for number in numbers if utterances[number].label is not None]
        sentences = self._kept(labelled, self._settings.judging)
        if len(sentences) < self._rule.fewest:
            return None
        both = self._both(entry, sentences, other)
        of_other, own = (word_errors(each, sentences) for each in both)
        n_words = [len((each.utterance.label or "").split()) for each in sentences]
        return compare(of_other, own, n_words, level)

    def confidences(
        self, entry: ChainEntry, numbers: Sequence[int], fewest: int = 1, other: int | None = None
    ) -> tuple[float, float] | None:
        """Return mean confidences on the latest unlabelled ones of some utterances.

        Args:
            entry: The model's.
            numbers: The utterances, in the order of time.
            fewest: Number of sentences that are needed.
            other: Number of another model than the parent to compare it with.

        Returns:
            That of the parent, and the model's own; None for too few sentences.
        """
        utterances = self._sentences.log.utterances
        # Labelled sentences are compared by their errors. Their confidences would count them twice.
        unlabelled = [number for number in numbers if utterances[number].label is None]
        sentences = self._kept(unlabelled, self._settings.watched)
        if len(sentences) < fewest:
            return None
        of_parent, own = (
            float(np.mean([confidence_of(each) for each in nbests]))
            for nbests in self._both(entry, sentences, other)
        )
        return of_parent, own

    def decoded(self, model: int, numbers: Sequence[int]) -> Iterator[tuple[LoggedSentence, NBest]]:
        """Yield utterances whose features are kept, the latest first, as a model decodes them.

        The features of one are in memory at a time: a day may have thousands.

        Args:
            model: Number of a model of the chain.
            numbers: The utterances, labelled or not.
        """
        loaded = None
        for number in numbers[::-1]:
            sentence = self._sentences.sentence(number)
            if sentence is not None:
                loaded = loaded or load_model(model_folder(self._chain, model))
                yield sentence, self._decoder.decode(model, loaded, [sentence])[0]

    def _both(
        self, entry: ChainEntry, sentences: list[LoggedSentence], other: int | None = None
    ) -> Iterator[list[NBest]]:
        """Yield what the parent decodes, or another model, then the model itself."""
        for number in (entry.facts["parent"] if other is None else other, entry.number):
            # One model in memory at a time, beside the learner's and the one that speaks elsewhere.
            model = load_model(model_folder(self._chain, number))
            yield self._decoder.decode(number, model, sentences)

    def _kept(self, numbers: Sequence[int], most: int) -> list[LoggedSentence]:
        """Return the latest of some utterances whose features are kept."""
        latest = (self._sentences.sentence(number) for number in numbers[::-1])
        return list(islice((each for each in latest if each is not None), most))
