"""Decides which models of a chain may speak."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from cortext_live.recalibration.bad_days import DayChecks
from cortext_live.recalibration.chain import Chain, intact_ancestor
from cortext_live.recalibration.chain_entries import ChainContents, ChainEntry
from cortext_live.recalibration.comparing import ModelComparer
from cortext_live.recalibration.held_out import HeldOut
from cortext_live.recalibration.learner import Learner
from cortext_live.recalibration.monitoring import Ratings, reason_to_stop
from cortext_live.recalibration.promotion import (
    Comparison,
    Decision,
    PromotionOptions,
    decide,
    spent,
)
from cortext_live.recalibration.recorded import LoggedSentences
from cortext_live.recalibration.settings import ServiceOptions

FEWEST_UNLEARNT = 5
"""Fewest sentences without labels whose confidence may veto a model."""


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
        logged: Number of sentences in the log.
        until: End of its time, where it speaks provisionally.
    """

    model: int
    decision: Decision
    comparison: Comparison | None
    confidence: tuple[float, float] | None
    log: int | None
    labelled: int
    logged: int
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
            said=self.logged,
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


class Decider:
    """Decides about models of a chain.

    Args:
        chain: Directory of the chain.
        log: Sentences of the usage log.
        comparer: Word errors and confidences of the chain's models.
        held_out: Utterances that may judge.
        days: Tells days of garbage from days of speech.
        rule: Bounds of promotion.
        settings: Settings of the service.
        clock: Returns the time.
    """

    def __init__(
        self,
        chain: Path,
        log: LoggedSentences,
        comparer: ModelComparer,
        held_out: HeldOut,
        days: DayChecks,
        rule: PromotionOptions,
        settings: ServiceOptions,
        clock: Callable[[], datetime],
    ) -> None:
        self._chain = chain
        self._log = log
        self._comparer = comparer
        self._held_out = held_out
        self._days = days
        self._rule = rule
        self._settings = settings
        self._clock = clock

    def judge(
        self, contents: ChainContents, entry: ChainEntry, before: int | None, learner: Learner
    ) -> Judgement:
        """Compare a candidate with its parent; see `Judgement.write`.

        Args:
            contents: The chain.
            entry: The candidate's entry.
            before: Model from before the day that was learnt last, which tells garbage from speech.
            learner: With the settings, tells which labels are trusted.
        """
        unlearnt = self._held_out.unlearnt(contents, entry)
        labelled = self._held_out.labelled(unlearnt)
        # Each candidate of a parent is another chance that a worse one passes by luck.
        level = self._rule.level(1 + _judgements(contents, entry.facts["parent"]))
        comparison = self._comparer.comparison(entry, labelled, level)
        confidences = self._comparer.confidences(entry, unlearnt, FEWEST_UNLEARNT)
        decision = self._by_rule(contents, comparison, len(labelled))
        # Users have the model that spoke last, not the parent, where it speaks provisionally.
        decision = self._reject_worse_than_last(contents, entry, labelled, level) or decision
        of_parent, own = confidences or (0.0, 0.0)
        # Confidence may hold a model back and never promotes one: a model that learns from its own
        # text grows sure of its errors.
        if decision.action != "reject" and of_parent - own > self._settings.lost_confidence:
            why = "the confidence of sentences without labels fell from"
            decision = Decision("wait", f"{why} {of_parent:.2f} to {own:.2f}")
        if decision.action == "promote" and before in contents.descent(entry.number):
            doubt = self._days.reason_to_doubt(contents, entry.number, before, learner)
            if doubt is not None:  # the next day shows whether this one did harm
                why = f"{doubt}, so model {entry.number} may only speak for a day"
                decision = Decision("speak", f"{decision.reason}; {why}")
        if decision.asks:
            decision = replace(decision, reason=decision.reason + self._held_out.wanted(unlearnt))
        until = self._clock() + timedelta(hours=self._rule.hours)
        log, n_logged = self._log.began, len(self._log.log.utterances)
        n = len(labelled)
        return Judgement(entry.number, decision, comparison, confidences, log, n, n_logged, until)

    def _reject_worse_than_last(
        self, contents: ChainContents, entry: ChainEntry, labelled: Sequence[int], level: float
    ) -> Decision | None:
        """Reject a candidate that is surely worse than what spoke last; return None for others."""
        spoke = contents.provisional
        if spoke in (None, entry.number):
            return None
        beside = self._comparer.comparison(entry, labelled, level, spoke)
        if beside is None or beside.lower <= 0:
            return None
        why = f"at least {beside.lower:.1f} points more word errors than model {spoke}"
        why = f"on {beside.sentences} sentences it makes {why}, which spoke last"
        return Decision("reject", why)

    def has_news(self, contents: ChainContents, entry: ChainEntry) -> bool:
        """Tell whether a model that was judged before may be judged again.

        Each comparison makes the bound of the next one wider: with hardly more sentences, that one
        could only ask for more. So a tenth more sentences must have labels; or none were compared,
        and the operator allows the model without.
        """
        judged = contents.of(entry.number, "judged")
        if not judged or judged[-1].facts.get("log") != self._log.began:
            return True
        last = judged[-1].facts
        labelled = len(self._held_out.labelled(self._held_out.unlearnt(contents, entry)))
        if labelled >= max(self._rule.fewest, last["labelled"] + 1, 1.1 * last["labelled"]):
            return True
        if last["comparison"] is not None:
            return False
        more = len(self._log.log.utterances) - last["said"] >= self._settings.every
        return bool(last["action"] == "speak" or (more and self._settings.allow_provisional))

    def _by_rule(
        self, contents: ChainContents, comparison: Comparison | None, labelled: int
    ) -> Decision:
        """Return what the rule says of a comparison, with the budget that the promotions left.

        Those that a rollback has undone count no longer.
        """
        promoted = contents.lineage(contents.parent)
        uppers = [
            each.facts["upper"]
            for each in contents.entries
            if each.kind == "promoted" and each.model in promoted
        ]
        decision = decide(comparison, self._rule, spent(uppers), labelled)
        if comparison is None and self._settings.allow_provisional:
            reason = f"allowed by the operator; {decision.reason}"
            return replace(decision, action="speak", reason=reason)
        return decision

    def check(self, contents: ChainContents, entry: ChainEntry) -> dict[str, Any] | None:
        """Check the model that speaks beside its parent.

        Args:
            contents: The chain.
            entry: The entry of the model that speaks.

        Returns:
            The facts of a `checked` entry; their `reason` is empty where it may stay in use.
            None for a model without a parent, or with too few sentences since the last check.
        """
        utterances = self._log.log.utterances
        checks = contents.of(entry.number, "checked")
        added = contents.added_at(entry.number)
        since = {number for number, each in utterances.items() if each.when >= added}
        began = self._log.began
        # Numbers of utterances begin anew with each log.
        last = checks[-1].facts if checks and checks[-1].facts.get("log") == began else None
        news = len(since) - (0 if last is None else last["said"])
        if entry.kind != "candidate" or news < self._settings.every:
            return None
        level = self._rule.level(len(checks) + 1)
        parent = contents.entries[intact_ancestor(self._chain, entry, contents)]
        unlearnt = [
            number for number in self._held_out.unlearnt(contents, entry) if number in since
        ]
        comparison = self._comparer.comparison(entry, unlearnt, level, parent.number)
        # To stop a model that people use takes more sentences than to hold a new one back.
        fewest = min(self._rule.fewest, self._settings.watched)
        confidences = self._comparer.confidences(entry, unlearnt, fewest, parent.number)
        of_parent, own = (
            Ratings.of(utterances.values(), each.model_name) for each in (parent, entry)
        )
        lost = self._settings.lost_confidence
        return {
            "log": began,
            "said": len(since),
            "comparison": None if comparison is None else asdict(comparison),
            "confidence": confidences,
            "ratings": [asdict(of_parent), asdict(own)],
            "reason": reason_to_stop(comparison, confidences, (of_parent, own), lost, 1 - level),
        }


def _judgements(contents: ChainContents, parent: int) -> int:
    """Return how many candidates were compared with a parent."""
    return sum(
        each.kind == "judged"
        and each.facts["comparison"] is not None
        and contents.entries[each.model].facts["parent"] == parent
        for each in contents.entries
    )
