"""Sentences decoded by the models of a chain: word errors where they have labels, and confidence.

Shapes: P frames, V tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from cortext.decoding import Decoder, NBest
from cortext.decoding.log_probs import log_softmax
from cortext.models import AcousticModel
from cortext.recalibration.recorded import LoggedSentence
from cortext.text.metrics import edit_counts


def day_of(model: AcousticModel, session: str) -> str:
    """Return the day whose layer decodes a recording, as live decoding chooses it."""
    return session if session in model.sessions else model.sessions[-1]


class Judge:
    """Decodes sentences with models of a chain, each once.

    Args:
        decoder: The search, with the options of the chain.
        before_sentence: Is called before each sentence; it may wait.
    """

    def __init__(self, decoder: Decoder, before_sentence: Callable[[], None]) -> None:
        self.decoder = decoder
        self._before_sentence = before_sentence
        self._found: dict[tuple[int, int], NBest] = {}

    def decode(
        self, number: int, model: AcousticModel, sentences: Sequence[LoggedSentence]
    ) -> list[NBest]:
        """Return what a model decodes.

        Args:
            number: The model's number in the chain.
            model: The model.
            sentences: The sentences.
        """
        for each in sentences:
            if (number, each.number) not in self._found:
                self._before_sentence()
                logits_PV = model.logits(each.features_TC, day_of(model, each.utterance.session))
                found = self.decoder.decode(log_softmax(logits_PV), model.inventory)
                self._found[number, each.number] = NBest(found[:1])
        return [self._found[number, each.number] for each in sentences]

    def forget_all_but(self, models: Sequence[int]) -> None:
        """Forget what other models have decoded."""
        self._found = {key: found for key, found in self._found.items() if key[0] in models}


def word_errors(found: Sequence[NBest], sentences: Sequence[LoggedSentence]) -> list[int]:
    """Return the word errors of decoded sentences, all of which have labels."""
    return [
        edit_counts((each.utterance.label or "").split(), nbest[0].text.split()).errors
        for nbest, each in zip(found, sentences, strict=True)
    ]
