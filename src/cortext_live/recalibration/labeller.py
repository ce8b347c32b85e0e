"""Labels of the utterances of a usage log: a person's correction, or the decoded sentence."""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np

from cortext.decoding import Decoder, NBest
from cortext.decoding.log_probs import log_softmax
from cortext_live.recalibration.comparing import day_of
from cortext_live.recalibration.labels import label_of, pseudo_label
from cortext_live.recalibration.learner import Learner
from cortext_live.recalibration.recorded import LoggedSentence, LoggedSentences, blamed
from cortext_live.recalibration.replay import LabelledSentence

RESERVED = 4
"""Utterances of which one, once it has a label, judges models.

With half of the corrected sentences for judging, simulated participants had up to three points more
word errors; with a quarter, a promotion waits for twice as many.
"""
WATCHED = 3
"""Reserved utterances of which one is never learnt from as it was decoded."""


class Labeller:
    """Makes the sentences that a service learns from.

    Args:
        decoder: The search that makes pseudo-labels.
        sentences: Sentences of the usage log.
        chain: Id of the chain; with the log, it draws the reserved utterances.
        before_sentence: Is called before each sentence is decoded; it may wait.
    """

    def __init__(
        self,
        decoder: Decoder,
        sentences: LoggedSentences,
        chain: str,
        before_sentence: Callable[[], None],
    ) -> None:
        self._decoder = decoder
        self._lexicon = None if decoder.lm.is_open else decoder.lm.lexicon
        self._sentences = sentences
        self._chain = chain
        self._before_sentence = before_sentence

    def is_reserved(self, number: int) -> bool:
        """Tell whether an utterance, once it has a label, judges and is never learnt from.

        One of each `RESERVED` is, drawn by the chain and the log.
        """
        group, place = divmod(number, RESERVED)
        return place == self._drawn(group) % RESERVED

    def is_watched(self, number: int) -> bool:
        """Tell whether an utterance is never learnt from as it was decoded.

        One of each `WATCHED` reserved ones is: without labels they tell the confidence of a model
        that has not learnt from them.
        """
        group, place = divmod(number // RESERVED, WATCHED)
        return self.is_reserved(number) and place == self._drawn(-1 - group) % WATCHED

    def _drawn(self, group: int) -> int:
        name = f"{self._chain} {self._sentences.began} {group}"
        return int.from_bytes(hashlib.sha256(name.encode()).digest()[:4])

    def may_train(self, number: int) -> bool:
        """Tell whether an utterance of the log may be learnt from, with the label that it has."""
        labelled = self._sentences.log.utterances[number].label is not None
        return not (self.is_reserved(number) if labelled else self.is_watched(number))

    def labelled(self, number: int, learner: Learner) -> LabelledSentence | None:
        """Return an utterance with the label to learn from; None where there is none.

        Args:
            number: The utterance.
            learner: Its model decodes an utterance without a correction.
        """
        began = self._sentences.began
        sentence = self._sentences.sentence(number) if self.may_train(number) else None
        if sentence is None or began is None:
            return None
        text = sentence.utterance.label
        if text is None:
            labels_U = self._decoded(sentence, learner)
        else:
            labels_U = label_of(text, learner.model.conventions, self._lexicon)
        if labels_U is None:
            return None
        return LabelledSentence(
            sentence.features_TC,
            sentence.utterance.session,
            labels_U,
            entry=(began, number),
            corrected=text is not None,
        )

    def _decoded(self, sentence: LoggedSentence, learner: Learner) -> np.ndarray | None:
        """Return the label that the learner's model gives a sentence, int64 [U], if trusted."""
        self._before_sentence()
        model = learner.model
        day = day_of(model, sentence.utterance.session)
        with blamed(sentence.number):
            log_probs_PV = log_softmax(model.logits(sentence.features_TC, day))
            nbest = self._decoder.decode(log_probs_PV, model.inventory)
        return self.trusted(nbest, sentence, learner)

    def trusted(
        self, nbest: NBest, sentence: LoggedSentence, learner: Learner
    ) -> np.ndarray | None:
        """Return the label of a decoded sentence, int64 [U]; None where it is not trusted.

        Args:
            nbest: The decoded hypotheses.
            sentence: The sentence.
            learner: Its settings say which sentences are trusted, and the fewest tokens of one.
        """
        least, least_word = learner.settings.confidence, learner.settings.word_confidence
        if not learner.knows_wildcards:  # then no word is left out of a label, and all are trusted
            least, least_word = max(least, least_word), 0.0
        fewest = learner.fewest_tokens(len(sentence.features_TC))
        conventions = learner.model.conventions
        return pseudo_label(nbest, least, conventions, self._lexicon, fewest, least_word)
