"""A service that keeps a decoder calibrated: it follows the usage log of a live decoder.

It learns from what was said there, and adds models to a chain. A model may speak once it was judged
on labelled sentences that no model of the chain has learnt from (`promotion`). All that it knows is
in its directory, so that it goes on after being killed at any moment:

    CHAIN/chain.jsonl, models/   see `chain`
    CHAIN/learner/               the model that learns, and how far it has come in the log
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path

import yaml

from cortext.config import to_mapping
from cortext.data.packed import PackedDataset
from cortext.errors import RunError
from cortext.evaluation.confidence import take_over_confidence
from cortext.evaluation.fitted import take_over
from cortext.evaluation.settings import Options
from cortext.files import atomic_write, disk_errors, exclusive
from cortext.models import load_model, save_model
from cortext.recalibration.chain import (
    Chain,
    Entry,
    model_folder,
    open_chain,
    read_chain,
    verify_model,
)
from cortext.recalibration.deciding import Decider
from cortext.recalibration.forgetting import LEARNER, forget_in_store, numbers_in
from cortext.recalibration.judging import Evidence, Judge
from cortext.recalibration.labeller import Labeller
from cortext.recalibration.labels import labelling_search
from cortext.recalibration.learner import Learner
from cortext.recalibration.old_sentences import old_sentences
from cortext.recalibration.promotion import Decision, PromotionRule
from cortext.recalibration.recorded import LoggedSentences
from cortext.recalibration.settings import SERVICE_METHODS, ServiceSettings, method_settings
from cortext.recalibration.state import LearnerStore, Position
from cortext.training.adapt import run_config
from cortext.usage.writer import now

AUTOMATIC = "automatic"
"""Operator of a rollback that no person asked for."""


class Recalibration:
    """The service, a piece of work at a time; a context manager.

    Args:
        run: Run directory that a new chain begins with.
        log: Directory of the usage log, with the features of all utterances.
        lm: Language-model directory.
        out: Directory of the chain.
        method: A key of `SERVICE_METHODS`.
        overrides: `key=value` changes of the method's settings.
        settings: Settings of the service.
        rule: Bounds of promotion.
        options: Decoder options; those fitted to the run by default.
        operator: Name of the person or program that runs it, for the chain.
        seed: Seed of noise, dropout and replay.
        pause: Is called before each piece of computation, of half a second at most; it may wait.
        old_data: Labelled recordings of days that the run knows, to replay; None for none.
        clock: Returns the time.

    Raises:
        CortextError: The run, the language model or the chain cannot be used, or another service
            works on the chain.
    """

    def __init__(
        self,
        run: str | Path,
        log: str | Path,
        lm: str | Path,
        out: str | Path,
        *,
        method: str = "together",
        overrides: Iterable[str] = (),
        settings: ServiceSettings = ServiceSettings(),
        rule: PromotionRule = PromotionRule(),
        options: Options = None,
        operator: str = "",
        seed: int = 0,
        pause: Callable[[], None] = lambda: None,
        old_data: str | Path | PackedDataset | None = None,
        clock: Callable[[], datetime] = now,
    ) -> None:
        self._pause = pause
        self._clock = clock
        self._old_data = old_data
        self._waits: tuple[int | None, int] | None = None
        self._forgotten = set[int]()
        self.out = Path(out)
        self.settings = settings
        self.rule = rule
        self._learning = method_settings(method, overrides, SERVICE_METHODS)
        self._method = method
        self._operator = operator
        self._seed = seed
        with open_chain(self.out, run, operator=operator, now=clock) as chain:
            self.chain = chain.contents
        self._stack = ExitStack()
        try:
            self._stack.enter_context(self._alone())
            base = load_model(model_folder(self.out, self.chain.parent))
            decoder, _ = labelling_search(model_folder(self.out, 0), lm, options)
            decoder.lm.require(base.inventory, base.language, theirs="the run")
            self._judge = Judge(decoder, pause)
            self._sentences = LoggedSentences(Path(log), base.conventions, base.n_features)
            self._labeller = Labeller(
                decoder, self._sentences, self._learning, self.chain.id, pause
            )
            evidence = Evidence(self.out, self._judge, self._sentences, settings, rule)
            self._decider = Decider(
                evidence, self._sentences, self.is_reserved, rule, settings, clock
            )
            self._store = LearnerStore(self.out / LEARNER)
            self._begin()
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Recalibration:
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def _alone(self) -> AbstractContextManager[None]:
        folder = self.out / LEARNER
        with disk_errors(folder):
            folder.mkdir(mode=0o700, exist_ok=True)
        fix = "end that process, or give another --out"
        return exclusive(
            folder, RunError("another service works on this chain", where=folder, fix=fix)
        )

    def _begin(self) -> None:
        saved = self._store.load()
        if saved is not None:
            self._learner, note = saved
            self._position = Position(**note | {"corrected": set(note["corrected"])})
            return
        self._position = Position()
        self._start_again(self.chain.parent)

    def _start_again(self, number: int) -> None:
        """Begin to learn from a model of the chain, without the sentences that led elsewhere.

        Those of earlier days that the model knows are still replayed.
        """
        entry = self.chain.model(number)
        folder = verify_model(self.out, entry)
        model = load_model(folder)
        config = run_config(folder, model)
        earlier = getattr(self, "_learner", None)
        self._learner = Learner(model, config, self._learning, seed=self._seed)
        if earlier is not None:
            self._learner.take_over(earlier)
        if self._old_data is not None:
            days = load_model(model_folder(self.out, 0)).sessions
            most = self._learning.remembered // 2
            self._learner.remember(old_sentences(model, config, self._old_data, days, most))
        position = self._position
        position.parent, position.fresh, position.latest = self.chain.parent, 0, number
        position.decoded, position.told, position.today = [], [], []
        if number != self.chain.parent:
            learnt = entry.facts["learnt"]
            position.decoded, position.told = list(learnt["decoded"]), list(learnt["corrected"])

    def work(self) -> bool:
        """Do a piece of work: learn from a sentence, or make and judge a model.

        Returns:
            Whether there was any.

        Raises:
            CortextError: The log or the chain cannot be read, or the disk is full. Nothing is lost;
                the next call tries again.
        """
        self._sentences.refresh()
        self._follow_chain()
        self._follow_log()
        self._forget_deleted()
        if self._judge_again() or self._check_speaker():
            return True
        if self._position.fresh >= self.settings.every:
            self._add_model()
            return True
        settle = timedelta(seconds=self.settings.settle_s)
        number = self._position.next_utterance(self._sentences.log, self._clock() - settle)
        if number is not None:
            self._learn(number)
        elif self._is_quiet():
            self._add_model()
        else:
            return False
        return True

    def _is_quiet(self) -> bool:
        """Tell whether sentences wait to learn together, and no further ones came for a while."""
        entries = self._sentences.log.entries
        if not (self._learning.together and self._position.fresh and entries):
            return False
        return self._clock() - entries[-1].when >= timedelta(seconds=self.settings.quiet_s)

    def _follow_chain(self) -> None:
        """Begin again with the parent where a person has rolled back."""
        self.chain = read_chain(self.out)
        if self.chain.parent != self._position.parent:
            self._start_again(self.chain.parent)
            self._save()

    def _follow_log(self) -> None:
        """Begin at the first utterance of a log that is another than before."""
        if self._position.began != self._sentences.began:
            self._position.began = self._sentences.began
            self._position.next, self._position.corrected = 0, set()
            self._forgotten = set()
            self._judge.forget_all_but([])

    def _forget_deleted(self) -> None:
        """Drop utterances that were deleted from the log, in memory and on the disk."""
        deleted, began = self._sentences.log.deleted, self._sentences.began
        if began is None or deleted <= self._forgotten:
            return
        self._judge.forget_sentences(deleted)
        self._save()
        if forget_in_store(self.out / LEARNER, began, deleted):
            self._begin()
        self._forgotten = deleted

    def is_reserved(self, number: int) -> bool:
        """Tell whether an utterance, once it has a label, judges and is never learnt from."""
        return self._labeller.is_reserved(number)

    def _learn(self, number: int) -> None:
        """Learn from an utterance, or let it wait for others to learn together with."""
        position = self._position
        if self._learning.together:
            label = self._sentences.log.utterances[number].label
            if number not in position.today and not (label and self.is_reserved(number)):
                position.today.append(number)
                position.fresh += 1
            return
        heard = self._labeller.heard(number, self._learner)
        if heard is None:
            return
        learnt = self._learner.learn(heard, self._pause)
        if learnt.kept:  # even without a step: it is replayed in later ones
            (position.told if heard.told else position.decoded).append(number)
        if learnt.steps:
            position.fresh += 1

    def _learn_together(self) -> bool:
        """Learn from the day so far, with labels by the model as it is now; tell whether it did.

        While the day goes on there is a step for each new sentence. When it is quiet, the day's
        sentences get the steps that are left, up to those of the settings for each.
        """
        position, utterances = self._position, self._sentences.log.utterances
        position.today = sorted(number for number in position.today if number in utterances)
        if not position.today:
            return False
        self._leave_bad_day()
        learner = self._learner
        found = {number: self._labeller.heard(number, learner) for number in position.today}
        heard = {number: each for number, each in found.items() if each is not None}
        steps = position.fresh
        if self._is_quiet():
            steps = max(steps, self._learning.steps * len(heard) - learner.steps_today)
        steps = learner.learn_together(list(heard.values()), steps, self._pause)
        for number, each in heard.items():
            part = position.told if each.told else position.decoded
            if number not in part:
                part.append(number)
        latest = utterances[position.today[-1]].session
        position.today = [n for n in position.today if utterances[n].session == latest]
        return steps > 0

    def _leave_bad_day(self) -> None:
        """When a new day begins, leave the one before out if it did harm.

        Its last model is rejected, and its sentences are not replayed.
        """
        position, utterances = self._position, self._sentences.log.utterances
        session = utterances[position.today[-1]].session
        if session in self._learner.model.sessions:
            return
        before, latest = position.before, position.latest
        position.before = latest
        if before is None or latest is None or before not in self.chain.models:
            return
        if before == latest or before < self.chain.parent:  # a promotion since rests on labels
            return
        today = [number for number in position.today if utterances[number].session == session]
        why = self._decider.reason_to_leave(session, latest, before, today)
        if why is None:
            return
        with open_chain(self.out, now=self._clock) as chain:
            chain.add("rejected", model=latest, why=why)
            self.chain = chain.contents
        self._start_again(before)
        position.before, position.today = before, today

    def _save(self) -> None:
        corrected = sorted(self._position.corrected)
        self._store.save(self._learner, asdict(self._position) | {"corrected": corrected})

    def _add_model(self) -> None:
        """Add the learner's model to the chain, judge it, and do what the rule says.

        The learner is saved first: where the rest fails, it is not learnt again.
        """
        position = self._position
        if self._learning.together and not self._learn_together():
            position.fresh = 0
            return
        self._save()
        learnt = {
            "log": position.began,
            "decoded": list(position.decoded),
            "corrected": list(position.told),
            "replayed": numbers_in(self._learner, position.began),
            "method": self._method,
            "settings": asdict(self._learning),
        }
        with open_chain(self.out, now=self._clock) as chain:
            entry = chain.add_model(
                "candidate",
                self._write_model,
                parent=position.parent,
                learnt=learnt,
                operator=self._operator,
            )
            position.fresh = 0
            position.latest = entry.number
            decision = self._decider.judge(chain, entry)
            self._clear(chain)
            self.chain = chain.contents
        self._go_on(entry, decision)
        self._save()

    def _go_on(self, entry: Entry, decision: Decision) -> None:
        """Learn on from a model that was promoted, or from what spoke before a rejected one."""
        position = self._position
        if decision.action == "promote":
            learnt = entry.facts["learnt"]
            position.parent = entry.number
            position.decoded = [n for n in position.decoded if n not in learnt["decoded"]]
            position.told = [n for n in position.told if n not in learnt["corrected"]]
        elif decision.action == "reject":
            spoke = self.chain.provisional
            self._start_again(self.chain.parent if spoke is None else spoke)
        self._judge.forget_all_but([position.parent, self.chain.speaking(self._clock())])

    def _judge_again(self) -> bool:
        """Judge a model anew whose provisional day is over; tell whether there was one.

        One that may not go on speaking waits for further utterances.
        """
        number = self.chain.lapsed(self._clock())
        state = number, len(self._sentences.log.entries)
        if number is None or state == self._waits:
            return False
        entry = self.chain.entries[number]
        with open_chain(self.out, now=self._clock) as chain:
            decision = self._decider.judge(chain, entry)
            self.chain = chain.contents
        self._waits = state
        self._go_on(entry, decision)
        self._save()
        return True

    def _write_model(self, folder: Path) -> None:
        """Write the learner's model as a run, with what was fitted to its parent."""
        parent = model_folder(self.out, self._position.parent)
        model = self._learner.model
        text = yaml.safe_dump(to_mapping(run_config(parent, model)), sort_keys=False)
        atomic_write(folder / "config.yaml", text.encode())
        save_model(model, folder)
        take_over(parent, folder)
        take_over_confidence(parent, folder)

    def _check_speaker(self) -> bool:
        """Check the model that speaks; its parent speaks again where it proves worse."""
        entry = self.chain.entries[self.chain.speaking(self._clock())]
        facts = self._decider.check(self.chain, entry)
        if facts is None:
            return False
        reason = facts["reason"]
        with open_chain(self.out, now=self._clock) as chain:
            chain.add("checked", model=entry.number, **facts)
            if reason and chain.contents.parent == entry.number:
                parent = entry.facts["parent"]
                verify_model(self.out, chain.contents.model(parent))
                chain.roll_back(parent, reason, AUTOMATIC)
            elif reason:
                chain.add("rejected", model=entry.number, why=reason)
            self.chain = chain.contents
        if reason:
            self._start_again(self.chain.parent)
            self._save()
        return True

    def _clear(self, chain: Chain) -> None:
        """Remove the files of old models that never spoke."""
        contents = chain.contents
        spoke = {
            each.model for each in contents.entries if each.kind in ("promoted", "provisional")
        }
        spoke.add(self._position.before or 0)
        silent = [number for number in contents.models[1:] if number not in spoke]
        for number in silent[: -self.settings.kept]:
            chain.remove(number)
