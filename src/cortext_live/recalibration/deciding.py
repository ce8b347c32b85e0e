"""Decides which models of a chain may speak, and which day is left out, from what a log holds."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from cortext.errors import shown
from cortext.models.card import CARD, read_card
from cortext_live.recalibration.chain import Chain, intact_ancestor, is_intact, model_folder
from cortext_live.recalibration.chain_entries import ChainContents, Entry
from cortext_live.recalibration.comparing import ModelComparer
from cortext_live.recalibration.labeller import Labeller
from cortext_live.recalibration.labels import confidence_of
from cortext_live.recalibration.learner import Learner
from cortext_live.recalibration.monitoring import Ratings, reason_to_stop
from cortext_live.recalibration.promotion import Comparison, Decision, PromotionRule, decide, spent
from cortext_live.recalibration.recorded import LoggedSentences
from cortext_live.recalibration.settings import ServiceSettings

FEWEST_OF_DAY = 5
"""Fewest sentences of a day that tell garbage from speech."""
FEWEST_UNLEARNT = 5
"""Fewest sentences without labels whose confidence may veto a model."""
LEAST_TRUSTED = 0.1
"""Least share of trusted labels that a model from before a day gives its sentences.

It gave simulated garbage 0 to 4 %, and the speech of the day after 17 to 62 %.
"""
NAMED = 5
"""Most utterances that a person is asked to correct."""


@dataclass(frozen=True)
class Judgement:
    """Findings about a candidate, and the decision that follows.

    Attributes:
        model: Its number.
        decision: The decision.
        comparison: Its word errors beside its parent's; None with too few sentences.
        confidence: Mean confidence of the parent and its own, on sentences it has not learnt from.
        log: Second of the log's first entry.
        labelled: Number of sentences with labels that may judge it.
        said: Number of sentences in the log.
        until: End of its time, where it speaks provisionally.
    """

    model: int
    decision: Decision
    comparison: Comparison | None
    confidence: tuple[float, float] | None
    log: int | None
    labelled: int
    said: int
    until: datetime

    def write(self, chain: Chain) -> None:
        """Add it to the chain, and what follows from it."""
        action, reason = self.decision.action, self.decision.reason
        chain.add(
            "judged",
            model=self.model,
            comparison=None if self.comparison is None else asdict(self.comparison),
            confidence=self.confidence,
            log=self.log,
            labelled=self.labelled,
            said=self.said,
            action=action,
            reason=reason,
        )
        if action == "promote" and self.comparison is not None:
            chain.add("promoted", model=self.model, upper=self.comparison.upper)
        elif action == "speak":
            until = self.until.isoformat(timespec="seconds")
            chain.add("provisional", model=self.model, until=until)
        elif action == "reject":
            chain.add("rejected", model=self.model, why=reason)


@dataclass(frozen=True)
class Understood:
    """Confidence and trust in some utterances as a model decodes them.

    Attributes:
        confidence: Mean confidence of the sentences.
        trusted: Share of them whose labels may be learnt from.
    """

    confidence: float
    trusted: float


class Decider:
    """Decides about models of a chain.

    Args:
        chain: Directory of the chain.
        comparer: Word errors and confidences of its models.
        sentences: Sentences of the usage log.
        labeller: Knows which sentences judge.
        rule: Bounds of promotion.
        settings: Settings of the service.
        clock: Returns the time.
    """

    def __init__(
        self,
        chain: Path,
        comparer: ModelComparer,
        sentences: LoggedSentences,
        labeller: Labeller,
        rule: PromotionRule,
        settings: ServiceSettings,
        clock: Callable[[], datetime],
    ) -> None:
        self._chain = chain
        self._comparer = comparer
        self._sentences = sentences
        self._labeller = labeller
        self._rule = rule
        self._settings = settings
        self._clock = clock

    def judge(
        self,
        contents: ChainContents,
        entry: Entry,
        before: int | None,
        learner: Learner,
    ) -> Judgement:
        """Compare a candidate with its parent; see `Judgement.write`.

        Args:
            contents: The chain.
            entry: The candidate's entry.
            before: Model from before the day that was learnt last, which tells garbage from speech.
            learner: With the settings, tells which labels are trusted.
        """
        unlearnt = self._unlearnt(contents, entry)
        judging = self._judging_sentences(unlearnt)
        level = self._rule.level(1 + _judgements(contents, entry.facts["parent"]))
        found = self._comparer.comparison(entry, judging, level)
        confidences = self._comparer.confidences(entry, unlearnt, FEWEST_UNLEARNT)
        decision = self._decision(contents, found, len(judging))
        spoke = contents.provisional
        if spoke not in (None, entry.number):
            beside = self._comparer.comparison(entry, judging, level, spoke)
            if beside is not None and beside.lower > 0:
                why = f"at least {beside.lower:.1f} points more word errors than model {spoke}"
                why = f"on {beside.sentences} sentences it makes {why}, which spoke last"
                decision = Decision("reject", why)
        if decision.action != "reject" and confidences is not None and self._fell(*confidences):
            of_parent, own = confidences
            why = "the confidence of sentences without labels fell from"
            decision = Decision("wait", f"{why} {of_parent:.2f} to {own:.2f}")
        if decision.action == "promote" and before in contents.descent(entry.number):
            decision = self._unless_garbage(decision, contents, entry, before, learner)
        if decision.asks:
            decision = replace(decision, reason=decision.reason + self._wanted(unlearnt))
        until = self._clock() + timedelta(hours=self._rule.hours)
        log, said = self._sentences.began, len(self._sentences.log.utterances)
        return Judgement(entry.number, decision, found, confidences, log, len(judging), said, until)

    def has_news(self, contents: ChainContents, entry: Entry) -> bool:
        """Tell whether a model that was judged before may be judged again.

        Each comparison makes the next one's bound wider. So a tenth more sentences must have
        labels; or none were compared, and the operator lets the model go on without.
        """
        judged = contents.of(entry.number, "judged")
        if not judged or judged[-1].facts.get("log") != self._sentences.began:
            return True
        last = judged[-1].facts
        labelled = len(self._judging_sentences(self._unlearnt(contents, entry)))
        if labelled >= max(self._rule.fewest, last["labelled"] + 1, 1.1 * last["labelled"]):
            return True
        if last["comparison"] is not None:
            return False
        more = len(self._sentences.log.utterances) - last["said"] >= self._settings.every
        return bool(last["action"] == "speak" or (more and self._settings.allow_provisional))

    def _decision(
        self, contents: ChainContents, found: Comparison | None, labelled: int
    ) -> Decision:
        """Return what the rule says of a comparison, with the budget that the promotions left.

        Those that a rollback has undone count no longer.

        Args:
            contents: The chain.
            found: The comparison; None where too few sentences are labelled for one.
            labelled: Number of labelled sentences that may judge.
        """
        promoted = contents.lineage(contents.parent)
        uppers = [
            each.facts["upper"]
            for each in contents.entries
            if each.kind == "promoted" and each.model in promoted
        ]
        decision = decide(found, self._rule, spent(uppers), labelled)
        if found is None and self._settings.allow_provisional:
            reason = f"allowed by the operator; {decision.reason}"
            return replace(decision, action="speak", reason=reason)
        return decision

    def _unless_garbage(
        self,
        decision: Decision,
        contents: ChainContents,
        entry: Entry,
        before: int,
        learner: Learner,
    ) -> Decision:
        """Return the decision to promote a model, unless it may have learnt from garbage.

        The labelled sentences that judge it may be of better days. It may speak until the next day
        shows whether this one did harm; see `reason_to_leave`.
        """
        if not is_intact(self._chain, contents.model(before)):
            return decision
        numbers = self._of_days_since(contents, entry.number, before)
        found = self._understood(before, numbers, learner)
        if found is None or found.trusted >= LEAST_TRUSTED:
            return decision
        why = (
            f"only {found.trusted:.0%} of the labels that model {before} gives its days are trusted"
        )
        return Decision(
            "speak", f"{decision.reason}; {why}, so model {entry.number} may only speak for a day"
        )

    def _of_days_since(self, contents: ChainContents, number: int, before: int) -> list[int]:
        """Return the utterances, learnt or not, of the days that only the later model knows.

        Args:
            contents: The chain.
            number: The later model. Utterances after the last one that it has learnt from are left
                out.
            before: The earlier model.
        """
        days, last = self._days_since(contents, number, before)
        utterances = self._sentences.log.utterances
        return [n for n, each in utterances.items() if each.session in days and n <= last]

    def _days_since(
        self, contents: ChainContents, number: int, before: int
    ) -> tuple[set[str], int]:
        """Return the days that only the later model knows, and the last utterance it has learnt."""
        began, utterances = self._sentences.began, self._sentences.log.utterances
        of_model, of_before = (
            {n for log, n in contents.learnt(each) if log == began and n in utterances}
            for each in (number, before)
        )
        days, known = ({utterances[n].session for n in each} for each in (of_model, of_before))
        return days - known, max(of_model, default=-1)

    def _days_left_out(self, contents: ChainContents) -> set[str]:
        """Return the days that did harm; see `reason_to_leave`."""
        return {
            day
            for each in contents.entries
            if each.kind == "rejected" and "on_from" in each.facts
            for day in self._days_since(contents, each.model, each.facts["on_from"])[0]
        }

    def _understood(
        self, model: int, numbers: Sequence[int], learner: Learner
    ) -> Understood | None:
        """Decode utterances with a model; None where the features of too few are kept.

        Args:
            model: Number of the model.
            numbers: The utterances.
            learner: With the settings, tells which labels are trusted.
        """
        confidences, trusted = [], []
        for sentence, nbest in self._comparer.decoded(model, numbers):
            confidences.append(confidence_of(nbest))
            trusted.append(self._labeller.trusted(nbest, sentence, learner) is not None)
        if len(confidences) < FEWEST_OF_DAY:
            return None
        return Understood(float(np.mean(confidences)), float(np.mean(trusted)))

    def _fell(self, before: float, after: float) -> bool:
        """Tell whether a mean confidence fell by more than is allowed."""
        return before - after > self._settings.lost_confidence

    def _judging_sentences(self, unlearnt: Iterable[int]) -> list[int]:
        """Return the reserved ones with labels among utterances."""
        utterances = self._sentences.log.utterances
        return [
            number
            for number in unlearnt
            if utterances[number].label is not None and self._labeller.is_reserved(number)
        ]

    def _wanted(self, unlearnt: Iterable[int]) -> str:
        """Return in words which of some utterances would judge, whenever they get labels.

        The latest of those that have words and whose features are kept.
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

    def _unlearnt(self, contents: ChainContents, entry: Entry) -> list[int]:
        """Return the utterances that a candidate, its parent and what speaks have not learnt from.

        They were spoken after the parent was made: of earlier days both have the same layers. Where
        the chain began with the parent, they may be older, except on days that it was trained on.
        A sentence that got its label late, when it had been learnt from as it was decoded, is none.
        Nor are those of a day that was left out: what an old model makes of garbage tells nothing.
        """
        parent = contents.entries[entry.facts["parent"]]
        added, utterances = contents.added_at(parent.number), self._sentences.log.utterances
        unknown = set[str]()
        if parent.kind == "base":
            card = read_card(model_folder(self._chain, parent.number) / CARD)
            unknown = {each.session for each in utterances.values()} - set(card.sessions)
        left_out = self._days_left_out(contents)
        learnt = contents.learnt(entry.number) | contents.learnt(parent.number)
        if contents.provisional is not None:
            learnt |= contents.learnt(contents.provisional)
        return [
            number
            for number, each in utterances.items()
            if (each.when >= added or each.session in unknown)
            and each.session not in left_out
            and (self._sentences.began, number) not in learnt
        ]

    def check(self, contents: ChainContents, entry: Entry) -> dict[str, Any] | None:
        """Check the model that speaks beside its parent.

        Args:
            contents: The chain.
            entry: The entry of the model that speaks.

        Returns:
            The facts of a `checked` entry; their `reason` is empty where it may go on speaking.
            None for a model without a parent, or where too little was said since the last check.
        """
        utterances = self._sentences.log.utterances
        checks = contents.of(entry.number, "checked")
        added = contents.added_at(entry.number)
        said = {number for number, each in utterances.items() if each.when >= added}
        began = self._sentences.began
        last = checks[-1].facts if checks and checks[-1].facts.get("log") == began else None
        news = len(said) - (0 if last is None else last["said"])
        if entry.kind != "candidate" or news < self._settings.every:
            return None
        level = self._rule.level(len(checks) + 1)
        parent = contents.entries[intact_ancestor(self._chain, entry, contents)]
        unlearnt = [number for number in self._unlearnt(contents, entry) if number in said]
        found = self._comparer.comparison(entry, unlearnt, level, parent.number)
        fewest = min(self._rule.fewest, self._settings.watched)
        confidences = self._comparer.confidences(entry, unlearnt, fewest, parent.number)
        of_parent, own = (
            Ratings.of(utterances.values(), each.model_name) for each in (parent, entry)
        )
        lost_confidence = self._settings.lost_confidence
        return {
            "log": began,
            "said": len(said),
            "comparison": None if found is None else asdict(found),
            "confidence": confidences,
            "ratings": [asdict(of_parent), asdict(own)],
            "reason": reason_to_stop(
                found, confidences, (of_parent, own), lost_confidence, 1 - level
            ),
        }

    def reason_to_leave(
        self, session: str, latest: int, before: int, today: Sequence[int], learner: Learner
    ) -> str | None:
        """Return why learning goes on from before the latest day; None where it goes on from it.

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
        lost = self._fell(of_before.confidence, of_latest.confidence)
        if of_before.trusted < LEAST_TRUSTED or not lost:
            return None
        found = f"confidence {of_before.confidence:.2f}, not {of_latest.confidence:.2f}"
        return f"model {before} is surer of the first sentences of {session}: {found}"


def _judgements(contents: ChainContents, parent: int) -> int:
    """Return how many candidates were compared with a parent."""
    return sum(
        each.kind == "judged"
        and each.facts["comparison"] is not None
        and contents.entries[each.model].facts["parent"] == parent
        for each in contents.entries
    )
