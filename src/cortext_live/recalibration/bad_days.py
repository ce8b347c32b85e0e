"""Days that did harm: of garbage, of a lost array, of a stranger. Confidence tells them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from cortext_live.recalibration.chain import is_intact
from cortext_live.recalibration.chain_entries import ChainContents
from cortext_live.recalibration.comparing import ModelComparer
from cortext_live.recalibration.labeller import Labeller
from cortext_live.recalibration.labels import confidence_of
from cortext_live.recalibration.learner import Learner
from cortext_live.recalibration.recorded import LoggedSentences
from cortext_live.usage.log import LogContents

FEWEST_OF_DAY = 5
"""Fewest sentences of a day that tell garbage from speech."""
LEAST_TRUSTED = 0.1
"""Least share of trusted labels that a model from before a day gives its sentences.

It gave simulated garbage 0 to 4 %, and the speech of the day after 17 to 62 %.
"""


@dataclass(frozen=True)
class Understood:
    """Confidence and trust in some utterances as a model decodes them.

    Attributes:
        confidence: Mean confidence of the sentences.
        trusted: Share of them whose labels may be learnt from.
    """

    confidence: float
    trusted: float


class DayChecks:
    """Compares models from before and after a day on the sentences around it.

    Args:
        chain: Directory of the chain.
        comparer: Decodes with its models.
        sentences: Sentences of the usage log.
        labeller: Tells which labels are trusted.
        lost_confidence: Fall of the mean confidence that is too large.
    """

    def __init__(
        self,
        chain: Path,
        comparer: ModelComparer,
        sentences: LoggedSentences,
        labeller: Labeller,
        lost_confidence: float,
    ) -> None:
        self._chain = chain
        self._comparer = comparer
        self._sentences = sentences
        self._labeller = labeller
        self._lost_confidence = lost_confidence

    def reason_to_leave(
        self, session: str, latest: int, before: int, today: Sequence[int], learner: Learner
    ) -> str | None:
        """Return why learning continues from before the latest day; None where from that day.

        The model from before that day also decodes the first sentences of the new one. If it is
        surer of them, as after a day of garbage or without an array, the day between did harm.
        Where hardly any of its labels is trusted, as on a new day of garbage, they decide nothing.

        Args:
            session: The new day.
            latest: Model from the end of the day before it.
            before: Model from the end of an earlier day.
            today: Utterances of the new day so far.
            learner: With the settings, tells which labels are trusted.
        """
        of_latest, of_before = (self._understood(each, today, learner) for each in (latest, before))
        if of_latest is None or of_before is None:
            return None
        lost = of_before.confidence - of_latest.confidence > self._lost_confidence
        if of_before.trusted < LEAST_TRUSTED or not lost:
            return None
        figures = f"confidence {of_before.confidence:.2f}, not {of_latest.confidence:.2f}"
        return f"model {before} is surer of the first sentences of {session}: {figures}"

    def reason_to_doubt(
        self, contents: ChainContents, number: int, before: int, learner: Learner
    ) -> str | None:
        """Return why a model may have learnt from garbage; None where it has not.

        It was judged on labelled sentences, which may be of better days. So the model from before
        those days decodes all their sentences. The model itself cannot tell: it is sure of
        garbage that it has learnt from.

        Args:
            contents: The chain.
            number: The model.
            before: Model from before the day that was learnt last.
            learner: With the settings, tells which labels are trusted.
        """
        # A damaged model cannot decode, and no doubt follows from it.
        if not is_intact(self._chain, contents.model(before)):
            return None
        numbers = self._of_days_since(contents, number, before)
        understood = self._understood(before, numbers, learner)
        if understood is None or understood.trusted >= LEAST_TRUSTED:
            return None
        return (
            f"only {understood.trusted:.0%} of the labels that model {before} gives its days are"
            " trusted"
        )

    def _of_days_since(self, contents: ChainContents, number: int, before: int) -> list[int]:
        """Return the utterances, learnt or not, of the days that only the later model knows.

        Utterances after the last one that the later model, `number`, has learnt from are left out.
        """
        log = self._sentences.log
        days, last = _days_since(contents, log, number, before)
        return [n for n, each in log.utterances.items() if each.session in days and n <= last]

    def _understood(
        self, model: int, numbers: Sequence[int], learner: Learner
    ) -> Understood | None:
        """Decode utterances with a model; None where the features of too few are kept."""
        confidences, trusted = [], []
        for sentence, nbest in self._comparer.decoded(model, numbers):
            confidences.append(confidence_of(nbest))
            trusted.append(self._labeller.trusted(nbest, sentence, learner) is not None)
        if len(confidences) < FEWEST_OF_DAY:
            return None
        return Understood(float(np.mean(confidences)), float(np.mean(trusted)))


def days_left_out(contents: ChainContents, log: LogContents) -> set[str]:
    """Return the days of a log that did harm; see `DayChecks.reason_to_leave`."""
    return {
        day
        for each in contents.entries
        if each.kind == "rejected" and "on_from" in each.facts
        for day in _days_since(contents, log, each.model, each.facts["on_from"])[0]
    }


def _days_since(
    contents: ChainContents, log: LogContents, number: int, before: int
) -> tuple[set[str], int]:
    """Return the days that only the later model knows, and the last utterance it has learnt."""
    of_model, of_before = (
        {n for began, n in contents.learnt(each) if began == log.began and n in log.utterances}
        for each in (number, before)
    )
    # By days, not by utterances: the later model may have learnt more sentences of a day that
    # both know, and such a day did not do the harm between them.
    days, known = ({log.utterances[n].session for n in each} for each in (of_model, of_before))
    return days - known, max(of_model, default=-1)
