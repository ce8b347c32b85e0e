"""Decisions about models, written into a chain that a person may change meanwhile."""

from __future__ import annotations

from collections.abc import Sequence

from cortext_live.recalibration.bad_days import DayChecks
from cortext_live.recalibration.chain import Chain, intact_ancestor, is_intact
from cortext_live.recalibration.deciding import Decider
from cortext_live.recalibration.followed_chain import FollowedChain
from cortext_live.recalibration.learner import Learner

AUTOMATIC = "automatic"
"""Operator of a rollback that no person asked for."""


class ChainDecisions:
    """Decides about the models of a chain, and writes the decisions.

    Models are compared without a lock on the chain. A decision about a chain that a person has
    changed meanwhile is not written; it is made anew in the next turn.

    Args:
        chain: The chain.
        decider: Judges and checks models.
        days: Tells days of garbage from days of speech.
    """

    def __init__(self, chain: FollowedChain, decider: Decider, days: DayChecks) -> None:
        self._chain = chain
        self._decider = decider
        self._days = days

    def judge(self, latest: int, before: int | None, learner: Learner) -> bool:
        """Judge the latest model, or anew one whose provisional time is over; tell whether.

        Args:
            latest: Number of the latest model.
            before: Model from before the day that was learnt last, which tells garbage from speech.
            learner: With the settings, tells which labels are trusted.
        """
        contents = self._chain.contents
        lapsed = contents.lapsed(self._chain.clock())
        silent = latest not in (contents.parent, contents.provisional)
        if silent and not contents.of(latest, "judged"):
            entry = contents.entries[latest]
        elif lapsed is not None and self._decider.has_news(contents, contents.entries[lapsed]):
            entry = contents.entries[lapsed]
        else:
            return False
        self._chain.decide(self._decider.judge(contents, entry, before, learner).write)
        return True

    def check(self) -> bool:
        """Check the model that speaks; tell whether there was anything to check."""
        contents = self._chain.contents
        entry = contents.entries[contents.speaking(self._chain.clock())]
        facts = self._decider.check(contents, entry)
        if facts is None:
            return False
        self._chain.decide(lambda chain: chain.add("checked", model=entry.number, **facts))
        return True

    def stop_worse(self) -> bool:
        """Let an earlier model speak again where the last check found the present one worse.

        The check is an entry of its own, so that a kill between the two loses nothing.

        Returns:
            Whether there was one to stop.
        """
        contents = self._chain.contents
        entry = contents.entries[contents.speaking(self._chain.clock())]
        last = [each for each in contents.entries if each.model == entry.number][-1]
        if last.kind != "checked" or not last.facts["reason"]:
            return False
        reason = last.facts["reason"]

        def stop(chain: Chain) -> None:
            if contents.parent != entry.number:  # it speaks provisionally
                chain.add("rejected", model=entry.number, why=reason)
            # The parent may be damaged: then one before it speaks.
            intact = intact_ancestor(chain.folder, entry, chain.contents)
            if intact != chain.contents.parent:
                chain.roll_back(intact, reason, AUTOMATIC)

        return self._chain.decide(stop)

    def reject_day(
        self, session: str, numbers: Sequence[int], latest: int, before: int, learner: Learner
    ) -> bool:
        """Reject the models of a day that did harm; tell whether it did. See `DayChecks`.

        Args:
            session: The day after it.
            numbers: Utterances of that day so far.
            latest: Model from the end of the day.
            before: Model from the end of an earlier day.
            learner: With the settings, tells which labels are trusted.
        """
        contents = self._chain.contents
        # A day whose model was promoted is kept: labels have proven it.
        if not contents.may_learn_from(before) or latest in contents.descent(before):
            return False
        if not all(is_intact(self._chain.folder, contents.model(n)) for n in (before, latest)):
            return False
        why = self._days.reason_to_leave(session, latest, before, numbers, learner)
        if why is None:
            return False

        def reject(chain: Chain) -> None:
            descent = contents.descent(latest)
            since = descent[: descent.index(before)] if before in descent else [latest]
            for number in since:
                if number in contents.models:
                    chain.add("rejected", model=number, why=why, on_from=before)

        return self._chain.decide(reject)
