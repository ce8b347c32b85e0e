"""A service that keeps a decoder calibrated: it follows the usage log of a live decoder.

It learns from what was said there, and adds models to a chain. A model may speak once it was judged
on labelled sentences that no model of the chain has learnt from (`promotion`). All that it knows is
in its directory, so that it goes on after being killed at any moment:

    CHAIN/chain.jsonl, models/   see `chain`
    CHAIN/learner/               the model that learns, and how far it has come in the log
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import yaml

from cortext.config import to_mapping
from cortext.data.packed import PackedDataset
from cortext.decoding.log_probs import log_softmax
from cortext.errors import RunError
from cortext.evaluation.confidence import take_over_confidence
from cortext.evaluation.fitted import take_over
from cortext.evaluation.settings import Options
from cortext.files import atomic_write, disk_errors, exclusive
from cortext.models import load_model, save_model
from cortext.recalibration.chain import (
    Chain,
    ChainContents,
    Entry,
    model_folder,
    open_chain,
    read_chain,
    verify_model,
)
from cortext.recalibration.forgetting import LEARNER, forget_in_store
from cortext.recalibration.judging import Evidence, Judge, day_of
from cortext.recalibration.labels import label_of, labelling_search, pseudo_label
from cortext.recalibration.learner import HeardSentence, Learner
from cortext.recalibration.old_sentences import old_sentences
from cortext.recalibration.promotion import (
    Comparison,
    Decision,
    PromotionRule,
    decide,
    spent,
)
from cortext.recalibration.recorded import LoggedSentence, LoggedSentences
from cortext.recalibration.settings import ServiceSettings, method_settings
from cortext.recalibration.speaker import Ratings, reason_to_stop
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
        method: A key of `METHODS`.
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
        method: str = "replay",
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
        self._learning = method_settings(method, overrides)
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
            self._lexicon = None if decoder.lm.is_open else decoder.lm.lexicon
            self._sentences = LoggedSentences(Path(log), base.conventions, base.n_features)
            self._evidence = Evidence(self.out, self._judge, self._sentences, settings, rule)
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
        """Begin to learn from a model of the chain, without the sentences that led elsewhere."""
        entry = self.chain.model(number)
        folder = verify_model(self.out, entry)
        model = load_model(folder)
        config = run_config(folder, model)
        self._learner = Learner(model, config, self._learning, seed=self._seed)
        if self._old_data is not None:
            days = load_model(model_folder(self.out, 0)).sessions
            most = self._learning.remembered // 2
            self._learner.remember(old_sentences(model, config, self._old_data, days, most))
        position = self._position
        position.parent, position.fresh = self.chain.parent, 0
        position.decoded, position.told = [], []
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
        sentence = self._next_sentence()
        if sentence is None:
            return False
        self._learn(*sentence)
        return True

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
        """Tell whether an utterance, once it has a label, judges and is never learnt from.

        Half of them are, drawn by the chain, the log and the number.
        """
        name = f"{self.chain.id} {self._sentences.began} {number}"
        return hashlib.sha256(name.encode()).digest()[0] % 2 == 0

    def _next_sentence(self) -> tuple[LoggedSentence, np.ndarray, bool] | None:
        """Return a sentence to learn from, its label, int64 [U], and whether a person gave it."""
        position, log = self._position, self._sentences.log
        for number, utterance in log.utterances.items():
            if number >= position.next:
                break
            if number in position.corrected or utterance.label is None:
                continue
            position.corrected.add(number)
            if found := self._labelled(number):
                return *found, True
        while position.next < len(log.entries):
            if position.next not in log.utterances:  # a partner's turn, or deleted
                position.next += 1
                continue
            utterance = log.utterances[position.next]
            age = self._clock() - utterance.when
            if utterance.label is None and age < timedelta(seconds=self.settings.settle_s):
                return None
            number, position.next = position.next, position.next + 1
            if utterance.label is not None:
                position.corrected.add(number)
            if found := self._labelled(number):
                return *found, utterance.label is not None
        return None

    def _labelled(self, number: int) -> tuple[LoggedSentence, np.ndarray] | None:
        """Return an utterance with a label to learn from, int64 [U]; None where there is none."""
        sentence = self._sentences.sentence(number)
        if sentence is None:
            return None
        model, text = self._learner.model, sentence.utterance.label
        if text is not None:
            if self.is_reserved(number):
                return None
            labels_U = label_of(text, model.conventions, self._lexicon)
        else:
            self._pause()
            day = day_of(model, sentence.utterance.session)
            log_probs_PV = log_softmax(model.logits(sentence.features_TC, day))
            nbest = self._judge.decoder.decode(log_probs_PV, model.inventory)
            least = self._learning.confidence
            fewest = self._learner.fewest_tokens(len(sentence.features_TC))
            labels_U = pseudo_label(nbest, least, model.conventions, self._lexicon, fewest)
        return None if labels_U is None else (sentence, labels_U)

    def _learn(self, sentence: LoggedSentence, labels_U: np.ndarray, told: bool) -> None:
        assert self._sentences.began is not None, "a sentence has a log"
        entry = self._sentences.began, sentence.number
        session = sentence.utterance.session
        heard = HeardSentence(sentence.features_TC, session, labels_U, entry=entry)
        learnt = self._learner.learn(heard, self._pause)
        if learnt.kept:  # even without a step: it is replayed in later ones
            (self._position.told if told else self._position.decoded).append(sentence.number)
        if learnt.steps:
            self._position.fresh += 1

    def _save(self) -> None:
        corrected = sorted(self._position.corrected)
        self._store.save(self._learner, asdict(self._position) | {"corrected": corrected})

    def _add_model(self) -> None:
        """Add the learner's model to the chain, judge it, and do what the rule says.

        The learner is saved first: where the rest fails, it is not learnt again.
        """
        position = self._position
        self._save()
        learnt = {
            "log": position.began,
            "decoded": list(position.decoded),
            "corrected": list(position.told),
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
            decision, found = self._judged(chain, entry)
            self._decided(chain, entry, decision, found)
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
            decision, found = self._judged(chain, entry)
            self._decided(chain, entry, decision, found)
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
        utterances = self._sentences.log.utterances
        entry = self.chain.entries[self.chain.speaking(self._clock())]
        checks = self.chain.of(entry.number, "checked")
        since = [n for n, each in utterances.items() if each.when >= entry.when]
        news = len(since) - (checks[-1].facts["said"] if checks else 0)
        if entry.kind != "candidate" or news < self.settings.every:
            return False
        level = self.rule.level(len(checks) + 1)
        found = self._evidence.comparison(entry, since, level)
        fewest = min(self.rule.fewest, self.settings.watched)
        confidences = self._evidence.confidences(entry, since, fewest)
        parent = self.chain.entries[entry.facts["parent"]]
        said = utterances.values()
        ratings = [Ratings.of(said, each.model_name) for each in (parent, entry)]
        reason = reason_to_stop(
            found, confidences, (ratings[0], ratings[1]), self.settings.lost_confidence, 1 - level
        )
        with open_chain(self.out, now=self._clock) as chain:
            chain.add(
                "checked",
                model=entry.number,
                said=len(since),
                comparison=None if found is None else asdict(found),
                confidence=confidences,
                ratings=[asdict(each) for each in ratings],
                reason=reason,
            )
            if reason and chain.contents.parent == entry.number:
                verify_model(self.out, parent)
                chain.roll_back(parent.number, reason, AUTOMATIC)
            elif reason:
                chain.add("rejected", model=entry.number, why=reason)
            self.chain = chain.contents
        if reason:
            self._start_again(self.chain.parent)
            self._save()
        return True

    def _judged(self, chain: Chain, entry: Entry) -> tuple[Decision, Comparison | None]:
        """Compare a candidate with its parent, and write down the result."""
        judging = self._judging_sentences(chain.contents, entry)
        earlier = self._judgements(chain.contents, entry.facts["parent"])
        found = self._evidence.comparison(entry, judging, self.rule.level(earlier + 1))
        everything = list(self._sentences.log.utterances)
        confidences = self._evidence.confidences(entry, everything)
        uppers = [
            each.facts["upper"]
            for each in chain.contents.entries
            if each.kind == "promoted" and each.facts.get("upper") is not None
        ]
        decision = decide(found, self.rule, spent(uppers))
        spoke = chain.contents.provisional
        beside = None
        if spoke not in (None, entry.number):
            beside = self._evidence.comparison(entry, judging, self.rule.level(earlier + 1), spoke)
        if found is None and self.settings.allow_provisional:
            decision = Decision("speak", f"allowed by the operator; {decision.reason}")
        if beside is not None and beside.lower > 0:
            why = f"at least {beside.lower:.1f} points more word errors than model {spoke}"
            why = f"on {beside.sentences} sentences it makes {why}, which spoke last"
            decision = Decision("reject", why)
        if (
            confidences is not None
            and confidences[0] - confidences[1] > self.settings.lost_confidence
            and decision.action != "reject"
        ):
            before, after = confidences
            why = (
                f"the confidence of sentences without labels fell from {before:.2f} to {after:.2f}"
            )
            decision = Decision("wait", why)
        chain.add(
            "judged",
            model=entry.number,
            comparison=None if found is None else asdict(found),
            confidence=confidences,
            action=decision.action,
            reason=decision.reason,
        )
        return decision, found

    @staticmethod
    def _judgements(contents: ChainContents, parent: int) -> int:
        """Return how many candidates were compared with a parent."""
        return sum(
            each.kind == "judged"
            and each.facts["comparison"] is not None
            and contents.entries[each.model].facts["parent"] == parent
            for each in contents.entries
        )

    def _decided(
        self, chain: Chain, entry: Entry, decision: Decision, found: Comparison | None
    ) -> None:
        number = entry.number
        if decision.action == "promote":
            chain.add("promoted", model=number, upper=None if found is None else found.upper)
        elif decision.action == "speak":
            until = self._clock() + timedelta(hours=self.rule.hours)
            chain.add("provisional", model=number, until=until.isoformat(timespec="seconds"))
        elif decision.action == "reject":
            chain.add("rejected", model=number, why=decision.reason)

    def _clear(self, chain: Chain) -> None:
        """Remove the files of old models that never spoke."""
        contents = chain.contents
        spoke = {
            each.model for each in contents.entries if each.kind in ("promoted", "provisional")
        }
        silent = [number for number in contents.models[1:] if number not in spoke]
        for number in silent[: -self.settings.kept]:
            chain.remove(number)

    def _judging_sentences(self, contents: ChainContents, entry: Entry) -> list[int]:
        """Return the reserved utterances with labels that may judge a candidate.

        They were spoken after its parent was made: of earlier days both have the same layers. A
        sentence that got its label late, when it had been learnt from as it was decoded, is none.
        """
        parent, *ancestors = contents.lineage(entry.number)[1:]
        learnt = set[int]()
        for number in (entry.number, parent, *ancestors):
            facts = contents.entries[number].facts.get("learnt")
            if facts is not None and facts["log"] == self._position.began:
                learnt.update(facts["decoded"], facts["corrected"])
        made = contents.entries[parent].when
        return [
            number
            for number, each in self._sentences.log.utterances.items()
            if each.label is not None
            and each.when >= made
            and number not in learnt
            and self.is_reserved(number)
        ]
