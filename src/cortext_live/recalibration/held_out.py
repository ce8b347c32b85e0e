"""Utterances of a log that a model was not trained on: they alone may judge it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from pathlib import Path

from cortext.errors import shown
from cortext.models.card import CARD, read_card
from cortext_live.recalibration.bad_days import days_left_out
from cortext_live.recalibration.chain import model_folder
from cortext_live.recalibration.chain_entries import ChainContents, ChainEntry
from cortext_live.recalibration.labeller import Labeller
from cortext_live.recalibration.recorded import LoggedSentences

NAMED = 5
"""Most utterances that a person is asked to correct."""


class HeldOut:
    """Finds the utterances that models have not learnt from.

    Args:
        chain: Directory of the chain.
        sentences: Sentences of the usage log.
        labeller: Knows which utterances are reserved.
    """

    def __init__(self, chain: Path, sentences: LoggedSentences, labeller: Labeller) -> None:
        self._chain = chain
        self._sentences = sentences
        self._labeller = labeller

    def unlearnt(self, contents: ChainContents, entry: ChainEntry) -> list[int]:
        """Return the utterances that a candidate, its parent and what speaks have not learnt from.

        They were spoken after the parent was made: of earlier days both have the same layers. Where
        the chain began with the parent, they may be older, except on days that it was trained on.
        A sentence that got its label late, when it had been learnt from as it was decoded, is none.
        Nor are those of a day that was left out: what an old model makes of garbage tells nothing.
        """
        log = self._sentences.log
        parent = contents.entries[entry.facts["parent"]]
        added, utterances = contents.added_at(parent.number), log.utterances
        unknown = set[str]()
        if parent.kind == "base":
            card = read_card(model_folder(self._chain, parent.number) / CARD)
            unknown = {each.session for each in utterances.values()} - set(card.sessions)
        left_out = days_left_out(contents, log)
        learnt = contents.learnt(entry.number) | contents.learnt(parent.number)
        if contents.provisional is not None:
            learnt |= contents.learnt(contents.provisional)
        return [
            number
            for number, each in utterances.items()
            if (each.when >= added or each.session in unknown)
            and each.session not in left_out
            and (log.began, number) not in learnt
        ]

    def labelled(self, unlearnt: Iterable[int]) -> list[int]:
        """Return the reserved ones with labels among utterances.

        Others with labels do not count: they are learnt from next, and judge no later model.
        """
        utterances = self._sentences.log.utterances
        return [
            number
            for number in unlearnt
            if utterances[number].label is not None and self._labeller.is_reserved(number)
        ]

    def wanted(self, unlearnt: Iterable[int]) -> str:
        """Return in words which of some utterances would judge, whenever they get labels.

        The latest of those that have words and whose features are kept. Only watched ones are
        named: the others are learnt from as they were decoded, unless they are corrected in time.
        """
        utterances = self._sentences.log.utterances
        latest_first = sorted(filter(self._labeller.is_watched, unlearnt), reverse=True)
        useful = (
            number
            for number in latest_first
            if utterances[number].label is None
            and utterances[number].n_words
            and self._sentences.sentence(number) is not None
        )
        names = [shown(utterances[number].id, 40) for number in islice(useful, NAMED)]
        return f"; correct or confirm utterances {', '.join(names[::-1])}" if names else ""
