"""Trains a learner on utterances of a usage log: each by itself, or those of a day together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from math import ceil

from cortext_live.recalibration.labeller import Labeller
from cortext_live.recalibration.learner import Learner
from cortext_live.recalibration.position import Position
from cortext_live.recalibration.recorded import LoggedSentences


class LogTrainer:
    """Trains a learner, and notes in its position in the log what it has learnt from.

    Args:
        sentences: Sentences of the usage log.
        labeller: Gives them labels.
        pause: Is called before each step and each sentence that is decoded; it may wait.
    """

    def __init__(
        self, sentences: LoggedSentences, labeller: Labeller, pause: Callable[[], None]
    ) -> None:
        self._sentences = sentences
        self._labeller = labeller
        self._pause = pause

    def train_on(self, number: int, learner: Learner, position: Position) -> None:
        """Let it learn from an utterance, or let that wait for others to be learnt together with.

        Args:
            number: The utterance.
            learner: The learner.
            position: Its position in the log, which is changed.
        """
        if learner.settings.together:
            self._wait_for_others(number, learner, position)
            return
        # Replayed with the label before it, the sentence would be learnt with both.
        self._drop(number, learner)
        labelled = self._labeller.labelled(number, learner)
        if labelled is None:
            return
        learnt = learner.learn(labelled, self._pause)
        if learnt.kept:  # even without a step: it is replayed in later ones
            position.note_learnt(number, corrected=labelled.corrected)
        if learnt.steps:
            position.fresh.append(number)

    def _wait_for_others(self, number: int, learner: Learner, position: Position) -> None:
        """Add an utterance to those of its day, in place of those of a day that is done.

        One of an earlier day whose label has changed is only replayed; of a day that was left out,
        not even that.
        """
        utterances = self._sentences.log.utterances
        session = utterances[number].session
        if number < position.next - 1 and session not in self._sessions_of_today(learner, position):
            known = session in learner.model.sessions
            labelled = self._labeller.labelled(number, learner) if known else None
            if labelled is None:
                self._drop(number, learner)
            elif learner.keep(labelled):
                position.note_learnt(number, corrected=labelled.corrected)
            return
        self._drop(number, learner)  # the label before it
        if not self._labeller.may_train(number):
            return
        if position.rested and self._sessions(position.today) != {session}:
            position.today = []
        position.rested = False
        for waiting in (position.today, position.fresh):
            if number not in waiting:
                waiting.append(number)

    def _drop(self, number: int, learner: Learner) -> None:
        """Let an utterance without a label to learn from be replayed no longer."""
        if self._sentences.began is not None:
            session = self._sentences.log.utterances[number].session
            learner.replay.drop(session, (self._sentences.began, number))

    def _sessions_of_today(self, learner: Learner, position: Position) -> set[str]:
        """Return the days whose sentences still learn together."""
        utterances = self._sentences.log.utterances
        latest = max(number for number in utterances if number < position.next)
        going_on = self._sessions(position.today) if position.today else {learner.session}
        return going_on | {utterances[latest].session}

    def _sessions(self, numbers: Sequence[int]) -> set[str]:
        utterances = self._sentences.log.utterances
        return {utterances[number].session for number in numbers}

    def day_ends(self, position: Position, quiet: timedelta, now: datetime) -> bool:
        """Tell whether the sentences of a day wait for its last steps.

        Another day has begun, or no further ones came for a while.

        Args:
            position: The learner's position in the log.
            quiet: Time without a further utterance that ends a day.
            now: The time.
        """
        log = self._sentences.log
        if not position.today or position.rested:
            return False
        first, last = (log.utterances[position.today[k]].session for k in (0, -1))
        waits = position.next < len(log.entries)
        return first != last or (not waits and now - log.entries[-1].when >= quiet)

    def waiting_day(self, position: Position) -> tuple[str, list[int]]:
        """Return the day that waits to be learnt, and its utterances; one at least must wait."""
        utterances = self._sentences.log.utterances
        session = utterances[position.today[0]].session
        return session, sorted(n for n in position.today if utterances[n].session == session)

    def train_on_day(self, learner: Learner, position: Position) -> bool:
        """Let it learn from the day so far, with labels by its model; tell whether it did.

        When the day ends, its sentences get the steps that are left, in several rounds, before
        each of which they are decoded again.
        """
        settings, (session, numbers) = learner.settings, self.waiting_day(position)
        if position.ends:
            before = learner.steps_today if learner.session == session else 0
            # A late correction gets steps of its own, as far as `steps_per_day` allows.
            fewest = settings.steps * len(position.fresh)
            steps = max(settings.steps * len(numbers) - before, fewest)
            rounds = min(settings.rounds, steps)
        else:
            rounds, steps = 1, ceil(settings.steps_at_once * len(position.fresh))
        taken = 0
        for number in range(rounds):
            share = steps // rounds + (number < steps % rounds)
            taken += self._one_round(numbers, share, learner, position)
        return taken > 0

    def _one_round(
        self, numbers: Sequence[int], steps: int, learner: Learner, position: Position
    ) -> int:
        """Decode utterances of a day and learn from them; return the steps that were taken."""
        by_number = {number: self._labeller.labelled(number, learner) for number in numbers}
        labelled = {number: each for number, each in by_number.items() if each is not None}
        taken = learner.learn_together(list(labelled.values()), steps, self._pause)
        for number, each in labelled.items():
            position.note_learnt(number, corrected=each.corrected)
        return taken

    def rest(self, position: Position) -> None:
        """Let a day rest whose last steps were taken; sentences of another day wait on."""
        utterances = self._sentences.log.utterances
        position.fresh = []
        position.today = [number for number in position.today if number in utterances]
        if position.ends and position.today:
            session, _ = self.waiting_day(position)
            others = [n for n in position.today if utterances[n].session != session]
            position.rested = not others
            position.today = others or position.today
            position.fresh = list(others)
