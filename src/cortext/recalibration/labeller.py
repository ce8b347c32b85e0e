"""Labels of the utterances of a usage log: what a person says was meant, or what was decoded."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np

from cortext.decoding import Decoder
from cortext.decoding.log_probs import log_softmax
from cortext.recalibration.judging import day_of
from cortext.recalibration.labels import label_of, pseudo_label
from cortext.recalibration.learner import HeardSentence, Learner
from cortext.recalibration.recorded import LoggedSentence, LoggedSentences
from cortext.recalibration.settings import LearningSettings


class Labeller:
    """Makes the sentences that a service learns from.

    Args:
        decoder: The search that makes pseudo-labels.
        sentences: Sentences of the usage log.
        learning: Which decoded sentences and words are trusted.
        chain: Id of the chain; with the log, it draws the reserved utterances.
        before_sentence: Is called before each sentence is decoded; it may wait.
    """

    def __init__(
        self,
        decoder: Decoder,
        sentences: LoggedSentences,
        learning: LearningSettings,
        chain: str,
        before_sentence: Callable[[], None],
    ) -> None:
        self._decoder = decoder
        self._lexicon = None if decoder.lm.is_open else decoder.lm.lexicon
        self._sentences = sentences
        self._learning = learning
        self._chain = chain
        self._before_sentence = before_sentence

    def is_reserved(self, number: int) -> bool:
        """Tell whether an utterance, once it has a label, judges and is never learnt from.

        Half of them are, drawn by the chain, the log and the number.
        """
        name = f"{self._chain} {self._sentences.began} {number}"
        return hashlib.sha256(name.encode()).digest()[0] % 2 == 0

    def heard(self, number: int, learner: Learner) -> HeardSentence | None:
        """Return an utterance with the label to learn from; None where there is none.

        Args:
            number: The utterance.
            learner: Its model decodes an utterance without a correction.
        """
        sentence, began = self._sentences.sentence(number), self._sentences.began
        if sentence is None or began is None:
            return None
        text, conventions = sentence.utterance.label, learner.model.conventions
        if text is None:
            labels_U = self._decoded(sentence, learner)
        elif self.is_reserved(number):
            return None
        else:
            labels_U = label_of(text, conventions, self._lexicon)
        if labels_U is None:
            return None
        return HeardSentence(
            sentence.features_TC,
            sentence.utterance.session,
            labels_U,
            entry=(began, number),
            told=text is not None,
        )

    def _decoded(self, sentence: LoggedSentence, learner: Learner) -> np.ndarray | None:
        """Return the label that the learner's model gives a sentence, int64 [U], if trusted."""
        self._before_sentence()
        model = learner.model
        day = day_of(model, sentence.utterance.session)
        log_probs_PV = log_softmax(model.logits(sentence.features_TC, day))
        nbest = self._decoder.decode(log_probs_PV, model.inventory)
        return pseudo_label(
            nbest,
            self._learning.confidence,
            model.conventions,
            self._lexicon,
            learner.fewest_tokens(len(sentence.features_TC)),
            self._learning.word_confidence if learner.knows_wildcards else 0.0,
        )
